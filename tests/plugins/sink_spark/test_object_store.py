"""Spark's Delta table on S3 (moto's server): what the job carries there, and which of two writers wins."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest
from object_store import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, ObjectStore
from spark_sink import spark_sink

from tidegate.spi import ConfigError, SinkContext
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._spark_engine import SparkEngine
from tidegate_sink_spark.job.table import application_id

APP_ID = application_id("gw", "store-1")
TABLE = f"s3a://{BUCKET}/acknowledged"
#: As docs/sink-spark.md has them: Hadoop's S3A, and of the AWS SDK what it uses.
PACKAGES = {
    "spark.jars.packages": (
        "org.apache.hadoop:hadoop-aws:3.4.2,software.amazon.awssdk:s3-transfer-manager:2.29.52,"
        "software.amazon.awssdk:apache-client:2.29.52"
    ),
    "spark.jars.excludes": (
        "software.amazon.awssdk:bundle,org.wildfly.openssl:wildfly-openssl,io.netty:*,org.slf4j:*,commons-codec:*,"
        "commons-logging:*,org.apache.httpcomponents:*"
    ),
}
LOG_STORE = {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore"}


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    made = ObjectStore()
    yield made
    made.close()


def conf_of(store: ObjectStore) -> dict[str, str]:
    s3a = {
        "endpoint": store.endpoint,
        "endpoint.region": REGION,
        "path.style.access": "true",
        "access.key": ACCESS_KEY,
        "secret.key": SECRET_KEY,
        # The sink's own come to a minute and a half; the least that S3A takes is 15 s.
        "attempts.maximum": "0",
        "retry.limit": "1",
    }
    return {**PACKAGES, **LOG_STORE, **{f"spark.hadoop.fs.s3a.{k}": v for k, v in s3a.items()}}


def test_a_log_store_that_keeps_nobody_away_is_taken_only_by_name(tmp_path: Path) -> None:
    context = SinkContext("lake", "gw", tmp_path)
    with pytest.raises(ConfigError, match=r"engine 'deltalake'.*S3SingleDriverLogStore") as caught:
        SparkEngine(context, SparkSinkOptions(table=TABLE))
    assert caught.value.key == "table"
    with pytest.raises(ConfigError, match="no second driver"):
        SparkEngine(context, SparkSinkOptions(table="/t", tables={"a": TABLE}))
    assert SparkEngine(context, SparkSinkOptions(table=TABLE, spark_conf=LOG_STORE)).table == TABLE


@pytest.mark.spark
@pytest.mark.crash
async def test_the_job_is_killed_and_the_store_away(
    tmp_path: Path, spark: Any, kit: Any, store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    log = kit.MemoryLog()
    sink = spark_sink(
        tmp_path / "sink",
        table=TABLE,
        layout="partitioned",
        spark_conf={**spark.SHORT_JOB, **conf_of(store)},
    )

    async def until_released() -> None:
        await kit.until(lambda: log.released == log.last, 240)
        await kit.until(lambda: sink.health().problem == "", 60)

    await sink.start(log)
    try:
        log.grow(1_500)
        await until_released()
        log.grow(1_500)
        await kit.kill_job(sink)
        await until_released()
        store.set_reachable(False)
        log.grow(1_500)
        await kit.until(lambda: sink.health().problem, 240)
        assert "endpoint in spark_conf" in sink.health().problem
        store.set_reachable(True)
        await until_released()
        store.set_answering(False)
        log.grow(1_500)
        await kit.until(lambda: sink.health().problem, 240)
        assert "said nothing" not in sink.health().problem
        assert "endpoint in spark_conf" in sink.health().problem
        assert log.released == 4_500
        store.set_answering(True)
        await until_released()
    finally:
        store.set_answering(True)
        store.set_reachable(True)
        await sink.stop()
    table = deltalake.DeltaTable(TABLE, storage_options=store.storage_options)
    rows = table.to_pyarrow_table(columns=["ack_seq"])["ack_seq"].to_pylist()
    assert sorted(rows) == list(range(1, 6_001))
    assert table.transaction_version(APP_ID) == 6_000
    assert SECRET_KEY not in caplog.text


RACE = """
import json, sys
from pathlib import Path
from tidegate_sink_spark import create_session
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark.job import delta
from tidegate_sink_spark.job.delta import DeltaTable
from tidegate_sink_spark.job.driver import Addition, MarkMovedError
from tidegate_sink_spark.job.table import Shape
conf, uri, app_id, short, long = json.loads(sys.argv[1]), *sys.argv[2:]
spark = create_session("race-test", SparkSinkOptions(table=uri, spark_conf=conf))
nothing = spark._jvm.scala.Option.empty()
class Log:
    def __init__(self, log):
        transaction = log.startTransaction(nothing, nothing)
        self.startTransaction = lambda *_: transaction
