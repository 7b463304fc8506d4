"""Kill the real gateway with SIGKILL under MQTT 3.1.1 and 5.0 sessions, and account for every message.

Beside the kills, which come at random moments (by seed), the clients themselves drop connections
in the middle of handshakes, take their own sessions over and change their Receive Maximum. The
oracle, message by message:

* PUBACK or PUBREC received → every persistent subscription gets it;
* QoS 2 both ways → each subscription, and each group of shared subscriptions, sees it exactly once;
* a packet id that the client has not released yet stands for the same message when it comes again;
* a QoS 1 message that comes again after the connection ended has its packet id again, and DUP when
  it was not a kill that ended it (a kill may come before the note that it was sent is durable);
* a session once accepted is there again after each kill;
* first deliveries of one producer's messages to a subscription of its own are in order;
* the will of an accepted client, with or without delay, is published exactly once;
* a retained value is never older than the last one confirmed;
* a session whose expiry passed while the gateway was dead is gone, another one is not.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mqtt_raw as raw
import pytest
from crash_crew import amount
from gateway_process import GatewayProcess
from mqtt_raw import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, V5, V311

LOST = (OSError, EOFError, asyncio.IncompleteReadError)
WINDOW = 16
TOPIC_1, TOPIC_2, WILLS = "crash/one", "crash/two", "crash/wills"
KEEP_S = 300
#: The load goes on until so many messages were confirmed: fewer prove nothing.
CONFIRMED_MIN = 500
LATE_S = 0.5  # how long duplicates may take to turn up


class AsyncClient:
    """One connection of a client whose packets are made and read by ``mqtt_raw``."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int
    ) -> None:
        self.reader, self.writer, self.version = reader, writer, version
        self.is_present = False

    @classmethod
    async def connect(cls, port: int, client_id: str, version: int, **options: Any) -> AsyncClient:
        """A persistent session. Raises: OSError, EOFError: the gateway is not there."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = cls(reader, writer, version)
        if version == V5:
            options.setdefault("session_expiry", KEEP_S)
        client.send(raw.connect(client_id, version=version, clean=False, **options))
        try:
            answer = await client.receive()
            assert (answer.kind, answer.code) == (raw.CONNACK, 0), answer
        except BaseException:
            client.close()
            raise
        client.is_present = bool(answer.session_present)
        return client

    def send(self, data: bytes) -> None:
        if not self.writer.transport.is_closing():  # else reading says so
            self.writer.write(data)

    async def receive(self) -> raw.Packet:
        """The next packet. Raises: EOFError when the gateway says goodbye."""
        async with asyncio.timeout(60):
            head = await self.reader.readexactly(2)
            while head[-1] & 0x80:
                head += await self.reader.readexactly(1)
            length = sum((digit & 0x7F) << 7 * at for at, digit in enumerate(head[1:]))
            packet = raw.read_packet(head + await self.reader.readexactly(length), self.version)
        if packet.kind == raw.DISCONNECT:
            assert packet.code in (0x8E, 0x8B), packet  # taken over, shutting down
            raise EOFError
        return packet

    def publish(self, topic: str, body: str, **options: Any) -> None:
        self.send(raw.publish(topic, body.encode(), version=self.version, **options))

    async def subscribe(self, topic: str, qos: int) -> None:
        self.send(raw.subscribe(1, (topic, qos), version=self.version))
        answer = await self.receive()
        assert (answer.kind, answer.codes) == (raw.SUBACK, (qos,)), answer

    def close(self) -> None:
        self.writer.transport.abort()


@dataclass
class Oracle:
    """What the clients know. Bodies are ``producer:number``."""

    chance: random.Random
    sent: set[str] = field(default_factory=set)
    confirmed: dict[str, set[str]] = field(default_factory=dict)  # topic -> bodies
    delivered: dict[str, list[str]] = field(default_factory=dict)  # subscription -> bodies
    retained: dict[str, int] = field(default_factory=dict)  # topic -> last confirmed number
    wills: dict[str, bool] = field(default_factory=dict)  # body -> whether it was accepted
    problems: list[str] = field(default_factory=list)
    kills: int = 0
    resent: Counter[str] = field(default_factory=Counter)
    stop: bool = False

    def missing(self, subscription: str, topic: str) -> set[str]:
        return self.confirmed.get(topic, set()) - set(self.delivered.get(subscription, ()))

    def missing_wills(self) -> set[str]:
        accepted = {body for body, is_accepted in self.wills.items() if is_accepted}
        return accepted - set(self.delivered.get("wills", ()))


async def keep_trying(oracle: Oracle, attempt: Callable[[], Awaitable[None]]) -> None:
    """Run *attempt* until it says that it is done; a lost connection begins the next one."""
    while not oracle.problems:
        try:
            await attempt()
            return
        except LOST:
            pass
        except Exception as error:
            oracle.problems.append(repr(error))
        await asyncio.sleep(0.02)


@dataclass
class Producer:
    """QoS 1 or 2; what was not confirmed is sent again under its packet id."""

    oracle: Oracle
    port: int
    name: str
    version: int
    topic: str
    qos: int
    total: int = 0
    was_connected: bool = False
    unfinished: dict[int, tuple[str, int]] = field(default_factory=dict)

    async def run(self) -> None:
        await keep_trying(self.oracle, self.attempt)

    async def attempt(self) -> None:
        oracle, unfinished = self.oracle, self.unfinished
        client = await AsyncClient.connect(self.port, self.name, self.version)
        try:
            assert client.is_present or not self.was_connected, f"{self.name}: its session is gone"
            self.was_connected = True
            rest = oracle.chance.randrange(2_000)  # then the connection breaks
            for packet_id, (body, stage) in unfinished.items():
                if stage == PUBLISH:
                    client.publish(self.topic, body, qos=self.qos, packet_id=packet_id, dup=True)
                else:
                    client.send(raw.ack(PUBREL, packet_id))
            while (not oracle.stop and rest) or unfinished:
                while len(unfinished) < WINDOW and not oracle.stop:
                    self._publish_next(client)
                answer = await client.receive()
                self._answered(client, answer)
                rest -= rest > 0
                if not rest and not oracle.stop:
                    raise EOFError
        finally:
            client.close()

    def _publish_next(self, client: AsyncClient) -> None:
        self.total += 1
        packet_id = next(i for i in range(1, 65536) if i not in self.unfinished)
        body = f"{self.name}:{self.total}"
        self.oracle.sent.add(body)
        self.unfinished[packet_id] = (body, PUBLISH)
        client.publish(self.topic, body, qos=self.qos, packet_id=packet_id)

    def _answered(self, client: AsyncClient, answer: raw.Packet) -> None:
        body, stage = self.unfinished[answer.packet_id]
        confirmed = self.oracle.confirmed.setdefault(self.topic, set())
        if answer.kind == PUBREC:
            assert answer.code == 0, answer
            confirmed.add(body)
            # To the end: after a kill PUBRELs are sent in the order of the PUBRECs.
            del self.unfinished[answer.packet_id]
            self.unfinished[answer.packet_id] = (body, PUBREL)
            client.send(raw.ack(PUBREL, answer.packet_id))
            return
        assert answer.kind == (PUBACK if self.qos == 1 else PUBCOMP), answer
        assert answer.code in (0, 0x92), answer
        assert self.qos == 1 or stage == PUBREL, answer
        confirmed.add(body)
        del self.unfinished[answer.packet_id]


@dataclass
class Consumer:
    """A persistent subscription; *group*: whom its deliveries are counted for."""

    oracle: Oracle
    port: int
    name: str
    version: int
    filter: str
    qos: int
    group: str
    unreleased: dict[int, str] = field(default_factory=dict)  # QoS 2: id -> body
    unanswered: dict[str, tuple[int, int]] = field(default_factory=dict)  # QoS 1: (id, kills)
    is_known: bool = False
    before: AsyncClient | None = None
    last: float = 0.0  # when something came
    options: dict[str, Any] = field(default_factory=dict)  # of its connection

    async def run(self) -> None:
        await keep_trying(self.oracle, self.attempt)

    async def attempt(self) -> None:
        chance = self.oracle.chance
        if self.version == V5:
            self.options["receive_maximum"] = chance.choice((1, 2, 20, 1_000))
        client = await AsyncClient.connect(self.port, self.name, self.version, **self.options)
        if self.before is not None:
            self.before.close()  # taken over by now
            self.before = None
        window = self.options.get("receive_maximum", WINDOW)
        takes_over = False
        try:
            assert client.is_present or not self.is_known, f"{self.name}: its session is gone"
            if not self.is_known:
                await client.subscribe(self.filter, self.qos)
                self.is_known = True
            rest = chance.randrange(2_000)  # packets; behind them come some without an answer
            silent = chance.randint(1, min(30, window))
            while True:
                packet = await client.receive()
                self.last = time.monotonic()
                rest -= 1
                is_answering = rest >= 0 or (self.oracle.stop and window >= WINDOW)
                self._received(client, packet, is_answering=is_answering)
                if not is_answering and rest <= -silent:
                    takes_over = chance.random() < 0.5
                    raise EOFError
        finally:
            if takes_over:
                self.before = client
            else:
                client.close()

    def _received(self, client: AsyncClient, packet: raw.Packet, *, is_answering: bool) -> None:
        if packet.kind == PUBREL:
            self.unreleased.pop(packet.packet_id, None)
            if is_answering:
                client.send(raw.ack(PUBCOMP, packet.packet_id))
            return
        assert (packet.kind, packet.qos) == (PUBLISH, self.qos), packet
        body, packet_id = packet.body.decode(), packet.packet_id
        delivered = self.oracle.delivered.setdefault(self.group, [])
        if self.qos == 1:
            before = self.unanswered.get(body)
            if before is not None and self.group == self.name:
                self._came_again(packet, *before)
            self.unanswered[body] = (packet_id, self.oracle.kills)
            delivered.append(body)
            if is_answering:
                client.send(raw.ack(PUBACK, packet_id))
                # Perhaps it does not get there, and then the message may come again.
                self.unanswered.pop(body)
            return
        known = self.unreleased.get(packet_id)
        if known is None:
            self.unreleased[packet_id] = body
            delivered.append(body)
        else:
            assert known == body, f"{self.name}: id {packet_id} was {known!r} and is {body!r}"
            self.oracle.resent["QoS 2"] += 1
        if is_answering:
            client.send(raw.ack(PUBREC, packet_id))

    def _came_again(self, packet: raw.Packet, packet_id: int, kills: int) -> None:
        self.oracle.resent["QoS 1"] += 1
        if not packet.dup:
            # The kill came between this message and the mark behind it (decision 26): as far as
            # the store knows it is new, and so may its id be.
            assert kills != self.oracle.kills, f"{self.name}: {packet} without DUP"
            return
        assert packet.packet_id == packet_id, f"{self.name}: {packet} had id {packet_id}"


async def retainer(oracle: Oracle, port: int, version: int, topic: str) -> None:
    """Sets one retained value after the other."""
    number = 0

    async def attempt() -> None:
        nonlocal number
        client = await AsyncClient.connect(port, f"retainer-{version}", version)
        try:
            while not oracle.stop:
                number += 1
                client.publish(topic, str(number), qos=1, packet_id=1, retain=True)
                answer = await client.receive()
                assert (answer.kind, answer.packet_id) == (PUBACK, 1), answer
                oracle.retained[topic] = number
                await asyncio.sleep(0.001)
        finally:
            client.close()

    await keep_trying(oracle, attempt)


async def mortals(oracle: Oracle, port: int) -> None:
    """Clients that leave a will each: by breaking off, or by the gateway's own end."""
    number = 0

    async def attempt() -> None:
        nonlocal number
        while not oracle.stop:
            number += 1
            version = oracle.chance.choice((V311, V5))
            body = f"will:{number}"
            options: dict[str, Any] = {"will": (WILLS, body.encode()), "will_qos": 2}
            if version == V5:
                options["will_properties"] = {"will_delay": oracle.chance.randrange(3)}
            oracle.wills[body] = False
            client = await AsyncClient.connect(port, f"mortal-{number}", version, **options)
            oracle.wills[body] = True
            try:
                await asyncio.sleep(oracle.chance.uniform(0, 0.05))
            finally:
                client.close()

    await keep_trying(oracle, attempt)


