"""The sink in this process, over a log in memory: staging, the table's rate, its lag, its files."""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchkit.report import percentile
from benchkit.sink.jobs import cpu_seconds, family, resident_bytes
from benchkit.sink.log import RUN_ROWS, GrowingLog, WholeLog, tick
from tidegate.spi import SinkContext
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._protocol import Mark
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark.plugin import SparkSinkFactory
from tidegate_sink_spark.staging.process import ProcessBuilder, Setup
from tidegate_sink_spark.staging.staging import Staging, StagingLimits

#: Options of each engine where its lag is measured.
ENGINES: Final[dict[str, dict[str, Any]]] = {
    "spark": {"commit_interval": 5.0, "lag_goal": 2.5},
    "deltalake": {
        "engine": "deltalake",
        "layout": "partitioned",
        "commit_interval": 5.0,
        "lag_goal": 0.8,
    },
}
#: Of staged files: as the sink's options have them.
_SEGMENT_ROWS: Final = 50_000
_SEGMENT_BYTES: Final = 64 << 20
_SECONDS_MAX: Final = 300.0
#: The number of no segment that has rows.
_NO_SEGMENT: Final = 1 << 30
_PERIOD: Final = 86_400.0
#: Commits that a new Java machine needs until it is warm.
_WARM_COMMITS: Final = 3


@dataclass
class Commits:
    """What a sink reported. Attributes: times (of perf_counter), rows and seconds of each commit, and
    how old its oldest row was when its mark was reported; job_cpu: seconds that the job used in all."""

    times: list[float] = field(default_factory=list[float])
    rows: list[int] = field(default_factory=list[int])
    seconds: list[float] = field(default_factory=list[float])
    ages: list[float] = field(default_factory=list[float])
    job_cpu: float = 0.0

    def clear(self) -> None:
        for each in (self.times, self.rows, self.seconds, self.ages):
            each.clear()


@dataclass(frozen=True, slots=True)
class Staged:
    """What staging cost.

    Attributes:
        cpu_us: microseconds of CPU a row, of both processes; feeding_us: of it, of the one that has the log.
        row_bytes: of the files. stall_p99, stall_worst: of the loop, ms.
    """

    cpu_us: float
    feeding_us: float
    row_bytes: float
    stall_p99: float
    stall_worst: float


def measure_staging(directory: Path, count: int) -> Staged:
    """Stage *count* rows as fast as it goes."""

    async def main() -> Staged:
        log = WholeLog(count - count % RUN_ROWS)
        builder, staging = _staging(log, directory)
        await staging.recover(0)
        await builder.build(_NO_SEGMENT)  # starts the process
        stalls: list[float] = []
        ticker = asyncio.create_task(tick(stalls, 0.005))
        own, its = time.process_time(), cpu_seconds(family(builder.pid))
        staging.drain()
        await staging.run()
        own, its = time.process_time() - own, cpu_seconds(family(builder.pid)) - its
        ticker.cancel()
        await staging.close()
        return Staged(
            (own + its) / count * 1e6,
            own / count * 1e6,
            staging.amount.size_bytes / count,
            percentile(stalls, 0.99) * 1e3,
            max(stalls) * 1e3,
        )

    return asyncio.run(main())


def stage(directory: Path, count: int, file_rows: int) -> None:
    """Have *count* rows staged in *directory*, in files of *file_rows*."""

    async def main() -> None:
        log = GrowingLog()
        log.grow(count)
        _, staging = _staging(log, directory, file_rows)
        await staging.recover(0)
        staging.drain()
        await staging.run()
        await staging.close()

    asyncio.run(main())


def _staging(
    log: Any, directory: Path, file_rows: int = _SEGMENT_ROWS
) -> tuple[ProcessBuilder, Staging]:
    limits = StagingLimits(file_rows, _SEGMENT_BYTES, 1.0, 1 << 40)
    builder = ProcessBuilder(Setup(str(directory), "gw", log.store_id))
    return builder, Staging(log, directory, limits, builder=builder)


def measure_table(
    engine: str, directory: Path, staged: Path, count: int, *, commit_rows: int
) -> Commits:
    """Carry *count* rows that are staged in the directory *staged* into a new table."""

    async def work(sink: SparkSink, log: GrowingLog, commits: Commits) -> None:
        await _until(lambda: sink.health().mark >= count, sink)

    target = directory / "sink" / "staging" / GrowingLog.store_id
    shutil.copytree(staged, target, copy_function=os.link)
    return asyncio.run(_with_sink(engine, directory, work, rows=count, commit_rows=commit_rows))


@dataclass(frozen=True, slots=True)
class Live:
    """A log that grew at a rate.

    Attributes:
        start_s: from the sink's start to its first commit.
        seconds: of the measurement. commits: during it.
        files: data files that a reader of the table sees, in the end; file_bytes: of all of them.
        stall_p99: of this process's loop, ms. memory_bytes: of the job.
    """

    start_s: float
    seconds: float
    commits: Commits
    files: int
    file_bytes: int
    stall_p99: float
    memory_bytes: int


