"""No client's input keeps the others waiting: a second client is served between the slices.

Nothing here looks at a watch. The clock that ends a slice goes on by a slice with each look, so a
slice is one step; and what is counted is how many round trips the second client had meanwhile.
With the defence off, a slice never ends, it has hardly any.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from tidegate.broker.route.router import Route
from tidegate.broker.turn import flow, writer
from tidegate.broker.turn.turn import Turn
from tidegate.spi import StoredMessage, WriteBatch
from tidegate.testing.embedded import EmbeddedGateway
from tidegate_protocols.transport import _slices, _tcp

#: Round trips that the second client has at least while an attack is worked off, and at most when
#: nothing is done about it.
SERVED_MIN, STALLED_MAX = 20, 8
LIMIT_S = 120.0


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice is one step."""
    now = itertools.count()
    monkeypatch.setattr(_slices, "perf_counter", lambda: next(now))


@pytest.fixture(params=[True, False], ids=["sliced", "not sliced"])
def is_sliced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With the defence and without it."""
    if request.param:
        request.getfixturevalue("sliced")
        return True
    monkeypatch.setattr(_slices, "perf_counter", lambda: 0)
    monkeypatch.setattr(_tcp, "FULL_READ_BYTES", 1 << 30)
    return False


# ------------------------------------------------------------------------------------ clients


class Raw:
    """Bytes to and from a listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, data: bytes, answer: bytes) -> bytes:
        """Send *data*, and read to the end of *answer*."""
        self.writer.write(data)
        return await self.reader.readuntil(answer)


