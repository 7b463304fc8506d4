"""The STOMP listener over real loopback sockets, in front of a small broker in memory."""

import asyncio
import collections
import contextlib

import pytest

from tidegate.spi import ConfigError, ConnectResult, ListenerConfig, Message, StoredMessage
from tidegate.spi.events import log_only
from tidegate_protocols.stomp import StompFrontEndFactory, StompOptions
from tidegate_protocols.transport import TcpListener

TIMEOUT_S = 60  # bounds a hanging test, nothing waits for it


class Connection:
    """One queue per destination; everything is durable at the end of the turn."""

    principal = "anonymous"
    meter = None

    def __init__(self, broker, peer):
        self.broker, self.peer, self.subscriptions = broker, peer, {}
        self.disconnected = None
        self.waiting = 0

    def resume(self):
        pass

    def holds(self, kind, size):
        pass

    def make_temporary(self, destination):
        raise AssertionError("no test here has a temporary destination")

    def writable(self, value):
        self.broker.writable.append(value)

    def publish(self, message, token=None, transaction=None, inflight=None):
        self.broker.sequence += 1
        self.broker.queues[message.destination].append(
            StoredMessage.of(self.broker.sequence, message)
        )
        self.later(token)

    def subscribe(self, request, token=None):
        self.subscriptions[request.key] = request
        messages = self.broker.queues.pop(request.destination, [])
        if messages:
            self.peer.deliver(request.key, messages)
        self.later(token)
        return False

    def acknowledge(self, key, sequences, token=None, transaction=None, inflight=None):
        self.broker.acknowledged += sequences
        self.later(token)

    def synchronize(self, token):
        self.later(token)

    @property
    def has_unconfirmed(self):
        return self.waiting > 0

    def disconnect(self, *, graceful, detached=(), publish_will=False, reason=""):
        self.disconnected = graceful

    def later(self, token):
        if token is not None:
            self.waiting += 1
            asyncio.get_running_loop().call_soon(self.confirm, token)

    def confirm(self, token):
        self.waiting -= 1
        self.peer.confirmed([token])


class Broker:
    name, store_id, version = "gateway", "st0re", "9.9"
    large_bodies = None
    tell = staticmethod(log_only)

    def socket_opened(self, size: int) -> bool:
        return True

    def socket_closed(self, size: int) -> None:
        pass

    def unauthenticated_holds(self, peer, size) -> None:
        pass

    def __init__(self):
        self.queues = collections.defaultdict(list)
        self.sequence, self.acknowledged, self.connections, self.writable = 0, [], [], []

    def begin_authentication(self, method, request):
        return None  # STOMP has no challenge-response

    async def connect(self, request, peer):
        self.connections.append(Connection(self, peer))
        return ConnectResult(self.connections[-1])


def config(port=0, options=None, **fields):
    values = {
        "protocol": "stomp",
        "transport": "tcp",
        "host": "127.0.0.1",
        "port": port,
        "allow_anonymous": True,
        "options": options or StompOptions(),
    }
    return ListenerConfig(**(values | fields))


@contextlib.asynccontextmanager
async def running(options=None):
    broker = Broker()
    front_end = StompFrontEndFactory().create(config(options=options), broker)
    address = await front_end.start()
    assert address.startswith("stomp://127.0.0.1:")
    try:
        yield front_end, broker, int(address.rpartition(":")[2])
    finally:
        await front_end.stop()


async def hang_up(writer):
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def frame(reader):
    return await reader.readuntil(b"\0")


CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"


async def test_a_message_goes_in_and_comes_out():
    async with running() as (_, broker, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CONNECT + b"SEND\ndestination:/queue/a\nreceipt:1\nx:y\n\nhello\0")
        assert (await frame(reader)).startswith(b"CONNECTED\nversion:1.2\n")
        assert await frame(reader) == b"RECEIPT\nreceipt-id:1\n\n\0"
        writer.write(
            b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client-individual\nreceipt:2\n\n\0"
        )
        message = await frame(reader)
        assert message.startswith(
            b"MESSAGE\nsubscription:s\nmessage-id:st0re-1\nack:1-1\ndestination:/queue/a\n"
            b"content-length:5\ntimestamp:"
        )
        assert message.endswith(b"\nx:y\n\nhello\0")
        assert await frame(reader) == b"RECEIPT\nreceipt-id:2\n\n\0"
        writer.write(b"ACK\nid:1-1\n\n\0DISCONNECT\nreceipt:3\n\n\0")
        assert await frame(reader) == b"RECEIPT\nreceipt-id:3\n\n\0"
        assert await reader.read() == b""
        await hang_up(writer)
        assert broker.acknowledged == [1]
        assert broker.connections[0].disconnected is True


