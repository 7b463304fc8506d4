"""The open segment as Arrow batches, and the file that it becomes: work that may run in a separate process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from tidegate.spi import AcknowledgedMessage, EncodedRows
from tidegate_sink_spark.staging import arrow
from tidegate_sink_spark.staging.dead import DeadLetter, build_dead
from tidegate_sink_spark.staging.encoded.batch import UNUSUAL, build_encoded
from tidegate_sink_spark.staging.files import StagedFile
from tidegate_sink_spark.staging.further import Further
from tidegate_sink_spark.staging.reading import decoded
from tidegate_sink_spark.staging.rows import LogRows
from tidegate_sink_spark.staging.selection import Selection
from tidegate_sink_spark.staging.storage import StagingDirectory

#: Rows of one Arrow batch, or bytes: enough to outweigh its cost, and few enough for the processor's cache.
BATCH_ROWS: Final = 4_000
BATCH_BYTES: Final = 4 << 20
#: Rows, if they are made into objects first.
_OBJECT_ROWS: Final = 1_000


class BuilderGoneError(Exception):
    """What was added to the open segment is lost; the log still has it. The text is for operators."""


class Bad(msgspec.Struct, frozen=True):
    """A row that cannot be written, and so becomes a dead letter."""

    ack_sequence: int
    reason: str


class Added(msgspec.Struct, frozen=True, tag=True):
    """What became of rows.

    Attributes:
        taken: how many are the sink's. acked_at: of the first of them; 0: there is none.
        size_bytes: what those count as.
        bad: dead letters found meanwhile, also among rows added earlier.
    """

    taken: int
    acked_at: int = 0
    size_bytes: int = 0
    bad: tuple[Bad, ...] = ()


class Builder(Protocol):
    """Holds one open segment, by number: a call with another number discards what it held.

    One call at a time; a cancelled one continues in the background until :meth:`settled` returns.
    """

    async def add(self, segment: int, runs: Sequence[EncodedRows]) -> Added:
        """Args: runs: of consecutive rows. Raises: BuilderGoneError."""
        ...

    async def build(self, segment: int) -> tuple[Bad, ...]:
        """Make batches of the remaining rows. Raises: BuilderGoneError."""
        ...

    async def seal(
        self, segment: int, lo: int, hi: int, taken: int, letters: Sequence[DeadLetter]
    ) -> StagedFile:
        """Write the file for *lo* to *hi*, with further dead *letters*; nothing is held afterwards.

        Args: taken: how many rows of that range are the sink's, dead letters included.

        Raises: OSError: all of it is still held; BuilderGoneError.
        """
        ...

    async def settled(self) -> None:
        """Wait until nothing is in progress."""
        ...

    async def rest(self) -> None:
        """Nothing will happen for long, and no segment is open."""
        ...

    async def close(self) -> None:
        """Wait for work in progress, and end. Idempotent."""
        ...


class Segment:
    """The work itself; blocks. Used by one thread.

    Args: further: columns besides those that all tables have.
    """

    def __init__(
        self,
        directory: StagingDirectory,
        gateway_id: str,
        epoch: str,
        selection: Selection,
        further: Further,
    ) -> None:
        self._directory = directory
        self._gateway_id = gateway_id
        self._epoch = epoch
        self._selection = selection
        self._further = further
        self._number = 0
        self._runs: list[EncodedRows] = []
        self._count = self._size = 0  # their rows, and the bytes of these
        self._batches: list[Any] = []
        self._dead: list[DeadLetter] = []

    def add(self, number: int, runs: Iterable[EncodedRows]) -> Added:
        """See :meth:`Builder.add`."""
        self._open(number)
        taken = self._selection.of_runs(runs)
        count = sum(map(len, taken))
        size_bytes = sum([sum(map(len, run.messages)) for run in taken])
        self._runs += taken
        self._count += count
        self._size += size_bytes
        is_full = self._count >= BATCH_ROWS or self._size >= BATCH_BYTES
        bad = self.build(number) if is_full else ()
        return Added(count, taken[0].acked_at if taken else 0, size_bytes, bad)

    def build(self, number: int) -> tuple[Bad, ...]:
        """See :meth:`Builder.build`."""
        self._open(number)
        runs, self._runs, self._count, self._size = self._runs, [], 0, 0
        if not runs:
            return ()
        batches, found = self._built_at_once(runs) or self._built_of_objects(runs)
        self._batches += batches
        self._dead += found
        return tuple(Bad(letter.ack_sequence, letter.reason) for letter in found)

    def seal(
        self, number: int, lo: int, hi: int, taken: int, letters: Sequence[DeadLetter]
    ) -> StagedFile:
        """See :meth:`Builder.seal`; call :meth:`build` first. Raises: OSError."""
        self._open(number)
        assert not self._runs, "a segment is built before it is sealed"
        dead = sorted([*self._dead, *letters], key=lambda letter: letter.ack_sequence)
        count = sum(batch.num_rows for batch in self._batches) + len(dead)
        assert count == taken, f"{count} rows are held of {lo} to {hi} instead of {taken}"
        batches = build_dead(dead, self._gateway_id, self._epoch, self._further)
        file = self._directory.seal(lo, hi, self._batches, batches)
        self._open(0)
        return file

    def _open(self, number: int) -> None:
        if number != self._number:
            self._number = number
            self._runs, self._batches, self._dead = [], [], []
            self._count = self._size = 0

    def _built_at_once(
        self, runs: Sequence[EncodedRows]
    ) -> tuple[list[Any], list[DeadLetter]] | None:
        """*runs* as one batch; None when something needs a look row by row."""
        try:
            batch = build_encoded(runs, self._gateway_id, self._epoch)
            found = self._further.read_encoded(runs, batch)
        except MemoryError:
            raise
        except (*UNUSUAL, msgspec.DecodeError):
            return None
        return None if found.bad else ([found.behind(batch)], [])

    def _built_of_objects(self, runs: Sequence[EncodedRows]) -> tuple[list[Any], list[DeadLetter]]:
        """*runs* as batches, and the rows that do not fit, or cannot be decoded."""
        found = decoded(runs)
        batches: list[Any] = []
        letters = found.letters
        for start in range(0, len(found.rows), _OBJECT_ROWS):
            more, dead = self._built(found.rows.part(start, start + _OBJECT_ROWS))
            batches += more
            letters += dead
        return batches, letters

    def _built(self, rows: LogRows) -> tuple[list[Any], list[DeadLetter]]:
        """*rows* as batches, and those rows that do not fit."""
        dead: list[DeadLetter] = []
        try:
            found = self._further.read(rows.messages)
            if found.bad:
                dead = [_unfit(rows[number], reason) for number, reason in found.bad.items()]
                rows = rows.only([n for n in range(len(rows)) if n not in found.bad])
                found = found.without_bad()
            if not rows:
                return [], dead
            return [found.behind(arrow.build_batch(rows, self._gateway_id, self._epoch))], dead
        except MemoryError:
            raise
        except arrow.UNWRITABLE as exc:
            if len(rows) > 1:
                middle = len(rows) // 2
                first = self._built(rows.part(0, middle))
                second = self._built(rows.part(middle, len(rows)))
                return first[0] + second[0], dead + first[1] + second[1]
            return [], [*dead, _unfit(rows[0], exc)]


def _unfit(row: AcknowledgedMessage, why: object) -> DeadLetter:
    reason = f"the row does not fit the table: {why}"
    return DeadLetter(row.ack_sequence, reason, row, row.message.body, time.time_ns() // 1_000)
