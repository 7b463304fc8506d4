"""The real job: PySpark, Java and a Delta table on disk.

What is asserted is counted by conftest's reader, which is neither Spark nor Delta, and once by a new
Spark process that opens the table cold.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate.spi import SinkContext
from tidegate_sink_spark import _job
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._process import JobProcess
from tidegate_sink_spark._protocol import Command, Gap, JobConfig, Mark, Report, Stopped
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark._table import application_id

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

APP_ID = application_id("gw", "store-1")


class Jobs:
    """Real jobs over one staging directory and one table."""

    def __init__(self, directory: Path, spark: Any, kit: Any) -> None:
        self.kit = kit
        self.spark = spark
        self.directory = directory
        self.staging = directory / "staging [1] {x}"  # Spark takes paths as patterns
        self.table = directory / "a lake" / "table"

    def stage(self, lo: int, hi: int) -> Path:
        return self.kit.stage(self.staging, lo, hi)

    async def start(self, name: str, layout: str = "clustered") -> JobProcess:
        work = self.directory / name
        work.mkdir()
        config = JobConfig(
            gateway_name="gw",
            store_id="store-1",
            staging_directory=str(self.staging),
            table=str(self.table),
            layout=layout,
            commit_interval=3600.0,
            floor=0,
            spark_conf=self.spark.conf(work),
        )
        return await JobProcess.start(
            config, environment=self.spark.environment, work_directory=work
        )

    def contents(self) -> Any:
        return self.kit.read_table(self.table, APP_ID)


async def until_mark(job: JobProcess, mark: int) -> list[Report]:
    """Read reports up to the one that says *mark*; all of them."""
    reports: list[Report] = []
    async with asyncio.timeout(120):
        while True:
            report = await job.next_report()
            assert report is not None, f"the job ended at {reports}: {job.tail}"
            reports.append(report)
            if isinstance(report, Mark) and report.mark == mark:
                return reports


COLD_READ = """
import json, sys
from tidegate_sink_spark._session import start_session
from tidegate_sink_spark._table import DeltaTable
conf, path, app_id = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
spark = start_session(conf)
def facts():
    table = spark.read.format("delta").load(path)
    row = table.selectExpr("count(*)", "count(DISTINCT ack_seq)", "max(ack_seq)",
                           "count(DISTINCT message_id)").first()
    return {"counts": list(row), "mark": DeltaTable(spark, path, "clustered", app_id).state().mark}
cold = facts()
table = spark.read.format("delta").load(path)
detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").orderBy("version").collect()
row = table.where("ack_seq = 7").selectExpr(
    "*", "date_format(acked_at, \\"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\\") AS acked_text").first().asDict()
spark.sql(f"OPTIMIZE delta.`{path}`").collect()
print(json.dumps({
    "cold": cold, "optimized": facts(),
    "row": {key: str(value) for key, value in row.items()},
    "clustering": list(detail["clusteringColumns"]),
    "last_commit": json.loads(history[-1]["userMetadata"]),
}))
spark.stop()
"""


def test_twenty_five_commits_redelivery_and_a_gap_reopen_cold(
    tmp_path: Path, spark: Any, kit: Any
) -> None:
    jobs = Jobs(tmp_path, spark, kit)

    async def commit(job: JobProcess, mark: int) -> list[Report]:
        job.send(Command.COMMIT)
        return await until_mark(job, mark)

    async def main() -> None:
        jobs.stage(1, 100)
        job = await jobs.start("one")
        try:
            assert [r.mark for r in await until_mark(job, 100) if isinstance(r, Mark)] == [0, 100]
            for n in range(1, 24):
                jobs.stage(n * 100 + 1, n * 100 + 100)
                (report,) = await commit(job, n * 100 + 100)
                assert isinstance(report, Mark)
                assert (report.rows, report.files) == (100, 1)
            await redeliver(job)
            await withhold_and_fill(job)
            job.send(Command.STOP)
            while (report := await job.next_report()) is not None:
                assert report == Stopped(3_000)
            assert await job.wait() == 0
        finally:
            await job.end()

    async def redeliver(job: JobProcess) -> None:
        jobs.stage(2_301, 2_400)  # the same name again
        jobs.stage(2_250, 2_350)  # the same rows under another name
        jobs.stage(2_351, 2_500)  # an overlap with what is new
        jobs.stage(2_450, 2_600)  # an overlap with that
        await commit(job, 2_600)
        assert jobs.contents().is_exact

    async def withhold_and_fill(job: JobProcess) -> None:
        jobs.stage(2_701, 3_000)
        job.send(Command.COMMIT)
        assert await job.next_report() == Gap(2_601, 2_701)
        assert jobs.contents().mark == 2_600
        jobs.stage(2_601, 2_700)
        await commit(job, 3_000)

    asyncio.run(main())
    contents = jobs.contents()
    assert len(contents.commits) >= 25
    assert contents.mark == 3_000
    assert contents.is_exact

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            COLD_READ,
            json.dumps(spark.conf(tmp_path)),
            str(jobs.table),
            APP_ID,
        ],
        env=spark.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["cold"] == {"counts": [3_000, 3_000, 3_000, 3_000], "mark": 3_000}
    assert found["optimized"] == found["cold"]
    assert found["clustering"] == ["destination", "acked_at"]
    assert found["last_commit"] == {"gateway": "gw", "lo": 2601, "hi": 3000, "n": 400, "files": 2}
    row = found["row"]
    assert row["acked_text"] == "2026-01-02T03:04:05.000015"
    assert row["ack_date"] == "2026-01-02"
    assert row["message_id"] == "store-1-70"
    assert row["headers"] == "{'kind': 'order', 'n': '7'}"
    assert row["body"] == str(bytearray(b'{"n": 7}'))


def test_two_jobs_at_once_write_every_row_once(tmp_path: Path, spark: Any, kit: Any) -> None:
    jobs = Jobs(tmp_path, spark, kit)

    async def main() -> None:
        # The directory of a partitioned table, so that this layout is tried as well.
        both = [await jobs.start(name, "partitioned") for name in ("one", "two")]
        try:
            await asyncio.gather(*(until_mark(job, 0) for job in both))
            mark = 0
            for step in range(6):
                # Each sees other files: the second one begins when more is staged, so that the
                # ranges that they commit overlap without being equal.
                jobs.stage(mark + 1, mark + 500)
                both[step % 2].send(Command.COMMIT)
                jobs.stage(mark + 501, mark + 700)
                jobs.stage(mark + 301, mark + 650)
                both[1 - step % 2].send(Command.COMMIT)
                mark += 700
                for job in both:
                    job.send(Command.COMMIT)
                await asyncio.gather(*(until_mark(job, mark) for job in both))
            for job in both:
                job.send(Command.STOP)
            assert await asyncio.gather(*(job.wait() for job in both)) == [0, 0]
        finally:
            for job in both:
                await job.end()

    asyncio.run(main())
    contents = jobs.contents()
    assert contents.mark == 6 * 700
    assert contents.is_exact
    assert (jobs.table / "ack_date=2026-01-02").is_dir()


class Killer:
    """Kills the job of a sink at chosen moments, seen from outside in the table's directory."""

    def __init__(self, sink: SparkSink, table: Path) -> None:
        self._sink = sink
        self._table = table

    def commits(self) -> int:
        return len(list((self._table / "_delta_log").glob("*.json")))

    def data_files(self) -> int:
        return len(list(self._table.rglob("*.parquet")))

    async def kill_when(self, condition: Callable[[], bool]) -> None:
        """Kill the job's whole group the instant that *condition* holds."""
        async with asyncio.timeout(120):
            while not condition():
                await asyncio.sleep(0.0005)
        os.killpg(self._sink.job_pid, signal.SIGKILL)


