"""The sink on a real standalone cluster: a master and workers, started here on ports of the system's choice."""

import asyncio
import os
import random
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from spark_cluster import Cluster, cluster

from tidegate.spi import ConfigError, SinkContext
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark._spark_engine import SparkEngine
from tidegate_sink_spark.cluster.place import check_place, unreachable_master
from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.job.rows import check_workers
from tidegate_sink_spark.job.session import is_cluster, spark_conf
from tidegate_sink_spark.job.table import application_id
from tidegate_sink_spark.plugin import SparkSinkFactory

APP_ID = application_id("gw", "store-1")


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Generator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), spark.environment) as made:
        yield made


def options_of(directory: Path, spark: Any, master: str, **changes: Any) -> SparkSinkOptions:
    options: dict[str, Any] = {
        "master": master,
        "staging_directory": str(directory / "shared [1]" / "staging"),
        "table": str(directory / "shared [1]" / "lake" / "table"),
        "layout": "partitioned",
        "commit_interval": 0.1,
        "segment_rows": 100,
        "segment_interval": 0.02,
        "drain_on_stop": False,
        "spark_conf": {
            **spark.SHORT_JOB,
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        },
    }
    return SparkSinkOptions(**{**options, **changes})


def make(directory: Path, options: SparkSinkOptions) -> SparkSink:
    data = directory / "data"
    data.mkdir(exist_ok=True)
    context = SinkContext("lake", "gw", data)
    return SparkSink(context, options, SparkEngine(context, options), restart_delay=0.05)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kills",
    [pytest.param(False, marks=pytest.mark.long), pytest.param(True, marks=pytest.mark.crash)],
)
async def test_rows_are_in_the_table_once(
    tmp_path: Path, spark: Any, kit: Any, standalone: Cluster, kills: bool
) -> None:
    """What is staged has times that say nothing; one table of two gets some of the rows.

    With *kills* a worker dies, and then the job.
    """
    options = options_of(tmp_path, spark, standalone.master)
    further = Path(options.table).with_name("further")
    options = options_of(
        tmp_path, spark, standalone.master, tables={"queue://orders.0": str(further)}
    )
    staging = Path(options.staging_directory) / "gw" / "lake" / "store-1"
    chance = random.Random(15)
    for number in range(5):
        path = kit.stage(staging, number * 100 + 1, number * 100 + 100)
        time = chance.choice([0, 4_000_000_000])
        os.utime(path, (time, time))
    log = kit.MemoryLog(last=500)
    sink = make(tmp_path, options)

    def rows() -> list[int]:
        main, other = (kit.read_table(path, APP_ID) for path in (Path(options.table), further))
        assert not set(main.sequences) & set(other.sequences)
        return sorted([*main.sequences, *other.sequences])

    await sink.start(log)
    try:
        await kit.until(lambda: sink.health().mark == 500, 240)
        assert rows() == list(range(1, 501))
        if kills:
            standalone.workers[0].kill()  # with the executor in it
        log.grow(300)
        await kit.until(lambda: sink.health().mark == 800, 240)
        if kills:
            await kit.until(lambda: sink.job_pid, 240)
            os.killpg(sink.job_pid, signal.SIGKILL)
        log.grow(300)
        await kit.until(lambda: log.released == 1_100, 240)
        assert rows() == list(range(1, 1_101))
        assert [path.name for path in staging.glob("*.parquet")] == []
        assert not list(Path(options.table).parent.glob(".tidegate-probe*"))
    finally:
        await sink.stop()


class NoWorkers:
    """A Spark whose workers write to disks of their own: nothing comes here."""

    def __init__(self, seen: int) -> None:
        self.seen = seen

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *arguments: Any) -> Any:
        return self

    @property
    def defaultParallelism(self) -> int:
        return 2

    def count(self) -> int:
        return self.seen


@pytest.mark.parametrize(
    ("seen", "problem"), [(1, "cannot read .*staging"), (2, "cannot write to .*lake")]
)
def test_workers_that_do_not_see_the_files_are_told_before_the_first_commit(
    tmp_path: Path, seen: int, problem: str
) -> None:
    with pytest.raises(CommitError, match=problem):
        check_workers(NoWorkers(seen), tmp_path / "staging", tmp_path / "lake" / "table")
    assert [path.name for path in tmp_path.rglob("*probe*")] == []


@pytest.mark.parametrize(
    ("changes", "key", "problem"),
    [
        ({"master": "spark:/host"}, "master", "no master of Spark"),
        ({"spark_conf": {"spark.master": "mesos://x"}}, "spark_conf.spark.master", "no master"),
        (
            {"master": "local[1]", "spark_conf": {"spark.master": "local[2]"}},
            "spark_conf.spark.master",
            "remove one",
        ),
        ({"master": "spark://h:7077", "staging_directory": ""}, "staging_directory", "read staged"),
        ({"master": "spark://h:7077", "table": ""}, "table", "write the table"),
        (
            {"master": "yarn", "spark_conf": {"spark.submit.deployMode": "cluster"}},
            "spark_conf.spark.submit.deployMode",
            "remove it",
        ),
        ({"staging_directory": "s3a://bucket/staged"}, "staging_directory", "file system"),
        ({"staging_directory": "staged"}, "staging_directory", "absolute"),
    ],
)
def test_what_cannot_be_on_a_cluster_is_an_error_at_start(
    changes: dict[str, Any], key: str, problem: str, tmp_path: Path
) -> None:
    named = {"staging_directory": "/srv/staged", "table": "/srv/table"}
    options = SparkSinkOptions(**{**named, **changes})
    with pytest.raises(ConfigError, match=problem) as caught:
        SparkSinkFactory().create(SinkContext("lake", "gw", tmp_path), options)
    assert caught.value.key == key


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]", ""])
def test_a_local_spark_is_no_cluster(master: str) -> None:
    assert not is_cluster(master)
    check_place(SparkSinkOptions(master=master))


def test_a_driver_of_a_cluster_listens_to_its_workers_and_takes_some_cores() -> None:
    found = spark_conf(
        jars=[],
        driver_memory_bytes=1 << 30,
        work_directory=Path("/w"),
        overrides={"spark.master": "spark://host:7077"},
    )
    assert not {"spark.driver.host", "spark.driver.bindAddress"} & set(found)
    assert "spark.hadoop.hadoop.tmp.dir" not in found
    assert found["spark.cores.max"] == "2"


async def test_a_master_that_does_not_answer_is_said_at_once() -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await unreachable_master(f"spark://127.0.0.1:{port}") == ""
    server.close()
    await server.wait_closed()
    assert "does not answer" in await unreachable_master(f"spark://127.0.0.1:{port}")
    assert await unreachable_master("yarn") == ""
