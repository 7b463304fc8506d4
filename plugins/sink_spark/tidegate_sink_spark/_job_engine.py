"""What all engines share: the configured tables, and a job that is a child process."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidegate.spi import SinkContext
from tidegate.spi.private_files import inherited_umask, make_private_directory
from tidegate_sink_spark._engine import EngineJob, StagedLog
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._process import JOB_COMMAND, JobProcess
from tidegate_sink_spark._protocol import JobConfig, RouteConfig
from tidegate_sink_spark._target import (
    Target,
    default_table,
    find_routes,
    find_target,
    further_of,
    layout_of,
)
from tidegate_sink_spark.job.table import PARTITIONED_BY
from tidegate_sink_spark.staging.storage import make_staging_directory


class JobEngine:
    """An :class:`tidegate_sink_spark._engine.Engine`; used as it is for Parquet, whose job needs nothing.

    Subclasses say which tables they cannot write (:meth:`_check`), what the machine must have
    (:meth:`prepare`), and how Spark is configured (:meth:`_spark_conf`).
    """

    name = "Parquet"

    def __init__(
        self,
        context: SinkContext,
        options: SparkSinkOptions,
        *,
        job_command: Sequence[str] = JOB_COMMAND,
    ) -> None:
        """Raises: ConfigError for tables that the engine cannot write."""
        self._context = context
        self._options = options
        self._job_command = job_command
        directory = context.data_directory.absolute()
        self._work_directory = directory / "work"
        self._target = find_target(options, default_table(context.data_directory))
        self._routes = find_routes(options, self._target)
        self._targets = (self._target, *self._routes.values())
        for target in self._targets:
            self._check(target)
        #: The job's.
        self._environment: Mapping[str, str] = os.environ

    @property
    def _is_cluster(self) -> bool:
        """Other machines read and write the files."""
        return False

    @property
    def table(self) -> str:
        """See :attr:`tidegate_sink_spark._engine.Engine.table`."""
        return self._target.table

    @property
    def further_tables(self) -> dict[str, str]:
        """See :attr:`tidegate_sink_spark._engine.Engine.further_tables`."""
        return {pattern: target.table for pattern, target in self._routes.items()}

    def _check(self, target: Target) -> None:
        """Refuse a table that this engine cannot write. Raises: ConfigError."""

    async def prepare(self) -> None:
        """See :meth:`tidegate_sink_spark._engine.Engine.prepare`."""

    async def _spark_conf(self) -> Mapping[str, str]:
        """The job's Spark settings. Raises: EngineError, OSError."""
        return {}

    def _beside(self) -> Coroutine[Any, Any, None] | None:
        """What is done while a job runs; cancelled when it ends."""
        return None

    async def start(self, staged: StagedLog) -> EngineJob:
        """See :meth:`tidegate_sink_spark._engine.Engine.start`."""
        conf = await self._spark_conf()
        await asyncio.to_thread(_empty, self._work_directory)
        shared = staged.directory / "job" if self._is_cluster else None
        if shared is not None:
            await asyncio.to_thread(shutil.rmtree, shared, ignore_errors=True)
            await asyncio.to_thread(make_staging_directory, shared, is_shared=True)
        job = await JobProcess.start(
            self._config(staged, conf, shared),
            environment=self._environment,
            work_directory=self._work_directory,
            command=self._job_command,
            niceness=self._options.niceness,  # clients wait for the gateway, nobody waits for the table
        )
        work = self._beside()
        if work is not None:
            job.accompany(work)
        return job

    def _config(self, staged: StagedLog, conf: Mapping[str, str], shared: Path | None) -> JobConfig:
        """A job's configuration. Args: shared: for the job's files that workers must see."""
        options = self._options
        return JobConfig(
            engine=options.engine,
            gateway_name=self._context.gateway_name,
            store_id=staged.store_id,
            staging_directory=str(staged.directory),
            table=self.table,
            layout=layout_of(options),
            partition_by=options.partition_by or PARTITIONED_BY,
            columns=further_of(options).sql,
            commit_rows=options.commit_rows,
            commit_bytes=options.commit_size,
            floor=staged.floor,
            spark_conf=dict(conf),
            vacuum_retention=options.vacuum_retention,
            # The sink's directory is private; the operator decides who may read a table elsewhere.
            umask=inherited_umask() if options.table else None,
            format=options.format,
            is_name=self._target.is_name,
            shared_directory=str(shared or ""),
            connect=options.connect,
            storage_options=options.storage_options,
            routes=tuple(
                RouteConfig(pattern, target.table, target.is_name)
                for pattern, target in self._routes.items()
            ),
        )


def _empty(directory: Path) -> None:
    """Make *directory*, or remove what a killed job left in it. Raises: OSError."""
    shutil.rmtree(directory, ignore_errors=True)
    make_private_directory(directory)
