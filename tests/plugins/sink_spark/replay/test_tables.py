"""Tables of every format answer the same SQL; one Java machine for all of them, and none for delta-rs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from replay_table import row, write_delta, write_parquet

from tidegate.spi import ConfigError, RequestError
from tidegate.spi.commands import ClientError
from tidegate_sink_spark import SparkSinkOptions
from tidegate_sink_spark.replay import tables
from tidegate_sink_spark.replay.messages import Maker
from tidegate_sink_spark.replay.selecting import ROWS, Reader, Selection
from tidegate_sink_spark.replay.tables import open_table

ROWS_WRITTEN = [
    *[row(n, "topic://t", sequence=n % 30, body=b"\xff%d" % (n % 30)) for n in range(1, 101)],
    row(101, "queue://it's", headers=(("k", "1"), ("k", "2")), correlation_data=b"\xff"),
    row(102, headers=(("large-body-omitted", "1"),), body=b""),
    row(103, expires_at=1),
]

SPARK = """
import json, sys
from pathlib import Path
from tidegate_sink_spark import SparkSinkOptions, create_session
from tidegate_sink_spark.java import jars
from tidegate_sink_spark.replay import tables
from tidegate_sink_spark.replay.messages import Maker
from tidegate_sink_spark.replay.selecting import Reader, Selection
conf, lake, where, since = json.loads(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:5]
import os
iceberg = jars.ensure_jars("auto", jars.cache_directory("", os.environ), repository="",
                         environment=os.environ, table_format="iceberg")
conf |= {"spark.jars": ",".join(map(str, iceberg)),
         "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
         "spark.sql.catalog.lake.type": "hadoop", "spark.sql.catalog.lake.warehouse": str(lake)}
spark = create_session("replay-test", SparkSinkOptions(spark_conf=conf))
rows = spark.read.parquet(str(lake / "parquet"))
rows.write.format("delta").save(str(lake / "delta"))
rows.write.format("iceberg").saveAsTable("lake.sales.orders")
tables.create_session = lambda name, options: spark
tables.SparkRows.close = lambda table: None
found = {}
for kind, options in {
    "delta": SparkSinkOptions(table=str(lake / "delta")),
    "iceberg": SparkSinkOptions(format="iceberg", table=str(lake / "sales" / "orders")),
    "name": SparkSinkOptions(format="iceberg", table="lake.sales.orders", spark_conf=conf),
    "parquet": SparkSinkOptions(format="parquet", table=str(lake / "parquet")),
}.items():
    table = tables.open_table(options, lake)
    reader = Reader(table, Selection(where, int(since)), 40)
    plan = reader.plan()
    made = [[m.position, repr(m)] for w in reader.windows(plan.logs, 0, 0, plan.largest)
            for m in Maker("t", "r").make(w.log, w.rows, 2)]
    found[kind] = [plan.rows, plan.repeated, plan.left_out, plan.destinations, plan.largest, made]
    try:
        Reader(table, Selection("nonsense = 1")).plan()
    except Exception as error:
        found[kind].append([type(error).__name__, str(error)])
