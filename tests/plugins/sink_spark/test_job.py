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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tidegate.spi import SinkContext
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._process import JobProcess
from tidegate_sink_spark._protocol import Command, Gap, JobConfig, Mark, Report
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark.job import run
from tidegate_sink_spark.job.table import application_id

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

APP_ID = application_id("gw", "store-1")


SECRET = "s3cret-of-the-object-store"


def command_lines(group: int) -> list[bytes]:
    """What every user of the machine can read of the job's processes."""
    found: list[bytes] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                found.append((entry / "cmdline").read_bytes())
        except OSError:
            continue  # it ended meanwhile
    return found


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
            niceness=0,
            spark_conf=self.spark.conf(work) | {"spark.hadoop.fs.s3a.secret.key": SECRET},
        )
        return await JobProcess.start(
            config, environment=self.spark.environment, work_directory=work
        )

    def contents(self) -> Any:
        return self.kit.read_table(self.table, APP_ID)


async def until_mark(job: JobProcess, mark: int) -> list[Report]:
    """Read reports up to the one that says *mark*; all of them."""
    reports: list[Report] = []
    async with asyncio.timeout(240):
        while True:
            report = await job.next_report()
            assert report is not None, f"the job ended at {reports}: {job.tail}"
            reports.append(report)
            if isinstance(report, Mark) and report.mark == mark:
                return reports


COLD_READ = """
import json, sys
from tidegate_sink_spark import create_session
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark.job.table import DeltaTable
conf, path, app_id = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
spark = create_session("reader-test", SparkSinkOptions(table=path, spark_conf=conf))
def facts():
    table = spark.read.format("delta").load(path)
    row = table.selectExpr("count(*)", "count(DISTINCT ack_seq)", "max(ack_seq)",
                           "count(DISTINCT message_id)").first()
    return {"counts": list(row), "mark": DeltaTable(spark, path, "clustered", app_id).state().mark}
cold = facts()
table = spark.read.format("delta").load(path)
detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").where("userMetadata IS NOT NULL").orderBy(
    "version").collect()
row = table.where("ack_seq = 7").selectExpr(
    "*", "date_format(acked_at, \\"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\\") AS acked_text").first().asDict()
spark.sql(f"OPTIMIZE delta.`{path}`").collect()
spark.range(5).write.format("delta").save(path + " of its own")
print(json.dumps({
    "own": [spark.read.format("delta").load(path + " of its own").count(), spark.sparkContext.appName],
    "cold": cold, "optimized": facts(),
    "row": {**{key: str(value) for key, value in row.items()}, "body": row["body"].decode()},
    "clustering": list(detail["clusteringColumns"]),
    "last_commit": json.loads(history[-1]["userMetadata"]),
}))
spark.stop()
"""


@dataclass
class Facts:
    """What was seen while one scenario ran; each test below looks at one part of it.

    One scenario and not one per test, because each start of Java costs some ten seconds.
    Attributes: rounds: how many commits of a hundred rows it begins with.
    """

    rounds: int = 24
    steady: list[Report] = field(default_factory=list)
    after_redelivery: Any = None
    gap: Report | None = None
    mark_at_gap: int = 0
    after_gap: Any = None
    second_start: Report | None = None
    end: Any = None
    exit_codes: list[int] = field(default_factory=list)
    cold: dict[str, Any] = field(default_factory=dict)
    command_lines: list[bytes] = field(default_factory=list)


async def commit(job: JobProcess, mark: int) -> list[Report]:
    job.send(Command.COMMIT)
    return await until_mark(job, mark)


async def steady(jobs: Jobs, job: JobProcess, facts: Facts) -> None:
    facts.steady += await until_mark(job, 100)
    for n in range(1, facts.rounds):
        jobs.stage(n * 100 + 1, n * 100 + 100)
        facts.steady += await commit(job, n * 100 + 100)


async def redeliver(jobs: Jobs, job: JobProcess, facts: Facts) -> None:
    mark = facts.rounds * 100
    jobs.stage(mark - 99, mark)  # the same name again
    jobs.stage(mark - 150, mark - 50)  # the same rows under another name
    jobs.stage(mark - 49, mark + 100)  # an overlap with what is new
    jobs.stage(mark + 50, mark + 200)  # an overlap with that
    await commit(job, mark + 200)
    facts.after_redelivery = jobs.contents()


