"""Fakes on both sides of an MQTT session: its link and clock, and the broker."""

import dataclasses
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

import pytest

from tidegate.spi import ConnectResult, GatewayError, Message, StoredMessage
from tidegate_protocols.mqtt import Codec, Connack, Connect, MqttOptions, Packet, encode
from tidegate_protocols.mqtt._session import Session, SessionContext


class FakeLink:
    """Records what is written. Closing reports back when the test says so, as a socket does."""

    peer, subprotocol, tls_subject = "192.0.2.1:5000", "", ""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_closing = False
        self.is_aborted = False
        self.is_reading = True

    def send(self, data: bytes) -> None:
        if not self.is_closing:
            self.sent.append(data)

    def flush(self) -> None: ...

    def close(self) -> None:
        self.is_closing = True

    def abort(self) -> None:
        self.is_closing = self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class FakeTimer:
    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeTask:
    """Drives one coroutine step by step."""

    def __init__(self, coroutine: Coroutine[Any, None, None]) -> None:
        self.coroutine = coroutine
        self.is_done = False
        self.is_cancelled = False
        self.step()

    def step(self) -> None:
        if not self.is_done:
            try:
                self.coroutine.send(None)
            except StopIteration:
                self.is_done = True

    def cancel(self) -> None:
        if not self.is_done:
            self.is_done = self.is_cancelled = True
            self.coroutine.close()


class FakeRuntime:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[FakeTimer] = []
        self.tasks: list[FakeTask] = []

    def time(self) -> float:
        return self.now

    def now_us(self) -> int:
        return round(self.now * 1_000_000)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self.now + delay_s, callback)
        self.timers.append(timer)
        return timer

    def spawn(self, coroutine: Coroutine[Any, None, None]) -> FakeTask:
        task = FakeTask(coroutine)
        self.tasks.append(task)
        return task

    def advance(self, seconds: float) -> None:
        """Move the clock, calling each timer at its own time."""
        end = self.now + seconds
        while due := [t for t in self.timers if not t.is_cancelled and t.due <= end]:
            timer = min(due, key=lambda timer: timer.due)
            self.timers.remove(timer)
            self.now = max(self.now, timer.due)
            timer.callback()
        self.now = end

    @property
    def pending_timers(self) -> int:
        return sum(not timer.is_cancelled for timer in self.timers)


class FakeConnection:
    """Records every call by name; tokens wait until the test says "durable"."""

    principal = "anonymous"

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.tokens: list[object] = []
        self.errors: dict[str, GatewayError] = {}
        self.on_call: Callable[[str], None] = lambda _name: None

    def _call(self, name: str, details: Any, token: object = None) -> None:
        if name in self.errors:
            raise self.errors[name]
        self.calls.append((name, details))
        if token is not None:
            self.tokens.append(token)
        self.on_call(name)

    def take(self, name: str) -> list[Any]:
        """What was said in calls of *name* since the last time."""
        found = [details for called, details in self.calls if called == name]
        self.calls = [call for call in self.calls if call[0] != name]
        return found

    def resume(self) -> None:
        self._call("resume", None)

    def publish(
        self, message: Message, token: Any = None, transaction: Any = None, inflight: Any = None
    ) -> None:
        self._call("publish", (message, inflight), token)

    def subscribe(self, request: Any, token: Any = None) -> bool:
        self._call("subscribe", request, token)
        return False

    def unsubscribe(self, key: str, token: Any = None, *, forget: bool = False) -> bool:
        self._call("unsubscribe", (key, forget), token)
        return True

    def acknowledge(
        self,
        key: str,
        sequences: Sequence[int],
        token: Any = None,
        transaction: Any = None,
        inflight: Any = None,
    ) -> None:
        self._call("acknowledge", (key, list(sequences), inflight), token)

    def reject(
        self, key: str, sequences: Sequence[int], token: Any = None, transaction: Any = None
    ) -> None:
        self._call("reject", (key, list(sequences)), token)

    def record_inflight(self, put: Any = (), remove: Any = (), token: Any = None) -> None:
        self._call("record_inflight", (list(put), list(remove)), token)

    def synchronize(self, token: Any) -> None:
        self._call("synchronize", None, token)

    def writable(self, value: bool) -> None:
        self._call("writable", value)

    def disconnect(self, *, graceful: bool, detached: Any = (), publish_will: bool = False) -> None:
        self._call("disconnect", (graceful, list(detached)))

    def make_temporary(self, destination: str) -> str:
        raise AssertionError("MQTT has no temporary destinations of its own")

    def begin(self, transaction: str) -> None:
        raise AssertionError("MQTT has no transactions")

    def commit(self, transaction: str, token: Any = None) -> None:
        raise AssertionError("MQTT has no transactions")

    def abort(self, transaction: str, token: Any = None) -> None:
        raise AssertionError("MQTT has no transactions")


