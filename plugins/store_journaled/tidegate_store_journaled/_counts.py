"""Counts what is pending in journal and database together, without asking either."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tidegate.spi import (
    Acknowledge,
    AddMessage,
    Discard,
    Move,
    Operation,
    PendingCount,
    PendingListId,
)
from tidegate_store_jdbc import Plan

#: Operations that remove a list, including any that the contract gains later.
_REMOVING: Final = frozenset(
    kind
    for kind in typing.get_args(Operation)
    if kind.__name__.startswith("Remove") and "pending_list" in kind.__struct_fields__
)


class Counts:
    """Counts references by list, and messages, which several lists may hold, in total.

    A message of several lists costs one entry here, as long as any list holds it.

    Attributes:
        in_database: references that the database has, by list; lists with none are left out.
        gone: lists that were removed.
        is_stale: *messages* may be too low until :meth:`know_shared`: a list was removed, and only
            the database knows which shared messages it held.
    """

    def __init__(self) -> None:
        self.in_database: dict[int, int] = {}
        self.gone: set[int] = set()
        self.is_stale = False
        self._lists: dict[int, int] = {}
        self._references = 0
        self._shared: dict[int, int] = {}
        self._shared_references = 0

    def start(self, pending: Mapping[PendingListId, PendingCount], shared: dict[int, int]) -> None:
        """Begin with what the database has; *shared*: sequence -> lists that hold it."""
        self._lists = {number: count.messages for number, count in pending.items()}
        self._references = sum(self._lists.values())
        self.in_database = dict(self._lists)
        self.know_shared(shared)

    def know_shared(self, shared: dict[int, int]) -> None:
        """Replace the counts of shared messages, when everything is in the database."""
        self._shared = shared
        self._shared_references = sum(shared.values())
        self.is_stale = False

    @property
    def messages(self) -> int:
        """Messages that at least one list holds."""
        return self._references - self._shared_references + len(self._shared)

    def apply(self, operations: Iterable[Operation]) -> None:
        """Count what *operations* change."""
        lists = self._lists
        for operation in operations:
            kind = type(operation)
            if kind is AddMessage:
                assert isinstance(operation, AddMessage)
                self._add(operation.sequence, operation.pending_lists)
            elif kind is Acknowledge or kind is Discard:
                assert isinstance(operation, Acknowledge | Discard)
                count = len(operation.sequences)
                lists[operation.pending_list] = lists.get(operation.pending_list, 0) - count
                self._references -= count
                if self._shared:
                    self._unshare(operation.sequences)
            elif kind is Move:
                assert isinstance(operation, Move)
                lists[operation.pending_list] = lists.get(operation.pending_list, 0) - 1
                self._references -= 1
                self._unshare((operation.sequence,))
                self._add(operation.target_sequence, (operation.target_list,))
            elif kind in _REMOVING:
                number: int = getattr(operation, "pending_list")  # noqa: B009 - all of them have it
                if number:
                    self._remove(number)

    def _add(self, sequence: int, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._lists[number] = self._lists.get(number, 0) + 1
        self._references += len(numbers)
        if len(numbers) > 1:
            self._shared[sequence] = len(numbers)
            self._shared_references += len(numbers)

    def _unshare(self, sequences: Iterable[int]) -> None:
        shared = self._shared
        for sequence in sequences:
            lists = shared.get(sequence)
            if lists is None:
                continue
            self._shared_references -= 1
            if lists == 1:
                del shared[sequence]
            else:
                shared[sequence] = lists - 1

    def _remove(self, number: int) -> None:
        self.gone.add(number)
        references = self._lists.pop(number, 0)
        self._references -= references
        self.in_database.pop(number, None)
        if references and self._shared:
            self.is_stale = True

    def carried_over(self, plan: Plan) -> None:
        """*plan* has been written to the database."""
        counts = self.in_database
        for number, _ in plan.pending:
            if number not in self.gone:
                counts[number] = counts.get(number, 0) + 1
        for number, _ in plan.removed:
            left = counts.get(number, 0) - 1
            if left > 0:
                counts[number] = left
            else:
                counts.pop(number, None)
