"""A job that outlives its gateway for a while holds nothing of it, and doubles nothing when it goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import deltalake
import psutil
import pytest
from gateway_process import GatewayProcess
from sink_load import delta_commits, drain, exchange, running_job, sink_into

COUNT = 300


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_job_that_is_held_up_keeps_no_file_lock_or_port_of_a_gateway_that_was_killed(
    tmp_path: Path,
) -> None:
    table, data = tmp_path / "table", tmp_path / "data"
    sink = sink_into(table, engine="deltalake", commit_interval="100ms", segment_interval="50ms")
    with GatewayProcess(tmp_path, extra=sink) as gateway:
        asyncio.run(exchange(gateway.stomp_port, 0, COUNT))
        while not delta_commits(table):
            time.sleep(0.05)
        job = running_job(gateway)
        job.send_signal(signal.SIGSTOP)  # a machine that swaps, a debugger
        try:
            own = {os.readlink(f"/proc/{gateway.pid}/fd/{n}") for n in (0, 1, 2)}
            seen = [os.readlink(path) for path in Path(f"/proc/{job.pid}/fd").iterdir()]
            assert [what for what in seen if what.startswith(str(data / "journal"))] == []
            assert not own & set(seen), "its log is a pipe to the gateway"
            assert job.net_connections("inet") == []
            gateway.kill()
            gateway.start()  # on the same ports and files
            asyncio.run(exchange(gateway.stomp_port, COUNT, COUNT))
        finally:
            job.send_signal(signal.SIGCONT)
        asyncio.run(drain(gateway.stomp_port))
        psutil.wait_procs([job], timeout=60)
        assert not job.is_running(), "it ends with the pipe to its gateway"
        assert gateway.stop(120) == 0, gateway.tail()
    rows = deltalake.DeltaTable(str(table)).to_pyarrow_table(columns=["ack_seq", "body"])
    assert sorted(rows["ack_seq"].to_pylist()) == list(range(1, 2 * COUNT + 2))
    assert {body.decode() for body in rows["body"].to_pylist()} == {
        "end",
        *(f"m{number}" for number in range(2 * COUNT)),
    }