async def test_a_thousand_messages_in_pieces_keep_their_order():
    async with running() as (_, broker, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = CONNECT + b"".join(
            b"SEND\ndestination:/queue/a\nreceipt:%d\n\n%d\0" % (n, n) for n in range(1000)
        )
        for position in range(0, len(data), 777):
            writer.write(data[position : position + 777])
            await writer.drain()
        await frame(reader)
        for n in range(1000):
            assert await frame(reader) == b"RECEIPT\nreceipt-id:%d\n\n\0" % n
        assert [m.message.body for m in broker.queues["queue://a"]] == [
            b"%d" % n for n in range(1000)
        ]
        await hang_up(writer)


async def test_garbage_ends_one_connection_and_disturbs_no_other():
    async with running() as (_, _, port):
        good_reader, good = await asyncio.open_connection("127.0.0.1", port)
        good.write(CONNECT)
        await frame(good_reader)
        reader, bad = await asyncio.open_connection("127.0.0.1", port)
        bad.write(b"\x16\x03\x01" + b"\xff" * 500_000)
        answer = await reader.read()
        assert answer.startswith(b"ERROR\nmessage:")
        assert b"TLS" in answer
        await hang_up(bad)
        good.write(b"SEND\ndestination:/queue/a\nreceipt:1\n\n\0")
        assert await frame(good_reader) == b"RECEIPT\nreceipt-id:1\n\n\0"
        await hang_up(good)


async def test_an_oversized_body_is_refused_before_it_came():
    async with running(StompOptions(body_max=1000)) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CONNECT + b"SEND\ndestination:/queue/a\ncontent-length:1001\n\n")
        await frame(reader)
        assert b"limit of 1000 bytes" in await reader.read()
        await hang_up(writer)


async def test_a_connection_too_many_is_told():
    async with running(StompOptions(connections_max=1)) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CONNECT)
        await frame(reader)
        refused_reader, refused = await asyncio.open_connection("127.0.0.1", port)
        answer = await refused_reader.read()
        assert answer.startswith(
            b"ERROR\nmessage:this listener has reached its limit of 1 connections"
        )
        await hang_up(refused)
        await hang_up(writer)


async def test_a_slow_reader_is_told_to_the_broker():
    async with running() as (_, broker, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CONNECT + b"SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0")
        await frame(reader)
        while not broker.connections or not broker.connections[0].subscriptions:
            await asyncio.sleep(0)
        message = StoredMessage.of(1, Message("queue://a", b"x" * 1_000_000))
        while False not in broker.writable:
            broker.connections[0].peer.deliver("1", [message])
            await asyncio.sleep(0)
        while True not in broker.writable:
            await reader.read(1_000_000)
        await hang_up(writer)


async def test_stop_tells_every_client():
    async with running() as (front_end, broker, port):
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in clients[:2]:
            writer.write(CONNECT)
            await frame(reader)
        stopping = asyncio.create_task(front_end.stop())
        for reader, writer in clients:
            assert b"message:the gateway is stopping" in await reader.read()
            await hang_up(writer)
        await stopping
        assert [c.disconnected for c in broker.connections] == [False, False]
        with pytest.raises(OSError, match=r"[Cc]onnect"):
            await asyncio.open_connection("127.0.0.1", port)
        await front_end.stop()


async def test_stop_accepting_lets_clients_go_on():
    async with running() as (front_end, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CONNECT)
        await frame(reader)
        await front_end.stop_accepting()
        writer.write(b"SEND\ndestination:/queue/a\nreceipt:1\n\n\0")
        assert await frame(reader) == b"RECEIPT\nreceipt-id:1\n\n\0"
        await hang_up(writer)


async def test_stop_does_not_wait_longer_than_its_timeout():
    async with running(StompOptions(stop_timeout=0.01)) as (front_end, broker, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CONNECT)
        await frame(reader)
        await front_end.stop()
        assert await reader.read() != b""
        assert broker.connections[0].disconnected is False
        await hang_up(writer)


async def test_a_port_in_use_is_an_os_error():
    async with running() as (_, broker, port):
        second = StompFrontEndFactory().create(config(port), broker)
        with pytest.raises(OSError, match="in use"):
            await second.start()


async def test_ipv6_addresses_are_written_with_brackets(monkeypatch):
    """Not every machine has IPv6: the listener only says that it is bound there."""

    async def start(_listener):
        return "::1", 61613

    monkeypatch.setattr(TcpListener, "start", start)
    front_end = StompFrontEndFactory().create(config(host="::1"), Broker())
    assert await front_end.start() == "stomp://[::1]:61613"
    await front_end.stop()


def test_other_transports_and_options_are_refused():
    factory = StompFrontEndFactory()
    with pytest.raises(ConfigError, match="'quic' is not one of 'tcp', 'tls', 'ws', 'wss'"):
        factory.create(config(transport="quic"), Broker())
    with pytest.raises(TypeError, match="StompOptions"):
        factory.create(config(options="none"), Broker())
