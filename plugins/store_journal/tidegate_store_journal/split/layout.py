"""From options to an open per-destination layout, and what to do about records that are missing.

A reference whose record is not there is one of two things. When the record was synced before the
batch, it is damage, or a missing file: what becomes of it is for the policies to say, see
``_splitrecovery``. When it was not (``journal_disk_sync_strategy`` periodic or never), it is what a
power cut may cost: the message is dropped, and the report says so.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

from tidegate.spi import CorruptRecordError, Discard, DiscardReason, Message, Operation, WriteBatch
from tidegate_store_journal.index import losses as _losses
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.format import MASK_32
from tidegate_store_journal.log.storage import Storage
from tidegate_store_journal.options import ALWAYS, PERIODIC, JournalOptions
from tidegate_store_journal.split.folders import DAMAGE_ADVICE, Folders, folders_of
from tidegate_store_journal.split.places import Places
from tidegate_store_journal.split.recordfolder import PoolPolicy
from tidegate_store_journal.split.reference import decode_reference
from tidegate_store_journal.split.split import Inner, Split, SplitPolicy
from tidegate_store_journal.split.splitopen import Found, living, open_folders, wipe_out
from tidegate_store_journal.split.splitrecovery import Problem, SplitRecovery, Wanted
from tidegate_store_journal.split.splittidy import Tidy
from tidegate_store_journal.start.lossreport import LossReport
from tidegate_store_journal.start.recovery import RecoveryPolicy
from tidegate_store_journal.start.replay import Progress

#: Messages of the journal that are looked at together.
_LOOK_MAX: Final = 1000
#: Readings of the directories: one, and one for each round of putting headers right.
_READINGS_MAX: Final = 4


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
    recovery: RecoveryPolicy
    report: LossReport
    checkpoint: Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Layout:
    """The open layout: batches and pages pass *split*, *tidy* runs beside it.

    Attributes: lost: to a power cut; losses: to damage and missing files, as the policies allow.
    """

    split: Split
    tidy: Tidy
    lost: Lost
    losses: _losses.Lost

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
        growth_bytes=options.file_length // 2,
    )
    folders = folders_of(around.storage)
    loop = asyncio.get_running_loop()
    is_used = (
        bool(policy.filters)
        or around.recovery.ignores_missing  # all of them may be
        or bool(await loop.run_in_executor(around.workers, folders.names))
    )
    found, lost, losses = Found([], Places(), 0, ()), Lost(), _losses.Lost()
    if is_used:
        found, lost, losses = await _read(folders, policy, around)
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
    # Either option at 0 turns all of it off, as for data files.
    percentage = options.journal_compact_percentage if options.journal_compact_min_files else 0
    tidy = Tidy(
        split,
        folders,
        around.index,
        around.workers,
        around.fail,
        checkpoint=around.checkpoint,
        file_bytes=options.file_length,
        percentage=percentage,
    )
    return Layout(split, tidy, lost, losses)


async def _read(
    folders: Folders, policy: SplitPolicy, around: Surroundings
) -> tuple[Found, Lost, _losses.Lost]:
    """Read all directories, until nothing is left that can be put right.

    Raises: CorruptRecordError when a policy forbids to go on, OSError.
    """
    loop = asyncio.get_running_loop()
    recovery = SplitRecovery(
        folders,
        around.store_id,
        around.recovery,
        around.report,
        record_bytes_max=policy.record_bytes_max,
    )
    for _ in range(_READINGS_MAX):
        found = await loop.run_in_executor(
            around.workers, _read_folders, folders, policy.pool, around, recovery
        )
        lost = Lost()
        wanted = await _look_at_missing(found.missing, around, lost) if found.missing else {}
        problems = await loop.run_in_executor(
            around.workers, _examine, found, wanted, around, recovery
        )
        refusal = recovery.refusal(problems)
        if refusal is not None:
            raise refusal
        if not await loop.run_in_executor(around.workers, recovery.carry_out, problems):
            await loop.run_in_executor(around.workers, wipe_out, found)
            return found, lost, _losses_of(problems, around.index)
    raise CorruptRecordError(
        f"what was put right is not right when it is read again. {DAMAGE_ADVICE}",
        location=around.storage.describe(""),
    )


def _read_folders(
    folders: Folders, pool: PoolPolicy, around: Surroundings, recovery: SplitRecovery
) -> Found:
    return open_folders(
        folders,
        around.store_id,
        living(around.index),
        pool,
        around.progress,
        last_sequence=around.index.last_sequence,
        mend=recovery.mend,
    )


def _examine(
    found: Found, wanted: dict[int, Wanted], around: Surroundings, recovery: SplitRecovery
) -> list[Problem]:
    problems = recovery.examine(found, wanted) if wanted else []
    if around.recovery.checks_files:
        problems += recovery.check(found, around.progress)
    return problems


async def _look_at_missing(
    missing: Sequence[int], around: Surroundings, lost: Lost
) -> dict[int, Wanted]:
    """Messages in no directory: in the journal itself, unless it has only a reference.

    Returns: those with a reference that were synced; *lost* is told the others.
    """
    numbers = set(missing)
    wanted: dict[int, Wanted] = {}
    entries = _entries(around.index, numbers)
    while chunk := list(itertools.islice(entries, _LOOK_MAX)):
        messages = await _read_journal(chunk, around)
        for (sequence, place, list_id, row), message in zip(chunk, messages, strict=True):
            if message is None:
                continue
            reference = decode_reference(message, place & MASK_32)
            if reference is None:
                continue
            if reference.synced:
                wanted[sequence] = Wanted(reference, place & MASK_32)
                continue
            lost.messages.add(sequence)
            lost.row = max(lost.row, row)
            if list_id:
                lost.lists.setdefault(list_id, []).append(sequence)
    return wanted


async def _read_journal(
    entries: Sequence[tuple[int, int, int, int]], around: Surroundings
) -> Sequence[Message | None]:
    """What the journal has; None where it is damaged, which whoever reads the message is told."""
    wanted = [(sequence, place) for sequence, place, _, _ in entries]
    try:
        return await around.inner.read(wanted)
    except CorruptRecordError:
        messages: list[Message | None] = []
        for item in wanted:
            try:
                messages += await around.inner.read([item])
            except CorruptRecordError:
                messages.append(None)
        return messages


def _losses_of(problems: Sequence[Problem], index: Index) -> _losses.Lost:
    """Which lists and rows of the acknowledged log the messages were in."""
    losses = _losses.Lost(
        missing_why="the files are missing that held their records",
        damaged_why="their records are damaged",
    )
    missing = {item.sequence for item in problems if item.is_missing}
    for sequence, _, list_id, row in _entries(index, {item.sequence for item in problems}):
        if list_id:
            lists = losses.missing if sequence in missing else losses.damaged
            lists.setdefault(list_id, []).append(sequence)
        losses.rows_through = max(losses.rows_through, row)
    return losses


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
