"""The benchmark of reading over Flight: all rows come, by one reader or two."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

flight = importlib.import_module("flight")


def test_every_row_comes_and_the_loop_is_watched() -> None:
    found = asyncio.run(flight.measure(3000, 2))  # on asyncio's own loop, as the benchmark
    assert found["rows"] == 3000
    assert found["rows_per_second"] > 0
    assert found["loop_stall_max_ms"] >= found["loop_stall_p99_ms"]
    assert found["loop_held_max_ms"] >= found["loop_held_p99_ms"] > 0
    assert 0 < found["server_idle_mb"] <= found["server_peak_mb"]
