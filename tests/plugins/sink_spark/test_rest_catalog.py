"""Iceberg tables in a REST catalog: Apache's own server, a token at its door, and data on disk or in S3."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from object_store import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, ObjectStore
from rest_catalog import AWS_BUNDLE, AWS_OF_SERVER, TOKEN, RestCatalog, fetched
from spark_sink import spark_sink

from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark.job.table import application_id

pytestmark = [pytest.mark.crash, pytest.mark.spark]

APP_ID = application_id("gw", "store-1")
TABLE = "lake.sales.acknowledged"
#: Shorter than the sink's own, which come to half a minute and to one.
IMPATIENT = {
    "rest.client.socket-timeout-ms": "5000",
    "http-client.apache.socket-timeout-ms": "3000",
}


class Bench:
    """A log, and sinks that carry it into a table of the catalog."""

    def __init__(self, directory: Path, spark: Any, kit: Any) -> None:
        self.directory = directory
        self.spark = spark
        self.kit = kit
        self.log = kit.MemoryLog()
        self.java = str(Path(spark.environment["JAVA_HOME"]) / "bin" / "java")

    def sink(self, catalog: Mapping[str, str], name: str = "lake", **changes: Any) -> SparkSink:
        return spark_sink(
            self.directory / name,
            name=name,
            table=TABLE,
            format="iceberg",
            catalog=dict(catalog),
            spark_conf={**self.spark.SHORT_JOB, **changes},
        )

    async def until_told(self, sink: SparkSink) -> None:
        """The operator reads why there is no commit; not that nobody knows."""
        await self.kit.until(lambda: sink.health().problem, 240)
        problem = sink.health().problem
        assert "said nothing" not in problem
        assert "endpoint in spark_conf, storage_options or catalog" in problem
        assert "\n" not in problem

    async def until_released(self, sink: SparkSink) -> None:
        """All that was acknowledged is in the table, and no problem is left."""
        await self.kit.until(lambda: self.log.released == self.log.last, 240)
        await self.kit.until(lambda: sink.health().problem == "", 60)


@pytest.fixture
def bench(tmp_path: Path, spark: Any, kit: Any) -> Bench:
    return Bench(tmp_path, spark, kit)


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    made = ObjectStore()
    yield made
    made.close()


def check(rest: RestCatalog, mark: int, **properties: str) -> None:
    """pyiceberg asks the catalog, and reads the files: each row once, and the mark."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.utils.concurrent import ExecutorFactory

    catalog = load_catalog("lake", type="rest", uri=rest.uri, token=TOKEN, **properties)
    table = catalog.load_table("sales.acknowledged")
    rows = table.scan(selected_fields=("ack_seq",)).to_arrow()["ack_seq"].to_pylist()
    ExecutorFactory.get_or_create().shutdown()  # its threads would outlive the test
    ExecutorFactory._instance = None
    assert sorted(rows) == list(range(1, mark + 1))
    assert table.properties[f"tidegate.mark.{APP_ID}"] == str(mark)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_table_in_a_rest_catalog(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Away at the start and later, a killed job, no answers, a wrong token; each row once."""
    caplog.set_level(logging.DEBUG)
    warehouse = str(bench.directory / "warehouse")
    rest = RestCatalog(bench.java, bench.directory, {"warehouse": warehouse})
    catalog = {"type": "rest", "uri": rest.uri, "token": TOKEN, **IMPATIENT}
    sink = bench.sink(catalog)
    try:
        rest.set_reachable(False)
        await sink.start(bench.log)
        bench.log.grow(1_500)
        await bench.kit.until(lambda: "onnect" in sink.health().problem, 240)
        assert "spark_conf, storage_options or catalog" in sink.health().problem
        assert "\n" not in sink.health().problem
        rest.set_reachable(True)
        await bench.until_released(sink)
        check(rest, 1_500)
        rest.set_reachable(False)
        bench.log.grow(1_500)
        await bench.kit.until(lambda: sink.health().problem, 240)
        rest.set_reachable(True)
        await bench.until_released(sink)
        bench.log.grow(2_000)
        await bench.kit.kill_job(sink)
        await bench.until_released(sink)
        check(rest, 5_000)
        rest.set_answering(False)  # it does what it is asked for, and never says so
        bench.log.grow(1_500)
        await bench.until_told(sink)
        rest.set_answering(True)
        await bench.until_released(sink)
        check(rest, 6_500)
        rest.hang_at("POST")  # only what changes something: what it has done is found by its mark
        bench.log.grow(1_500)
        await bench.until_told(sink)
        rest.set_answering(True)
        await bench.until_released(sink)
        check(rest, 8_000)
    finally:
        await sink.stop()
        wrong = bench.sink({**catalog, "token": "another"}, "wrong")
        await wrong.start(bench.log)
        try:
            await bench.kit.until(lambda: "who are you?" in wrong.health().problem, 240)
            assert "see the keys" in wrong.health().problem
        finally:
            await wrong.stop()
            rest.close()
    assert TOKEN not in caplog.text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_rest_catalog_with_its_files_in_s3(
    bench: Bench, store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    """As docs/sink-spark.md has it; the job is killed on the way, the store goes away, and it never answers."""
    caplog.set_level(logging.DEBUG)
    (bundle,) = fetched(AWS_BUNDLE)
    s3 = {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": store.endpoint,
        "s3.path-style-access": "true",
        "s3.access-key-id": ACCESS_KEY,
        "s3.secret-access-key": SECRET_KEY,
        "client.region": REGION,
        **IMPATIENT,
    }
    behind = {"warehouse": f"s3://{BUCKET}/warehouse", **s3}
    rest = RestCatalog(bench.java, bench.directory, behind, *fetched(*AWS_OF_SERVER))
    catalog = {"type": "rest", "uri": rest.uri, "token": TOKEN, **s3}
    sink = bench.sink(catalog, **{"spark.jars": str(bundle)})
    try:
        await sink.start(bench.log)
        bench.log.grow(1_500)
        await bench.until_released(sink)
        bench.log.grow(1_500)
        await bench.kit.kill_job(sink)
        await bench.until_released(sink)
        assert any(name.endswith(".parquet") for name in store.names("warehouse"))
        names = ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key")
        check(rest, 3_000, **{name: s3[name] for name in names}, **{"s3.region": REGION})
        store.set_reachable(False)
        bench.log.grow(1_500)
        await bench.until_told(sink)
        store.set_reachable(True)
        await bench.until_released(sink)
        store.set_answering(False)
        bench.log.grow(1_500)
        await bench.until_told(sink)
        store.set_answering(True)
        await bench.until_released(sink)
        check(rest, 6_000, **{name: s3[name] for name in names}, **{"s3.region": REGION})
    finally:
        store.set_answering(True)
        await sink.stop()
        rest.close()
    assert SECRET_KEY not in caplog.text
