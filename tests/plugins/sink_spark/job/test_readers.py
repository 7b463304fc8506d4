"""Tables with key columns and a body as text, partitioned by destination, as the readers of the field see them.

Spark SQL, DuckDB, Polars, delta-rs, pyiceberg. That a query leaves files out is shown by taking them away.
"""

import datetime as dt
import importlib
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars
import pyarrow.dataset
import pytest

from tidegate_sink_spark.delta_rs.table import DeltaRsTable
from tidegate_sink_spark.job.driver import Addition
from tidegate_sink_spark.job.parquet import ParquetTable
from tidegate_sink_spark.job.table import Shape
from tidegate_sink_spark.staging.arrow import build_batch, write_parquet
from tidegate_sink_spark.staging.columns import find_columns
from tidegate_sink_spark.staging.further import Further

COLUMNS = {
    "order": "long json:$.order.id",  # a word of SQL, too
    "price": "decimal(18,2) json:$.price",
    "Device": "string header:device",
    "day": "date json:$.day",
    "sent": "timestamp json:$.sent",
    "paid": "boolean json:$.paid",
    "ratio": "double json:$.ratio",
}
#: It has what paths of files and percent signs make of names.
DESTINATION = "queue://a/b=c.größe %{}"
WANTED = DESTINATION.format(0)
KEY = (7, Decimal("7.25"), "d7", dt.date(2026, 1, 2), 1_767_323_045_000_000, True, 0.5)


def body_of(n: int) -> bytes:
    return json.dumps(
        {
            "order": {"id": n},
            "price": n + 0.25,
            "day": "2026-01-02",
            "sent": "2026-01-02T03:04:05Z",
            "paid": True,
            "ratio": 0.5,
        }
    ).encode()


#: What somebody sends who has other things in mind than JSON.
HOSTILE = {28: b"\xff", 29: b'{"a": 1, "a": 2}', 30: b"[" * 20_000}


