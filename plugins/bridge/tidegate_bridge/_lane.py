"""One rule in the gateway: a client of the broker, publishing what comes in or consuming what goes out.

*In.* A message that the process brings is published with the id that the other broker gave it, and the process is told
when it is durable: only then does it acknowledge there. When one fails, nothing that came behind it is published
either, and the attempt is over: the other broker gives all of it again, in order.

*Out.* What is consumed stays in flight here until the process says that the other broker has confirmed it. When the other
broker goes away, what is in flight waits for it, and is sent again in order: nothing is counted as a failed delivery.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Final

import msgspec

from tidegate.spi import (
    Broker,
    BrokerConnection,
    ClientPeer,
    ClientRules,
    ConnectRequest,
    GatewayError,
    Message,
    Principal,
    StoredMessage,
    SubscribeRequest,
    names,
)
from tidegate.spi.events import Event
from tidegate.spi.operate import BridgeRow
from tidegate_bridge import _protocol as protocol
from tidegate_bridge._options import BridgeOptions, Direction, RuleOptions

_log = logging.getLogger("tidegate.bridge")

PROTOCOL: Final = "bridge"
_KEY: Final = "out"
_RULES: Final = ClientRules()
_LARGE_READ_BYTES: Final = 256 << 10
#: Messages dealt with before others have their turn.
_AT_ONCE: Final = 32
_REMEDY: Final = "see the gateway's log, and what its access control says of the bridge's principal"


class Lane(ABC):
    """One rule. Args: tell, drain: to the process; the others as in the options. On the event loop.

    Attributes:
        server: what the other broker says that it is; "" while it is not connected.
        problem, remedy: of the last attempt that ended; moved, moved_bytes, looped: since the start.
        last_at: when something was confirmed last, microseconds since the Unix epoch; 0: never.
    """

    def __init__(
        self,
        number: int,
        options: BridgeOptions,
        rule: RuleOptions,
        broker: Broker,
        tell: Callable[[protocol.FromGateway], None],
    ) -> None:
        self.rule = rule
        self.number = number
        self.epoch = 0
        self.server: str = ""
        self.problem: str = ""
        self.remedy: str = ""
        self.moved = 0
        self.moved_bytes = 0
        self.looped = 0
        self.last_at = 0
        self._options = options
        self._broker = broker
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    @abstractmethod
    def on_the_way(self) -> tuple[int, int]:
        """Messages that are taken from their source and not confirmed at their target, and bytes of their bodies."""

    def row(self) -> BridgeRow:
        """How it is, for operators."""
        rule, (count, size) = self.rule, self.on_the_way
        is_in = rule.direction is Direction.IN
        return BridgeRow(
            bridge=self._options.name,
            rule=rule.name,
            direction=rule.direction.value,
            remote=self._options.remote,
            source=rule.remote if is_in else rule.local,
            target=rule.local if is_in else rule.remote,
            server=self.server,
            moved=self.moved,
            moved_bytes=self.moved_bytes,
            on_the_way=count,
            on_the_way_bytes=size,
            looped=self.looped,
            last_at=self.last_at,
            problem=self.problem,
            remedy=self.remedy,
        )

    def heard(self, told: protocol.FromProcess) -> None:
        """The process says something about this rule."""
        if isinstance(told, protocol.Ready):
            self._broker.tell(
                Event.BRIDGE_CONNECTED,
                _log,
                "bridge=%s rule=%s server=%r connected",
                self._options.name,
                self.rule.name,
                told.server,
            )
            self.epoch, self.server = told.epoch, told.server or "?"
            self._ready()
        elif told.epoch == self.epoch or isinstance(told, protocol.Lost):
            self._heard(told)

    def _heard(self, told: protocol.FromProcess) -> None:
        if isinstance(told, protocol.Lost):
            self.lost(told.problem, told.remedy, told.again_s)

    @abstractmethod
    def _ready(self) -> None:
        """The other broker is connected."""

    def lost(self, problem: str, remedy: str, again_s: float) -> None:
        """The other broker is not connected, or not any more."""
        again = problem == self.problem and not self.server
        self.server, self.problem, self.remedy = "", problem, remedy
        text = "bridge=%s rule=%s problem=%r remedy=%r again_s=%.1f"
        values = (self._options.name, self.rule.name, problem, remedy, again_s)
        if again:
            _log.debug(text, *values)
        else:
            self._broker.tell(Event.BRIDGE_LOST, _log, text, *values)

    async def end(self) -> None:
        """Let go of everything; what is not confirmed stays at its source."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, name: str, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(
            work, name=f"bridge {self._options.name} {self.rule.name} {name}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, peer: ClientPeer) -> BrokerConnection:
        """Raises: GatewayError."""
        options = self._options
        result = await self._broker.connect(
            ConnectRequest(
                protocol=PROTOCOL,
                version="1",
                client_id=f"{options.name}/{self.rule.name}",
                peer="127.0.0.1:0",
                listener=f"bridge://{options.name}",
                username=options.principal,
                tls_principal=Principal(options.principal),
                rules=_RULES,
            ),
            peer,
        )
        result.connection.resume()
        return result.connection

    def _fail(self, error: GatewayError) -> None:
        """This attempt is over, because of the gateway."""
        self._tell(protocol.Stop(self.number, self.epoch, f"the gateway says: {error}", _REMEDY))

    def _has_moved(self, count: int, size: int) -> None:
        self.moved += count
        self.moved_bytes += size
        self.last_at = time.time_ns() // 1000


