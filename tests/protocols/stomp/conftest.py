"""A session between a fake broker and a fake link, on a loop whose time stands still."""

import heapq
import itertools
from typing import Any

import pytest

from tidegate.spi import ConnectResult, Message, StoredMessage
from tidegate_protocols.stomp import SERVER_COMMANDS, Decoder, Frame, StompOptions, Version
from tidegate_protocols.stomp._session import Session, SessionContext


class FakeTimer:
    def __init__(self, when, callback, args):
        self.when, self.callback, self.args, self.is_cancelled = when, callback, args, False

    def cancel(self):
        self.is_cancelled = True


class FakeTask:
    """Runs a coroutine whenever what it awaits (a :class:`Gate`) is opened."""

    def __init__(self, coroutine):
        self.coroutine, self.is_done, self.is_cancelled = coroutine, False, False

    def step(self):
        if not self.is_done:
            try:
                self.coroutine.send(None)
            except StopIteration:
                self.is_done = True

    def cancel(self):
        self.is_cancelled = True
        if not self.is_done:
            self.is_done = True
            self.coroutine.close()


class Gate:
    """Something to await that is open or not."""

    def __init__(self):
        self.is_open = True

    def __await__(self):
        while not self.is_open:
            yield


class FakeLoop:
    """The part of an event loop that a session uses; time moves only by :meth:`advance`."""

    def __init__(self):
        self.now = 100.0
        self.soon, self.timers, self.tasks = [], [], []
        self.counter = itertools.count()

    def time(self):
        return self.now

    def call_soon(self, callback, *args):
        self.soon.append((callback, args))

    def call_later(self, delay, callback, *args):
        timer = FakeTimer(self.now + delay, callback, args)
        heapq.heappush(self.timers, (timer.when, next(self.counter), timer))
        return timer

    def create_task(self, coroutine):
        task = FakeTask(coroutine)
        self.tasks.append(task)
        self.call_soon(task.step)
        return task

    def turn(self):
        """Run what is due now."""
        for _ in range(20):
            soon, self.soon = self.soon, []
            for callback, args in soon:
                callback(*args)
            if not self.soon:
                return
        raise AssertionError("the loop never comes to rest")

    def advance(self, seconds):
        """Let time pass, timer by timer."""
        until = self.now + seconds
        while self.timers and self.timers[0][0] <= until:
            self.now, _, timer = heapq.heappop(self.timers)
            if not timer.is_cancelled:
                timer.callback(*timer.args)
                self.turn()
        self.now = until

    @property
    def live_timers(self):
        return [timer for _, _, timer in self.timers if not timer.is_cancelled]


class FakeLink:
    unsent_bytes = 0

    def __init__(self):
        self.peer, self.subprotocol = "10.0.0.9:5555", ""
        self.tls_subject = ""
        self.tls_principal = None
        self.written, self.is_closing, self.is_aborted, self.is_reading = [], False, False, True
        self.flushed = []  # how much was written each time

    def send(self, data):
        if not self.is_closing:
            self.written.append(data)

    def send_piece(self, data, *, last):
        self.send(data)

    def flush(self):
        self.flushed.append(len(self.written))

    def close(self):
        self.is_closing = True

    def abort(self):
        self.is_closing = self.is_aborted = True

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True


class FakeConnection:
    """Records every call; ``fail[name]`` makes that call raise. ``reason``: why it was disconnected."""

    principal = "tester"
    meter = None
    has_unconfirmed = False

    def __init__(self):
        self.calls: list[Any] = []
        self.fail: dict[str, Any] = {}
        self.reason: str | None = None

    def __getattr__(self, name):
        def call(*args, **kwargs):
            wanted = self.fail.get(name)
            error = wanted(*args, **kwargs) if callable(wanted) else wanted
            if isinstance(error, Exception):
                raise error
            if name == "disconnect":
                self.reason = kwargs.pop("reason", "")
            self.calls.append((name, args, kwargs))

        return call

    def make_temporary(self, destination):
        wanted = self.fail.get("make_temporary")
        if wanted is not None:
            raise wanted
        return f"{destination[:8]}$temporary.T.{destination[8:]}"

    def take(self, *skip):
        """The calls since the last time as (name, arguments); keyword arguments as a dict at the end."""
        calls, self.calls = self.calls, []
        return [(n, *a, *((k,) if k else ())) for n, a, k in calls if n not in skip]


