"""The engine ``deltalake``: a child process with delta-rs.

A process of its own, as for Spark: neither a commit nor a fault in it holds up the gateway's loop, and
what was killed has certainly stopped.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, urlsplit

from tidegate.spi import ConfigError, SinkContext
from tidegate_sink_spark._job_engine import JobEngine
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._process import JOB_COMMAND
from tidegate_sink_spark._target import Target
from tidegate_sink_spark.job.files import local_path

#: What delta-rs writes to.
_STORES: Final = ("s3", "s3a", "gs", "abfs", "abfss", "hdfs")
#: What a path on HDFS may have besides letters and digits.
_AS_IS: Final = "/=+,;:@&$!*'()"
#: Of older versions of delta-rs; this one says so in its own log, and goes on without.
_LOCKING_PROVIDER: Final = "aws_s3_locking_provider"


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
    scheme = urlsplit(target.table).scheme
    if target.is_name or (local_path(target.table) is None and scheme not in _STORES):
        raise ConfigError(
            "engine 'deltalake' writes to a local file system or an object store "
            f"({', '.join(_STORES)}); name a path or URI, or take engine 'spark'",
            key="table",
        )
    path = urlsplit(target.table).path
    if scheme == "hdfs" and quote(path, _AS_IS) != path:
        raise ConfigError(
            f"{target.table!r}: engine 'deltalake' does not find tables on HDFS whose path has blanks, a '%' or "
            "letters beyond ASCII; name it otherwise, or take engine 'spark'",
            key="table",
        )


class DeltaRsEngine(JobEngine):
    """A :class:`tidegate_sink_spark._engine.Engine`."""

    name = "deltalake"

    def __init__(
        self,
        context: SinkContext,
        options: SparkSinkOptions,
        *,
        job_command: Sequence[str] = JOB_COMMAND,
    ) -> None:
        """Raises: ConfigError for options that this engine cannot have."""
        super().__init__(context, options, job_command=job_command)
        if options.storage_options and all(local_path(t.table) for t in self._targets):
            raise ConfigError(
                "has no effect: every table is on a local file system; remove it",
                key="storage_options",
            )
        for name in options.storage_options:
            if name.lower() == _LOCKING_PROVIDER:
                raise ConfigError(
                    "has no effect: delta-rs commits with conditional puts, and takes no lock in DynamoDB any more. Remove "
                    "it, and let nobody write to this table who does take one: neither would see the other",
                    key=f"storage_options.{name}",
                )

    def _check(self, target: Target) -> None:
        _check(self._options, target)

    async def prepare(self) -> None:
        """See :meth:`tidegate_sink_spark._engine.Engine.prepare`: there must be a delta-rs."""
        if importlib.util.find_spec("deltalake") is None:
            raise ConfigError(
                "delta-rs is not installed; run: pip install 'tidegate-sink-spark[deltalake]'",
                key="engine",
            )
