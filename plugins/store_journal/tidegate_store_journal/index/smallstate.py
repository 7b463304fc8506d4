"""The small state: everything that is not messages, each piece of it under a key.

Destinations, subscriptions, sessions, packet ids, retained messages, prepared branches and duplicate
ids. Their home on disk is the bindings journal (docs/journal-format.md section 6), which is told the
latest state of the keys that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from typing import Any, Final

from tidegate.spi import (
    AddDestination,
    AddDuplicateId,
    Branch,
    BranchId,
    ClearRetained,
    DuplicateId,
    ForgetDuplicateIds,
    InflightDirection,
    InflightRecord,
    Message,
    Operation,
    PutBranch,
    PutInflight,
    PutSession,
    PutSubscription,
    RemoveBranch,
    RemoveDestination,
    RemoveInflight,
    RemoveSession,
    RemoveSubscription,
    Session,
    SetRetained,
    Subscription,
)

InflightKey = tuple[InflightDirection, int]

#: Type of the operation that puts it, and what tells it from others of this type.
SmallKey = tuple[Any, ...]

_NO_INFLIGHT: Final[Mapping[InflightKey, InflightRecord]] = {}
_NO_IDS: Final[Mapping[int, str]] = {}


class SmallState:
    """The half of :class:`~tidegate_store_journal.index.index.Index` that is not about messages.

    Attributes:
        duplicate_ids: id by sequence, for each destination.
        changed: keys that changed since the last :meth:`take_small_changes`, with the bytes of the
            record that says so; 0: it is gone. changed_bytes: their sum.
    """

    def __init__(self, drop_list: Callable[[int], None]) -> None:
        """*drop_list* forgets a pending list whose destination or subscription was removed."""
        self.destinations: dict[str, int] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.sessions: dict[str, Session] = {}
        self.inflight: dict[str, dict[InflightKey, InflightRecord]] = {}
        self.retained: dict[str, Message] = {}
        self.branches: dict[BranchId, Branch] = {}
        self.duplicate_ids: dict[str, dict[int, str]] = {}
        self._unsorted: set[str] = set()  # destinations whose duplicate ids are in no order yet
        self.changed: dict[SmallKey, int] = {}
        self.changed_bytes = 0
        self._drop = drop_list
        self._apply_small: dict[type, Callable[[Any, int], None]] = {
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
            PutBranch: self._put_branch,
            RemoveBranch: self._remove_branch,
            AddDuplicateId: self._add_duplicate_id,
            ForgetDuplicateIds: self._forget_duplicate_ids,
        }

    def apply_small(self, operation: Operation, size: int) -> None:
        """Apply one operation of the small state, whose record has *size* bytes."""
        self._apply_small[type(operation)](operation, size)

    def inflight_records(self) -> Iterator[InflightRecord]:
        """All of them."""
        for records in self.inflight.values():
            yield from records.values()

    def all_duplicate_ids(self) -> Iterator[DuplicateId]:
        """All of them, of one destination in the order of their sequences."""
        for destination in list(self.duplicate_ids):
            for sequence, duplicate_id in self._sorted_ids(destination).items():
                yield DuplicateId(destination, duplicate_id, sequence)

    def branch_of_list(self, list_id: int) -> Branch | None:
        """Whose messages are in the list."""
        return next((item for item in self.branches.values() if item.pending_list == list_id), None)

    def take_small_changes(self) -> tuple[dict[SmallKey, Operation], int]:
        """The latest state of what changed since the last call, and how many bytes that has."""
        changed, self.changed = self.changed, {}
        size, self.changed_bytes = self.changed_bytes, 0
        return {key: self._latest(key) for key in changed}, size

    def forget_small_changes(self) -> None:
        """All there is was just read from the bindings journal."""
        self.changed.clear()
        self.changed_bytes = 0

    def mark_small_state_changed(self) -> None:
        """The bindings journal has to be written anew as a whole."""
        keys: list[SmallKey] = [
            *((AddDestination, name) for name in self.destinations),
            *((PutSubscription, list_id) for list_id in self.subscriptions),
            *((PutSession, client_id) for client_id in self.sessions),
            *((SetRetained, name) for name in self.retained),
            *((PutBranch, branch_id) for branch_id in self.branches),
            *((PutInflight, name, *key) for name, keys in self.inflight.items() for key in keys),
            *((AddDuplicateId, name, n) for name, ids in self.duplicate_ids.items() for n in ids),
        ]
        for key in keys:
            self._note(key, self.changed.get(key, 0))

    def _latest(self, key: SmallKey) -> Operation:
        """What puts the key, or takes it away, as things are now."""
        kind, name = key[0], key[1]
        found: Any
        if kind is PutInflight:
            found = self.inflight.get(name, _NO_INFLIGHT).get(key[2:])
            return RemoveInflight(*key[1:]) if found is None else PutInflight(found)
        if kind is AddDuplicateId:
            found = self.duplicate_ids.get(name, _NO_IDS).get(key[2])
            if found is None:
                return ForgetDuplicateIds(name, key[2])
            return AddDuplicateId(name, found, key[2])
        if kind is AddDestination:
            found = self.destinations.get(name)
            return RemoveDestination(name, 0) if found is None else AddDestination(name, found)
        if kind is SetRetained:
            found = self.retained.get(name)
            return ClearRetained(name) if found is None else SetRetained(found)
        if kind is PutSubscription:
            found = self.subscriptions.get(name)
            return RemoveSubscription(name) if found is None else PutSubscription(found)
        if kind is PutSession:
            found = self.sessions.get(name)
            return RemoveSession(name) if found is None else PutSession(found)
        found = self.branches.get(name)
        return RemoveBranch(name, 0) if found is None else PutBranch(found)

    def _note(self, key: SmallKey, size: int = 0) -> None:
        self.changed_bytes += size - self.changed.get(key, 0)
        self.changed[key] = size

    # ------------------------------------------------------------------------- operations

    def _add_destination(self, operation: AddDestination, size: int) -> None:
        self.destinations[operation.destination] = operation.pending_list
        self._note((AddDestination, operation.destination), size)

    def _remove_destination(self, operation: RemoveDestination, _size: int) -> None:
        if self.destinations.pop(operation.destination, None) is not None:
            self._note((AddDestination, operation.destination))
        self._drop(operation.pending_list)

    def _put_subscription(self, operation: PutSubscription, size: int) -> None:
        subscription = operation.subscription
        self.subscriptions[subscription.pending_list] = subscription
        self._note((PutSubscription, subscription.pending_list), size)

    def _remove_subscription(self, operation: RemoveSubscription, _size: int) -> None:
        if self.subscriptions.pop(operation.pending_list, None) is not None:
            self._note((PutSubscription, operation.pending_list))
        self._drop(operation.pending_list)

    def _set_retained(self, operation: SetRetained, size: int) -> None:
        self.retained[operation.message.destination] = operation.message
        self._note((SetRetained, operation.message.destination), size)

    def _clear_retained(self, operation: ClearRetained, _size: int) -> None:
        if self.retained.pop(operation.destination, None) is not None:
            self._note((SetRetained, operation.destination))

    def _put_session(self, operation: PutSession, size: int) -> None:
        self.sessions[operation.session.client_id] = operation.session
        self._note((PutSession, operation.session.client_id), size)

    def _remove_session(self, operation: RemoveSession, _size: int) -> None:
        client_id = operation.client_id
        if self.sessions.pop(client_id, None) is not None:
            self._note((PutSession, client_id))
        for key in self.inflight.pop(client_id, ()):
            self._note((PutInflight, client_id, *key))

    def _put_inflight(self, operation: PutInflight, size: int) -> None:
        record = operation.record
        key = (record.direction, record.packet_id)
        records = self.inflight.get(record.client_id)
        if records is None:
            records = self.inflight[record.client_id] = {}
        records[key] = record
        self._note((PutInflight, record.client_id, *key), size)

    def _remove_inflight(self, operation: RemoveInflight, _size: int) -> None:
        client_id = operation.client_id
        records = self.inflight.get(client_id)
        key = (operation.direction, operation.packet_id)
        if records is not None and records.pop(key, None) is not None:
            self._note((PutInflight, client_id, *key))
            if not records:
                del self.inflight[client_id]

    def _put_branch(self, operation: PutBranch, size: int) -> None:
        branch = operation.branch
        self.branches[branch.branch_id] = branch
        self._note((PutBranch, branch.branch_id), size)

    def _remove_branch(self, operation: RemoveBranch, _size: int) -> None:
        if self.branches.pop(operation.branch_id, None) is not None:
            self._note((PutBranch, operation.branch_id))
        if operation.pending_list:
            self._drop(operation.pending_list)

    def _add_duplicate_id(self, operation: AddDuplicateId, size: int) -> None:
        destination, sequence = operation.destination, operation.sequence
        ids = self.duplicate_ids.setdefault(destination, {})
        if ids and sequence <= next(reversed(ids)):  # only while reading what was copied forward
            self._unsorted.add(destination)
        ids[sequence] = operation.duplicate_id
        self._note((AddDuplicateId, destination, sequence), size)

    def _forget_duplicate_ids(self, operation: ForgetDuplicateIds, _size: int) -> None:
        destination, through = operation.destination, operation.through
        ids = self._sorted_ids(destination)
        if not ids:
            return
        for sequence in list(takewhile(lambda sequence: sequence <= through, ids)):
            del ids[sequence]
            self._note((AddDuplicateId, destination, sequence))
        if not ids:
            del self.duplicate_ids[destination]

    def _sorted_ids(self, destination: str) -> dict[int, str]:
        ids = self.duplicate_ids.get(destination, {})
        if destination in self._unsorted:
            self._unsorted.remove(destination)
            ids = self.duplicate_ids[destination] = dict(sorted(ids.items()))
        return ids