print(json.dumps(found))
spark.stop()
"""


def read_without_java(directory: Path, where: str, since: int) -> list[object]:
    options = SparkSinkOptions(table=str(directory), engine="deltalake")
    reader = Reader(open_table(options, directory), Selection(where, since), 40)
    plan = reader.plan()
    made = [
        [message.position, repr(message)]
        for window in reader.windows(plan.logs, 0, 0, plan.largest)
        for message in Maker("t", "r").make(window.log, window.rows, 2)
    ]
    by = {name: list(both) for name, both in plan.destinations.items()}
    return [plan.rows, plan.repeated, plan.left_out, by, plan.largest, made]


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_spark_reads_every_format_as_delta_rs_reads_delta(tmp_path: Path) -> None:
    where = "ack_seq <> 5 AND coalesce(headers['k'], '1') = '1'"
    since = 1_700_000_002_000_000
    write_delta(tmp_path / "rs", ROWS_WRITTEN)
    write_parquet(tmp_path / "lake" / "parquet", ROWS_WRITTEN)
    (tmp_path / "tmp").mkdir()
    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "700m"}
    done = subprocess.run(
        [sys.executable, "-c", SPARK, json.dumps(conf), str(tmp_path / "lake"), where, str(since)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    wanted = read_without_java(tmp_path / "rs", where, since)
    assert wanted[:3] == [32, 68, 1]
    for kind, (*facts, problem) in found.items():
        assert facts == wanted, kind
        assert problem[0] == "RequestError"
        assert "--where is not understood" in problem[1]


def test_delta_rs_reads_what_is_compacted_and_added_meanwhile(tmp_path: Path) -> None:
    directory = tmp_path / "t"
    for first in range(1, 31, 10):
        write_delta(directory, [row(n) for n in range(first, first + 10)])
    table = open_table(SparkSinkOptions(table=str(directory), engine="deltalake"), directory)
    import deltalake

    other = deltalake.DeltaTable(str(directory))
    other.optimize.compact()
    other.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    write_delta(directory, [row(31)])
    count = table.query(f"SELECT count(*) AS n FROM {ROWS}").to_pylist()
    assert count == [{"n": 31}]


def test_what_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    def opened(table: str, **further: Any) -> None:
        options = SparkSinkOptions(table=table, engine="deltalake", **further)
        Reader(open_table(options, tmp_path), Selection())

    with pytest.raises(ClientError, match="there is no Delta table"):
        opened(str(tmp_path))
    with pytest.raises(ClientError, match="take --engine spark"):
        opened("lake.sales.t", catalog={"type": "unity", "uri": "https://unity.example"})
    with pytest.raises(ConfigError, match="reads like a name in the catalog"):
        opened("lake.sales.orders")
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    with pytest.raises(ClientError):
        opened(str(tmp_path / "t"))
    import deltalake
    import pyarrow as pa

    deltalake.write_deltalake(str(tmp_path / "other"), pa.table({"x": [1]}))
    with pytest.raises(RequestError, match="has no column ack_seq"):
        opened(str(tmp_path / "other"))


class Session:
    """As much of a Spark session as opening a Parquet table asks for; remembers what it is told."""

    def __init__(self, local_directory: Path) -> None:
        self.conf = {"spark.local.dir": str(local_directory)}
        self.columns: list[str] = []
        self.schemas: list[str] = []
        self.paths: list[str] = []
        self.is_stopped = False

    @property
    def read(self) -> Session:
        return self

    def schema(self, text: str) -> Session:
        self.schemas.append(text)
        return self

    def parquet(self, path: str) -> Session:
        self.paths.append(path)
        return self

    def createOrReplaceTempView(self, name: str) -> None:
        assert name == ROWS

    def table(self, name: str) -> Session:
        assert name == ROWS
        return self

    def stop(self) -> None:
        self.is_stopped = True


def test_sparks_directory_is_left_to_whom_it_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`spark.local.dir` in spark_conf is a directory of the user's, with files of others in it."""
    (tmp_path / "of-others").write_text("precious")
    session = Session(tmp_path)
    monkeypatch.setattr(tables, "create_session", lambda name, options: session)
    options = SparkSinkOptions(format="parquet", spark_conf={"spark.local.dir": str(tmp_path)})
    open_table(options, tmp_path / "t").close()
    assert session.is_stopped
    assert (tmp_path / "of-others").read_text() == "precious"


def test_a_parquet_table_has_the_columns_of_the_configuration_and_a_path_that_is_no_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(tmp_path)
    monkeypatch.setattr(tables, "create_session", lambda name, options: session)
    columns = {"order": "long json:$.order.id"}
    options = SparkSinkOptions(format="parquet", table="/lake/a[1]", columns=columns, body="text")
    open_table(options, tmp_path)
    assert session.paths == ["/lake/a\\[1\\]"]
    assert session.schemas[0].endswith(", `order` BIGINT, `body_text` STRING")
