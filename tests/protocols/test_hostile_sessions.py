"""MQTT sessions of clients that do what they can to confuse the gateway, over real sockets."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import mqtt_raw as raw
import pytest
from mqtt_raw import DISCONNECT, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, V5, Client
from wire import StompClient

from tidegate.broker.connection.connection import Connection
from tidegate.broker.sessions.state import SessionState
from tidegate.broker.sessions.wills import Will
from tidegate.testing.embedded import EmbeddedGateway
from tidegate_protocols.mqtt.session.conversation import Conversation
from tidegate_protocols.mqtt.session.session import Session

KEPT: dict[str, Any] = {"clean": False, "session_expiry": 1000}


async def attack(work: Callable[[int], None], config: str = "") -> None:
    """Run *work* with the port of a gateway of its own."""

    async with EmbeddedGateway(config) as gateway:
        await asyncio.to_thread(work, gateway.mqtt_port)


def connected(port: int, name: str, **options: Any) -> Client:
    client = Client(port, V5)
    assert client.connect(name, **options).code == 0
    return client


def published(port: int, topic: str, count: int, qos: int = 2) -> Client:
    client = connected(port, f"publisher of {topic}")
    for number in range(count):
        client.publishes(topic, b"%d" % number, qos)
    return client


async def test_a_take_over_in_the_middle_of_a_handshake_goes_on_within_a_window_of_one() -> None:
    def work(port: int) -> None:
        first = connected(port, "c", receive_maximum=1, **KEPT)
        first.subscribe("t", 2)
        published(port, "t", 5).close()
        sent = first.message()
        first.send(raw.ack(PUBREC, sent.packet_id)).receive(PUBREL)
        second = connected(port, "c", receive_maximum=1, **KEPT)
        assert first.receive(DISCONNECT).code == 0x8E
        assert second.receive(PUBREL).packet_id == sent.packet_id
        assert second.is_quiet()  # the window is full until PUBCOMP
        second.send(raw.ack(PUBCOMP, sent.packet_id))
        assert [second.takes().body for _ in range(4)] == [b"1", b"2", b"3", b"4"]
        assert second.is_quiet()
        first.close()
        second.close()

    await attack(work)


async def test_an_unsubscribe_with_messages_in_flight_completes_them_and_counts_them() -> None:
    def work(port: int) -> None:
        client = connected(port, "c", receive_maximum=2, **KEPT)
        client.subscribe("t", 2)
        publisher = published(port, "t", 5)
        first, second = client.message(), client.message()
        client.send(raw.ack(PUBREC, first.packet_id)).receive(PUBREL)
        assert client.unsubscribe("t").codes == (0,)
        client.subscribe("t", 2)
        publisher.publishes("t", b"new", 2)
        assert client.is_quiet()  # two are still on their way
        client.send(raw.ack(PUBCOMP, first.packet_id))
        new = client.message()
        assert new.body == b"new"
        client.send(raw.ack(PUBREC, second.packet_id)).receive(PUBREL)
        client.send(raw.ack(PUBCOMP, second.packet_id)).drop()
        again = connected(port, "c", **KEPT)
        found = again.takes()
        assert (found.body, found.packet_id, found.dup) == (b"new", new.packet_id, True)
        assert again.is_quiet()
        again.close()
        publisher.close()

    await attack(work)


@pytest.mark.parametrize("granted", [0, 1])
async def test_a_qos_2_message_in_flight_stays_one_when_less_is_granted_later(granted: int) -> None:
    def work(port: int) -> None:
        client = connected(port, "c", **KEPT)
        client.subscribe("t", 2)
        published(port, "t", 3).close()
        sent = [client.message() for _ in range(3)]
        client.subscribe("t", granted)
        client.drop()
        client = connected(port, "c", **KEPT)
        again = [client.message() for _ in range(3)]
        assert [(m.body, m.packet_id, m.qos, m.dup) for m in again] == [
            (m.body, m.packet_id, 2, True) for m in sent
        ]
        for message in again:
            client.send(raw.ack(PUBREC, message.packet_id)).receive(PUBREL)
            client.send(raw.ack(PUBCOMP, message.packet_id))
        assert client.is_quiet()
        client.drop()
        client = connected(port, "c", **KEPT)
        assert client.is_quiet()
        client.close()

    await attack(work)


async def test_a_packet_id_is_a_new_message_only_when_it_was_released() -> None:
    def work(port: int) -> None:
        reader = connected(port, "r")
        reader.subscribe("t", 2)
        client = connected(port, "c", **KEPT)
        for _ in range(3):
            for dup in (False, True, False):
                client.publish("t", b"x", qos=2, packet_id=7, dup=dup)
                assert client.receive(PUBREC).code == 0
            client.send(raw.ack(PUBREL, 7), raw.ack(PUBREL, 7))
            assert [client.receive(PUBCOMP).code for _ in range(2)] == [0, 0x92]
        client.publish("t", b"open", qos=2, packet_id=9)
        client.receive(PUBREC)
        again = connected(port, "c", **KEPT)  # takes over
        again.publish("t", b"open", qos=2, packet_id=9, dup=True)
        assert again.receive(PUBREC).code == 0
        again.send(raw.ack(PUBREL, 9)).receive(PUBCOMP)
        assert [reader.takes().body for _ in range(4)] == [b"x", b"x", b"x", b"open"]
        assert reader.is_quiet()
        for one in (reader, client, again):
            one.close()

    await attack(work)


async def test_a_client_that_never_reads_does_not_make_the_gateway_grow() -> None:
    body, count = b"x" * 10_000, 3_000

    def work(port: int) -> None:
        deaf = {qos: connected(port, f"deaf {qos}", **KEPT) for qos in (0, 1, 2)}
        for qos, client in deaf.items():
            client.subscribe("t", qos)
        publisher = connected(port, "p")
        before = resident_bytes()
        for start in range(0, count, 100):
            for number in range(start, start + 100):
                publisher.publish("t", body, qos=1, packet_id=number + 1)
            for _ in range(100):
                publisher.receive(PUBACK)
        grown = resident_bytes() - before
        assert grown < 3 * count * len(body) // 2, f"{grown >> 20} MiB"
        for client in (*deaf.values(), publisher):
            client.close()

    async with EmbeddedGateway() as gateway:
        await asyncio.to_thread(work, gateway.mqtt_port)


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


@pytest.mark.long
async def test_a_thousand_clients_that_leave_wills_leave_nothing_else() -> None:
    kinds = (Session, Conversation, Connection, SessionState, Will)

    def count() -> Counter[str]:
        gc.collect()
        return Counter(type(o).__name__ for o in gc.get_objects() if isinstance(o, kinds))

    def work(port: int) -> None:
        reader = connected(port, "r")
        reader.subscribe("wills", 1)

        def burst(first: int, last: int) -> None:
            for number in range(first, last):
                options: dict[str, Any] = {"will": ("wills", b"%d" % number), "will_qos": 1}
                if number % 2:
                    options |= {"clean": False, "session_expiry": 0}
                connected(port, f"c{number}", **options).drop()
            bodies = {int(reader.takes().body) for _ in range(first, last)}
            assert bodies == set(range(first, last))

        burst(0, 20)
        before = count()
        burst(20, 1020)
        after = count()
        assert all(after[name] <= before[name] + 5 for name in after), (before, after)
        reader.close()

    await attack(work)


async def test_stomp_and_mqtt_consumers_of_one_queue_share_it_without_loss_or_repetition() -> None:
    total = 300

    async def stomp(port: int, found: list[bytes]) -> None:
        client = await StompClient.connect(port)
        client.send("SUBSCRIBE", destination="/queue/q", id="1", ack="client-individual")
        try:
            while True:
                frame = await client.receive()
                found.append(frame.body)
                client.send("ACK", id=frame.headers["ack"])
        finally:
            client.close()

    def mqtt(port: int, found: list[bytes]) -> None:
        client = connected(port, "m", receive_maximum=5)
        client.subscribe("$queue/q", 1)
        producer = connected(port, "p")
        for number in range(total):
            producer.publish("$queue/q", b"%d" % number, qos=1, packet_id=number + 1)
        for _ in range(total):
            producer.receive(PUBACK)
        while True:
            client.send(raw.PING)
            while (packet := client.receive()).kind == PUBLISH:
                found.append(packet.body)
                client.send(raw.ack(PUBACK, packet.packet_id))
            assert packet.kind == PINGRESP
            if len(found) + len(others) >= total:
                break
        client.close()
        producer.close()

    others: list[bytes] = []

    async with EmbeddedGateway() as gateway:
        reading = asyncio.create_task(stomp(gateway.stomp_port, others))
        mine: list[bytes] = []
        async with asyncio.timeout(60):
            await asyncio.to_thread(mqtt, gateway.mqtt_port, mine)
        reading.cancel()
        await asyncio.wait((reading,))
        assert sorted(map(int, mine + others)) == list(range(total))
        assert mine
        assert others
