"""Reads the acknowledged log with patience, and finds the one row that is damaged.

A damaged page is asked for in halves until one row is left. That row is a dead letter (or stops the
sink, as the option ``on_bad_row`` says) when the store says twice that it is damaged, or does not
have it. An error that says nothing of the row, such as a disk that does not answer, is waited out, unless
a later row can be read: then it is the row's own all the same.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tidegate.spi import (
    AcknowledgedMessage,
    AcknowledgedReader,
    CorruptRecordError,
    EncodedRows,
    RequestError,
    StoreClosedError,
    StoreError,
)
from tidegate_sink_spark.staging.dead import DeadLetter

#: Rows asked for at once, and of one Arrow batch: what one piece of thread work may be before the loop notices.
CHUNK_ROWS: Final = 1_000
#: Bytes asked from the store at once.
PAGE_BYTES: Final = 4 << 20
RETRY_DELAY_MIN: Final = 0.5
RETRY_DELAY_MAX: Final = 15.0
#: How often a row is asked for whose store only says that it failed, before later rows are looked at.
ATTEMPTS: Final = 4


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Found(Generic[T]):
    """Attributes: rows: that continue without a gap; first: ack sequence of the answer's first row, 0: it has none."""

    rows: list[T]
    first: int
    last: int


class PatientReader:
    """Reads rows behind a position, whatever happens.

    Args:
        report: told what is in the way.
        pause: waits for so many seconds, or until something changed.
        stops: a damaged row is waited for, and never a dead letter.
    """

    def __init__(
        self,
        reader: AcknowledgedReader,
        report: Callable[[str], None],
        pause: Callable[[float], Awaitable[None]],
        *,
        stops: bool,
    ) -> None:
        self._reader = reader
        self._report = report
        self._pause = pause
        self._stops = stops
        self._limit = CHUNK_ROWS
        self._last_bad = 0

    async def read(
        self, after: int, limit: int
    ) -> list[AcknowledgedMessage] | DeadLetter | int | None:
        """At most *limit* rows behind *after*, without a gap; [] at the end of the log.

        Returns: a dead letter in place of the row behind *after*; a number when rows up to it were
            released meanwhile; None when the store is closed.
        """
        return await self._patiently(after, limit, self._rows)

    async def read_encoded(
        self, after: int, limit: int
    ) -> list[EncodedRows] | DeadLetter | int | None:
        """The same rows as they are stored."""
        return await self._patiently(after, limit, self._runs)

    async def _rows(self, after: int, limit: int) -> _Found[AcknowledgedMessage]:
        page = await self._reader.read(after, limit, PAGE_BYTES)
        first = page.rows[0].ack_sequence if page.rows else 0
        return _Found(_dense(list(page.rows), after), first, page.last)

    async def _runs(self, after: int, limit: int) -> _Found[EncodedRows]:
        page = await self._reader.read_encoded(after, limit, PAGE_BYTES)
        first = page.runs[0].first if page.runs else 0
        return _Found(_dense_runs(page.runs, after), first, page.last)

    async def _patiently(
        self, after: int, limit: int, ask: Callable[[int, int], Awaitable[_Found[T]]]
    ) -> list[T] | DeadLetter | int | None:
        attempt = 0
        while True:
            asked = min(limit, self._limit)
            try:
                found = await ask(after, asked)
            except StoreClosedError:
                return None
            except RequestError as exc:
                if self._reader.released > after:
                    return self._reader.released
                error: Exception = exc
            except StoreError as exc:
                error = exc
            else:
                if found.rows or found.last <= after:
                    self._limit = min(asked * 2, CHUNK_ROWS)
                    return found.rows
                error = CorruptRecordError(
                    _answered(found.first, after), location=f"acknowledged row {after + 1}"
                )
            if asked > 1 and isinstance(error, CorruptRecordError):
                self._limit = asked // 2
                continue
            attempt += 1
            if await self._is_bad(error, after, asked, attempt):
                if not self._stops:
                    self._last_bad = after + 1
                    return _letter(after + 1, error)
                self._report(
                    f"row {after + 1} of the acknowledged log is damaged ({error}), and on_bad_row ="
                    ' "stop": bring the store back from a copy, or set on_bad_row = "dead_letter"'
                )
            elif attempt > 1 or not isinstance(error, CorruptRecordError):
                self._report(f"the acknowledged log cannot be read behind {after}: {error}")
            await self._pause(min(RETRY_DELAY_MIN * 2 ** (attempt - 1), RETRY_DELAY_MAX))
            if attempt > 2 and not _is_retryable(error):
                self._limit = 1  # perhaps it is one row

    async def _is_bad(self, error: Exception, after: int, asked: int, attempt: int) -> bool:
        """Tell whether the row behind *after* is itself what *error* is about."""
        if isinstance(error, CorruptRecordError):
            return (
                attempt > 1 or self._last_bad == after
            )  # neighbours of a bad one are not waited for
        if asked > 1 or attempt < ATTEMPTS or _is_retryable(error):
            return False
        step = 1
        while after + step < self._reader.last:
            try:
                if (await self._reader.read(after + step, 1, 1)).rows:
                    return True
            except StoreError:
                pass
            step *= 2
        return False


def _dense(rows: list[AcknowledgedMessage], after: int) -> list[AcknowledgedMessage]:
    """The first of *rows* that continue *after* without a gap.

    Never stage what is not dense: the table's mark would pass rows it has not got.
    """
    if rows and rows[0].ack_sequence == after + 1 and rows[-1].ack_sequence == after + len(rows):
        return rows
    for number, row in enumerate(rows):
        if row.ack_sequence != after + 1 + number:
            return rows[:number]
    return rows


def _dense_runs(runs: Sequence[EncodedRows], after: int) -> list[EncodedRows]:
    """The same of runs."""
    dense: list[EncodedRows] = []
    for run in runs:
        if run.first != after + 1:
            break
        dense.append(run)
        after = run.last
    return dense


def _answered(first: int, after: int) -> str:
    answer = f"begin with {first}" if first else "are none"
    return f"the store does not have it: its rows {answer} when asked for those behind {after}"


def _is_retryable(error: Exception) -> bool:
    return isinstance(error, StoreError) and error.retryable


def _letter(ack_sequence: int, error: Exception) -> DeadLetter:
    known = error.known if isinstance(error, StoreError) else None
    raw = error.raw if isinstance(error, CorruptRecordError) else b""
    return DeadLetter(ack_sequence, str(error), known, raw, time.time_ns() // 1_000)
