"""The Spark configuration and session of the job.

The configuration holds keys of object stores. PySpark would put each setting on the command lines of
``spark-submit``, its launcher and Java, and every user of the machine can read all three.
So it goes into a file that only its owner can read, and that is removed once Spark has started.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

#: The settings, while Spark starts.
PROPERTIES_NAME: Final = "spark.properties"
_SUBMIT_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
#: Java's flags that come before the user's ``spark.driver.extraJavaOptions``.
DRIVER_FLAGS: Final = "spark.driver.defaultJavaOptions"
#: Masters for which Spark makes the secret of ``spark.authenticate`` itself.
_MAKES_SECRETS: Final = ("local", "yarn", "k8s")

#: All of these can be overridden with the option ``spark_conf``.
_DEFAULTS: Final = {
    "spark.master": "local[2]",
    "spark.app.name": "tidegate-sink",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Tasks of a commit come before further ones of upkeep, which has its own pool.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    "spark.sql.parquet.compression.codec": "zstd",
    # Not INT96, which has no statistics, and which others read as nanoseconds: the years 1677 to 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    # One collector thread beside a gateway that wants the other core.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.log.level": "WARN",
}

#: The job is no server: its driver listens on loopback only.
_ALONE: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
#: A standalone master would give all its cores to the first application, and the sink stays.
_ON_CLUSTER: Final = {"spark.cores.max": "2"}

#: What a table format needs besides; can be overridden, too.
_FORMATS: Final[Mapping[str, Mapping[str, str]]] = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Delta computes a table's state in 50 partitions by default: fifty tasks for a few kilobytes.
        "spark.databricks.delta.snapshotPartitions": "1",
        # Upkeep commits beside the sink's commits, in the same Java machine.
        "spark.databricks.delta.commitLock.enabled": "true",
    },
    "iceberg": {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
    },
    "parquet": {},
}


#: Settings that a session of a Connect server may have, and those among them that are the server's.
OF_SESSION: Final = ("spark.sql.", "spark.databricks.")
_OF_SERVER: Final = ("spark.sql.extensions", "spark.sql.catalog.")


def is_cluster(master: str) -> bool:
    """Tell whether a Spark with that master has workers in other processes; "" is the default."""
    return bool(master) and re.fullmatch(r"local(\[.*\])?", master) is None


def masters_of(master: str) -> list[tuple[str, int]]:
    """Host and port of each standalone master, of which one leads; none for another kind of cluster."""
    if not master.startswith("spark://"):
        return []
    found = (address.rpartition(":") for address in master.removeprefix("spark://").split(","))
    return [(host, int(port)) for host, _, port in found]


def spark_conf(
    *,
    jars: Sequence[Path],
    driver_memory_bytes: int,
    work_directory: Path,
    overrides: Mapping[str, str],
    table_format: str = "delta",
) -> dict[str, str]:
    """The complete configuration of the session.

    Args:
        jars: of the table format.
        driver_memory_bytes: heap of the Java machine.
        work_directory: for Spark's temporary files and its (unused) warehouse.
        overrides: the option ``spark_conf``; its ``spark.jars`` come after ours.
    """
    on_cluster = is_cluster(overrides.get("spark.master", ""))
    conf = {
        **_DEFAULTS,
        **(_ON_CLUSTER if on_cluster else _ALONE),
        **_FORMATS[table_format],
        "spark.driver.memory": f"{driver_memory_bytes >> 20}m",
        "spark.local.dir": str(work_directory),
        "spark.sql.warehouse.dir": str(work_directory / "warehouse"),
        **overrides,
    }
    if not on_cluster:
        # Where connectors buffer what they upload: rows, by default in /tmp.
        conf.setdefault("spark.hadoop.hadoop.tmp.dir", str(work_directory / "hadoop"))
    further = [item for item in overrides.get("spark.jars", "").split(",") if item]
    conf["spark.jars"] = ",".join([*map(str, jars), *further])
    if conf["spark.master"].startswith(_MAKES_SECRETS):
        # Otherwise any process on this machine could talk to the driver's ports, which have the rows.
        conf.setdefault("spark.authenticate", "true")
    return conf


def start_session(conf: Mapping[str, str], directory: Path) -> Any:
    """Start the Java machine and return its ``SparkSession``; needs the environment of ``java.runtime``.

    Args: directory: holds the settings while Spark starts, in a file with mode 0600.
    Raises: OSError; what PySpark raises.
    """
    sql: Any = importlib.import_module("pyspark.sql")
    path = directory.absolute() / PROPERTIES_NAME
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with open(file, "w", encoding="ascii") as properties:
        properties.write(properties_text(conf))
    arguments = ("--properties-file", str(path), "--load-spark-defaults", "pyspark-shell")
    variables = {
        "PYSPARK_SUBMIT_ARGS": shlex.join(arguments),
        **temporary_files_in(path.parent, os.environ),
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        return sql.SparkSession.builder.getOrCreate()
    finally:
        path.unlink(missing_ok=True)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def connect_session(url: str, conf: Mapping[str, str]) -> Any:
    """A session of the Connect server at *url*. Raises: what PySpark raises."""
    sql: Any = importlib.import_module("pyspark.sql")
    session = sql.SparkSession.builder.remote(url).getOrCreate()
    for key, value in {**_DEFAULTS, **_FORMATS["delta"], **conf}.items():
        if is_of_session(key):
            session.conf.set(key, value)
    return session


def is_of_session(key: str) -> bool:
    """Tell whether a session of a Connect server may have its own setting *key*."""
    return key.startswith(OF_SESSION) and not key.startswith(_OF_SERVER)


def temporary_files_in(directory: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that makes Spark's Java put its temporary files there, and none into /tmp."""
    options = (environ.get(_SUBMIT_OPTIONS, ""), shlex.quote(f"-Djava.io.tmpdir={directory}"))
    return {_SUBMIT_OPTIONS: " ".join(filter(None, options))}


def properties_text(conf: Mapping[str, str]) -> str:
    """*conf* in the form of ``java.util.Properties.load``, all of it ASCII."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.items())


#: Characters with no meaning to Java, besides letters and digits: they keep the file readable.
_AS_IT_IS: Final = "._-+/,@[]()*"


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (units[i] << 8 | units[i + 1] for i in range(0, len(units), 2))
    plain = ((chr(code), code) for code in codes)
    return "".join(
        c if (c.isascii() and c.isalnum()) or c in _AS_IT_IS else f"\\u{code:04x}"
        for c, code in plain
    )
