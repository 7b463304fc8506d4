"""What one client publishes: routed into the turn, held by a transaction, or found to be a duplicate."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.broker.connection.client import Client
from tidegate.broker.connection.settling import Settling
from tidegate.broker.parts import Parts
from tidegate.broker.publish.publisher import at_least_once
from tidegate.broker.route.router import Route
from tidegate.broker.turn.turn import Unit
from tidegate.spi import (
    AddMessage,
    InflightRecord,
    Message,
    RemoveInflight,
    StoredMessage,
    Token,
    names,
)


class Publishing:
    """The producer's side of one connection."""

    __slots__ = ("_client", "_flow", "_parts", "_publisher", "_settling", "_writer")

    def __init__(self, parts: Parts, client: Client, settling: Settling) -> None:
        self._parts = parts
        self._writer = parts.writer
        self._publisher = parts.publisher
        self._flow = parts.flow
        self._client = client
        self._settling = settling

    def publish(
        self,
        message: Message,
        token: Token = None,
        transaction: str | None = None,
        inflight: InflightRecord | None = None,
        duplicate_id: str = "",
    ) -> bool:
        if (
            transaction is not None
            or inflight is not None
            or message.retain
            or self._flow.checks_publish
            or duplicate_id
            or self._client.is_closed
        ):
            return self._publish_with_care(message, token, transaction, inflight, duplicate_id)
        writer = self._writer
        if writer.error is not None or writer.full_until:
            writer.check_writable()
        route = self._publisher.route(message, self._client.client_id)
        sequence = writer.next_sequence
        writer.next_sequence = sequence + 1
        turn = writer.turn
        ids = route.ids
        if ids:
            if message.qos == 0:
                message = at_least_once(message)
            operations = turn.operations
            turn.units.append(Unit(len(operations), 1, self._client, token))
            operations.append(AddMessage(sequence, message, ids))
            turn.synced = True
            turn.body_bytes += len(message.body)
            if turn.body_bytes > self._flow.turn_bytes_max:
                self._flow.throttle_unwritten(self._client)
        elif token is not None:
            turn.units.append(Unit(0, 0, self._client, token))
        added = turn.added
        if route in added:
            added[route].append(StoredMessage(sequence, message))
        else:
            added[route] = [StoredMessage(sequence, message)]
        if not writer.scheduled:
            writer.schedule()
        if self._flow.full_lists:
            self._throttle_full(route)
        return bool(ids or route.direct)

    def _throttle_full(self, route: Route) -> None:
        # A producer that also has messages in flight is not stopped: with its socket paused its
        # acknowledgements would never be read, and nothing would ever make room.
        if not self._settling.has_in_flight():
            self._flow.throttle_full(self._client, route)

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
        duplicates = parts.duplicates
        if duplicate_id and (not duplicates.is_on or names.is_temporary(message.destination)):
            duplicate_id = ""
        if transaction is not None:
            self._settling.hold_publish(transaction, message, token, inflight, duplicate_id)
            return True
        writer.check_writable()
        publisher.resolve(message.destination)  # a new queue is not part of this unit
        if duplicate_id and duplicates.is_known(message.destination, duplicate_id):
            self._discard_duplicate(message.destination, duplicate_id, token, inflight)
            return True
        if message.retain:
            publisher.retained.check_room(message)
        turn = writer.turn
        first = len(turn.operations)
        undo: list[Callable[[], None]] = []
        route = publisher.publish(message, self._client.client_id, undo)
        if duplicate_id:
            duplicates.add(message.destination, duplicate_id, writer.next_sequence - 1, undo)
        self._client.put_inflight(inflight, undo)
        turn.unit(first, self._client, token, undo)
        turn.synced = True
        if turn.body_bytes > self._flow.turn_bytes_max:
            self._flow.throttle_unwritten(self._client)
        writer.schedule()
        if self._flow.full_lists:
            self._throttle_full(route)
        return bool(route.ids or route.direct)

    def _discard_duplicate(
        self, destination: str, duplicate_id: str, token: Token, inflight: InflightRecord | None
    ) -> None:
        """The message came before: confirm it, and take note of its packet id."""
        writer, session = self._writer, self._client.session
        undo: list[Callable[[], None]] = []
        self._client.put_inflight(inflight, undo)
        if undo and inflight is not None and session is not None:
            # Not part of the unit: that may be taken out of its turn.
            removed = RemoveInflight(session.client_id, inflight.direction, inflight.packet_id)
            undo.append(lambda: writer.add_operation(removed))
        turn = writer.turn
        unit = turn.unit(len(turn.operations), self._client, token)
        turn.synced = True
        self._parts.duplicates.repeated(destination, duplicate_id, unit, undo)
        writer.schedule()

    def check(self, destination: str) -> None:
        self._client.check_open()
        self._writer.check_writable()
        self._parts.access.check_destination(self._client, destination)
