"""Figures out of runs: medians, ratios, tables, goals and the JSON file."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from benchkit.brokers import BROKERS, TIDEGATE, WITH_ACL
from benchkit.scenarios import AclGoal, Goal, RateGoal, Scenario, WriteGoal

_FAULTS: Final = (
    ("lost", "lost"),
    ("duplicates", "duplicate"),
    ("out_of_order", "out of order"),
    ("corrupt", "corrupt"),
    ("misrouted", "misrouted"),
    ("unexpected_confirms", "confirmed unasked"),
)


# A confirmation that waits for a sync cannot take less time than the floor; a little less is noise of
# the measurement. Below this the machine was busier while the floor was measured: nothing is proved.
FLOOR_RATIO_MIN: Final = 0.8


@dataclass(frozen=True, slots=True)
class Floor:
    """The least that a confirmation can take, in microseconds: medians, and the syncs' 99 %.

    Attributes: sync: one 4 KiB pwrite + fdatasync; echo: one round trip to an echo server on uvloop.
    """

    sync_p50_us: float
    sync_p99_us: float
    echo_p50_us: float

    @property
    def p50_us(self) -> float:
        """Both, one behind the other."""
        return self.sync_p50_us + self.echo_p50_us


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the value that `fraction` (0 to 1) of the values do not exceed (nearest rank).

    Raises: ValueError when there are no values.
    """
    if not values:
        raise ValueError("a percentile of no values")
    ordered = sorted(values)
    return ordered[min(int(fraction * len(ordered)), len(ordered) - 1)]


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run of one scenario on one broker. Times in microseconds."""

    scenario: str
    broker: str
    round: int
    rate: float = 0.0  # messages/s
    bytes_rate: float = 0.0  # body bytes/s
    seconds: float = 0.0  # that the rates are of
    deliveries_rate: float = 0.0  # messages/s that all consumers together received
    confirm_p50: float = 0.0
    confirm_p99: float = 0.0
    end_p50: float = 0.0
    end_p99: float = 0.0
    broker_cpu_100k: float | None = None  # CPU seconds per 100,000 messages; None: not ours
    generator_cpu_s: float = 0.0
    broker_cpu_s: float | None = None
    settle_s: float = 0.0
    floor: Floor | None = None  # beside a run of one message at a time
    raw_write: float | None = None  # behind a run of large messages: MiB/s of dd oflag=dsync bs=1M
    raw_burst: float | None = None  # the same of 64 MiB only
    faults: str = ""  # what arrived wrongly
    error: str = ""  # why there are no figures


def run_from_report(
    scenario: str, broker: str, round_: int, report: Mapping[str, Any], cpu_s: float | None
) -> Run:
    """Make a run of the load generator's JSON report.

    Args: cpu_s: what the broker's processes used in the run; None when they are not ours.
    """
    sent = report["total_sent"]
    faults = [f"{report[key]} {words}" for key, words in _FAULTS if report[key]]
    return Run(
        scenario,
        broker,
        round_,
        rate=report["messages_per_s"],
        bytes_rate=report["bytes_per_s"],
        seconds=report["seconds"],
        deliveries_rate=report["deliveries_per_s"],
        confirm_p50=report["confirm_us"]["p50"],
        confirm_p99=report["confirm_us"]["p99"],
        end_p50=report["end_to_end_us"]["p50"],
        end_p99=report["end_to_end_us"]["p99"],
        broker_cpu_100k=cpu_s / sent * 1e5 if cpu_s is not None and sent else None,
        generator_cpu_s=report["generator_cpu_s"],
        broker_cpu_s=cpu_s,
        settle_s=report["settle_seconds"],
        faults=", ".join(faults),
        error=report.get("error", ""),
    )


class Results:
    """All runs of one benchmark."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def good(self, scenario: str, broker: str) -> list[Run]:
        """Return the runs with figures."""
        return [r for r in self.all(scenario, broker) if not r.error]

    def all(self, scenario: str, broker: str) -> list[Run]:
        """Return the runs, failed ones too."""
        return [r for r in self.runs if r.scenario == scenario and r.broker == broker]

    def brokers(self, scenario: str) -> list[str]:
        """Return the brokers that were put under the load, Tidegate first."""
        seen = {r.broker for r in self.runs if r.scenario == scenario}
        return [name for name in BROKERS if name in seen]

    def ratio(self, scenario: str, peer: str) -> float | None:
        """Return Tidegate's rate over the peer's: the median of the rounds that have both."""
        ours = {r.round: r.rate for r in self.good(scenario, TIDEGATE)}
        ratios = [
            ours[r.round] / r.rate for r in self.good(scenario, peer) if r.round in ours and r.rate
        ]
        return statistics.median(ratios) if ratios else None

    def floor_ratio(self, scenario: str, broker: str) -> float | None:
        """Return the median confirm over the floor beside it: the median of the rounds."""
        ratios = [
            r.confirm_p50 / r.floor.p50_us
            for r in self.good(scenario, broker)
            if r.floor is not None
        ]
        return statistics.median(ratios) if ratios else None

    def write_ratio(self, scenario: str, broker: str) -> float | None:
        """Return the body bytes a second over those of dd beside it: the median of the rounds."""
        ratios = [
            r.bytes_rate / (1 << 20) / r.raw_write
            for r in self.good(scenario, broker)
            if r.raw_write is not None
        ]
        return statistics.median(ratios) if ratios else None


