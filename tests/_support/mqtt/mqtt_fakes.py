"""Both sides of an MQTT session, faked: its link and clock with the client at their other end, and the broker."""

import dataclasses
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any

from tidegate.spi import (
    AccessError,
    AuthenticationExchange,
    Branch,
    BranchId,
    ConnectResult,
    GatewayError,
    Held,
    Message,
    Principal,
)
from tidegate.spi.events import log_only
from tidegate_protocols.mqtt import (
    Codec,
    Connack,
    Connect,
    Packet,
    Publish,
    encode,
)
from tidegate_protocols.mqtt._answers import PACKET_BYTES_MAX, Answers
from tidegate_protocols.mqtt.codec.packets import Event
from tidegate_protocols.mqtt.messages.fan_out import FanOut
from tidegate_protocols.mqtt.messages.outgoing import Outgoing
from tidegate_protocols.mqtt.messages.subscriptions import SubscriptionIdentifiers
from tidegate_protocols.mqtt.messages.window import OutgoingSubscription, Window
from tidegate_protocols.mqtt.session.session import Session


class FakeLink:
    """Records what is written. Closing reports back when the test says so, as a socket does."""

    peer, subprotocol = "192.0.2.1:5000", ""
    unsent_bytes = 0

    def __init__(self, tls_subject: str = "") -> None:
        self.tls_subject = tls_subject
        self.tls_principal: Principal | None = None
        self.sent: list[bytes] = []
        self.flushed: list[int] = []  # packets that had been sent each time
        self.is_closing = False
        self.is_aborted = False
        self.is_reading = True

    def send(self, data: bytes) -> None:
        if not self.is_closing:
            self.sent.append(data)

    def send_piece(self, data, *, last):
        self.send(data)

    def flush(self) -> None:
        self.flushed.append(len(self.sent))

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
    meter = None

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.tokens: list[object] = []
        self.errors: dict[str, GatewayError] = {}
        self.has_subscribers = True
        self.held: dict[Held, int] = {}
        self.duplicate_ids: list[str] = []
        self.unanswered: dict[str, Sequence[int]] = {}
        self.on_call: Callable[[str], None] = lambda _name: None

    @property
    def has_unconfirmed(self) -> bool:
        return bool(self.tokens)

    def authenticated_again(self, exchange: AuthenticationExchange) -> None:
        assert exchange.principal is not None
        if exchange.principal.name != self.principal:
            raise AccessError("somebody else")
        self._call("authenticated_again", exchange.principal)

    def may_take(self, destination: str) -> bool:
        return True

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

    def prepare(self, transaction: str, branch_id: BranchId, token: Any = None) -> None:
        raise NotImplementedError("MQTT has no transactions")

    def commit_branch(self, branch_id: BranchId, token: Any = None) -> None:
        raise NotImplementedError("MQTT has no transactions")

    def roll_back_branch(self, branch_id: BranchId, token: Any = None) -> None:
        raise NotImplementedError("MQTT has no transactions")

    def forget_branch(self, branch_id: BranchId, token: Any = None) -> None:
        raise NotImplementedError("MQTT has no transactions")

    def branches(self) -> Sequence[Branch]:
        return ()

    def resume(self) -> None:
        self._call("resume", None)

    def publish(
        self,
        message: Message,
        token: Any = None,
        transaction: Any = None,
        inflight: Any = None,
        duplicate_id: str = "",
    ) -> bool:
        self._call("publish", (message, inflight), token)
        self.duplicate_ids.append(duplicate_id)
        return self.has_subscribers

    def check_publish(self, destination: str) -> None:
        self._call("check_publish", destination)

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

    def refuse(self, key: str, sequences: Any, reason: str) -> None:
        self._call("refuse", (key, list(sequences), reason))

    def record_inflight(self, put: Any = (), remove: Any = (), token: Any = None) -> None:
        self._call("record_inflight", (list(put), list(remove)), token)

    def synchronize(self, token: Any) -> None:
        self._call("synchronize", None, token)

    def holds(self, kind: Held, size: int) -> None:
        self.held[kind] = size

    def writable(self, value: bool) -> None:
        self._call("writable", value)

    def disconnect(
        self,
        *,
        graceful: bool,
        publish_will: bool = False,
        session_expiry: int | None = None,
        unanswered: Mapping[str, Sequence[int]] = {},
        reason: str = "",
    ) -> None:
        self.unanswered, self.left_for = dict(unanswered), reason
        self._call("disconnect", (graceful, publish_will, session_expiry))

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


