"""A rule made at run time: it moves whole queues, one by one, out of a gateway being drained.

Each queue is its own subscription on the lane's single connection here, so a queue that may not be
taken is reported by name and holds up no other. At the other broker a queue keeps its name, or gets
the one that a rule ``out`` gives it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from tidegate.spi import Broker, BrokerConnection, GatewayError, StoredMessage, names
from tidegate_bridge import _protocol as protocol
from tidegate_bridge._names import Names
from tidegate_bridge._options import BridgeOptions, Direction, RuleOptions
from tidegate_bridge._out_lane import Consuming, OutLane

#: No rule of the configuration has this name.
HAND_OVER: Final = "$hand-over"
_PARKED: Final = "the other broker refused these messages: `dlq` says why, and sends them back"


class HandingLane(OutLane):
    """A :class:`tidegate.spi.QueueTaker`. Args: changed: see TakesQueues; ended: called last."""

    def __init__(
        self,
        number: int,
        options: BridgeOptions,
        broker: Broker,
        tell: Callable[[protocol.FromGateway], None],
        drain: Callable[[], Awaitable[None]],
        changed: Callable[[], None],
        ended: Callable[[HandingLane], None],
    ) -> None:
        rule = RuleOptions(HAND_OVER, Direction.OUT, "/queue/>", "queue://>")
        super().__init__(number, options, rule, broker, tell, drain)
        self._changed = changed
        self._ended = ended
        self._refused: dict[str, str] = {}
        self._taken: dict[str, str] = {}  # queue -> its name at the other broker
        self._leaving: set[str] = set()
        self._failure: tuple[str, str] | None = None

    # --- QueueTaker ------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """See QueueTaker."""
        count, size = self.on_the_way
        return count < self._options.window and size < self._options.window_bytes

    @property
    def refused(self) -> Mapping[str, str]:
        """See QueueTaker."""
        return self._refused

    @property
    def failure(self) -> tuple[str, str] | None:
        """See QueueTaker."""
        return self._failure

    async def fail(self, why: str, remedy: str) -> None:
        """Its bridge has changed: wait for what was sent, and start nothing more."""
        await self.end()
        self._failure = why, remedy
        self._changed()

    def take(self, queue: str) -> None:
        """See QueueTaker."""
        if queue == self.parking_queue:
            self._refused[queue] = _PARKED
            return
        self._refused.pop(queue, None)
        self._leaving.discard(queue)
        if queue not in self._taken:
            self._taken[queue] = self._name_there(queue)
            if self._connection is not None:
                self._subscribe_queue(self._connection, queue)

    def leave(self, queue: str) -> None:
        """See QueueTaker."""
        if queue in self._taken:
            self._leaving.add(queue)
            self._leave_if_done(queue)

    async def end(self) -> None:
        """See QueueTaker."""
        await super().end()
        self._ended(self)

    # --- OutLane ---------------------------------------------------------------------------------

    def _subscribe(self, connection: BrokerConnection) -> None:
        for queue in tuple(self._taken):
            self._subscribe_queue(connection, queue)

    def _subscribe_queue(self, connection: BrokerConnection, queue: str) -> None:
        try:
            self._subscribe_to(connection, queue, queue)
        except GatewayError as error:
            del self._taken[queue]
            self._leaving.discard(queue)
            self._refused[queue] = f"bridge {self._options.name!r} may not take it: {error}"
            self._changed()

    def delivered(self, consumer: Consuming, key: str, messages: Sequence[StoredMessage]) -> None:
        super().delivered(consumer, key, messages)
        self._changed()  # this queue may have nothing left to wait for

    def _target(self, key: str) -> str:
        return self._taken.get(key, "")

    def _settled_some(self) -> None:
        super()._settled_some()
        for queue in tuple(self._leaving):
            self._leave_if_done(queue)
        self._changed()

    def _leave_if_done(self, queue: str) -> None:
        """Unsubscribe from a queue to be left once it has nothing in flight."""
        if self._in_flight.has_key(queue) or self._aside.has_key(queue):
            return
        self._leaving.discard(queue)
        self._taken.pop(queue, None)
        if self._connection is not None:
            self._connection.unsubscribe(queue)

    def _name_there(self, queue: str) -> str:
        """Where messages of *queue* go; "" for a queue of the same name."""
        for rule in self._options.rules:
            if rule.direction is not Direction.OUT or rule.selector:
                continue
            if names.is_queue(rule.local) and names.matches(
                names.name_of(rule.local), names.name_of(queue)
            ):
                return Names(rule.remote, rule.local, is_in=False, is_mqtt=False).leaving(queue)
        return ""
