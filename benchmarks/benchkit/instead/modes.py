"""What the benchmark measures instead of the loads, one command-line option each."""

import argparse
import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar

from rich.markup import escape

from benchkit import brokers, results
from benchkit.brokers import OURS, Address, BrokerSpec, Target
from benchkit.choice import chosen
from benchkit.instead import backlog, hostile, idle, retained, sink, slow, watched
from benchkit.instead.attacks import ATTACKS, Ports
from benchkit.process import BrokerProcess, BrokerStartError, free_ports, running
from benchkit.results import Heading
from benchkit.sink import jobs
from benchkit.sink.figures import Figure
from benchkit.sink.pipeline import ENGINES
from benchkit.targets import clean, console, fresh_state, login_of, prepare, serving

EXIT_MISSED: Final = 1
#: Where Artemis begins to page with `--pending`: what its broker.xml proposes. Without, half of the JVM's heap.
_ARTEMIS_PAGES_FROM: Final = "100Mb"


def run_idle(targets: Sequence[Target], options: argparse.Namespace) -> list[idle.IdleRun]:
    """Hold idle connections of each protocol on each broker, one after the other, fresh each time."""

    def one(target: Target, broker: BrokerProcess, address: Address, load: Load) -> idle.IdleRun:
        return idle.measure(
            target.spec.name,
            broker,
            address,
            load.name,
            options.idle,
            login=load.login,
            hold_s=options.idle_hold,
        )

    return run_each(
        targets, options, [("stomp", "stomp"), ("mqtt", "mqtt"), ("mqtt5", "mqtt")], one
    )


def run_retained(
    targets: Sequence[Target], options: argparse.Namespace
) -> list[retained.RetainedRun]:
    """Publish retained messages on each broker, fresh each time, and subscribe to all of them."""

    def one(
        target: Target, broker: BrokerProcess, address: Address, load: Load
    ) -> retained.RetainedRun:
        return retained.measure(
            target.spec.name,
            broker,
            address,
            load.name,
            options.retained,
            login=load.login,
            subscribes=options.rounds,
        )

    able = [target for target in targets if target.spec.retained_wildcards]
    return run_each(able, options, [("mqtt", "mqtt"), ("mqtt5", "mqtt")], one)


def run_pending(targets: Sequence[Target], options: argparse.Namespace) -> list[backlog.BacklogRun]:
    """Measure a backlog on each broker, in one queue and over many; only Tidegate is killed."""
    runs: list[backlog.BacklogRun] = []
    for queues in sorted({1, options.pending_queues}):
        for target in targets:
            if not target.speaks("stomp") or not target.ours:
                continue
            command, addresses = prepare(target, options)
            is_ours = target.spec.name in OURS
            if not is_ours:  # they page as soon as they may, as Tidegate does
                command = ["env", f"ARTEMIS_GLOBAL_MAX_SIZE={_ARTEMIS_PAGES_FROM}", *command]
            run = backlog.measure(
                target.spec.name,
                command,
                options.work / f"{target.spec.name}.log",
                addresses["stomp"],
                options.pending,
                queues,
                live_seconds=options.duration,
                starts=options.pending_starts if is_ours else 0,
                fill_seconds_max=None if is_ours else options.pending_peer_seconds,
                more=[*login_of(target), *_queue_headers(target.spec)],
            )
            clean(target, options)  # gigabytes
            runs.append(run)
            console.print(escape(run.line()))
            for reached, text in run.goals() if is_ours else ():
                mark = "[green]reached[/green]" if reached else "[red]missed[/red]"
                console.print(f"goal {mark}  {text}")
    return runs


def _queue_headers(spec: BrokerSpec) -> list[str]:
    send = [f"-send-header={header}" for header in spec.queue_send]
    return send + [f"-subscribe-header={header}" for header in spec.queue_subscribe]


def run_slow(targets: Sequence[Target], options: argparse.Namespace) -> list[slow.SlowRun]:
    """Measure what slow consumers cost the others, on each broker that we start, fresh each time.

    Raises: SetupError for a measurement that there is not.
    """
    names = chosen(options.only, "measurement", slow.MEASUREMENTS)
    runs: list[slow.SlowRun] = []
    for name in names:
        for target in targets:
            if not target.speaks("stomp") or not target.speaks("mqtt"):
                continue
            try:
                with serving(target, options) as (addresses, broker):
                    if broker is None:
                        continue
                    bench = slow.Bench(
                        target.spec,
                        broker,
                        addresses["stomp"],
                        addresses["mqtt"],
                        (target.user, target.password),
                        options.duration,
                        options.rounds,
                    )
                    run = slow.measure(name, bench)
            except BrokerStartError as error:
                run = slow.SlowRun(target.spec.name, name, error=str(error))
            runs.append(run)
            console.print(escape(run.line()))
    return runs


def run_hostile(targets: Sequence[Target], options: argparse.Namespace) -> list[hostile.HostileRun]:
    """Measure a second client beside each attack, on a Tidegate that has just started.

    Raises: SetupError for an attack that there is not.
    """
    names = chosen(options.only, "attack", (hostile.NOBODY, *ATTACKS))
    runs: list[hostile.HostileRun] = []
    for name in names:
        state = fresh_state(options)
        ports = Ports(*free_ports(3))
        config = state / "bench.toml"
        config.write_text(hostile.config(state / "data", ports))
        command = [str(options.tidegate_command), "run", "--config", str(config)]
        addresses = [Address("127.0.0.1", port) for port in (ports.mqtt, ports.stomp, ports.ws)]
        try:
            with running(command, options.work / "tidegate.log", addresses) as broker:
                run = hostile.measure(name, broker, ports, options.duration)
        except BrokerStartError as error:
            run = hostile.HostileRun(name, error=str(error))
        runs.append(run)
        console.print(escape(run.line()))
    missed = [run.attack for run in runs if not run.reached]
    console.print(
        f"goal p99 < {hostile.P99_GOAL_MS:g} ms, worst < {hostile.WORST_GOAL_MS:g} ms: "
        + (f"[red]missed[/red] beside {', '.join(missed)}" if missed else "[green]reached[/green]")
    )
    return runs


