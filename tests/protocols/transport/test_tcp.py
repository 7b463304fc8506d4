"""The TCP transport over real loopback sockets, on asyncio's loop and on uvloop."""

import asyncio
import contextlib
import errno
import os
import re
import resource
import select
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from link_recorder import TIMEOUT_S, Recorder, TwoSockets, hang_up

from tidegate.spi.clients import seldom
from tidegate_protocols.transport import Sockets, TcpLink, TcpListener
from tidegate_protocols.transport import _tcp as tcp
from tidegate_protocols.transport._sockets import bind, peer_name


@contextlib.asynccontextmanager
async def listening(
    make: Callable[[], Recorder] = Recorder,
    connections_max: int = 10,
    refusal: bytes = b"",
    sockets: Sockets | None = None,
):
    handlers = []

    def make_handler():
        handlers.append(make())
        return handlers[-1]

    listener = TcpListener(
        "127.0.0.1",
        0,
        make_handler,
        connections_max=connections_max,
        refusal=refusal,
        sockets=sockets,
    )
    _, port = await listener.start()
    try:
        yield listener, handlers, port
    finally:
        await listener.stop(1.0)


async def connected(port, handlers):
    before = len(handlers)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while len(handlers) == before or handlers[-1].link is None:
        await asyncio.sleep(0)
    return reader, writer, handlers[-1]


async def test_bytes_go_both_ways_and_the_peer_has_a_name():
    async with listening(lambda: Recorder(lambda data: data.upper())) as (
        listener,
        handlers,
        port,
    ):
        reader, writer, handler = await connected(port, handlers)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"HELLO"
        name = "{}:{}".format(*writer.get_extra_info("sockname"))
        assert handler.link.peer == name
        assert listener.connection_count == 1
        await hang_up(writer)
        await handler.until(lambda h: isinstance(h.events[-1], tuple))
        assert handler.events == ["opened", "data", ("closed", None)]
        assert handler.link.is_closing
        assert listener.connection_count == 0


def test_ipv6_peers_are_written_with_brackets():
    """Not every machine has IPv6: the transport is one that says so."""
    transport = asyncio.Transport({"peername": ("::1", 5000, 0, 0)})
    assert peer_name(transport) == "[::1]:5000"


async def test_a_port_in_use_is_an_os_error():
    async with listening() as (_, _, port):
        second = TcpListener("127.0.0.1", port, Recorder, connections_max=1)
        with pytest.raises(OSError, match=r"in use"):
            await second.start()


async def test_sockets_do_not_wait_for_more_to_send_and_notice_dead_peers():
    async with listening() as (_, handlers, port):
        _, writer, handler = await connected(port, handlers)
        sock = handler.link._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        await hang_up(writer)


async def test_one_connection_too_many_is_told_and_closed(caplog):
    async with listening(connections_max=1, refusal=b"full\n") as (listener, handlers, port):
        _, writer, handler = await connected(port, handlers)
        for _ in range(3):
            reader, refused = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b"full\n"
            await hang_up(refused)
        assert len(handlers) == 1
        assert caplog.text.count("connections refused connections_max=1") == 1
        await hang_up(writer)
        await handler.until(lambda h: isinstance(h.events[-1], tuple))
        _, writer, _ = await connected(port, handlers)
        assert listener.connection_count == 1
        await hang_up(writer)


async def test_refusals_are_logged_once_though_the_limit_is_left_meanwhile(caplog, monkeypatch):
    monkeypatch.setattr(seldom, "LOG_EVERY_S", 3600.0)

    async with listening(connections_max=1, refusal=b"full\n") as (_, handlers, port):

        async def is_full():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            told = await reader.read()
            await hang_up(writer)
            return told == b"full\n"

        for _ in range(3):  # each time the limit is left and reached again
            _, writer, handler = await connected(port, handlers)
            assert await is_full()
            await hang_up(writer)
            await handler.until(lambda h: isinstance(h.events[-1], tuple))
        assert caplog.text.count("connections refused") == 1


