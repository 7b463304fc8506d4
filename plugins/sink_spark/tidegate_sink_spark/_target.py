"""Where the table is (a path, a URI or a name in a catalog), and what Spark needs to reach it. Also its layout,
and the columns besides those that every table has.

Anything known to be wrong before Spark starts is a ConfigError that names the remedy.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tidegate.spi import ConfigError
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark.java import runtime
from tidegate_sink_spark.job.files import local_path
from tidegate_sink_spark.job.log_store import DYNAMODB, LOG_STORES, NO_LOG_STORE
from tidegate_sink_spark.job.table import dead_letters_of
from tidegate_sink_spark.staging.columns import find_columns
from tidegate_sink_spark.staging.further import Further, FurtherSetup
from tidegate_sink_spark.staging.selection import check_pattern

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)+", re.ASCII)
_ICEBERG_CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"
_UNITY_CATALOG: Final = "io.unitycatalog.spark.UCSingleCatalog"
_SESSION_CATALOG: Final = "spark_catalog"
#: Keys of ``[sinks.catalog]`` that a type requires; every other key is passed to the catalog.
_CATALOG_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "hadoop": ("warehouse",),
    "rest": ("uri",),
    "jdbc": ("uri", "warehouse"),
    "unity": ("uri",),
}
_CATALOGS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "delta": ("unity",),
    "iceberg": ("hadoop", "rest", "jdbc"),
}
#: How long a store or catalog that is away, or never answers, is tried before the sink reports it. It keeps trying;
#: Iceberg and Hadoop alone would be silent for many minutes. Seconds for one unanswered request, times attempts:
#: S3A 15 x 2 x 3 (15 s is the least it accepts), S3FileIO 20 x 3, a REST catalog 30.
_PATIENCE_OF_S3A: Final[Mapping[str, str]] = {
    "spark.hadoop.fs.s3a.connection.timeout": "15s",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "15s",
    "spark.hadoop.fs.s3a.attempts.maximum": "1",
    "spark.hadoop.fs.s3a.retry.limit": "2",
}
_PATIENCE_OF_ICEBERG: Final[Mapping[str, str]] = {
    "rest.client.connection-timeout-ms": "10000",
    "rest.client.socket-timeout-ms": "30000",
    "http-client.apache.connection-timeout-ms": "10000",
    "http-client.apache.socket-timeout-ms": "20000",
    "s3.retry.num-retries": "2",
    "s3.retry.min-wait-ms": "500",
    "s3.retry.max-wait-ms": "5000",
}
#: File systems without an atomic rename, on which two writers of a Hadoop table lose commits.
_NO_RENAME: Final = ("s3a", "gs")


@dataclass(frozen=True, slots=True)
class _Needed:
    """A class that Spark must find. Attributes: name, artifact (what brings it), conf."""

    name: str
    artifact: str
    conf: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


_SCHEMES: Final[Mapping[str, _Needed | None]] = {
    "file": None,
    "hdfs": None,  # in PySpark's own jars
    "s3a": _Needed(
        "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "hadoop-aws, of the version of PySpark's hadoop-client-api, and the AWS SDK's bundle",
        _PATIENCE_OF_S3A,
    ),
    "abfs": _Needed("org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem", "hadoop-azure"),
    "abfss": _Needed("org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem", "hadoop-azure"),
    "gs": _Needed(
        "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "gcs-connector (the shaded one)",
        {
            "spark.hadoop.fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
            "spark.hadoop.fs.AbstractFileSystem.gs.impl": (
                "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS"
            ),
            # Connector 3.0 knows Hadoop 3.3, whose vectored reads changed in 3.4: no file of a table could be read.
            "spark.hadoop.parquet.hadoop.vectored.io.enabled": "false",
        },
    ),
}
_JDBC_DRIVERS: Final[Mapping[str, _Needed]] = {
    "sqlite": _Needed("org.sqlite.JDBC", "sqlite-jdbc"),
    "postgresql": _Needed("org.postgresql.Driver", "postgresql"),
}


@dataclass(frozen=True, slots=True)
class Target:
    """A table, found in the configuration.

    Attributes:
        table: absolute path, URI, or name in a catalog.
        is_name: it is a name.
        conf: Spark settings that lead there; the user's own override them.
    """

    table: str
    is_name: bool
    conf: Mapping[str, str]


def default_table(data_directory: Path) -> Path:
    """The default directory of the table of the sink in *data_directory*."""
    return data_directory.absolute() / "lake" / "acknowledged"


def find_target(options: SparkSinkOptions, default: Path) -> Target:
    """Where the table is. Args: default: its directory if the options name no table.

    Raises: ConfigError.
    """
    table = options.table
    if is_name(options, table):
        return Target(table, True, _catalog_conf(options, table.partition(".")[0]))
    if options.catalog and not any(map(_NAME.fullmatch, options.tables.values())):
        raise ConfigError(
            "has no effect: `table` is a path or URI; for a table in a catalog write "
            "'catalog.namespace.table'",
            key="catalog",
        )
    path = local_path(table) if table else default
    if path is not None:
        return Target(str(path.expanduser().absolute()), False, {})
    scheme = urlsplit(table).scheme
    if options.engine == "deltalake" and scheme == "s3":
        return Target(table, False, {})  # Spark alone knows no such name
    needed = _scheme(scheme, "table")
    if options.format == "parquet":
        raise ConfigError(
            f"{table!r}: format 'parquet' is a local directory, since its commits are renames; "
            "take 'delta' or 'iceberg' there",
            key="table",
        )
    if options.format == "iceberg" and scheme in _NO_RENAME:
        raise ConfigError(
            f"{table!r}: an Iceberg table by URI needs an atomic rename, which {scheme} has not; "
            "name a table in a REST or JDBC catalog, or take format 'delta'",
            key="table",
        )
    return Target(table, False, needed.conf if needed else {})


#: Tables of the sinks running in this process (:func:`identity`), and their sinks.
_RUNNING: Final[dict[str, str]] = {}


def claim(name: str, tables: Sequence[tuple[str, str]]) -> None:
    """Reserve *tables* (configuration key, table) for the sink *name* alone, as long as it runs.

    Two sinks with one table would share its mark, and each would leave out the other's rows. Of nested tables, the
    outer one's upkeep would treat the inner one's files as its own.
    Raises: ConfigError; then none of them is reserved.
    """
    for key, table in tables:
        one = identity(table)
        other = _RUNNING.setdefault(one, name)
        nested = _nested(one, [*_RUNNING, *(identity(named) for _, named in tables)])
        if other != name or nested:
            disclaim(name)
            raise ConfigError(
                f"{table!r} is a table (or the dead-letter table) of the sink {other!r} already; "
                "give this one a table of its own"
                if other != name
                else f"{table!r} and {nested!r} are one in the other; put them side by side",
                key=key,
            )


def disclaim(name: str) -> None:
    """Release all tables of the sink *name*."""
    for table in [table for table, owner in _RUNNING.items() if owner == name]:
        del _RUNNING[table]


def _nested(table: str, others: Iterable[str]) -> str:
    """The one of *others* whose directory is above or below that of *table*; "" if none is."""
    own = table.rstrip("/") + "/"
    named = (other.rstrip("/") + "/" for other in others)
    return next(
        (o[:-1] for o in named if o != own and (own.startswith(o) or o.startswith(own))), ""
    )


def find_routes(options: SparkSinkOptions, main: Target) -> dict[str, Target]:
    """The further tables, by pattern of destinations. Raises: ConfigError."""
    found: dict[str, Target] = {}
    for pattern, table in options.tables.items():
        key = f"tables.{pattern}"
        check_pattern(pattern, key)
        if not table:
            raise ConfigError("names no table", key=key)
        try:
            found[pattern] = find_target(with_table(options, table), Path())
        except ConfigError as error:
            raise ConfigError(
                error.problem, key=key if error.key == "table" else error.key
            ) from None
        one = identity(found[pattern].table)
        if one == identity(main.table):
            raise ConfigError(
                "is the table that takes what no pattern covers; leave the pattern out", key=key
            )
        if one == identity(dead_letters_of(main.table)):
            raise ConfigError("is the sink's dead-letter table; name another one", key=key)
    return found


def identity(table: str) -> str:
    """The one spelling of *table*: a path without links, a URI without a trailing slash."""
    return os.path.realpath(table) if os.path.isabs(table) else table.rstrip("/")


def with_table(options: SparkSinkOptions, table: str) -> SparkSinkOptions:
    """The same options with another table. The catalog is for names only; a path is no error."""
    catalog = options.catalog if _NAME.fullmatch(table) else {}
    return dataclasses.replace(options, table=table, catalog=catalog)


def check_log_store(options: SparkSinkOptions, target: Target) -> None:
    """Refuse a Delta table on which two drivers may both win. Raises: ConfigError."""
    is_careless = options.format == "delta" and urlsplit(target.table).scheme == "s3a"
    if is_careless and not any(options.spark_conf.get(key) for key in LOG_STORES):
        raise ConfigError(f"{target.table!r}: {NO_LOG_STORE}", key="table")


def check_classes(options: SparkSinkOptions, target: Target) -> None:
    """Check that the jars given to Spark hold what it must load to reach *target*.

    Skipped when ``spark.jars.packages`` or the user's class path may bring jars that are not seen here.
    Raises: ConfigError that names the jar.
    """
    conf = options.spark_conf
    if any(key in conf for key in ("spark.jars.packages", "spark.driver.extraClassPath")):
        return
    needed = [item for item in _needed(options, target) if item is not None]
    if not needed:
        return
    named = [item.strip() for item in conf.get("spark.jars", "").split(",") if item.strip()]
    if options.jars not in ("auto", "packages", "download"):
        named += [item.strip() for item in options.jars.split(",") if item.strip()]
    paths = [local_path(item) for item in named]
    if None in paths:
        return  # Spark fetches it
    jars = [path.expanduser() for path in paths if path is not None]
    for item in needed:
        own = (runtime.spark_home() / "jars").glob("*.jar")
        if not any(_holds(jar, item.name) for jar in (*jars, *own)):
            raise ConfigError(
                f"{target.table!r} needs the Java class {item.name}, which is in no jar that Spark "
                f"is given; add {item.artifact} to 'spark.jars' (paths with commas), or its Maven "
                "coordinates to 'spark.jars.packages'",
                key="spark_conf",
            )


def is_name(options: SparkSinkOptions, table: str) -> bool:
    """Whether *table* is a name in a catalog. Raises: ConfigError when in doubt."""
    if not _NAME.fullmatch(table):
        return False
    catalog = table.partition(".")[0]
    if options.format == "parquet":
        raise ConfigError(
            f"{table!r} reads like a name in a catalog, and format 'parquet' has no catalogs; "
            f"write './{table}' for a directory, or take format 'iceberg' or 'delta'",
            key="table",
        )
    own = f"spark.sql.catalog.{catalog}" in options.spark_conf
    hive = options.spark_conf.get("spark.sql.catalogImplementation") == "hive"
    if options.catalog or own or (catalog == _SESSION_CATALOG and hive):
        return True
    raise ConfigError(
        f"{table!r} reads like a name in the catalog {catalog!r}, which is not configured; describe "
        f"it in [sinks.catalog] (type = {' or '.join(map(repr, _CATALOGS_OF[options.format]))}), or "
        f"with 'spark.sql.catalog.{catalog}' in spark_conf, or write './{table}' for a directory",
        key="table",
    )


def layout_of(options: SparkSinkOptions) -> str:
    """The layout of a new table."""
    if options.layout != "auto":
        return options.layout
    is_partitioned = options.partition_by or options.format == "parquet"
    return "partitioned" if is_partitioned or options.engine == "deltalake" else "clustered"


def further_of(options: SparkSinkOptions) -> Further:
    """The columns besides those that every table has. Raises: ConfigError."""
    return further_setup(options).make()


def further_setup(options: SparkSinkOptions) -> FurtherSetup:
    """What they are made of. Raises: ConfigError."""
    columns = find_columns(options.columns)
    if options.partition_by and options.layout not in ("auto", "partitioned"):
        raise ConfigError(
            f"has no effect with layout {options.layout!r}; remove one of the two",
            key="partition_by",
        )
    if len(set(options.partition_by)) < len(options.partition_by):
        raise ConfigError("names a column twice", key="partition_by")
    if options.body == "variant" and (options.engine != "spark" or options.format == "parquet"):
        raise ConfigError(
            "'variant' is written by Spark, into Delta and Iceberg tables; take 'json', or engine 'spark' and "
            "one of these formats",
            key="body",
        )
    is_checked = any(column.is_json or column.sql != "STRING" for column in columns)
    if options.on_bad_value != "null" and options.body == "binary" and not is_checked:
        raise ConfigError(
            "has no effect: neither `columns` nor `body` names a column that a value may not fit; remove it",
            key="on_bad_value",
        )
    return FurtherSetup(
        dict(options.columns),
        options.body,
        stops=options.on_bad_value == "bad_row",
        names_directories="destination" in options.partition_by,
    )


def _catalog_conf(options: SparkSinkOptions, name: str) -> dict[str, str]:
    settings = dict(options.catalog)
    if not settings:
        return {}  # it is in spark_conf
    kind = settings.pop("type", "")
    allowed = _CATALOGS_OF[options.format]
    if kind not in allowed:
        raise ConfigError(
            f"{kind!r} is no type of catalog for format {options.format!r}; take "
            f"{' or '.join(map(repr, allowed))}, or describe it with "
            f"'spark.sql.catalog.{name}' in spark_conf",
            key="catalog.type",
        )
    for key in _CATALOG_KEYS[kind]:
        if not settings.get(key):
            raise ConfigError(f"is missing; a {kind} catalog must have it", key=f"catalog.{key}")
    conf = dict(_PATIENCE_OF_S3A)  # the catalog may say where its files are
    warehouse = settings.get("warehouse", "")
    if warehouse and kind != "rest":  # a REST server's warehouse is its own name
        path = local_path(warehouse)
        if path is not None:
            settings["warehouse"] = str(path.expanduser().absolute())
        else:
            scheme = urlsplit(warehouse).scheme
            needed = _scheme(scheme, "catalog.warehouse")
            if kind == "hadoop" and scheme in _NO_RENAME:
                raise ConfigError(
                    f"{warehouse!r}: a Hadoop catalog needs an atomic rename, which {scheme} has "
                    "not; take a REST or JDBC catalog",
                    key="catalog.warehouse",
                )
            conf |= dict(needed.conf if needed else {})
    prefix = f"spark.sql.catalog.{name}"
    if kind == "unity":
        conf[prefix] = _UNITY_CATALOG
    else:
        conf |= {
            prefix: _ICEBERG_CATALOG,
            f"{prefix}.type": kind,
            f"{prefix}.cache-enabled": "false",
        }
        settings = {**_PATIENCE_OF_ICEBERG, **settings}
    return conf | {f"{prefix}.{key}": value for key, value in settings.items()}


def _scheme(scheme: str, key: str) -> _Needed | None:
    if scheme not in _SCHEMES:
        hint = "; write s3a" if scheme in ("s3", "s3n") else ""
        raise ConfigError(
            f"{scheme!r} is no file system that is known here{hint}; known: {', '.join(_SCHEMES)}",
            key=key,
        )
    return _SCHEMES[scheme]


def _needed(options: SparkSinkOptions, target: Target) -> Iterable[_Needed | None]:
    catalog = options.catalog
    if DYNAMODB in (options.spark_conf.get(key) for key in LOG_STORES):
        yield _Needed(
            DYNAMODB, "delta-storage-s3-dynamodb, of Delta's version, and the AWS SDK's dynamodb"
        )
    if not target.is_name:
        yield _SCHEMES.get(urlsplit(target.table).scheme or "file")
        return
    if catalog.get("type") == "unity":
        yield _Needed(_UNITY_CATALOG, "unitycatalog-spark and what it depends on")
    if catalog.get("type") == "jdbc":
        yield _JDBC_DRIVERS.get(catalog["uri"].removeprefix("jdbc:").partition(":")[0])
    if "io-impl" not in catalog and catalog.get("type") != "rest":
        yield _SCHEMES.get(urlsplit(unquote(catalog.get("warehouse", ""))).scheme or "file")


@functools.lru_cache(maxsize=512)
def _holds(jar: Path, name: str) -> bool:
    """Tell whether *jar* brings the class *name*."""
    try:
        with zipfile.ZipFile(jar) as file:
            return f"{name.replace('.', '/')}.class" in file.namelist()
    except (OSError, zipfile.BadZipFile):
        return False
