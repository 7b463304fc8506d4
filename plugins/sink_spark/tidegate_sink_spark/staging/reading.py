"""Reads the acknowledged log patiently, and finds the one row that is damaged.

A damaged page is read in halves until one row is left. That row is a dead letter (or stops the
sink, as the option ``on_bad_row`` says) once the store says twice that it is damaged or
missing. An error that says nothing about the row, such as a disk that does not answer, is waited out, unless
a later row can be read: then it is the row's own after all.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

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
from tidegate_sink_spark.staging.rows import LogRows

#: Rows read at once, and of one Arrow batch: the longest piece of thread work before the loop notices.
CHUNK_ROWS: Final = 1_000
#: Bytes read from the store at once.
PAGE_BYTES: Final = 4 << 20
RETRY_DELAY_MIN: Final = 0.5
RETRY_DELAY_MAX: Final = 15.0
#: How often a row is tried for which the store only reports a failure, before later rows are tried.
ATTEMPTS: Final = 4


class PatientReader:
    """Reads rows after a position, whatever happens.

    Args:
        report: called with whatever is in the way.
        pause: waits for that many seconds, or until something changed.
        stops: a damaged row is waited for, and never becomes a dead letter.
        page_bytes: read from the store at once.
    """

    def __init__(
        self,
        reader: AcknowledgedReader,
        report: Callable[[str], None],
        pause: Callable[[float], Awaitable[None]],
        *,
        stops: bool,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self._reader = reader
        self._report = report
        self._pause = pause
        self._stops = stops
        self._page_bytes = page_bytes
        self._limit = CHUNK_ROWS
        self._last_bad = 0

    async def read(self, after: int, limit: int) -> list[EncodedRows] | DeadLetter | int | None:
        """At most *limit* rows after *after* as they are stored, without a gap; [] at the end of the log.

        Returns: a dead letter in place of the row after *after*; a number when rows up to it were
            released meanwhile; None when the store is closed.
        """
        attempt = 0
        while True:
            asked = min(limit, self._limit)
            try:
                page = await self._reader.read_encoded(after, asked, self._page_bytes)
            except StoreClosedError:
                return None
            except RequestError as exc:
                if self._reader.released > after:
                    return self._reader.released
                error: Exception = exc
            except StoreError as exc:
                error = exc
            else:
                runs = _dense(page.runs, after)
                if runs or page.last <= after:
                    self._limit = min(asked * 2, CHUNK_ROWS)
                    return runs
                first = page.runs[0].first if page.runs else 0
                error = CorruptRecordError(
                    _answered(first, after), location=f"acknowledged row {after + 1}"
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
                self._limit = 1  # perhaps a single row is bad

    async def _is_bad(self, error: Exception, after: int, asked: int, attempt: int) -> bool:
        """Tell whether *error* is about the row after *after* itself."""
        if isinstance(error, CorruptRecordError):
            return attempt > 1 or self._last_bad == after  # no waiting for neighbours of a bad one
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


def _dense(runs: Sequence[EncodedRows], after: int) -> list[EncodedRows]:
    """The first of *runs* that continue *after* without a gap.

    Never stage what is not dense: the table's mark would pass rows that it lacks.
    """
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


@dataclass(frozen=True, slots=True)
class Decoded:
    """What runs hold.

    Attributes: rows; letters: rows whose message cannot be decoded.
    """

    rows: LogRows
    letters: list[DeadLetter]


def decoded(runs: Iterable[EncodedRows]) -> Decoded:
    """The rows of *runs*, and those that cannot be decoded."""
    found = Decoded(LogRows(), [])
    for run in runs:
        try:
            found.rows.add_run(run, run.decode_messages())
        except msgspec.DecodeError:
            _decode_each(run, found)
    return found


def _decode_each(run: EncodedRows, found: Decoded) -> None:
    for number, row in enumerate(run.decode_each()):
        raw = run.messages[number]
        if isinstance(row, AcknowledgedMessage):
            found.rows.add(row)
            continue
        known, reason = run.without_message(number), f"the message cannot be decoded: {row}"
        now = time.time_ns() // 1_000
        found.letters.append(DeadLetter(run.first + number, reason, known, raw, now))
