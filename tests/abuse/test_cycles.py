"""What a connection leaves behind is freed by reference counts alone, whatever its client did and however it went.

Python's collector would find it, too, but to look for it holds the loop, the longer the more there is
(decision 12): so there is to be nothing to look for.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, GeneratorType, MethodType
from typing import Final

import mqtt_raw as raw
import pytest
import trustme
from wire import frame

from tidegate.broker.connection.connection import Connection
from tidegate.spi import WriteBatch
from tidegate.testing.embedded import EmbeddedGateway
from tidegate_protocols.mqtt.session.session import Session as MqttSession
from tidegate_protocols.stomp._session import Session as StompSession
from tidegate_protocols.transport._tcp_link import TcpLink

LIMIT_S: Final = 60.0
#: A body that is streamed to the store and from it.
LARGE: Final = bytes(200_000) + b"the end"
#: So many of each kind come and go.
VISITS: Final = 2

#: One of each is there for each client that is connected.
OF_A_CONNECTION: Final = (StompSession, MqttSession, TcpLink, Connection)

CONNECT = frame("CONNECT", accept_version="1.2", host="h", client_id="c")
MQTT_5 = {"version": raw.V5}


def listeners(certificate: Path) -> str:
    """Both protocols over all transports."""
    return "".join(
        f'[[listeners]]\nprotocol = "{protocol}"\ntransport = "{transport}"\n'
        'bind = "127.0.0.1:0"\nallow_anonymous = true\n'
        + (f'tls_certificate = "{certificate}"\n' if transport == "tls" else "")
        for protocol in ("stomp", "mqtt")
        for transport in ("tcp", "ws", "tls")
    )


class Visitor:
    """A client that says what it says and waits for each answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.masked = False
        self._got = b""

    async def ask(self, data: bytes, answer: bytes) -> None:
        """Send *data*, and read until *answer* has come."""
        if self.masked and len(data) < 126:
            data = bytes((0x82, 0x80 | len(data))) + bytes(4) + data
        elif self.masked:
            data = bytes((0x82, 0xFF)) + len(data).to_bytes(8, "big") + bytes(4) + data
        self.writer.write(data)
        async with asyncio.timeout(LIMIT_S):
            while answer not in self._got:
                piece = await self.reader.read(65536)
                assert piece, (answer, self._got)
                self._got += piece
            self._got = self._got.partition(answer)[2]

    async def is_thrown_out(self, data: bytes) -> None:
        """Send *data*, and read to the end."""
        self.writer.write(data)
        async with asyncio.timeout(LIMIT_S):
            while await self.reader.read(65536):
                pass


Visit = Callable[[Visitor], Awaitable[None]]


async def stomp_subscribes(visitor: Visitor) -> None:
    await visitor.ask(CONNECT, b"CONNECTED")
    frames = [
        frame("SUBSCRIBE", id="q", destination="/queue/q", ack="client-individual"),
        frame("SUBSCRIBE", id="p", destination="/queue/q", selector="a > 1"),
        frame("SUBSCRIBE", id="w", destination="/queue/w.>", ack="client"),
        frame("SUBSCRIBE", id="t", destination="/topic/t.*"),
        frame("SUBSCRIBE", id="s", destination="/topic/s", selector="a LIKE 'b%'"),
        frame("SUBSCRIBE", id="d", destination="/topic/d", durable_subscription_name="d"),
        frame("BEGIN", transaction="tx"),
        frame("SEND", b"x", destination="/queue/q", transaction="tx"),
        frame("SEND", b"x", destination="/queue/q"),
        frame("SEND", b"x", destination="/topic/t.x"),
        frame("SEND", b"x", destination="/topic/s", a="bc"),
        frame("UNSUBSCRIBE", id="s", receipt="r"),
    ]
    await visitor.ask(b"".join(frames), b"RECEIPT")


async def stomp_says_goodbye(visitor: Visitor) -> None:
    await stomp_subscribes(visitor)
    await visitor.ask(frame("DISCONNECT", receipt="77"), b"receipt-id:77")


async def stomp_browses(visitor: Visitor) -> None:
    await visitor.ask(CONNECT, b"CONNECTED")
    await visitor.ask(frame("SEND", b"x", destination="/queue/b", receipt="1"), b"RECEIPT")
    await visitor.ask(frame("SUBSCRIBE", id="1", destination="/queue/b", browser="true"), b"-end-")


async def stomp_errs(visitor: Visitor) -> None:
    await visitor.ask(CONNECT, b"CONNECTED")
    await visitor.is_thrown_out(frame("NONSENSE"))