class _Publisher:
    """A :class:`tidegate.spi.ClientPeer`: one attempt of a rule that brings in."""

    has_unsent = False

    def __init__(self, lane: InLane, epoch: int) -> None:
        self.epoch = epoch
        self.is_over = False
        self.is_throttled = False
        self.wake = asyncio.Event()
        self.waiting: deque[protocol.Bring] = deque()
        self.sizes: dict[int, int] = {}
        self._lane = lane

    def confirmed(self, tokens: Sequence[object]) -> None:
        if not self.is_over:
            self._lane.confirmed(self, [token for token in tokens if isinstance(token, int)])

    def failed(self, token: object, error: GatewayError) -> None:
        self._lane.failed(self, error)

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        raise AssertionError("it subscribes to nothing")

    def throttle(self, paused: bool, *, at_once: bool = False) -> None:
        self.is_throttled = paused
        self.wake.set()

    def closed(self, error: GatewayError) -> None:
        self._lane.failed(self, error)


class InLane(Lane):
    """Brings in."""

    _publisher: _Publisher | None = None

    @property
    def on_the_way(self) -> tuple[int, int]:
        found = self._publisher
        return (0, 0) if found is None else (len(found.sizes), sum(found.sizes.values()))

    def _ready(self) -> None:
        self._give_up()
        publisher = self._publisher = _Publisher(self, self.epoch)
        self._spawn("publish", self._publish(publisher))

    def lost(self, problem: str, remedy: str, again_s: float) -> None:
        self._give_up()
        super().lost(problem, remedy, again_s)

    def _give_up(self) -> None:
        if self._publisher is not None:
            self._publisher.is_over = True
            self._publisher.wake.set()
            self._publisher = None

    def _heard(self, told: protocol.FromProcess) -> None:
        publisher = self._publisher
        if isinstance(told, protocol.Bring):
            if publisher is not None and publisher.epoch == told.epoch:
                publisher.sizes[told.number] = len(told.message.body)
                publisher.waiting.append(told)
                publisher.wake.set()
        elif isinstance(told, protocol.Done):
            self.looped += told.looped
        else:
            super()._heard(told)

    async def _publish(self, publisher: _Publisher) -> None:
        connection: BrokerConnection | None = None
        try:
            connection = await self._connect(publisher)
            await self._publish_all(publisher, connection)
        except GatewayError as error:
            self.failed(publisher, error)
        finally:
            publisher.is_over = True
            if connection is not None:
                connection.disconnect(graceful=True)

    async def _publish_all(self, publisher: _Publisher, connection: BrokerConnection) -> None:
        done = 0
        while not publisher.is_over:
            if not publisher.waiting or publisher.is_throttled:
                publisher.wake.clear()
                await publisher.wake.wait()
                continue
            item = publisher.waiting.popleft()
            message = item.message
            large = self._broker.large_bodies
            if large is not None and len(message.body) >= large.size_min:
                connection.check_publish(message.destination)
                writer = large.create(len(message.body))
                handle = await writer.finish(message.body)
                if publisher.is_over:
                    return
                message = msgspec.structs.replace(message, body=b"", large=handle)
            message = msgspec.structs.replace(message, client_id=self._options.name)
            connection.publish(message, item.number, duplicate_id=item.duplicate_id)
            done += 1
            if not done % _AT_ONCE:
                await asyncio.sleep(0)

    def confirmed(self, publisher: _Publisher, numbers: list[int]) -> None:
        """They are durable."""
        size = sum(publisher.sizes.pop(number, 0) for number in numbers)
        self._has_moved(len(numbers), size)
        self._tell(protocol.Done(self.number, publisher.epoch, numbers))

    def failed(self, publisher: _Publisher, error: GatewayError) -> None:
        """One was not published, or the connection has ended: all behind it comes again."""
        if publisher.is_over:
            return
        publisher.is_over = True
        publisher.wake.set()
        self._fail(error)


class _Consumer:
    """A :class:`tidegate.spi.ClientPeer`: the connection of a rule that takes out."""

    def __init__(self, lane: OutLane) -> None:
        self._lane = lane

    @property
    def has_unsent(self) -> bool:
        return self._lane.has_queued

    def confirmed(self, tokens: Sequence[object]) -> None:
        """Of nothing does it ask to be told."""

    def failed(self, token: object, error: GatewayError) -> None:
        self._lane.failed(self, error)

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        self._lane.delivered(self, messages)

    def throttle(self, paused: bool, *, at_once: bool = False) -> None:
        """It publishes nothing."""

    def closed(self, error: GatewayError) -> None:
        self._lane.failed(self, error)


