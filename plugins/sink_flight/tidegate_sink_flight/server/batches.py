"""Turns rows from the gateway into Arrow batches, a few pages at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from tidegate.spi import AcknowledgedMessage
from tidegate_sink_flight import _protocol as protocol
from tidegate_sink_spark.staging.arrow import UNWRITABLE, build_batch
from tidegate_sink_spark.staging.dead import DeadLetter, build_dead

#: A batch ends with the page that reaches one of these; a reader holds at most that and a page.
BATCH_ROWS: Final = 4_000
BATCH_BYTES: Final = 4 << 20
#: A client only learns that a row is damaged: it may have no right to see what is left of it.
DAMAGED: Final = "this row is damaged in the gateway's store; its log says more"

Asking = Callable[[int], "Future[protocol.Answer]"]


class Batches:
    """Iterates over the batches of one range, in order, asking one page ahead.

    Args:
        ask: requests the page after a row.
        unpack: returns the rows of an answer. Raises: the error for the client.
        done: called once, when there are no more or nobody wants more.
        columns: only these; None: all.
    """

    def __init__(
        self,
        ask: Asking,
        unpack: Callable[[Future[protocol.Answer]], protocol.Rows],
        done: Callable[[], None],
        *,
        gateway_name: str,
        epoch: str,
        after: int,
        through: int,
        columns: list[str] | None,
    ) -> None:
        self._ask = ask
        self._unpack = unpack
        self._done: Callable[[], None] | None = done
        self._gateway_name = gateway_name
        self._epoch = epoch
        self._through = through
        self._columns = columns
        self._ready: list[Any] = []
        self._page = ask(after) if after < through else None

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        try:
            while not self._ready and self._page is not None:
                self._ready = self._gather()
        except BaseException:
            self.close()
            raise
        if not self._ready:
            self.close()
            raise StopIteration
        batch = self._ready.pop(0)
        return batch if self._columns is None else batch.select(self._columns)

    def __del__(self) -> None:
        self.close()  # the client has gone; a generator never started would not notice

    def close(self) -> None:
        """Stop: nobody wants more."""
        done, self._done = self._done, None
        if done is not None:
            done()

    def _gather(self) -> list[Any]:
        rows: list[AcknowledgedMessage] = []
        size = 0
        while self._page is not None and len(rows) < BATCH_ROWS and size < BATCH_BYTES:
            page = self._unpack(self._page)
            self._page = self._ask(page.through) if page.through < self._through else None
            rows += page.rows
            size += sum([len(row.message.body) for row in page.rows])
            if page.damaged:
                letters = [self._letter(number) for number in page.damaged]
                return self._build(rows) + build_dead(letters, self._gateway_name, self._epoch)
        return self._build(rows)

    def _build(self, rows: Sequence[AcknowledgedMessage]) -> list[Any]:
        """Batches of *rows*; a row that does not fit the columns counts as damaged."""
        if not rows:
            return []
        try:
            return [build_batch(rows, self._gateway_name, self._epoch)]
        except UNWRITABLE:
            if len(rows) == 1:
                letter = self._letter(rows[0].ack_sequence)
                return build_dead([letter], self._gateway_name, self._epoch)
        middle = len(rows) // 2
        return self._build(rows[:middle]) + self._build(rows[middle:])

    @staticmethod
    def _letter(ack_sequence: int) -> DeadLetter:
        return DeadLetter(ack_sequence, DAMAGED, None, b"", time.time_ns() // 1_000)
