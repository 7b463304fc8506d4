"""Where Spark runs: beside the gateway in the job's own process, or on a cluster whose workers share its files.

What cannot work is a ConfigError before anything starts; whether a cluster really sees the files is
checked when the job starts (:func:`tidegate_sink_spark.job.rows.check_workers`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tidegate.spi import ConfigError, SinkContext
from tidegate_sink_spark._options import SparkSinkOptions, refuse
from tidegate_sink_spark._target import Target, find_routes, find_target, is_name
from tidegate_sink_spark.java import jars, runtime
from tidegate_sink_spark.job.files import local_path
from tidegate_sink_spark.job.session import is_cluster, masters_of, spark_conf

_MASTERS: Final = re.compile(
    r"local(\[(\*|\d+)(,\s*\d+)?\])?|local-cluster\[.+\]|spark://[^\s/]+:\d+(,[^\s/]+:\d+)*|yarn|k8s://\S+"
)
#: Stands for the master that spark-submit is given.
SUBMITTED: Final = "submitted"
_REACH_TIMEOUT: Final = 5.0


def check_place(options: SparkSinkOptions) -> None:
    """Refuse options that do not fit together. Raises: ConfigError."""
    conf = options.spark_conf
    if options.master and "spark.master" in conf:
        raise ConfigError(
            "is said by the option master, too; remove one of them", key="spark_conf.spark.master"
        )
    if options.job == "submitted":
        _check_submitted(options)
        return
    key = "spark_conf.spark.master" if "spark.master" in conf else "master"
    master = master_of(options)
    if master and not _MASTERS.fullmatch(master):
        raise ConfigError(
            f"{master!r} is no master of Spark; write local[2], spark://host:port, yarn or k8s://…",
            key=key,
        )
    if not is_cluster(master):
        return
    if conf.get("spark.submit.deployMode", "client") != "client":
        raise ConfigError(
            "the job's driver runs beside the gateway, which speaks to it; remove it",
            key="spark_conf.spark.submit.deployMode",
        )
    check_shared(options, f"the workers of {master}")


def check_shared(options: SparkSinkOptions, who: str) -> None:
    """Check that the files are in places that others can reach. Raises: ConfigError."""
    if not options.staging_directory:
        raise ConfigError(
            f"is missing: {who} read staged files; name a directory that they have under the same path",
            key="staging_directory",
        )
    if not options.table:
        raise ConfigError(
            f"is missing: {who} write the table, which they cannot in the sink's own data directory; "
            "name one that they have under the same path, a URI or a name in a catalog",
            key="table",
        )


#: Options of a job that the gateway starts, and their equivalents for a submitted one.
_OF_CHILD: Final = {
    "master": "spark-submit --master",
    "java_home": "the variable JAVA_HOME of spark-submit",
    "niceness": "nice spark-submit",
}


def _check_submitted(options: SparkSinkOptions) -> None:
    for key, instead in _OF_CHILD.items():
        refuse(options, (key,), f"has no effect with job 'submitted'; use {instead}")
    if "spark.master" in options.spark_conf:
        raise ConfigError(
            "has no effect with job 'submitted'; use spark-submit --master",
            key="spark_conf.spark.master",
        )
    check_shared(options, "the machines on which the submitted job runs")
    named = {"table": options.table, **{f"tables.{k}": v for k, v in options.tables.items()}}
    for key, table in named.items() if options.format == "delta" else ():
        if local_path(table) is None or is_name(options, table):
            raise ConfigError(
                "nothing keeps two submitted jobs apart there; name a path on a shared file system, which has a "
                "lock, or take format 'iceberg', whose commits compare first",
                key=key,
            )


def submitted_conf(options: SparkSinkOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Settings for ``spark-submit``; fetches the jars when they are missing. Raises: ConfigError, OSError."""
    target = find_target(options, Path())
    targets = (target, *find_routes(options, target).values())
    try:
        found = jars.jars_of(options, {**environ, "SPARK_HOME": str(runtime.spark_home())})
    except jars.JarsError as exc:
        raise ConfigError(str(exc), key="jars") from exc
    conf = spark_conf(
        jars=found,
        driver_memory_bytes=options.driver_memory,
        work_directory=Path(),
        overrides=overrides_of(options, targets) | {"spark.master": SUBMITTED},
        table_format=options.format,
    )
    own = {"spark.local.dir", "spark.sql.warehouse.dir"} - set(options.spark_conf)
    return {key: value for key, value in conf.items() if key not in own | {"spark.master"}}


def overrides_of(options: SparkSinkOptions, targets: Sequence[Target]) -> dict[str, str]:
    """What overrides the sink's own settings: what leads to the tables, and above that the user's."""
    conf: dict[str, str] = {}
    for target in reversed(targets):  # the first one's override the others'
        conf |= target.conf
    return conf | options.spark_conf


def master_of(options: SparkSinkOptions) -> str:
    """Spark's master, "" for the default."""
    return options.master or options.spark_conf.get("spark.master", "")


def check_staging_directory(directory: str) -> None:
    """Check the option. Raises: ConfigError."""
    if not directory:
        return
    path = local_path(directory)
    if path is None or not path.expanduser().is_absolute():
        raise ConfigError(
            f"{directory!r}: staged files are renamed and synced; name an absolute path on a file system",
            key="staging_directory",
        )


def staging_directory(options: SparkSinkOptions, context: SinkContext) -> Path:
    """Where the sink keeps the staged files of all its logs. Several gateways may share the directory."""
    path = local_path(options.staging_directory) if options.staging_directory else None
    if path is None:
        return context.data_directory / "staging"
    return path.expanduser() / as_file_name(context.gateway_name) / as_file_name(context.name)


def log_directory(options: SparkSinkOptions, context: SinkContext, store_id: str) -> Path:
    """Where the sink keeps the staged files of one store's log."""
    return staging_directory(options, context) / as_file_name(store_id)  # a store id is opaque


def as_file_name(text: str) -> str:
    """*text* as a file name that is unique, stays in its directory, and is not hidden."""
    return quote(text, safe="").replace(".", "%2E")


async def unreachable_master(master: str) -> str:
    """Why nothing answers at a standalone *master*, "" when something does or it is another kind.

    Spark itself would try for a minute, and then say that its context was stopped.
    """
    return await unreachable(masters_of(master), "Spark master")


async def unreachable(addresses: Sequence[tuple[str, int]], what: str) -> str:
    """Why nothing answers at any of *addresses*, "" when something does or there are none."""
    problem = ""
    for host, port in addresses:
        try:
            async with asyncio.timeout(_REACH_TIMEOUT):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as exc:
            problem = f"the {what} {host}:{port} does not answer: {exc or 'too late'}"
        else:
            writer.close()
            return ""
    return problem