def subscriptions(oracle: Oracle, port: int) -> list[Consumer]:
    """Both QoS in both versions, a group for each QoS with one member of each version, wills."""
    made: list[Consumer] = []
    for version in (V311, V5):
        for qos, topic in ((1, TOPIC_1), (2, TOPIC_2)):
            own, group = f"own-{qos}-{version}", f"group-{qos}"
            made.append(Consumer(oracle, port, own, version, topic, qos, own))
            shared = f"$share/{group}/{topic}"
            made.append(Consumer(oracle, port, f"{group}-{version}", version, shared, qos, group))
    made.append(Consumer(oracle, port, "wills", V5, WILLS, 2, "wills"))
    return made


async def run_kills(directory: Path, seed: int, kills: int, load_s: tuple[float, float]) -> Oracle:
    """Returns: the oracle, checked for everything that must hold of the gateway at the end."""
    chance = random.Random(seed)
    oracle = Oracle(random.Random(seed + 1))
    with GatewayProcess(directory) as gateway:
        port = gateway.mqtt_port
        consumers = subscriptions(oracle, port)
        for consumer in consumers:  # topics keep nothing for those who come later
            client = await AsyncClient.connect(port, consumer.name, consumer.version)
            await client.subscribe(consumer.filter, consumer.qos)
            consumer.is_known = True
            client.close()
        producers = [
            Producer(oracle, port, f"producer-{qos}-{version}", version, topic, qos).run()
            for version in (V311, V5)
            for qos, topic in ((1, TOPIC_1), (2, TOPIC_2))
        ]
        producers += [retainer(oracle, port, v, f"crash/kept/{v}") for v in (V311, V5)]
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(consumer.run()) for consumer in consumers]
            writing = [group.create_task(work) for work in (*producers, mortals(oracle, port))]
            for _ in range(kills):
                await asyncio.sleep(chance.uniform(*load_s))
                await asyncio.to_thread(gateway.kill)
                oracle.kills += 1
                await asyncio.to_thread(gateway.start)
            await asyncio.sleep(chance.uniform(*load_s))
            while sum(map(len, oracle.confirmed.values())) < CONFIRMED_MIN:
                await asyncio.sleep(0.05)
            oracle.stop = True
            try:
                async with asyncio.timeout(180):
                    await asyncio.gather(*writing)
                    while not oracle.problems and not is_complete(oracle, consumers):
                        await asyncio.sleep(0.05)
                    await asyncio.sleep(LATE_S)
            except TimeoutError:
                last = {
                    c.name: f"{time.monotonic() - c.last:.1f}s ago, {c.options}" for c in consumers
                }
                oracle.problems.append(f"not everything came: {last}")
            for task in (*reading, *writing):
                task.cancel()
        if not oracle.problems:
            await check_retained(oracle, port)
        assert gateway.stop() == 0, gateway.tail()
    return oracle