class FakeBroker:
    name, store_id, version = "gateway", "st0re", "9.9"
    large_bodies = None

    def socket_opened(self, size: int) -> bool:
        return True

    def socket_closed(self, size: int) -> None:
        pass

    def unauthenticated_holds(self, peer, size) -> None:
        pass

    def __init__(self):
        self.connection: Any = FakeConnection()
        self.requests: list[Any] = []
        self.error: Exception | None = None
        self.gate = Gate()

    def begin_authentication(self, method, request):
        return None  # STOMP has no challenge-response

    async def connect(self, request, peer):
        self.requests.append(request)
        await self.gate
        if self.error is not None:
            raise self.error
        return ConnectResult(self.connection)


class Harness:
    """One session and everything around it."""

    def __init__(self, options=None, allow_anonymous=True, *, loop=None, large_bodies=None):
        self.loop: Any = loop or FakeLoop()
        self.link = FakeLink()
        self.broker: Any = FakeBroker()
        self.broker.large_bodies = large_bodies
        self.ended: list[Session] = []
        self.connection = self.broker.connection
        context = SessionContext(
            broker=self.broker,
            options=options or StompOptions(),
            allow_anonymous=allow_anonymous,
            address=lambda: "stomp://127.0.0.1:61613",
            ended=self.ended.append,
        )
        self.session = Session(context, self.loop, self.link)
        self.version = Version.V1_2

    def connect(self, version="1.2", **headers):
        """Connect and throw the CONNECTED frame away (it is returned)."""
        self.version = Version(version)
        lines = "".join(f"{k.replace('_', '-')}:{v}\n" for k, v in headers.items())
        accept = "" if version == "1.0" else f"accept-version:{version}\n"
        self.feed(f"CONNECT\n{accept}{lines}\n\0")
        (frame,) = self.frames()
        self.connection.take()
        return frame

    def feed(self, data):
        """Bytes from the client, and a turn of the loop."""
        self.session.data_received(data.encode() if isinstance(data, str) else data)
        self.loop.turn()

    def frames(self):
        """The frames written since the last call (heart-beats are skipped)."""
        decoder = Decoder(commands=SERVER_COMMANDS)
        decoder.version = self.version
        decoder.receive_data(b"".join(self.link.written))
        self.link.written.clear()
        frames = list(decoder.events())
        assert decoder.buffered_bytes == 0
        return frames

    def error(self):
        """The one frame written, an ERROR, after which the link is closed and the broker told."""
        (frame,) = self.frames()
        assert isinstance(frame, Frame)
        assert frame.command == "ERROR"
        assert self.link.is_closing
        return frame

    def refusal(self, data):
        """What the ERROR says that *data* brings about."""
        self.feed(data)
        return self.error().headers["message"]

    def subscribe(self, key="1", destination="/queue/a", ack="client-individual", **headers):
        lines = "".join(f"{k}:{v}\n" for k, v in headers.items())
        self.feed(f"SUBSCRIBE\nid:{key}\ndestination:{destination}\nack:{ack}\n{lines}\n\0")
        return self.connection.take()

    def deliver(self, key, *sequences, delivery_count=0):
        """Messages from the broker; returns the MESSAGE frames."""
        message = Message("queue://a", b"hi", (), 1_000_000)
        self.session.deliver(key, [StoredMessage.of(s, message, delivery_count) for s in sequences])
        return self.frames()


@pytest.fixture(scope="session")
def make_harness():
    return Harness


@pytest.fixture
def harness():
    return Harness()


@pytest.fixture
def loop():
    return FakeLoop()
