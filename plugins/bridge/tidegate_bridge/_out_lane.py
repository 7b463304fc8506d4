"""An outgoing rule.

What is consumed stays in flight here until the process reports that the other broker has confirmed
it. When the other broker goes away, what is in flight waits and is sent again in order; none of it
counts as a failed delivery.

Resending starts with one message, then two, then four, as they are confirmed. A broker that closes
the connection over one message may not say which, and would get, and perhaps keep, everything after
it on each attempt. This way the bad message is soon isolated and known.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tidegate.spi import (
    Broker,
    BrokerConnection,
    GatewayError,
    LargeBodies,
    LargeBody,
    Message,
    StoredMessage,
    SubscribeRequest,
    body_bytes,
    names,
)
from tidegate.spi.events import Event
from tidegate_bridge import _protocol as protocol
from tidegate_bridge._in_flight import InFlight
from tidegate_bridge._lane import AT_ONCE, Lane
from tidegate_bridge._options import BridgeOptions, RuleOptions
from tidegate_bridge._parking import parked, parking_queue

_KEY: Final = "out"
_LARGE_READ_BYTES: Final = 256 << 10
#: The transaction in which a message is put aside.
_PARKING: Final = "park"

_log = logging.getLogger("tidegate.bridge")


@dataclass(frozen=True, slots=True)
class _Parked:
    """A token: once confirmed, this message is put aside."""

    number: int
    queue: str
    reason: str


class Consuming:
    """A :class:`tidegate.spi.ClientPeer`: the connection of an outgoing rule."""

    def __init__(self, lane: OutLane) -> None:
        self._lane = lane

    @property
    def has_unsent(self) -> bool:
        return self._lane.has_queued

    def confirmed(self, tokens: Sequence[object]) -> None:
        self._lane.confirmed(tokens)

    def failed(self, token: object, error: GatewayError) -> None:
        self._lane.failed(self, error)

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        self._lane.delivered(self, key, messages)

    def throttle(self, paused: bool, *, at_once: bool = False) -> None:
        """It publishes nothing."""

    def closed(self, error: GatewayError) -> None:
        self._lane.failed(self, error)


class OutLane(Lane):
    """An outgoing rule."""

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
        self._in_flight = InFlight()
        self._aside = InFlight()  # being put aside
        self._queue: deque[int] = deque()
        self._sent: set[int] = set()  # in this attempt, not yet confirmed
        self._again_to = 0  # messages up to this one are being resent
        self._again_at_once = 1
        self._wake = asyncio.Event()
        self._consumer: Consuming | None = None
        self._connection: BrokerConnection | None = None

    @property
    def has_queued(self) -> bool:
        return bool(self._queue)

    @property
    def on_the_way(self) -> tuple[int, int]:
        going, aside = self._in_flight, self._aside
        return len(going) + len(aside), going.size + aside.size

    def _ready(self) -> None:
        # What the last attempt sent may or may not have arrived: resend all of it, in order.
        self._queue = deque(sorted(self._in_flight))
        self._sent.clear()
        self._again_to, self._again_at_once = max(self._in_flight, default=0), 1
        suspect = self.suspect
        if suspect.number not in self._in_flight:
            suspect.forget()
        elif suspect.begin(has_others=len(self._queue) > 1):
            self._queue.remove(suspect.number)
        self._wake.set()
        if self._consumer is None:
            self._consumer = Consuming(self)
            self._spawn("consume", self._consume(self._consumer))
        elif self._connection is not None:
            self._flows()

    async def _consume(self, consumer: Consuming) -> None:
        try:
            connection = await self._connect(consumer)
            if self._consumer is not consumer:
                connection.disconnect(graceful=True)
                return
            self._connection = connection
            self._subscribe(connection)
            connection.writable(True)
            self._flows()
        except GatewayError as error:
            self.failed(consumer, error)
            return
        await self._pump(consumer)

    def _subscribe(self, connection: BrokerConnection) -> None:
        """Subscribe to all its sources. Raises: GatewayError."""
        rule = self.rule
        # Durable for a topic: once subscribed, everything is kept while the bridge is away.
        durable_name = rule.name if names.is_topic(rule.local) else ""
        self._subscribe_to(connection, _KEY, rule.local, durable_name)

    def _subscribe_to(
        self, connection: BrokerConnection, key: str, destination: str, durable_name: str = ""
    ) -> None:
        """Raises: GatewayError."""
        connection.subscribe(
            SubscribeRequest(
                key=key,
                destination=destination,
                durable_name=durable_name,
                prefetch_count=self._options.window,
                prefetch_bytes=self._options.window_bytes,
                selector=self.rule.selector,
            )
        )

    def _target(self, key: str) -> str:
        """Where messages of *key* go at the other broker; "" for the rule's target."""
        return ""

    def _settled_some(self) -> None:
        """Less is in flight than before."""
        self._settled.set()

    @property
    def is_settled(self) -> bool:
        # What was sent to the process may be at the other broker; what is queued here is not.
        return not self._aside and not self._sent

    def delivered(self, consumer: Consuming, key: str, messages: Sequence[StoredMessage]) -> None:
        """*messages* are in flight from here on."""
        if consumer is not self._consumer:
            return
        for stored in messages:
            self._in_flight.add(stored.sequence, key, stored.message)
            self._queue.append(stored.sequence)
        self._wake.set()

    @property
    def _waits(self) -> bool:
        """Whether it must wait for resent messages to be confirmed."""
        return self._queue[0] <= self._again_to and len(self._sent) >= self._again_at_once

    async def _pump(self, consumer: Consuming) -> None:
        done = 0
        while self._consumer is consumer:
            if not self._queue or not self._there or self._is_over or self._waits:
                self._wake.clear()
                await self._wake.wait()
                continue
            epoch, number = self.epoch, self._queue.popleft()
            found = self._in_flight.get(number)
            if found is None:
                continue
            key, message = found
            if message.large is not None:
                try:
                    message = await self._whole(message)
                except GatewayError as error:
                    self.failed(consumer, error)
                    return
                if epoch != self.epoch:
                    continue  # it is in the queue again
            if self._is_over:  # it ended while the body was read
                self._queue.append(number)
                self._settled_some()
                continue
            self._sent.add(number)
            self._tell(protocol.Take(self.number, epoch, number, message, self._target(key)))
            done += 1
            if not done % AT_ONCE:
                await self._drain()
                await asyncio.sleep(0)

    async def _whole(self, message: Message) -> Message:
        """*message* with its body, up to the process's limit. Raises: GatewayError."""
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
            if self.suspect.is_held and len(told.numbers) > told.looped:
                self._park()
        else:
            if isinstance(told, protocol.Lost):
                # Named by the other broker, or the only candidate.
                refused = told.refused or (next(iter(self._sent)) if len(self._sent) == 1 else 0)
                if refused in self._in_flight:
                    self.suspect.refused(refused, told.problem)
            super()._heard(told)

    def lost(self, problem: str, remedy: str, again_s: float) -> None:
        self._sent.clear()
        super().lost(problem, remedy, again_s)

    def _acknowledge(self, told: protocol.Done) -> None:
        by_key: dict[str, list[int]] = {}
        count = size = 0
        for number in told.numbers:
            found = self._in_flight.pop(number)
            self._sent.discard(number)
            if number == self.suspect.number:
                self.suspect.forget()
            if found is not None:
                by_key.setdefault(found[0], []).append(number)
                count, size = count + 1, size + body_bytes(found[1])
        if not self._sent:
            self._again_at_once *= 2
        self._wake.set()
        self.looped += told.looped
        self._has_moved(count - told.looped, size)
        for key, numbers in by_key.items():
            if self._connection is None:
                break
            try:
                self._connection.acknowledge(key, numbers)
            except GatewayError as error:
                if self._consumer is not None:
                    self.failed(self._consumer, error)
        self._settled_some()

    def _park(self) -> None:
        """A later message was accepted: move the refused one to the parking queue in one step."""
        suspect, connection = self.suspect, self._connection
        number, reason = suspect.number, suspect.said
        found = self._in_flight.get(number)
        suspect.is_held = False  # whatever the outcome
        if found is None or connection is None or self._consumer is None:
            return
        self._spawn("park", self._put_aside(self._consumer, connection, number, *found, reason))

    async def _put_aside(
        self,
        consumer: Consuming,
        connection: BrokerConnection,
        number: int,
        key: str,
        message: Message,
        reason: str,
    ) -> None:
        queue, epoch = self.parking_queue, self.epoch
        origin = message.destination if key == _KEY else key
        moved = parked(message, queue, origin, reason)
        try:
            connection.check_publish(queue)
            if message.large is not None:
                bodies = self._broker.large_bodies
                assert bodies is not None
                moved = msgspec.structs.replace(moved, large=await _copied(bodies, message.large))
        except GatewayError as error:
            self.suspect.attempts = 0
            self.remedy = f"it cannot be put aside, into {queue}: {error}"
            _log.warning("bridge=%s rule=%s %s", self._options.name, self.rule.name, self.remedy)
            return
        if consumer is not self._consumer or epoch != self.epoch:
            return  # it may have been resent meanwhile
        try:
            self._in_flight.pop(number)
            self._aside.add(number, key, message)
            connection.begin(_PARKING)
            connection.publish(moved, transaction=_PARKING)
            connection.acknowledge(key, [number], transaction=_PARKING)
            connection.commit(_PARKING, _Parked(number, queue, reason))
        except GatewayError as error:
            self.failed(consumer, error)

    @property
    def parking_queue(self) -> str:
        """The queue for messages that the other broker refuses."""
        return parking_queue(self._options.name, self.rule.name)

    def confirmed(self, tokens: Sequence[object]) -> None:
        """Moves to the parking queue are durable."""
        for token in tokens:
            if isinstance(token, _Parked):
                self._aside.pop(token.number)
                self.parked += 1
                if self.suspect.number == token.number:
                    self.suspect.forget()
                self._broker.tell(
                    Event.BRIDGE_PARKED,
                    _log,
                    "bridge=%s rule=%s message=%d queue=%s reason=%r parked",
                    self._options.name,
                    self.rule.name,
                    token.number,
                    token.queue,
                    token.reason,
                )
        self._settled_some()

    def failed(self, consumer: Consuming, error: GatewayError) -> None:
        """The connection here has ended: what was in flight is back in its queue."""
        if consumer is not self._consumer:
            return
        self._let_go()
        self._fail(error)

    def _let_go(self) -> None:
        connection, self._connection, self._consumer = self._connection, None, None
        self._in_flight.clear()
        self._aside.clear()
        self._queue.clear()
        self._sent.clear()
        self._wake.set()
        if connection is not None:
            connection.disconnect(graceful=True)

    async def end(self) -> None:
        await super().end()
        self._let_go()


async def _copied(bodies: LargeBodies, body: LargeBody) -> LargeBody:
    """A copy of a body for another message. Raises: GatewayError."""
    writer, reader = bodies.create(body.size), bodies.open(body)
    try:
        while piece := await reader.read(_LARGE_READ_BYTES):
            await writer.write(piece)
        return await writer.finish()
    except BaseException:
        writer.abandon()
        raise
    finally:
        reader.close()
