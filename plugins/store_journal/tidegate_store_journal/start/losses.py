"""Messages that are pending although their bytes are gone: found, reported, and dropped.

At a start they are those of missing data files and of damaged stretches that were taken out; while
the store runs, those that prove to be damaged when they are read.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

from tidegate.spi import (
    AddDestination,
    CorruptRecordError,
    Discard,
    DiscardReason,
    Message,
    Operation,
    Subscription,
)
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.index.reader import MissingRecordError, Reader
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.storage import Storage, write_atomically
from tidegate_store_journal.options import JournalOptions

logger = logging.getLogger("tidegate.store.journal")

#: Messages that are read together.
_LOOK_MAX: Final = 1000
#: Messages that show who owns a list, without a limit of bytes.
_NAMES_MAX: Final = 20
_ANY_SIZE: Final = 1 << 62
_QUEUE: Final = "queue://"
#: Temporary queues end with their connection.
_TEMPORARY: Final = "queue://$"
_REPORT_NAME: Final = re.compile(r"damage-(\d{4,})\.report")
_TITLE: Final = """\
What this start found damaged or missing in {directory}, and what was lost.
Keep this file and every *.damaged file until you are sure that you need none of it."""


class LossReport:
    """Collects paragraphs and writes them to ``damage-NNNN.report``, before anything else goes on.

    Attributes: name: of the file; "" while there is nothing to report. notes: one sentence each,
        for the log.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._paragraphs: list[str] = []
        self.name = ""
        self.notes: list[str] = []

    def add(self, note: str, *details: str) -> None:
        """Add a paragraph: a sentence that is also logged, and lines that are not."""
        self._paragraphs.append("\n".join([note, *details]))
        self.notes.append(note)

    def write(self) -> None:
        """Write the file if there is something to report. Blocks. Raises: OSError."""
        if not self._paragraphs:
            return
        if not self.name:
            numbers = [int(m[1]) for m in map(_REPORT_NAME.fullmatch, self._storage.list()) if m]
            self.name = f"damage-{max(numbers, default=0) + 1:04d}.report"
        title = _TITLE.format(directory=self._storage.describe(""))
        text = "\n\n".join([title, *self._paragraphs]) + "\n"
        write_atomically(self._storage, self.name, text.encode())

    def log(self) -> list[str]:
        """Log the notes, too. Returns: the notes, which are removed here."""
        notes, self.notes = self.notes, []
        for note in notes:
            logger.error("recovery: %s", note)
        if self.name:
            logger.error("recovery: the full report is %s", self._storage.describe(self.name))
        return notes


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


def find_lost(
    index: Index,
    why: str,
    files: Collection[int],
    is_lost: Callable[[int, int], bool] = lambda _sequence, _place: True,
) -> Lost:
    """The messages in *files* for whose sequence and location *is_lost* is true."""
    lost = Lost(why)
    for held in itertools.chain.from_iterable(map(index.held_in, sorted(files))):
        if not is_lost(held.sequence, held.location):
            continue
        if held.pending_list:
            lost.lists.setdefault(held.pending_list, []).append(held.sequence)
        else:
            lost.rows_through = max(lost.rows_through, held.row)
    return lost


async def find_unreadable(
    index: Index, reader: Reader, wanted: Sequence[tuple[int, int]], why: str
) -> tuple[Lost, str]:
    """Read the messages at (sequence, location). Returns: those that cannot be read, and their places."""
    gone: dict[tuple[int, int], CorruptRecordError] = {}
    for begin in range(0, len(wanted), _LOOK_MAX):
        part = wanted[begin : begin + _LOOK_MAX]
        for item, found in zip(part, await _read_each(reader, part), strict=True):
            if isinstance(found, CorruptRecordError):
                gone[item] = found
    files = {place >> _format.FILE_SHIFT for _, place in gone}
    lost = find_lost(index, why, files, lambda sequence, place: (sequence, place) in gone)
    return lost, "; ".join(f"{error.location}: {error.problem}" for error in gone.values())


def missing_files(index: Index, there: Container[int]) -> dict[int, str]:
    """Data files that hold something but are not *there*, with what they held."""
    names = {known.pending_list: f" of {name}" for name, known in index.destinations.items()}
    missing: dict[int, str] = {}
    for file_id, use in index.files.items():
        if use.references and file_id not in there:
            counts = Counter(held.pending_list for held in index.held_in(file_id))
            rows = counts.pop(0, 0)
            parts = [f"{n} pending messages{names.get(key, '')}" for key, n in counts.items()]
            if rows:
                parts.append(f"{rows} acknowledged messages for sinks")
            missing[file_id] = ", ".join(parts)
    return missing


