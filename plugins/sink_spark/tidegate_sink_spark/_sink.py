"""The sink: stages the log, keeps the engine's job running, and releases what the table has."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidegate.spi import (
    AcknowledgedReader,
    RequestError,
    SinkContext,
    SinkHealth,
    SinkState,
    StoreError,
)
from tidegate.spi.private_files import inherited_umask
from tidegate_sink_spark._engine import Engine, EngineError, EngineJob, StagedLog
from tidegate_sink_spark._history import History
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._process import last_words
from tidegate_sink_spark._protocol import Command, Failed, Gap, Kept, Mark, Ready, Unreadable
from tidegate_sink_spark._remedies import with_remedy
from tidegate_sink_spark._target import claim, disclaim, further_setup
from tidegate_sink_spark.cluster.place import log_directory
from tidegate_sink_spark.commits.committer import Committer
from tidegate_sink_spark.commits.lag import LagWatch
from tidegate_sink_spark.commits.pace import Pace
from tidegate_sink_spark.job.table import dead_letters_of
from tidegate_sink_spark.staging.building import Builder
from tidegate_sink_spark.staging.process import ProcessBuilder, Setup
from tidegate_sink_spark.staging.selection import Selection, routed
from tidegate_sink_spark.staging.staging import Staging, StagingLimits
from tidegate_sink_spark.staging.storage import Amount, warn_of_other_logs
from tidegate_sink_spark.upkeep.keeper import Keeper
from tidegate_sink_spark.upkeep.schedule import Schedule

log = logging.getLogger(__name__)

RESTART_DELAY_MIN: Final = 1.0
RESTART_DELAY_MAX: Final = 60.0
#: A job that has work and says nothing for this long hangs: Java starts
#: in 8 to 21 s and a commit of the largest size took 7 s.
SILENCE_MAX: Final = 300.0
LOOK_INTERVAL: Final = 300.0


class SparkSink:
    """A :class:`tidegate.spi.Sink`. All methods run on the event loop."""

    def __init__(
        self,
        context: SinkContext,
        options: SparkSinkOptions,
        engine: Engine,
        *,
        restart_delay: float = RESTART_DELAY_MIN,
        make_builder: Callable[[Setup], Builder] = ProcessBuilder,
    ) -> None:
        self._context = context
        self._options = options
        self._engine = engine
        self._selection = Selection(options.include, options.exclude)
        self._further = further_setup(options)
        self._restart_delay = restart_delay
        self._make_builder = make_builder
        self._reader: AcknowledgedReader | None = None
        self._staging: Staging | None = None
        self._committer: Committer | None = None
        self._keeper: Keeper | None = None
        self._moved = False  # the job has committed since it last reported ready
        self._staging_task: asyncio.Task[None] | None = None
        self._commit_task: asyncio.Task[None] | None = None
        self._job_task: asyncio.Task[None] | None = None
        self._job: EngineJob | None = None
        self._stopping = False
        self._mark = 0
        self._mark_known = False
        self._job_problem, self._is_commit_failing = "", False
        self._log_problem = ""
        self._history = History()
        self._table_files: int | None = None
        self._dead_rows: int | None = None
        self._gap_expected = 0
        self._gap_since = 0.0
        self._restaged_at = float("-inf")

    # ------------------------------------------------------------------------------- the contract
    async def start(self, reader: AcknowledgedReader) -> None:
        """See :meth:`tidegate.spi.Sink.start`. The job starts in the background.

        Raises: ConfigError when the engine lacks something; OSError when the directory is not usable.
        """
        options = self._options
        await self._engine.prepare()
        claim(self._context.name, self._tables())
        self._reader = reader
        self._staging = Staging(
            reader,
            self._staging_directory(reader),
            StagingLimits(
                options.segment_rows,
                options.segment_size,
                options.segment_interval,
                options.staging_max,
                stops_at_bad_row=options.on_bad_row == "stop",
            ),
            builder=self._new_builder(reader),
            selection=self._selection,
            further=self._further.make(),
            is_shared=bool(options.staging_directory),
            on_change=self._wake_committer,
            on_problem=self._history.add_problem,
        )
        try:
            await self._staging.recover(0)
        except BaseException:
            disclaim(self._context.name)
            await self._staging.close()
            raise
        await asyncio.to_thread(warn_of_other_logs, self._staging_directory(reader))
        self._staging_task = asyncio.create_task(self._staging.run())
        self._keeper = Keeper(
            Schedule(options.compact_interval, now=asyncio.get_running_loop().time()),
            on_change=self._wake_committer,
            on_problem=self._history.add_problem,
        )
        self._committer = self._new_committer(self._staging, self._keeper)
        self._commit_task = asyncio.create_task(self._committer.run())
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
            await _cancel(self._commit_task)
            if self._keeper is not None:
                self._keeper.close()
            await self._staging.close()
            disclaim(self._context.name)

    def health(self) -> SinkHealth:
        """See :meth:`tidegate.spi.Sink.health`."""
        staging = self._staging
        problems = [self._log_problem, staging.problem if staging else "", self._job_problem]
        tasks = (self._staging_task, self._commit_task, self._job_task)
        problems += [f"a bug: {task.exception()!r}" for task in tasks if task and _failed(task)]
        problem = "; ".join(problem for problem in problems if problem)
        upkeep = self._keeper.last if self._keeper else None
        amount = staging.amount if staging else Amount()
        return SinkHealth(
            state=self._state(problem),
            mark=self._mark,
            staged=max(staging.position, self._mark) if staging else 0,
            # (A failure of upkeep alone is no state: rows still flow.)
            problem=problem or (upkeep.problem if upkeep else ""),
            target=self._engine.table,
            rows_per_second=self._history.rows_per_second,
            last_commit=self._history.last_commit,
            target_files=self._table_files,
            dead_rows=self._dead_rows,
            staged_files=amount.files,
            staged_rows=amount.rows,
            staged_bytes=amount.size_bytes,
            problems=self._history.problems,
            is_late=self._committer is not None and self._committer.is_late,
            upkeep=upkeep,
            is_mark_known=self._mark_known,
        )

    def compact(self) -> int:
        """See :meth:`tidegate.spi.CompactingSink.compact`."""
        if self._keeper is None or self._stopping or self._log_problem:
            raise RequestError(self._log_problem or "the sink does not run")
        return self._keeper.ask()

    def target_of(self, destination: str) -> str:
        """See :meth:`tidegate.spi.CommittingSink.target_of`."""
        if not self._selection.takes(destination):
            return ""
        return routed(self._engine.further_tables, destination) or self._engine.table

    def _state(self, problem: str) -> SinkState:
        tasks = (self._staging_task, self._commit_task, self._job_task)
        if any(task is None or task.done() for task in tasks):
            return SinkState.STOPPED
        if problem:
            return SinkState.FAILING
        if self._committer is not None and self._committer.is_asleep:
            return SinkState.ASLEEP
        return SinkState.RUNNING if self._mark_known else SinkState.STARTING

    @property
    def job_pid(self) -> int:
        """Process (and group) id of the running job, 0 when none runs. For tests and operators."""
        return self._job.pid if self._job else 0

    # ------------------------------------------------------------------------------------ stopping
    async def _drain(self, staging: Staging) -> None:
        """Stage everything acknowledged, then let the job commit it and end by itself."""
        staging.drain()
        assert self._staging_task is not None
        assert self._job_task is not None
        await asyncio.wait([self._staging_task])
        while not self._job_task.done() and staging.sealed > self._mark:
            if self._job is None:
                await asyncio.wait([self._job_task], timeout=0.1)  # between two jobs
                continue
            self._job.send(Command.STOP)
            await self._job.wait()
            # The reports it left in the pipe are handled by its task; a job that died is replaced.
            await asyncio.wait([self._job_task], timeout=0.1)

    def _tables(self) -> list[tuple[str, str]]:
        """(configuration key, table) of each."""
        main, further = self._engine.table, self._engine.further_tables.items()
        return [
            ("table", main),
            ("table", dead_letters_of(main)),
            *((f"tables.{key}", table) for key, table in further),
        ]

    def _staging_directory(self, reader: AcknowledgedReader) -> Path:
        return log_directory(self._options, self._context, reader.store_id)

    # ----------------------------------------------------------------------------------- the job
    def _new_committer(self, staging: Staging, keeper: Keeper) -> Committer:
        options, context = self._options, self._context
        return Committer(
            staging,
            Pace(
                interval=options.commit_interval,
                rows=options.commit_rows,
                size_bytes=min(options.commit_size, options.staging_max),
                lag_goal=options.lag_goal,
            ),
            LagWatch(context.name, options.lag_goal, context.announce_lag),
            idle=options.driver_idle,
            cause=lambda: self._log_problem or staging.problem or self._job_problem,
            is_kept=lambda: keeper.is_wanted,
        )

    def _new_builder(self, reader: AcknowledgedReader) -> Builder:
        options = self._options
        is_shared = bool(options.staging_directory)
        return self._make_builder(
            Setup(
                str(self._staging_directory(reader)),
                self._context.gateway_name,
                reader.store_id,
                tuple(options.include),
                tuple(options.exclude),
                self._further,
                is_shared,
                inherited_umask() if is_shared else None,
            )
        )

    def _wake_committer(self) -> None:
        if self._committer is not None:
            self._committer.changed()

    async def _keep_job_running(self) -> None:
        committer, delay = self._committer, self._restart_delay
        assert committer is not None
        while True:
            before = self._mark
            try:
                code = await self._run_job()
            except (EngineError, OSError) as exc:
                self._report_job(str(exc))
            else:
                if self._log_problem or (self._stopping and code == 0):
                    return
                if committer.is_asleep and code == 0:
                    log.info("job asleep: no rows for %gs", self._options.driver_idle)
                    await committer.until_work()
                    delay = self._restart_delay
                    continue
                self._report_job(self._job_problem or last_words("", code, self._engine.name))
            if self._mark > before:
                delay = self._restart_delay
            committer.is_asleep = False
            log.warning("job restart delay=%gs problem=%r", delay, self._job_problem)
            await asyncio.sleep(delay)
            delay = min(delay * 2, RESTART_DELAY_MAX)

    async def _run_job(self) -> int:
        """Run one job to its end; returns its exit code. Raises: EngineError, OSError."""
        reader = self._reader
        assert reader is not None
        job = await self._engine.start(
            StagedLog(reader.store_id, self._staging_directory(reader), reader.released)
        )
        log.info("job started pid=%d table=%s", job.pid, self._engine.table)
        self._job = job
        try:
            assert self._staging is not None
            await self._follow(job, self._staging)
            code = await job.wait()  # its stdout ended, so it is ending
            if code not in (0, -9):
                log.warning("job pid=%d ended code=%d", job.pid, code)
                log.debug("job pid=%d stderr:\n%s", job.pid, job.tail)
                if not self._job_problem:
                    self._report_job(last_words(job.tail, code, self._engine.name))
            return code
        finally:
            self._job = None
            if self._committer is not None and self._keeper is not None:
                self._committer.gone()
                self._keeper.gone()
            await job.end()

    async def _follow(self, job: EngineJob, staging: Staging) -> None:
        """Handle the job's reports until it ends. Raises: OSError when it hangs."""
        assert self._committer is not None
        assert self._keeper is not None
        while True:
            has_work = self._committer.is_busy
            try:
                async with asyncio.timeout(patience(has_work)):
                    report = await job.next_report()
            except TimeoutError:
                if not has_work:
                    continue  # it was idle; work that came meanwhile gets the full time
                raise OSError(
                    f"the {self._engine.name} job has said nothing for {SILENCE_MAX:.0f} s"
                ) from None
            if report is None:
                return
            await self._handle(report)
            if isinstance(report, Ready):
                if self._is_commit_failing:  # everything is committed now: another job did it
                    self._job_problem, self._is_commit_failing = "", False
                self._committer.ready(job, moved=self._moved)
                self._moved = False
                self._keeper.ready(job)

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
                self._is_commit_failing = True
            case Kept():
                assert self._keeper is not None
                self._keeper.kept(report)
                if report.table_files is not None:
                    self._table_files = report.table_files
            case _:
                log.debug("job report=%r", report)

    async def _handle_mark(self, report: Mark) -> None:
        """The table has everything up to the mark: remove its files, then release the log.

        In this order: a removed file is still in the log until the release, so a crash in between
        stages it again, and the job, which knows the mark, leaves it out.
        """
        reader, staging = self._reader, self._staging
        assert reader is not None
        assert staging is not None
        # (Not compared with staged files: they may also predate the store's restore.)
        if report.mark > reader.last:
            self._stop_for_good(report.mark, reader.last)
            return
        # (A sink that does not take everything releases rows that no table has.)
        is_another = report.mark < reader.released and self._selection.takes_all
        if is_another and (not self._mark_known or report.mark < self._mark):
            told = (
                f"the table {self._engine.table} is not the one that the released rows went to (its mark is "
                f"{report.mark}, and rows up to {reader.released} were released): they are not in it, and it goes on "
                "behind them"
            )
            log.warning("%s", told)
            self._history.add_problem(told)
        self._table_files, self._dead_rows = report.table_files, report.dead_rows
        if report.rows or report.dead:
            self._moved = True
            if self._keeper is not None:
                self._keeper.committed()
            self._history.add_commit(report, self._mark)
            log.info(
                "commit mark=%d version=%d rows=%d dead=%d files=%d seconds=%.3f",
                report.mark,
                report.version,
                report.rows,
                report.dead,
                report.files,
                report.seconds,
            )
        self._mark_known = True
        self._mark = report.mark
        if report.rows or report.dead or not self._is_commit_failing:
            self._job_problem, self._is_commit_failing = "", False
        self._gap_expected = 0
        try:
            await staging.discard_through(report.mark)
            if report.mark > reader.released:
                await reader.release(report.mark)
        except (OSError, StoreError) as exc:
            # A late release loses nothing; the next mark tries again.
            self._report_job(f"what the table has cannot be released yet: {exc}")

    def _stop_for_good(self, mark: int, last: int) -> None:
        """The table is ahead of the log, so the store was restored to an older state.

        New acknowledgements would get numbers that the table already has, and would silently be left
        out as duplicates. Nothing may be released or written until that is resolved.
        """
        self._log_problem = (
            f"the table {self._engine.table} holds ack sequences up to {mark} of this store, which itself "
            f"has only {last}: the store was restored from an older copy; name another table"
        )
        log.error("%s", self._log_problem)
        self._history.add_problem(self._log_problem)
        if self._staging_task is not None:
            self._staging_task.cancel()
        if self._job is not None:
            self._job.send(Command.STOP)

    async def _handle_gap(self, report: Gap) -> None:
        now = time.monotonic()
        if report.expected != self._gap_expected:
            self._gap_expected, self._gap_since = report.expected, now
            return
        assert self._reader is not None
        if self._reader.released >= report.expected and self._job is not None:
            # The next job learns where the log begins now.
            self._report_job(
                f"rows up to {self._reader.released} were discarded from the acknowledged log before the "
                "table had them (acknowledged_limit, acknowledged_age); it goes on behind them"
            )
            await self._job.end()
            return
        if now - self._gap_since < self._options.gap_timeout:
            return
        self._report_job(
            f"staged rows {report.expected} to {report.found - 1} are missing; staging them again"
        )
        self._gap_since = now
        await self._restage()

    async def _restage(self) -> None:
        """Recheck the staged files and stage what is missing; the log still has all of it."""
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
        problem = with_remedy(problem)
        if problem != self._job_problem:
            log.warning("job problem=%r", problem)
            self._job_problem = problem
            self._is_commit_failing = False
            self._history.add_problem(problem)


def patience(is_busy: bool) -> float:
    """Seconds that a job may say nothing; when it is not busy, until the next look at it."""
    return SILENCE_MAX if is_busy else LOOK_INTERVAL


async def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is None:
        return
    task.cancel()
    for failure in await asyncio.gather(task, return_exceptions=True):
        if isinstance(failure, Exception):
            log.error("task failed", exc_info=failure)


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None
