"""What the sink costs, and how far its table is behind: the figures of issue 15.

Each part can be run alone (`--only`). Parts that compare run in turn, round by round; those without a
gateway run the sink in this process over a log in memory, so that a rate is what was asked for.
"""

import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchkit.instead.slow import Report
from benchkit.process import BrokerStartError
from benchkit.report import percentile
from benchkit.sink import figures, pipeline, replaying
from benchkit.sink.figures import Figure
from benchkit.sink.gateways import LOG_ALONE, WITHOUT, SinkGateway, busy, gateways, pinned, stopped
from benchkit.sink.pipeline import summary
from tidegate_sink_spark.upkeep.worker import SMALL_BYTES

#: Messages a second at which the lag is measured.
RATES: Final = (20_000, 5_000)
#: Messages a second at which the files of a day are extrapolated.
_DAY_RATE: Final = 5_000
#: How much longer than a load a lag is measured.
_LAG_LOADS: Final = 3
_STAGING_ROWS_MAX: Final = 200_000
_TABLE_COMMITS: Final = 4
_REPLAY_ROWS_MAX: Final = 200_000
#: Processors may share a core: what a program that has nothing to do with the gateway takes by being on the other one.
_BESIDE: Final = "no sink, a loop on the other core"
#: Gateways of one program differ by up to a tenth, each as long as it runs: rounds are shared among so many of each.
_SETS: Final = 3
_QUEUE: Final = "/queue/bench.sink"
_REST_SECONDS: Final = 5.0
#: Loads after which staging waits for a table that takes nothing, at most.
_FILLS_MAX: Final = 10
#: How much longer than a load files are made, until they are compacted.
_FILES_LOADS: Final = 12
_COMPACT_INTERVAL: Final = 300.0


@dataclass(frozen=True, slots=True)
class SinkBench:
    """Everything that a part needs.

    Attributes: work: a directory of its own. messages: most rows of a part. seconds: of each load. hold: of an
        idle gateway.
    """

    work: Path
    command: Path
    engines: Sequence[str]
    messages: int
    seconds: float
    rounds: int
    hold: float

    def fresh(self, name: str) -> Path:
        """An empty directory."""
        directory = self.work / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        return directory


def staging(bench: SinkBench) -> Iterator[Figure]:
    """Rows a second of one core: from the log to a synced Parquet file."""
    count = min(bench.messages, _STAGING_ROWS_MAX)
    runs = [pipeline.measure_staging(bench.fresh("staging"), count) for _ in range(bench.rounds)]
    best = min(runs, key=lambda run: run.cpu_us)
    detail = (
        f"{best.cpu_us:.2f} us CPU (of the gateway's side {best.feeding_us:.2f}) and {best.row_bytes:.0f} bytes "
        f"a row, the best of {bench.rounds}; "
        f"loop stall p99 {best.stall_p99:.1f} worst {best.stall_worst:.1f} ms at full speed"
    )
    yield Figure(
        "staging", "one core", 1e6 / best.cpu_us, "rows/s", figures.STAGING_ROWS_MIN, detail=detail
    )


