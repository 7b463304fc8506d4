"""A store in front of the store: messages of some queues that need not be stored bypass the store.

All of the broker sees one store in which a queue has all of its messages in one order, so that cursors,
selectors, browsers, purge, move and copy, transactions and dead letters know nothing of this. Operations on
unstored messages are taken out of each batch; the store gets the others, and nothing when there are none.
What is read of a queue is merged by sequence.

A message is not stored when its producer said that it is not persistent (:attr:`tidegate.spi.Message.persistent`)
and its queue is one of :meth:`begin`. What a message loses by that is said in docs/cursors.md. The one rule here
is that what the store confirmed is never touched: only what was put here is ever looked for here.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, final

import msgspec

from tidegate.broker.unstored.segments import Segments, Threads
from tidegate.broker.unstored.spool import ListSpool, Share
from tidegate.spi import (
    Acknowledge,
    AddDuplicateId,
    AddMessage,
    Branch,
    Discard,
    Durability,
    LockedMessages,
    Message,
    MessageStore,
    Move,
    Operation,
    PutBranch,
    RecordDelivery,
    RecoveredState,
    RemoveDestination,
    RemoveSubscription,
    StoreCapabilities,
    StoredMessage,
    StoreStatistics,
    TemporarySpace,
    WriteBatch,
)

_log = logging.getLogger("tidegate.broker.unstored")

_Timed = TypeVar("_Timed", Acknowledge, LockedMessages)

#: A call to a spool when the rest of a batch is durable, and its argument.
_Act: TypeAlias = tuple[Callable[[Any], None], object]


@final
class SpoolingStore:
    """A :class:`tidegate.spi.MessageStore` in front of *store*.

    Args:
        directory: for temporary files.
        space: shared by all temporary files.
    """

    def __init__(self, store: MessageStore, directory: Path, space: TemporarySpace) -> None:
        self._store: Final = store
        self._directory = directory
        self._space = space
        self._threads = Threads()
        self._spools: dict[int, ListSpool] = {}
        self._ended: list[ListSpool] = []  # of queues that are gone, while a thread uses them
        self._stored_last: dict[int, int] = {}  # last stored sequence of lists that have a spool
        self._through = 0  # the highest sequence written
        self._recovered: Mapping[int, object] = {}
        self._has_unsynced = False

    def begin(
        self,
        list_id: int,
        name: str,
        share: Share,
        temporary_limit: int,
        has_room: Callable[[], None],
    ) -> ListSpool:
        """From now on non-persistent messages of this list are not stored.

        Args: name: the queue, for messages; temporary_limit: bytes of its files.
        """
        segments = Segments(self._directory, temporary_limit, self._space)
        spool = ListSpool(name, share, segments, self._threads, has_room)
        self._spools[list_id] = spool
        self._stored_last[list_id] = self._through if list_id in self._recovered else 0
        return spool

    @property
    def count(self) -> int:
        """Messages that are not stored."""
        return sum([spool.count for spool in self._spools.values()])

    # --- tidegate.spi.MessageStore -----------------------------------------------------------

    @property
    def capabilities(self) -> StoreCapabilities:
        """Those of the store."""
        return self._store.capabilities

    async def open(self) -> RecoveredState:
        """As the store says."""
        state = await self._store.open()
        self._through = state.last_sequence
        self._recovered = state.pending
        return state

    async def write(self, batch: WriteBatch) -> None:
        """As the store says; nothing happens to unstored messages when it raises."""
        division = _Division(self._spools)
        division.divide(batch.operations)
        rest = division.rest
        is_synced = batch.durability is Durability.SYNCED
        if rest or (is_synced and self._has_unsynced):
            await self._store.write(WriteBatch(rest, batch.durability, batch.synced_for))
            self._has_unsynced = not is_synced
        for list_id, sequence in division.stored:
            self._stored_last[list_id] = sequence
        for act, what in division.acts:
            act(what)
        for list_id in division.removed:
            del self._stored_last[list_id]
            self._ended.append(self._spools.pop(list_id))
        if division.removed:
            self._ended = [spool for spool in self._ended if spool.is_writing]
        for spool in division.touched:
            spool.settle()
        self._through = max(self._through, division.last)

    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        """What the store and the list's spool have, in one order."""
        spool = self._spools.get(pending_list)
        if spool is None:
            return await self._store.page_in(pending_list, after, limit, bytes_max)
        # What comes while the two are read is left out: the one read first may not have it.
        through = self._through
        found: list[StoredMessage] = []
        size = 0
        while True:
            left, left_bytes = limit - len(found), max(1, bytes_max - size)
            stored: Sequence[StoredMessage] = ()
            others, is_all = await spool.read(after, left, left_bytes, through)
            if after < self._stored_last.get(pending_list, 0):
                stored = await self._store.page_in(pending_list, after, left, left_bytes)
            page = _merged(stored, others, through, is_all=is_all)
            for item in page:
                body_bytes = len(item.message.body)
                if found and (len(found) >= limit or size + body_bytes > bytes_max):
                    return found
                found.append(item)
                size += body_bytes
            if not page or not stored or len(found) >= limit:
                return found
            after = page[-1].sequence

    def statistics(self) -> StoreStatistics:
        """Those of the store, with what it does not hold added."""
        found = self._store.statistics()
        return dataclasses.replace(found, pending_messages=found.pending_messages + self.count)

    async def close(self) -> None:
        """Forget what is not stored, and close the store. Idempotent."""
        try:
            await self.forget()
        finally:
            await self._store.close()

    async def forget(self) -> None:
        """All that is not stored is gone. Idempotent."""
        if self.count:
            _log.warning("unstored_messages=%d are gone: the gateway stops", self.count)
        spools, self._spools, self._ended = [*self._spools.values(), *self._ended], {}, []
        for spool in spools:
            await spool.close()
        self._threads.close()


