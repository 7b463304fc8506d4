"""Bounded memory of acknowledged traced messages until sinks have committed their rows.

A sink's commit covers seconds or minutes, so its spans come many at a time. They are taken in
portions, and the sinks' reports in between are kept with the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from opentelemetry.trace import SpanContext

from tidegate.spi import HoldFor, SinkCommit, SinkProgress
from tidegate_traces._spans import Sent

#: Commits of one sink that may wait for their rows to be handled; later ones are merged, and their
#: rows no longer told apart.
_STEPS_MAX: Final = 100
#: Memory of a row besides the message: measured, rounded up.
_ROW_BYTES: Final = 400


class Row(NamedTuple):
    """A traced message in the acknowledged log.

    Attributes: number: its ack sequence; settled: the span before; began: the acknowledgement,
        nanoseconds since the epoch.
    """

    number: int
    sent: Sent
    settled: SpanContext
    began: int

    @property
    def size(self) -> int:
        """Memory that it takes, bytes. Other holders of the message count it too."""
        return _ROW_BYTES + self.sent.size


class Committed(NamedTuple):
    """A row in a table. Attributes: at: microseconds since the epoch, 0: unknown; version: of the
    table, 0: unknown."""

    row: Row
    sink: str
    table: str
    at: int
    version: int


class _Sink:
    """How far a sink's rows are handled. Attributes: next: next place; steps: its reports since."""

    __slots__ = ("next", "steps")

    def __init__(self, first: int) -> None:
        self.next = first
        self.steps: deque[SinkProgress] = deque()


class RowsOnTheirWay:
    """Rows in the order of their numbers.

    Args: limit: how many; hold: charges them to the messages' publishers.
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
        """Whether some rows not yet taken may be in a table by now."""
        return any(sink.steps for sink in self._sinks.values())

    def put(self, row: Row) -> None:
        """Remember *row*, whose number is at least the last one's; evicts the oldest if full.

        A row whose owner has no room is itself dropped.
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
        """See Observer. Gets all sinks each time: a row goes once each has taken or passed it."""
        for progress in sinks:
            sink = self._sinks.setdefault(progress.name, _Sink(self._first))
            if len(sink.steps) >= _STEPS_MAX:
                sink.steps.pop()
            sink.steps.append(progress)

    def take(self, count: int) -> Iterator[Committed]:
        """Handle what is due, at most *count* rows of sinks; yields those in a table."""
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
                # (Past the mark: the log released it before the table had it.)
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