async def test_without_descriptors_the_others_go_on_and_accepting_rests(caplog, monkeypatch):
    monkeypatch.setattr(seldom, "LOG_EVERY_S", 3600.0)
    loop = asyncio.get_running_loop()
    async with listening(lambda: Recorder(lambda data: data)) as (_, handlers, port):
        reader, writer, _ = await connected(port, handlers)
        late = socket.socket()
        late.setblocking(False)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))  # not one more
        try:
            await loop.sock_connect(late, ("127.0.0.1", port))  # the kernel takes it
            while "accept failed" not in caplog.text:
                await asyncio.sleep(0)
            began, used = loop.time(), time.thread_time()
            while loop.time() - began < 5 * tcp.ACCEPT_RETRY_S / 2:
                await asyncio.sleep(tcp.ACCEPT_RETRY_S / 10)
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
            assert time.thread_time() - used < (loop.time() - began) / 2, "it spins"
            assert caplog.text.count("accept failed") == 1
            assert len(handlers) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await loop.sock_sendall(late, b"late")
        assert await loop.sock_recv(late, 4) == b"late"
        late.close()
        await hang_up(writer)


async def test_a_socket_too_many_of_all_listeners_is_closed_without_a_word():
    sockets = TwoSockets()
    async with (
        listening(refusal=b"full\n", sockets=sockets) as (_, handlers, port),
        listening(connections_max=1, refusal=b"full\n", sockets=sockets) as (_, others, other),
    ):
        _, writer, _ = await connected(port, handlers)
        _, second, handler = await connected(other, others)
        for asked in (port, other):
            reader, refused = await asyncio.open_connection("127.0.0.1", asked)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            await hang_up(refused)
        await hang_up(second)
        await handler.until(lambda h: isinstance(h.events[-1], tuple))
        _, third, _ = await connected(port, handlers)
        await hang_up(third)
        await hang_up(writer)
    assert sockets.count == 0


@pytest.mark.parametrize("place", ["opened", "data_received", "pause_writing", "resume_writing"])
async def test_an_exception_in_a_handler_ends_only_its_connection(caplog, place):
    class Faulty(Recorder):
        pass

    def fail(self, *_):
        self.link = self.link or _[0]
        raise RuntimeError("bug")

    setattr(Faulty, place, fail)

    async def scenario():
        async with listening() as (listener, handlers, port):
            _, good_writer, good = await connected(port, handlers)
            listener._make_handler = lambda: handlers.append(Faulty()) or handlers[-1]
            _, writer, bad = await connected(port, handlers)
            if place == "data_received":
                writer.write(b"x")
            elif place != "opened":
                connection = next(c for c in listener._connections if c._handler is bad)
                getattr(connection, place)()
            await bad.until(lambda h: h.events and isinstance(h.events[-1], tuple))
            (_, error) = bad.events[-1]
            assert isinstance(error, RuntimeError)
            assert f"peer={bad.link.peer}" in caplog.text
            good_writer.write(b"still here")
            await good.until(lambda h: h.data == b"still here")
            await hang_up(writer)
            await hang_up(good_writer)

    await scenario()


async def test_an_exception_while_closing_is_logged(caplog):
    class Faulty(Recorder):
        def closed(self, error):
            super().closed(error)
            raise RuntimeError("bug at the end")

    async with listening(Faulty) as (listener, handlers, port):
        _, writer, handler = await connected(port, handlers)
        await hang_up(writer)
        await handler.until(lambda h: isinstance(h.events[-1], tuple))
        await asyncio.sleep(0)
        assert listener.connection_count == 0
    assert "bug at the end" in caplog.text


async def test_close_delivers_the_last_bytes_though_input_is_unread():
    """Closing with unread input would reset the connection and destroy the answer."""

    async with listening() as (_, handlers, port):
        reader, writer, handler = await connected(port, handlers)
        handler.link.pause_reading()
        writer.write(b"x" * 3_000_000)  # more than the socket buffers of one side hold
        handler.link.send(b"the ")
        handler.link.send(b"reason")
        handler.link.close()
        handler.link.send(b"too late")
        handler.link.close()
        assert handler.link.is_closing
        assert await reader.read() == b"the reason"
        await hang_up(writer)
        await handler.until(lambda h: isinstance(h.events[-1], tuple))
        assert handler.data == b""