def _merged(
    stored: Sequence[StoredMessage],
    others: Sequence[StoredMessage],
    through: int,
    *,
    is_all: bool,
) -> Sequence[StoredMessage]:
    """Both pages as one, as far as nothing can be missing in it.

    Args: is_all: there is nothing after *others*; for *stored* only an empty page says so.
    """
    if not stored:
        return others
    end = min(stored[-1].sequence, through)
    if others and not is_all:
        end = min(end, others[-1].sequence)
    page = [item for item in (*stored, *others) if item.sequence <= end]
    page.sort(key=_sequence_of)
    return page


def _sequence_of(item: StoredMessage) -> int:
    return item.sequence


class _Division:
    """One batch, divided.

    Attributes:
        rest: what the store gets.
        acts: calls to spools then; touched: spools that get any.
        stored: (list with a spool, sequence) of messages that the store gets for it.
        removed: lists that no longer have a spool.
        last: highest sequence of a message.
    """

    __slots__ = ("_new", "_spools", "acts", "last", "removed", "rest", "stored", "touched")

    def __init__(self, spools: Mapping[int, ListSpool]) -> None:
        self._spools = spools
        self._new: set[int] = set()  # sequences of this batch's unstored messages
        self.rest: list[Operation] = []
        self.acts: list[_Act] = []
        self.touched: dict[ListSpool, None] = {}
        self.stored: list[tuple[int, int]] = []
        self.removed: list[int] = []
        self.last = 0

    def divide(self, operations: Sequence[Operation]) -> None:
        """Go through all of them."""
        spools, rest = self._spools, self.rest
        for operation in operations:
            match operation:  # the most frequent ones first
                case AddMessage():
                    self._add(operation)
                case Acknowledge() if (spool := spools.get(operation.pending_list)) is not None:
                    self._acknowledge(operation, spool)
                case Discard() if (spool := spools.get(operation.pending_list)) is not None:
                    self._discard(operation, spool)
                case RecordDelivery() if (spool := spools.get(operation.pending_list)) is not None:
                    self._record(operation, spool)
                case Move():
                    self._move(operation)
                case RemoveDestination() | RemoveSubscription() if (
                    operation.pending_list in spools
                ):  # the latter: of a queue that ended
                    self._remove(operation.pending_list)
                    rest.append(operation)
                case AddDuplicateId() if operation.sequence in self._new:
                    pass  # or the store would know of a message that it never had
                case PutBranch():
                    rest.append(PutBranch(self._without_locks(operation.branch)))
                case _:
                    rest.append(operation)

    def _add(self, operation: AddMessage) -> None:
        lists, sequence = operation.pending_lists, operation.sequence
        self.last = max(self.last, sequence)
        spool = self._spools.get(lists[0]) if len(lists) == 1 else None
        if spool is None or not is_unstored(operation.message):
            self.stored += [(item, sequence) for item in lists if item in self._spools]
            self.rest.append(operation)
        else:
            self._put(spool, sequence, operation.message)

    def _put(self, spool: ListSpool, sequence: int, message: Message) -> None:
        self._new.add(sequence)
        self.acts.append((spool.add, StoredMessage.of(sequence, message)))
        self.touched[spool] = None

    def _take_out(self, spool: ListSpool, sequences: Sequence[int]) -> None:
        self.acts.append((spool.remove, sequences))
        self.touched[spool] = None

    def _mine(self, spool: ListSpool, sequences: Sequence[int]) -> list[int]:
        mine = spool.those(sequences)
        if self._new:
            mine += [item for item in sequences if item in self._new]
        return mine

    def _acknowledge(self, operation: Acknowledge, spool: ListSpool) -> None:
        mine = self._mine(spool, operation.sequences)
        if mine:
            self._take_out(spool, mine)
        if len(mine) < len(operation.sequences):
            self.rest.append(_without(operation, {*mine}) if mine else operation)

    def _discard(self, operation: Discard, spool: ListSpool) -> None:
        mine = self._mine(spool, operation.sequences)
        if mine:
            self._take_out(spool, mine)
        if len(mine) < len(operation.sequences):
            gone = {*mine}
            kept = tuple([item for item in operation.sequences if item not in gone])
            self.rest.append(Discard(operation.pending_list, kept, operation.reason))

    def _record(self, operation: RecordDelivery, spool: ListSpool) -> None:
        counts = dict(zip(operation.sequences, operation.delivery_count, strict=True))
        mine = {item: counts.pop(item) for item in self._mine(spool, operation.sequences)}
        if mine:
            self.acts.append((spool.set_delivery_counts, mine))
        if counts:
            self.rest.append(
                RecordDelivery(operation.pending_list, tuple(counts), tuple(counts.values()))
            )

    def _move(self, operation: Move) -> None:
        spool = self._spools.get(operation.pending_list)
        if spool is None or not self._mine(spool, (operation.sequence,)):
            # What is stored stays stored, wherever it goes.
            self.last = max(self.last, operation.target_sequence)
            if operation.target_list in self._spools:
                self.stored.append((operation.target_list, operation.target_sequence))
            self.rest.append(operation)
            return
        self._take_out(spool, (operation.sequence,))
        target = (operation.target_list,)
        self._add(AddMessage(operation.target_sequence, operation.message, target))

    def _remove(self, pending_list: int) -> None:
        self.acts.append((ListSpool.clear, self._spools[pending_list]))
        self.removed.append(pending_list)

    def _without_locks(self, branch: Branch) -> Branch:
        """Without unstored messages: they are gone when the branch is recovered."""
        locked = list(branch.locked)
        for index, item in enumerate(locked):
            spool = self._spools.get(item.pending_list)
            mine = [] if spool is None else self._mine(spool, item.sequences)
            if mine:
                locked[index] = _without(item, {*mine})
        return msgspec.structs.replace(
            branch, locked=tuple([item for item in locked if item.sequences])
        )


def _without(whole: _Timed, sequences: set[int]) -> _Timed:
    """*whole* without what it says of *sequences*."""
    kept = [index for index, item in enumerate(whole.sequences) if item not in sequences]
    times, counts = whole.delivered_at, whole.delivery_counts
    return msgspec.structs.replace(
        whole,
        sequences=tuple([whole.sequences[index] for index in kept]),
        delivered_at=tuple([times[index] for index in kept]) if times else (),
        delivery_counts=tuple([counts[index] for index in kept]) if counts else (),
    )


def is_unstored(message: Message) -> bool:
    """Its producer does not need it stored. A large body is a file of the store anyway."""
    return not message.persistent and message.large is None
