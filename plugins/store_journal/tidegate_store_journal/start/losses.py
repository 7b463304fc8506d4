"""Messages that are pending although their bytes are gone: found, reported, and dropped.

At a start they are those of missing data files and of damaged stretches that were taken out; while
the store runs, those that turn out to be damaged when they are read.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Container, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidegate.spi import CorruptRecordError, Discard, DiscardReason, Message, Operation
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.index.reader import MissingRecordError
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.start.damage import Damage
from tidegate_store_journal.start.lossreport import LossReport
from tidegate_store_journal.start.orphans import adopt_lists

#: Messages that are looked at together.
_LOOK_MAX: Final = 1000


@dataclass(slots=True)
class Lost:
    """What must be dropped.

    Attributes: why: for the report. lists: sequences by list. rows_through: the last row of the
        acknowledged log whose message is gone; 0: none.
    """

    why: str
    lists: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    rows_through: int = 0

    def __bool__(self) -> bool:
        return bool(self.lists or self.rows_through)


def missing_files(index: Index, there: Container[int]) -> dict[int, str]:
    """Data files that hold something and are not *there*, with what they held."""
    names = {list_id: f" of {name}" for name, list_id in index.destinations.items()}
    held: dict[int, str] = {}
    for file_id, use in index.files.items():
        if not use.references or file_id in there:
            continue
        rows, parts = use.references, list[str]()
        for list_id in index.lists_in(file_id):
            count = len(index.lists[list_id].sequences_in(file_id))
            if count:
                parts.append(f"{count} pending messages{names.get(list_id, '')}")
                rows -= count
        if rows:
            parts.append(f"{rows} acknowledged messages for sinks")
        held[file_id] = ", ".join(parts)
    return held


def lost_in_files(index: Index, missing: Collection[int]) -> Lost:
    """What is pending in files that are missing."""
    why = "the data files are missing that held them"
    return _find(index, why, missing, lambda _sequence, _place: True)


def lost_in_stretches(index: Index, damages: Sequence[Damage]) -> Lost:
    """What is pending in stretches that were taken out."""
    stretches: dict[int, list[range]] = {}
    for damage in damages:
        stretches.setdefault(damage.file.file_id, []).append(range(damage.begin, damage.end))

    def is_lost(_sequence: int, place: int) -> bool:
        file_id, offset, _, _ = _format.location_parts(place)
        return any(offset in stretch for stretch in stretches[file_id])

    return _find(index, "they were in a damaged part", stretches, is_lost)


def _find(
    index: Index, why: str, files: Collection[int], is_lost: Callable[[int, int], bool]
) -> Lost:
    """The messages in *files* of whose sequence and location *is_lost* says so."""
    lost = Lost(why)
    for file_id in sorted(files):
        for held in index.held_in(file_id):
            if not is_lost(held.sequence, held.location):
                continue
            if held.pending_list:
                lost.lists.setdefault(held.pending_list, []).append(held.sequence)
            else:
                lost.rows_through = max(lost.rows_through, held.row)
    return lost


async def lost_in_power_cut(
    index: Index, reader: Pages, unsynced: Sequence[tuple[int, int]]
) -> Lost:
    """Which messages in directories of destinations were not synced and are not there.

    (``journal_disk_sync_strategy`` is not ``always``: that is what a power cut may cost.)
    """
    why = (
        "a power cut took them before they were synced (journal_disk_sync_strategy is not 'always')"
    )
    return (await _unreadable(index, reader, unsynced, why))[0]


async def check_messages(index: Index, reader: Pages, files: Collection[int]) -> tuple[Lost, str]:
    """Read all messages in these data files. Returns: what cannot be read, and where it is."""
    held = itertools.chain.from_iterable(map(index.held_in, files))
    wanted = {(item.sequence, item.location) for item in held}
    in_order = sorted(wanted, key=lambda item: item[1])
    return await _unreadable(index, reader, in_order, "their records are damaged")


async def _unreadable(
    index: Index, reader: Pages, wanted: Sequence[tuple[int, int]], why: str
) -> tuple[Lost, str]:
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
    files = {place >> _format.FILE_SHIFT for _, place in gone}
    lost = _find(index, why, files, lambda sequence, place: (sequence, place) in gone)
    return lost, "; ".join(f"{error.location}: {error.problem}" for error in gone.values())


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

    async def drop(self, losses: Sequence[Lost]) -> None:
        """What a start found. The report is on disk first. Raises: StoreError, OSError."""
        report = self._report
        for lost in losses:
            report.add_lost(lost.why, lost.lists)
        released = self._index.log.released
        rows_through = max((lost.rows_through for lost in losses), default=0)
        if rows_through > released:
            report.add_note(
                f"Rows {released + 1} to {rows_through} of the acknowledged log are lost to "
                "sinks that had not taken them: some of their messages are gone, and a sink must "
                "not see a gap."
            )
        await self._write_report()
        operations: list[Operation] = [
            Discard(list_id, tuple(sequences), DiscardReason.DROPPED)
            for lost in losses
            for list_id, sequences in lost.lists.items()
        ]
        if operations:
            await self._write(operations)
        self._index.release(min(rows_through, self._index.log.last))

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