async def stomp_sends_in_a_transaction(visitor: Visitor) -> None:
    await visitor.ask(CONNECT, b"CONNECTED")
    frames = [
        frame("SUBSCRIBE", id="q", destination="/queue/tx", ack="client"),
        frame("BEGIN", transaction="tx"),
        frame("SEND", b"x", destination="/queue/tx", transaction="tx"),
        frame("COMMIT", transaction="tx", receipt="r"),
    ]
    await visitor.ask(b"".join(frames), b"RECEIPT")


async def stomp_has_a_temporary_queue(visitor: Visitor) -> None:
    await visitor.ask(CONNECT, b"CONNECTED")
    subscribe = frame("SUBSCRIBE", id="q", destination="/temp-queue/a", receipt="r")
    await visitor.ask(subscribe, b"RECEIPT")


async def stomp_sends_a_large_message(visitor: Visitor) -> None:
    await visitor.ask(CONNECT, b"CONNECTED")
    subscribe = frame("SUBSCRIBE", id="q", destination="/queue/large", ack="auto")
    await visitor.ask(subscribe + frame("SEND", LARGE, destination="/queue/large"), b"the end")


async def stomp_beats(visitor: Visitor) -> None:
    hello = frame("CONNECT", accept_version="1.2", host="h", heart_beat="100000,100000")
    await visitor.ask(hello, b"CONNECTED")


async def stomp_is_refused(visitor: Visitor) -> None:
    await visitor.is_thrown_out(frame("CONNECT", accept_version="9.9", host="h"))


async def says_nothing(visitor: Visitor) -> None:
    del visitor


async def mqtt_subscribes(visitor: Visitor) -> None:
    will = {"will": ("w", b"x"), "will_qos": 1, "keep_alive": 100}
    await visitor.ask(raw.connect("m", version=raw.V5, **will), b"\x20")
    for qos in (0, 1, 2):
        await visitor.ask(raw.subscribe(qos + 1, (f"m/{qos}/+", qos), version=raw.V5), b"\x90")
        await visitor.ask(raw.publish(f"m/{qos}/x", b"body", version=raw.V5), b"body")
    await visitor.ask(raw.unsubscribe(9, "m/0/+", version=raw.V5), b"\xb0")


async def mqtt_says_goodbye(visitor: Visitor) -> None:
    await mqtt_subscribes(visitor)
    await visitor.is_thrown_out(raw.disconnect())


async def mqtt_publishes_once(visitor: Visitor) -> None:
    await visitor.ask(raw.connect("m"), b"\x20")
    await visitor.ask(raw.publish("m/q", b"x", qos=2, packet_id=5), b"\x50\2\0\5")


async def mqtt_keeps_its_session(visitor: Visitor) -> None:
    hello = raw.connect("k", version=raw.V5, clean=False, session_expiry=1000)
    await visitor.ask(hello, b"\x20")
    await visitor.ask(raw.subscribe(1, ("k/#", 1), version=raw.V5), b"\x90")
    await visitor.ask(raw.publish("k/1", b"body", version=raw.V5), b"body")


async def mqtt_publishes_a_large_message(visitor: Visitor) -> None:
    await visitor.ask(raw.connect("m"), b"\x20")
    publish = raw.publish("large", LARGE, qos=1, packet_id=7)
    await visitor.ask(raw.subscribe(1, ("large", 1)) + publish, b"the end")


async def mqtt_errs(visitor: Visitor) -> None:
    await visitor.ask(raw.connect("m"), b"\x20")
    await visitor.is_thrown_out(b"\xf0\0")


async def mqtt_shares(visitor: Visitor) -> None:
    await visitor.ask(raw.connect("m", version=raw.V5), b"\x20")
    await visitor.ask(raw.subscribe(1, ("$share/g/s/#", 1), version=raw.V5), b"\x90")
    await visitor.ask(raw.publish("s/1", b"body", version=raw.V5), b"body")


KINDS: Final[dict[str, list[Visit]]] = {
    "stomp": [
        stomp_subscribes,
        stomp_says_goodbye,
        stomp_browses,
        stomp_errs,
        stomp_sends_in_a_transaction,
        stomp_has_a_temporary_queue,
        stomp_sends_a_large_message,
        stomp_beats,
        stomp_is_refused,
        says_nothing,
    ],
    "mqtt": [
        mqtt_subscribes,
        mqtt_says_goodbye,
        mqtt_publishes_once,
        mqtt_keeps_its_session,
        mqtt_publishes_a_large_message,
        mqtt_errs,
        mqtt_shares,
        says_nothing,
    ],
}


async def are_gone() -> None:
    """Wait until nothing of any connection is left."""
    async with asyncio.timeout(LIMIT_S):
        while any(isinstance(each, OF_A_CONNECTION) for each in gc.get_objects()):
            await asyncio.sleep(0.02)


