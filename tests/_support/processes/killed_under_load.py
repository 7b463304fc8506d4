"""Kill the real gateway with SIGKILL under load, again and again, and account for every message.

Four kinds of clients work at once: STOMP producers with receipts, a STOMP producer with
transactions, an MQTT QoS 1 producer, an MQTT QoS 2 producer, and acknowledging consumers on both
protocols. The gateway is killed at random moments (by seed) and started again on the same data.
The oracle, message by message:

* confirmed (RECEIPT, PUBACK, PUBCOMP) → delivered at least once;
* delivered → was sent, byte for byte;
* a transaction is delivered whole or not at all;
* acknowledged with a receipt → never delivered again;
* first deliveries of one producer's messages are in the order in which it sent them;
* QoS 2, on both sides → delivered exactly once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import wire
from gateway_process import GatewayProcess
from wire import MqttClient, StompClient

LOST = (OSError, EOFError, asyncio.IncompleteReadError)
WINDOW = 32
QUEUES = ("/queue/orders", "/queue/invoices")
TRANSACTION_QUEUE = "/queue/transfers"
TRANSACTION_SIZE = 5
TOPIC1, TOPIC2 = "sensors/one", "sensors/two"


@dataclass
class Oracle:
    """What the clients know. Bodies are ``producer:attempt:number``."""

    sent: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    delivered: dict[str, list[str]] = field(default_factory=dict)  # consumer -> bodies, all
    firsts: dict[str, list[str]] = field(default_factory=dict)  # consumer -> by message, first
    acknowledged: set[str] = field(default_factory=set)  # confirmed acknowledgements: ids
    again: list[str] = field(default_factory=list)  # delivered although acknowledged
    seen: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    stop: bool = False

    def note(self, consumer: str, message_id: str, body: str) -> None:
        self.delivered.setdefault(consumer, []).append(body)
        if message_id in self.acknowledged:
            self.again.append(message_id)
        if message_id not in self.seen:
            self.seen.add(message_id)
            self.firsts.setdefault(consumer, []).append(body)

    def missing(self) -> set[str]:
        delivered = {body for bodies in self.delivered.values() for body in bodies}
        return self.confirmed - delivered


async def keep_trying(oracle: Oracle, attempt: Callable[[int], Awaitable[None]]) -> None:
    """Run *attempt* until the test stops it; a lost connection begins the next attempt."""
    number = 0
    while not oracle.stop:
        number += 1
        try:
            await attempt(number)
        except LOST:
            pass
        except (AssertionError, TimeoutError) as error:
            oracle.problems.append(repr(error))
        await asyncio.sleep(0.02)


async def stomp_producer(oracle: Oracle, port: int, name: str, destination: str) -> None:
    async def attempt(number: int) -> None:
        client = await StompClient.connect(port)
        try:
            sent = confirmed = 0
            while not oracle.stop:
                while sent - confirmed < WINDOW:
                    sent += 1
                    body = f"{name}:{number}:{sent}"
                    oracle.sent.add(body)
                    client.send("SEND", body.encode(), destination=destination, receipt=str(sent))
                await client.writer.drain()
                answer = await client.receive()
                assert answer.command == "RECEIPT", answer
                confirmed += 1
                assert answer.headers["receipt-id"] == str(confirmed)
                oracle.confirmed.add(f"{name}:{number}:{confirmed}")
        finally:
            client.close()

    await keep_trying(oracle, attempt)


async def transaction_producer(oracle: Oracle, port: int, name: str) -> None:
    async def attempt(number: int) -> None:
        client = await StompClient.connect(port)
        try:
            count = 0
            while not oracle.stop:
                count += 1
                bodies = [f"{name}:{number}:{count}.{i}" for i in range(TRANSACTION_SIZE)]
                oracle.sent.update(bodies)
                client.send("BEGIN", transaction="t")
                for body in bodies:
                    client.send(
                        "SEND", body.encode(), destination=TRANSACTION_QUEUE, transaction="t"
                    )
                client.send("COMMIT", transaction="t", receipt=str(count))
                await client.receipt(str(count))
                oracle.confirmed.update(bodies)
        finally:
            client.close()

    await keep_trying(oracle, attempt)


async def stomp_consumer(oracle: Oracle, port: int, name: str, destination: str) -> None:
    async def attempt(_number: int) -> None:
        client = await StompClient.connect(port)
        receipts: dict[str, str] = {}
        try:
            client.send("SUBSCRIBE", destination=destination, id="1", ack="client-individual")
            while True:
                frame = await client.receive()
                if frame.command == "RECEIPT":
                    oracle.acknowledged.add(receipts.pop(frame.headers["receipt-id"]))
                    continue
                assert frame.command == "MESSAGE", frame
                message_id = frame.headers["message-id"]
                oracle.note(name, message_id, frame.body.decode())
                receipts[frame.headers["ack"]] = message_id
                client.send("ACK", id=frame.headers["ack"], receipt=frame.headers["ack"])
        finally:
            client.close()

    await keep_trying(oracle, attempt)


async def mqtt_producer(oracle: Oracle, port: int, name: str, topic: str, qos: int) -> None:
    """QoS 2 resumes its session: what was sent is sent again with the same packet id."""
    unfinished: dict[int, tuple[str, int]] = {}  # packet id -> (body, PUBLISH or PUBREL)
    total = 0

    async def attempt(number: int) -> None:
        nonlocal total
        client = await MqttClient.connect(port, name, clean=qos == 1)
        try:
            if qos == 1:
                unfinished.clear()
            for packet_id, (body, state) in list(unfinished.items()):  # in the order of sending
                if state == wire.PUBLISH:
                    client.publish(topic, body.encode(), qos=qos, packet_id=packet_id, dup=True)
                else:
                    client.acknowledge(wire.PUBREL, packet_id)
            while not oracle.stop or unfinished:
                while len(unfinished) < WINDOW and not oracle.stop:
                    total += 1
                    packet_id = next(i for i in range(1, 65536) if i not in unfinished)
                    body = f"{name}:{number}:{total}"
                    oracle.sent.add(body)
                    unfinished[packet_id] = (body, wire.PUBLISH)
                    client.publish(topic, body.encode(), qos=qos, packet_id=packet_id)
                answer = await client.receive()
                body = unfinished[answer.packet_id][0]
                if answer.kind in (wire.PUBACK, wire.PUBCOMP):
                    oracle.confirmed.add(body)
                    del unfinished[answer.packet_id]
                else:
                    assert answer.kind == wire.PUBREC, answer
                    oracle.confirmed.add(body)
                    unfinished[answer.packet_id] = (body, wire.PUBREL)
                    client.acknowledge(wire.PUBREL, answer.packet_id)
        finally:
            client.close()

    await keep_trying(oracle, attempt)


async def mqtt_consumer(oracle: Oracle, port: int, name: str, topic: str, qos: int) -> None:
    received: set[int] = set()  # QoS 2 packet ids seen and not yet released: the client's state

    async def attempt(number: int) -> None:
        client = await MqttClient.connect(port, name, clean=False)
        try:
            if not client.session_present:
                received.clear()
                await client.subscribe(topic, qos)
            while True:
                packet = await client.receive()
                if packet.kind == wire.PUBREL:
                    received.discard(packet.packet_id)
                    client.acknowledge(wire.PUBCOMP, packet.packet_id)
                    continue
                assert packet.kind == wire.PUBLISH, packet
                message = wire.parse_publish(packet)
                assert message.qos == qos, message
                body = message.payload.decode()
                if qos == 1:
                    oracle.note(name, f"{name}/{body}", body)
                    client.acknowledge(wire.PUBACK, message.packet_id)
                else:
                    if message.packet_id not in received:
                        received.add(message.packet_id)
                        oracle.note(name, f"{name}/{body}", body)
                    client.acknowledge(wire.PUBREC, message.packet_id)
        finally:
            client.close()

    await keep_trying(oracle, attempt)


def check(oracle: Oracle, context: str) -> None:
    """Everything the module's docstring promises."""
    assert not oracle.problems, f"{context}: {oracle.problems[:3]}"
    delivered = Counter(body for bodies in oracle.delivered.values() for body in bodies)
    assert not oracle.missing(), f"{context}: confirmed and lost: {sorted(oracle.missing())[:5]}"
    invented = delivered.keys() - oracle.sent
    assert not invented, f"{context}: never sent: {sorted(invented)[:5]}"
    assert not oracle.again, f"{context}: acknowledged, yet delivered: {oracle.again[:5]}"
    parts: dict[str, set[str]] = {}
    for body in delivered:
        if body.startswith("transfer"):
            transaction, _, part = body.rpartition(".")
            parts.setdefault(transaction, set()).add(part)
    halves = {t: p for t, p in parts.items() if len(p) != TRANSACTION_SIZE}
    assert not halves, f"{context}: transactions delivered in part: {sorted(halves)[:5]}"
    for consumer, bodies in oracle.firsts.items():
        last: dict[str, tuple[int, ...]] = {}
        for body in bodies:
            producer, _, number = body.rpartition(":")
            position = tuple(map(int, number.split(".")))
            assert last.get(producer, (-1,)) < position, (
                f"{context}: {consumer}: {body} out of order"
            )
            last[producer] = position
    twice = [body for body, count in delivered.items() if body.startswith("two:") and count > 1]
    assert not twice, f"{context}: QoS 2 delivered twice: {twice[:5]}"


