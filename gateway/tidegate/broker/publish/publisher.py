"""From a message to its unit in the filling turn: where it goes, what it retains, its number."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from tidegate.broker.destinations import Destinations
from tidegate.broker.limits.subscription_limit import SubscriptionLimits
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
    Move,
    RequestError,
    StoredMessage,
    names,
)

_log = logging.getLogger("tidegate.broker")

#: Headers that a dead-lettered message carries besides its own.
DEAD_LETTER_FROM: Final = "original-destination"
DEAD_LETTER_REASON: Final = "dead-letter-reason"
_DEAD_LETTER_HEADERS: Final = frozenset((DEAD_LETTER_FROM, DEAD_LETTER_REASON))

#: A message that goes to a dead-letter queue, and that queue's list.
Dead: TypeAlias = tuple[InFlight, PendingList]


@dataclass(eq=False, repr=False)
class Publisher:
    """See the module.

    Args:
        detours: whoever wants to see publishes just now: retained messages that are being handed
            over, subscriptions near their limit. While it is empty, which is nearly always, a
            publish only finds that it is.
    """

    _writer: TurnWriter
    _destinations: Destinations
    retained: RetainedMessages
    _deliveries: RetainedDeliveries
    _limits: SubscriptionLimits
    _temporary: TemporaryDestinations
    detours: set[object]

    def __post_init__(self) -> None:
        self.routes = self._destinations.routes

    # --- routes --------------------------------------------------------------------------------

    def resolve(self, destination: str, owner: str = "") -> Route:
        """The route of *destination*, created on first use.

        Args: owner: the principal that is charged with a new queue; "": the gateway itself.
        Raises: RequestError, AccessError; FlowControlError for a queue too many.
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
                    "clients cannot publish to topics of the gateway", destination=destination
                )
            route = self._destinations.route(destination, owner)
        return route

    def route(self, message: Message, origin: Origin) -> Route:
        """Where *message* goes that *origin* publishes; call once, before it is numbered.

        Raises: RequestError, AccessError; FlowControlError when a subscription is at its limit.
        """
        destination = message.destination
        route = self.routes.get(destination)
        if route is None:
            route = self.resolve(destination, origin.owner)
        if message.qos == 0:
            route = route.volatile or route.without_storing()
        if route.is_picky:
            route = route.narrowed(message, origin.key)
        if self.detours:
            route = self._limits.admit(route)
            if self._deliveries.active and names.is_topic(destination):
                self._deliveries.before_publish(destination)
        return route

    def check_together(self, client_key: str, messages: Iterable[Message]) -> None:
        """Check that *messages* could be published together; nothing changes, but that queues are
        made. Raises: FlowControlError; RequestError when a destination is gone."""
        routes: list[Route] = []
        for message in messages:
            route = self.resolve(message.destination)
            if message.qos == 0:
                route = route.without_storing()
            routes.append(route.narrowed(message, client_key) if route.is_picky else route)
        if self.detours:
            self._limits.check(routes)

    # --- publishing ----------------------------------------------------------------------------

    def publish(self, message: Message, origin: Origin, undo: list[Callable[[], None]]) -> Route:
        """Number *message* and add it to the filling turn; the caller makes the unit.

        Args: undo: what takes back what is retained is added here.
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
        policy = self._destinations.policy(message.message.destination)
        limit = policy.max_deliveries
        if not limit or message.delivery_count + 1 < limit:
            return None
        for key, origin in message.message.headers:
            if key == DEAD_LETTER_FROM and names.is_queue(pending_list.destination):
                home = self._destinations.policy(origin).dead_letter_queue(origin)
                if home == pending_list.destination:
                    return None  # a dead letter already: whoever reads that queue decides
        try:
            return self._destinations.queue_list(
                policy.dead_letter_queue(message.message.destination)
            )
        except (RequestError, FlowControlError) as error:
            _log.error("destination=%s dead_letter=impossible: %s", pending_list.destination, error)
            return None

    def sort_rejected(self, entries: Iterable[InFlight]) -> tuple[list[InFlight], list[Dead]]:
        """What is to be redelivered, and what goes to which dead-letter queue.

        Dead-letter queues are made here, outside of any unit: a unit that is dropped because the
        store is full must not take the queue's AddDestination with it.
        """
        again: list[InFlight] = []
        moves: list[Dead] = []
        for entry in entries:
            target = self._dead_letter_list(entry[0], entry[1])
            if target is None:
                again.append(entry)
            else:
                moves.append((entry, target))
        return again, moves

    def dead_letter(self, dead: Dead) -> None:
        """Add the Move to the filling turn; the caller makes the unit."""
        (stored, pending_list, _), target = dead
        message = stored.message
        moved = msgspec.structs.replace(
            message,
            destination=target.destination,
            expires_at=0,  # nothing is lost when nobody looks
            headers=(
                *(header for header in message.headers if header[0] not in _DEAD_LETTER_HEADERS),
                (DEAD_LETTER_FROM, message.destination),
                (DEAD_LETTER_REASON, f"rejected after {stored.delivery_count + 1} deliveries"),
            ),
        )
        check_own(OwnWrite.DEAD_LETTER, moved.destination)
        sequence = self._writer.take_sequence()
        self._writer.own_sequences += 1
        turn = self._writer.turn
        turn.operations.append(Move(pending_list.id, stored.sequence, target.id, sequence, moved))
        if pending_list.selecting is not None:
            pending_list.selecting.leaving([stored.sequence])
        turn.added.setdefault(self.resolve(target.destination), []).append(
            StoredMessage.of(sequence, moved)
        )
        turn.synced = True


def at_least_once(message: Message) -> Message:
    """A QoS 0 message as a queue keeps it: stored, and in flight until it is acknowledged.

    With QoS 0 an MQTT consumer of the queue would never acknowledge it.
    """
    return msgspec.structs.replace(message, qos=1)