def writer():
    table = DeltaTable(spark, uri, Shape("clustered"), app_id)
    log, snapshot = newest(spark, uri)
    return table, (Log(log), snapshot)
newest, found = delta.newest, []
writers = [writer(), writer()]
for (table, begun), path, hi in zip(writers, (short, long), (10, 15)):
    delta.newest = lambda *_, **__: begun
    try:
        table.append(Addition([Path(path)], after=0, through=hi, count=hi))
        found.append("won")
    except MarkMovedError:
        found.append("refused")
delta.newest = newest
fresh = DeltaTable(spark, uri, Shape("clustered"), app_id)
found += [fresh.state().mark, sorted(fresh.sequences("gw", "store-1", 0))]
try:
    fresh.append(Addition([Path(long)], after=5, through=15, count=10, overlaps=True))
except MarkMovedError:
    found.append("refused")
print("FOUND", json.dumps(found))
"""


CARELESS = """
import json, sys
from tidegate_sink_spark import create_session
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark.job import log_store
from tidegate_sink_spark.job.delta import DeltaTable
from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.job.table import Shape
conf, uri, app_id = json.loads(sys.argv[1]), *sys.argv[2:]
spark = create_session("careless-test", SparkSinkOptions(table=uri, spark_conf=conf))
try:
    DeltaTable(spark, uri, Shape("clustered"), app_id)
    found = "opened"
except CommitError as error:
    found = str(error)
spark.conf.set(log_store.LOG_STORES[0], log_store.SINGLE_DRIVER)
DeltaTable(spark, uri, Shape("clustered"), app_id)
print("FOUND", json.dumps([found, log_store._race(spark, uri + "/race")]))
"""


@pytest.mark.spark
@pytest.mark.crash
def test_a_log_store_that_lets_two_drivers_win_is_refused_before_a_row(
    tmp_path: Path, spark: Any, store: ObjectStore
) -> None:
    """Delta's for Google looks first on S3, too: its condition is one of Google's."""
    conf = {**spark.SHORT_JOB, **conf_of(store)}
    conf["spark.delta.logStore.s3a.impl"] = "io.delta.storage.GCSLogStore"
    said, won = found_by(CARELESS, spark, tmp_path, conf, [])
    assert "GCSLogStore takes several commits with one number" in said
    assert "engine 'deltalake'" in said
    assert won > 1
    assert not [name for name in store.names() if "probe-" in name]


def found_by(
    program: str, spark: Any, directory: Path, conf: dict[str, str], staged: list[str]
) -> Any:
    """What *program* has found, in a Python of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(conf), TABLE, APP_ID, *staged],
        env=spark.environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[0].removeprefix("FOUND "))


@pytest.mark.spark
@pytest.mark.crash
def test_of_two_writers_that_saw_the_same_mark_one_is_refused(
    tmp_path: Path, spark: Any, kit: Any, store: ObjectStore
) -> None:
    """Both transactions have begun before either commits; the mark is part of what they have read."""
    staged = [str(kit.stage(tmp_path / str(hi), 1, hi)) for hi in (10, 15)]
    conf = {**spark.SHORT_JOB, **conf_of(store)}
    found = found_by(RACE, spark, tmp_path, conf, staged)
    assert found == ["won", "refused", 10, list(range(1, 11)), "refused"]