def delta(bench: SinkBench) -> Iterator[Figure]:
    """Rows a second that staged files come into a new table, behind its first commit."""
    files, commit_rows = 10, max(1, bench.messages // _TABLE_COMMITS)
    staged = bench.fresh("staged")
    pipeline.stage(staged, commit_rows * _TABLE_COMMITS, max(1, commit_rows // files))
    for engine in bench.engines:
        count = commit_rows * _TABLE_COMMITS
        commits = pipeline.measure_table(
            engine, bench.fresh("delta"), staged, count, commit_rows=commit_rows
        )
        took = commits.seconds
        yield Figure(
            "delta",
            engine,
            pipeline.steady_rate(commits),
            "rows/s",
            figures.TABLE_ROWS_MIN,
            detail=f"{count:,} rows in {len(took)} commits, the first {took[0]:.1f} s, then "
            f"{summary(took[1:])}; {commits.job_cpu / count * 1e6:.1f} us CPU a row with the job's start",
        )


def start(bench: SinkBench) -> Iterator[Figure]:
    """Seconds from the start of the sink to the commit of the first row, table made."""
    for engine in bench.engines:
        live = pipeline.measure_live(engine, bench.fresh("start"), 0, 0.0)
        detail = f"{live.commits.job_cpu:.1f} s of CPU"
        yield Figure(
            "start", engine, live.start_s, "s", most=figures.START_SECONDS_MAX, detail=detail
        )


def lag(bench: SinkBench) -> Iterator[Figure]:
    """How old the oldest row of a commit is when its mark is reported, p95."""
    for rate in RATES:
        for engine in bench.engines:
            live = _live(bench, engine, rate)
            commits = live.commits
            yield Figure(
                "lag",
                f"{engine}, {rate:,} msg/s",
                percentile(commits.ages, 0.95),
                "s p95",
                most=figures.LAG_SECONDS_MAX[engine],
                detail=f"oldest row {summary(commits.ages)}; {len(commits.rows)} commits {summary(commits.seconds)}"
                f"; job {live.memory_bytes >> 20} MiB and "
                f"{commits.job_cpu:.1f} s CPU in all; loop stall p99 {live.stall_p99:.1f} ms",
            )


def files(bench: SinkBench) -> Iterator[Figure]:
    """Data files that a day leaves, from a bounded run and its upkeep: with `commit_interval`, and with `lag_goal`."""
    for engine in bench.engines:
        chosen = pipeline.ENGINES[engine]
        interval, goal = chosen["commit_interval"], chosen["lag_goal"]
        for name, options in (
            (f"each {interval:g} s", {"lag_goal": 0.0}),
            (f"lag_goal {goal:g} s", dict[str, float]()),
        ):
            seconds = bench.seconds * _FILES_LOADS
            kept = pipeline.measure_files(
                engine, bench.fresh("files"), _DAY_RATE, seconds, **options
            )
            detail = (
                f"compacted every {_COMPACT_INTERVAL / 60:g} min; {kept.a_day_without:,.0f} without; {kept.made} came "
                f"in {seconds:g} s; {kept.small} of {kept.small_bytes / kept.rows:.0f} bytes a row became {kept.left} of "
                f"{kept.left_bytes / kept.rows:.0f} in {kept.took:.1f} s"
            )
            yield Figure(
                "files",
                f"{engine}, {name}",
                kept.a_day(SMALL_BYTES, _COMPACT_INTERVAL),
                "a day",
                most=figures.FILES_MAX,
                detail=detail,
            )


def _live(bench: SinkBench, engine: str, rate: int) -> pipeline.Live:
    live = pipeline.measure_live(engine, bench.fresh("live"), rate, bench.seconds * _LAG_LOADS)
    if not live.commits.ages:
        raise RuntimeError(f"{engine}: no commit in {live.seconds:g} s")
    return live


# --------------------------------------------------------------------------------- with gateways


@dataclass(frozen=True, slots=True)
class _Load:
    """One load on one gateway. Attributes: rate: messages/s; cpu_us: of the gateway, each; stalls: seconds."""

    rate: float
    cpu_us: float
    stalls: Sequence[float] = ()


def _load(bench: SinkBench, gateway: SinkGateway, *, ticking: bool = False) -> _Load:
    if ticking:
        gateway.stalls()
    report: Report = gateway.bench(bench.seconds).load(
        gateway.addresses["stomp"],
        f"-destination={_QUEUE}",
        "-send-header=persistent:true",
        "-ack=client-individual",
    )
    stalls = gateway.stalls() if ticking else []
    return _Load(float(report["messages_per_s"]), float(report["broker_cpu_us"]), stalls)


def _warm(bench: SinkBench, running: Sequence[SinkGateway]) -> None:
    """One load on each; a sink has its job and its table then."""
    for gateway in running:
        _load(bench, gateway)
        if gateway.name not in (WITHOUT, LOG_ALONE):
            gateway.wait_first_commit()
            gateway.wait_quiet()


def messaging(bench: SinkBench) -> Iterator[Figure]:
    """Messages a second with the sink, of those without one; and the stalls of the loop."""
    names = [WITHOUT, *bench.engines]
    rounds: dict[bool, list[dict[str, _Load]]] = {False: [], True: []}
    for first in range(min(_SETS, bench.rounds)):
        with gateways(names, bench.work, bench.command, ticking=True) as running:
            _warm(bench, running)
            for own_core, found in rounds.items():
                for turn in range(first, bench.rounds, _SETS):
                    found.append(_round(bench, running, turn, own_core=own_core))
    for own_core, found in rounds.items():
        yield from _compared(bench, found, own_core=own_core)


def _round(
    bench: SinkBench, running: Sequence[SinkGateway], turn: int, *, own_core: bool
) -> dict[str, _Load]:
    found: dict[str, _Load] = {}
    order = list(running)
    for gateway in order[turn % len(order) :] + order[: turn % len(order)]:
        if own_core:
            with pinned(gateway, gateway_on=0, job_on=1):
                found[gateway.name] = _load(bench, gateway, ticking=True)
                if gateway.name == WITHOUT:
                    with busy(1):
                        found[_BESIDE] = _load(bench, gateway, ticking=True)
        else:
            found[gateway.name] = _load(bench, gateway, ticking=True)
        if gateway.name != WITHOUT:
            gateway.wait_quiet()  # else its work falls into the next one's time
    return found


def _compared(
    bench: SinkBench, rounds: Sequence[Mapping[str, _Load]], *, own_core: bool
) -> Iterator[Figure]:
    def stall(name: str) -> float:
        return 1e3 * statistics.median(percentile(each[name].stalls, 0.99) for each in rounds)

    where = "a core of its own" if own_core else "two cores in all"
    if own_core:
        share = statistics.median(each[_BESIDE].rate / each[WITHOUT].rate for each in rounds)
        detail = f"{statistics.median(each[_BESIDE].cpu_us for each in rounds):.1f} us CPU of the gateway a message"
        yield Figure("messaging", _BESIDE, share, "of without", detail=detail)
    for name in bench.engines:
        share = statistics.median(each[name].rate / each[WITHOUT].rate for each in rounds)
        one, two = (
            statistics.median(each[which].rate for each in rounds) for which in (WITHOUT, name)
        )
        cpu = [
            statistics.median(each[which].cpu_us for each in rounds) for which in (WITHOUT, name)
        ]
        least = figures.SHARE_OWN_CORE_MIN if own_core else figures.SHARE_MIN
        detail = f"{one:,.0f} -> {two:,.0f}/s; CPU of the gateway {cpu[0]:.1f} -> {cpu[1]:.1f} us a message"
        yield Figure("messaging", f"{name}, {where}", share, "of without", least, detail=detail)
        yield Figure(
            "messaging",
            f"{name}, {where}, stall",
            stall(name),
            "ms p99",
            most=figures.STALL_MS_MAX,
            detail=f"{stall(WITHOUT):.1f} without",
        )


def log(bench: SinkBench) -> Iterator[Figure]:
    """The share of the gateway's CPU that keeping the log takes, nothing of it being read."""
    with gateways([WITHOUT, LOG_ALONE], bench.work, bench.command) as running:
        _warm(bench, running)
        with stopped(running[1].jobs()):
            for _ in range(_FILLS_MAX):  # until staging has reached its limit
                _load(bench, running[1])
                if "staging_max" in running[1].broker.log.read_text():
                    break
            pairs: list[tuple[_Load, ...]] = []
            for turn in range(bench.rounds):
                order = running if turn % 2 == 0 else running[::-1]
                found = {gateway.name: _load(bench, gateway) for gateway in order}
                pairs.append((found[WITHOUT], found[LOG_ALONE]))
    share = statistics.median(1 - one.cpu_us / two.cpu_us for one, two in pairs)
    one, two = (statistics.median(pair[side].cpu_us for pair in pairs) for side in (0, 1))
    yield Figure(
        "log",
        "of the gateway's CPU",
        share,
        "",
        most=figures.LOG_SHARE_MAX,
        detail=f"{one:.1f} -> {two:.1f} us a message",
    )


def idle(bench: SinkBench) -> Iterator[Figure]:
    """CPU that gateways and jobs use with nothing to do, after their tables got rows."""
    names = [WITHOUT, *bench.engines]
    with gateways(names, bench.work, bench.command) as running:
        brief = replace(bench, seconds=min(bench.seconds, 1.0))
        _warm(brief, running)
        time.sleep(_REST_SECONDS)
        before = [(each.broker.cpu_seconds(), each.job_cpu()) for each in running]
        time.sleep(bench.hold)
        after = [(each.broker.cpu_seconds(), each.job_cpu()) for each in running]
    used = {
        gateway.name: [(b - a) / bench.hold * 60_000 for a, b in zip(one, two, strict=True)]
        for gateway, one, two in zip(running, before, after, strict=True)
    }
    for name in names:
        detail = f"in {bench.hold:g} s"
        yield Figure("idle", f"gateway, {name}", used[name][0], "ms CPU a minute", detail=detail)
        if name != WITHOUT:
            yield Figure("idle", f"job, {name}", used[name][1], "ms CPU a minute", detail=detail)


def replay(bench: SinkBench) -> Iterator[Figure]:
    """Messages a second that come back from a table into a queue, the best of the rounds."""
    count = min(bench.messages, _REPLAY_ROWS_MAX)
    table = replaying.make_table(bench.fresh("replay"), bench.fresh("staged"), count)
    with gateways([WITHOUT], bench.work, bench.command) as (gateway,):
        runs = [replaying.measure(gateway, table, turn) for turn in range(bench.rounds)]
    best = max(runs, key=lambda run: run.rate)
    detail = (
        f"{count:,} messages; CPU of the gateway {min(run.cpu_us for run in runs):.1f} us a message, of who "
        f"replays {min(run.own_us for run in runs):.1f}; the plan {best.planning_s:.2f} s before"
    )
    yield Figure("replay", "deltalake", best.rate, "msg/s", figures.REPLAYED_MIN, detail=detail)


PARTS: Final[dict[str, Callable[[SinkBench], Iterator[Figure]]]] = {
    each.__name__: each
    for each in (staging, delta, start, lag, files, messaging, log, idle, replay)
}
#: Those that start the engines; the others need no Java.
WITH_ENGINES: Final = frozenset(PARTS) - {"staging", "log", "replay"}


def measure(name: str, bench: SinkBench) -> Iterator[Figure]:
    """Take the figures of one part; what goes wrong is one of them."""
    try:
        yield from PARTS[name](bench)
    except (OSError, RuntimeError, BrokerStartError, subprocess.TimeoutExpired) as error:
        yield Figure(name, "", error=str(error))
