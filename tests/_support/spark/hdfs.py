"""A Hadoop file system on loopback for tests: Hadoop's own name node and one data node, in one Java process.

``MiniDFSCluster``, of a jar that Hadoop publishes for this; the rest of Hadoop is what PySpark has.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from free_ports import free_port
from rest_catalog import fetched

from tidegate_sink_spark.java import jars as _jars
from tidegate_sink_spark.java import runtime as _runtime

_MINICLUSTER = _jars.Artifact(
    "org.apache.hadoop",
    "hadoop-client-minicluster",
    "3.4.2",
    "ae2406c544825b7734b8aad4f87eff60d9ec422284f0b16c2856032083b63c77",
)
#: What PySpark has of Hadoop, and what both log with.
_OWN = ("hadoop-client-*", "slf4j-api-*", "jcl-over-slf4j-*", "commons-cli-*", "log4j-*")
_START_TIMEOUT = 180.0


class Hdfs:
    """A file system that runs. Attributes: uri."""

    def __init__(self, java: str, directory: Path) -> None:
        """Args: directory: for what it holds."""
        own = [p for name in _OWN for p in (_runtime.spark_home() / "jars").glob(f"{name}.jar")]
        port = free_port()
        self._directory = directory
        self._settings = directory / "hdfs.xml"  # written when it has started
        self._command = [
            java, "-Xmx256m", "-XX:TieredStopAtLevel=1",
            "-cp", ":".join(map(str, [*fetched(_MINICLUSTER), *own])),
            "org.apache.hadoop.mapreduce.MiniHadoopClusterManager",
            "-nomr", "-nnport", str(port), "-writeConfig", str(self._settings),
            f"-Dhdfs.minidfs.basedir={directory / 'hdfs'}",
            f"-Dhadoop.tmp.dir={directory / 'hadoop'}",
        ]  # fmt: skip
        self.uri = f"hdfs://127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._start("-format")

    def set_reachable(self, reachable: bool) -> None:
        """Let it run, or kill it; what it was given stays."""
        if not reachable:
            self.close()
        elif self._process is None:
            self._start()

    def _start(self, *further: str) -> None:
        self._settings.unlink(missing_ok=True)
        with (self._directory / "hdfs.log").open("a") as log:
            self._process = subprocess.Popen(
                [*self._command, *further],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end = time.monotonic() + _START_TIMEOUT
        while not self._settings.exists():
            assert self._process.poll() is None, (self._directory / "hdfs.log").read_text()[-3000:]
            assert time.monotonic() < end, "HDFS does not start"
            time.sleep(0.05)

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