def is_complete(oracle: Oracle, consumers: list[Consumer]) -> bool:
    return not oracle.missing_wills() and not any(
        oracle.missing(one.group, topic_of(one)) for one in consumers
    )


def topic_of(consumer: Consumer) -> str:
    return "/".join(consumer.filter.split("/")[-2:])


async def check_retained(oracle: Oracle, port: int) -> None:
    client = await AsyncClient.connect(port, "reader-of-retained", V5)
    client.send(raw.subscribe(1, ("crash/kept/+", 0), version=V5))
    values: dict[str, int] = {}
    while len(values) < len(oracle.retained):
        packet = await client.receive()
        if packet.kind == PUBLISH:  # before or behind SUBACK
            values[packet.topic] = int(packet.body)
    for topic, number in oracle.retained.items():
        assert values[topic] >= number, f"{topic}: {values[topic]} is older than {number}"
    client.close()


def check(oracle: Oracle, context: str) -> None:
    """Everything the module's docstring promises of messages."""
    lost = {
        name: (len(oracle.missing(name, topic)), sorted(oracle.missing(name, topic))[:5])
        for name in ("own-1-4", "own-1-5", "own-2-4", "own-2-5", "group-1", "group-2")
        if oracle.missing(name, topic := TOPIC_1 if "-1" in name else TOPIC_2)
    }
    assert not oracle.problems, f"{context}: {oracle.problems[:3]} lost={lost}"
    assert not lost, f"{context}: confirmed and lost: {lost}"
    assert not oracle.missing_wills(), f"{context}: {sorted(oracle.missing_wills())[:5]}"
    for name, bodies in oracle.delivered.items():
        counts = Counter(bodies)
        known = oracle.wills.keys() if name == "wills" else oracle.sent
        assert counts.keys() <= known, f"{context}: {name}: never sent"
        twice = [body for body, count in counts.items() if count > 1]
        is_exact = "-2" in name or name == "wills"
        assert not (is_exact and twice), f"{context}: {name}: delivered twice: {twice[:5]}"
        if name.startswith("own"):
            check_order(bodies, f"{context}: {name}")


