"""Measure Tidegate beside its peers: the same load, one broker at a time, in turn.

`make bench` runs this. Each round starts every broker once on an empty store, puts it under every
scenario, and stops it; rounds go A B C, A B C, so that a machine that slows down slows all of them.
How to read the figures, and what each broker promises: docs/benchmarks.md.
"""

import argparse
import dataclasses
import datetime
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, Never

from benchkit import machine, report, results
from benchkit.arguments import parse_arguments
from benchkit.brokers import BENCHMARKS, OURS, Address, Protocol, Target
from benchkit.choice import SetupError, chosen
from benchkit.generator import build_load_generator, good_report_of, report_of
from benchkit.instead.modes import EXIT_MISSED, mode_of, run_instead
from benchkit.process import BrokerProcess, BrokerStartError
from benchkit.results import Heading
from benchkit.scenarios import GOALS, SCENARIOS, Scenario
from benchkit.targets import choose_targets, console, login_of, serving
from rich.console import Console
from rich.markup import escape

# Before the first load of each protocol on a broker that has just started, and before each further
# one. A JVM compiles what it runs often: cold, Artemis does less than half of what it does warm.
FIRST_WARM_MESSAGES: Final = 250_000
FIRST_WARM_SECONDS: Final = 10.0
WARM_MESSAGES: Final = 40_000
WARM_SECONDS: Final = 3.0
EXIT_USAGE: Final = 2


def choose_scenarios(only: str) -> list[Scenario]:
    """Return the scenarios to run.

    Raises: SetupError for a name that there is not.
    """
    if not only:
        return [scenario for scenario in SCENARIOS.values() if scenario.default]
    return [SCENARIOS[name] for name in chosen(only, "scenario", SCENARIOS)]


def arguments_of(
    target: Target, scenario: Scenario, address: Address, messages: int, seconds: float
) -> tuple[list[str], float]:
    """Returns: the load generator's options for one load, and its limit in seconds."""
    options = [f"-addr={address}", f"-messages={messages}", f"-duration={seconds:.3f}s"]
    return [*options, *scenario.arguments(target.spec), *login_of(target)], seconds + 60


def measure(
    target: Target,
    scenario: Scenario,
    address: Address,
    broker: BrokerProcess | None,
    options: argparse.Namespace,
    turn: int,
    *,
    first: bool,
) -> report.Run:
    """Warm the broker up with the scenario's own load, then measure it.

    Args: first: whether the broker has seen nothing of this protocol since it started.
    """
    name = target.spec.name
    try:
        messages, seconds = WARM_MESSAGES, WARM_SECONDS
        if first and not options.quick:
            messages, seconds = FIRST_WARM_MESSAGES, FIRST_WARM_SECONDS
        good_report_of(*arguments_of(target, scenario, address, messages, seconds))
        one_at_a_time = scenario.window == 1
        floors = [machine.measure_floor(options.work)] if one_at_a_time else []
        bursts = [machine.measure_raw_write(options.work)] if scenario.is_large else []
        before = broker.cpu_seconds() if broker else 0.0
        found = report_of(
            *arguments_of(target, scenario, address, options.messages, options.duration)
        )
        used = broker.cpu_seconds() - before if broker else None
        if one_at_a_time:
            floors.append(machine.measure_floor(options.work))
        run = report.run_from_report(scenario.name, name, turn, found, used)
        raw_write = None
        if scenario.is_large:
            # As much as the run wrote: a short burst shows what the disk's caches take, no more.
            written = round(run.bytes_rate * run.seconds) >> 20
            raw_write = machine.measure_raw_write(options.work, max(written, machine.BURST_MIB))
            bursts.append(machine.measure_raw_write(options.work))
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return report.Run(scenario.name, name, turn, error=str(error))
    # Of the two, the quicker one: the stricter measure, and the less disturbed.
    floor = min(floors, key=lambda each: each.p50_us, default=None)
    burst = max(bursts, default=None)
    return dataclasses.replace(run, floor=floor, raw_write=raw_write, raw_burst=burst)


def say(run: report.Run) -> None:
    """Print one line on one run."""
    line = f"round {run.round}  {run.broker:<10} {run.scenario:<20}"
    if run.error:
        console.print(f"{line} [red]failed: {escape(run.error)}[/red]")
        return
    cpu = "" if run.broker_cpu_s is None else f", CPU broker {run.broker_cpu_s:.1f} s"
    console.print(
        f"{line} {run.rate:>9,.0f}/s  confirm p50 {run.confirm_p50:,.0f} p99 {run.confirm_p99:,.0f} us"
        f"[dim]{cpu}, generator {run.generator_cpu_s:.1f} s[/dim]"
        + (f" [red]{run.faults}[/red]" if run.faults else "")
    )


