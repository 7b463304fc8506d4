"""The sink: stages the log, runs the Spark job, and releases what the table has."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tidegate.spi import AcknowledgedReader, SinkContext, SinkHealth, StoreError
from tidegate.spi.private_files import inherited_umask, make_private_directory
from tidegate_sink_spark import _jars, _runtime
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._process import JOB_COMMAND, JobProcess
from tidegate_sink_spark._protocol import Command, Failed, Gap, JobConfig, Mark, Unreadable
from tidegate_sink_spark.job.session import spark_conf
from tidegate_sink_spark.job.table import local_path
from tidegate_sink_spark.staging import arrow
from tidegate_sink_spark.staging.files import list_staged
from tidegate_sink_spark.staging.staging import Staging, StagingLimits

log = logging.getLogger(__name__)

RESTART_DELAY_MIN: Final = 1.0
RESTART_DELAY_MAX: Final = 60.0
#: A job that has work and says nothing for this long, beyond its commit interval, hangs: Java starts
#: in 8 to 21 s and a commit of the largest size took 7 s.
SILENCE_MAX: Final = 300.0


class SparkSink:
    """A :class:`tidegate.spi.Sink`. All methods run on the event loop."""

    def __init__(
        self,
        context: SinkContext,
        options: SparkSinkOptions,
        *,
        write_parquet: arrow.ParquetWriter = arrow.write_parquet,
        job_command: Sequence[str] = JOB_COMMAND,
        restart_delay: float = RESTART_DELAY_MIN,
    ) -> None:
        self._context = context
        self._options = options
        self._write_parquet = write_parquet
        self._job_command = job_command
        self._restart_delay = restart_delay
        self._reader: AcknowledgedReader | None = None
        self._staging: Staging | None = None
        self._staging_task: asyncio.Task[None] | None = None
        self._job_task: asyncio.Task[None] | None = None
        self._job: JobProcess | None = None
        self._environment: dict[str, str] = {}
        self._stopping = False
        self._mark = 0
        self._mark_known = False
        self._job_problem = ""
        self._log_problem = ""
        self._gap_expected = 0
        self._gap_since = 0.0
        self._restaged_at = float("-inf")

    # ------------------------------------------------------------------------------- the contract
    async def start(self, reader: AcknowledgedReader) -> None:
        """See :meth:`tidegate.spi.Sink.start`. Java starts in the background.

        Raises: ConfigError when there is no Java; OSError when the directory is not usable.
        """
        options, directory = self._options, self._context.data_directory
        java = await asyncio.to_thread(
            _runtime.find_java, options.java_home, directory / "java", os.environ
        )
        log.info("java version=%d source=%s home=%s", java.version, java.source, java.home)
        self._environment = _runtime.job_environment(java, os.environ)
        self._reader = reader
        self._staging = Staging(
            reader,
            self._staging_directory(reader),
            StagingLimits(
                options.segment_rows,
                options.segment_size,
                options.segment_interval,
                options.staging_max,
            ),
            gateway_name=self._context.gateway_name,
            write_parquet=self._write_parquet,
        )
        try:
            await self._staging.recover(0)
        except BaseException:
            await self._staging.close()
            raise
        await asyncio.to_thread(_warn_of_other_logs, self._staging_directory(reader))
        self._staging_task = asyncio.create_task(self._staging.run())
        self._job_task = asyncio.create_task(self._keep_job_running())

    async def stop(self) -> None:
        """See :meth:`tidegate.spi.Sink.stop`. Takes at most ``stop_timeout``."""
        if self._staging is None or self._stopping:
            return
        self._stopping = True
        try:
            if self._options.drain_on_stop and not self._log_problem:
                async with asyncio.timeout(self._options.stop_timeout):
                    await self._drain(self._staging)
        except TimeoutError:
            log.warning(
                "stop timeout=%gs mark=%d staged=%d: the rest stays in the log",
                self._options.stop_timeout,
                self._mark,
                self._staging.position,
            )
        finally:
            await _cancel(self._staging_task)
            await _cancel(self._job_task)
            await self._staging.close()

    def health(self) -> SinkHealth:
        """See :meth:`tidegate.spi.Sink.health`."""
        staging = self._staging
        problems = [self._log_problem, staging.problem if staging else "", self._job_problem]
        tasks = (self._staging_task, self._job_task)
        problems += [f"a bug: {task.exception()!r}" for task in tasks if task and _failed(task)]
        return SinkHealth(
            running=all(task is not None and not task.done() for task in tasks),
            mark=self._mark,
            staged=max(staging.position, self._mark) if staging else 0,
            problem="; ".join(problem for problem in problems if problem),
        )

    @property
    def job_pid(self) -> int:
        """Process (and group) id of the running job, 0 when none runs. For tests and operators."""
        return self._job.pid if self._job else 0

    # ------------------------------------------------------------------------------------ stopping
    async def _drain(self, staging: Staging) -> None:
        """Stage all that is acknowledged, then let the job commit it and end by itself."""
        staging.drain()
        assert self._staging_task is not None
        assert self._job_task is not None
        await asyncio.wait([self._staging_task])
        while not self._job_task.done() and staging.position > self._mark:
            if self._job is None:
                await asyncio.wait([self._job_task], timeout=0.1)  # between two jobs
                continue
            self._job.send(Command.STOP)
            await self._job.wait()
            # The reports it left in the pipe are handled by its task; a job that died is replaced.
            await asyncio.wait([self._job_task], timeout=0.1)

    def _staging_directory(self, reader: AcknowledgedReader) -> Path:
        # A store id is opaque: it must not climb out of the directory, or be "." or "..".
        name = quote(reader.store_id, safe="").replace(".", "%2E")
        return self._context.data_directory / "staging" / name

    # ----------------------------------------------------------------------------------- the job
    async def _keep_job_running(self) -> None:
        delay = self._restart_delay
        while True:
            before = self._mark
            try:
                code = await self._run_job()
            except (_jars.JarsError, OSError) as exc:
                self._report_job(str(exc))
            else:
                if self._log_problem or (self._stopping and code == 0):
                    return
                self._report_job(self._job_problem or f"the Spark job ended with exit code {code}")
            if self._mark > before:
                delay = self._restart_delay
            log.warning("job restart delay=%gs problem=%r", delay, self._job_problem)
            await asyncio.sleep(delay)
            delay = min(delay * 2, RESTART_DELAY_MAX)

    async def _run_job(self) -> int:
        """Run one job to its end; its exit code. Raises: JarsError, OSError."""
        config = await self._prepare()
        job = await JobProcess.start(
            config,
            environment=self._environment,
            work_directory=self._work_directory,
            command=self._job_command,
        )
        log.info("job started pid=%d table=%s", job.pid, config.table)
        self._job = job
        try:
            if self._stopping:
                job.send(Command.STOP)
            assert self._staging is not None
            await self._follow(job, self._staging)
            code = await job.wait()  # its stdout ended, so it is ending
            if code not in (0, -9):
                log.warning("job pid=%d code=%d stderr:\n%s", job.pid, code, job.tail)
            return code
        finally:
            self._job = None
            await job.end()

    async def _prepare(self) -> JobConfig:
        options = self._options
        assert self._reader is not None
        jars = await asyncio.to_thread(
            _jars.ensure_jars,
            options.jars,
            _jars.cache_directory(options.jars_cache, os.environ),
            repository=options.maven_repository,
            environment=self._environment,
        )
        await asyncio.to_thread(_empty_directory, self._work_directory)
        return JobConfig(
            gateway_name=self._context.gateway_name,
            store_id=self._reader.store_id,
            staging_directory=str(self._staging_directory(self._reader)),
            table=self._table,
            layout=options.layout,
            commit_interval=options.commit_interval,
            floor=self._reader.released,
            niceness=options.niceness,
            spark_conf=spark_conf(
                jars=jars,
                driver_memory_bytes=options.driver_memory,
                work_directory=self._work_directory,
                overrides=options.spark_conf,
            ),
            # The sink's directory is closed; a table elsewhere is for whom the operator says.
            umask=inherited_umask() if options.table else None,
        )

    @property
    def _work_directory(self) -> Path:
        return self._context.data_directory.absolute() / "work"

    @property
    def _table(self) -> str:
        named = self._options.table
        if not named:
            return str(self._context.data_directory.absolute() / "lake" / "acknowledged")
        path = local_path(named)
        return named if path is None else str(path.expanduser().absolute())

    async def _follow(self, job: JobProcess, staging: Staging) -> None:
        """Handle the job's reports until it ends. Raises: OSError when it hangs."""
        idle = False
        while True:
            patience = SILENCE_MAX + self._options.commit_interval
            has_work = not idle or staging.position > self._mark
            try:
                async with asyncio.timeout(patience):
                    report = await job.next_report()
            except TimeoutError:
                if not has_work:
                    continue  # it had nothing to say; what came meanwhile has all of the time
                raise OSError(f"the Spark job has said nothing for {patience:.0f} s") from None
            if report is None:
                return
            idle = True
            await self._handle(report)

    async def _handle(self, report: object) -> None:
        match report:
            case Mark():
                await self._handle_mark(report)
            case Gap():
                await self._handle_gap(report)
            case Unreadable():
                self._report_job(f"staged file {report.name}: {report.problem}; staging it again")
                await self._restage()
            case Failed():
                self._report_job(report.problem)
            case _:
                log.debug("job report=%r", report)

    async def _handle_mark(self, report: Mark) -> None:
        """The table has everything up to the mark: its files may go, and then the log may.

        In this order: a file that goes is still in the log until the release, so a crash between
        the two stages it again and the job, which knows the mark, leaves it out.
        """
        reader, staging = self._reader, self._staging
        assert reader is not None
        assert staging is not None
        if report.mark > max(reader.last, staging.position):
            self._stop_for_good(report.mark, reader.last)
            return
        if not self._mark_known and report.mark < reader.released:
            log.warning(
                "table=%s mark=%d released=%d: the table is not the one that the released rows "
                "went to; they are not in it, and it goes on behind them",
                self._table,
                report.mark,
                reader.released,
            )
        if report.rows:
            log.info(
                "commit mark=%d version=%d rows=%d files=%d seconds=%.3f",
                report.mark,
                report.version,
                report.rows,
                report.files,
                report.seconds,
            )
        self._mark_known = True
        self._mark = report.mark
        self._job_problem = ""
        self._gap_expected = 0
        try:
            await staging.discard_through(report.mark)
            if report.mark > reader.released:
                await reader.release(report.mark)
        except (OSError, StoreError) as exc:
            # Nothing is lost by a late release; the next mark tries again.
            self._report_job(f"what the table has cannot be released yet: {exc}")

    def _stop_for_good(self, mark: int, last: int) -> None:
        """The table is ahead of the log, so the store was put back to an older state.

        New acknowledgements would get numbers that the table has already, and would be left out
        as duplicates without a word. Nothing may be released or written until that is resolved.
        """
        self._log_problem = (
            f"the table {self._table} holds ack sequences up to {mark} of this store, which itself "
            f"has only {last}: the store was restored from an older copy; name another table"
        )
        log.error("%s", self._log_problem)
        if self._staging_task is not None:
            self._staging_task.cancel()
        if self._job is not None:
            self._job.send(Command.STOP)

    async def _handle_gap(self, report: Gap) -> None:
        now = time.monotonic()
        if report.expected != self._gap_expected:
            self._gap_expected, self._gap_since = report.expected, now
            return
        if now - self._gap_since < self._options.gap_timeout:
            return
        self._report_job(
            f"staged rows {report.expected} to {report.found - 1} are missing; staging them again"
        )
        self._gap_since = now
        await self._restage()

    async def _restage(self) -> None:
        """Check the staged files anew and stage what is not there; the log still has all of it."""
        staging, now = self._staging, time.monotonic()
        if staging is None or self._stopping or now - self._restaged_at < self._restart_delay:
            return
        self._restaged_at = now
        await _cancel(self._staging_task)
        try:
            await staging.recover(self._mark)
        except OSError as exc:
            self._report_job(f"the staging directory cannot be read: {exc}")
        self._staging_task = asyncio.create_task(staging.run())

    def _report_job(self, problem: str) -> None:
        if problem != self._job_problem:
            log.warning("job problem=%r", problem)
            self._job_problem = problem


async def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is None:
        return
    task.cancel()
    for failure in await asyncio.gather(task, return_exceptions=True):
        if isinstance(failure, Exception):
            log.error("task failed", exc_info=failure)


def _warn_of_other_logs(directory: Path) -> None:
    """Tell of files staged from a store that is gone: rows that nothing carries any further.

    The store was replaced before the table had all of the old one's log. The files are left for
    the operator, who alone knows whether that was meant.
    """
    for other in sorted(directory.parent.iterdir()):
        files = list_staged(other) if other != directory and other.is_dir() else []
        if files:
            log.warning(
                "staging directory=%s files=%d: they come from another store and are not carried "
                "into the table; append or delete them by hand",
                other,
                len(files),
            )


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def _empty_directory(directory: Path) -> None:
    """Remove what a killed Spark left behind."""
    shutil.rmtree(directory, ignore_errors=True)
    make_private_directory(directory)