class Pause:
    """Awaiting it lets the task wait once."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class FakeBroker:
    name = "test"
    store_id = "store"
    version = "0"

    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.requests: list[Any] = []
        self.error: Exception | None = None
        self.is_slow = False
        self.session_present = False
        self.subscriptions: list[Any] = []
        self.inflight: list[Any] = []

    async def connect(self, request: Any, peer: Any) -> ConnectResult:
        self.requests.append(request)
        if self.is_slow:
            await Pause()
        if self.error is not None:
            raise self.error
        return ConnectResult(
            self.connection, self.session_present, self.subscriptions, self.inflight
        )


@dataclasses.dataclass
class Client:
    """A client at the other end of a session's link."""

    session: Session
    link: FakeLink
    runtime: FakeRuntime
    broker: FakeBroker
    codec: Codec = dataclasses.field(default_factory=lambda: Codec(1 << 28))

    @property
    def connection(self) -> FakeConnection:
        return self.broker.connection

    def sends(self, *packets: Packet | bytes) -> None:
        """The client sends these, in one piece."""
        wire = b"".join(p if isinstance(p, bytes) else encode(p) for p in packets)
        self.session.data_received(wire)

    def gets(self) -> list[Packet]:
        """What the client received since the last time."""
        for data in self.link.sent:
            self.codec.receive_data(data)
        self.link.sent.clear()
        return self.codec.events()

    def durable(self) -> None:
        """The broker made everything durable and says so."""
        tokens, self.connection.tokens = self.connection.tokens, []
        if tokens:
            self.session.confirmed(tokens)

    def connects(self, packet: Connect | None = None, **values: Any) -> Connack:
        """The client connects and is answered."""
        values.setdefault("client_id", "dev")
        self.sends(packet or Connect(**values))
        (answer,) = self.gets()
        assert isinstance(answer, Connack)
        return answer

    def hangs_up(self) -> None:
        """The socket is gone."""
        self.link.is_closing = True
        self.session.link_closed(None)


@pytest.fixture
def make_client() -> Callable[..., Client]:
    """``make_client(broker=…, runtime=…, **options)``: a client whose link is open."""

    def make(
        broker: FakeBroker | None = None,
        runtime: FakeRuntime | None = None,
        allow_anonymous: bool = True,
        **options: Any,
    ) -> Client:
        broker = broker or FakeBroker()
        runtime = runtime or FakeRuntime()
        link = FakeLink()
        context = SessionContext(
            broker, MqttOptions(**options), runtime, allow_anonymous, "mqtt://127.0.0.1:1883"
        )
        return Client(Session(context, link), link, runtime, broker)

    return make


@pytest.fixture
def client(make_client: Callable[..., Client]) -> Client:
    """A client that is connected with a clean session as ``dev``."""
    made = make_client()
    assert made.connects() == Connack(False, 0)
    return made


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


@pytest.fixture
def stored() -> Callable[..., StoredMessage]:
    """``stored(sequence, topic, body, qos=…)``: a message as the broker delivers it."""

    def make(
        sequence: int,
        destination: str = "topic://a",
        body: bytes = b"x",
        *,
        qos: int = 2,
        retain: bool = False,
        delivery_count: int = 0,
    ) -> StoredMessage:
        message = Message(destination, body, qos=qos, retain=retain)
        return StoredMessage(sequence, message, delivery_count)

    return make
