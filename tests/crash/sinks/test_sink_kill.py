"""The sink behind a gateway that is killed: every acknowledgement is one row, exactly once.

The gateway dies by SIGKILL again and again while messages are acknowledged and Spark commits (the
job dies with it); once only the job is killed; once all local state of the sink is deleted while
the gateway is down. At the end a new Spark process opens the table cold.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from sink_load import delta_commits, exchange, job_of, sink_into

BATCH = 400
READ = """
import json, sys
from pyspark.sql import functions as f
from tidegate_sink_spark import create_session
spark = create_session("check")
rows = spark.read.format("delta").load(sys.argv[1])
found = rows.agg(f.count("*"), f.count_distinct("ack_seq"), f.max("ack_seq"), f.min("ack_seq"),
                 f.count_distinct("message_id")).first()
bodies = [row[0].decode() for row in rows.select(f.col("body")).collect()]
kinds = sorted({(r[0], r[1]) for r in rows.select("destination", "protocol").distinct().collect()})
print("FOUND", json.dumps([list(found), bodies, kinds]))
spark.stop()
"""


def wait_for_commits(gateway: GatewayProcess, table: Path, count: int) -> None:
    deadline = time.monotonic() + 400
    while delta_commits(table) < count:
        assert time.monotonic() < deadline, f"{delta_commits(table)} commits\n{gateway.tail()}"
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_every_acknowledgement_is_one_row_whatever_is_killed(tmp_path: Path) -> None:
    table = tmp_path / "table"
    sink = sink_into(table, stop_timeout="120s")
    sent = 0
    with GatewayProcess(tmp_path, extra=sink) as gateway:

        def load(count: int = BATCH) -> None:
            nonlocal sent
            asyncio.run(exchange(gateway.stomp_port, sent, count))
            sent += count

        load()
        wait_for_commits(gateway, table, 2)  # the table exists: the job is at work
        for _ in range(2):
            load()
            gateway.kill()  # acknowledged, and perhaps staged or half committed
            gateway.start()
            load()
        wait_for_commits(gateway, table, delta_commits(table) + 1)
        load()
        job = job_of(gateway)
        assert job is not None, "the job is not running"
        os.kill(job.pid, signal.SIGKILL)
        load()
        wait_for_commits(gateway, table, delta_commits(table) + 1)
        load()
        gateway.kill()
        shutil.rmtree(tmp_path / "data" / "sinks")  # all local state of the sink
        gateway.start()
        load()
        while delta_commits(table) < 27:  # Delta writes a checkpoint at the tenth: go well beyond
            before = delta_commits(table)
            load(20)
            wait_for_commits(gateway, table, before + 1)
        assert gateway.stop(180) == 0, gateway.tail()
    done = subprocess.run(
        [sys.executable, "-c", READ, str(table)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))
    (rows, distinct, high, low, messages), bodies, kinds = json.loads(line.removeprefix("FOUND "))
    assert (rows, distinct, high, low, messages) == (sent, sent, sent, 1, sent)
    assert sorted(bodies) == sorted(f"m{number}" for number in range(sent))
    assert kinds == [["queue://sink", "stomp"]]
