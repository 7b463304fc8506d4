"""The small state: everything that is not messages, each piece under a key.

Destinations, subscriptions, sessions, packet ids, retained messages, prepared branches and duplicate
ids. Their home on disk is the bindings journal (docs/journal-format.md section 6), which gets the
latest state of the keys that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from operator import attrgetter
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

#: Type of the operation that puts it, and what distinguishes it from others of this type.
SmallKey = tuple[Any, ...]


class _Kind:
    """Small state in which each piece has one name: the operations that put and remove it.

    Attributes: home: attribute of :class:`SmallState`, values by name. name, value, removed_name: of
    an operation.
    """

    def __init__(
        self, home: str, put: type[Any], name: str, value: str, remove: type[Any], removed: str
    ) -> None:
        """*value*: "": the operation itself."""
        self.home = home
        self.put = put
        self.name = attrgetter(name)
        self.value: Callable[[Any], Any] = attrgetter(value) if value else _itself
        self.remove = remove
        self.removed_name = attrgetter(removed)
        self._no_list = (0,) * (len(remove.__struct_fields__) - 1)

    def latest(self, name: Any, found: Any) -> Operation:
        """The operation that puts *found*, or removes it (None)."""
        if found is None:
            return self.remove(name, *self._no_list)
        return found if self.value is _itself else self.put(found)


def _itself(operation: Any) -> Any:
    return operation


_LIST: Final = "pending_list"
_KINDS: Final = (
    _Kind("destinations", AddDestination, "destination", "", RemoveDestination, "destination"),
    _Kind(
        "subscriptions",
        PutSubscription,
        "subscription.pending_list",
        "subscription",
        RemoveSubscription,
        _LIST,
    ),
    _Kind("sessions", PutSession, "session.key", "session", RemoveSession, "key"),
    _Kind("retained", SetRetained, "message.destination", "message", ClearRetained, "destination"),
    _Kind("branches", PutBranch, "branch.branch_id", "branch", RemoveBranch, "branch_id"),
)
_BY_PUT: Final = {kind.put: kind for kind in _KINDS}


class SmallState:
    """The half of :class:`~tidegate_store_journal.index.index.Index` that is not about messages.

    Attributes:
        duplicate_ids: id by sequence, for each destination.
        changed: keys that changed since the last :meth:`take_small_changes`, with the bytes of the
            record that says so; 0: removed. changed_bytes: their sum.
    """

    def __init__(self, drop_list: Callable[[int], None]) -> None:
        """*drop_list* forgets a pending list whose destination or subscription was removed."""
        self.destinations: dict[str, AddDestination] = {}
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
        #: By type, how to apply an operation whose record has a given number of bytes.
        self.apply_small: dict[type, Callable[[Any, int], None]] = {
            PutInflight: self._put_inflight,
            RemoveInflight: self._remove_inflight,
            AddDuplicateId: self._add_duplicate_id,
            ForgetDuplicateIds: self._forget_duplicate_ids,
        }
        for kind in _KINDS:
            home: dict[Any, Any] = getattr(self, kind.home)
            self.apply_small[kind.put] = partial(self._put, kind, home)
            self.apply_small[kind.remove] = partial(self._remove, kind, home)

    def owners(self) -> dict[int, AddDestination | Subscription | Branch]:
        """Who owns each pending list."""
        return {
            **{branch.pending_list: branch for branch in self.branches.values()},
            **{known.pending_list: known for known in self.destinations.values()},
            **self.subscriptions,
        }

    def inflight_records(self) -> Iterator[InflightRecord]:
        """All of them."""
        for records in self.inflight.values():
            yield from records.values()

    def all_duplicate_ids(self) -> Iterator[DuplicateId]:
        """All of them, those of one destination in the order of their sequences."""
        for destination in list(self.duplicate_ids):
            for sequence, duplicate_id in self._sorted_ids(destination).items():
                yield DuplicateId(destination, duplicate_id, sequence)

    def take_small_changes(self) -> tuple[dict[SmallKey, Operation], int]:
        """The latest state of what changed since the last call, and its size in bytes."""
        changed, size = self.changed, self.changed_bytes
        self.forget_small_changes()
        return {key: self._latest(key) for key in changed}, size

    def forget_small_changes(self) -> None:
        """Everything there is was just read from the bindings journal."""
        self.changed = {}
        self.changed_bytes = 0

    def mark_small_state_changed(self) -> None:
        """The bindings journal has to be rewritten as a whole."""
        keys: list[SmallKey] = [
            *((kind.put, name) for kind in _KINDS for name in getattr(self, kind.home)),
            *((PutInflight, name, *key) for name, keys in self.inflight.items() for key in keys),
            *((AddDuplicateId, name, n) for name, ids in self.duplicate_ids.items() for n in ids),
        ]
        for key in keys:
            self._note(key, self.changed.get(key, 0))

    def _latest(self, key: SmallKey) -> Operation:
        """The operation that puts the key, or removes it, as of now."""
        put, name = key[:2]
        if put is PutInflight:
            record = self.inflight.get(name, {}).get(key[2:])
            return RemoveInflight(*key[1:]) if record is None else PutInflight(record)
        if put is AddDuplicateId:
            found = self.duplicate_ids.get(name, {}).get(key[2])
            if found is None:
                return ForgetDuplicateIds(name, key[2])
            return AddDuplicateId(name, found, key[2])
        kind = _BY_PUT[put]
        return kind.latest(name, getattr(self, kind.home).get(name))

    def _note(self, key: SmallKey, size: int = 0) -> None:
        self.changed_bytes += size - self.changed.get(key, 0)
        self.changed[key] = size

    # ------------------------------------------------------------------------- operations

    def _put(self, kind: _Kind, home: dict[Any, Any], operation: Any, size: int) -> None:
        name = kind.name(operation)
        home[name] = kind.value(operation)
        self._note((kind.put, name), size)

    def _remove(self, kind: _Kind, home: dict[Any, Any], operation: Any, _size: int) -> None:
        name = kind.removed_name(operation)
        if home.pop(name, None) is not None:
            self._note((kind.put, name))
        if kind.remove is RemoveSession:
            for key in self.inflight.pop(name, ()):
                self._note((PutInflight, name, *key))
        elif list_id := getattr(operation, _LIST, 0):
            self._drop(list_id)

    def _put_inflight(self, operation: PutInflight, size: int) -> None:
        record = operation.record
        key = (record.direction, record.packet_id)
        records = self.inflight.get(record.session)
        if records is None:
            records = self.inflight[record.session] = {}
        records[key] = record
        self._note((PutInflight, record.session, *key), size)

    def _remove_inflight(self, operation: RemoveInflight, _size: int) -> None:
        session = operation.session
        records = self.inflight.get(session)
        key = (operation.direction, operation.packet_id)
        if records is not None and records.pop(key, None) is not None:
            self._note((PutInflight, session, *key))
            if not records:
                del self.inflight[session]

    def _add_duplicate_id(self, operation: AddDuplicateId, size: int) -> None:
        destination, sequence = operation.destination, operation.sequence
        ids = self.duplicate_ids.setdefault(destination, {})
        if ids and sequence <= next(reversed(ids)):  # only while reading copied records
            self._unsorted.add(destination)
        ids[sequence] = operation.duplicate_id
        self._note((AddDuplicateId, destination, sequence), size)

    def _forget_duplicate_ids(self, operation: ForgetDuplicateIds, _size: int) -> None:
        destination, through = operation.destination, operation.through
        ids = self._sorted_ids(destination)
        for sequence in list(takewhile(lambda sequence: sequence <= through, ids)):
            del ids[sequence]
            self._note((AddDuplicateId, destination, sequence))
        if not ids:
            self.duplicate_ids.pop(destination, None)

    def _sorted_ids(self, destination: str) -> dict[int, str]:
        ids = self.duplicate_ids.get(destination, {})
        if destination in self._unsorted:
            self._unsorted.remove(destination)
            ids = self.duplicate_ids[destination] = dict(sorted(ids.items()))
        return ids