@contextmanager
def without_collector() -> Iterator[None]:
    """Only reference counts free anything, and what was there before is not looked at."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def found_by_collector() -> Counter[str]:
    """What of ours only the collector finds."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return Counter(name for each in gc.garbage if (name := whose(each)))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()


def whose(thing: object) -> str:
    """The name of a class or function of ours; "": it is not."""
    if isinstance(thing, MethodType):
        return ""  # as what it belongs to
    if isinstance(thing, GeneratorType):
        return f"{thing.__qualname__}()" if "tidegate" in thing.gi_code.co_filename else ""
    of = thing if isinstance(thing, FunctionType) else type(thing)
    return f"{of.__module__}.{of.__qualname__}" if of.__module__.startswith("tidegate") else ""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(path))
    return path


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Protocol: %s\r\n\r\n"
)


async def visit(port: int, transport: str, protocol: str, does: Visit) -> None:
    """One client comes and goes."""
    context = None
    if transport == "tls":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    visitor = Visitor(reader, writer)
    if transport == "ws":
        subprotocol = b"mqtt" if protocol == "mqtt" else b"v12.stomp"
        await visitor.ask(UPGRADE % subprotocol, b"\r\n\r\n")
        visitor.masked = True
    await does(visitor)
    writer.transport.abort()


@pytest.mark.parametrize("transport", ["tcp", "ws", pytest.param("tls", marks=pytest.mark.long)])
@pytest.mark.parametrize("protocol", ["stomp", "mqtt"])
async def test_nothing_is_left_to_the_collector(
    protocol: str, transport: str, certificate: Path
) -> None:
    async with EmbeddedGateway(listeners(certificate)) as gateway:
        ports = [int(address.rpartition(":")[2]) for address in gateway.addresses]
        kinds = [f"{p} {t}" for p in ("stomp", "mqtt") for t in ("tcp", "ws", "tls")]
        port = ports[kinds.index(f"{protocol} {transport}")]
        with without_collector():
            for does in KINDS[protocol]:
                for _ in range(VISITS):
                    await visit(port, transport, protocol, does)
            await are_gone()
            assert not found_by_collector()


#: More than one, so that there is another to wait behind a write that was under way before.
SENDS: Final = 5
STOMP_SENDS = frame("SEND", b"x", destination="/queue/q", receipt="1") * SENDS


def mqtt_sends(version: int) -> bytes:
    return b"".join(
        raw.publish("$queue/q", b"x", qos=1, packet_id=number, version=version)
        for number in range(1, SENDS + 1)
    )


@pytest.mark.parametrize(
    ("protocol", "hello", "sent", "wrong"),
    [
        pytest.param("mqtt", raw.connect("m"), mqtt_sends(raw.V311), b"\xf0\0", id="mqtt"),
        pytest.param(
            "mqtt",
            raw.connect("m", version=raw.V5),
            mqtt_sends(raw.V5),
            b"\xf0\0",
            id="mqtt 5",
        ),
        pytest.param("stomp", CONNECT, STOMP_SENDS, frame("NONSENSE"), id="stomp"),
    ],
)
async def test_nothing_is_left_of_one_whose_link_ends_while_it_waits_and_is_refused_then(
    protocol: str,
    hello: bytes,
    sent: bytes,
    wrong: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it sent waits for the store, and is handled when the link is gone already."""
    async with EmbeddedGateway() as gateway:
        core = gateway.gateway._broker
        store, gate = core.store, asyncio.Event()
        write, gone = store.write, asyncio.Event()
        session = StompSession if protocol == "stomp" else MqttSession
        closed = session.link_closed

        def link_closed(of: object, error: Exception | None) -> None:
            closed(of, error)  # type: ignore[arg-type]  # it is of that class
            gone.set()

        async def held_up(batch: WriteBatch) -> None:
            await gate.wait()
            await write(batch)

        with without_collector():
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port(protocol))
            visitor = Visitor(reader, writer)
            await visitor.ask(hello, b"CONNECTED" if protocol == "stomp" else b"\x20")
            with monkeypatch.context() as patch:
                patch.setattr(store, "write", held_up)
                patch.setattr(core.flow, "turn_operations_max", 0)
                patch.setattr(session, "link_closed", link_closed)
                gate.clear()
                try:
                    writer.write(sent + wrong)
                    async with asyncio.timeout(LIMIT_S):
                        while not core.flow._throttled:
                            await asyncio.sleep(0.002)
                        # A socket that is not read does not tell that it is closed; one that is
                        # written does, and keep-alive.
                        for connection in core.connections:
                            peer = connection._peer
                            link = peer._wire.link if protocol == "stomp" else peer._link
                            link.abort()
                        await gone.wait()
                finally:
                    gate.set()
            writer.close()
            del reader, writer, visitor, connection, peer, link
            await are_gone()
            assert not found_by_collector()