class FakeExchange:
    """Asks one question: ``user`` → ``who`` → ``NAME``; any name but ``nobody`` is let in."""

    def __init__(self) -> None:
        self.principal: Principal | None = None
        self.claimed = ""
        self.is_slow = False

    async def step(self, data: bytes) -> bytes:
        if self.is_slow:
            await Pause()
        if data == b"user":
            return b"who"
        if data == b"nobody":
            raise AccessError("nobody is not let in")
        if data == b"bug":
            raise ZeroDivisionError("bug")
        self.principal = Principal(data.decode())
        return b"welcome"


class FakeBroker:
    name = "test"
    store_id = "store"
    version = "0"
    large_bodies = None
    tell = staticmethod(log_only)

    def socket_opened(self, size: int) -> bool:
        return True

    def socket_closed(self, size: int) -> None:
        pass

    def unauthenticated_holds(self, peer, size) -> None:
        pass

    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.requests: list[Any] = []
        self.error: Exception | None = None
        self.is_slow = False
        self.session_present = False
        self.subscriptions: list[Any] = []
        self.inflight: list[Any] = []
        self.exchanges: list[FakeExchange] = []
        self.begin_error: GatewayError | None = None

    def begin_authentication(self, method: str, request: Any) -> FakeExchange | None:
        if self.begin_error is not None:
            raise self.begin_error
        if method != "PUZZLE":
            return None
        self.exchanges.append(FakeExchange())
        return self.exchanges[-1]

    async def connect(self, request: Any, peer: Any) -> ConnectResult:
        self.requests.append(request)
        if self.is_slow:
            await Pause()
        if self.error is not None:
            raise self.error
        return ConnectResult(
            self.connection,
            self.session_present,
            self.subscriptions,
            self.inflight,
            request.client_id,  # as good a key as any
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
        wire = b""
        for packet in packets:
            if isinstance(packet, Connect):
                self.codec.level = packet.level
            if not isinstance(packet, bytes):
                packet = encode(packet, self.codec.level)
            wire += packet
        self.session.data_received(wire)

    def gets(self) -> list[Event]:
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


class Side:
    """The sending side of a session: what it sent, and what it asked the broker for."""

    def __init__(
        self,
        connection: FakeConnection,
        *,
        level: int = 4,
        is_persistent: bool = False,
        size: int = 10,
        packet_bytes_max: int = PACKET_BYTES_MAX,
        topic_alias_max: int = 0,
        fan_out: FanOut | None = None,
    ) -> None:
        self.connection = connection
        self.sent: list[bytes] = []
        self.now_us = 1_000_000_000
        self.by_key: dict[str, OutgoingSubscription] = {}
        self.identifiers = SubscriptionIdentifiers(self.by_key)
        self.is_persistent = is_persistent
        self.window = Window(
            connection,
            self.sent.append,
            Answers(level, packet_bytes_max),
            "dev",
            session="dev",
            is_persistent=is_persistent,
            size=size,
        )
        self.outgoing = Outgoing(
            connection,
            self.sent.append,
            self.window,
            lambda: self.now_us,
            "dev",
            identifiers=self.identifiers if level == 5 else None,
            packet_bytes_max=packet_bytes_max,
            topic_alias_max=topic_alias_max,
            fan_out=FanOut() if fan_out is None else fan_out,
        )
        self.codec = Codec(1 << 28, level)

    def subscribed(
        self, key: str = "a", qos: int = 2, *, is_own: bool = True, **values: Any
    ) -> OutgoingSubscription:
        """A subscription that the session has."""
        stored = self.is_persistent
        values.setdefault("filter_name", key)
        made = OutgoingSubscription(key, qos, is_own=is_own, is_stored=stored, **values)
        self.by_key[key] = made
        self.identifiers.changed()
        return made

    def gets(self) -> list[Any]:
        """What the client received since the last time."""
        for data in self.sent:
            self.codec.receive_data(data)
        self.sent.clear()
        return self.codec.events()

    def bodies(self) -> list[bytes]:
        """The bodies of the messages that the client received."""
        return [packet.body for packet in self.gets() if isinstance(packet, Publish)]

    def durable(self) -> None:
        """The broker made everything durable, so what waited for it leaves."""
        tokens, self.connection.tokens = self.connection.tokens, []
        self.outgoing.confirmed(tokens)
        self.sent += [token for token in tokens if isinstance(token, bytes)]