async def test_a_peer_that_never_hangs_up_is_aborted_after_the_linger_time(monkeypatch):
    monkeypatch.setattr(tcp, "CLOSE_LINGER_S", 0.01)

    async with listening() as (_, handlers, port):
        reader, writer, handler = await connected(port, handlers)
        handler.link.close()
        await handler.until(lambda h: isinstance(h.events[-1], tuple))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        await hang_up(writer)


async def test_abort_drops_what_was_not_written():
    async with listening() as (_, handlers, port):
        reader, writer, handler = await connected(port, handlers)
        handler.link.send(b"lost")
        handler.link.abort()
        await handler.until(lambda h: isinstance(h.events[-1], tuple))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        await hang_up(writer)


async def test_pausing_stops_the_bytes_and_both_may_be_repeated():
    async with listening() as (_, handlers, port):
        _, writer, handler = await connected(port, handlers)
        handler.link.resume_reading()
        handler.link.pause_reading()
        handler.link.pause_reading()
        writer.write(b"x")
        await writer.drain()
        for _ in range(20):
            await asyncio.sleep(0)
        assert handler.data == b""
        handler.link.resume_reading()
        handler.link.resume_reading()
        await handler.until(lambda h: h.data == b"x")
        await hang_up(writer)


async def test_a_peer_that_does_not_read_pauses_the_handler():
    async with listening() as (_, handlers, port):
        reader, writer, handler = await connected(port, handlers)
        sent = 0
        while "pause" not in handler.events:
            handler.link.send(b"x" * 100_000)
            sent += 100_000
            await asyncio.sleep(0)
        await reader.readexactly(sent)
        await handler.until(lambda h: "resume" in h.events)
        await hang_up(writer)


async def test_stop_tells_every_peer_and_waits_for_them():
    async with listening() as (listener, handlers, port):
        reader, writer, handler = await connected(port, handlers)
        handler.link.send(b"bye")
        stopping = asyncio.create_task(listener.stop(TIMEOUT_S))
        assert await reader.read() == b"bye"
        await hang_up(writer)
        await stopping
        assert isinstance(handler.events[-1], tuple)
        with pytest.raises(OSError, match=r"[Cc]onnect"):
            await asyncio.open_connection("127.0.0.1", port)
        await listener.stop(1.0)
        await listener.stop_accepting()


async def test_stop_aborts_those_that_do_not_go(caplog):
    async with listening() as (listener, handlers, port):
        _, writer, handler = await connected(port, handlers)
        await listener.stop(0.01)
        assert isinstance(handler.events[-1], tuple)
        assert "connections aborted count=1" in caplog.text
        await hang_up(writer)


async def test_stop_accepting_leaves_connections_alone():
    async with listening(lambda: Recorder(lambda data: data)) as (listener, handlers, port):
        reader, writer, _ = await connected(port, handlers)
        await listener.stop_accepting()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await hang_up(writer)


async def test_answers_to_a_peer_that_only_ends_its_own_side_are_delivered():
    async with listening(lambda: Recorder(lambda data: data)) as (_, handlers, port):
        reader, writer, _ = await connected(port, handlers)
        writer.write(b"x")
        writer.write_eof()
        assert await reader.read() == b"x"
        await hang_up(writer)


class Answering(Recorder):
    """Has something to say when the peer sends no more, and says it later."""

    def input_ended(self):
        self.note("input ended")
        self.link.pause_reading()
        self.link.resume_reading()  # not to be told again
        return True