def restart(gateway: GatewayProcess) -> None:
    """What happens to the gateway at each of the random moments."""
    gateway.kill()
    gateway.start()


async def run_kills(
    directory: Path,
    seed: int,
    kills: int,
    load_s: tuple[float, float],
    *,
    at_least: int,
    extra: str = "",
    strike: Callable[[GatewayProcess], None] = restart,
) -> Oracle:
    """Load a gateway, with *extra* configuration, that *strike* hits *kills* times.

    The last load goes on until *at_least* messages were confirmed in all: fewer prove nothing.
    """
    chance = random.Random(seed)
    oracle = Oracle()
    with GatewayProcess(directory, extra=extra) as gateway:
        stomp, mqtt = gateway.stomp_port, gateway.mqtt_port
        # Topics keep nothing for those who come later: let the sessions exist first.
        for name, topic, qos in (("sub-one", TOPIC1, 1), ("sub-two", TOPIC2, 2)):
            await session_exists(mqtt, name, topic, qos)
        async with asyncio.TaskGroup() as group:
            consumers = [
                group.create_task(work)
                for work in (
                    *(stomp_consumer(oracle, stomp, f"reader{q}", q) for q in QUEUES),
                    stomp_consumer(oracle, stomp, "reader-transfers", TRANSACTION_QUEUE),
                    mqtt_consumer(oracle, mqtt, "sub-one", TOPIC1, 1),
                    mqtt_consumer(oracle, mqtt, "sub-two", TOPIC2, 2),
                )
            ]
            producers = [
                group.create_task(work)
                for work in (
                    *(
                        stomp_producer(oracle, stomp, f"stomp{i}{q[7:]}", q)
                        for q in QUEUES
                        for i in range(2)
                    ),
                    transaction_producer(oracle, stomp, "transfer"),
                    mqtt_producer(oracle, mqtt, "one", TOPIC1, 1),
                    mqtt_producer(oracle, mqtt, "two", TOPIC2, 2),
                )
            ]
            for _ in range(kills):
                await asyncio.sleep(chance.uniform(*load_s))
                await asyncio.to_thread(strike, gateway)
            await asyncio.sleep(chance.uniform(*load_s))
            while len(oracle.confirmed) < at_least:
                await asyncio.sleep(0.05)
            oracle.stop = True
            async with asyncio.timeout(180):
                await asyncio.gather(*producers)
                while oracle.missing():
                    await asyncio.sleep(0.05)
                # Nothing may follow that was not accounted for: give late duplicates a chance.
                await asyncio.sleep(0.5)
            for task in consumers:
                task.cancel()
        assert gateway.stop() == 0, gateway.tail()
    return oracle


async def session_exists(port: int, name: str, topic: str, qos: int) -> None:
    """Make the session *name*, so that messages to *topic* are kept for it."""
    client = await MqttClient.connect(port, name, clean=False)
    await client.subscribe(topic, qos)
    client.disconnect()