def _median(runs: Iterable[Run], figure: Callable[[Run], float | None], form: str) -> str:
    values = [value for run in runs if (value := figure(run)) is not None]
    return format(statistics.median(values), form) if values else "-"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def table(results: Results, scenario: Scenario) -> Table:
    """Return the scenario's table, one row a broker."""
    drawn = Table(title=f"{scenario.name}: {scenario.title}, {scenario.size_bytes} B", expand=False)
    drawn.add_column("broker")
    fans_out = scenario.copies > 1
    if fans_out:
        drawn.add_column("deliveries/s", justify="right")
    for heading in ("messages/s", "min..max", "confirm p50 us", "p99 us", "end to end p50 us"):
        drawn.add_column(heading, justify="right")
    drawn.add_column("CPU s / 100k", justify="right")
    drawn.add_column("Tidegate / this", justify="right")
    one_at_a_time = scenario.window == 1
    if one_at_a_time:
        drawn.add_column("confirm / floor", justify="right")
    if scenario.is_large:
        drawn.add_column("MiB/s", justify="right")
        drawn.add_column("this / dd", justify="right")
    drawn.add_column("when confirmed")
    for name in results.brokers(scenario.name):
        runs = results.good(scenario.name, name)
        failed = [run for run in results.all(scenario.name, name) if run.error]
        if not runs:
            filler = ["-"] * (7 + one_at_a_time + fans_out + 2 * scenario.is_large)
            drawn.add_row(name, *filler, f"[red]failed: {escape(failed[-1].error)}[/red]")
            continue
        rates = [run.rate for run in runs]
        faults = next((run.faults for run in runs if run.faults), "")
        notes = [scenario.durability(BROKERS[name])]
        notes += [f"[red]{faults}[/red]"] * bool(faults)
        notes += [f"[red]{len(failed)} of {len(failed) + len(runs)} runs failed[/red]"] * bool(
            failed
        )
        drawn.add_row(
            name,
            *([_median(runs, lambda run: run.deliveries_rate, ",.0f")] if fans_out else []),
            f"{statistics.median(rates):,.0f}",
            f"{min(rates):,.0f}..{max(rates):,.0f}",
            _median(runs, lambda run: run.confirm_p50 or None, ",.0f"),
            _median(runs, lambda run: run.confirm_p99 or None, ",.0f"),
            _median(runs, lambda run: run.end_p50, ",.0f"),
            _median(runs, lambda run: run.broker_cpu_100k, ".2f"),
            _times(results.ratio(scenario.name, name)),
            *([_times(results.floor_ratio(scenario.name, name))] if one_at_a_time else []),
            *(_large(results, scenario, name) if scenario.is_large else []),
            "; ".join(notes),
        )
    writes = [r.raw_write for r in results.runs if r.scenario == scenario.name and r.raw_write]
    bursts = [r.raw_burst for r in results.runs if r.scenario == scenario.name and r.raw_burst]
    for rates, what in ((writes, "as much"), (bursts, "64 MiB")):
        if rates:
            rate = statistics.median(rates)
            drawn.add_row(
                f"[dim]dd, {what}[/dim]", f"{rate:,.0f}", f"{min(rates):,.0f}..{max(rates):,.0f}",
                *[""] * (5 + one_at_a_time + fans_out), f"{rate:,.0f}",
                _times(rate / statistics.median(writes)) if writes else "",
                "[dim]dd oflag=dsync bs=1M[/dim]",
            )  # fmt: skip
    floors = [r.floor for r in results.runs if r.scenario == scenario.name and r.floor]
    if floors:
        sync = statistics.median(floor.sync_p50_us for floor in floors)
        p99 = statistics.median(floor.sync_p99_us for floor in floors)
        echo = statistics.median(floor.echo_p50_us for floor in floors)
        drawn.add_row(
            "[dim]floor[/dim]", f"{1e6 / (sync + echo):,.0f}", "", f"{sync + echo:,.0f}",
            f"{p99 + echo:,.0f}", "", "", "", "1.00x",
            f"[dim]one 4 KiB pwrite + fdatasync, {sync:,.0f} us, and an echo on uvloop, "
            f"{echo:,.0f} us[/dim]",
        )  # fmt: skip
    return drawn


