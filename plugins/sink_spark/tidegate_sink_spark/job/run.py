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
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from tidegate_sink_spark._protocol import (
    Command,
    Failed,
    JobConfig,
    Report,
    decode_command,
    decode_config,
    encode_line,
)
from tidegate_sink_spark.job.dead import DeadLetterTable
from tidegate_sink_spark.job.driver import CommitError, Driver, first_line
from tidegate_sink_spark.job.files import local_path
from tidegate_sink_spark.job.rows import check_workers
from tidegate_sink_spark.job.session import connect_session, start_session
from tidegate_sink_spark.job.target import (
    open_dead_letters,
    open_table,
    open_upkeep,
    own_directory,
)


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

    def report(value: Report) -> None:
        try:
            reports.write(encode_line(value))
        except BrokenPipeError:
            _die()

    sessions: list[Any] = []

    def start_spark() -> Any:
        if not sessions:
            sessions.append(_start(config))
        return sessions[0]

    try:
        return work(config, commands, report, start_spark)
    finally:
        for session in sessions:
            try:
                session.stop()
            except Exception as exc:  # its Java machine is gone: nothing is left to stop
                sys.stderr.write(f"stopping Spark: {_one_line(exc)}\n")


def _start(config: JobConfig) -> Any:
    if config.connect:
        return connect_session(config.connect, config.spark_conf)
    return start_session(config.spark_conf, Path.cwd())  # the sink's directory


def work(
    config: JobConfig,
    commands: queue.SimpleQueue[Command],
    report: Callable[[Report], None],
    start_spark: Callable[[], Any],
) -> int:
    """Do the job until it is told to stop.

    Args: start_spark: returns the session; not called for a format that needs none.
    Returns: 0 told to stop; 1 it failed, and the last report says why.
    """
    sessions: list[Any] = []

    def session() -> Any:
        if sessions:
            return sessions[0]
        try:
            spark = start_spark()
        except Exception as exc:  # PySpark raises RuntimeError, OSError, Py4J's and its own
            raise CommitError(f"Spark does not start: {_one_line(exc)}") from exc
        if config.shared_directory:
            table = None if config.is_name else local_path(config.table)
            check_workers(
                spark, Path(config.shared_directory), table, is_connect=bool(config.connect)
            )
        sessions.append(spark)
        return spark

    upkeep = open_upkeep(config, session, report)
    try:
        table = open_table(config, session)
        dead_letters = DeadLetterTable(
            lambda creates: open_dead_letters(config, session, creates=creates),
            own_directory(config),
            gateway_name=config.gateway_name,
            store_id=config.store_id,
        )
        driver = Driver(
            table,
            dead_letters,
            Path(config.staging_directory),
            gateway_name=config.gateway_name,
            floor=config.floor,
            rows_max=config.commit_rows,
            bytes_max=config.commit_bytes,
            commit_interval=config.commit_interval,
            report=report,
            keep_up=upkeep.ask,
        )
        return 0 if driver.run(commands) else 1
    except ConnectionError:  # Py4J cannot reach Java any more
        report(
            Failed("its Java machine ended: killed, or out of memory (kernel's log; driver_memory)")
        )
        return 1
    except (CommitError, OSError) as exc:
        report(Failed(str(exc)))
        return 1
    except Exception as exc:  # the log gets one line, and all of it at debug
        traceback.print_exc()
        report(Failed(f"the job failed: {_one_line(exc)}"))
        return 1
    finally:
        upkeep.stop()


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
    in progress is then either in the table or not; the next job reads the mark and knows.
    """
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)  # started by hand: the Java machine ends when the pipe to it breaks


def _one_line(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {first_line(exc)}"


if __name__ == "__main__":
    # Not sys.exit: the thread that waits for stdin holds its lock, and Python aborts on that at exit.
    os._exit(main())
