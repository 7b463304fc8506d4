"""Takes the acknowledged log and seals it into staged files, off the event loop.

The loop only reads pages and hands them to a builder, which makes Arrow batches of them and writes the
files, in a separate process, so that the loop does not wait for the interpreter's lock. When that dies, what was
open is read again from the log. A segment is sealed when it has enough rows or bytes,
when its first row has waited for ``segment_interval``, or when the table wants it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from tidegate.spi import AcknowledgedReader, EncodedRows, StoreError
from tidegate_sink_spark.staging.building import Bad, Builder, BuilderGoneError
from tidegate_sink_spark.staging.dead import DeadLetter
from tidegate_sink_spark.staging.further import Further
from tidegate_sink_spark.staging.reading import (
    CHUNK_ROWS,
    RETRY_DELAY_MAX,
    RETRY_DELAY_MIN,
    PatientReader,
)
from tidegate_sink_spark.staging.selection import Selection
from tidegate_sink_spark.staging.storage import Amount, StagingDirectory, Waiting, disk_problem

T = TypeVar("T")
log = logging.getLogger(__name__)

#: A short page means that the log's end was reached. Waiting this long (seconds) lets the next
#: page fill, so that a busy log costs at most 20 reads a second and not one per turn of the loop.
GATHER_INTERVAL: Final = 0.05
#: Seconds without a row after which the building process is let go.
REST_INTERVAL: Final = 60.0


@dataclass(frozen=True, slots=True)
class StagingLimits:
    """The options that bound staging; see ``SparkSinkOptions``."""

    segment_rows: int
    segment_bytes: int
    segment_interval: float
    staging_bytes: int
    stops_at_bad_row: bool = False


@dataclass(slots=True, eq=False)
class _Segment:
    """The open segment; the builder has its rows.

    Attributes:
        born: when the oldest row that the sink takes was acknowledged.
        count: rows. taken: those that the sink takes.
        letters: those that could not be read; bad: those that cannot be written.
    """

    number: int
    lo: int
    opened: float
    deadline: float
    born: float | None = None
    count: int = 0
    taken: int = 0
    letters: list[DeadLetter] = field(default_factory=list[DeadLetter])
    bad: list[Bad] = field(default_factory=list[Bad])
    size_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether the sink takes none of its rows."""
        return not self.taken

    @property
    def hi(self) -> int:
        return self.lo + self.count - 1