def field(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def packet(first: int, rest: bytes) -> bytes:
    size, length = len(rest), b""
    while True:
        size, seven = size >> 7, size & 127
        length += bytes((seven | (128 if size else 0),))
        if not size:
            return bytes((first,)) + length + rest


def connect(name: str, will: str = "") -> bytes:
    flags = 0x02 if not will else 0x0E
    last = field(will) + field("gone") if will else b""
    return packet(0x10, field("MQTT") + bytes((4, flags, 0, 0)) + field(name) + last)


def publish(topic: str, body: bytes, packet_id: int) -> bytes:
    return packet(0x32, field(topic) + packet_id.to_bytes(2, "big") + body)


def subscribe(filters: list[str], packet_id: int = 1, qos: int = 0) -> bytes:
    wanted = b"".join(field(one) + bytes((qos,)) for one in filters)
    return packet(0x82, packet_id.to_bytes(2, "big") + wanted)


def unsubscribe(filters: list[str], packet_id: int = 2) -> bytes:
    return packet(0xA2, packet_id.to_bytes(2, "big") + b"".join(map(field, filters)))


def frame(command: str, **headers: object) -> bytes:
    lines = "".join(f"{key.replace('_', '-')}:{value}\n" for key, value in headers.items())
    return f"{command}\n{lines}\n\0".encode()


@asynccontextmanager
async def raw(port: int) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def mqtt(gateway: EmbeddedGateway, name: str, will: str = "") -> AsyncIterator[Raw]:
    async with raw(gateway.mqtt_port) as client:
        await client.ask(connect(name, will), b"\x20\x02\0\0")
        yield client


@asynccontextmanager
async def stomp(gateway: EmbeddedGateway) -> AsyncIterator[Raw]:
    async with raw(gateway.stomp_port) as client:
        await client.ask(frame("CONNECT", accept_version="1.2", host="x"), b"\0")
        yield client


async def served_until(done: asyncio.Future[bytes], witness: Raw) -> int:
    """How many round trips the second client has before *done*."""
    count = 0
    async with asyncio.timeout(LIMIT_S):
        while not done.done():
            await witness.ask(publish("witness", b"w", 1), b"\x40\x02\0\1")
            count += 1
    done.result()
    return count


async def check(
    gateway: EmbeddedGateway, is_sliced: bool, attacker: Raw, data: bytes, answer: bytes
) -> None:
    """The attacker sends *data* at once; *answer* is the last thing that it is told."""
    async with mqtt(gateway, "witness") as witness:
        done = asyncio.ensure_future(attacker.ask(data, answer))
        count = await served_until(done, witness)
    if is_sliced:
        assert count >= SERVED_MIN
    else:
        assert count <= STALLED_MAX


# ------------------------------------------------------------------------------------- floods

FILTERS = [f"f/{n}/+" for n in range(300)]
MQTT_FLOODS: dict[str, Callable[[], bytes]] = {
    "PINGREQ": lambda: b"\xc0\0" * 10_000,
    "PUBLISH": lambda: packet(0x30, field("nobody") + b"x") * 2000,
    "many filters": lambda: subscribe(FILTERS) + unsubscribe(FILTERS),
    "one filter again and again": lambda: subscribe(["x"] * 600),
    "SUBSCRIBE again and again": lambda: subscribe(["x"]) * 500,
}
STOMP_FLOODS: dict[str, Callable[[], bytes]] = {
    "SEND": lambda: frame("SEND", destination="/topic/nobody") * 2000,
    "headers": lambda: (
        frame("SEND", destination="/topic/nobody", **{f"h{n}": "" for n in range(100)}) * 500
    ),
    "SUBSCRIBE": lambda: b"".join(
        frame("SUBSCRIBE", id=n, destination=f"/topic/s.{n}.*") for n in range(400)
    ),
    "RECEIPT": lambda: frame("SEND", destination="/topic/nobody", receipt="r") * 2000,
}


async def test_an_mqtt_client_that_sends_much_at_once(is_sliced: bool) -> None:
    floods = list(MQTT_FLOODS.values())
    async with EmbeddedGateway() as gateway:
        for flood in floods if is_sliced else floods[:1]:
            async with mqtt(gateway, "attacker") as attacker:
                data = flood() + subscribe(["last"], 0x7A7A)
                await check(gateway, is_sliced, attacker, data, b"\x90\x03zz\0")


async def test_a_stomp_client_that_sends_much_at_once(is_sliced: bool) -> None:
    floods = list(STOMP_FLOODS.values())
    async with EmbeddedGateway() as gateway:
        for flood in floods if is_sliced else floods[:1]:
            async with stomp(gateway) as attacker:
                data = flood() + frame("SEND", destination="/topic/nobody", receipt="last")
                await check(gateway, is_sliced, attacker, data, b"receipt-id:last\n\n\0")


@pytest.mark.parametrize("protocol", ["mqtt", "stomp"])
async def test_what_is_handed_to_many_counts_as_work_of_who_publishes_it(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "TURN_WORK_MAX", 1000)
    most = 0
    complete = writer.hand_out

    def hand_out(added: Mapping[Route, list[StoredMessage]]) -> None:
        nonlocal most
        most = max(most, sum(len(route.direct) * len(held) for route, held in added.items()))
        complete(added)

    monkeypatch.setattr(writer, "hand_out", hand_out)
    async with EmbeddedGateway() as gateway, stomp(gateway) as reader:
        wanted = [frame("SUBSCRIBE", id=n, destination="/topic/fan") for n in range(500)]
        last = frame("SEND", destination="/topic/x", receipt="ready")
        await reader.ask(b"".join(wanted) + last, b"receipt-id:ready\n\n\0")
        got = asyncio.create_task(reader.reader.readuntil(b"last:yes"))
        if protocol == "mqtt":
            async with mqtt(gateway, "attacker") as attacker:
                data = packet(0x30, field("fan") + b"x") * 50
                await attacker.ask(data + subscribe(["x"], 1), b"\x90\x03\0\1\0")
        async with stomp(gateway) as attacker:
            data = frame("SEND", destination="/topic/fan") * (50 if protocol == "stomp" else 1)
            end = frame("SEND", destination="/topic/fan", last="yes", receipt="end")
            await attacker.ask(data + end, b"receipt-id:end\n\n\0")
        async with asyncio.timeout(LIMIT_S):
            assert (await got).count(b"MESSAGE\n") > 500 * 45
    assert 500 <= most <= 1500


GATHERING: dict[str, tuple[str, Callable[[], bytes]]] = {
    "MQTT subscriptions": ("mqtt", lambda: subscribe(FILTERS, qos=1) + unsubscribe(FILTERS)),
    "MQTT retained": (
        "mqtt",
        lambda: b"".join(packet(0x31, field(f"r/{n}") + b"x") for n in range(1000)),
    ),
    "MQTT messages": ("mqtt", lambda: packet(0x30, field("$queue/q") + b"x") * 2000),
    "STOMP subscriptions": (
        "stomp",
        lambda: b"".join(
            frame("SUBSCRIBE", id=n, destination=f"/topic/s.{n}", ack="client") for n in range(300)
        ),
    ),
    "STOMP messages": ("stomp", lambda: frame("SEND", destination="/queue/q") * 2000),
}


@pytest.mark.parametrize("is_limited", [True, False])
@pytest.mark.parametrize("attack", GATHERING)
@pytest.mark.usefixtures("sliced")
async def test_no_turn_gathers_without_limit_while_the_store_writes_the_one_before(
    attack: str, is_limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large turn takes long to write, and the next one would be larger still: everybody else's
    publish is in one of them."""
    at_most = 20
    limit = at_most if is_limited else 1 << 30
    monkeypatch.setattr(flow, "TURN_WORK_MAX", limit * flow.STATE_WORK)
    monkeypatch.setattr(flow, "TURN_OPERATIONS_MAX", limit)
    most = 0
    make_durable = writer.TurnWriter._make_durable  # pyright: ignore[reportPrivateUsage]

    async def slowly(self: writer.TurnWriter, turn: Turn, batch: WriteBatch) -> None:
        nonlocal most
        most = max(most, len(batch.operations))
        for _ in range(100):
            await asyncio.sleep(0)
        await make_durable(self, turn, batch)

    monkeypatch.setattr(writer.TurnWriter, "_make_durable", slowly)
    protocol, flood = GATHERING[attack]
    async with EmbeddedGateway() as gateway:
        if protocol == "mqtt":
            async with mqtt(gateway, "attacker") as attacker:
                await attacker.ask(flood() + subscribe(["last"], 0x7A7A), b"\x90\x03zz\0")
        else:
            async with stomp(gateway) as attacker:
                last = frame("SEND", destination="/topic/nobody", receipt="last")
                await attacker.ask(flood() + last, b"receipt-id:last\n\n\0")
    if is_limited:
        assert 0 < most <= at_most + 16  # and what a step had begun
    else:
        assert most >= 100


# ------------------------------------------------------------------- ends in the middle of a slice


async def heard(gateway: EmbeddedGateway, watcher: Raw, topics: list[str]) -> list[bytes]:
    """What the watcher was sent until now, in order: PUBLISH packets of *topics*."""
    async with mqtt(gateway, "marker") as marker:
        await marker.ask(publish("marker", b"m", 1), b"\x40\x02\0\1")
    told = await watcher.reader.readuntil(packet(0x30, field("marker") + b"m"))
    found: list[bytes] = []
    while told:
        size = 2 + told[1]
        found.append(told[2:size])
        told = told[size:]
    return [one for one in found if any(one.startswith(field(topic)) for topic in topics)]


@pytest.mark.usefixtures("sliced")
async def test_a_disconnect_behind_a_flood_takes_the_will_back() -> None:
    async with EmbeddedGateway() as gateway, mqtt(gateway, "watcher") as watcher:
        await watcher.ask(subscribe(["t", "will", "marker"]), b"\x90\x05\0\1\0\0\0")
        async with mqtt(gateway, "attacker", "will") as attacker:
            flood = b"".join(publish("t", b"%d" % n, n) for n in range(1, 301))
            attacker.writer.write(flood + b"\xe0\0")
            await attacker.reader.read()
        wanted = [field("t") + b"%d" % n for n in range(1, 301)]
        assert await heard(gateway, watcher, ["t", "will"]) == wanted


@pytest.mark.parametrize("politely", [True, False])
@pytest.mark.usefixtures("sliced")
async def test_what_came_before_the_link_was_lost_counts_and_the_will_comes_once(
    politely: bool,
) -> None:
    async with EmbeddedGateway() as gateway, mqtt(gateway, "watcher") as watcher:
        await watcher.ask(subscribe(["t", "will", "marker"]), b"\x90\x05\0\1\0\0\0")
        async with mqtt(gateway, "attacker", "will") as attacker:
            flood = b"".join(publish("t", b"%d" % n, n) for n in range(1, 301))
            attacker.writer.write(flood)
            if politely:
                attacker.writer.write_eof()
                await attacker.reader.read()
            else:
                confirmed = (await attacker.reader.readuntil(b"\x40\x02\0\x05")).count(b"\x40\x02")
                attacker.writer.transport.abort()
        found: list[bytes] = []
        async with asyncio.timeout(LIMIT_S):
            while not found or found[-1] != field("will") + b"gone":
                found += await heard(gateway, watcher, ["t", "will"])
        assert await heard(gateway, watcher, ["t", "will"]) == []
        assert found == [field("t") + b"%d" % n for n in range(1, len(found))] + found[-1:]
        assert len(found) == 301 if politely else len(found) > confirmed


@pytest.mark.usefixtures("sliced")
async def test_a_disconnect_behind_a_flood_of_sends_is_answered_behind_them() -> None:
    async with EmbeddedGateway() as gateway, stomp(gateway) as attacker:
        sends = frame("SEND", destination="/queue/q") * 300
        await attacker.ask(sends + frame("DISCONNECT", receipt="bye"), b"receipt-id:bye\n\n\0")
        assert await attacker.reader.read() == b""
        async with stomp(gateway) as consumer:
            wanted = frame("SUBSCRIBE", id=1, destination="/queue/q", ack="auto")
            last = frame("SEND", destination="/queue/q", last="yes")
            told = await consumer.ask(wanted + last, b"last:yes")
            assert told.count(b"MESSAGE\n") == 301
