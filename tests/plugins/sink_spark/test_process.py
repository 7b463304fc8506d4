"""The job as a child process. Most children here are a few lines of Python or the fake job."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_job
import pytest
from gateway_process import is_alive

from tidegate_sink_spark._process import TAIL_LINES, JobProcess
from tidegate_sink_spark._protocol import Command, JobConfig, Mark, Ready, Stopped


def config(directory: Path, **conf: str) -> JobConfig:
    return JobConfig(
        gateway_name="gw",
        store_id="s",
        staging_directory=str(directory / "staging"),
        table=str(directory / "table.json"),
        layout="clustered",
        commit_interval=3600.0,
        floor=0,
        spark_conf=conf,
    )


async def start(directory: Path, program: str = "", **conf: str) -> JobProcess:
    command = (sys.executable, "-c", program) if program else (sys.executable, fake_job.__file__)
    return await JobProcess.start(
        config(directory, **conf),
        environment=os.environ,
        work_directory=directory,
        command=command,
    )


async def test_a_job_gets_its_config_and_commands_and_reports(kit: Any, tmp_path: Path) -> None:
    kit.stage(tmp_path / "staging", 1, 10)
    job = await start(tmp_path)
    assert await job.next_report() == Mark(0, 0)
    first = await job.next_report()
    assert isinstance(first, Mark)
    assert (first.mark, first.rows, first.files) == (10, 10, 1)
    assert await job.next_report() == Ready(10)
    kit.stage(tmp_path / "staging", 11, 15)
    job.send(Command.STOP)
    second = await job.next_report()
    assert isinstance(second, Mark)
    assert second.mark == 15
    assert await job.next_report() == Stopped(15)
    assert await job.next_report() is None
    assert await job.wait() == 0
    assert await job.end() == 0


async def test_lines_that_are_no_reports_are_skipped(tmp_path: Path) -> None:
    job = await start(tmp_path, **{"fake.noise": "1"})
    job.send(Command.STOP)
    assert await job.next_report() == Mark(0, 0)
    await job.end()


async def test_the_end_of_a_job_is_the_end_of_its_whole_group(kit: Any, tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '600']);"
        "print(child.pid, file=sys.stderr, flush=True); time.sleep(600)"
    )

    job = await start(tmp_path, program)
    await kit.until(lambda: job.tail.strip())
    child = int(job.tail)
    assert is_alive(child)
    assert await job.end() == -signal.SIGKILL
    await kit.until(lambda: not is_alive(child))
    assert await job.end() == -signal.SIGKILL


async def test_a_job_is_in_a_session_of_its_own(tmp_path: Path) -> None:
    job = await start(tmp_path, "import time; time.sleep(600)")
    assert os.getsid(job.pid) == job.pid
    assert os.getpgid(job.pid) == job.pid
    await job.end()


async def test_the_tail_holds_the_last_lines_whatever_their_length(
    kit: Any, tmp_path: Path
) -> None:
    program = (
        "import sys; sys.stderr.write('x' * 3_000_000 + chr(10));"
        "[print('line', n, file=sys.stderr) for n in range(100)]"
    )

    job = await start(tmp_path, program)
    await kit.until(lambda: "line 99" in job.tail)
    lines = job.tail.splitlines()
    assert len(lines) == TAIL_LINES
    assert lines[-1] == "line 99"
    await job.end()


async def test_a_command_to_a_job_that_is_gone_is_nothing(tmp_path: Path) -> None:
    job = await start(tmp_path, "raise SystemExit(3)")
    assert await job.wait() == 3
    for _ in range(10):
        job.send(Command.STOP)
    assert await job.next_report() is None
    assert await job.end() == 3


async def test_what_accompanies_a_job_ends_with_it(tmp_path: Path) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0)
            ended.append("in order")

    job = await start(tmp_path)
    job.accompany(work())
    await job.next_report()
    await job.end()
    assert ended == ["in order"]


async def test_a_program_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await JobProcess.start(
            config(tmp_path),
            environment=os.environ,
            work_directory=tmp_path,
            command=("/nowhere/python",),
        )


async def test_a_job_dies_with_its_gateway(kit: Any, tmp_path: Path) -> None:
    """The gateway is killed with SIGKILL: nobody sends the job anything, its stdin just ends."""
    program = f"""
import asyncio, os, sys
from pathlib import Path
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
from test_process import start
async def main():
    job = await start(Path({str(tmp_path)!r}))
    await job.next_report()
    print(job.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as gateway:
        assert gateway.stdout is not None
        try:
            job = int(gateway.stdout.readline())
            assert is_alive(job)
        finally:
            gateway.kill()
    await kit.until(lambda: not is_alive(job))
