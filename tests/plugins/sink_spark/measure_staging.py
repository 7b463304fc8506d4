"""Measures what staging costs: python tests/plugins/sink_spark/measure_staging.py [ROWS]

Prints CPU and wall time per row, bytes per row, and how long the event loop stalls meanwhile.
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from tidegate.spi import AcknowledgedMessage, AcknowledgedPage, Message
from tidegate_sink_spark.staging.staging import Staging, StagingLimits


def make_rows(count: int) -> list[AcknowledgedMessage]:
    """Rows of 256-byte JSON bodies and three headers, as in the design's figures."""
    now = 1_767_323_045_000_000
    rows: list[AcknowledgedMessage] = []
    for n in range(1, count + 1):
        text = json.dumps({"id": n % 20_000, "carrier": "UA", "delay": n % 90})
        message = Message(
            destination=f"queue://orders.{n % 8}",
            body=text.encode().ljust(256),
            headers=(("kind", "order"), ("n", str(n)), ("source", "measure")),
            received_at=now + n,
            protocol="stomp",
        )
        rows.append(
            AcknowledgedMessage(n, n, message, 1, now + n + 1, now + n + 2, "c1", "sub-0", "stomp")
        )
    return rows


class Log:
    """A log whose rows are there already."""

    store_id = "measure"
    released = 0

    def __init__(self, rows: list[AcknowledgedMessage]) -> None:
        self.rows = rows
        self.last = len(rows)

    async def read(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        return AcknowledgedPage(self.rows[after : after + limit], self.last)

    async def wait_beyond(self, after: int) -> None:
        await asyncio.Event().wait()

    async def release(self, through: int) -> None:
        raise AssertionError("nothing is released here")


async def measure(rows: list[AcknowledgedMessage], directory: Path) -> None:
    limits = StagingLimits(50_000, 64 << 20, 1.0, 1 << 40)
    staging = Staging(Log(rows), directory, limits, gateway_name="gw")
    await staging.recover(0)
    stalls: list[float] = []

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            stalls.append(time.perf_counter() - before - 0.001)

    ticker = asyncio.create_task(tick())
    cpu, wall = time.process_time(), time.perf_counter()
    staging.drain()
    await staging.run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    ticker.cancel()
    await staging.close()
    stalls.sort()
    count = len(rows)
    print(
        f"{count} rows: {cpu / count * 1e6:.2f} us CPU and {wall / count * 1e6:.2f} us wall per row, "
        f"{staging.size_bytes / count:.0f} bytes per row, loop stall "
        f"p99 {stalls[int(len(stalls) * 0.99)] * 1e3:.1f} ms, max {stalls[-1] * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(measure(make_rows(int((sys.argv[1:] or ["200000"])[0])), Path(name)))
