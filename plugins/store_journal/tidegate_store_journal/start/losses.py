"""Messages that are pending although their bytes are gone: found, reported, and dropped.

At a start they are those of missing data files and of damaged stretches that were taken out; while
the store runs, those that turn out to be damaged when they are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidegate.spi import CorruptRecordError, Discard, DiscardReason, Message, Operation
from tidegate_store_journal.checkpoint.metadata import Loaded
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.index.pieces import files_of
from tidegate_store_journal.index.reader import MissingRecordError
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.start.damage import Damage
from tidegate_store_journal.start.lossreport import LossReport
from tidegate_store_journal.start.orphans import adopt_lists

#: Messages that are looked at together.
_LOOK_MAX: Final = 1000
#: In the upper half of a location.
_HIGH_FILE_SHIFT: Final = _format.FILE_SHIFT - 64


@dataclass(slots=True)
class Lost:
    """What must be dropped.

    Attributes: missing, damaged: sequences by list; rows_through: the last row of the acknowledged
        log whose message is gone; 0: none. missing_why, damaged_why: for the report.
    """

    missing: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    damaged: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    rows_through: int = 0
    missing_why: str = "the data files are missing that held them"
    damaged_why: str = "they were in a damaged part"

    def __bool__(self) -> bool:
        return bool(self.missing or self.damaged or self.rows_through)

    def operations(self) -> list[Operation]:
        """What drops them for good."""
        return [
            Discard(list_id, tuple(sequences), DiscardReason.DROPPED)
            for part in (self.missing, self.damaged)
            for list_id, sequences in part.items()
        ]


def missing_files(
    loaded: Loaded, there: Collection[int], destinations: Mapping[str, int]
) -> dict[int, str]:
    """Data files that a checkpoint names and that are not *there*, with what they held.

    *destinations*: their lists by name.
    """
    state = loaded.state
    names = {list_id: f" of {name}" for name, list_id in destinations.items()}
    counts: dict[tuple[int, str], int] = {}
    rows: dict[int, int] = {}
    for list_id, pieces in loaded.lists.items():
        for piece in pieces:
            for file_id in files_of(piece).difference(there):
                highs = piece.locations[1::2]
                count = sum(1 for high in highs if high >> _HIGH_FILE_SHIFT == file_id)
                key = file_id, names.get(list_id, "")
                counts[key] = counts.get(key, 0) + count
    for block in loaded.acknowledged:
        begin = max(0, state.ack_released + 1 - block.first)
        for place in block.locations[begin:]:
            file_id = place >> _format.FILE_SHIFT
            if file_id not in there:
                rows[file_id] = rows.get(file_id, 0) + 1
    held: dict[int, list[str]] = {}
    if state.batch and state.file_id not in there:
        held[state.file_id] = ["the journal continues in it"]
    for (file_id, name), count in counts.items():
        held.setdefault(file_id, []).append(f"{count} pending messages{name}")
    for file_id, count in rows.items():
        held.setdefault(file_id, []).append(f"{count} acknowledged messages for sinks")
    return {file_id: ", ".join(parts) for file_id, parts in held.items()}


def find_lost(index: Index, missing: Collection[int], damages: Sequence[Damage]) -> Lost:
    """What is pending in files that are missing, and in stretches that were taken out."""
    lost = Lost()
    stretches: dict[int, list[tuple[int, int]]] = {}
    for damage in damages:
        stretches.setdefault(damage.file.file_id, []).append((damage.begin, damage.end))
    for file_id in {*missing, *stretches}:
        for list_id, pending in index.lists.items():
            for piece in pending.pieces_in(file_id):
                for sequence, location in piece:
                    if file_id in missing:
                        lost.missing.setdefault(list_id, []).append(sequence)
                    elif _is_in(location, stretches[file_id]):
                        lost.damaged.setdefault(list_id, []).append(sequence)
        for rows in index.log.rows_in(file_id):
            for row, _, location in rows:
                if file_id in missing or _is_in(location, stretches[file_id]):
                    lost.rows_through = max(lost.rows_through, row)
    return lost


def _is_in(location: int, stretches: Sequence[tuple[int, int]]) -> bool:
    offset = _format.location_parts(location)[1]
    return any(begin <= offset < end for begin, end in stretches)


async def lost_in_power_cut(
    index: Index, reader: Pages, unsynced: Sequence[tuple[int, int]]
) -> Lost:
    """Which messages in directories of destinations were not synced and are not there.

    (``journal_disk_sync_strategy`` is not ``always``: that is what a power cut may cost.)
    """
    gone = await _unreadable(reader, unsynced)
    return _lost_of(
        index,
        gone,
        "a power cut took them before they were synced (journal_disk_sync_strategy is not 'always')",
    )


async def check_messages(index: Index, reader: Pages, files: Container[int]) -> tuple[Lost, str]:
    """Read all messages in these data files. Returns: what cannot be read, and where it is."""
    wanted = {
        (sequence, place)
        for pending in index.lists.values()
        for sequence, place in pending.entries()
        if place >> _format.FILE_SHIFT in files
    }
    for block in index.log.blocks():
        for number, place in enumerate(block.locations):
            if place >> _format.FILE_SHIFT in files and block.first + number > index.log.released:
                wanted.add((block.sequences[number], place))
    gone = await _unreadable(reader, sorted(wanted, key=lambda item: item[1]))
    lost = _lost_of(index, gone, "their records are damaged")
    return lost, "; ".join(f"{error.location}: {error.problem}" for error in gone.values())


async def _unreadable(
    reader: Pages, wanted: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], CorruptRecordError]:
    gone: dict[tuple[int, int], CorruptRecordError] = {}
    for begin in range(0, len(wanted), _LOOK_MAX):
        part = wanted[begin : begin + _LOOK_MAX]
        try:
            await reader.read(part)
        except CorruptRecordError:
            for item in part:
                try:
                    await reader.read([item])
                except CorruptRecordError as error:
                    gone[item] = error
    return gone


def _lost_of(index: Index, gone: Container[tuple[int, int]], why: str) -> Lost:
    """Which lists and rows of the acknowledged log the messages were in."""
    lost = Lost(damaged_why=why)
    for list_id, pending in index.lists.items():
        found = [sequence for sequence, place in pending.entries() if (sequence, place) in gone]
        if found:
            lost.damaged[list_id] = found
    for block in index.log.blocks():
        for number, item in enumerate(zip(block.sequences, block.locations, strict=True)):
            row = block.first + number
            if item in gone and row > index.log.released:
                lost.rows_through = max(lost.rows_through, row)
    return lost


class Pages(Protocol):
    """Where messages are read from, in the journal or elsewhere."""

    async def read(self, wanted: Sequence[tuple[int, int]]) -> list[Message]:
        """The messages at (sequence, location). Raises: CorruptRecordError, StoreError, OSError."""
        ...


class Losses:
    """Drops what is lost, while the store runs. For the event loop."""

    def __init__(
        self,
        index: Index,
        reader: Pages,
        report: LossReport,
        write: Callable[[list[Operation]], Awaitable[None]],
        executor: Executor,
        *,
        quarantines: bool,
        ignores_missing: bool = False,
        keep: Callable[[int], Awaitable[str]] | None = None,
    ) -> None:
        """*keep*: copies what is left of a message aside, when its bytes would not stay where they
        are; returns where to, or ""."""
        self._index = index
        self._reader = reader
        self._report = report
        self._write = write
        self._executor = executor
        self._quarantines = quarantines
        self._ignores_missing = ignores_missing
        self._keep = keep
        report.name_of = self._name_of

    async def drop(self, lost: Lost) -> None:
        """What a start found. The report is on disk first. Raises: StoreError, OSError."""
        report = self._report
        report.add_lost(lost.missing_why, lost.missing)
        report.add_lost(lost.damaged_why, lost.damaged)
        released = self._index.log.released
        if lost.rows_through > released:
            report.add_note(
                f"Rows {released + 1} to {lost.rows_through} of the acknowledged log are lost to "
                "sinks that had not taken them: some of their messages are gone, and a sink must "
                "not see a gap."
            )
        await self._write_report()
        operations = lost.operations()
        if operations:
            await self._write(operations)
        self._index.release(min(lost.rows_through, self._index.log.last))

    async def read(
        self, pending_list: int, page: Sequence[tuple[int, int]]
    ) -> tuple[Sequence[tuple[int, int]], list[Message]]:
        """The messages of a page, without those that are damaged and were dropped now.

        Raises: CorruptRecordError: the first one is damaged and the policy is not *quarantine* (is
            missing and that is not ignored); StoreError, OSError.
        """
        try:
            return page, await self._reader.read(page)
        except CorruptRecordError:
            pass  # one by one
        good: list[tuple[int, int]] = []
        messages: list[Message] = []
        bad: list[int] = []
        for item in page:
            try:
                messages += await self._reader.read([item])
                good.append(item)
            except CorruptRecordError as error:
                if not self._drops(error):
                    if not good and not bad:
                        raise
                    break  # what comes in front of it is served
                bad.append(item[0])
                what = "nothing is left of it"
                if not isinstance(error, MissingRecordError):
                    kept = "" if self._keep is None else await self._keep(item[0])
                    where = (
                        f"are kept in {kept}" if kept else "stay there until the file is used again"
                    )
                    what = f"the bytes {where}"
                self._report.add_note(
                    f"{error.location}: message {item[0]} of {self._name_of(pending_list)} cannot "
                    f"be read and was dropped; {what}."
                )
        if bad:
            self._report.log()
            self._report.notes.clear()
            await self._write_report()
            await self._write([Discard(pending_list, tuple(bad), DiscardReason.DROPPED)])
        return good, messages

    async def adopt(self) -> None:
        """Find owners for lists that lost theirs, see ``_orphans``. Raises: StoreError, OSError."""
        await adopt_lists(self._index, self._reader.read, self._write, self._report)
        await self._write_report()

    def _drops(self, error: CorruptRecordError) -> bool:
        is_missing = isinstance(error, MissingRecordError)
        return self._ignores_missing if is_missing else self._quarantines

    async def _write_report(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, self._report.write)

    def _name_of(self, list_id: int) -> str:
        index = self._index
        for destination, known in index.destinations.items():
            if known == list_id:
                return f"{destination} (list {list_id})"
        subscription = index.subscriptions.get(list_id)
        if subscription is not None:
            return (
                f"{subscription.filter} of client {subscription.client_id!r}, subscription "
                f"{subscription.name!r} (list {list_id})"
            )
        return f"list {list_id}, whose destination is not known"
