"""Rows of the acknowledged log for readers other than sinks: a page at a time, whatever is wrong in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.broker.limits.acknowledged import AcknowledgedLog
from tidegate.spi import AcknowledgedMessage, AcknowledgedPage, CorruptRecordError, RequestError
from tidegate.spi.operate import LOG_BODY_MAX, DamagedRow, LogRows, ReadLog

#: Bytes of bodies requested from the store at once: an answer of that size takes some milliseconds.
_PAGE_BYTES: Final = 1 << 20


async def log_rows(log: AcknowledgedLog, request: ReadLog) -> LogRows:
    """The answer to *request*. Raises: StoreError. Cancellation: safe."""
    after, limit = request.after, request.limit
    while True:
        after = max(after, _released(log))
        try:
            page = await log.rows.acknowledged(after, limit, _PAGE_BYTES)
            rows, through = _bounded(page.rows, after)
            found = await log.with_bodies(AcknowledgedPage(rows, page.last), bytes_max=LOG_BODY_MAX)
        except RequestError:
            if _released(log) <= after:
                raise
        except CorruptRecordError as error:
            if limit == 1:
                return LogRows((), after + 1, (DamagedRow(after + 1, str(error)),))
            limit = 1  # it may be a later one
        else:
            return LogRows(tuple(found.rows), through)


def _released(log: AcknowledgedLog) -> int:
    return log.rows.log_statistics().first - 1


def _bounded(
    rows: Sequence[AcknowledgedMessage], after: int
) -> tuple[Sequence[AcknowledgedMessage], int]:
    """The first of *rows* that are not too large together, and how far they go."""
    for count, row in enumerate(rows):
        if row.message.large is None:
            continue
        count = max(count, 1)  # it comes alone
        return rows[:count], after + count
    return rows, after + len(rows)