def check_order(bodies: list[str], context: str) -> None:
    last: Counter[str] = Counter()
    for body in dict.fromkeys(bodies):  # each at its first delivery
        producer, _, number = body.rpartition(":")
        assert last[producer] < int(number), f"{context}: {body} out of order"
        last[producer] = int(number)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_sessions_of_both_versions_survive_five_kills(tmp_path: Path) -> None:
    oracle = await run_kills(tmp_path, seed=5, kills=5, load_s=(0.3, 1.0))
    check(oracle, "seed 5")
    print(summary(oracle))


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(amount(2, 3)))
async def test_sessions_of_both_versions_survive_many_kills(tmp_path: Path, seed: int) -> None:
    kills = amount(15, 25)
    oracle = await run_kills(tmp_path, seed=seed, kills=kills, load_s=(0.02, 1.2))
    check(oracle, f"seed {seed}")
    assert min(oracle.resent["QoS 1"], oracle.resent["QoS 2"]) > 0, "nothing came again"
    print(summary(oracle))


def summary(oracle: Oracle) -> str:
    confirmed = {topic: len(bodies) for topic, bodies in oracle.confirmed.items()}
    delivered = {name: len(bodies) for name, bodies in oracle.delivered.items()}
    return f"confirmed={confirmed} delivered={delivered} wills={len(oracle.wills)} {oracle.resent}"


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_expiry_goes_on_while_the_gateway_is_dead(tmp_path: Path) -> None:
    async def present(port: int, client_id: str, expiry: int) -> bool:
        client = await AsyncClient.connect(port, client_id, V5, session_expiry=expiry)
        client.send(raw.disconnect())
        assert not await client.reader.read()
        client.close()
        return client.is_present

    async def run() -> None:
        with GatewayProcess(tmp_path) as gateway:
            port = gateway.mqtt_port
            assert not await present(port, "short", 2)
            assert not await present(port, "long", KEEP_S)
            gone = time.monotonic()
            await asyncio.to_thread(gateway.kill)
            await asyncio.sleep(max(0.0, gone + 2.1 - time.monotonic()))  # it expires meanwhile
            await asyncio.to_thread(gateway.start)
            assert not await present(port, "short", 2)
            assert await present(port, "long", KEEP_S)

    await run()
