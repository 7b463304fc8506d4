"""Spark reads the log into a Delta table, and query and gateway are killed: each row is there once.

The query is killed with its Java machine, at moments of a seed and on the instant of a commit of the
table (then Spark's own checkpoint does not know of it), the gateway while the query reads.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from pathlib import Path

import pytest
from crash_crew import amount
from free_ports import free_port
from gateway_process import GatewayProcess
from sink_load import delta_commits, exchange
from spark_query import WAIT_S, SparkQuery

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(3000)]

ROUNDS = amount(8, 24)
ROWS = 600
SINK = """
[[sinks]]
plugin = "flight"
bind = "127.0.0.1:{port}"
readers = {{ etl = "anonymous" }}
"""


def batch_rows(table: Path) -> list[int]:
    """How many rows each commit of the table brought, as its log says: read without Spark and Delta."""
    counts: list[int] = []
    for commit in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        added = [json.loads(action["add"]["stats"]) for action in actions if "add" in action]
        counts.append(sum(stats["numRecords"] for stats in added))
    return counts


def test_a_stream_into_delta_is_exact_whatever_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("TIDEGATE_CRASH_SEED", "15"))
    chance = random.Random(seed)
    port, table = free_port(), tmp_path / "table"
    stream = {
        "options": {
            "uri": f"grpc://127.0.0.1:{port}",
            "reader": "etl",
            "max_rows_per_batch": "300",
            "rows_per_partition": "150",
        },
        "table": str(table),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    sent = 0
    told: list[str] = []

    def begun() -> SparkQuery:
        query = SparkQuery(tmp_path / "spark.log")
        assert query.ask("stream", **stream) == {}
        return query

    def next_commit(query: SparkQuery, count: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while delta_commits(table) < count:
            assert query.process.poll() is None
            assert time.monotonic() < deadline, query.log.read_text(errors="replace")[-3000:]
            time.sleep(0.005)

    with GatewayProcess(tmp_path, extra=SINK.format(port=port)) as gateway:
        query = begun()
        try:
            for number in range(ROUNDS):
                asyncio.run(exchange(gateway.stomp_port, sent, ROWS))
                sent += ROWS
                what = ("query on a commit", "gateway", "query at a moment", "both")[number % 4]
                next_commit(query, delta_commits(table) + 1)
                if what != "query on a commit":
                    time.sleep(chance.uniform(0, 4))
                told.append(f"{what} at {sum(batch_rows(table))} of {sent} rows")
                if what in ("gateway", "both"):
                    gateway.kill()
                if what != "gateway":
                    query.kill()
                if what in ("gateway", "both"):
                    gateway.start()
                if what != "gateway":
                    query = begun()
            found = query.wait_for(sent, table)
        finally:
            query.kill()
            print(f"seed {seed}, commits of {batch_rows(table)} rows")
            print("killed:", *told, sep="\n  ")
        assert (found["distinct"], found["bodies"]) == (sent, sent)
        assert (found["first"], found["last"]) == (1, sent)
        assert gateway.stop() == 0, gateway.tail()
    assert sum(batch_rows(table)) == sent