async def withhold_and_fill(jobs: Jobs, job: JobProcess, facts: Facts) -> None:
    mark = facts.rounds * 100 + 200
    jobs.stage(mark + 101, mark + 400)
    job.send(Command.COMMIT)
    facts.gap = await job.next_report()
    facts.mark_at_gap = jobs.contents().mark
    jobs.stage(mark + 1, mark + 100)
    await commit(job, mark + 400)
    facts.after_gap = jobs.contents()


async def race(jobs: Jobs, both: list[JobProcess]) -> None:
    """Both commit at the same time. What the second one finds staged overlaps with what the first
    one finds, without being equal, so that their transactions have different versions."""
    mark = 3_000
    for step in range(5):
        jobs.stage(mark + 1, mark + 500)
        both[step % 2].send(Command.COMMIT)
        jobs.stage(mark + 501, mark + 700)
        jobs.stage(mark + 301, mark + 650)
        both[1 - step % 2].send(Command.COMMIT)
        mark += 700
        for job in both:
            job.send(Command.COMMIT)
        await asyncio.gather(*(until_mark(job, mark) for job in both))


def read_cold(jobs: Jobs) -> dict[str, Any]:
    """What a program of one's own sees, in a new process that never had the table open."""
    done = subprocess.run(
        [
            *(sys.executable, "-c", COLD_READ),
            *(json.dumps(dict(jobs.spark.SHORT_JOB)), str(jobs.table), APP_ID),
        ],
        cwd=jobs.directory,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=["one job", pytest.param("all", marks=pytest.mark.long)])
def begun(request: pytest.FixtureRequest, spark: Any, kit: Any) -> Facts:
    """One job alone: commits, re-delivery and a gap; or the whole scenario, which begins so."""
    if request.param == "all":
        return request.getfixturevalue("facts")
    facts = Facts(rounds=3)
    jobs = Jobs(request.getfixturevalue("tmp_path_factory").mktemp("job"), spark, kit)

    async def main() -> None:
        jobs.stage(1, 100)
        job = await jobs.start("one")
        try:
            await steady(jobs, job, facts)
            facts.command_lines = command_lines(job.pid)
            await redeliver(jobs, job, facts)
            await withhold_and_fill(jobs, job, facts)
            job.send(Command.STOP)
            facts.exit_codes.append(await job.wait())
        finally:
            await job.end()

    asyncio.run(main())
    assert facts.exit_codes == [0]
    return facts


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory, spark: Any, kit: Any) -> Facts:
    """Run the scenario: 27 commits, re-delivery, a gap, a second job at once, and a cold reader."""
    facts = Facts()
    jobs = Jobs(tmp_path_factory.mktemp("job"), spark, kit)

    async def main() -> None:
        jobs.stage(1, 100)
        both = [await jobs.start("one")]
        try:
            await steady(jobs, both[0], facts)
            facts.command_lines = command_lines(both[0].pid)
            both.append(await jobs.start("two"))
            await redeliver(jobs, both[0], facts)
            await withhold_and_fill(jobs, both[0], facts)
            async with asyncio.timeout(240):
                facts.second_start = await both[1].next_report()
                both[1].send(Command.COMMIT)
            await until_mark_or_is(both[1], facts.second_start, 3_000)
            await race(jobs, both)
            for job in both:
                job.send(Command.STOP)
            facts.exit_codes += await asyncio.gather(*(job.wait() for job in both))
        finally:
            for job in both:
                await job.end()

    asyncio.run(main())
    facts.end = jobs.contents()
    facts.cold = read_cold(jobs)
    return facts


async def until_mark_or_is(job: JobProcess, first: Report | None, mark: int) -> None:
    """The second job may have started before or after the last commit of the first one."""
    if not (isinstance(first, Mark) and first.mark == mark):
        await until_mark(job, mark)


def test_each_round_is_one_commit_and_the_mark_is_read_back(begun: Facts) -> None:
    marks = [report for report in begun.steady if isinstance(report, Mark)]
    assert len(marks) == len(begun.steady) == begun.rounds + 1
    assert [mark.mark for mark in marks] == list(range(0, begun.rounds * 100 + 1, 100))
    assert [mark.version for mark in marks] == list(range(begun.rounds + 1))
    assert {(mark.rows, mark.files) for mark in marks[1:]} == {(100, 1)}


def test_redelivery_under_the_same_and_other_names_adds_nothing(begun: Facts) -> None:
    assert begun.after_redelivery.mark == begun.rounds * 100 + 200
    assert begun.after_redelivery.is_exact


def test_nothing_is_written_past_a_gap_until_it_is_filled(begun: Facts) -> None:
    mark = begun.rounds * 100 + 200
    assert begun.gap == Gap(mark + 1, mark + 101)
    assert begun.mark_at_gap == mark
    assert begun.after_gap.mark == mark + 400
    assert begun.after_gap.is_exact


