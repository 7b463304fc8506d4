"""How fast the acknowledged log is read over Arrow Flight, and what the gateway's loop notices.

    python benchmarks/flight.py [ROWS] [READERS]

The sink and its server process are the real ones; the log is in memory, so what is measured is what
this sink adds: encoding, the socket pair, Arrow, gRPC. The client is a process of its own. "held" is what the
gateway's own steps took of its loop; "stall" is how late a timer was, which counts whoever else wanted the
processors: on two of them the server and the client do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchkit.machine import facts
from benchkit.process import Memory, memory_of
from benchkit.sink.log import WholeLog, tick

from tidegate.spi import SinkContext
from tidegate_sink_flight._options import FlightSinkOptions
from tidegate_sink_flight.plugin import FlightSinkFactory

CLIENT = """
import json, sys, threading, time
import pyarrow.flight as fl
client = fl.FlightClient(sys.argv[1])
info = client.get_flight_info(fl.FlightDescriptor.for_command(b"{}"))
tickets, counts, lock = [e.ticket for e in info.endpoints], [], threading.Lock()
def read():
    while True:
        with lock:
            if not tickets:
                return
            ticket = tickets.pop(0)
        rows = 0
        for chunk in client.do_get(ticket):
            rows += chunk.data.num_rows
        counts.append(rows)
begun = time.perf_counter()
threads = [threading.Thread(target=read) for _ in range(int(sys.argv[2]))]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([sum(counts), time.perf_counter() - begun]))
"""


class _Broker:
    """Lets everybody in, and lets them have everything."""

    version = "measure"

    async def connect(self, request: Any, peer: Any) -> Any:
        connection = SimpleNamespace(
            principal="anonymous",
            resume=lambda: None,
            may_take=lambda destination: True,
            disconnect=lambda **_: None,
        )
        return SimpleNamespace(connection=connection)


@contextlib.contextmanager
def held() -> Generator[list[float]]:
    """How long each step on the loop held it, in seconds of this thread's processor time: other processes do not count."""
    found: list[float] = []
    run = asyncio.events.Handle._run

    def timed(self: asyncio.events.Handle) -> None:
        before = time.thread_time()
        run(self)
        found.append(time.thread_time() - before)

    asyncio.events.Handle._run = timed
    try:
        yield found
    finally:
        asyncio.events.Handle._run = run


async def measure(rows: int, readers: int) -> dict[str, Any]:
    """One run. Returns: rows/s, how late the gateway's loop was (milliseconds), and the server's memory."""
    options = FlightSinkOptions(bind="127.0.0.1:0", readers={"etl": "anonymous"})
    with tempfile.TemporaryDirectory() as directory:
        made: Any = FlightSinkFactory().create(SinkContext("f", "gw", Path(directory)), options)
        broker: Any = _Broker()
        await made.start(WholeLog(rows))
        address = await made.serve(broker)
        idle = _server_memory(made)
        stalls: list[float] = []
        ticking = asyncio.create_task(tick(stalls))
        before = time.process_time()
        command = (sys.executable, "-c", CLIENT, address, str(readers))
        with held() as steps:
            done = await asyncio.to_thread(subprocess.check_output, command)
        cpu = time.process_time() - before
        ticking.cancel()
        after = _server_memory(made)
        await made.stop()
    count, seconds = json.loads(done)
    assert count == rows, f"{count} of {rows} rows came"
    return {
        "rows": rows,
        "readers": readers,
        "rows_per_second": round(rows / seconds),
        "loop_cpu_us_per_row": round(cpu / rows * 1e6, 2),
        "loop_held_p99_ms": round(statistics.quantiles(steps, n=100)[98] * 1e3, 2),
        "loop_held_max_ms": round(max(steps) * 1e3, 2),
        "loop_stall_p99_ms": round(statistics.quantiles(stalls, n=100)[98] * 1e3, 2),
        "loop_stall_max_ms": round(max(stalls) * 1e3, 2),
        "server_idle_mb": round(idle.now / 1e6),
        "server_peak_mb": round(after.peak / 1e6),
    }


def _server_memory(sink: Any) -> Memory:
    return memory_of(Path(f"/proc/{sink._server.pid}/status").read_text())


def main(arguments: list[str]) -> None:
    rows = int(arguments[0]) if arguments else 300_000
    wanted = [int(arguments[1])] if len(arguments) > 1 else [1, 2]
    results = [asyncio.run(measure(rows, readers)) for readers in wanted]
    print(json.dumps({"machine": facts(Path(tempfile.gettempdir())), "runs": results}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
