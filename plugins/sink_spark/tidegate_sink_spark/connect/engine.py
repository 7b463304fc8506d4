"""Spark through a Connect server: the job is a small Python process, and Java is the server's."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from tidegate.spi import ConfigError
from tidegate_sink_spark._engine import EngineError
from tidegate_sink_spark._job_engine import JobEngine
from tidegate_sink_spark._options import SparkSinkOptions, refuse
from tidegate_sink_spark._target import is_name
from tidegate_sink_spark.cluster.place import check_shared, unreachable
from tidegate_sink_spark.java import runtime
from tidegate_sink_spark.job.session import OF_SESSION, is_of_session

#: What PySpark's client imports.
_PACKAGES: Final = ("grpc", "grpc_status", "google.rpc", "pandas")
_URL: Final = re.compile(r"sc://[^\s/;]+(/(;[^\s;=]+=[^\s;]*)*;?)?")
#: When a server's URL names none.
_PORT: Final = 15002
#: Options that take effect where Spark is started, which is not here.
_OF_SERVER: Final = (
    "master",
    "java_home",
    "jars",
    "jars_cache",
    "maven_repository",
    "driver_memory",
    "catalog",
)


def check_connect(options: SparkSinkOptions) -> None:
    """Refuse options that do not work through a Connect server. Raises: ConfigError."""
    url = options.connect
    if not _URL.fullmatch(url) or not urlsplit(url).hostname:
        raise ConfigError("is no URL of a Connect server; write sc://host:port", key="connect")
    if ";token=" in url:
        raise ConfigError(
            "holds a token, which the log and check-config would show; put it into the variable "
            "SPARK_CONNECT_AUTHENTICATE_TOKEN",
            key="connect",
        )
    if options.format != "delta":
        raise ConfigError(
            f"writes Delta tables: the marks of format {options.format!r} need Java beside the job; take master, or "
            "job 'submitted'",
            key="connect",
        )
    if options.job != "child":
        raise ConfigError("has no effect with `connect`; remove one of them", key="job")
    refuse(
        options,
        _OF_SERVER,
        "has no effect with `connect`: it is said where the Connect server is started",
    )
    for key in options.spark_conf:
        if not is_of_session(key):
            raise ConfigError(
                "is the Connect server's: say it where that is started; a session may have settings that begin "
                f"with {' or '.join(OF_SESSION)}, but for extensions and catalogs",
                key=f"spark_conf.{key}",
            )
    check_shared(options, "the Connect server and its workers")
    named = {"table": options.table, **{f"tables.{k}": v for k, v in options.tables.items()}}
    for key, table in named.items():
        if is_name(options, table):
            raise ConfigError(
                "name a path or URI: with `connect` catalogs are the server's", key=key
            )


class ConnectEngine(JobEngine):
    """A :class:`tidegate_sink_spark._engine.Engine`."""

    name = "Spark Connect"

    @property
    def _is_cluster(self) -> bool:
        return True

    async def prepare(self) -> None:
        """See :meth:`tidegate_sink_spark._engine.Engine.prepare`: it needs PySpark's client."""
        missing = [name for name in _PACKAGES if not _is_there(name)]
        if missing:
            raise ConfigError(
                f"PySpark's Connect client needs {', '.join(missing)}; run: pip install "
                "'tidegate-sink-spark[connect]'",
                key="connect",
            )
        self._environment = runtime.own_pyspark(os.environ)

    async def _spark_conf(self) -> Mapping[str, str]:
        """See JobEngine; checks that there is a server: PySpark's client would try for ten minutes."""
        url = urlsplit(self._options.connect)
        address = (url.hostname or "", url.port or _PORT)
        problem = await unreachable([address], "Spark Connect server")
        if problem:
            raise EngineError(f"{problem}; see that it runs, and that `connect` names it")
        return self._options.spark_conf


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