async def test_a_peer_that_only_ends_its_own_side_hears_what_comes_later():
    async with listening(lambda: Answering(lambda data: b"")) as (_, handlers, port):
        reader, writer, handler = await connected(port, handlers)
        writer.write(b"x")
        writer.write_eof()
        await handler.until(lambda it: "input ended" in it.events)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not handler.link.is_closing
        handler.link.send(b"later")
        handler.link.close()
        assert await reader.read() == b"later"
        await handler.until(lambda it: "input ended" not in it.events[-1])
        assert handler.events.count("input ended") == 1
        await hang_up(writer)


async def test_what_is_flushed_is_with_the_kernel_at_once_and_the_rest_follows_in_order():
    loop = asyncio.get_running_loop()
    async with listening() as (_, handlers, port):
        with socket.socket() as peer:
            peer.setblocking(False)
            await loop.sock_connect(peer, ("127.0.0.1", port))
            while not handlers or handlers[0].link is None:
                await asyncio.sleep(0)
            link = handlers[0].link
            link.send(b"first")
            link.flush()
            assert select.select([peer], [], [], TIMEOUT_S)[0]  # without a turn of the loop
            large = os.urandom(1 << 20) * 8  # more than the kernel takes
            for data in (large, b"last"):
                link.send(data)
                link.flush()
            received = bytearray()
            async with asyncio.timeout(TIMEOUT_S):
                while len(received) < len(large) + 9:
                    received += await loop.sock_recv(peer, 1 << 20)
            assert received == b"first" + large + b"last"


# ------------------------------------------------------------------------------------ one write


class FakeTransport:
    def __init__(self):
        self.written, self.calls, self.closing = [], [], False

    def write(self, data):
        self.written.append(data)

    def is_closing(self):
        return self.closing

    def can_write_eof(self):
        return False

    def __getattr__(self, name):
        return lambda *args: self.calls.append(name)


class FakeLoop:
    def __init__(self):
        self.soon = []

    def call_soon(self, callback):
        self.soon.append(callback)

    def turn(self):
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


@pytest.fixture
def fake():
    transport: Any = FakeTransport()
    loop: Any = FakeLoop()
    return TcpLink(transport, loop, "peer"), transport, loop


def test_everything_of_one_turn_leaves_in_one_write(fake):
    link, transport, loop = fake
    for piece in (b"a", b"b", b"c"):
        link.send(piece)
    assert len(loop.soon) == 1
    assert transport.written == []
    loop.turn()
    assert transport.written == [b"abc"]
    loop.turn()
    assert transport.written == [b"abc"]


def test_a_single_piece_is_not_copied(fake):
    link, transport, loop = fake
    piece = b"x" * 1000
    link.send(piece)
    loop.turn()
    assert transport.written[0] is piece


def test_flush_writes_now_and_only_once(fake):
    link, transport, loop = fake
    link.send(b"a")
    link.flush()
    assert transport.written == [b"a"]
    link.send(b"b")
    loop.turn()
    assert transport.written == [b"a", b"b"]


def test_a_transport_without_half_close_is_closed_at_once(fake):
    link, transport, _ = fake
    link.send(b"a")
    link.close()
    assert (transport.written, transport.calls) == ([b"a"], ["close"])
    link.pause_reading()
    link.resume_reading()
    assert transport.calls == ["close"]


def test_closing_after_the_peer_was_first_does_nothing_more(fake):
    link, transport, _ = fake
    transport.closing = True
    link.close()
    assert transport.calls == []
    assert link.is_closing


def test_closing_a_connection_that_the_peer_has_reset_aborts_it(fake):
    link, transport, _ = fake

    def write_eof():
        raise OSError(107, "Transport endpoint is not connected")

    transport.can_write_eof = lambda: True
    transport.write_eof = write_eof
    link.close()
    assert transport.calls == ["abort"]


def test_nothing_is_written_after_the_socket_is_gone(fake):
    link, transport, loop = fake
    link.send(b"a")
    link.lost()
    link.send(b"b")
    loop.turn()
    assert transport.written == []


async def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()
        with pytest.raises(OSError, match=re.escape(f"bind on address {address!r}: ")) as raised:
            await bind(asyncio.get_running_loop(), *address)
    assert raised.value.errno == errno.EADDRINUSE