class OutLane(Lane):
    """Takes out."""

    def __init__(
        self,
        number: int,
        options: BridgeOptions,
        rule: RuleOptions,
        broker: Broker,
        tell: Callable[[protocol.FromGateway], None],
        drain: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(number, options, rule, broker, tell)
        self._drain = drain
        self._in_flight: dict[int, Message] = {}
        self._queue: deque[int] = deque()
        self._wake = asyncio.Event()
        self._consumer: _Consumer | None = None
        self._connection: BrokerConnection | None = None

    @property
    def has_queued(self) -> bool:
        return bool(self._queue)

    @property
    def on_the_way(self) -> tuple[int, int]:
        return len(self._in_flight), sum(map(_size, self._in_flight.values()))

    def _ready(self) -> None:
        # What the attempt before has sent may or may not have arrived: all of it again, in order.
        self._queue = deque(sorted(self._in_flight))
        self._wake.set()
        if self._consumer is None:
            self._consumer = _Consumer(self)
            self._spawn("consume", self._consume(self._consumer))

    async def _consume(self, consumer: _Consumer) -> None:
        rule, options = self.rule, self._options
        try:
            connection = await self._connect(consumer)
            if self._consumer is not consumer:
                connection.disconnect(graceful=True)
                return
            self._connection = connection
            connection.subscribe(
                SubscribeRequest(
                    key=_KEY,
                    destination=rule.local,
                    # Of a topic everything is kept while the bridge is away, from the first time on.
                    durable_name=rule.name if names.is_topic(rule.local) else "",
                    prefetch_count=options.window,
                    prefetch_bytes=options.window_bytes,
                    selector=rule.selector,
                )
            )
            connection.writable(True)
        except GatewayError as error:
            self.failed(consumer, error)
            return
        await self._pump(consumer)

    def delivered(self, consumer: _Consumer, messages: Sequence[StoredMessage]) -> None:
        """They are in flight from here on."""
        if consumer is not self._consumer:
            return
        for stored in messages:
            self._in_flight[stored.sequence] = stored.message
            self._queue.append(stored.sequence)
        self._wake.set()

    async def _pump(self, consumer: _Consumer) -> None:
        done = 0
        while self._consumer is consumer:
            if not self._queue or not self.server:
                self._wake.clear()
                await self._wake.wait()
                continue
            epoch, number = self.epoch, self._queue.popleft()
            message = self._in_flight.get(number)
            if message is None:
                continue
            if message.large is not None:
                try:
                    message = await self._whole(message)
                except GatewayError as error:
                    self.failed(consumer, error)
                    return
                if epoch != self.epoch:
                    continue  # it is in the queue again
            self._tell(protocol.Take(self.number, epoch, number, message))
            done += 1
            if not done % _AT_ONCE:
                await self._drain()
                await asyncio.sleep(0)

    async def _whole(self, message: Message) -> Message:
        """With its body, so far as the limit allows; the process refuses what is longer. Raises: GatewayError."""
        assert message.large is not None
        bodies = self._broker.large_bodies
        assert bodies is not None
        pieces: list[bytes] = []
        size, reader = 0, bodies.open(message.large)
        try:
            while size <= self._options.message_limit and (
                piece := await reader.read(_LARGE_READ_BYTES)
            ):
                pieces.append(piece)
                size += len(piece)
        finally:
            reader.close()
        return msgspec.structs.replace(message, body=b"".join(pieces), large=None)

    def _heard(self, told: protocol.FromProcess) -> None:
        if isinstance(told, protocol.Done):
            self._acknowledge(told)
        else:
            super()._heard(told)

    def _acknowledge(self, told: protocol.Done) -> None:
        found = [(number, self._in_flight.pop(number, None)) for number in told.numbers]
        here = [(number, message) for number, message in found if message is not None]
        self.looped += told.looped
        self._has_moved(len(here) - told.looped, sum(_size(message) for _, message in here))
        if self._connection is not None and here:
            try:
                self._connection.acknowledge(_KEY, [number for number, _ in here])
            except GatewayError as error:
                if self._consumer is not None:
                    self.failed(self._consumer, error)

    def failed(self, consumer: _Consumer, error: GatewayError) -> None:
        """The connection here has ended: what was in flight is in its place again."""
        if consumer is not self._consumer:
            return
        self._let_go()
        self._fail(error)

    def _let_go(self) -> None:
        connection, self._connection, self._consumer = self._connection, None, None
        self._in_flight.clear()
        self._queue.clear()
        self._wake.set()
        if connection is not None:
            connection.disconnect(graceful=True)

    async def end(self) -> None:
        await super().end()
        self._let_go()


def _size(message: Message) -> int:
    return len(message.body) if message.large is None else message.large.size


def lane_of(
    number: int,
    options: BridgeOptions,
    broker: Broker,
    tell: Callable[[protocol.FromGateway], None],
    drain: Callable[[], Awaitable[None]],
) -> Lane:
    """The lane of a rule, by its direction."""
    rule = options.rules[number]
    if rule.direction is Direction.IN:
        return InLane(number, options, rule, broker, tell)
    return OutLane(number, options, rule, broker, tell, drain)