@dataclass(slots=True)
class Losses:
    """Drops lost messages while the store runs. For the event loop.

    Attributes: keep: copies what is left of a message aside, if its bytes would not stay where they
        are; returns where to, or "".
    """

    index: Index
    reader: Reader
    report: LossReport
    write: Callable[[list[Operation]], Awaitable[None]]
    executor: Executor
    options: JournalOptions
    keep: Callable[[int], Awaitable[str]]

    async def drop(self, losses: Sequence[Lost]) -> None:
        """Drop what a start found. The report is on disk first. Raises: StoreError, OSError."""
        for lost in filter(None, losses):
            self._report_lost(lost.why, lost.lists)
        released = self.index.log.released
        rows_through = max((lost.rows_through for lost in losses), default=0)
        if rows_through > released:
            self.report.add(
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
            await self.write(operations)
        self.index.release(min(rows_through, self.index.log.last))

    def _report_lost(self, why: str, lists: Mapping[int, Sequence[int]]) -> None:
        if lists:
            self.report.add(
                f"{sum(map(len, lists.values()))} pending messages are lost because {why}:",
                *(f"  {self._name_of(key)}: {_ranges(lists[key])}" for key in sorted(lists)),
            )

    async def read(
        self, pending_list: int, page: Sequence[tuple[int, int]]
    ) -> tuple[Sequence[tuple[int, int]], list[Message]]:
        """The messages of a page, without damaged ones, which are dropped now.

        Raises: CorruptRecordError: the first one is damaged and the policy is not *quarantine* (is
            missing and that is not ignored); StoreError, OSError.
        """
        try:
            return page, await self.reader.read(page)
        except CorruptRecordError:
            each = await _read_each(self.reader, page)
        good: list[tuple[int, int]] = []
        messages: list[Message] = []
        bad: list[int] = []
        for item, found in zip(page, each, strict=True):
            if isinstance(found, Message):
                good.append(item)
                messages.append(found)
                continue
            if not self._drops(found):
                if not good and not bad:
                    raise found
                break  # what comes before it is served
            bad.append(item[0])
            what = "nothing is left of it"
            if not isinstance(found, MissingRecordError):
                kept = await self.keep(item[0])
                where = f"are kept in {kept}" if kept else "stay there until the file is used again"
                what = f"the bytes {where}"
            self.report.add(
                f"{found.location}: message {item[0]} of {self._name_of(pending_list)} cannot "
                f"be read and was dropped; {what}."
            )
        if bad:
            self.report.log()
            await self._write_report()
            await self.write([Discard(pending_list, tuple(bad), DiscardReason.DROPPED)])
        return good, messages

    def _drops(self, error: CorruptRecordError) -> bool:
        is_missing = isinstance(error, MissingRecordError)
        options = self.options
        return options.ignore_missing_journalfiles if is_missing else options.quarantines

    async def adopt(self) -> None:
        """Give pending lists whose owner was lost back to the queues that their messages name.

        That a queue has list 7 is recorded once, in the batch that made the queue, until the next
        checkpoint. If that batch was damaged, the messages of later ones are in a list without owner.
        A subscription cannot be restored: the report names it. Before anybody uses the
        store. Raises: StoreError, OSError.
        """
        index = self.index
        for list_id in sorted(index.lists.keys() - index.owners().keys()):
            count = len(index.lists[list_id])
            if not count:
                continue
            page = index.lists[list_id].page(0, _NAMES_MAX, _ANY_SIZE)
            each = await _read_each(self.reader, page)
            names = {found.destination for found in each if isinstance(found, Message)}
            name = names.pop() if len(names) == 1 else ""
            is_queue = name.startswith(_QUEUE) and not name.startswith(_TEMPORARY)
            if is_queue and name not in index.destinations:
                await self.write([AddDestination(name, list_id)])
                self.report.add(
                    f"That {name} has list {list_id} was lost; its messages say so too, and {count} "
                    "of them are pending again."
                )
                continue
            self.report.add(
                f"{count} messages are pending in list {list_id}, and who had that list was lost"
                + (f"; they were sent to {name}" if name else "")
                + ". Nobody gets them; `tidegate journal inspect` shows them."
            )
        await self._write_report()

    async def _write_report(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self.executor, self.report.write)

    def _name_of(self, list_id: int) -> str:
        match self.index.owners().get(list_id):
            case AddDestination() as found:
                return f"{found.destination} (list {list_id})"
            case Subscription() as found:
                return (
                    f"{found.filter} of client {found.client_id!r}, subscription {found.name!r} "
                    f"of {found.owner!r} (list {list_id})"
                )
            case _:
                return f"list {list_id}, whose destination is not known"


async def _read_each(
    reader: Reader, wanted: Sequence[tuple[int, int]]
) -> Sequence[Message | CorruptRecordError]:
    """The messages at (sequence, location), or what is wrong with them; one by one if need be."""
    try:
        return await reader.read(wanted)
    except CorruptRecordError as error:
        if len(wanted) == 1:
            return [error]
    return [(await _read_each(reader, [item]))[0] for item in wanted]


def _ranges(numbers: Sequence[int]) -> str:
    """``1-3, 7``."""
    steps = itertools.groupby(enumerate(sorted(numbers)), lambda item: item[1] - item[0])
    runs = [[number for _, number in run] for _, run in steps]
    return ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else f"{run[0]}" for run in runs)
