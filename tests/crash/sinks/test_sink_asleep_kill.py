"""A gateway that is killed while the sink's Spark was let go, and while it comes back: exact afterwards."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import deltalake
import pytest
from gateway_process import GatewayProcess
from sink_load import delta_commits, exchange, job_of, sink_into

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(1800)]

BATCH = 200
START_S = 240


def wait(gateway: GatewayProcess, condition: Callable[[], object], *, step: float = 0.002) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < deadline, gateway.tail()
        time.sleep(step)


def test_a_gateway_killed_while_spark_sleeps_or_wakes_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    table, chance, sent = tmp_path / "table", random.Random(15), 0
    sink = sink_into(table, driver_idle="1s")

    def rows() -> list[int]:
        if not delta_commits(table):
            return []
        found = deltalake.DeltaTable(str(table)).to_pyarrow_table(columns=["ack_seq"])
        return sorted(found["ack_seq"].to_pylist())

    with GatewayProcess(tmp_path, extra=sink) as gateway:

        def is_asleep() -> bool:
            return job_of(gateway) is None

        def load() -> None:
            nonlocal sent
            asyncio.run(exchange(gateway.stomp_port, sent, BATCH))
            sent += BATCH

        def let_sleep() -> None:
            """Until all rows are in the table, and Spark is gone."""
            wait(gateway, lambda: len(rows()) >= sent, step=0.2)
            wait(gateway, is_asleep, step=0.1)
            assert rows() == list(range(1, sent + 1))

        def a_commit() -> Callable[[], object]:
            before = delta_commits(table)
            return lambda: delta_commits(table) > before

        load()
        let_sleep()
        gateway.kill()  # it sleeps, and there is nothing to do
        gateway.start()
        let_sleep()  # it looked at the table, and was let go again
        load()
        gateway.kill()  # acknowledged, and nobody was woken yet
        gateway.start()
        let_sleep()
        load()
        wait(gateway, lambda: not is_asleep())
        gateway.kill()  # the job has just been started
        gateway.start()
        let_sleep()
        load()
        wait(gateway, lambda: not is_asleep())
        time.sleep(chance.uniform(1.0, 4.0))
        gateway.kill()  # Java starts, or Spark does
        gateway.start()
        let_sleep()
        committed = a_commit()
        load()
        wait(gateway, committed)
        gateway.kill()  # in the instant of the first commit after it woke
        gateway.start()
        load()
        let_sleep()
        assert gateway.stop(180) == 0, gateway.tail()
    found = deltalake.DeltaTable(str(table)).to_pyarrow_table(columns=["ack_seq", "body"])
    assert sorted(found["ack_seq"].to_pylist()) == list(range(1, sent + 1))
    bodies = sorted(body.decode() for body in found["body"].to_pylist())
    assert bodies == sorted(f"m{number}" for number in range(sent))
