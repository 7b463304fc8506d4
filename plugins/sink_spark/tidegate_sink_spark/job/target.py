"""Opens the table that the configuration names, in its format."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tidegate_sink_spark._protocol import JobConfig, Kept
from tidegate_sink_spark.connect import table as connect
from tidegate_sink_spark.connect.table import ConnectTable
from tidegate_sink_spark.delta_rs import table as delta_rs
from tidegate_sink_spark.delta_rs.table import DeltaRsTable
from tidegate_sink_spark.job import delta, iceberg
from tidegate_sink_spark.job.dead import SequencedTable
from tidegate_sink_spark.job.delta import DeltaTable
from tidegate_sink_spark.job.driver import CommitError, Table
from tidegate_sink_spark.job.iceberg import IcebergTable
from tidegate_sink_spark.job.parquet import ParquetTable, is_parquet_table
from tidegate_sink_spark.job.routed import RoutedTable
from tidegate_sink_spark.job.table import PARTITIONED_BY, Shape, application_id, dead_letters_of
from tidegate_sink_spark.upkeep.delta import DeltaUpkeep
from tidegate_sink_spark.upkeep.delta_rs import DeltaRsUpkeep
from tidegate_sink_spark.upkeep.iceberg import IcebergUpkeep
from tidegate_sink_spark.upkeep.parquet import ParquetUpkeep
from tidegate_sink_spark.upkeep.worker import TableUpkeep, Worker


def open_table(config: JobConfig, start_spark: Callable[[], Any]) -> Table:
    """Open the job's table, or its tables, and create what is missing.

    Args: start_spark: returns the session; not called for a format that needs none.
    Raises: CommitError, OSError; what *start_spark* raises.
    """
    table = _open_one(config, start_spark)
    if not config.routes:
        return table
    kinds = {route.table: route.is_name for route in config.routes}
    return RoutedTable(
        table,
        {route.pattern: route.table for route in config.routes},
        lambda name: _open_one(
            msgspec.structs.replace(config, table=name, is_name=kinds[name]), start_spark
        ),
        own_directory(config),
        further=config.columns,
    )


def own_directory(config: JobConfig) -> Path:
    """Where the job keeps its own files that a commit reads."""
    return Path(config.shared_directory) if config.shared_directory else Path.cwd()


def _open_one(config: JobConfig, start_spark: Callable[[], Any]) -> SequencedTable:
    app_id = application_id(config.gateway_name, config.store_id)
    shape = Shape(config.layout, config.columns, config.partition_by)
    if config.engine == "deltalake":
        return DeltaRsTable(config.table, shape, app_id, storage_options=config.storage_options)
    if config.format == "parquet":
        return ParquetTable(Path(config.table), shape, app_id)
    if config.connect:
        return ConnectTable(start_spark(), config.table, shape, app_id)
    opened = IcebergTable if config.format == "iceberg" else DeltaTable
    return opened(start_spark(), config.table, shape, app_id, is_name=config.is_name)


def open_dead_letters(
    config: JobConfig, start_spark: Callable[[], Any], *, creates: bool
) -> SequencedTable | None:
    """Open the table beside the job's, in its format, for dead letters.

    Args: creates: create it when it is missing; otherwise None is returned.
    Raises: as :func:`open_table`.
    """
    # Its destinations may be unknown, or too long for directories, so it is not partitioned by them.
    beside = msgspec.structs.replace(
        config, table=dead_letters_of(config.table), partition_by=PARTITIONED_BY
    )
    return _open_one(beside, start_spark) if creates or _exists(beside, start_spark) else None


def _exists(config: JobConfig, start_spark: Callable[[], Any]) -> bool:
    if config.engine == "deltalake":
        return delta_rs.is_table(config.table, config.storage_options)
    if config.format == "parquet":
        return is_parquet_table(Path(config.table))
    if config.connect:
        return connect.is_table(start_spark(), config.table)
    is_table = iceberg.is_table if config.format == "iceberg" else delta.is_table
    return is_table(start_spark(), config.table, is_name=config.is_name)


def open_upkeep(
    config: JobConfig, start_spark: Callable[[], Any], report: Callable[[Kept], None]
) -> Worker:
    """The upkeep of the job's tables, done when told. Args: report: called with what was done, in a thread."""
    kinds = {config.table: config.is_name, **{r.table: r.is_name for r in config.routes}}
    return Worker(
        {
            table: functools.partial(
                _open_upkeep,
                msgspec.structs.replace(config, table=table, is_name=is_name),
                start_spark,
            )
            for table, is_name in kinds.items()
        },
        report,
    )


def _open_upkeep(config: JobConfig, start_spark: Callable[[], Any]) -> TableUpkeep:
    """Of one table. It has its own view: the commits' view belongs to their thread."""
    retention = config.vacuum_retention
    if config.engine == "deltalake":
        return DeltaRsUpkeep(
            config.table, retention=retention, storage_options=config.storage_options
        )
    if config.connect:
        raise CommitError(
            "a Connect server keeps its tables up itself: run OPTIMIZE and VACUUM there"
        )
    table = _open_one(config, start_spark)
    if isinstance(table, ParquetTable):
        return ParquetUpkeep(table)
    if isinstance(table, IcebergTable):
        return IcebergUpkeep(start_spark(), table, retention=retention)
    assert isinstance(table, DeltaTable)
    return DeltaUpkeep(start_spark(), table, retention=retention)
