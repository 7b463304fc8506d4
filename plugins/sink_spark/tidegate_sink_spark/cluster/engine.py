"""A job that somebody else starts, with ``spark-submit``: the sink gives it files to read, and reads its answers."""

from __future__ import annotations

import asyncio
import shutil
import threading
import uuid
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tidegate.spi import SinkContext
from tidegate.spi.private_files import inherited_umask
from tidegate_sink_spark._engine import EngineJob, StagedLog
from tidegate_sink_spark._job_engine import JobEngine
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._process import JOB_COMMAND
from tidegate_sink_spark._protocol import Command, Failed, Mark, Report
from tidegate_sink_spark.cluster.exchange import (
    ANSWER_NAME,
    EXCHANGE_NAME,
    TASK_NAME,
    WISH_NAME,
    Answer,
    Task,
    Wish,
    own_reports,
    read,
    write,
)
from tidegate_sink_spark.cluster.place import staging_directory
from tidegate_sink_spark.staging.files import list_staged
from tidegate_sink_spark.staging.storage import make_staging_directory

POLL: Final = 0.2
#: Seconds without a beat until the operator is warned. The job beats twice a second.
SILENCE: Final = 60.0


class SubmittedEngine(JobEngine):
    """A :class:`tidegate_sink_spark._engine.Engine`."""

    name = "submitted Spark"

    def __init__(
        self,
        context: SinkContext,
        options: SparkSinkOptions,
        *,
        job_command: Sequence[str] = JOB_COMMAND,
        silence: float = SILENCE,
    ) -> None:
        super().__init__(context, options, job_command=job_command)
        self._silence = silence

    async def start(self, staged: StagedLog) -> EngineJob:
        """See :meth:`tidegate_sink_spark._engine.Engine.start`: begins a session."""
        exchange = exchange_directory(self._options, self._context)
        shared = staged.directory / "job"
        # It goes on without a gateway, so it also looks by itself.
        interval = self._options.commit_interval
        config = msgspec.structs.replace(self._config(staged, {}, shared), commit_interval=interval)
        task = Task(uuid.uuid4().hex, config)
        umask = inherited_umask()

        def begin() -> None:
            make_staging_directory(exchange, is_shared=True)
            shutil.rmtree(shared, ignore_errors=True)
            make_staging_directory(shared, is_shared=True)
            write(exchange / TASK_NAME, task, mode=None if umask is None else 0o666 & ~umask)

        await asyncio.to_thread(begin)
        return SubmittedJob(exchange, staged.directory, task.session, self._silence)


def exchange_directory(options: SparkSinkOptions, context: SinkContext) -> Path:
    """The directory through which the sink and its job communicate."""
    return staging_directory(options, context) / EXCHANGE_NAME


class SubmittedJob:
    """A :class:`tidegate_sink_spark._engine.EngineJob`: one session with whatever job answers."""

    pid = 0
    tail = ""

    def __init__(self, exchange: Path, staging: Path, session: str, silence: float) -> None:
        self._exchange = exchange
        self._staging = staging
        self._session = session
        self._silence = silence
        self._reports: deque[Report] = deque()
        self._job = ""
        self._seen = 0
        self._beat = 0
        self._heard_at = asyncio.get_running_loop().time()
        self._wished = Wish(session, 0)
        self._writing = threading.Lock()
        self._wish: asyncio.Task[None] | None = None
        self._mark = 0
        self._draining = False
        self._over = asyncio.Event()

    def send(self, command: Command) -> None:
        """See EngineJob. The job goes on after a stop: it is the sink that leaves it."""
        self._draining = self._draining or command is Command.STOP
        wish = self._wished
        self._wished = Wish(
            self._session,
            wish.number + (command in (Command.COMMIT, Command.STOP)),
            wish.compacts + (command in (Command.COMPACT, Command.COMPACT_AND_VACUUM)),
            wish.vacuums + (command is Command.COMPACT_AND_VACUUM),
        )
        self._wish = asyncio.ensure_future(asyncio.to_thread(self._write_wish))
        self._wish.add_done_callback(_retrieve)  # without it the job commits at its next interval

    def _write_wish(self) -> None:
        umask = inherited_umask()
        with self._writing:  # the last one to write writes the newest
            write(
                self._exchange / WISH_NAME,
                self._wished,
                mode=None if umask is None else 0o666 & ~umask,
            )

    async def next_report(self) -> Report | None:
        """See EngineJob. None: after a stop, all that was staged is in the table; or after :meth:`end`."""
        while not self._over.is_set():
            if not self._reports:
                await self._look()
            if self._reports:
                report = self._reports.popleft()
                if isinstance(report, Mark):
                    self._mark = report.mark
                return report
            if self._draining and await asyncio.to_thread(self._is_drained):
                self._over.set()
                break
            try:
                async with asyncio.timeout(POLL):
                    await self._over.wait()
            except TimeoutError:
                pass
        return None

    async def _look(self) -> None:
        """Take what the job has answered since the last time."""
        now = asyncio.get_running_loop().time()
        try:
            answer = await asyncio.to_thread(read, self._exchange / ANSWER_NAME, Answer)
        except OSError as exc:
            self._reports.append(Failed(f"the job's answers cannot be read: {exc}"))
            await asyncio.sleep(POLL)
            return
        if answer is not None and answer.session == self._session:
            if (answer.job, answer.beat) != (self._job, self._beat):
                self._heard_at = now
            self._reports += own_reports(answer, self._job, self._seen)
            self._job, self._seen, self._beat = answer.job, answer.number, answer.beat
        if now - self._heard_at > self._silence:
            self._heard_at = now
            self._reports.append(
                Failed(
                    f"no submitted job has answered for {self._silence:.0f} s: start it with the command that "
                    "'tidegate sink submit' prints, or see its log"
                )
            )

    def _is_drained(self) -> bool:
        return all(file.hi <= self._mark for file in list_staged(self._staging))

    async def wait(self) -> int:
        """See EngineJob."""
        await self._over.wait()
        return 0

    async def end(self) -> int:
        """See EngineJob: leaves the job alone, which goes on with what is staged."""
        self._over.set()
        if self._wish is not None:
            await asyncio.wait([self._wish])
        return 0


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
