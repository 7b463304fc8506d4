"""The engine ``spark``: a child process with PySpark and its Java machine."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from tidegate_sink_spark._engine import EngineError
from tidegate_sink_spark._job_engine import JobEngine
from tidegate_sink_spark._target import Target, check_classes, check_log_store
from tidegate_sink_spark.cluster.place import master_of, overrides_of, unreachable_master
from tidegate_sink_spark.java import archive, jars, runtime
from tidegate_sink_spark.job.session import is_cluster, spark_conf

log = logging.getLogger(__name__)


class SparkEngine(JobEngine):
    """A :class:`tidegate_sink_spark._engine.Engine`."""

    name = "Spark"
    _archive: Path | None = None

    def _check(self, target: Target) -> None:
        check_log_store(self._options, target)

    @property
    def _is_cluster(self) -> bool:
        return is_cluster(master_of(self._options))

    async def prepare(self) -> None:
        """See :meth:`tidegate_sink_spark._engine.Engine.prepare`: it needs a Java."""
        for target in self._targets:
            await asyncio.to_thread(check_classes, self._options, target)
        java = await asyncio.to_thread(
            runtime.find_java,
            self._options.java_home,
            self._context.data_directory / "java",
            os.environ,
        )
        log.info("java version=%d source=%s home=%s", java.version, java.source, java.home)
        self._environment = runtime.job_environment(java, os.environ, is_alone=not self._is_cluster)
        self._archive = await asyncio.to_thread(
            archive.archive_path, self._options, java, self._environment
        )

    async def _spark_conf(self) -> Mapping[str, str]:
        """Fetches the jars when they are missing."""
        options, master = self._options, master_of(self._options)
        problem = await unreachable_master(master)
        if problem:
            raise EngineError(f"{problem}; see that it runs, and that `master` names it")
        try:
            found = await asyncio.to_thread(jars.jars_of, options, self._environment)
        except jars.JarsError as exc:
            raise EngineError(str(exc)) from exc
        overrides = await asyncio.to_thread(archive.settings_of, self._archive)
        if master:
            overrides["spark.master"] = master
        return spark_conf(
            jars=found,
            driver_memory_bytes=options.driver_memory,
            work_directory=self._work_directory,
            overrides=overrides | overrides_of(options, self._targets),
            table_format=options.format,
        )

    def _beside(self) -> Coroutine[Any, Any, None] | None:
        path = self._archive
        return None if path is None or path.is_file() else self._make_archive(path)

    async def _make_archive(self, path: Path) -> None:
        """A job that lasts makes Java's archive, for later ones; what fails is not tried again before a restart."""
        await archive.make_later(path, self._environment)
        if not await asyncio.to_thread(path.is_file):
            self._archive = None