def run_sink(targets: Sequence[Target], options: argparse.Namespace) -> list[Figure]:
    """Take the sink's figures; no broker but ours has one.

    Raises: SetupError for a part or an engine that there is not.
    """
    engines = chosen(options.engines, "engine", ENGINES)
    parts = chosen(options.only, "part", sink.PARTS)
    work = options.work / "sink"
    bench = sink.SinkBench(
        work,
        options.tidegate_command,
        engines,
        options.messages,
        options.duration,
        options.rounds,
        options.idle_hold,
    )
    if any(engine != "deltalake" for engine in engines) and sink.WITH_ENGINES.intersection(parts):
        jobs.make_archive(work)
    figures: list[Figure] = []
    for part in parts:
        for figure in sink.measure(part, bench):
            figures.append(figure)
            console.print(escape(figure.line()), soft_wrap=True)
    shutil.rmtree(work, ignore_errors=True)
    return figures


def run_watched(targets: Sequence[Target], options: argparse.Namespace) -> list[watched.WatchedRun]:
    """Measure what it costs the others that somebody watches a Tidegate; --rounds: pairs of windows.

    Raises: SetupError for a measurement that there is not.
    """
    names = chosen(options.only, "measurement", watched.MEASUREMENTS)
    state = fresh_state(options)
    ports = watched.Ports(*free_ports(3))
    config = state / "bench.toml"
    config.write_text(watched.config(state / "data", ports))
    command = [str(options.tidegate_command), "run", "--config", str(config)]
    runs: list[watched.WatchedRun] = []
    addresses = [Address("127.0.0.1", port) for port in ports]
    try:
        with running(command, options.work / "tidegate.log", addresses) as broker:
            watched.fill(ports.stomp, options.watched)
            token = (state / "admin.token").read_text().strip()
            with watched.watcher(ports.admin, token) as watcher:
                bench = watched.Bench(broker, ports, watcher, options.duration, options.rounds)
                for name in names:
                    run = watched.measure(name, bench)
                    runs.append(run)
                    console.print(escape(run.line()), soft_wrap=True)
    except (BrokerStartError, OSError) as error:
        runs.append(watched.WatchedRun("start", error=str(error)))
        console.print(escape(runs[-1].line()), soft_wrap=True)
    return runs


RunT = TypeVar("RunT", idle.IdleRun, retained.RetainedRun)


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """How the load generator calls a protocol, and what it logs in with."""

    name: str
    login: tuple[str, ...]


def run_each(
    targets: Sequence[Target],
    options: argparse.Namespace,
    loads: Sequence[tuple[str, brokers.Protocol]],
    one: Callable[[Target, BrokerProcess, Address, Load], RunT],
) -> list[RunT]:
    """Measure each load on each broker that we start, one after the other, fresh each time."""
    runs: list[RunT] = []
    for target in targets:
        login = login_of(target)
        for name, protocol in loads:
            if not target.speaks(protocol) or (name == "mqtt5" and not target.spec.mqtt5):
                continue
            try:
                with serving(target, options) as (addresses, broker):
                    if broker is None:
                        continue  # its processes are not ours to look at
                    run = one(target, broker, addresses[protocol], Load(name, login))
            except BrokerStartError as error:
                console.print(f"{target.spec.name} [red]did not start: {escape(str(error))}[/red]")
                continue
            runs.append(run)
            console.print(escape(run.line()))
    return runs


class _Run(Protocol):
    """One measurement, a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def broker(self) -> str: ...
    @property
    def error(self) -> str: ...
    @property
    def reached(self) -> bool:
        """Its goals are met; True when it has none."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Mode:
    """What is measured instead of the loads.

    Attributes: name: of the option that asks for it. peers: of other brokers, too. generates: with the load generator.
    """

    name: str
    run: Callable[[Sequence[Target], argparse.Namespace], Sequence[_Run]]
    peers: bool = True
    generates: bool = True


MODES: Final = (
    Mode("idle", run_idle),
    Mode("retained", run_retained),
    Mode("pending", run_pending),
    Mode("hostile", run_hostile, peers=False, generates=False),
    Mode("slow", run_slow),
    Mode("sink", run_sink, peers=False),
    Mode("watched", run_watched, peers=False),
)


def mode_of(options: argparse.Namespace) -> Mode | None:
    """What the command line asks for; None: the loads."""
    return next((mode for mode in MODES if getattr(options, mode.name)), None)


def run_instead(
    mode: Mode,
    targets: Sequence[Target],
    options: argparse.Namespace,
    heading: Heading,
    path: Path,
) -> int:
    """Measure, and write the result file. Returns: the exit code. Raises: SetupError."""
    runs = mode.run(targets, options)
    figures = [dataclasses.asdict(each) | {"reached": each.reached} for each in runs]
    results.write(path, heading, **{mode.name: figures})
    console.print(f"results: {path}")
    ours = [each for each in runs if each.broker in OURS]
    missed = options.check_goals and not all(each.reached for each in ours)
    return EXIT_MISSED if missed or any(each.error for each in ours) else 0
