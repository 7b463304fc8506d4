"""From options to an open per-destination layout, and what to do about records that are missing.

A reference whose record is not there is one of two things. When the record was synced before the
batch, it is damage: the store does not open, because what it holds is not what was confirmed. When
it was not (``journal_disk_sync_strategy`` periodic or never), it is what a power cut may cost: the
message is dropped, and the report says so.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

from tidegate.spi import Discard, DiscardReason, Operation, WriteBatch
from tidegate_store_journal._folders import Folders, folders_of, lost_error
from tidegate_store_journal._format import MASK_32
from tidegate_store_journal._index import Index
from tidegate_store_journal._options import ALWAYS, PERIODIC, JournalOptions
from tidegate_store_journal._places import Places
from tidegate_store_journal._recordfolder import PoolPolicy
from tidegate_store_journal._reference import decode_reference
from tidegate_store_journal._replay import Progress
from tidegate_store_journal._split import Inner, Split, SplitPolicy
from tidegate_store_journal._splitopen import Found, living, open_folders
from tidegate_store_journal._splittidy import Tidy
from tidegate_store_journal._storage import Storage

#: Messages of the journal that are looked at together.
_LOOK_MAX: Final = 1000


@dataclass(slots=True)
class Lost:
    """Messages that a power cut took although their references are there.

    Attributes: lists: per list their sequences; row: last row of the acknowledged log of any.
    """

    lists: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    row: int = 0
    messages: set[int] = field(default_factory=set[int])

    async def drop(self, index: Index, write: Callable[[WriteBatch], Awaitable[None]]) -> None:
        """Forget them."""
        if self.row:
            index.release(min(self.row, index.log.last))
        operations: list[Operation] = [
            Discard(list_id, tuple(sequences), DiscardReason.DROPPED)
            for list_id, sequences in self.lists.items()
        ]
        if operations:
            await write(WriteBatch(operations))

    def note(self) -> str:
        """For the report."""
        text = (
            f"{len(self.messages)} messages were lost in a power cut before their records were "
            "synced (journal_disk_sync_strategy is not always) and were dropped"
        )
        if self.row:
            text += f"; the acknowledged log goes on behind row {self.row}"
        return text + "."


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the layout needs of the store; see :class:`Split`."""

    storage: Storage
    index: Index
    inner: Inner
    workers: Executor
    readers: Executor
    store_id: str
    is_durable: Callable[[int, int], bool]
    require_room: Callable[[], Awaitable[None]]
    fail: Callable[[BaseException], None]
    progress: Progress


@dataclass(frozen=True, slots=True)
class Layout:
    """The open layout: batches and pages pass *split*, *tidy* runs beside it."""

    split: Split
    tidy: Tidy
    lost: Lost

    async def close(self) -> None:
        """Idempotent."""
        await self.tidy.close()
        await self.split.close()


async def open_layout(options: JournalOptions, around: Surroundings) -> Layout:
    """Read the directories of all destinations. Raises: CorruptRecordError, OSError."""
    strategy = options.sync_strategy
    policy = SplitPolicy(
        filters=options.per_destination if around.storage.durable else (),
        record_bytes_max=options.max_record_size,
        pool=PoolPolicy(
            options.filepool_limit, options.filepool_cleanratio, options.message_cleanup
        ),
        sync=strategy == ALWAYS,
        sync_seconds=options.journal_disk_sync_interval if strategy == PERIODIC else 0.0,
    )
    folders = folders_of(around.storage)
    loop = asyncio.get_running_loop()
    is_used = bool(policy.filters) or bool(
        await loop.run_in_executor(around.workers, folders.names)
    )
    lost = Lost()
    if is_used:
        found = await loop.run_in_executor(
            around.workers, _read_folders, folders, policy.pool, around
        )
        if found.missing:
            await _look_at_missing(found.missing, folders, around, lost)
    else:
        found = Found([], Places(), 0, ())
    split = Split(
        folders,
        found,
        around.index,
        around.inner,
        policy,
        around.workers,
        around.readers,
        store_id=around.store_id,
        is_durable=around.is_durable,
        require_room=around.require_room,
        fail=around.fail,
    )
    tidy = Tidy(
        split,
        folders,
        around.index,
        around.workers,
        around.fail,
        bytes_min=options.file_length,
        percentage=options.journal_compact_percentage,
    )
    return Layout(split, tidy, lost)


def _read_folders(folders: Folders, pool: PoolPolicy, around: Surroundings) -> Found:
    sequences = living(around.index)
    return open_folders(folders, around.store_id, sequences, pool, around.progress)


async def _look_at_missing(
    missing: Sequence[int], folders: Folders, around: Surroundings, lost: Lost
) -> None:
    """Messages in no directory: in the journal itself, unless it has only a reference."""
    wanted = set(missing)
    damaged: dict[str, set[int]] = {}
    entries = _entries(around.index, wanted)
    while chunk := list(itertools.islice(entries, _LOOK_MAX)):
        messages = await around.inner.read([(sequence, place) for sequence, place, _, _ in chunk])
        for (sequence, place, list_id, row), message in zip(chunk, messages, strict=True):
            reference = decode_reference(message, place & MASK_32)
            if reference is None:
                continue
            if reference.synced:
                damaged.setdefault(reference.destination, set()).add(sequence)
                continue
            lost.messages.add(sequence)
            lost.row = max(lost.row, row)
            if list_id:
                lost.lists.setdefault(list_id, []).append(sequence)
    for destination, sequences in damaged.items():
        raise lost_error(folders, destination, sorted(sequences))


def _entries(index: Index, wanted: set[int]) -> Iterator[tuple[int, int, int, int]]:
    """(sequence, location, list, row) of every reference to the wanted messages."""
    for list_id, pending in index.lists.items():
        for sequence, place in pending.entries():
            if sequence in wanted:
                yield sequence, place, list_id, 0
    for block in index.log.blocks():
        for number, place in enumerate(block.locations):
            row = block.first + number
            if row > index.log.released and block.sequences[number] in wanted:
                yield block.sequences[number], place, 0, row