def test_killed_jobs_and_lost_local_state_leave_every_row_once(
    tmp_path: Path, spark: Any, kit: Any
) -> None:
    log = kit.MemoryLog()
    directory, table = tmp_path / "sink", tmp_path / "lake" / "table"
    options = SparkSinkOptions(
        table=str(table),
        commit_interval=0.1,
        segment_rows=1_000,
        segment_interval=0.05,
        stop_timeout=120.0,
        spark_conf=dict(spark.SHORT_JOB),
    )

    def make() -> SparkSink:
        directory.mkdir(exist_ok=True)
        return SparkSink(SinkContext("lake", "gw", directory), options, restart_delay=0.05)

    def check() -> None:
        """What is in the table at this very moment is the log up to the mark, each row once."""
        contents = kit.read_table(table, APP_ID)
        assert contents.is_exact
        assert log.released <= contents.mark

    async def kill_on_commits() -> None:
        sink = make()
        await sink.start(log)
        killer = Killer(sink, table)
        try:
            await kit.until(lambda: killer.commits() == 1, 120)  # the table is there, and empty
            for _ in range(4):
                before = killer.commits()
                log.grow(2_500)
                await killer.kill_when(lambda before=before: killer.commits() > before)
                check()
            files = killer.data_files()
            log.grow(2_500)
            await killer.kill_when(lambda: killer.data_files() > files)  # before its commit
            check()
            await kit.until(lambda: sink.health().mark == log.last, 120)
        finally:
            await sink.stop()
        check()

    async def lose_everything() -> None:
        released = log.released
        shutil.rmtree(directory)
        log.grow(3_000)
        log.released = released - 700  # the store had not heard of the last release either
        sink = make()
        await sink.start(log)
        try:
            await kit.until(lambda: log.released == log.last, 120)
        finally:
            await sink.stop()

    asyncio.run(kill_on_commits())
    asyncio.run(lose_everything())
    contents = kit.read_table(table, APP_ID)
    assert contents.mark == log.last == 5 * 2_500 + 3_000
    assert contents.is_exact
    assert kit.staged_names(directory / "staging") == []


def test_a_job_without_a_gateway_kills_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule alone, without Java: its stdin ends, and the whole group goes."""
    done: list[str] = []

    def killed(group: int, number: int) -> None:
        done.append(f"killpg {number}")
        raise SystemExit

    monkeypatch.setattr(_job.os, "getpgrp", os.getpid)
    monkeypatch.setattr(_job.os, "killpg", killed)
    with (tmp_path / "stdin").open("w+b") as stdin, pytest.raises(SystemExit):
        _job._follow_stdin(stdin, _job.queue.SimpleQueue())
    assert done == [f"killpg {signal.SIGKILL}"]