def run_rounds(
    targets: Sequence[Target],
    scenarios: Sequence[Scenario],
    options: argparse.Namespace,
    results: report.Results,
) -> None:
    """Run everything; `results` fills as it goes, so that an interrupt keeps what there is."""
    for turn in range(1, options.rounds + 1):
        for target in targets:
            loads = [
                each
                for each in scenarios
                if target.speaks(each.protocol) and each.suits(target.spec)
            ]
            if not loads:
                continue
            name = target.spec.name
            try:
                with serving(target, options) as (addresses, broker):
                    warm: set[Protocol] = set()
                    for scenario in loads:
                        address = addresses[scenario.protocol]
                        first = scenario.protocol not in warm
                        run = measure(target, scenario, address, broker, options, turn, first=first)
                        warm.add(scenario.protocol)
                        results.runs.append(run)
                        say(run)
            except BrokerStartError as error:
                for scenario in loads:
                    if not any(r.round == turn for r in results.all(scenario.name, name)):
                        run = report.Run(scenario.name, name, turn, error=str(error))
                        results.runs.append(run)
                console.print(
                    f"round {turn}  {name} [red]did not start: {escape(str(error))}[/red]"
                )


def conclude(results: report.Results, scenarios: Sequence[Scenario]) -> bool:
    """Print the tables and the goals; return whether every goal that was measured is reached."""
    console.print()
    for scenario in scenarios:
        if results.brokers(scenario.name):
            console.print(report.table(results, scenario))
    if bound := report.generator_bound(results.runs):
        names = sorted({f"{run.broker} {run.scenario}" for run in bound})
        console.print(
            "[yellow]The generator used more CPU than the broker in: "
            + ", ".join(names)
            + "[/yellow]"
        )
    verdicts = report.judge(results, GOALS)
    for verdict in verdicts:
        mark = "[green]reached[/green]" if verdict.reached else "[red]missed[/red]"
        console.print(f"goal {mark}  {verdict.text}")
    return all(verdict.reached for verdict in verdicts)


def _terminated(number: int, frame: object) -> Never:
    raise KeyboardInterrupt


def refused(error: SetupError) -> int:
    """Say why the run cannot begin. Returns: the exit code."""
    Console(stderr=True).print(f"bench: {error}", style="red", highlight=False, soft_wrap=True)
    return EXIT_USAGE


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and return the exit code."""
    options = parse_arguments(arguments)
    if options.list:
        for scenario in SCENARIOS.values():
            only = "" if scenario.default else "   (only when named)"
            console.print(f"{scenario.name:<20} {scenario.title}{only}")
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _terminated)
    measured = report.Results()
    mode = mode_of(options)
    try:
        options.work = options.work.resolve()
        options.work.mkdir(parents=True, exist_ok=True)
        scenarios = [] if mode else choose_scenarios(options.only)
        if mode is None or mode.generates:
            build_load_generator()
        if mode and not mode.peers:
            options.peers = "none"
        targets = choose_targets(options)
    except SetupError as error:
        return refused(error)
    about = machine.facts(options.work)
    versions = {target.spec.name: target.version for target in targets}
    console.print(f"{about['cpu']}, {about['processors']} processors, kernel {about['kernel']}")
    console.print("  ".join(f"{name} {version}" for name, version in versions.items()))
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    path = options.json or BENCHMARKS / "results" / f"{stamp}.json"
    heading = Heading([sys.argv[0], *arguments], about, versions)
    if mode:
        try:
            return run_instead(mode, targets, options, heading, path)
        except SetupError as error:
            return refused(error)
    interrupted = False
    try:
        run_rounds(targets, scenarios, options, measured)
    except KeyboardInterrupt:
        interrupted = True
        console.print("[yellow]interrupted; this is what there is[/yellow]")
    reached = conclude(measured, scenarios)
    results.write(path, heading, runs=[dataclasses.asdict(run) for run in measured.runs])
    console.print(f"results: {path}")
    if interrupted:
        return 130
    failed = any(run.error and run.broker in OURS for run in measured.runs)
    return EXIT_MISSED if failed or (options.check_goals and not reached) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