def test_no_setting_stands_on_a_command_line(begun: Facts) -> None:
    assert any(b"--properties-file" in line for line in begun.command_lines)
    assert not any(SECRET.encode() in line for line in begun.command_lines)


@pytest.mark.long
def test_two_jobs_at_once_write_every_row_once(facts: Facts) -> None:
    assert facts.exit_codes == [0, 0]
    assert facts.end.mark == 3_000 + 5 * 700
    assert facts.end.is_exact


@pytest.mark.long
def test_after_more_than_25_commits_a_cold_reader_sees_every_row_once(facts: Facts) -> None:
    """Delta 4.1 and 4.2 break here: at the first checkpoint, which only a cold reader needs."""
    assert len(facts.end.commits) > 25
    assert facts.cold["cold"] == {"counts": [6_500] * 4, "mark": 6_500}


@pytest.mark.long
def test_the_mark_survives_optimize(facts: Facts) -> None:
    assert facts.cold["optimized"] == facts.cold["cold"]


@pytest.mark.long
def test_a_session_of_ones_own_writes_and_reads_delta_tables(facts: Facts) -> None:
    assert facts.cold["own"] == [5, "reader-test"]


@pytest.mark.long
def test_spark_reads_the_values_that_were_acknowledged(facts: Facts) -> None:
    row = facts.cold["row"]
    assert row["acked_text"] == "2026-01-02T03:04:05.000015"
    assert row["ack_date"] == "2026-01-02"
    assert row["message_id"] == "store-1-70"
    assert row["headers"] == "{'kind': 'order', 'n': '7'}"
    assert row["body"] == '{"n": 7}'


@pytest.mark.long
def test_the_table_is_clustered_and_a_commit_says_what_it_holds(facts: Facts) -> None:
    assert facts.cold["clustering"] == ["destination", "acked_at"]
    last = facts.cold["last_commit"]
    assert last["gateway"] == "gw"
    assert last["hi"] == 6_500
    assert last["n"] == last["hi"] - last["lo"] + 1


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
        async with asyncio.timeout(240):
            while not condition():
                await asyncio.sleep(0.0005)
        os.killpg(self._sink.job_pid, signal.SIGKILL)


@pytest.mark.long
async def test_killed_jobs_and_lost_local_state_leave_every_row_once(
    tmp_path: Path, spark: Any, kit: Any
) -> None:
    log = kit.MemoryLog()
    directory, table = tmp_path / "sink", tmp_path / "lake" / "table"
    options = SparkSinkOptions(
        table=str(table),
        layout="partitioned",
        commit_interval=0.1,
        segment_rows=1_000,
        segment_interval=0.05,
        drain_on_stop=False,
        niceness=0,
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

    async def kill() -> None:
        sink = make()
        await sink.start(log)
        killer = Killer(sink, table)
        try:
            await kit.until(lambda: killer.commits() == 1, 240)  # the table is there, and empty
            for _ in range(4):
                before = killer.commits()
                log.grow(2_500)
                await killer.kill_when(lambda before=before: killer.commits() > before)
                check()
            files = killer.data_files()
            log.grow(2_500)
            await killer.kill_when(lambda: killer.data_files() > files)  # before its commit
            check()
        finally:
            await sink.stop()

    async def lose_everything() -> None:
        shutil.rmtree(directory)
        log.grow(3_000)
        log.released = max(0, log.released - 700)  # the store had not heard of the last release
        sink = make()
        await sink.start(log)
        try:
            await kit.until(lambda: log.released == log.last, 240)
        finally:
            await sink.stop()

    await kill()
    await lose_everything()
    contents = kit.read_table(table, APP_ID)
    assert contents.mark == log.last == 5 * 2_500 + 3_000
    assert contents.is_exact
    assert kit.staged_names(directory / "staging") == []
    assert (table / "ack_date=2026-01-02").is_dir()


def test_a_job_without_a_gateway_kills_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule alone, without Java: its stdin ends, and the whole group goes."""
    done: list[str] = []

    def killed(group: int, number: int) -> None:
        done.append(f"killpg {number}")
        raise SystemExit

    monkeypatch.setattr(run.os, "getpgrp", os.getpid)
    monkeypatch.setattr(run.os, "killpg", killed)
    with (tmp_path / "stdin").open("w+b") as stdin, pytest.raises(SystemExit):
        run._follow_stdin(stdin, run.queue.SimpleQueue())
    assert done == [f"killpg {signal.SIGKILL}"]
