"""A job that somebody else starts: the exchange through files, the file for spark-submit, and a real cluster."""

import asyncio
import contextlib
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from spark_cluster import cluster

from tidegate.cli import main
from tidegate.spi import ConfigError, SinkContext
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._protocol import Command, Failed, JobConfig, Mark, Stopped
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark.cluster import job
from tidegate_sink_spark.cluster.bundle import write_bundle, write_properties
from tidegate_sink_spark.cluster.engine import SubmittedEngine, SubmittedJob, exchange_directory
from tidegate_sink_spark.cluster.exchange import (
    ANSWER_NAME,
    TASK_NAME,
    WISH_NAME,
    Answer,
    Task,
    Wish,
    own_reports,
    read,
    write,
)
from tidegate_sink_spark.cluster.place import check_place, submitted_conf
from tidegate_sink_spark.java.runtime import spark_home
from tidegate_sink_spark.job.session import properties_text
from tidegate_sink_spark.job.table import application_id

APP_ID = application_id("gw", "store-1")
WITHOUT_SPARK = (
    "import sys; from pathlib import Path; from tidegate_sink_spark.cluster import job;"
    "sys.exit(job.serve(None, Path(sys.argv[1])))"
)


class Bench:
    """A sink whose job is somebody else's, in a table that needs no Spark unless *changes* say so."""

    def __init__(self, directory: Path, kit: Any, **changes: Any) -> None:
        self.kit = kit
        self.directory = directory
        self.log = kit.MemoryLog()
        self.table = directory / "lake" / "table"
        options: dict[str, Any] = {
            "job": "submitted",
            "format": "parquet",
            "layout": "partitioned",
            "staging_directory": str(directory / "shared"),
            "table": str(self.table),
            "commit_interval": 0.1,
            "segment_rows": 100,
            "segment_interval": 0.02,
            "stop_timeout": 60.0,
        }
        self.options = SparkSinkOptions(**{**options, **changes})
        (directory / "data").mkdir(exist_ok=True)
        self.context = SinkContext("lake", "gw", directory / "data")
        self.exchange = exchange_directory(self.options, self.context)

    def make(self, silence: float = 60.0) -> SparkSink:
        engine = SubmittedEngine(self.context, self.options, silence=silence)
        return SparkSink(self.context, self.options, engine, restart_delay=0.05)

    def contents(self) -> Any:
        return self.kit.READERS[self.options.format](self.table, APP_ID)

    async def until_mark(self, sink: SparkSink, mark: int) -> None:
        await self.kit.until(lambda: sink.health().mark == mark, 240)

    @contextlib.contextmanager
    def job(self, *command: str, **environment: str) -> Generator[subprocess.Popen[bytes]]:
        """A job of somebody's; killed with all that it started."""
        words = command or (sys.executable, "-c", WITHOUT_SPARK, str(self.exchange))
        with (self.directory / "job.log").open("ab") as log:
            made = subprocess.Popen(
                words,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield made
        finally:
            kill(made)


def kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


async def lives_of_jobs(bench: Bench, *command: str, **environment: str) -> None:
    """A job comes late, is killed, has two successors at once, and sees the gateway stop and start."""
    bench.log.grow(250)
    sink = bench.make(silence=0.3)
    await sink.start(bench.log)
    await bench.kit.until(lambda: "no submitted job has answered" in sink.health().problem)
    with bench.job(*command, **environment) as first:
        await bench.until_mark(sink, 250)
        assert sink.health().problem == ""
        kill(first)
    bench.log.grow(250)
    with bench.job(*command, **environment), bench.job(*command, **environment):
        await bench.until_mark(sink, 500)
        bench.log.grow(300)
        await bench.until_mark(sink, 800)
        bench.log.grow(100)
        await sink.stop()  # waits for what is acknowledged
        assert bench.contents().mark == 900
        bench.log.grow(100)
        sink = bench.make()
        await sink.start(bench.log)
        try:
            await bench.until_mark(sink, 1_000)
            await bench.kit.until(lambda: bench.log.released == 1_000)
        finally:
            await sink.stop()
    assert bench.contents().is_exact
    assert not list((bench.directory / "shared").rglob("*.parquet"))


@pytest.mark.long
async def test_jobs_of_others_carry_every_row_once(tmp_path: Path, kit: Any) -> None:
    """Without Spark: a job for a table of Parquet files, which nobody can ask for, is the same job."""
    await lives_of_jobs(Bench(tmp_path, kit))


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(900)
async def test_spark_submit_runs_the_job_on_a_cluster(tmp_path: Path, kit: Any, spark: Any) -> None:
    conf = {
        **spark.SHORT_JOB,
        "spark.driver.host": "127.0.0.1",
        "spark.cores.max": "1",
        "spark.executor.memory": "512m",
    }
    bench = Bench(tmp_path, kit, format="delta", spark_conf=conf)
    check_place(bench.options)
    program, properties = tmp_path / "the job.py", tmp_path / "spark.properties"
    write_bundle(program, bench.exchange)
    write_properties(properties, properties_text(submitted_conf(bench.options, spark.environment)))
    with cluster(tmp_path / "cluster", spark.environment) as standalone:
        submit = (str(spark_home() / "bin" / "spark-submit"), "--master", standalone.master)
        await lives_of_jobs(
            bench,
            *(*submit, "--properties-file", str(properties), str(program)),
            **spark.environment,
        )


def configured(directory: Path, job: str) -> Path:
    (directory / "a.jar").touch()
    path = directory / "tidegate.toml"
    path.write_text(f"""
[[sinks]]
plugin = "spark"
name = "lake.1"
{job}
staging_directory = "{directory}/shared"
table = "{directory}/lake"
jars = "{directory}/a.jar"
""")
    return path


def test_the_command_writes_the_job_and_says_how_to_start_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured(tmp_path, 'job = "submitted"')
    arguments = ["sink", "submit", "lake.1", "--output", str(tmp_path / "out"), "-c", str(path)]
    assert main(arguments) == 0
    words = shlex.split(capsys.readouterr().out)
    assert words[:4] == ["spark-submit", "--master", "MASTER", "--properties-file"]
    assert f"spark.jars={tmp_path}/a.jar" in Path(words[4]).read_text().encode().decode(
        "unicode_escape"
    )
    with zipfile.ZipFile(words[5]) as file:
        assert f"{tmp_path}/shared/tidegate/lake%2E1/.job" in file.read("__main__.py").decode()


def test_a_job_that_the_gateway_starts_is_not_submitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured(tmp_path, "")
    assert main(["sink", "submit", "lake.1", "-o", str(tmp_path / "out"), "-c", str(path)]) == 2
    assert 'set job = "submitted"' in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_file_for_spark_submit_needs_nothing_of_the_gateway(tmp_path: Path) -> None:
    """A Python that has pyspark, pyarrow and msgspec, and not one package more."""
    program, site = tmp_path / "job.py", tmp_path / "site"
    write_bundle(program, Path("/srv/it's/exchange"))
    site.mkdir()
    for name in ("pyspark", "py4j", "pyarrow", "msgspec", "numpy"):
        found = Path(__import__(name).__file__).parent
        (site / name).symlink_to(found)
    script = (
        f"import sys; sys.path[:0] = [{str(program)!r}, {str(site)!r}]\n"
        "import tidegate_sink_spark.cluster.job as job, tidegate.spi\n"
        "print(job.__file__, tidegate.spi.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(path.startswith(str(program)) for path in done.stdout.split())
    with zipfile.ZipFile(program) as file:
        assert '"/srv/it\'s/exchange"' in file.read("__main__.py").decode()


def test_a_python_without_what_the_job_needs_is_told(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    write_bundle(program, tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "has no pyspark, pyarrow, msgspec; install it" in done.stderr


def test_settings_for_spark_submit_hold_keys_and_no_master(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.touch()
    conf = submitted_conf(
        SparkSinkOptions(
            job="submitted",
            table="/srv/t",
            jars=str(jar),
            driver_memory=2 << 30,
            spark_conf={"spark.hadoop.fs.s3a.secret.key": "s3cret"},
        ),
        {},
    )
    assert conf["spark.hadoop.fs.s3a.secret.key"] == "s3cret"
    assert conf["spark.jars"] == str(jar)
    assert conf["spark.driver.memory"] == "2048m"
    assert "DeltaCatalog" in conf["spark.sql.catalog.spark_catalog"]
    assert not {"spark.master", "spark.local.dir", "spark.driver.host"} & set(conf)
    write_properties(tmp_path / "p", properties_text(conf))
    assert (tmp_path / "p").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("changes", "key", "problem"),
    [
        ({"master": "spark://h:7077"}, "master", "spark-submit --master"),
        ({"spark_conf": {"spark.master": "yarn"}}, "spark_conf.spark.master", "--master"),
        ({"java_home": "/opt/java"}, "java_home", "JAVA_HOME"),
        ({"niceness": 0}, "niceness", "nice spark-submit"),
        ({"staging_directory": ""}, "staging_directory", "is missing"),
        ({"table": ""}, "table", "is missing"),
        ({"table": "s3a://bucket/t"}, "table", "keeps two submitted jobs apart"),
        ({"tables": {"a": "abfs://x@y/t"}}, "tables.a", "take format 'iceberg'"),
        (
            {"table": "c.n.t", "catalog": {"type": "unity", "uri": "http://u"}},
            "table",
            "keeps two submitted jobs apart",
        ),
    ],
)
def test_what_a_submitted_job_cannot_have_is_an_error_at_start(
    changes: dict[str, Any], key: str, problem: str
) -> None:
    named: dict[str, Any] = {
        "job": "submitted",
        "staging_directory": "/srv/staged",
        "table": "/srv/table",
    }
    check_place(SparkSinkOptions(**named))
    check_place(SparkSinkOptions(**{**named, "format": "iceberg", "table": "hdfs://n/t"}))
    with pytest.raises(ConfigError, match=problem) as caught:
        check_place(SparkSinkOptions(**{**named, **changes}))
    assert caught.value.key == key


def test_an_answer_says_what_is_new_by_numbers(tmp_path: Path) -> None:
    reports = tuple(Mark(n, 0) for n in (7, 8, 9))
    answer = Answer("s", "job-1", beat=5, number=9, reports=reports)
    path = tmp_path / ANSWER_NAME
    write(path, answer)
    os.utime(path, (0, 0))
    assert read(path, Answer) == answer
    assert own_reports(answer, "job-1", 9) == ()
    assert own_reports(answer, "job-1", 8) == reports[2:]
    assert own_reports(answer, "job-1", 2) == reports  # some were never seen; the last ones count
    assert own_reports(answer, "another", 9) == reports
    path.write_text('{"of": "another version"}')
    assert read(path, Answer) is None
    assert read(tmp_path / TASK_NAME, Task) is None


async def test_each_command_is_a_number_that_grows(tmp_path: Path) -> None:
    made = SubmittedJob(tmp_path, tmp_path, "s", 60.0)
    for command in (Command.COMMIT, Command.COMPACT, Command.COMPACT_AND_VACUUM, Command.STOP):
        made.send(command)
    for _ in range(1000):
        if (found := read(tmp_path / WISH_NAME, Wish)) == Wish("s", 2, 2, 1):
            break
        await asyncio.sleep(0.01)
    await made.end()
    assert found == Wish("s", 2, 2, 1)
    assert read(tmp_path / WISH_NAME, Wish) == found


def test_a_job_follows_the_sinks_wishes_until_another_session_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "POLL", 0.001)
    config = JobConfig(
        gateway_name="gw",
        store_id="store-1",
        staging_directory=str(tmp_path),
        table=str(tmp_path / "t"),
        layout="plain",
        commit_interval=1.0,
        floor=0,
    )
    desk = job.Desk(tmp_path)
    write(tmp_path / TASK_NAME, Task("one", config))
    desk.begin("one")
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    follower = threading.Thread(target=desk.follow, args=("one", commands))
    follower.start()
    write(tmp_path / WISH_NAME, Wish("another", 5))
    write(tmp_path / WISH_NAME, Wish("one", 1))
    assert commands.get(timeout=60) is Command.COMMIT
    write(tmp_path / WISH_NAME, Wish("one", 1, compacts=1))
    assert commands.get(timeout=60) is Command.COMPACT
    write(tmp_path / WISH_NAME, Wish("one", 2, compacts=2, vacuums=1))
    assert [commands.get(timeout=60) for _ in range(2)] == [
        Command.COMMIT,
        Command.COMPACT_AND_VACUUM,
    ]
    desk.report(Failed("told"))
    desk.report(Stopped(1))
    answer = read(tmp_path / ANSWER_NAME, Answer)
    assert answer is not None
    assert (answer.session, answer.number, answer.reports) == ("one", 1, (Failed("told"),))
    write(tmp_path / TASK_NAME, Task("two", config))
    assert commands.get(timeout=60) is Command.STOP
    follower.join(60)
    assert not follower.is_alive()
