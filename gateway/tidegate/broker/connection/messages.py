"""What one client does with messages, in a transaction or not: publishes, acknowledges, rejects."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from tidegate.broker.connection.client import Client
from tidegate.broker.connection.serving import Serving
from tidegate.broker.connection.transacting import Transacting
from tidegate.broker.limits.list_limit import DisconnectError
from tidegate.broker.lists.leaving import ended_as, who_of
from tidegate.broker.lists.pending_list import Consumer, InFlight, PendingList
from tidegate.broker.publish.publisher import at_least_once
from tidegate.broker.route.router import Route
from tidegate.broker.transactions.transactions import Published, settled
from tidegate.broker.turn.flow import STATE_WORK
from tidegate.broker.turn.turn import Group, Unit
from tidegate.spi import (
    AddMessage,
    InflightRecord,
    Message,
    Outcome,
    RemoveInflight,
    RequestError,
    StoredMessage,
    Token,
    content_bytes,
    names,
)


class Messages:
    """Publishes and in-flight messages of one connection."""

    __slots__ = (
        "_client",
        "_detours",
        "_flow",
        "_parts",
        "_publishable",
        "_publisher",
        "_routes",
        "_serving",
        "_transacting",
        "_writer",
    )

    def __init__(self, client: Client, serving: Serving, transacting: Transacting) -> None:
        parts = self._parts = client.parts
        self._client = client
        self._serving = serving
        self._transacting = transacting
        self._writer = parts.writer
        self._publisher = parts.publisher
        self._flow = parts.flow
        # Needed for each message, so kept at hand; publishable: None: there is nobody to ask.
        self._routes = parts.publisher.routes
        self._detours = parts.publisher.detours
        self._publishable: Container[str] | None
        self.look_at_publishes(all_of_them=False)

    def look_at_publishes(self, *, all_of_them: bool) -> None:
        """Handle publishes with care: *all_of_them*, or those that need a check."""
        known = self._client.rights.publishable if self._parts.access.authorizers else None
        self._publishable = () if all_of_them else known

    # --- publishing ----------------------------------------------------------------------------

    def publish(
        self,
        message: Message,
        token: Token = None,
        transaction: str | None = None,
        inflight: InflightRecord | None = None,
        duplicate_id: str = "",
    ) -> bool:
        client, flow = self._client, self._flow
        if (
            transaction is not None
            or inflight is not None
            or message.retain
            or flow.checks_publish
            or duplicate_id
            or client.is_closed
            or ((known := self._publishable) is not None and message.destination not in known)
        ):
            return self._publish_with_care(message, token, transaction, inflight, duplicate_id)
        writer = self._writer
        shortage = writer.shortage
        if writer.error is not None or shortage.refusal is not None or shortage.until:
            writer.check_writable()
        route = self._routes.get(message.destination)
        if route is None or route.is_picky or self._detours or not message.qos:
            route = self._route(message)
        sequence = writer.next_sequence
        writer.next_sequence = sequence + 1
        turn = writer.turn
        ids = route.ids
        if ids and message.qos == 0:
            message = at_least_once(message)
        size = content_bytes(message)
        stored = StoredMessage(sequence, message, size)
        if ids:
            operations = turn.operations
            first = len(operations)
            turn.units.append(Unit(first, 1, client, token))
            operations.append(AddMessage(sequence, message, ids))
            turn.synced = True
            turn.body_bytes += size
            if turn.body_bytes > flow.turn_bytes_max or first >= flow.turn_operations_max:
                flow.throttle_if_large(client)
        elif token is not None:
            turn.units.append(Unit(0, 0, client, token))
        if route.width:
            flow.add_work(client, route.width)
        added = turn.added
        if route in added:
            added[route].append(stored)
        else:
            added[route] = [stored]
        if not writer.scheduled:
            writer.schedule()
        if flow.full_lists:
            self._transacting.throttle_full(route)
        return bool(ids or route.direct)

    def _route(self, message: Message) -> Route:
        try:
            return self._publisher.route(message, self._client.origin)
        except DisconnectError as error:
            self._client.end_behind_answers(error)
            raise

    def _publish_with_care(
        self,
        message: Message,
        token: Token,
        transaction: str | None,
        inflight: InflightRecord | None,
        duplicate_id: str,
    ) -> bool:
        """Everything about a publish that most publishes do not need."""
        self._client.check_open()
        parts, writer, publisher = self._parts, self._writer, self._publisher
        message = parts.access.check_publish(self._client, message)
        if inflight is not None and self._client.session is not None:
            self._client.session.check_room()
        duplicates = parts.duplicates
        if duplicate_id and (not duplicates.is_on or names.is_temporary(message.destination)):
            duplicate_id = ""
        if transaction is not None:
            held = self._transacting.of(transaction)
            held.check_room(1)
            if message.retain:
                publisher.retained.check_room(message, self._client.principal)
            # A bad name must fail now, not at COMMIT.
            publisher.check_paused(message.destination)
            publisher.resolve(message.destination, self._client.principal)
            held.publish(Published(message, inflight, duplicate_id))
            if token is not None:
                writer.confirm(self._client, token)
            return True
        writer.check_writable()
        owner = self._client.principal
        publisher.resolve(message.destination, owner)  # a new queue is not part of this unit
        if duplicate_id and duplicates.is_known(message.destination, duplicate_id, owner):
            self._discard_duplicate(message.destination, duplicate_id, token, inflight)
            return True
        if message.retain:
            publisher.retained.check_room(message, self._client.principal)
        turn = writer.turn
        first = len(turn.operations)
        undo: list[Callable[[], None]] = []
        try:
            route = publisher.publish(message, self._client.origin, undo)
        except DisconnectError as error:
            self._client.end_behind_answers(error)
            raise
        if duplicate_id:
            duplicates.add(message.destination, duplicate_id, writer.next_sequence - 1, undo)
        self._client.put_inflight(inflight, undo)
        turn.unit(first, self._client, token, undo)
        turn.synced = True
        work = route.width + STATE_WORK * message.retain
        if work:
            self._flow.add_work(self._client, work)
        self._flow.throttle_if_large(self._client)
        writer.schedule()
        if self._flow.full_lists:
            self._transacting.throttle_full(route)
        return bool(route.ids or route.direct)

    def _discard_duplicate(
        self, destination: str, duplicate_id: str, token: Token, inflight: InflightRecord | None
    ) -> None:
        """The message came before: confirm it, and note its packet id."""
        writer, session = self._writer, self._client.session
        undo: list[Callable[[], None]] = []
        self._client.put_inflight(inflight, undo)
        if undo and inflight is not None and session is not None:
            # Not part of the unit, which may be taken out of its turn.
            removed = RemoveInflight(session.key, inflight.direction, inflight.packet_id)
            undo.append(lambda: writer.add_operation(removed))
        turn = writer.turn
        unit = turn.unit(len(turn.operations), self._client, token)
        turn.synced = True
        self._parts.duplicates.repeated(destination, duplicate_id, unit, undo)
        writer.schedule()

    def check_publish(self, destination: str) -> None:
        self._client.check_open()
        self._writer.check_writable()
        self._parts.access.check_destination(self._client, destination)
        self._publisher.check_paused(destination)

    # --- acknowledging -------------------------------------------------------------------------

    def acknowledge(
        self,
        key: str,
        sequences: Sequence[int],
        token: Token = None,
        transaction: str | None = None,
        inflight: InflightRecord | None = None,
    ) -> None:
        consumer = self._consumer(key)
        entries = self._take_in_flight(consumer, sequences)
        if transaction is not None:
            self._transacting.hold(consumer, entries, transaction, token, is_rejected=False)
            return
        writer = self._writer
        turn = writer.turn
        acknowledged = turn.acknowledged
        last: PendingList | None = None
        group: Group = ([], [], {})
        for message, pending_list, delivered_at in entries:
            if pending_list is not last:
                last = pending_list
                if pending_list.is_stored:
                    group = acknowledged.get((consumer, pending_list)) or ([], [], {})
                    acknowledged[consumer, pending_list] = group
                else:
                    group = ([], [], {})
                if pending_list.selecting is not None:
                    pending_list.selecting.leaving(group[0])
            group[0].append(message.sequence)
            group[1].append(delivered_at)
            if message.delivery_count:
                group[2][message.sequence] = message.delivery_count + 1
        if inflight is not None:
            self._client.put_inflight(inflight)
        if token is not None:
            turn.units.append(Unit(0, 0, self._client, token))
            turn.synced = True
        if not writer.scheduled:
            writer.schedule()

    def _consumer(self, key: str) -> Consumer:
        consumer = self._serving.consumers.get(key)
        if consumer is None:
            raise RequestError(f"there is no subscription {key!r} on this connection")
        return consumer

    def _take_in_flight(self, consumer: Consumer, sequences: Sequence[int]) -> list[InFlight]:
        """Remove and return the entries, all or none. Raises: RequestError."""
        in_flight = consumer.in_flight
        was_full = consumer.is_full()
        entries: list[InFlight] = []
        size = 0
        try:
            for sequence in sequences:
                entry = in_flight.pop(sequence)
                entries.append(entry)
                size += entry[0].size
        except KeyError as error:
            for entry in entries:
                in_flight[entry[0].sequence] = entry
            raise RequestError(
                f"message {error.args[0]} is not in flight on subscription "
                f"{consumer.key!r}; it was already acknowledged, or never delivered "
                "there"
            ) from None
        consumer.count(-len(entries), -size)
        if was_full and not _are_being_handed(entries):
            self._flow.mark_lists(consumer)  # any of them may have waited for room
        return entries

    def reject(
        self,
        key: str,
        sequences: Sequence[int],
        token: Token = None,
        transaction: str | None = None,
    ) -> None:
        consumer = self._consumer(key)
        entries = self._take_in_flight(consumer, sequences)
        if transaction is not None:
            self._transacting.hold(consumer, entries, transaction, token, is_rejected=True)
            return
        writer, publisher, who = self._writer, self._publisher, who_of(consumer)
        again, dead = publisher.sort_rejected([(entry, who) for entry in entries])
        turn = writer.turn
        first = len(turn.operations)
        for item in dead:
            publisher.dead_letter(item)
        undo = (lambda: writer.give_back(item[0] for item in dead),) if dead else ()
        turn.unit(first, self._client, token, undo)
        turn.synced = turn.synced or bool(dead) or token is not None
        writer.give_back(again)
        writer.schedule()

    def refuse(self, key: str, sequences: Sequence[int], reason: str) -> None:
        consumer = self._consumer(key)
        writer = self._writer
        entries = self._take_in_flight(consumer, sequences)
        for step in settled(consumer, entries, is_rejected=True):
            operation = step.acknowledge(writer.now())
            if operation is not None:
                outcome = ended_as(writer, operation, Outcome.REJECTED, reason)
                writer.add_operation(outcome, synced=False)


def _are_being_handed(entries: Sequence[InFlight]) -> bool:
    """Whether a front-end returns, from within their delivery, messages that fill its window.

    There was room for them, so nothing waited for that; the list says when they come again.
    """
    if not entries or not entries[0][1].is_dispatching:
        return False
    return all(pending_list.is_dispatching for _, pending_list, _ in entries)
