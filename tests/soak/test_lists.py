"""Consumers of both protocols that come, stall, lose their connection and return; destinations that are paused,
purged, moved and deleted; a gateway that is killed again and again: every message is accounted for.

Actors of both protocols work at random on a few queues and a topic, for ``SOAK_SECONDS`` (default 90), drawn from
``SOAK_SEED``. What they know in the end has to add up:

- nothing comes that was not sent, and nothing that was refused;
- nothing comes again once its acknowledgement was confirmed;
- what was confirmed has come, or was removed by a purge or a deletion that says how many it removed; in the queues that
  nobody purges it has come in any case, and of the topic to each of its two subscriptions, one of either protocol;
- what is paused is still paused when the gateway was killed, and nothing else is.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import wire
from gateway_process import GatewayProcess
from wire import MqttClient, StompClient

from tidegate.operator_socket import OperatorClient
from tidegate.spi.operate import (
    Answer,
    DeleteDestination,
    DestinationDetails,
    Done,
    MoveMessages,
    PauseDestination,
    PurgeDestination,
    Request,
    ResumeDestination,
    ShowDestination,
    Side,
)

SECONDS = float(os.environ.get("SOAK_SECONDS", "90"))
SEED = int(os.environ.get("SOAK_SEED", "1"))

#: Nobody removes messages from these; those are fair game for the operator.
KEPT = ("kept.store", "kept.vm", "kept.file")
LOOSE = ("loose.a", "loose.b")
TOPIC = "soak/t"
TOPIC_NAME = "topic://soak.t"
#: Who has a subscription to the topic: an MQTT session, and a durable one of STOMP.
SESSION, DURABLE = "soak-session", "soak-durable"
#: Consumers of queues, all together.
QUEUES = "queues"
BODY_BYTES = 300

CONFIG = """
[store]
{store}

[[destinations]]
match = "kept.vm"
cursor = "vm"
memory_limit = "20kb"

[[destinations]]
match = "kept.file"
cursor = "file"
memory_limit = "20kb"

