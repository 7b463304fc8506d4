"""The Spark job's process: ``python -m tidegate_sink_spark.job.run``, started by the sink.

stdin: its :class:`~tidegate_sink_spark._protocol.JobConfig`, then commands; the end of stdin means
that the gateway died, and then the job and its Java machine must not live on. stdout: reports.
stderr: Spark's log.

Exit codes: 0 told to stop; 1 it failed (the last report says why); killed by itself with SIGKILL
when stdin ended.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tidegate_sink_spark._protocol import (
    Command,
    Failed,
    JobConfig,
    Report,
    decode_command,
    decode_config,
    encode_line,
)
from tidegate_sink_spark.job.driver import CommitError, Driver
from tidegate_sink_spark.job.session import start_session
from tidegate_sink_spark.job.table import DeltaTable, application_id


def main() -> int:
    """Run the job until its stdin says stop, or ends."""
    reports = _take_stdout()
    config = decode_config(sys.stdin.buffer.readline())
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    threading.Thread(
        target=_follow_stdin, args=(sys.stdin.buffer, commands), daemon=True, name="stdin"
    ).start()
    if config.umask is not None:
        os.umask(config.umask)
    os.nice(config.niceness)  # clients wait for the gateway, nobody waits for the table

    def report(value: Report) -> None:
        try:
            reports.write(encode_line(value))
        except BrokenPipeError:
            _die()

    return _run(config, commands, report)


def _run(
    config: JobConfig, commands: queue.SimpleQueue[Command], report: Callable[[Report], None]
) -> int:
    try:
        spark = start_session(config.spark_conf, Path.cwd())  # the sink's own directory
    except Exception as exc:  # PySpark raises RuntimeError, OSError, Py4J's and its own
        report(Failed(f"Spark does not start: {_one_line(exc)}"))
        return 1
    try:
        app_id = application_id(config.gateway_name, config.store_id)
        driver = Driver(
            DeltaTable(spark, config.table, config.layout, app_id),
            Path(config.staging_directory),
            gateway_name=config.gateway_name,
            floor=config.floor,
            commit_interval=config.commit_interval,
            report=report,
        )
        return 0 if driver.run(commands) else 1
    except (CommitError, OSError) as exc:
        report(Failed(str(exc)))
        return 1
    finally:
        spark.stop()


def _take_stdout() -> BinaryIO:
    """Keep stdout for reports: whatever else writes there (Java, Ivy) goes to stderr from now on."""
    reports = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return reports


def _follow_stdin(stdin: BinaryIO, commands: queue.SimpleQueue[Command]) -> None:
    for line in stdin:
        commands.put(decode_command(line))
    _die()


def _die() -> None:
    """End this process and its Java machine at once.

    Both are in one process group, which the sink made (``start_new_session``). A commit that is
    under way is then either in the table or not; the next job reads the mark and knows.
    """
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)  # started by hand: the Java machine ends when the pipe to it breaks


def _one_line(exc: BaseException) -> str:
    text = next((line for line in str(exc).splitlines() if line.strip()), "")
    return f"{type(exc).__name__}: {text[:500]}"


if __name__ == "__main__":
    # Not sys.exit: the thread that waits for stdin holds its lock, on which Python's end aborts.
    os._exit(main())
