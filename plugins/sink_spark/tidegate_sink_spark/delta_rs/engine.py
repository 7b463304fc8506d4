"""The engine ``deltalake``: a child process with delta-rs.

A process of its own, as for Spark: neither a commit nor a fault in it holds up the gateway's loop, and
what was killed has certainly stopped.
"""

from __future__ import annotations

import importlib.util

from tidegate.spi import ConfigError
from tidegate_sink_spark._job_engine import JobEngine
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._target import Target
from tidegate_sink_spark.job.files import local_path


def _check(options: SparkSinkOptions, target: Target) -> None:
    """Refuse what cannot be with this engine. Raises: ConfigError."""
    if options.format != "delta":
        raise ConfigError(
            f"'deltalake' writes Delta tables; with format {options.format!r} leave it out",
            key="engine",
        )
    if options.layout == "clustered":
        raise ConfigError(
            "engine 'deltalake' cannot write clustered tables; take layout 'partitioned' or 'plain'",
            key="layout",
        )
    if target.is_name or local_path(target.table) is None:
        raise ConfigError(
            "engine 'deltalake' writes to a local file system; name a path, or take engine 'spark'",
            key="table",
        )


class DeltaRsEngine(JobEngine):
    """A :class:`tidegate_sink_spark._engine.Engine`."""

    name = "deltalake"

    def _check(self, target: Target) -> None:
        _check(self._options, target)

    async def prepare(self) -> None:
        """See :meth:`tidegate_sink_spark._engine.Engine.prepare`: there must be a delta-rs."""
        if importlib.util.find_spec("deltalake") is None:
            raise ConfigError(
                "delta-rs is not installed; run: pip install 'tidegate-sink-spark[deltalake]'",
                key="engine",
            )
