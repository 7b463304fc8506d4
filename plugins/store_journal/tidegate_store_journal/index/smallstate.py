"""The small state: destinations, subscriptions, sessions, packet ids and retained messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from tidegate.spi import (
    AddDestination,
    ClearRetained,
    InflightRecord,
    Message,
    PutInflight,
    PutSession,
    PutSubscription,
    RemoveDestination,
    RemoveInflight,
    RemoveSession,
    RemoveSubscription,
    Session,
    SetRetained,
    Subscription,
)
from tidegate_store_journal.index.changes import Dirty, InflightKey


class SmallState:
    """The half of :class:`~tidegate_store_journal.index.index.Index` that is not about messages."""

    def __init__(self, drop_list: Callable[[int], None]) -> None:
        """*drop_list* forgets a pending list whose destination or subscription was removed."""
        self.destinations: dict[str, int] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.sessions: dict[str, Session] = {}
        self.inflight: dict[str, dict[InflightKey, InflightRecord]] = {}
        self.retained: dict[str, Message] = {}
        self._drop = drop_list
        self._dirty = Dirty()
        self._apply_one: dict[type, Callable[[Any], None]] = {
            AddDestination: self._add_destination,
            RemoveDestination: self._remove_destination,
            PutSubscription: self._put_subscription,
            RemoveSubscription: self._remove_subscription,
            SetRetained: self._set_retained,
            ClearRetained: self._clear_retained,
            PutSession: self._put_session,
            RemoveSession: self._remove_session,
            PutInflight: self._put_inflight,
            RemoveInflight: self._remove_inflight,
        }

    def restore_small_state(
        self,
        destinations: Mapping[str, int],
        subscriptions: Iterable[Subscription],
        sessions: Iterable[Session],
        inflight: Iterable[InflightRecord],
        retained: Iterable[Message],
    ) -> None:
        """Put back what a checkpoint or the bindings snapshot holds (at start)."""
        self.destinations.update(destinations)
        for subscription in subscriptions:
            self.subscriptions[subscription.pending_list] = subscription
        for session in sessions:
            self.sessions[session.client_id] = session
        for record in inflight:
            key = (record.direction, record.packet_id)
            self.inflight.setdefault(record.client_id, {})[key] = record
        for message in retained:
            self.retained[message.destination] = message

    def inflight_records(self) -> Iterator[InflightRecord]:
        """All of them."""
        for records in self.inflight.values():
            yield from records.values()

    def _inflight_of(self, client_id: str, key: InflightKey) -> InflightRecord | None:
        return self.inflight.get(client_id, _NO_INFLIGHT).get(key)

    def _mark_small_state_changed(self) -> None:
        """The metadata store knows none of it."""
        dirty = self._dirty
        dirty.destinations.update(self.destinations)
        dirty.subscriptions.update(self.subscriptions)
        dirty.sessions.update(self.sessions)
        dirty.retained.update(self.retained)
        for client_id, records in self.inflight.items():
            dirty.inflight.update((client_id, key) for key in records)

    # ------------------------------------------------------------------------- operations

    def _add_destination(self, operation: AddDestination) -> None:
        self.destinations[operation.destination] = operation.pending_list
        self._dirty.destinations.add(operation.destination)

    def _put_subscription(self, operation: PutSubscription) -> None:
        subscription = operation.subscription
        self.subscriptions[subscription.pending_list] = subscription
        self._dirty.subscriptions.add(subscription.pending_list)

    def _set_retained(self, operation: SetRetained) -> None:
        self.retained[operation.message.destination] = operation.message
        self._dirty.retained.add(operation.message.destination)

    def _clear_retained(self, operation: ClearRetained) -> None:
        if self.retained.pop(operation.destination, None) is not None:
            self._dirty.retained.add(operation.destination)

    def _put_session(self, operation: PutSession) -> None:
        self.sessions[operation.session.client_id] = operation.session
        self._dirty.sessions.add(operation.session.client_id)

    def _remove_session(self, operation: RemoveSession) -> None:
        client_id = operation.client_id
        if self.sessions.pop(client_id, None) is not None:
            self._dirty.sessions.add(client_id)
        for key in self.inflight.pop(client_id, ()):
            self._dirty.inflight.add((client_id, key))

    def _put_inflight(self, operation: PutInflight) -> None:
        record = operation.record
        key = (record.direction, record.packet_id)
        records = self.inflight.get(record.client_id)
        if records is None:
            records = self.inflight[record.client_id] = {}
        records[key] = record
        self._dirty.inflight.add((record.client_id, key))

    def _remove_inflight(self, operation: RemoveInflight) -> None:
        records = self.inflight.get(operation.client_id)
        key = (operation.direction, operation.packet_id)
        if records is not None and records.pop(key, None) is not None:
            self._dirty.inflight.add((operation.client_id, key))
            if not records:
                del self.inflight[operation.client_id]

    def _remove_destination(self, operation: RemoveDestination) -> None:
        if self.destinations.pop(operation.destination, None) is not None:
            self._dirty.destinations.add(operation.destination)
        self._drop(operation.pending_list)

    def _remove_subscription(self, operation: RemoveSubscription) -> None:
        if self.subscriptions.pop(operation.pending_list, None) is not None:
            self._dirty.subscriptions.add(operation.pending_list)
        self._drop(operation.pending_list)


_NO_INFLIGHT: Final[Mapping[InflightKey, InflightRecord]] = {}
