"""From a message to its unit in the filling turn: where it goes, what it retains, its number."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from tidegate.broker.destinations import Destinations
from tidegate.broker.limits.list_limits import ListLimits
from tidegate.broker.lists.leaving import NOBODY, Who, dead_letter_row
from tidegate.broker.lists.pending_list import InFlight, PendingList
from tidegate.broker.owner import Origin
from tidegate.broker.publish.access import OwnWrite, check_own
from tidegate.broker.publish.retained_delivery import RetainedDeliveries
from tidegate.broker.publish.system_topics import is_system
from tidegate.broker.publish.temporary import TemporaryDestinations
from tidegate.broker.route.retained import RetainedMessages
from tidegate.broker.route.router import Route
from tidegate.broker.turn.writer import TurnWriter
from tidegate.spi import (
    AccessError,
    FlowControlError,
    Message,
    RequestError,
    StoredMessage,
    names,
)

_log = logging.getLogger("tidegate.broker")
_set: Final = msgspec.structs.force_setattr

#: Headers that a dead letter has besides its own.
DEAD_LETTER_FROM: Final = "original-destination"
DEAD_LETTER_REASON: Final = "dead-letter-reason"
_DEAD_LETTER_HEADERS: Final = frozenset((DEAD_LETTER_FROM, DEAD_LETTER_REASON))

#: The detour of paused destinations.
_PAUSED: Final = "paused"

#: A message that goes to a dead-letter queue, and that queue's list.
Dead: TypeAlias = tuple[InFlight, PendingList, Who]


@dataclass(eq=False, repr=False)
class Publisher:
    """See the module.

    Args:
        detours: all that currently want to see publishes: retained messages being handed over,
            lists near their limit, paused destinations. It is nearly always empty, and then a
            publish only checks that.

    Attributes:
        paused: destinations whose producers are refused.
        dead_lettered: called for each message that goes to a dead-letter queue, with its origin and that queue.
    """

    _writer: TurnWriter
    _destinations: Destinations
    retained: RetainedMessages
    _deliveries: RetainedDeliveries
    _limits: ListLimits
    _temporary: TemporaryDestinations
    detours: set[object]

    def __post_init__(self) -> None:
        self.routes = self._destinations.routes
        self.paused: set[str] = set()
        self.dead_lettered: Callable[[str, str], None] = _untold

    # --- paused destinations -------------------------------------------------------------------

    def pause(self, destination: str, *, is_paused: bool) -> None:
        """Refuse what clients publish there, or accept it again."""
        if is_paused:
            self.paused.add(destination)
            self.detours.add(_PAUSED)
        else:
            self.paused.discard(destination)
            if not self.paused:
                self.detours.discard(_PAUSED)

    def check_paused(self, destination: str) -> None:
        """Raises: FlowControlError."""
        if destination in self.paused:
            raise FlowControlError(
                f"{destination} accepts no messages at the moment: an operator has "
                "paused its producers"
            )

    # --- routes --------------------------------------------------------------------------------

    def resolve(self, destination: str, owner: str = "") -> Route:
        """The route of *destination*, created on first use.

        Args: owner: the principal charged for a new queue; "": the gateway itself.
        Raises: RequestError, AccessError; FlowControlError for one queue too many.
        """
        route = self.routes.get(destination)
        if route is None:
            if not (names.is_queue(destination) or names.is_topic(destination)):
                raise RequestError(f"{destination!r} is neither a queue nor a topic")
            try:
                names.check_name(names.name_of(destination))
            except ValueError as error:
                raise RequestError(str(error)) from None
            self._destinations.check_levels(destination)
            if names.is_temporary(destination):
                self._temporary.check_exists(destination)
            if is_system(destination):  # never cached, so this is always found out here
                raise AccessError(
                    "clients must not publish to the gateway's own topics", destination=destination
                )
            if owner and names.is_queue(destination):
                self._destinations.check_creatable(destination)
            route = self._destinations.route(destination, owner)
        return route

    def route(self, message: Message, origin: Origin) -> Route:
        """Where *message*, which *origin* publishes, goes; call once, before it is numbered.

        If there is a sink, the message says who sent it from now on.
        Raises: RequestError, AccessError; FlowControlError when a list is at its limit and refuses.
        """
        if self._writer.keeps_log:
            _set(message, "owner", origin.owner)  # nobody else has seen this message yet
            _set(message, "protocol_version", origin.version)
        destination = message.destination
        route = self.routes.get(destination)
        if route is None:
            route = self.resolve(destination, origin.owner)
        if message.qos == 0 and not route.is_for_all:
            route = route.volatile or route.without_storing()
        if route.is_picky:
            route = route.narrowed(message, origin.key)
        if self.detours:
            self.check_paused(destination)
            route = self._limits.admit(route, message)
            if self._deliveries.active and names.is_topic(destination):
                self._deliveries.before_publish(destination)
        return route

    def check_together(self, origin: Origin, messages: Iterable[Message]) -> None:
        """Check that *origin* could publish *messages* together; nothing changes, except that queues
        are made. Raises: FlowControlError; RequestError when a destination is gone."""
        routed: list[tuple[Route, Message]] = []
        for message in messages:
            self.check_paused(message.destination)
            route = self.resolve(message.destination, origin.owner)
            if message.qos == 0:
                route = route.without_storing()
            route = route.narrowed(message, origin.key) if route.is_picky else route
            routed.append((route, message))
        if self.detours:
            self._limits.check(routed)

    # --- publishing ----------------------------------------------------------------------------

    def publish(self, message: Message, origin: Origin, undo: list[Callable[[], None]]) -> Route:
        """Number *message* and add it to the filling turn; the caller makes the unit.

        Args: undo: gets the step that takes back what was retained.
        """
        route = self.route(message, origin)
        if message.retain:
            kept = msgspec.structs.replace(message, owner=origin.owner)
            operation, take_back = self.retained.replace(kept)
            if operation is not None:
                self._writer.turn.operations.append(operation)
            if take_back is not None:
                undo.append(take_back)
        if message.qos == 0 and route.ids:
            message = at_least_once(message)
        self._writer.add_message(message, route)
        return route

    # --- dead letters ----------------------------------------------------------------------

    def _dead_letter_list(
        self, message: StoredMessage, pending_list: PendingList
    ) -> PendingList | None:
        """Where a rejected message goes; None while it may be redelivered."""
        if not pending_list.is_stored or pending_list.is_removed:
            return None
        limit = self._destinations.policy(message.message.destination).max_deliveries
        if not limit or message.delivery_count + 1 < limit:
            return None
        return self._home_of(message.message, pending_list)

    def _home_of(self, message: Message, pending_list: PendingList) -> PendingList | None:
        """The dead-letter queue of a *message* of the list; None when there can be none."""
        for key, origin in message.headers:
            if key == DEAD_LETTER_FROM and names.is_queue(pending_list.destination):
                home = self._destinations.policy(origin).dead_letter_queue(origin)
                if home == pending_list.destination:
                    return None  # already a dead letter: the readers of that queue decide
        policy = self._destinations.policy(message.destination)
        try:
            home = policy.dead_letter_queue(message.destination)
            return None if home == pending_list.destination else self._destinations.queue_list(home)
        except (RequestError, FlowControlError) as error:
            _log.error("destination=%s dead_letter=impossible: %s", pending_list.destination, error)
            return None

    def sort_rejected(
        self, entries: Iterable[tuple[InFlight, Who]]
    ) -> tuple[list[InFlight], list[Dead]]:
        """What is redelivered, and what goes to which dead-letter queue.

        Args: entries: with who rejected each.

        Dead-letter queues are made here, outside of any unit: a unit that is dropped because the
        store is full must not take the queue's AddDestination with it. While the store is down to
        its last room, nothing becomes a dead letter.
        """
        if self._writer.shortage.holds_last_room:
            return [entry for entry, _ in entries], []
        again: list[InFlight] = []
        moves: list[Dead] = []
        for entry, who in entries:
            target = self._dead_letter_list(entry[0], entry[1])
            if target is None:
                again.append(entry)
            else:
                moves.append((entry, target, who))
        return again, moves

    def dead_letter(self, dead: Dead, reason: str = "") -> None:
        """Add the Move to the filling turn; the caller makes the unit. Args: reason: "": rejected."""
        (stored, pending_list, delivered_at), target, who = dead
        times = stored.delivery_count + 1
        reason = reason or f"rejected after {times} {'delivery' if times == 1 else 'deliveries'}"
        row = dead_letter_row(self._writer, pending_list.id, stored, delivered_at, reason, who)
        moved = _dead(stored.message, target, reason)
        self.dead_lettered(stored.message.destination, target.destination)
        route = self.resolve(target.destination)
        self._writer.add_move(pending_list, stored.sequence, route, moved, row)
        if pending_list.selecting is not None:
            pending_list.selecting.leaving([stored.sequence])

    def bury(
        self,
        pending_list: PendingList,
        messages: Sequence[StoredMessage],
        reason: str,
        undo: Callable[[], None],
    ) -> Sequence[StoredMessage]:
        """Move what does not fit into the list to dead-letter queues, all of it in one batch.

        Args: undo: called when the store has no room for them.
        Returns: those for which there is no such queue.
        """
        found = [(item, self._home_of(item.message, pending_list)) for item in messages]
        if any(target is None for _, target in found):
            return messages
        turn = self._writer.turn
        first = len(turn.operations)
        for item, target in found:
            if target is not None:
                self.dead_letter(((item, pending_list, 0), target, NOBODY), reason)
        turn.when_durable(_nothing, first=first, undo=(undo,))
        self._writer.schedule()
        return ()

    def bury_new(self, pending_list: PendingList, message: Message, reason: str) -> bool:
        """Put a new *message*, which bypasses the list, into its dead-letter queue, with this turn.

        Returns: False when there is none.
        """
        target = self._home_of(message, pending_list)
        if target is None:
            return False
        writer = self._writer
        first = len(writer.turn.operations)
        dead = _dead(at_least_once(message) if message.qos == 0 else message, target, reason)
        self.dead_lettered(message.destination, target.destination)
        writer.add_message(dead, self.resolve(target.destination))
        writer.own_sequences += 1
        writer.turn.when_durable(_nothing, first=first)
        return True


def _untold(_: str, __: str) -> None:
    """Nobody counts dead letters."""


def _nothing() -> None:
    """Nobody waits for it."""


def _dead(message: Message, target: PendingList, reason: str) -> Message:
    """*message* as it is in a dead-letter queue."""
    check_own(OwnWrite.DEAD_LETTER, target.destination)
    return msgspec.structs.replace(
        message,
        destination=target.destination,
        expires_at=0,  # nothing is lost if nobody looks
        headers=(
            *without_dead_letter_headers(message),
            (DEAD_LETTER_FROM, message.destination),
            (DEAD_LETTER_REASON, reason),
        ),
    )


def without_dead_letter_headers(message: Message) -> tuple[tuple[str, str], ...]:
    """Its headers except those that dead-lettering adds."""
    return tuple(header for header in message.headers if header[0] not in _DEAD_LETTER_HEADERS)


def dead_letter_from(message: Message) -> str:
    """Where a dead letter came from; "" if it is none. The last such header counts: others are the producer's."""
    return _last_header(message, DEAD_LETTER_FROM)


def dead_letter_reason(message: Message) -> str:
    """Why it is a dead letter; "" if it is none."""
    return _last_header(message, DEAD_LETTER_REASON)


def _last_header(message: Message, wanted: str) -> str:
    found = [value for name, value in message.headers if name == wanted]
    return found[-1] if found else ""


def at_least_once(message: Message) -> Message:
    """A QoS 0 message as a queue keeps it: stored, and in flight until it is acknowledged.

    With QoS 0 an MQTT consumer of the queue would never acknowledge it.
    """
    return msgspec.structs.replace(message, qos=1)
