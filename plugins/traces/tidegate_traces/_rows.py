"""What is remembered of traced messages from their acknowledgement until sinks have committed their rows: bounded.

A sink's commit covers seconds or minutes, so its spans come many at a time: they are taken in portions, and
what a sink has said meanwhile is kept with the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from opentelemetry.trace import SpanContext

from tidegate.spi import HoldFor, SinkCommit, SinkProgress
from tidegate_traces._spans import Sent

#: Of one sink that wait for their rows to be gone through; later ones are joined, and their rows' commits are
#: not told apart any more.
_STEPS_MAX: Final = 100
#: What a row takes beside the message: measured, and rounded up.
_ROW_BYTES: Final = 400


class Row(NamedTuple):
    """A traced message in the acknowledged log.

    Attributes: number: its ack sequence; settled: the span before; began: the acknowledgement, nanoseconds
        since the epoch.
    """

    number: int
    sent: Sent
    settled: SpanContext
    began: int

    @property
    def size(self) -> int:
        """Memory that it takes, bytes. What else remembers the message counts it, too."""
        return _ROW_BYTES + self.sent.size


class Committed(NamedTuple):
    """A row that is in a table. Attributes: at: microseconds since the epoch, 0: unknown; version: of the
    table, 0: unknown."""

    row: Row
    sink: str
    table: str
    at: int
    version: int


class _Sink:
    """How far its rows are gone through. Attributes: next: place of the next one; steps: what it said since."""

    __slots__ = ("next", "steps")

    def __init__(self, first: int) -> None:
        self.next = first
        self.steps: deque[SinkProgress] = deque()


class RowsOnTheirWay:
    """Rows in the order of their numbers.

    Args: limit: how many; hold: counts them for those who published the messages.
    """

    __slots__ = ("_end", "_first", "_hold", "_limit", "_rows", "_sinks", "forgotten")

    def __init__(self, limit: int, hold: HoldFor) -> None:
        self._limit = limit
        self._hold = hold
        self._rows: dict[int, Row] = {}  # by place: _first, _first + 1, … _end - 1
        self._first = self._end = 0
        self._sinks: dict[str, _Sink] = {}
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_due(self) -> bool:
        """Some may be in a table by now that have not been taken."""
        return any(sink.steps for sink in self._sinks.values())

    def put(self, row: Row) -> None:
        """Remember *row*, whose number is not below the last one's; the oldest makes room.

        One whose owner has no room for it is forgotten itself.
        """
        if len(self._rows) >= self._limit:
            self._drop_first()
            self.forgotten += 1
        if not self._hold(row.sent.owner, row.size):
            self.forgotten += 1
            return
        self._rows[self._end] = row
        self._end += 1

    def carried(self, sinks: Sequence[SinkProgress]) -> None:
        """See Observer. All sinks are there each time: a row is dropped when each has it, or has passed it."""
        for progress in sinks:
            sink = self._sinks.setdefault(progress.name, _Sink(self._first))
            if len(sink.steps) >= _STEPS_MAX:
                sink.steps.pop()
            sink.steps.append(progress)

    def take(self, count: int) -> Iterator[Committed]:
        """Go through what is due, *count* rows of sinks at most; those that are in a table."""
        for name, sink in self._sinks.items():
            while sink.steps and count > 0:
                progress = sink.steps[0]
                row = self._rows.get(sink.next)
                mark = progress.health.mark
                if row is None or row.number > max(mark, progress.released):
                    sink.steps.popleft()
                    continue
                sink.next += 1
                count -= 1
                # (Behind the mark: the log let go of it before the table had it.)
                table = progress.target_of(row.sent.destination) if row.number <= mark else ""
                if table:
                    yield _committed(row, name, table, progress)
        while self._rows and all(sink.next > self._first for sink in self._sinks.values()):
            self._drop_first()

    def _drop_first(self) -> None:
        row = self._rows.pop(self._first)
        self._hold(row.sent.owner, -row.size)
        self._first += 1
        for sink in self._sinks.values():
            sink.next = max(sink.next, self._first)


def _committed(row: Row, sink: str, table: str, progress: SinkProgress) -> Committed:
    commit: SinkCommit | None = progress.health.last_commit
    if commit is None or not commit.after < row.number <= commit.through:
        return Committed(row, sink, table, 0, 0)
    version = commit.version if table == progress.health.target else 0
    return Committed(row, sink, table, commit.at, version)