def stage(kit: Any, path: Path, further: Further, lo: int, hi: int) -> Path:
    """Rows *lo* to *hi*; row 7 goes to WANTED."""
    rows = [
        kit.acknowledged(
            n,
            destination=DESTINATION.format((n - 7) % 3),
            body=HOSTILE.get(n) or body_of(n),
            headers=(("device", f"d{n}"),),
        )
        for n in range(lo, hi + 1)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(
        path,
        [further.read([row.message for row in rows]).behind(build_batch(rows, "gw", "store-1"))],
    )
    return path


def in_duckdb(source: str, **tables: Any) -> list[tuple[Any, ...]]:
    """Row 7 and the rows of its destination, and only with what a filter leaves."""
    with duckdb.connect() as database:
        for name, table in tables.items():
            database.register(name, table)
        return database.execute(
            'SELECT "order", price, "Device", day, epoch_us(sent), paid, ratio, body_json, encode(body_json) = body,'
            f" count(*) OVER () FROM {source} WHERE destination = '{WANTED}' ORDER BY ack_seq LIMIT 3"
        ).fetchall()


def in_polars(frame: Any) -> tuple[Any, ...]:
    column = polars.col
    wanted = frame.filter((column("destination") == WANTED) & (column("ack_seq") == 7)).select(
        "order", "price", "Device", "day", column("sent").dt.timestamp("us"), "paid", "ratio"
    )
    (row,) = wanted.collect().rows()
    return row


def keep_one(files: list[Path], kept: Callable[[Path], bool]) -> None:
    """Take away what a query for WANTED need not open."""
    others = [path for path in files if not kept(path)]
    assert 0 < len(others) < len(files)
    for path in others:
        path.unlink()


@pytest.mark.parametrize("partition_by", [("ack_date", "destination"), ("destination",)])
def test_parquet_is_read_by_destination(
    tmp_path: Path, kit: Any, partition_by: tuple[str, ...]
) -> None:
    further = Further(find_columns(COLUMNS), "json")
    path = tmp_path / "t"
    table = ParquetTable(path, Shape("partitioned", further.sql, partition_by), "app")
    table.append(Addition([stage(kit, tmp_path / "s.parquet", further, 1, 27)], 0, 27, 27))
    files = f"read_parquet('{path}/**/*.parquet', hive_partitioning = true)"
    rows = in_duckdb(files)
    assert (*KEY, body_of(7).decode(), True, 9) in rows
    assert in_polars(polars.scan_parquet(f"{path}/**/*.parquet", hive_partitioning=True)) == KEY
    arrow = pyarrow.dataset.dataset(path, partitioning="hive", ignore_prefixes=["_"])
    assert arrow.count_rows(filter=pyarrow.dataset.field("destination") == WANTED) == 9
    keep_one(list(path.rglob("ack-*.parquet")), lambda file: file.parent.name.endswith("250"))
    assert in_duckdb(files) == rows


@pytest.mark.parametrize("partition_by", [("destination", "ack_date"), ("destination",)])
def test_delta_without_java_is_read_by_destination(
    tmp_path: Path, kit: Any, partition_by: tuple[str, ...]
) -> None:
    further = Further(find_columns(COLUMNS), "json")
    path = tmp_path / "t"
    table = DeltaRsTable(path, Shape("partitioned", further.sql, partition_by), "app")
    table.append(Addition([stage(kit, tmp_path / "s.parquet", further, 1, 27)], 0, 27, 27))
    # The rows of one destination and day are linked as they are staged.
    rows = [kit.acknowledged(28, destination=WANTED, body=body_of(28))]
    one = further.read([row.message for row in rows])
    write_parquet(tmp_path / "one.parquet", [one.behind(build_batch(rows, "gw", "store-1"))])
    table.append(Addition([tmp_path / "one.parquet"], 27, 28, 1))
    cold = deltalake.DeltaTable(str(path))
    assert tuple(cold.metadata().partition_columns) == partition_by
    pruned = cold.to_pyarrow_table(filters=[("destination", "=", WANTED)])
    assert pruned.num_rows == 10
    wanted = {
        Path(file).name
        for file in cold.file_uris(file_pruning_predicate=[("destination", "=", WANTED)])
    }
    assert len(wanted) == 2
    assert in_polars(polars.scan_delta(str(path))) == KEY
    keep_one(list(path.rglob("*.parquet")), lambda file: file.name in wanted)
    rows = in_duckdb("lake", lake=cold.to_pyarrow_dataset())
    assert (*KEY, body_of(7).decode(), True, 10) in rows


#: One Java machine for both formats. Prints what it saw, by format.
SPARK = """
import json, sys
from pathlib import Path
from tidegate_sink_spark import create_session
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark.job.delta import DeltaTable
from tidegate_sink_spark.job.driver import Addition, CommitError
from tidegate_sink_spark.job.iceberg import IcebergTable
from tidegate_sink_spark.job.table import COLUMNS, Shape
conf, root, further, wanted, iceberg_jar = json.loads(sys.argv[1]), Path(sys.argv[2]), *map(json.loads, sys.argv[3:6])
further = [tuple(column) for column in further]
variant = [*further, ("body_variant", "VARIANT")]
spark = create_session("readers", SparkSinkOptions(spark_conf={**conf, "spark.jars": iceberg_jar,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"}))
def refused(act):
    try:
        act()
    except CommitError as exc:
        return str(exc)
def see(kind, format):
    def opened(name, further=(), **shape):
        return kind(spark, str(root / format / name), Shape("partitioned", further, **shape), "app")
    def rows(name):
        return spark.read.format(format).load(str(root / format / name))
    both = {"partition_by": ("ack_date", "destination")}
    whole = Addition([root / "staged.parquet"], 0, 30, 30)
    table = opened("variant", variant, **both)
    table.append(whole)
    seen = {"version": table.schema_version()}
    seen["row"] = rows("variant").where("ack_seq = 7").selectExpr(
        "`order`", "CAST(price AS STRING)", "Device", "CAST(day AS STRING)", "unix_micros(sent)", "paid", "ratio",
        "variant_get(body_variant, '$.order.id', 'int')").first()
    seen["no_variant"] = [row[0] for row in rows("variant").where("body_variant IS NULL").select(
        "ack_seq").orderBy("ack_seq").collect()]
    opened("readers", further, **both).append(whole)
    # The configuration names no columns any more, and then others.
    table = opened("variant")
    table.append(Addition([root / "plain.parquet"], 30, 40, 10))
    seen["without"] = [table.state().mark, rows("variant").where("ack_seq > 30 AND `order` IS NULL").count()]
    table = opened("variant", [*variant, ("later", "DATE")])
    seen["later"] = table.columns()["later"]
    seen["conflict"] = refused(lambda: opened("variant", [("price", "BIGINT")]))
    table.set_schema_version(0)
    seen["raised"] = opened("variant").schema_version()
    table.set_schema_version(99)
    seen["newer"] = refused(lambda: opened("variant"))
    opened("flat")
    seen["flat"] = refused(lambda: opened("flat", variant))
    files = [path for path in (root / format / "variant").rglob("*.parquet") if "_delta_log" not in path.parts]
    kept = [path for path in files if "%250" in str(path)]
    seen["files"] = [len(files), len(kept)]
    for path in set(files) - set(kept):
        path.unlink()
    spark.catalog.clearCache()
    seen["pruned"] = rows("variant").where(f"destination = '{wanted}'").selectExpr("sum(`order`)", "count(*)").first()
    return seen
print(json.dumps({"delta": see(DeltaTable, "delta"), "iceberg": see(IcebergTable, "iceberg")}))
spark.stop()
"""


# What Spark saw takes a minute: its tests go to the same process of pytest-xdist.
SEEN = pytest.mark.xdist_group("what Spark saw")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, spark: Any, kit: Any) -> Any:
    """What Spark saw, and where its tables are."""
    root = tmp_path_factory.mktemp("readers")
    further = Further(find_columns(COLUMNS), "json")
    stage(kit, root / "staged.parquet", further, 1, 30)
    stage(kit, root / "plain.parquet", Further(), 31, 40)
    done = subprocess.run(
        [
            *(sys.executable, "-c", SPARK, json.dumps(dict(spark.SHORT_JOB)), str(root)),
            *(
                json.dumps(further.sql),
                json.dumps(WANTED),
                json.dumps(str(spark.jars("iceberg")[0])),
            ),
        ],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return root, json.loads(done.stdout.splitlines()[-1])


def newest(table: Path) -> str:
    """The metadata file of an Iceberg table."""
    files = table.glob("metadata/v*.metadata.json")
    return str(max(files, key=lambda path: int(path.name[1:].split(".")[0])))


@SEEN
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_spark_writes_and_reads_key_columns_variants_and_partitions(
    seen: Any, table_format: str
) -> None:
    found = seen[1][table_format]
    assert found["version"] == found["raised"] == "1"
    assert found["row"] == [7, "7.25", "d7", "2026-01-02", KEY[4], True, 0.5, 7]
    assert found["no_variant"] == sorted(HOSTILE)
    assert found["without"] == [40, 10]
    assert found["later"].upper() == "DATE"
    assert "column price of the table" in found["conflict"]
    assert "RENAME COLUMN price" in found["conflict"]
    assert "has schema version 99" in found["newer"]
    if table_format == "iceberg":
        assert "format version 2, and a Variant wants 3" in found["flat"]
    else:
        assert found["flat"] is None
    files, kept = found["files"]
    assert 0 < kept < files
    assert found["pruned"] == [sum(range(1, 28, 3)), 14]


@SEEN
@pytest.mark.spark
@pytest.mark.long
def test_others_read_what_spark_wrote(seen: Any) -> None:
    root = seen[0]
    delta = deltalake.DeltaTable(str(root / "delta" / "readers"))
    expected = (*KEY, body_of(7).decode(), True, 10)
    assert expected in in_duckdb("lake", lake=delta.to_pyarrow_dataset())
    assert in_polars(polars.scan_delta(str(root / "delta" / "readers"))) == KEY
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyparsing's, while pyiceberg is imported
        static: Any = importlib.import_module("pyiceberg.table").StaticTable
        iceberg = static.from_metadata(newest(root / "iceberg" / "readers"))
        assert iceberg.properties["tidegate.schema_version"] == "1"
        scan = iceberg.scan(row_filter=f"destination == '{WANTED}'")
        assert len(list(scan.plan_files())) == 1
        assert expected in in_duckdb("lake", lake=scan.to_arrow())
        assert in_polars(polars.DataFrame(scan.to_arrow()).lazy()) == KEY
        pool: Any = importlib.import_module("pyiceberg.utils.concurrent").ExecutorFactory
        pool.get_or_create().shutdown()  # its threads would outlive the test
        pool._instance = None