def _large(results: Results, scenario: Scenario, broker: str) -> list[str]:
    """The cells of a load of large messages."""
    runs = results.good(scenario.name, broker)
    return [
        _median(runs, lambda run: run.bytes_rate / (1 << 20), ",.0f"),
        _times(results.write_ratio(scenario.name, broker)),
    ]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one goal stands."""

    text: str
    reached: bool


def judge(results: Results, goals: Iterable[Goal]) -> list[Verdict]:
    """Return a verdict for each goal that the runs can decide."""
    verdicts: list[Verdict] = []
    for goal in goals:
        if isinstance(goal, RateGoal):
            value = results.ratio(goal.scenario, goal.peer)
            text = f"{goal.scenario}: at least {goal.factor:g} times {goal.peer}"
            reached = value is not None and value >= goal.factor
        elif isinstance(goal, WriteGoal):
            value = results.write_ratio(goal.scenario, TIDEGATE)
            text = f"{goal.scenario}: at least {goal.factor:g} times dd oflag=dsync bs=1M"
            reached = value is not None and value >= goal.factor
        elif isinstance(goal, AclGoal):
            slower = results.ratio(goal.scenario, WITH_ACL)
            value = 1 / slower if slower else None
            text = f"{goal.scenario}: with access control at least {goal.factor:g} times without"
            reached = value is not None and value >= goal.factor
        else:
            value = results.floor_ratio(goal.scenario, TIDEGATE)
            text = f"{goal.scenario}: median confirm at most {goal.factor:g} times the floor"
            reached = value is not None and FLOOR_RATIO_MIN <= value <= goal.factor
            if value is not None and value < FLOOR_RATIO_MIN:
                text += " (the floor was disturbed, measure again)"
        if value is not None:
            verdicts.append(Verdict(f"{text}: {value:.2f} times", reached))
    return verdicts


def generator_bound(runs: Iterable[Run]) -> list[Run]:
    """Return the runs in which the generator used more CPU than the broker it loaded."""
    return [r for r in runs if r.broker_cpu_s is not None and r.generator_cpu_s > r.broker_cpu_s]
