"""Who owns a pending list, and what keeps the messages of a data file, found a bit at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest
from itertools import chain
from typing import Final

from tidegate.spi import SEQUENCES_MAX, AddDestination, Branch, Subscription
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.format import MASK_32

#: Branches, and what each of them locks.
_Locks = list[tuple[Branch, frozenset[int]]]


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns a pending list. Attributes: see :class:`tidegate.spi.FileHolder`."""

    kind: str
    destination: str
    client_id: str
    subscription: str
    principal: str
    pending_list: int


@dataclass(frozen=True, slots=True)
class Holder(Owner):
    """A pending list (or the acknowledged log) that keeps messages in a data file. Attributes: likewise."""

    messages: int
    live_bytes: int
    sequences: Sequence[int]


_LOG: Final = Owner("acknowledged", "", "", "", "", 0)


def owner_of(owners: Mapping[int, object], list_id: int) -> Owner:
    """Who owns a list; *owners* as in the index."""
    match owners.get(list_id):
        case Subscription() as found:
            kind = "durable subscription" if found.durable else "subscription"
            return Owner(kind, found.filter, found.client_id, found.name, found.owner, list_id)
        case AddDestination() as found:
            return Owner("queue", found.destination, "", "", found.owner, list_id)
        case Branch() as found:
            # Nobody but its transaction manager or an operator can free its messages.
            return _branch("", found, list_id)
        case _:
            return Owner("unknown list", "", "", "", "", list_id)


def _branch(destination: str, branch: Branch, list_id: int) -> Owner:
    own_id = branch.branch_id
    names = (branch.client_id, str(own_id), own_id.owner)
    return Owner("prepared branch", destination, *names, list_id)


class _Found:
    """What one holder keeps, added up."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._count = self._bytes = 0
        self._first: list[int] = []

    def add(self, entries: Sequence[tuple[int, int]]) -> None:
        """Args: entries: sequences and places."""
        self._count += len(entries)
        self._bytes += sum([place >> 32 & MASK_32 for _, place in entries])
        first = [sequence for sequence, _ in entries]
        self._first = nsmallest(SEQUENCES_MAX, [*self._first, *first])

    def holders(self) -> Iterator[Holder]:
        """Yields nothing when it keeps nothing."""
        if self._count:
            yield Holder(
                **asdict(self._owner),
                messages=self._count,
                live_bytes=self._bytes,
                sequences=self._first,
            )


def holders_in(index: Index, file_id: int) -> Iterator[Holder | None]:
    """What keeps a data file, by list; None after each bit of work, so that the caller can pause.

    If the index changes in between, entries sealed meanwhile can be counted twice. Of the
    acknowledged log only rows in memory count.
    """
    owners, locks = index.owners(), _locks(index)
    for list_id, pending in sorted(index.lists.items()):
        owner = owner_of(owners, list_id)
        found = _Found(owner)
        # Prepared branches lock messages of the list, which nobody can consume meanwhile.
        branches = [
            (_Found(_branch(owner.destination, branch, list_id)), locked)
            for branch, locked in locks.get(list_id, ())
        ]
        for piece in pending.pieces_in(file_id):
            if piece:
                found.add(piece)
                for branch, locked in branches:
                    branch.add([entry for entry in piece if entry[0] in locked])
            yield None
        yield from found.holders()
        for branch, _ in branches:
            yield from branch.holders()
    found = _Found(_LOG)
    for parts in index.log.parts_in(file_id):
        found.add([(row, place) for row, _, place in chain.from_iterable(p.rows() for p in parts)])
        yield None
    yield from found.holders()


def _locks(index: Index) -> Mapping[int, _Locks]:
    """By list, the branches that lock its messages."""
    found: dict[int, _Locks] = {}
    for branch in index.branches.values():
        for item in branch.locked:
            locks = found.setdefault(item.pending_list, [])
            locks.append((branch, frozenset(item.sequences)))
    return found
