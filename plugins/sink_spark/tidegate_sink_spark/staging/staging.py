"""Takes the acknowledged log and seals it into staged files, off the event loop.

The loop only reads pages and hands chunks to one thread; that thread builds the Arrow batches
and writes the files, so its work is in order and never two things at a time. A segment is sealed when it has
enough rows or bytes, or when its first row has waited for ``segment_interval``.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from tidegate.spi import AcknowledgedMessage, AcknowledgedReader, StoreClosedError, StoreError
from tidegate_sink_spark.staging import arrow
from tidegate_sink_spark.staging.storage import StagingDirectory

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Rows of one Arrow batch: what one piece of thread work may be before the loop notices.
CHUNK_ROWS: Final = 1_000
#: Bytes asked from the store at once.
PAGE_BYTES: Final = 4 << 20
#: A short page means that the log's end was reached. Waiting this long (seconds) lets the next
#: page fill, so that a busy log costs at most 20 reads a second and not one per turn of the loop.
GATHER_INTERVAL: Final = 0.05
RETRY_DELAY_MIN: Final = 0.5
RETRY_DELAY_MAX: Final = 15.0


@dataclass(frozen=True, slots=True)
class StagingLimits:
    """The options that bound staging; see ``SparkSinkOptions``."""

    segment_rows: int
    segment_bytes: int
    segment_interval: float
    staging_bytes: int


class _Segment:
    """The open segment: rows not built yet, and built batches."""

    __slots__ = ("batches", "built", "deadline", "lo", "rows", "size_bytes")

    def __init__(self, lo: int, deadline: float) -> None:
        self.lo = lo
        self.deadline = deadline
        self.rows: list[AcknowledgedMessage] = []
        self.batches: list[Any] = []
        self.built = 0
        self.size_bytes = 0

    @property
    def count(self) -> int:
        return self.built + len(self.rows)

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
        gateway_name: str,
        write_parquet: arrow.ParquetWriter = arrow.write_parquet,
    ) -> None:
        self._reader = reader
        self._limits = limits
        self._gateway_name = gateway_name
        self._directory = StagingDirectory(directory, write_parquet=write_parquet)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidegate-staging")
        self._wake = asyncio.Event()
        self._draining = False
        self._floor = 0
        #: Highest ack sequence that is in a sealed file, or was passed by the table.
        self.position = 0
        #: Bytes of the staged files.
        self.size_bytes = 0
        #: What keeps staging from its work, "" when nothing does.
        self.problem = ""

    async def recover(self, mark: int) -> None:
        """Find out what is staged; must be called before :meth:`run`, and may be called again.

        Args: mark: of the table, 0 while it is not known. Raises: OSError.
        """
        floor = max(mark, self._reader.released)
        found = await self._in_thread(lambda: self._directory.recover(floor))
        self._floor = floor
        self.position = found.position
        self.size_bytes = found.size_bytes
        log.info(
            "staging recovered position=%d files=%d bytes=%d floor=%d",
            found.position,
            found.files,
            found.size_bytes,
            floor,
        )

    async def run(self) -> None:
        """Stage until :meth:`drain` was called and the log's end is staged, or the store is closed.

        Cancellation: safe; a file may or may not be sealed.
        """
        segment: _Segment | None = None
        while True:
            await self._wait_for_room()
            if segment is None and self._floor > self.position:
                self.position = self._floor
            after = segment.hi if segment else self.position
            if segment is not None and self._floor > after:
                segment, self.position = None, self._floor  # the table has all of it already
                continue
            rows = await self._read(after, segment)
            if rows is None:
                return
            if rows:
                segment = await self._add(segment, rows)
            if segment is not None and self._is_due(segment, at_end=not rows):
                await self._seal(segment)
                segment = None
            elif rows:
                if len(rows) < CHUNK_ROWS and not self._draining:
                    await self._pause(self._until(segment, GATHER_INTERVAL))
            elif self._draining:
                return
            else:
                after = segment.hi if segment else self.position
                await self._wait_beyond(after, self._until(segment, None))

    def drain(self) -> None:
        """Make :meth:`run` seal all that is acknowledged by now, and return."""
        self._draining = True
        self._wake.set()

    async def discard_through(self, mark: int) -> None:
        """The table has the rows up to *mark*: delete their files. Raises: OSError."""
        self.size_bytes = await self._in_thread(lambda: self._directory.discard_through(mark))
        self._floor = max(self._floor, mark)
        self._wake.set()

    async def close(self) -> None:
        """Wait for the thread's present piece of work and end it. Idempotent."""
        await asyncio.to_thread(self._thread.shutdown)

    # -------------------------------------------------------------------------------- one turn

    async def _read(self, after: int, segment: _Segment | None) -> list[AcknowledgedMessage] | None:
        """Rows behind *after*; None when the store is closed."""
        limit = self._limits.segment_rows - (segment.count if segment else 0)
        delay = RETRY_DELAY_MIN
        while True:
            try:
                page = await self._reader.read(after, min(limit, CHUNK_ROWS), PAGE_BYTES)
            except StoreClosedError:
                return None
            except StoreError as exc:
                self._report(f"the acknowledged log cannot be read behind {after}: {exc}")
                await self._pause(delay)
                delay = min(delay * 2, RETRY_DELAY_MAX)
                continue
            rows = list(page.rows)
            if rows and (rows[0].ack_sequence, rows[-1].ack_sequence) != (
                after + 1,
                after + len(rows),
            ):
                # Never stage what is not dense: the table's mark would pass rows it has not got.
                self._report(
                    f"the store answered ack sequences {rows[0].ack_sequence} to "
                    f"{rows[-1].ack_sequence} ({len(rows)} rows) when asked for those behind {after}"
                )
                await self._pause(delay)
                delay = min(delay * 2, RETRY_DELAY_MAX)
                continue
            return rows

    async def _add(self, segment: _Segment | None, rows: list[AcknowledgedMessage]) -> _Segment:
        if segment is None:
            now = asyncio.get_running_loop().time()
            segment = _Segment(rows[0].ack_sequence, now + self._limits.segment_interval)
        segment.rows += rows
        segment.size_bytes += sum(map(arrow.row_bytes, rows))
        if len(segment.rows) >= CHUNK_ROWS:
            await self._build(segment)
        return segment

    async def _build(self, segment: _Segment) -> None:
        rows, segment.rows = segment.rows, []
        gateway_id, epoch = self._gateway_name, self._reader.store_id
        for start in range(0, len(rows), CHUNK_ROWS):
            chunk = rows[start : start + CHUNK_ROWS]
            batch = await self._in_thread(
                lambda chunk=chunk: arrow.build_batch(chunk, gateway_id, epoch)
            )
            segment.batches.append(batch)
            segment.built += len(chunk)

    def _is_due(self, segment: _Segment, *, at_end: bool) -> bool:
        return (
            segment.count >= self._limits.segment_rows
            or segment.size_bytes >= self._limits.segment_bytes
            or asyncio.get_running_loop().time() >= segment.deadline
            or (at_end and self._draining)
        )

    async def _seal(self, segment: _Segment) -> None:
        """Seal *segment*, however long the disk refuses: its rows stay here, and in the store."""
        await self._build(segment)
        lo, hi, batches = segment.lo, segment.hi, segment.batches
        delay = RETRY_DELAY_MIN
        while True:
            try:
                file = await self._in_thread(lambda: self._directory.seal(lo, hi, batches))
            except OSError as exc:
                self._report(_disk_problem(exc))
                await self._pause(delay)
                delay = min(delay * 2, RETRY_DELAY_MAX)
                continue
            self.position = hi
            self.size_bytes += file.size_bytes
            self.problem = ""
            return

    # --------------------------------------------------------------------------------- waiting

    async def _wait_for_room(self) -> None:
        limit = self._limits.staging_bytes
        if self.size_bytes < limit:
            return
        self._report(
            f"staged files have reached staging_max ({self.size_bytes} of {limit} bytes) because "
            "the table does not follow; the store keeps the log meanwhile"
        )
        while self.size_bytes >= limit:
            await self._pause(None)
        self.problem = ""

    def _until(self, segment: _Segment | None, longest: float | None) -> float | None:
        """Seconds until *segment* is due, at most *longest*."""
        if segment is None:
            return longest
        left = max(0.0, segment.deadline - asyncio.get_running_loop().time())
        return left if longest is None else min(left, longest)

    async def _pause(self, seconds: float | None) -> None:
        """Wait for *seconds*, or until something changed (drain, mark)."""
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _wait_beyond(self, after: int, seconds: float | None) -> None:
        """Wait for a row behind *after*, a change, or the end of *seconds*."""
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


def _task(work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
    return asyncio.ensure_future(work)


def _disk_problem(exc: OSError) -> str:
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no room left for staged files ({exc}); the store keeps the log; free some space"
    return f"staged files cannot be written ({exc}); the store keeps the log"
