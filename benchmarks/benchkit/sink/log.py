"""An acknowledged log in memory that grows when it is told to."""

import asyncio
import bisect
import json
import time
from typing import Final

import msgspec

from tidegate.spi import (
    AcknowledgedMessage,
    AcknowledgedPage,
    EncodedPage,
    EncodedRows,
    Message,
    encode_rows,
)

_TEMPLATES: Final = 20_000
_BODY_BYTES: Final = 256
#: Rows of a run. Assumed, not measured in a gateway; with one row a run, decoding what came costs 3 us a row more.
RUN_ROWS: Final = 50


def make_rows(count: int) -> list[AcknowledgedMessage]:
    """Rows of 256-byte JSON bodies and three headers, over eight queues."""
    now = time.time_ns() // 1_000
    rows: list[AcknowledgedMessage] = []
    for n in range(1, count + 1):
        text = json.dumps({"id": n, "carrier": "UA", "delay": n % 90})
        message = Message(
            destination=f"queue://orders.{n % 8}",
            body=text.encode().ljust(_BODY_BYTES),
            headers=(("kind", "order"), ("n", str(n)), ("source", "measure")),
            received_at=now + n,
            protocol="stomp",
        )
        rows.append(
            AcknowledgedMessage(n, n, message, 1, now + n + 1, now + n + 2, "c1", "sub-0", "stomp")
        )
    return rows


class GrowingLog:
    """A :class:`tidegate.spi.AcknowledgedReader`. Row n has the contents of template n modulo 20,000."""

    store_id = "measure"
    first = 1

    def __init__(self) -> None:
        self._templates = make_rows(_TEMPLATES)
        self.last = 0
        self.released = 0
        self._firsts: list[int] = []
        self._times: list[float] = []
        self._acked_at: list[int] = []
        self._grown = asyncio.Event()

    def grow(self, count: int) -> None:
        """*count* more messages are acknowledged, now."""
        self._firsts.append(self.last + 1)
        self._times.append(time.perf_counter())
        self._acked_at.append(time.time_ns() // 1_000)
        self.last += count
        self._grown.set()

    def age(self, number: int) -> float:
        """Seconds since row *number* was acknowledged."""
        return time.perf_counter() - self._times[self._growth(number)]

    def _growth(self, number: int) -> int:
        """Which growth row *number* came with."""
        return bisect.bisect_right(self._firsts, number) - 1

    async def grow_steadily(self, rate: int, seconds: float) -> None:
        """*rate* messages a second for so many seconds, a hundred times a second."""
        start, first = time.perf_counter(), self.last
        while (passed := time.perf_counter() - start) < seconds:
            due = first + int(passed * rate) - self.last
            if due > 0:
                self.grow(due)
            await asyncio.sleep(0.01)

    async def read(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        rows: list[AcknowledgedMessage] = []
        growth = self._growth(after + 1)
        for n in range(after + 1, min(after + limit, self.last) + 1):
            if growth + 1 < len(self._firsts) and self._firsts[growth + 1] <= n:
                growth += 1
            at = self._acked_at[growth]
            row = self._templates[n % _TEMPLATES]
            rows.append(
                AcknowledgedMessage(
                    n, n, row.message, 1, at, at, row.client_id, row.subscription, row.protocol
                )
            )
        return AcknowledgedPage(rows, self.last)

    async def read_encoded(self, after: int, limit: int, bytes_max: int) -> EncodedPage:
        page = await self.read(after, limit, bytes_max)
        return EncodedPage(encode_rows(page.rows), page.last)

    async def wait_beyond(self, after: int) -> None:
        while self.last <= after:
            self._grown.clear()
            await self._grown.wait()

    async def release(self, through: int) -> None:
        self.released = through


class WholeLog:
    """A log whose rows are there already, and encoded, so that reading them costs nothing."""

    store_id = "measure"
    first = 1
    released = 0

    def __init__(self, count: int) -> None:
        """Args: count: full runs."""
        rows = make_rows(count)
        runs = [rows[at : at + RUN_ROWS] for at in range(0, count, RUN_ROWS)]
        self._runs = [_run(run) for run in runs]
        self.last = count

    async def read_encoded(self, after: int, limit: int, bytes_max: int) -> EncodedPage:
        begin, count = after // RUN_ROWS, limit // RUN_ROWS
        return EncodedPage(self._runs[begin : begin + count], self.last)

    async def wait_beyond(self, after: int) -> None:
        await asyncio.Event().wait()

    async def release(self, through: int) -> None:
        self.released = through


def _run(rows: list[AcknowledgedMessage]) -> EncodedRows:
    """*rows* as if they had been acknowledged at once."""
    at = rows[0].acked_at
    (run,) = encode_rows([msgspec.structs.replace(row, acked_at=at) for row in rows])
    return run


async def tick(stalls: list[float], interval: float = 0.001) -> None:
    """Write down how much too late the loop comes back, in seconds, each time."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(interval)
        stalls.append(time.perf_counter() - before - interval)
