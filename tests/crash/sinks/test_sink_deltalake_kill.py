"""The sink without Java behind a gateway that is killed while it acknowledges, stages and commits.

Half of the kills are at a moment drawn by chance, the process that stages rows shortly before, half on the instant that the
table gets a commit; twice
the job alone is killed, once all local state of the sink is deleted while the gateway is down. At the end every
message that was confirmed to its producer is one row.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from pathlib import Path

import deltalake
import pytest
from gateway_process import GatewayProcess
from sink_load import consume, delta_commits, drain, publish, running_job, sink_into, stager_of

BATCH = 1_500
KILLS = 8


def kill_at(
    gateway: GatewayProcess, table: Path, chance: random.Random, *, on_commit: bool
) -> None:
    if on_commit:
        before, deadline = delta_commits(table), time.monotonic() + 60
        while delta_commits(table) == before and time.monotonic() < deadline:
            time.sleep(0.0005)
    else:
        time.sleep(chance.uniform(0.05, 1.0))
        if (stager := stager_of(gateway)) is not None:
            stager.kill()
            time.sleep(chance.uniform(0.0, 0.5))
    gateway.kill()


async def consume_and_kill(
    gateway: GatewayProcess, table: Path, chance: random.Random, *, on_commit: bool
) -> None:
    killing = asyncio.create_task(
        asyncio.to_thread(kill_at, gateway, table, chance, on_commit=on_commit)
    )
    try:
        await consume(gateway.stomp_port, BATCH * (KILLS + 1))
    except (OSError, EOFError):
        pass  # it is dead
    await killing


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_confirmed_message_is_one_row_whatever_is_killed(tmp_path: Path) -> None:
    table = tmp_path / "table"
    sink = sink_into(
        table,
        engine="deltalake",
        commit_interval="100ms",
        segment_interval="50ms",
        compact_interval="1s",
        stop_timeout="120s",
    )
    chance = random.Random(15)
    sent = 0
    with GatewayProcess(tmp_path, extra=sink) as gateway:
        for turn in range(KILLS):
            asyncio.run(publish(gateway.stomp_port, sent, BATCH))
            sent += BATCH
            if turn % 4 == 3:
                running_job(gateway).kill()
            on_commit = turn % 2 == 1 and delta_commits(table) > 0
            asyncio.run(consume_and_kill(gateway, table, chance, on_commit=on_commit))
            if turn == 5:
                shutil.rmtree(tmp_path / "data" / "sinks")  # all local state of the sink
            gateway.start()
        asyncio.run(publish(gateway.stomp_port, sent, BATCH))
        sent += BATCH
        asyncio.run(drain(gateway.stomp_port))
        assert gateway.stop(180) == 0, gateway.tail()
    rows = deltalake.DeltaTable(str(table)).to_pyarrow_table(
        columns=["ack_seq", "message_id", "body"]
    )
    numbers = rows["ack_seq"].to_pylist()
    assert sorted(numbers) == list(range(1, sent + 2))
    assert len(set(rows["message_id"].to_pylist())) == sent + 1
    bodies = sorted(body.decode() for body in rows["body"].to_pylist())
    assert bodies == sorted(["end", *(f"m{number}" for number in range(sent))])
