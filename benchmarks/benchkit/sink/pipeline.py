"""The sink in this process, over a log in memory: staging, the table's rate, its lag, its files."""

import asyncio
import contextlib
import json
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
    "iceberg": {"format": "iceberg", "commit_interval": 5.0, "lag_goal": 2.5},
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
#: Of a file that is written before staging is measured.
_WARM_ROWS: Final = 5_000
#: The number of no segment that is measured.
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
    """Stage *count* rows as fast as it goes, in a process that is warm."""

    async def main() -> Staged:
        log = WholeLog(count - count % RUN_ROWS)
        builder, staging = _staging(log, directory)
        await _warm(builder, log)
        await staging.recover(0)
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


async def _warm(builder: ProcessBuilder, log: WholeLog) -> None:
    """Start the process, and have it write a file: its first one takes a quarter of a second more."""
    runs = (await log.read_encoded(0, _WARM_ROWS, 0)).runs
    added = await builder.add(_NO_SEGMENT, runs)
    await builder.build(_NO_SEGMENT)
    file = await builder.seal(_NO_SEGMENT, 1, added.taken, added.taken, [])
    file.path.unlink()


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
        stall_p99: of this process's loop, ms. memory_bytes: of the job.
    """

    start_s: float
    seconds: float
    commits: Commits
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
    stall, memory = found[1:] or (0.0, 0.0)
    return Live(found[0], seconds, commits, stall, int(memory))


@dataclass(frozen=True, slots=True)
class Kept:
    """What commits at a rate, and a turn of upkeep behind them, did to the files of a table.

    Attributes:
        rate: messages a second. seconds: of the measurement. rows: in the table, in the end.
        made: files that came in these seconds. small, small_bytes: the table's files before the turn;
        left, left_bytes: behind it; took: seconds of the turn.
    """

    rate: int
    seconds: float
    rows: int
    made: int
    small: int
    small_bytes: int
    left: int
    left_bytes: int
    took: float

    def a_day(self, least_bytes: int, interval: float) -> float:
        """Files after a day, a moment before the next turn, of which there is one each *interval* seconds.

        What was compacted is in files of *least_bytes*, those of which upkeep leaves alone, or more.
        """
        large = self.rate * _PERIOD * self.left_bytes / self.rows / least_bytes
        return large + self.left + self.made / self.seconds * interval

    @property
    def a_day_without(self) -> float:
        """Files after a day without upkeep."""
        return self.made / self.seconds * _PERIOD


def measure_files(engine: str, directory: Path, rate: int, seconds: float, **options: Any) -> Kept:
    """Let the log grow by *rate* messages a second, then have the table compacted."""
    table = directory / "table"
    kept: list[Kept] = []

    async def work(sink: SparkSink, log: GrowingLog, commits: Commits) -> None:
        log.grow(1)
        while len(commits.rows) <= _WARM_COMMITS:
            await log.grow_steadily(rate, 1.0)
        before = live_files(table)[0]
        await log.grow_steadily(rate, seconds)
        made = live_files(table)[0] - before
        await _until(lambda: sink.health().mark >= log.last, sink)
        small = live_files(table)
        turn = sink.compact()
        await _until(lambda: _turns(sink) >= turn, sink)
        upkeep = sink.health().upkeep
        assert upkeep is not None, "a turn has ended"
        if upkeep.problem:
            raise RuntimeError(upkeep.problem)
        kept.append(Kept(rate, seconds, log.last, made, *small, *live_files(table), upkeep.seconds))

    asyncio.run(_with_sink(engine, directory, work, **options))
    return kept[0]


def _turns(sink: SparkSink) -> int:
    upkeep = sink.health().upkeep
    return upkeep.number if upkeep is not None else 0


def live_files(table: Path) -> tuple[int, int]:
    """How many data files a reader of a local Delta or Iceberg table sees now, and their bytes."""
    hint = table / "metadata" / "version-hint.text"
    if hint.exists():
        version = hint.read_text().strip()
        metadata = json.loads((hint.parent / f"v{version}.metadata.json").read_text())
        snapshots = {each["snapshot-id"]: each["summary"] for each in metadata["snapshots"]}
        summary = snapshots.get(metadata.get("current-snapshot-id"), {})
        return int(summary.get("total-data-files", 0)), int(summary.get("total-files-size", 0))
    deltalake: Any = __import__("deltalake")
    if not deltalake.DeltaTable.is_deltatable(
        str(table)
    ):  # its directory comes before its first commit
        return 0, 0
    sizes = [Path(name).stat().st_size for name in deltalake.DeltaTable(str(table)).file_uris()]
    return len(sizes), sum(sizes)


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
