"""Prepared branches and duplicate ids: the part of the small state that grows with the load.

The ids are not in the bindings snapshot, which is written whole whenever it changes: there may be
millions of them. They have a snapshot of their own (docs/journal-format.md section 6), written only
before data files are put away. So a rebuild finds every id there or in the data files that are
left; it may also find some that were forgotten since, which are older than all others of their
destination: the broker keeps as many as it wants and forgets them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import Any, Final

import msgspec

from tidegate.spi import (
    AddDuplicateId,
    Branch,
    BranchId,
    DuplicateId,
    ForgetDuplicateIds,
    PutBranch,
    RemoveBranch,
)
from tidegate_store_journal.index.changes import Dirty, DuplicateKey
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.storage import Storage, write_atomically

DUPLICATES_NAME: Final = "duplicates.snapshot"


class Branches:
    """The part of :class:`~tidegate_store_journal.index.index.Index` that this module is about.

    Attributes:
        branches: by id.
        duplicate_ids: id by sequence, in ascending order, for each destination.
        duplicate_changes: how often one was added or forgotten.
    """

    watermark: int
    _dirty: Dirty
    _apply_one: dict[type, Callable[[Any], None]]

    def __init__(self, drop_list: Callable[[int], None]) -> None:
        """*drop_list* forgets a pending list whose branch was removed."""
        self.branches: dict[BranchId, Branch] = {}
        self.duplicate_ids: dict[str, dict[int, str]] = {}
        self.duplicate_changes = 0
        self._drop_branch_list = drop_list
        self._apply_one |= {
            PutBranch: self._put_branch,
            RemoveBranch: self._remove_branch,
            AddDuplicateId: self._add_duplicate_id,
            ForgetDuplicateIds: self._forget_duplicate_ids,
        }

    def restore_branches(self, branches: Iterable[Branch], ids: Iterable[DuplicateId]) -> None:
        """Put back what a checkpoint or the snapshots hold (at start)."""
        self.branches.update((branch.branch_id, branch) for branch in branches)
        for known in ids:
            self._keep_duplicate_id(known.destination, known.duplicate_id, known.sequence)

    def all_duplicate_ids(self) -> Iterator[DuplicateId]:
        """All of them, of one destination in the order of their sequences."""
        return _values(self.duplicate_ids)

    def copy_duplicate_ids(self) -> dict[str, dict[int, str]]:
        """For a thread; dictionaries are copied in C, a million entries in some 10 ms."""
        return {destination: ids.copy() for destination, ids in self.duplicate_ids.items()}

    def branch_of_list(self, list_id: int) -> Branch | None:
        """Whose messages are in the list."""
        return next((item for item in self.branches.values() if item.pending_list == list_id), None)

    def _mark_branches_changed(self) -> None:
        """The metadata store knows none of it."""
        self._dirty.branches.update(self.branches)
        for destination, ids in self.duplicate_ids.items():
            self._dirty.duplicate_ids.update((destination, sequence) for sequence in ids)

    def _changed_branches(self, dirty: Dirty) -> dict[BranchId, Branch | None]:
        return {key: self.branches.get(key) for key in dirty.branches}

    def _changed_duplicate_ids(self, dirty: Dirty) -> dict[DuplicateKey, str | None]:
        ids = self.duplicate_ids
        return {key: ids.get(key[0], _NO_IDS).get(key[1]) for key in dirty.duplicate_ids}

    # ------------------------------------------------------------------------- operations

    def _put_branch(self, operation: PutBranch) -> None:
        branch = operation.branch
        self.branches[branch.branch_id] = branch
        self._dirty.branches.add(branch.branch_id)

    def _remove_branch(self, operation: RemoveBranch) -> None:
        if self.branches.pop(operation.branch_id, None) is not None:
            self._dirty.branches.add(operation.branch_id)
        if operation.pending_list:
            self._drop_branch_list(operation.pending_list)

    def _add_duplicate_id(self, operation: AddDuplicateId) -> None:
        destination, sequence = operation.destination, operation.sequence
        self._keep_duplicate_id(destination, operation.duplicate_id, sequence)
        self.duplicate_changes += 1
        self._dirty.duplicate_ids.add((destination, sequence))

    def _keep_duplicate_id(self, destination: str, duplicate_id: str, sequence: int) -> None:
        ids = self.duplicate_ids.setdefault(destination, {})
        in_order = not ids or sequence > next(reversed(ids))
        ids[sequence] = duplicate_id
        if not in_order:  # only while rebuilding, see the module
            self.duplicate_ids[destination] = dict(sorted(ids.items()))

    def _forget_duplicate_ids(self, operation: ForgetDuplicateIds) -> None:
        destination, through = operation.destination, operation.through
        ids = self.duplicate_ids.get(destination)
        if ids is None:
            return
        gone = list(takewhile(lambda sequence: sequence <= through, ids))
        dirty = self._dirty.duplicate_ids
        for sequence in gone:
            del ids[sequence]
            if sequence <= self.watermark:
                dirty.add((destination, sequence))
            else:
                dirty.discard((destination, sequence))
        if not ids:
            del self.duplicate_ids[destination]
        self.duplicate_changes += len(gone)


def _values(ids: dict[str, dict[int, str]]) -> Iterator[DuplicateId]:
    for destination, known in ids.items():
        for sequence, duplicate_id in known.items():
            yield DuplicateId(destination, duplicate_id, sequence)


_NO_IDS: Final[dict[int, str]] = {}


class Duplicates(msgspec.Struct, frozen=True, array_like=True):
    """Value of ``duplicates.snapshot``."""

    store_id: str
    ids: dict[str, dict[int, str]]

    def values(self) -> Iterator[DuplicateId]:
        """What :meth:`Branches.restore_branches` wants."""
        return _values(self.ids)


_decode: Final = msgspec.msgpack.Decoder(Duplicates).decode


def write_duplicates(storage: Storage, duplicates: Duplicates) -> None:
    """Replace the snapshot. Blocks. Raises: OSError."""
    data = _format.encode_side_file(_format.DUPLICATES_MAGIC, _format.encode(duplicates))
    write_atomically(storage, DUPLICATES_NAME, data)


def read_duplicates(storage: Storage) -> Duplicates | None:
    """The snapshot; None when there is none. Raises: FormatError, OSError."""
    try:
        file = storage.open(DUPLICATES_NAME)
    except FileNotFoundError:
        return None
    try:
        data = file.pread(file.length, 0)
    finally:
        file.close()
    try:
        return _decode(_format.decode_side_file(_format.DUPLICATES_MAGIC, data))
    except msgspec.DecodeError as error:
        raise _format.FormatError(str(error)) from error