[[destinations]]
match = ">"
memory_limit = "20kb"
"""

#: Each with small files, so that they are cleaned up meanwhile.
STORES = {
    "journal": 'plugin = "journal"\njournal_max_file_length = "1mb"\ncheckpoint_interval = "500ms"',
    "sqlite": 'plugin = "jdbc"',
    "journaled": 'plugin = "journaled"',
}

#: How a connection ends that the gateway, an operator or the actor itself cuts.
GONE = (OSError, EOFError, asyncio.IncompleteReadError)


@dataclass
class Ledger:
    """What everybody knows. Messages are told apart by their bodies, which no two share.

    Attributes: sent: written to a socket; confirmed: by where it was sent; refused; came: handed to whom;
        acknowledged: and that was confirmed; removed: how many purges and deletions say; paused: what an
        operator was told is.
    """

    sent: set[bytes] = field(default_factory=set[bytes])
    confirmed: dict[bytes, str] = field(default_factory=dict[bytes, str])
    refused: set[bytes] = field(default_factory=set[bytes])
    came: dict[str, set[bytes]] = field(
        default_factory=lambda: {QUEUES: set(), SESSION: set(), DURABLE: set()}
    )
    acknowledged: set[tuple[str, bytes]] = field(default_factory=set[tuple[str, bytes]])
    removed: int = 0
    paused: set[tuple[str, Side]] = field(default_factory=set[tuple[str, Side]])
    faults: list[str] = field(default_factory=list[str])
    acts: dict[str, int] = field(default_factory=dict[str, int])

    def take(self, body: bytes, who: str = QUEUES) -> None:
        """A consumer was handed this."""
        if body not in self.sent:
            self.faults.append(f"{body[:40]!r} was never sent")
        if body in self.refused:
            self.faults.append(f"{body[:40]!r} was refused")
        if (who, body) in self.acknowledged:
            self.faults.append(f"{body[:40]!r} came after its acknowledgement was confirmed")
        self.came[who].add(body)

    def missing(self) -> dict[bytes, str]:
        """What was confirmed and did not come to all who should have it."""
        receivers = {TOPIC: (SESSION, DURABLE)}
        return {
            body: where
            for body, where in self.confirmed.items()
            if any(body not in self.came[who] for who in receivers.get(where, (QUEUES,)))
        }

    def operated(self, request: Request) -> None:
        """An operator was told that this is done."""
        if isinstance(request, PauseDestination):
            self.paused |= {(request.destination, side) for side in request.sides}
        elif isinstance(request, ResumeDestination):
            self.paused -= {(request.destination, side) for side in request.sides}
        elif isinstance(request, DeleteDestination):
            self.paused -= {(request.destination, side) for side in Side}

    def count(self, act: str) -> None:
        self.acts[act] = self.acts.get(act, 0) + 1


@dataclass
class Soak:
    """The gateway, and what all actors share. *steady*: held while it must not be killed."""

    gateway: GatewayProcess
    until: float
    ledger: Ledger = field(default_factory=Ledger)
    steady: asyncio.Lock = field(default_factory=asyncio.Lock)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.until

    def body(self) -> bytes:
        made = f"{next(self.numbers)} ".encode().ljust(BODY_BYTES, b"x")
        self.ledger.sent.add(made)
        return made

    async def actor(self, act: Callable[[], Awaitable[None]]) -> None:
        """Do *act*, one connection, again and again, whatever happens to the connection."""
        while self.goes_on:
            with contextlib.suppress(*GONE):
                await act()
            await asyncio.sleep(0.02)

    async def ask(self, request: Request) -> Answer | None:
        """Ask the gateway as an operator. Returns: None when there is no such destination."""
        directory = self.gateway.directory / "data"

        def ask() -> Answer | None:
            with OperatorClient(directory) as client:
                reply = client.ask(request)
                if reply.error is not None and "there is no" not in reply.error.problem:
                    self.ledger.faults.append(f"{request}: {reply.error.problem}")
                return reply.answer

        return await asyncio.to_thread(ask)


# --- actors ---------------------------------------------------------------------------------------


async def produce_stomp(soak: Soak, draw: random.Random) -> None:
    """Some messages to some queue or the topic, each confirmed or refused before the next."""
    ledger, where = soak.ledger, draw.choice((*KEPT, *LOOSE, TOPIC))
    name = "/topic/soak.t" if where == TOPIC else f"/queue/{where}"
    client = await StompClient.connect(soak.gateway.stomp_port)
    try:
        for _ in range(draw.randrange(1, 200)):
            body = soak.body()
            client.send("SEND", body, destination=name, receipt="r", persistent="true")
            answer = await client.receive()
            if answer.command == "ERROR":  # paused
                ledger.refused.add(body)
                ledger.count("refused")
                return
            assert answer.command == "RECEIPT", answer
            ledger.confirmed[body] = where
    finally:
        await lose(client, draw)


async def produce_mqtt(soak: Soak, draw: random.Random) -> None:
    """Some messages to the topic or a queue. When that is paused the connection ends: version 3.1.1 has no
    answer that says so, and a kill looks the same."""
    where = draw.choice((TOPIC, TOPIC, *KEPT, *LOOSE))
    name = where if where == TOPIC else f"$queue/{where.replace('.', '/')}"
    client = await MqttClient.connect(soak.gateway.mqtt_port, f"soak-publisher-{draw.random()}")
    try:
        for number in range(1, draw.randrange(2, 200)):
            body = soak.body()
            client.publish(name, body, qos=1, packet_id=number)
            answer = await client.receive()
            assert (answer.kind, answer.packet_id) == (wire.PUBACK, number), answer
            soak.ledger.confirmed[body] = where
    finally:
        await lose(client, draw)


async def consume_stomp(soak: Soak, draw: random.Random) -> None:
    """Take some messages of a queue."""
    queue = draw.choice(KEPT + LOOSE)
    client = await StompClient.connect(soak.gateway.stomp_port)
    client.send("SUBSCRIBE", destination=f"/queue/{queue}", id="1", ack="client-individual")
    await take_stomp(soak, draw, client, QUEUES)


async def consume_durable(soak: Soak, draw: random.Random) -> None:
    """The durable subscription of STOMP: its client comes, takes some, and goes."""
    client = await durable(soak)
    await take_stomp(soak, draw, client, DURABLE)


async def durable(soak: Soak) -> StompClient:
    client = await StompClient.connect(soak.gateway.stomp_port, client_id=DURABLE)
    headers = {"durable_subscription_name": "d", "ack": "client-individual"}
    client.send("SUBSCRIBE", destination="/topic/soak.t", id="1", receipt="s", **headers)
    return client


async def take_stomp(soak: Soak, draw: random.Random, client: StompClient, who: str) -> None:
    """Take some, acknowledge most, stall now and then, and go, perhaps at once."""
    ledger = soak.ledger
    try:
        asked: dict[str, bytes] = {}
        for number in range(draw.randrange(1, 300)):
            async with asyncio.timeout(0.5):
                answer = await client.receive()
            if answer.command == "RECEIPT":
                if answer.headers["receipt-id"] != "s":
                    ledger.acknowledged.add((who, asked.pop(answer.headers["receipt-id"])))
            elif answer.command == "ERROR":  # its queue was deleted
                ledger.count("ended")
                return
            else:
                ledger.take(answer.body, who)
                if draw.random() < 0.9:
                    asked[str(number)] = answer.body
                    client.send("ACK", id=answer.headers["ack"], receipt=str(number))
                await perhaps_stall(soak, draw)
    except TimeoutError:
        ledger.count("nothing to take")
    finally:
        await lose(client, draw)


async def consume_mqtt(soak: Soak, draw: random.Random) -> None:
    """The persistent session: it comes, takes some, and goes."""
    client = await MqttClient.connect(soak.gateway.mqtt_port, SESSION, clean=False)
    if not client.session_present:
        soak.ledger.faults.append("the session is gone")
    await take_mqtt(soak, draw, client, SESSION)


async def consume_queue_mqtt(soak: Soak, draw: random.Random) -> None:
    """Take some messages of a queue."""
    queue = draw.choice(KEPT + LOOSE)
    client = await MqttClient.connect(soak.gateway.mqtt_port, f"soak-consumer-{draw.random()}")
    head = wire.struct.pack(">H", 1) + wire.text(f"$queue/{queue.replace('.', '/')}") + b"\1"
    client.writer.write(wire.packet(wire.SUBSCRIBE, head, 2))
    await take_mqtt(soak, draw, client, QUEUES)


async def take_mqtt(soak: Soak, draw: random.Random, client: MqttClient, who: str) -> None:
    """As :func:`take_stomp`; that an acknowledgement has arrived is not confirmed."""
    try:
        for _ in range(draw.randrange(1, 300)):
            async with asyncio.timeout(0.5):
                packet = await client.receive()
            if packet.kind == wire.SUBACK:
                continue
            message = wire.parse_publish(packet)
            soak.ledger.take(message.payload, who)
            if draw.random() < 0.9:
                client.acknowledge(wire.PUBACK, message.packet_id)
            await perhaps_stall(soak, draw)
    except TimeoutError:
        soak.ledger.count("nothing to take")
    finally:
        await lose(client, draw)


async def perhaps_stall(soak: Soak, draw: random.Random) -> None:
    """Read and acknowledge nothing for a while."""
    if draw.random() < 0.01:
        soak.ledger.count("stalled")
        await asyncio.sleep(draw.uniform(0.1, 1.0))


async def lose(client: StompClient | MqttClient, draw: random.Random) -> None:
    """The connection ends: closed, or cut with what is on its way."""
    if draw.random() < 0.5:
        client.writer.transport.abort()
    client.writer.close()
    with contextlib.suppress(*GONE):
        await client.writer.wait_closed()


async def operate(soak: Soak, draw: random.Random) -> None:
    """Pause, resume, purge, move and delete at random."""
    while soak.goes_on:
        await asyncio.sleep(draw.uniform(0.1, 0.6))
        anywhere, loose = draw.choice(KEPT + LOOSE), draw.choice(LOOSE)
        sides = draw.choice(((Side.PRODUCERS,), (Side.CONSUMERS,), tuple(Side)))
        producers = (Side.PRODUCERS,)
        request = draw.choice(
            [
                PauseDestination(f"queue://{anywhere}", sides),
                PauseDestination(TOPIC_NAME, producers),
                ResumeDestination(TOPIC_NAME, producers),
                ResumeDestination(TOPIC_NAME, producers),
                *(ResumeDestination(f"queue://{name}", sides) for name in KEPT + LOOSE),
                PurgeDestination(f"queue://{loose}"),
                MoveMessages(f"queue://{LOOSE[0]}", f"queue://{LOOSE[1]}"),
                MoveMessages(f"queue://{LOOSE[0]}", f"queue://{KEPT[0]}"),
                DeleteDestination(f"queue://{loose}", with_messages=True, with_consumers=True),
            ]
        )
        async with soak.steady:
            answer = await soak.ask(request)
            if answer is None:  # there is no such queue just now
                continue
            assert isinstance(answer, Done)
            soak.ledger.operated(request)
            soak.ledger.count(type(request).__name__)
            if isinstance(request, PurgeDestination | DeleteDestination):
                soak.ledger.removed += answer.count


async def kill(soak: Soak, draw: random.Random) -> None:
    """SIGKILL, and a new start on the same files."""
    while soak.goes_on:
        await asyncio.sleep(draw.uniform(4.0, 10.0))
        async with soak.steady:
            soak.gateway.kill()
            await asyncio.to_thread(soak.gateway.start)
            await check_paused(soak)
        soak.ledger.count("killed")


async def check_paused(soak: Soak) -> None:
    """Behind a kill the same is paused as before it."""
    found: set[tuple[str, Side]] = set()
    for destination in (*(f"queue://{name}" for name in KEPT + LOOSE), TOPIC_NAME):
        shown = await soak.ask(ShowDestination(destination))
        if shown is None:  # there is no such queue just now
            continue
        assert isinstance(shown, DestinationDetails)
        if shown.row.producers_paused:
            found.add((destination, Side.PRODUCERS))
        if shown.row.consumers_paused:
            found.add((destination, Side.CONSUMERS))
    if found:
        soak.ledger.count("killed while something was paused")
    if found != soak.ledger.paused:
        soak.ledger.faults.append(f"{found} is paused and not {soak.ledger.paused}")


# --- the end ---------------------------------------------------------------------------------------


async def drain(soak: Soak) -> None:
    """Take everything that is left."""
    for queue in KEPT + LOOSE:
        await soak.ask(ResumeDestination(f"queue://{queue}"))
        client = await StompClient.connect(soak.gateway.stomp_port)
        client.send("SUBSCRIBE", destination=f"/queue/{queue}", id="1", ack="client-individual")
        while True:
            with contextlib.suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(0.5):
                        answer = await client.receive()
                    assert answer.command == "MESSAGE", answer
                    soak.ledger.take(answer.body)
                    client.send("ACK", id=answer.headers["ack"])
            shown = await soak.ask(ShowDestination(f"queue://{queue}"))
            assert isinstance(shown, DestinationDetails)
            if not shown.row.pending and not shown.row.in_flight:
                break
        await client.aclose()
    await soak.ask(ResumeDestination(TOPIC_NAME, (Side.PRODUCERS,)))
    publisher = await MqttClient.connect(soak.gateway.mqtt_port, "soak-publisher")
    last = soak.body()
    publisher.publish(TOPIC, last, qos=1, packet_id=1)
    assert (await publisher.receive()).kind == wire.PUBACK
    publisher.disconnect()
    session = await MqttClient.connect(soak.gateway.mqtt_port, SESSION, clean=False)
    while last not in soak.ledger.came[SESSION]:
        message = wire.parse_publish(await session.receive())
        soak.ledger.take(message.payload, SESSION)
        session.acknowledge(wire.PUBACK, message.packet_id)
    session.disconnect()
    client = await durable(soak)
    while last not in soak.ledger.came[DURABLE]:
        answer = await client.receive()
        if answer.command != "RECEIPT":
            soak.ledger.take(answer.body, DURABLE)
            client.send("ACK", id=answer.headers["ack"])
    await client.aclose()


async def scenario(gateway: GatewayProcess) -> Ledger:
    soak = Soak(gateway, time.monotonic() + SECONDS)
    session = await MqttClient.connect(gateway.mqtt_port, SESSION, clean=False)
    await session.subscribe(TOPIC, 1)
    session.disconnect()
    client = await durable(soak)
    await client.receipt("s")
    await client.aclose()

    def actor(
        act: Callable[[Soak, random.Random], Awaitable[None]], number: int
    ) -> Awaitable[None]:
        draw = random.Random(f"{SEED} {act.__name__} {number}")
        return soak.actor(lambda: act(soak, draw))

    await asyncio.gather(
        *(actor(produce_stomp, number) for number in range(3)),
        *(actor(produce_mqtt, number) for number in range(2)),
        *(actor(consume_stomp, number) for number in range(3)),
        *(actor(consume_queue_mqtt, number) for number in range(2)),
        actor(consume_mqtt, 0),
        actor(consume_durable, 0),
        operate(soak, random.Random(f"{SEED} operate")),
        kill(soak, random.Random(f"{SEED} kill")),
    )
    await drain(soak)
    return soak.ledger


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("store", STORES)
def test_every_message_is_accounted_for(tmp_path: Path, store: str) -> None:
    gateway = GatewayProcess(tmp_path, extra=CONFIG.format(store=STORES[store]))
    with gateway:
        ledger = asyncio.run(scenario(gateway))
        assert gateway.stop() == 0, gateway.tail()
    missing, came = ledger.missing(), sum(map(len, ledger.came.values()))
    print(
        f"seed={SEED} seconds={SECONDS:g} confirmed={len(ledger.confirmed)} came={came}"
        f" missing={len(missing)} removed={ledger.removed} {ledger.acts}"
    )
    assert not ledger.faults, ledger.faults[:10]
    assert not [where for where in missing.values() if where not in LOOSE]
    assert len(missing) <= ledger.removed
    assert min(map(len, ledger.came.values())) > 100
    for act in (
        "killed",
        "killed while something was paused",
        "refused",
        "stalled",
        "PauseDestination",
        "PurgeDestination",
        "DeleteDestination",
        "MoveMessages",
    ):
        assert ledger.acts.get(act), f"nothing was {act}: a longer run is needed"
    assert "Traceback" not in gateway.log.read_text(), gateway.tail()
