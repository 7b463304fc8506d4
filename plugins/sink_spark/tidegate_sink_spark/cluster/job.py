"""The job that ``spark-submit`` starts: the same work as the sink's own job, directed through files.

It works for the sink that last wrote its task into the exchange directory, and stays when the gateway
stops: the next start gives it another session, and it rereads the mark. It may be killed at any moment.
Several jobs get to the table one at a time, and each reads the mark before it commits.
"""

from __future__ import annotations

import importlib
import queue
import sys
import threading
import time
import uuid
from collections import deque
from pathlib import Path
from typing import Any, Final

import msgspec

from tidegate_sink_spark._protocol import Command, Report, Stopped
from tidegate_sink_spark.cluster.exchange import (
    ANSWER_NAME,
    REPORTS_KEPT,
    TASK_NAME,
    WISH_NAME,
    Answer,
    Task,
    Wish,
    read,
    write,
)
from tidegate_sink_spark.job.run import work

POLL: Final = 0.5
#: Seconds from a failed task until the mark is read again.
RETRY_DELAY: Final = 10.0


class Desk:
    """The job's side of the exchange. Attributes: job: its name."""

    def __init__(self, directory: Path) -> None:
        self.job = uuid.uuid4().hex
        self._directory = directory
        self._lock = threading.Lock()
        self._session = ""
        self._beat = 0
        self._number = 0
        self._reports: deque[Report] = deque(maxlen=REPORTS_KEPT)

    def task(self) -> Task | None:
        """The current task. Raises: OSError."""
        return read(self._directory / TASK_NAME, Task)

    def begin(self, session: str) -> None:
        """Work for *session* from now on."""
        with self._lock:
            self._session = session
            self._reports.clear()

    def report(self, value: Report) -> None:
        """Tell the sink, but not of a stop: another session has begun."""
        if not isinstance(value, Stopped):
            with self._lock:
                self._number += 1
                self._reports.append(value)
            self.beat()

    def beat(self) -> None:
        """Show that the job lives. Storage that is away for a while costs only that."""
        with self._lock:
            self._beat += 1
            answer = Answer(self._session, self.job, self._beat, self._number, tuple(self._reports))
            try:
                write(self._directory / ANSWER_NAME, answer)
            except OSError as exc:
                sys.stderr.write(f"the answer cannot be written: {exc}\n")

    def follow(self, session: str, commands: queue.SimpleQueue[Command]) -> None:
        """Pass on what the sink wants until another session begins; then stop."""
        last = Wish(session, 0)
        while True:
            try:
                task = self.task()
                wish = read(self._directory / WISH_NAME, Wish)
            except OSError as exc:
                sys.stderr.write(f"the exchange cannot be read: {exc}\n")
                task = wish = None
            if task is not None and task.session != session:
                commands.put(Command.STOP)
                return
            if wish is not None and wish.session == session:
                if wish.number > last.number:
                    commands.put(Command.COMMIT)
                if wish.vacuums > last.vacuums:
                    commands.put(Command.COMPACT_AND_VACUUM)
                elif wish.compacts > last.compacts:
                    commands.put(Command.COMPACT)
                last = wish
            self.beat()
            time.sleep(POLL)


def main(directory: str) -> int:
    """Work until killed, or until Spark has ended. Exit code 1: Spark has ended.

    Args: directory: the exchange, on storage that the gateway has under the same path.
    """
    sql: Any = importlib.import_module("pyspark.sql")
    return serve(sql.SparkSession.builder.getOrCreate(), Path(directory))


def serve(spark: Any, directory: Path) -> int:
    """Work with the session *spark* through the exchange *directory*; see :func:`main`."""
    desk = Desk(directory)
    while True:
        task = _wait_for_task(desk)
        desk.begin(task.session)
        commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        follower = threading.Thread(
            target=desk.follow, args=(task.session, commands), daemon=True, name="exchange"
        )
        follower.start()
        if not _work(spark, desk, task, commands):
            if not _answers(spark):
                return 1
            time.sleep(RETRY_DELAY)


def _work(spark: Any, desk: Desk, task: Task, commands: queue.SimpleQueue[Command]) -> bool:
    """Work on *task* until its session ends (True) or it fails."""
    own = Path(task.config.shared_directory) / desk.job  # another job's files have the same names
    own.mkdir(parents=True, exist_ok=True)
    config = msgspec.structs.replace(task.config, shared_directory=str(own))
    return work(config, commands, desk.report, lambda: spark) == 0


def _wait_for_task(desk: Desk) -> Task:
    """The task, however long a gateway takes to write one."""
    told = False
    while True:
        try:
            task = desk.task()
        except OSError as exc:
            sys.stderr.write(f"the task cannot be read: {exc}\n")
            task = None
        if task is not None:
            return task
        if not told:
            sys.stderr.write("there is no task yet: it comes when the gateway starts its sink\n")
            told = True
        time.sleep(POLL)


def _answers(spark: Any) -> bool:
    """Tell whether Spark still works."""
    py4j: Any = importlib.import_module("py4j.protocol")
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except (py4j.Py4JError, ConnectionError, AttributeError):
        return False
