"""WebSocket over fake and real links; the peer is the ``websockets`` library's client."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from link_recorder import Recorder, hang_up
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus
from websockets.frames import Close, Frame, Opcode

from tidegate.spi import ListenerConfig, parse_options
from tidegate_protocols.transport import TransportOptions, WebSocketProfile, make_listener
from tidegate_protocols.transport import _websocket as websocket

PROFILE = WebSocketProfile(("v12.stomp", "v11.stomp"), text_allowed=True)


class Listening:
    """A WebSocket listener on a free port whose handlers are recorders."""

    def __init__(
        self,
        make: Callable[[], Recorder] = Recorder,
        *,
        profile=PROFILE,
        connections_max=10,
        **options: object,
    ):
        self.handlers: list[Recorder] = []

        def make_handler():
            self.handlers.append(make())
            return self.handlers[-1]

        chosen = parse_options(TransportOptions, options)
        config = ListenerConfig("stomp", "ws", "127.0.0.1", 0, True, chosen)
        self.listener = make_listener(
            config,
            chosen,
            make_handler,
            profile=profile,
            connections_max=connections_max,
            refusal_text="this listener is full",
        )

    async def __aenter__(self):
        _, self.port = await self.listener.start()
        return self

    async def __aexit__(self, *_):
        await self.listener.stop(5.0)

    def client(self, **arguments: Any):
        arguments = {"proxy": None, "compression": None} | arguments
        return connect(f"ws://127.0.0.1:{self.port}/stomp", **arguments)

    async def ended(self):
        """The error that the only handler was told at its end."""
        await self.handlers[0].until(lambda h: h.events and isinstance(h.events[-1], tuple))
        return self.handlers[0].events[-1][1]


def echo():
    return Recorder(lambda data: data)


async def test_messages_come_back_in_the_kind_that_was_sent():
    async with Listening(echo) as server, server.client() as client:
        for message in (b"binary", "text €", b"\xff", "", "x" * 70_000, b"y" * 70_000):
            await client.send(message)
            got = "" if isinstance(message, str) else b""
            while len(got) < len(message):
                piece = await client.recv()
                assert type(piece) is type(message)
                got += piece  # type: ignore[operator]  # of one type, as just asserted
            assert got == message


async def test_bytes_that_are_not_utf8_leave_as_binary_even_to_a_text_client():
    answers = Listening(lambda: Recorder(lambda _: b"\xff\xfe"))
    async with answers as server, server.client() as client:
        await client.send("text")
        assert await client.recv() == b"\xff\xfe"


async def test_each_send_is_a_message_and_split_may_cut_it():
    profile = WebSocketProfile((), text_allowed=True, split=lambda data: data.split(b"|"))

    async def scenario(profile):
        answers = Listening(lambda: Recorder(lambda _: b"a|b"), profile=profile)
        async with answers as server, server.client() as client:
            await client.send(b"x")
            first = await client.recv()
            return [first] if first == b"a|b" else [first, await client.recv()]

    assert await scenario(PROFILE) == [b"a|b"]
    assert await scenario(profile) == [b"a", b"b"]


async def test_the_link_knows_its_subprotocol_and_peer():
    async with Listening() as server:
        async with server.client(subprotocols=["v10.stomp", "v11.stomp"]) as client:
            assert client.subprotocol == "v11.stomp"
            link = server.handlers[0].link
            assert (link.subprotocol, link.tls_subject) == ("v11.stomp", "")
            assert link.peer == "{}:{}".format(*client.local_address)
        async with server.client() as client:
            assert client.subprotocol is None
            assert server.handlers[1].link.subprotocol == ""


async def test_fragments_and_pings_between_them_are_handled():
    async with Listening(lambda: Recorder(lambda _: None)) as server, server.client() as client:

        async def fragments():
            yield b"one "
            pong = await client.ping(b"alive?")
            await pong
            yield b"two "
            yield b"three"

        await client.send(fragments())
        await server.handlers[0].until(lambda h: h.data == b"one two three")


async def test_the_client_closes_and_gets_its_code_back():
    async with Listening(echo) as server:
        client = await server.client()
        await client.send(b"last")
        await client.close(4001, "done here")
        assert client.close_code == 4001
        assert await server.ended() is None
        assert server.handlers[0].data == b"last"
        assert server.handlers[0].link.is_closing


async def test_the_gateway_closes_after_its_last_bytes_with_1000():
    async with Listening() as server, server.client() as client:
        link = server.handlers[0].link
        link.pause_reading()
        await client.send(b"too late" * 10)
        link.send(b"the reason")
        link.close()
        link.send(b"never")
        link.close()
        assert link.is_closing
        assert await client.recv() == b"the reason"
        with pytest.raises(ConnectionClosed) as raised:
            await client.recv()
        assert raised.value.rcvd == Close(1000, "")
        await server.ended()
        assert server.handlers[0].data == b""


async def test_stopping_tells_every_client_1001():
    async with Listening() as server, server.client() as client:
        await server.listener.stop(5.0)
        with pytest.raises(ConnectionClosed) as raised:
            await client.recv()
        assert raised.value.rcvd == Close(1001, "the gateway is stopping")
        assert server.listener.connection_count == 0
        await server.listener.stop_accepting()


@pytest.mark.parametrize(
    ("opcode", "payload", "code"),
    [
        (Opcode.BINARY, b"x" * 1025, 1009),
        (Opcode.TEXT, b"\xff", 1007),
        (Opcode.CONT, b"x", 1002),
    ],
)
async def test_a_violation_is_answered_with_its_code_and_ends_the_connection(opcode, payload, code):
    async with Listening(websocket_message_max="1kb") as server, server.client() as client:
        client.transport.write(Frame(opcode, payload).serialize(mask=True))
        with pytest.raises(ConnectionClosedError) as raised:
            await client.recv()
        assert raised.value.rcvd is not None
        assert raised.value.rcvd.code == code
        assert f"WebSocket {code}" in str(await server.ended())


async def test_text_is_refused_by_a_binary_protocol():
    profile = WebSocketProfile(("mqtt",), text_allowed=False)
    async with Listening(profile=profile) as server, server.client() as client:
        await client.send("text")
        with pytest.raises(ConnectionClosedError) as raised:
            await client.recv()
        assert raised.value.rcvd is not None
        assert raised.value.rcvd.code == 1003


async def test_a_refused_request_never_makes_a_handler():
    async with Listening() as server:
        with pytest.raises(InvalidStatus) as raised:
            await server.client(origin="https://evil.example")
        assert raised.value.response.status_code == 403
        assert server.handlers == []
    open_to_it = Listening(websocket_origins=["https://app.example"])
    async with open_to_it as server, server.client(origin="https://app.example"):
        assert len(server.handlers) == 1


async def test_one_connection_too_many_gets_503():
    async with Listening(connections_max=1) as server, server.client():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert answer.endswith(b"\r\n\r\nthis listener is full\n")
        await hang_up(writer)


async def test_garbage_is_answered_and_silence_is_ended():
    async def scenario(first, handshake_timeout="60s"):
        async with Listening(handshake_timeout=handshake_timeout) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(first)
            answer = await reader.read()
            await hang_up(writer)
            assert server.handlers == []
            return answer.partition(b"\r\n")[0]

    assert await scenario(b"STOMP\n\n\0") == b"HTTP/1.1 400 Bad Request"
    assert (await scenario(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 426 ")
    assert await scenario(b"GET /", "30ms") == b"HTTP/1.1 408 Request Timeout"
    assert await scenario(b"", "30ms") == b"HTTP/1.1 408 Request Timeout"


async def test_a_client_that_vanishes_during_the_request_leaves_nothing_behind():
    async with Listening() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /")
        while server.listener.connection_count == 0:
            await asyncio.sleep(0)
        await hang_up(writer)
        while server.listener.connection_count:
            await asyncio.sleep(0)
        assert server.listener._connections == set()  # type: ignore[attr-defined]


# -------------------------------------------------------------------- without sockets or a loop


class FakeLink:
    """The link below. Records writes; *turned* counts turns of reading on and off."""

    peer, subprotocol, tls_subject = "192.0.2.1:5000", "", "CN=anna"

    def __init__(self):
        self.written, self.calls, self.is_closing = [], [], False

    def send(self, data):
        self.written.append(data)

    def __getattr__(self, name):
        return lambda: self.calls.append(name)

    def take(self):
        data, self.written = b"".join(self.written), []
        return data


class FakeTimer:
    def __init__(self, callback):
        self.callback, self.is_cancelled = callback, False

    def cancel(self):
        self.is_cancelled = True


class FakeLoop:
    def __init__(self):
        self.timers = []

    def call_later(self, delay, callback):
        self.timers.append(FakeTimer(callback))
        return self.timers[-1]

    @property
    def live(self):
        return [timer for timer in self.timers if not timer.is_cancelled]


REQUEST = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Quiet:
    """A handler without an event loop."""

    def __init__(self):
        self.link: Any = None
        self.events: list[Any] = []

    def opened(self, link):
        self.link = link

    def data_received(self, data):
        self.events.append(data)

    def input_ended(self):
        return False

    def closed(self, error):
        self.events.append(("closed", error))

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")


class Parts:
    def __init__(self, *, first=REQUEST, is_open=True):
        self.inner, self.loop, self.ended = Quiet(), FakeLoop(), list[Any]()
        self.below: Any = FakeLink()
        loop: Any = self.loop
        self.handler = websocket.WebSocketHandler(
            lambda: self.inner, PROFILE, TransportOptions(), loop, self.ended.append
        )
        self.handler.opened(self.below)
        if is_open:
            self.handler.data_received(first)
            self.below.take()

    def frame(self, opcode, payload=b"", fin=True):
        self.handler.data_received(Frame(opcode, payload, fin).serialize(mask=True))


def test_frames_that_come_with_the_request_are_not_lost():
    parts = Parts(first=REQUEST + Frame(Opcode.BINARY, b"early").serialize(mask=True))
    assert parts.inner.events == [b"early"]
    assert parts.loop.live == []


def test_stomp_frames_cut_over_messages_at_every_place_arrive_whole():
    data = b"SEND\ndestination:/queue/a\n\nbody\0\nSEND\ndestination:/queue/b\n\n\0"
    for i in range(len(data) + 1):
        parts = Parts()
        parts.frame(Opcode.BINARY, data[:i])
        parts.frame(Opcode.TEXT, data[i:])
        assert b"".join(parts.inner.events) == data
    parts = Parts()
    for i in range(len(data)):
        parts.frame(Opcode.TEXT, data[i : i + 1])
    assert b"".join(parts.inner.events) == data


def test_only_the_last_of_many_pings_is_answered_and_not_while_the_peer_does_not_read():
    parts = Parts()
    pings = b"".join(Frame(Opcode.PING, bytes((n,))).serialize(mask=True) for n in range(9))
    parts.handler.data_received(pings)
    assert parts.below.take() == b"\x8a\x01\x08"
    parts.handler.pause_writing()
    for n in range(9):
        parts.frame(Opcode.PING, bytes((n,)))
    assert parts.below.take() == b""
    parts.handler.resume_writing()
    assert parts.below.take() == b"\x8a\x01\x08"
    parts.handler.resume_writing()
    assert parts.below.take() == b""
    assert parts.inner.events == ["pause", "resume", "resume"]


def test_reading_is_paused_below_but_not_once_closing():
    parts = Parts()
    link = parts.inner.link
    link.pause_reading()
    link.resume_reading()
    link.flush()
    assert parts.below.calls == ["pause_reading", "resume_reading", "flush"]
    link.close()
    assert parts.below.calls[3:] == ["flush", "resume_reading"]
    link.pause_reading()
    assert parts.below.calls[5:] == []
    assert link.tls_subject == "CN=anna"


def test_after_our_close_input_is_dropped_until_the_peers_close():
    parts = Parts()
    parts.inner.link.close()
    assert parts.below.take() == b"\x88\x02\x03\xe8"
    parts.frame(Opcode.BINARY, b"dropped")
    parts.frame(Opcode.PING, b"dropped")
    assert "close" not in parts.below.calls
    parts.frame(Opcode.CLOSE, b"\x03\xe8")
    assert parts.below.calls[-1] == "close"
    assert parts.below.take() == b""
    assert parts.inner.events == []
    assert parts.loop.live == []


def test_a_peer_that_never_closes_is_aborted_after_the_linger_time():
    parts = Parts()
    parts.inner.link.close()
    (timer,) = parts.loop.live
    timer.callback()
    assert parts.below.calls[-1] == "abort"


def test_rubbish_after_our_close_just_ends_it():
    parts = Parts()
    parts.inner.link.close()
    parts.below.take()
    parts.handler.data_received(b"\xff\xff\xff\xff")
    assert (parts.below.take(), parts.below.calls[-1]) == (b"", "close")


def test_the_end_is_told_once_and_timers_stop():
    parts = Parts()
    parts.inner.link.close()
    parts.handler.closed(None)
    assert parts.loop.live == []
    assert parts.ended == [parts.handler]
    assert parts.inner.events == [("closed", None)]
    waiting = Parts(is_open=False)
    waiting.handler.closed(OSError("reset"))
    assert waiting.loop.live == []
    assert waiting.inner.events == []
    waiting.handler.going_away()
    assert waiting.below.take() == b""


def test_abort_goes_below_and_stops_writing():
    parts = Parts()
    parts.inner.link.abort()
    parts.inner.link.send(b"never")
    assert (parts.below.calls, parts.below.take()) == (["abort"], b"")


def test_a_peer_that_was_slow_during_the_request_pauses_the_handler():
    parts = Parts(is_open=False)
    parts.handler.pause_writing()
    parts.handler.data_received(REQUEST)
    assert parts.inner.events == ["pause"]


def test_after_a_refusal_nothing_is_read_any_more():
    parts = Parts(is_open=False)
    parts.handler.data_received(b"POST")
    assert parts.below.take().startswith(b"HTTP/1.1 400 ")
    parts.handler.data_received(REQUEST)
    assert parts.below.take() == b""
    slow = Parts(is_open=False)
    slow.loop.live[0].callback()
    assert slow.below.take().startswith(b"HTTP/1.1 408 ")
    slow.handler.data_received(REQUEST)
    assert (slow.below.take(), slow.inner.link) == (b"", None)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.booleans())
def test_any_bytes_after_the_request_are_read_or_end_the_connection(pieces, is_closing):
    parts = Parts()
    if is_closing:
        parts.inner.link.close()
    for piece in pieces:
        if parts.below.calls[-1:] != ["close"]:  # after which the transport reads nothing for us
            parts.handler.data_received(piece)
    parts.handler.closed(None)
    assert parts.loop.live == []
    assert isinstance(parts.inner.events[-1], tuple)