def measure_live(engine: str, directory: Path, rate: int, seconds: float) -> Live:
    """Let the log grow by *rate* messages a second; 0: only one row, for the start alone."""
    found: list[float] = []

    async def work(sink: SparkSink, log: GrowingLog, commits: Commits) -> None:
        log.grow(1)
        start = time.perf_counter()
        await _until(lambda: sink.health().mark >= 1, sink)
        found.append(time.perf_counter() - start)
        if not rate:
            return
        warm = 3.0
        while len(commits.rows) <= _WARM_COMMITS:
            await log.grow_steadily(rate, warm)
            warm = 1.0
        commits.clear()
        stalls: list[float] = []
        ticker = asyncio.create_task(tick(stalls))
        await log.grow_steadily(rate, seconds)
        ticker.cancel()
        found.append(percentile(stalls, 0.99) * 1e3)
        found.append(resident_bytes(family(sink.job_pid)))

    commits = asyncio.run(_with_sink(engine, directory, work))
    files = live_files(directory / "table")
    stall, memory = found[1:] or (0.0, 0.0)
    return Live(
        found[0],
        seconds,
        commits,
        len(files),
        sum(path.stat().st_size for path in files),
        stall,
        int(memory),
    )


def live_files(table: Path) -> list[Path]:
    """The data files of a local Delta table as it is now; none when it is not there."""
    deltalake: Any = __import__("deltalake")
    if not deltalake.DeltaTable.is_deltatable(
        str(table)
    ):  # its directory comes before its first commit
        return []
    return [table / name for name in deltalake.DeltaTable(str(table)).file_uris()]


def files_a_day(live: Live, file_bytes: int, interval: float) -> float:
    """Extrapolate the files of a table that is compacted every *interval* seconds, after 24 hours.

    What was compacted is in files of *file_bytes*; the rest has come since then. 0: never compacted.
    """
    commits = len(live.commits.rows) / live.seconds
    if not interval:
        return commits * _PERIOD
    row_bytes = live.file_bytes / max(1, sum(live.commits.rows))
    rows = sum(live.commits.rows) / live.seconds * _PERIOD
    return rows * row_bytes / file_bytes + commits * interval


async def _with_sink(
    engine: str,
    directory: Path,
    work: Callable[[SparkSink, GrowingLog, Commits], Awaitable[None]],
    *,
    rows: int = 0,
    **options: Any,
) -> Commits:
    log = GrowingLog()
    if rows:
        log.grow(rows)
    async with running_sink(engine, directory, log, **options) as (sink, commits):
        await work(sink, log, commits)
        commits.job_cpu = cpu_seconds(family(sink.job_pid))
    return commits


@contextlib.asynccontextmanager
async def running_sink(
    engine: str, directory: Path, log: GrowingLog, **options: Any
) -> AsyncIterator[tuple[SparkSink, Commits]]:
    """A sink into *directory*/table for the length of a `with` block. Raises: ConfigError, OSError."""
    chosen = SparkSinkOptions(
        **{**ENGINES[engine], "table": str(directory / "table"), "drain_on_stop": False} | options
    )
    (directory / "sink").mkdir(exist_ok=True)
    sink = SparkSinkFactory().create(SinkContext("lake", "gw", directory / "sink"), chosen)
    assert isinstance(sink, SparkSink)
    commits = Commits()
    handle = sink._handle

    async def traced(report: Any) -> None:
        if isinstance(report, Mark) and report.rows:
            commits.times.append(time.perf_counter())
            commits.rows.append(report.rows)
            commits.seconds.append(report.seconds)
            commits.ages.append(log.age(report.mark - report.rows + 1))
        await handle(report)

    sink._handle = traced
    await sink.start(log)
    try:
        yield sink, commits
    finally:
        await sink.stop()


async def _until(condition: Callable[[], bool], sink: SparkSink) -> None:
    """Raises: RuntimeError with the sink's problem when it takes too long."""
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        problem = sink.health().problem or "nothing is said to be wrong"
        raise RuntimeError(f"not done after {_SECONDS_MAX:.0f} s: {problem}") from None


def steady_rate(commits: Commits) -> float:
    """Rows a second without the first commit, which is cold. Raises: RuntimeError when it is the only one."""
    if len(commits.rows) < 2:
        raise RuntimeError("one commit only: more --messages are needed")
    return sum(commits.rows[1:]) / (commits.times[-1] - commits.times[0])


def summary(values: Sequence[float]) -> str:
    """p50, p95 and worst."""
    p50, p95 = percentile(values, 0.5), percentile(values, 0.95)
    return f"p50 {p50:.2f} p95 {p95:.2f} worst {max(values):.2f} s"