class Staging:
    """Stages the log of one reader. Runs on the event loop; start it with :meth:`run`."""

    def __init__(
        self,
        reader: AcknowledgedReader,
        directory: Path,
        limits: StagingLimits,
        *,
        builder: Builder,
        selection: Selection | None = None,
        further: Further | None = None,
        is_shared: bool = False,
        on_change: Callable[[], None] = lambda: None,
        on_problem: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Args:
        builder: makes the files.
        selection: which rows the sink takes; None: all.
        further: columns besides those that every table has; None: none.
        is_shared: others read the files, too, as the operator's umask permits.
        on_change: called for a first row and each sealed file.
        on_problem: called with each.
        """
        self._on_problem = on_problem
        self._selection = selection or Selection()
        self._reader = reader
        self._limits = limits
        self._directory = StagingDirectory(
            directory,
            is_shared=is_shared,
            further=(further or Further()).fields,
        )
        self._builder = builder
        self._using = asyncio.Lock()  # the directory
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidegate-staging")
        self._wake = asyncio.Event()
        self._log = PatientReader(
            reader, self._report, self._wait_to_read, stops=limits.stops_at_bad_row
        )
        self._on_change = on_change
        self._segment: _Segment | None = None
        self._segments = 0
        # Of staged files: the last row, see Waiting.oldest.
        self._births: deque[tuple[int, float]] = deque()
        self._wanted_at: float | None = None
        self._sealed_at = float("-inf")
        self._draining = False
        self._floor = 0
        #: Highest ack sequence that is in a sealed file, or was passed by the table.
        self.position = 0
        #: Last ack sequence of the last sealed file, 0 when there was none.
        self.sealed = 0
        self._next_lo = 1  # of the next file, of a sink that does not take all
        self._passed = 0  # nothing from the last file up to here is the sink's
        #: What is staged but not in the table.
        self.amount = Amount()
        #: Dead letters staged since the start.
        self.dead_letters = 0
        self.problem = ""  # what keeps staging from working

    async def recover(self, mark: int) -> None:
        """Find out what is staged; call it before :meth:`run`, and again at any time.

        Args: mark: of the table, 0 while it is not known. Raises: OSError.
        """
        floor = max(mark, self._reader.released)
        async with self._using:
            await self._builder.settled()
            found = await self._in_thread(lambda: self._directory.recover(floor))
        self._floor = floor
        self.position = found.position
        self.sealed = found.position if found.amount.files else 0
        # Too low is fine, too high would be a gap: the job leaves out what its table has.
        self._next_lo = (self.sealed or mark) + 1
        self._passed = 0
        await self._recover_backlog()
        self.amount = found.amount
        log.info(
            "staging recovered position=%d files=%d bytes=%d floor=%d",
            found.position,
            found.amount.files,
            found.amount.size_bytes,
            floor,
        )

    async def run(self) -> None:
        """Stage until :meth:`drain` was called and the log's end is staged, or the store is closed.

        Cancellation: safe; a file may or may not be sealed.
        """
        self._segment = None
        delay = RETRY_DELAY_MIN
        while True:
            sealed = self.sealed
            try:
                if not await self._turn():
                    return
            except BuilderGoneError as exc:
                # What was open is read again; what was sealed is known by its name.
                self._segment = None
                self._report(f"{exc}; rows that were not staged yet are read again")
                await self._pause(delay)
                delay = min(delay * 2, RETRY_DELAY_MAX)
                await self.recover(self._floor)
            if self.sealed > sealed:
                delay = RETRY_DELAY_MIN

    async def _turn(self) -> bool:
        """Read a page, and seal what is due. Returns: whether there may be more. Raises: BuilderGoneError."""
        await self._wait_for_room()
        if self._segment is None and self._floor > self.position:
            self.position = self._floor
        after = self._segment.hi if self._segment else self._reached
        if self._segment is not None and self._floor > after:
            self._segment, self.position = None, self._floor  # the table already has all of it
            return True
        room = self._limits.segment_rows - (self._segment.count if self._segment else 0)
        limit = min(room, CHUNK_ROWS)
        runs = await self._log.read(after, limit)
        if runs is None:
            return False
        if isinstance(runs, int):
            self._floor = max(self._floor, runs)  # discarded meanwhile, by the log's limit
            return True
        if isinstance(runs, DeadLetter):
            self._add_dead(runs)
        elif runs:
            await self._add(runs)
        segment = self._segment
        if segment is not None and self._is_due(segment, at_end=not runs):
            await self._seal(segment)
        elif isinstance(runs, DeadLetter):
            pass
        elif runs:
            if _count(runs) < limit and not self._draining:
                await self._pause(self._until(segment, GATHER_INTERVAL))
        elif self._draining:
            return False
        else:
            await self._rest(after, segment)
        return True

    async def _rest(self, after: int, segment: _Segment | None) -> None:
        """Wait for the next row, or until *segment* is due; without one the builder may end after a while."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await self._wait_beyond(after, self._until(segment, REST_INTERVAL))
        if segment is None and loop.time() - begun >= REST_INTERVAL:
            await self._builder.rest()

    def drain(self) -> None:
        """Make :meth:`run` seal everything acknowledged by now, and return."""
        self._draining = True
        self._wake.set()

    async def discard_through(self, mark: int) -> None:
        """The table has the rows up to *mark*: delete their files. Raises: OSError."""
        while self._births and self._births[0][0] <= mark:
            self._births.popleft()
        async with self._using:
            await self._builder.settled()
            self.amount = await self._in_thread(lambda: self._directory.discard_through(mark))
        self._floor = max(self._floor, mark)
        self._next_lo = max(self._next_lo, mark + 1)
        await self._release_passed()
        self._wake.set()

    @property
    def waiting(self) -> Waiting:
        """What was read but is not in the table."""
        segment, rows = self._segment, self.amount.rows
        births = [self._births[0][1]] if self._births else []
        if segment is not None and segment.born is not None:
            births.append(segment.born)
            rows += segment.taken
        return Waiting(min(births, default=None), len(self._births), rows, self.amount.size_bytes)

    def want(self, at: float | None) -> None:
        """The table could take a file from *at* on, in the loop's time; None: it is busy."""
        if at != self._wanted_at:
            self._wanted_at = at
            self._wake.set()

    def is_sealed_since(self, at: float) -> bool:
        """Whether no row that came before *at* waits to be sealed."""
        segment = self._segment
        return segment is None or segment.born is None or self._sealed_at >= at

    async def close(self) -> None:
        """Wait for the current piece of work and end what does it. Idempotent."""
        await self._builder.close()
        await asyncio.to_thread(self._thread.shutdown)

    # -------------------------------------------------------------------------------- one turn

    def _opened(self, lo: int) -> _Segment:
        """The open segment; a new one from *lo* when there is none."""
        if self._segment is None:
            now = asyncio.get_running_loop().time()
            self._segments += 1
            self._segment = _Segment(self._segments, lo, now, now + self._limits.segment_interval)
        return self._segment

    def _take(self, segment: _Segment, acked_at: int) -> None:
        """The sink takes a row. Args: acked_at: microseconds since the epoch."""
        if segment.born is None:
            segment.born = _since(acked_at / 1e6)
            self._on_change()

    async def _add(self, runs: Sequence[EncodedRows]) -> None:
        segment = self._opened(runs[0].first)
        added = await self._builder.add(segment.number, runs)
        segment.count += _count(runs)
        segment.taken += added.taken
        segment.size_bytes += added.size_bytes
        if added.taken:
            self._take(segment, added.acked_at)
        await self._note(segment, added.bad)

    def _add_dead(self, letter: DeadLetter) -> None:
        segment = self._opened(letter.ack_sequence)
        segment.count += 1
        known = letter.known
        if known is not None and known.message.destination and not self._selection.of([known]):
            return
        segment.taken += 1
        segment.letters.append(letter)
        self._take(segment, known.acked_at if known is not None and known.acked_at else letter.at)
        segment.size_bytes += len(letter.raw) + 200

    async def _note(self, segment: _Segment, bad: Sequence[Bad]) -> None:
        """Rows cannot be written; if that stops the sink, this never returns."""
        delay = RETRY_DELAY_MIN
        while bad and self._limits.stops_at_bad_row:
            self._report(
                f"row {bad[0].ack_sequence} cannot be written ({bad[0].reason}), and on_bad_row ="
                ' "stop": set on_bad_row = "dead_letter"'
            )
            await self._pause(delay)
            delay = min(delay * 2, RETRY_DELAY_MAX)
        segment.bad += bad

    async def _wait_to_read(self, seconds: float) -> None:
        """The next row does not come: the rows already read must not wait for it."""
        if self._segment is not None:
            problem = self.problem
            await self._seal(self._segment)
            self.problem = problem
        await self._pause(seconds)

    def _is_due(self, segment: _Segment, *, at_end: bool) -> bool:
        return (
            segment.count >= self._limits.segment_rows
            or segment.size_bytes >= self._limits.segment_bytes
            or asyncio.get_running_loop().time() >= self._due_at(segment)
            or (at_end and self._draining)
        )

    def _due_at(self, segment: _Segment) -> float:
        if self._wanted_at is None or segment.born is None:
            return segment.deadline
        # The first of many rows should not become a file alone.
        return min(segment.deadline, max(self._wanted_at, segment.opened + GATHER_INTERVAL))

    async def _recover_backlog(self) -> None:
        """What was staged before: when its rows were acknowledged is unknown, only when it was sealed."""
        found = await self._in_thread(self._directory.times)
        kept = ((file.hi, _since(at)) for file, at in found if file.hi > self._floor)
        self._births = deque(kept)
        self._on_change()

    async def _seal(self, segment: _Segment) -> None:
        """Seal *segment*, however long the disk refuses: its rows stay here and in the store."""
        if segment.is_empty:
            self._passed, self._segment = segment.hi, None
            await self._release_passed()
            return
        await self._note(segment, await self._builder.build(segment.number))
        lo = segment.lo if self._selection.takes_all else self._next_lo
        hi = segment.hi
        delay = RETRY_DELAY_MIN
        while True:
            try:
                async with self._using:
                    file = await self._builder.seal(
                        segment.number, lo, hi, segment.taken, segment.letters
                    )
            except OSError as exc:
                self._report(disk_problem(exc))
                await self._pause(delay)
                delay = min(delay * 2, RETRY_DELAY_MAX)
                continue
            if file.dead:
                self._tell_dead(segment)
            self.position = self.sealed = hi
            self._next_lo = hi + 1
            self.amount = self.amount.plus(file)
            self.problem = ""
            self._segment = None
            now = self._sealed_at = asyncio.get_running_loop().time()
            born = now if segment.born is None else segment.born
            self._births.append((hi, born))
            self._on_change()
            return

    def _tell_dead(self, segment: _Segment) -> None:
        """Report rows of *segment* that became dead letters."""
        dead = [*segment.bad, *segment.letters]
        first = min(dead, key=lambda letter: letter.ack_sequence)
        self.dead_letters += len(dead)
        log.error(
            "dead letters rows=%d from=%d to=%d first reason=%r: they go to the dead-letter table",
            len(dead),
            first.ack_sequence,
            max(letter.ack_sequence for letter in dead),
            first.reason,
        )

    @property
    def _reached(self) -> int:
        """What was read and need not be read again, while no segment is open."""
        return max(self.position, self._passed)

    async def _release_passed(self) -> None:
        """Release rows that the sink does not take, once the table has those before them."""
        if self._passed > self._floor >= self.sealed:
            try:
                await self._reader.release(self._passed)
            except StoreError as exc:  # a late release loses nothing; the next one tries again
                self._report(f"rows that the sink does not take cannot be released yet: {exc}")

    # --------------------------------------------------------------------------------- waiting

    async def _wait_for_room(self) -> None:
        limit = self._limits.staging_bytes
        if self.amount.size_bytes < limit:
            return
        self._report(
            f"staged files have reached staging_max ({self.amount.size_bytes} of {limit} bytes) because "
            "the table does not follow; the store keeps the log meanwhile"
        )
        while self.amount.size_bytes >= limit:
            await self._pause(None)
        self.problem = ""

    def _until(self, segment: _Segment | None, longest: float | None) -> float | None:
        """Seconds until *segment* is due, at most *longest*."""
        if segment is None:
            return longest
        left = max(0.0, self._due_at(segment) - asyncio.get_running_loop().time())
        return left if longest is None else min(left, longest)

    async def _pause(self, seconds: float | None) -> None:
        """Wait for *seconds*, or until something changes (drain, mark)."""
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _wait_beyond(self, after: int, seconds: float | None) -> None:
        """Wait for a row after *after*, a change, or the end of *seconds*."""
        self._wake.clear()
        waits = [_task(self._reader.wait_beyond(after)), _task(self._wake.wait())]
        try:
            done, _ = await asyncio.wait(
                waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        for task in done:
            failure = task.exception()
            if failure is not None and not isinstance(failure, StoreError):
                raise failure  # a StoreError comes again from read(), where it is handled

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("staging problem=%r", problem)
            self.problem = problem
            self._on_problem(problem)


def _since(seconds: float) -> float:
    """A time since the epoch on the loop's clock, which nobody sets; a future time is now."""
    return asyncio.get_running_loop().time() - max(0.0, time.time() - seconds)


def _count(runs: Sequence[EncodedRows]) -> int:
    """How many rows *runs* have."""
    return sum(map(len, runs))


def _task(work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
    return asyncio.ensure_future(work)
