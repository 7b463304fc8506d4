"""The real job, killed: PySpark, Java or both."""

import asyncio
import fcntl
import logging
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from job_scenario import APP_ID, Jobs, until_mark
from spark_sink import spark_sink

from tidegate_sink_spark._protocol import Command
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark.job import run
from tidegate_sink_spark.job.files import lock_path

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


COMMIT_FILES = {
    "delta": "_delta_log/*.json",
    "iceberg": "metadata/v*.metadata.json",
}


class Outside:
    """What of a table is seen in its directory."""

    def __init__(self, table: Path, table_format: str) -> None:
        self._table = table
        self._commits = COMMIT_FILES[table_format]

    def commits(self) -> int:
        return len(list(self._table.glob(self._commits)))

    def data_files(self) -> int:
        return len(list(self._table.rglob("*.parquet")))


@pytest.mark.crash  # of kills, test_sink_kill.py is the one that takes less
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
async def test_killed_jobs_and_lost_local_state_leave_every_row_once(
    tmp_path: Path, spark: Any, kit: Any, table_format: str
) -> None:
    log = kit.MemoryLog()
    directory, table = tmp_path / "sink", tmp_path / "lake" / "table"

    def make() -> SparkSink:
        return spark_sink(
            directory,
            table=str(table),
            format=table_format,
            layout="partitioned",
            drain_on_stop=False,
            spark_conf=dict(spark.SHORT_JOB),
        )

    def check() -> None:
        """What is in the table at this very moment is the log up to the mark, each row once."""
        contents = kit.READERS[table_format](table, APP_ID)
        assert contents.is_exact
        assert log.released <= contents.mark

    async def kill() -> None:
        sink = make()
        await sink.start(log)
        outside = Outside(table, table_format)
        try:
            await kit.until(lambda: outside.commits() == 1, 240)  # the table is there, and empty
            for _ in range(4):
                before = outside.commits()
                log.grow(2_500)
                await kit.kill_job(sink, lambda before=before: outside.commits() > before)
                check()
            files = outside.data_files()
            log.grow(2_500)
            await kit.kill_job(sink, lambda: outside.data_files() > files)  # before its commit
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
    contents = kit.READERS[table_format](table, APP_ID)
    assert contents.mark == log.last == 5 * 2_500 + 3_000
    assert contents.is_exact
    assert kit.staged_names(directory / "staging") == []
    data = table if table_format == "delta" else table / "data"
    assert (data / "ack_date=2026-01-02").is_dir()


def java_of(job_pid: int) -> int:
    """The Java process of a job, 0 when there is none."""
    for entry in Path("/proc").iterdir():
        try:
            is_ours = entry.name.isdigit() and os.getpgid(int(entry.name)) == job_pid
            if is_ours and (entry / "comm").read_text().strip() == "java":
                return int(entry.name)
        except OSError:
            continue  # it ended meanwhile
    return 0


@pytest.mark.crash
async def test_java_alone_is_killed_and_the_sink_comes_back(
    tmp_path: Path, spark: Any, kit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its Python outlives it, and sees a connection that ends: in a commit, and in none."""
    caplog.set_level(logging.INFO, "tidegate_sink_spark")
    log, table = kit.MemoryLog(), tmp_path / "lake" / "table"
    sink = spark_sink(
        tmp_path / "sink",
        table=str(table),
        layout="plain",
        drain_on_stop=False,
        spark_conf=dict(spark.SHORT_JOB),
    )
    outside = Outside(table, "delta")

    def kill_java() -> None:
        java = java_of(sink.job_pid)
        assert java, "there is one while the job says how far it is"
        os.kill(java, signal.SIGKILL)

    async def comes_back(killed: int) -> None:
        """One more problem was told, in one line with what to do, and everything is in the table."""
        await kit.until(lambda: len(sink.health().problems) >= killed, 240)
        await kit.until(lambda: log.released == log.last and sink.health().problem == "", 240)
        contents = kit.READERS["delta"](table, APP_ID)
        assert contents.is_exact
        assert contents.mark == log.last

    await sink.start(log)
    try:
        log.grow(10)
        await kit.until(lambda: log.released == 10, 240)
        assert (sink.health().target_files, sink.health().dead_rows) == (1, 0)
        kill_java()  # it does nothing just now
        log.grow(2_500)
        await comes_back(1)
        files = outside.data_files()
        log.grow(2_500)
        async with asyncio.timeout(240):
            while outside.data_files() == files:
                await asyncio.sleep(0.0005)
        kill_java()  # it is about to commit, or just has
        log.grow(10)
        await comes_back(2)
    finally:
        await sink.stop()
    told = {problem.text for problem in sink.health().problems}
    assert all("Java machine ended" in text and "driver_memory" in text for text in told), told
    assert not any("\n" in record.getMessage() or record.exc_info for record in caplog.records)


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


@pytest.mark.parametrize(
    "table_format",
    [
        pytest.param("delta", marks=pytest.mark.crash),
        pytest.param("iceberg", marks=pytest.mark.crash),
        pytest.param("parquet", marks=pytest.mark.long),
    ],
)
def test_dead_letters_survive_a_job_that_dies_between_the_two_commits(
    tmp_path: Path, spark: Any, kit: Any, table_format: str
) -> None:
    jobs = Jobs(tmp_path, spark, kit, table_format)
    letters = jobs.table.with_name("table_dlq")

    def contents() -> tuple[list[int], list[int]]:
        return jobs.contents().sequences, kit.READERS[table_format](letters, APP_ID).sequences

    async def main() -> None:
        kit.stage_dead(jobs.staging, 1, 10, [3, 7])
        kit.stage_dead(jobs.staging, 11, 12, [11, 12])
        first = await jobs.start("one")
        try:
            await until_mark(first, 12)
            assert tuple(map(sorted, contents())) == ([1, 2, 4, 5, 6, 8, 9, 10], [3, 7, 11, 12])
            is_java = table_format != "parquet"
            with (lock_path(jobs.table) if is_java else jobs.table / "_tidegate/lock").open(
                "r+"
            ) as lock:
                # The table waits, its dead letters do not.
                (fcntl.lockf if is_java else fcntl.flock)(lock, fcntl.LOCK_EX)
                kit.stage_dead(jobs.staging, 13, 20, [14])
                first.send(Command.COMMIT)
                await kit.until(lambda: 14 in contents()[1], 120)
                await first.end()
        finally:
            await first.end()
        for path in jobs.staging.iterdir():
            path.unlink()
        kit.stage_dead(jobs.staging, 13, 20, [15])  # 14 can be read again, and 15 cannot
        second = await jobs.start("two")
        try:
            await until_mark(second, 20)
        finally:
            await second.end()

    asyncio.run(main())
    rows, dead = contents()
    assert sorted(dead) == [3, 7, 11, 12, 14, 15]
    assert sorted(rows + dead) == list(range(1, 21))
