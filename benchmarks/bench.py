"""Measure Tidegate beside its peers: the same load, one broker at a time, in turn.

`make bench` runs this. Each round starts every broker once on an empty store, puts it under every
scenario, and stops it; rounds go A B C, A B C, so that a machine that slows down slows all of them.
How to read the figures, and what each broker promises: docs/benchmarks.md.
"""

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Never, TypeVar

from benchkit import backlog, hostile, idle, machine, report, retained
from benchkit.attacks import Ports
from benchkit.brokers import (
    BENCHMARKS,
    BROKERS,
    JOURNAL_TYPES,
    OURS,
    PEERS,
    PEERS_SCRIPT,
    TIDEGATE,
    WITH_ACL,
    Address,
    PeerScriptError,
    Protocol,
    Target,
    peers_script,
    tidegate_config,
)
from benchkit.process import BrokerProcess, BrokerStartError, free_ports, running
from benchkit.scenarios import GOALS, SCENARIOS, Scenario
from rich.console import Console
from rich.markup import escape

ROOT: Final = BENCHMARKS.parent
LOADGEN: Final = BENCHMARKS / "bin" / "loadgen"
FETCHED: Final = frozenset({"artemis", "classic"})
# Before the first load of each protocol on a broker that has just started, and before each further
# one. A JVM compiles what it runs often: cold, Artemis does less than half of what it does warm.
FIRST_WARM_MESSAGES: Final = 250_000
FIRST_WARM_SECONDS: Final = 10.0
WARM_MESSAGES: Final = 40_000
WARM_SECONDS: Final = 3.0
EXIT_MISSED: Final = 1
EXIT_USAGE: Final = 2

console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)


class SetupError(Exception):
    """The benchmark cannot begin; the text says what to do."""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; on a mistake, exit with code 2."""
    parser = argparse.ArgumentParser(prog="bench.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--peers",
        default="auto",
        help="auto: what is installed, and what Maven can fetch where java and mvn are here; none; "
        f"or a list of {','.join(PEERS)}",
    )
    parser.add_argument(
        "--no-fetch", action="store_true", help="with --peers auto, download nothing"
    )
    parser.add_argument(
        "--journal-types",
        action="store_true",
        help="measure Tidegate also with journal_type ASYNCIO and MAPPED",
    )
    parser.add_argument(
        "--acl",
        action="store_true",
        help="measure Tidegate also with tidegate-acl, whose last rule of 100 is the one that fits",
    )
    parser.add_argument("--no-tidegate", action="store_true", help="measure the peers only")
    parser.add_argument("--only", default="", help="scenarios, with commas (--list names them)")
    parser.add_argument("--list", action="store_true", help="list the scenarios and exit")
    parser.add_argument(
        "--idle",
        type=int,
        metavar="N",
        help="instead of the scenarios: hold N idle connections with heart-beats, and say what each "
        "costs in memory and all of them in CPU",
    )
    parser.add_argument(
        "--idle-hold", type=float, default=30.0, metavar="SECONDS", help="how long --idle measures"
    )
    parser.add_argument(
        "--retained",
        type=int,
        metavar="N",
        help="instead of the scenarios: publish N retained messages, and time a new subscriber to all "
        "of them by a wildcard",
    )
    parser.add_argument(
        "--pending",
        type=int,
        metavar="N",
        help="instead of the scenarios: N pending messages in Tidegate, SIGKILL, a new start and the "
        "drain, in one queue and again over --pending-queues; goals for N = 5000000",
    )
    parser.add_argument(
        "--hostile",
        action="store_true",
        help="instead of the scenarios: each attack of benchkit/attacks.py on Tidegate (--only chooses), "
        "and how long a second client's QoS 1 round trip takes meanwhile",
    )
    parser.add_argument("--pending-queues", type=int, default=1000, metavar="QUEUES")
    parser.add_argument(
        "--pending-starts",
        type=int,
        default=5,
        metavar="N",
        help="how often the killed gateway is started: the quickest start counts (default: 5)",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--duration", type=float, default=5.0, help="seconds of sending in each run"
    )
    parser.add_argument(
        "--messages", type=int, default=2_000_000, help="most messages of a run, however fast"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one round of 2 seconds each, hardly warmed up"
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("/tmp/tidegate-bench"),
        help="where brokers keep their data and downloads; the disk that is measured",
    )
    parser.add_argument("--json", type=Path, help="result file instead of benchmarks/results/TIME")
    parser.add_argument(
        "--check-goals", action="store_true", help="exit with code 1 when a goal is missed"
    )
    parser.add_argument(
        "--tidegate-command", type=Path, default=ROOT / ".venv" / "bin" / "tidegate"
    )
    for name in (TIDEGATE, *PEERS):
        spec = BROKERS[name]
        group = parser.add_argument_group(f"a {name} that is already running")
        for protocol in sorted(spec.protocols):
            group.add_argument(f"--{name}-{protocol}", type=_address, metavar="HOST:PORT")
        group.add_argument(f"--{name}-login", default="", metavar="USER:PASSWORD")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.duration = 1, 2.0
    if options.rounds < 1 or not 0.1 <= options.duration <= 600 or options.messages < 100:
        parser.error("--rounds from 1, --duration 0.1 to 600, --messages from 100")
    if options.idle is not None and not (1 <= options.idle <= 1_000_000):
        parser.error("--idle from 1 to 1000000")
    if options.retained is not None and not (1 <= options.retained <= 10_000_000):
        parser.error("--retained from 1 to 10000000")
    if options.pending is not None and not (1000 <= options.pending <= 50_000_000):
        parser.error("--pending from 1000 to 50000000")
    if not 1 <= options.pending_queues <= min(2000, options.pending or 2000):
        parser.error("--pending-queues from 1 to 2000")
    if not 1 <= options.pending_starts <= 100:
        parser.error("--pending-starts from 1 to 100")
    instead = (options.idle, options.retained, options.pending, options.hostile or None)
    if sum(value is not None for value in instead) > 1:
        parser.error("one of --idle, --retained, --pending and --hostile at a time")
    if not 1 <= options.idle_hold <= 3600:
        parser.error("--idle-hold from 1 to 3600")
    return options


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def choose_scenarios(only: str) -> list[Scenario]:
    """Return the scenarios to run.

    Raises: SetupError for a name that there is not.
    """
    if not only:
        return [scenario for scenario in SCENARIOS.values() if scenario.default]
    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in SCENARIOS]:
        raise SetupError(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    return [SCENARIOS[name] for name in names]


def remote_target(name: str, options: argparse.Namespace) -> Target | None:
    """Return the target when an option says where the broker runs already."""
    spec = BROKERS[name]
    remote: dict[Protocol, Address] = {}
    for protocol in spec.protocols:
        if (address := getattr(options, f"{name}_{protocol}")) is not None:
            remote[protocol] = address
    if not remote:
        return None
    user, _, password = getattr(options, f"{name}_login").partition(":")
    return Target(spec, "as running", remote, user, password)


def choose_targets(options: argparse.Namespace) -> list[Target]:
    """Return the brokers to measure, Tidegate first; fetch the peers that may be fetched.

    Raises: SetupError when one that was asked for by name cannot run.
    """
    targets: list[Target] = []
    if not options.no_tidegate:
        target = remote_target(TIDEGATE, options)
        if target is None:
            if not options.tidegate_command.exists():
                raise SetupError(f"{options.tidegate_command} is missing: run `make setup` first")
            spec = BROKERS[TIDEGATE]
            target = Target(spec, machine.tidegate_version())
        targets.append(target)
        if options.journal_types and target.ours:
            targets += [Target(BROKERS[name], target.version) for name in JOURNAL_TYPES]
        if options.acl and target.ours:
            targets.append(Target(BROKERS[WITH_ACL], target.version))
    automatic = options.peers == "auto"
    asked = [] if options.peers in ("auto", "none") else options.peers.split(",")
    if unknown := [name for name in asked if name not in PEERS]:
        raise SetupError(f"no peer {', '.join(unknown)}; there are {', '.join(PEERS)}")
    for name in PEERS:
        if (target := remote_target(name, options)) is not None:
            targets.append(target)
        elif automatic or name in asked:
            try:
                version = make_ready(name, options.work, fetch=not (automatic and options.no_fetch))
            except PeerScriptError as error:
                if not automatic:
                    raise SetupError(f"{name}: {error}") from error
                console.print(f"[dim]{name} is left out: {escape(str(error))}[/dim]")
            else:
                spec = BROKERS[name]
                targets.append(Target(spec, version, {}, spec.user, spec.password))
    if not targets:
        raise SetupError("nothing to measure")
    return targets


def make_ready(name: str, work: Path, *, fetch: bool) -> str:
    """Have one peer ready to run, downloading it if need be, and return its version.

    Raises: PeerScriptError when it is missing and cannot be fetched.
    """
    try:
        peers_script("check", name, str(work))
    except PeerScriptError:
        if not fetch or name not in FETCHED:
            raise
        console.print(f"fetching {name} with Maven into {work} ...")
        peers_script("fetch", name, str(work))
    return peers_script("version", name, str(work))


def build_load_generator() -> None:
    """Compile the load generator; Go builds only what has changed.

    Raises: SetupError when Go is missing or the build fails.
    """
    if shutil.which("go") is None:
        raise SetupError(
            "the load generator needs Go 1.23 or newer, and `go` is not on PATH: "
            "install it (https://go.dev/dl, or apt-get install golang) and run again"
        )
    LOADGEN.parent.mkdir(exist_ok=True)
    made = LOADGEN.with_name(f"{LOADGEN.name}.{os.getpid()}")  # another may be running the old one
    done = subprocess.run(
        ["go", "build", "-o", str(made), "."],
        cwd=BENCHMARKS / "loadgen",
        env=os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SetupError(f"building the load generator failed:\n{done.stderr}")
    made.replace(LOADGEN)


@contextlib.contextmanager
def serving(
    target: Target, options: argparse.Namespace
) -> Iterator[tuple[dict[Protocol, Address], BrokerProcess | None]]:
    """Have a target running for the length of a `with` block; give its addresses.

    Raises: BrokerStartError.
    """
    if not target.ours:
        yield target.remote, None
        return
    name = target.spec.name
    stomp, mqtt, aux, aux2 = free_ports(4)
    ports: dict[Protocol, int] = {"stomp": stomp, "mqtt": mqtt}
    ports = {protocol: port for protocol, port in ports.items() if target.speaks(protocol)}
    work: Path = options.work
    if name in OURS:
        state = work / "tidegate-state"
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir()
        config = state / "bench.toml"
        rules: Path | None = None
        if target.spec.rules:
            rules = state / "rules.toml"
            rules.write_text(target.spec.rules)
        text = tidegate_config(state / "data", ports, target.spec.store_options, rules)
        config.write_text(text)
        command = [str(options.tidegate_command), "run", "--config", str(config)]
    else:
        command = [str(PEERS_SCRIPT), "run", name, str(work)]
        command += [str(port) for port in (stomp, mqtt, aux, aux2)]
    addresses: dict[Protocol, Address] = {
        protocol: Address("127.0.0.1", port) for protocol, port in ports.items()
    }
    with running(command, work / f"{name}.log", list(addresses.values())) as broker:
        yield addresses, broker


def generate(
    target: Target, scenario: Scenario, address: Address, messages: int, seconds: float
) -> dict[str, object]:
    """Run the load generator once and return its report.

    Raises: RuntimeError when it gave none.
    """
    limit = seconds + 60
    command = [
        str(LOADGEN),
        "-json",
        f"-addr={address}",
        f"-messages={messages}",
        f"-duration={seconds:.3f}s",
        f"-timeout={limit:.0f}s",
        *scenario.arguments(target.spec),
    ]
    if target.user:
        command += [f"-user={target.user}", f"-pass={target.password}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit + 30)
    if not done.stdout.startswith("{"):
        raise RuntimeError(done.stderr.strip() or f"no report, exit code {done.returncode}")
    return json.loads(done.stdout)


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
        warm = generate(target, scenario, address, messages, seconds)
        if error := warm.get("error"):
            return report.Run(scenario.name, name, turn, error=str(error))
        one_at_a_time = scenario.window == 1
        floors = [machine.measure_floor(options.work)] if one_at_a_time else []
        bursts = [machine.measure_raw_write(options.work)] if scenario.is_large else []
        before = broker.cpu_seconds() if broker else 0.0
        found = generate(target, scenario, address, options.messages, options.duration)
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


def run_idle(targets: Sequence[Target], options: argparse.Namespace) -> list[idle.IdleRun]:
    """Hold idle connections of each protocol on each broker, one after the other, fresh each time."""

    def one(target: Target, broker: BrokerProcess, address: Address, load: Load) -> idle.IdleRun:
        return idle.measure(
            target.spec.name,
            broker,
            LOADGEN,
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
            LOADGEN,
            address,
            load.name,
            options.retained,
            login=load.login,
            subscribes=options.rounds,
        )

    able = [target for target in targets if target.spec.retained_wildcards]
    return run_each(able, options, [("mqtt", "mqtt"), ("mqtt5", "mqtt")], one)


def run_pending(
    options: argparse.Namespace, goals: Callable[[backlog.BacklogRun], None]
) -> list[backlog.BacklogRun]:
    """Measure a backlog in Tidegate, in one queue and over many; *goals* is called with each run."""
    runs: list[backlog.BacklogRun] = []
    for queues in sorted({1, options.pending_queues}):
        state = options.work / "tidegate-state"
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir()
        (port,) = free_ports(1)
        config = state / "bench.toml"
        config.write_text(tidegate_config(state / "data", {"stomp": port}))
        run = backlog.measure(
            TIDEGATE,
            [str(options.tidegate_command), "run", "--config", str(config)],
            options.work / "tidegate.log",
            LOADGEN,
            Address("127.0.0.1", port),
            options.pending,
            queues,
            live_seconds=options.duration,
            starts=options.pending_starts,
        )
        shutil.rmtree(state)  # gigabytes
        runs.append(run)
        goals(run)
    return runs


def run_hostile(options: argparse.Namespace) -> list[hostile.HostileRun]:
    """Measure a second client beside each attack, on a gateway that has just started.

    Raises: SetupError for an attack that there is not.
    """
    try:
        names = hostile.choose(options.only)
    except ValueError as error:
        raise SetupError(str(error)) from None
    runs: list[hostile.HostileRun] = []
    for name in names:
        state = options.work / "tidegate-state"
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir()
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


def say_goals(run: backlog.BacklogRun) -> None:
    """Print one run and what became of its goals."""
    console.print(escape(run.line()))
    for reached, text in run.goals():
        mark = "[green]reached[/green]" if reached else "[red]missed[/red]"
        console.print(f"goal {mark}  {text}")


RunT = TypeVar("RunT", idle.IdleRun, retained.RetainedRun)


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """How the load generator calls a protocol, and what it logs in with."""

    name: str
    login: tuple[str, ...]


def run_each(
    targets: Sequence[Target],
    options: argparse.Namespace,
    loads: Sequence[tuple[str, Protocol]],
    one: Callable[[Target, BrokerProcess, Address, Load], RunT],
) -> list[RunT]:
    """Measure each load on each broker that we start, one after the other, fresh each time."""
    runs: list[RunT] = []
    for target in targets:
        login = (f"-user={target.user}", f"-pass={target.password}") if target.user else ()
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
    results = report.Results()
    try:
        options.work = options.work.resolve()
        options.work.mkdir(parents=True, exist_ok=True)
        scenarios = [] if options.hostile else choose_scenarios(options.only)
        if not options.hostile:
            build_load_generator()
        if options.pending is not None or options.hostile:
            options.peers = "none"
        targets = choose_targets(options)
    except SetupError as error:
        Console(stderr=True).print(f"bench: {error}", style="red", highlight=False, soft_wrap=True)
        return EXIT_USAGE
    about = machine.facts(options.work)
    versions = {target.spec.name: target.version for target in targets}
    console.print(f"{about['cpu']}, {about['processors']} processors, kernel {about['kernel']}")
    console.print("  ".join(f"{name} {version}" for name, version in versions.items()))
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    path = options.json or BENCHMARKS / "results" / f"{stamp}.json"
    if options.idle is not None:
        runs = run_idle(targets, options)
        idle.write_json(path, runs, about)
        console.print(f"results: {path}")
        return EXIT_MISSED if any(run.error for run in runs if run.broker in OURS) else 0
    if options.retained is not None:
        timed = run_retained(targets, options)
        retained.write_json(path, timed, about, versions, [sys.argv[0], *arguments])
        console.print(f"results: {path}")
        return EXIT_MISSED if any(run.error for run in timed if run.broker in OURS) else 0
    if options.hostile:
        try:
            attacked = run_hostile(options)
        except SetupError as error:
            Console(stderr=True).print(f"bench: {error}", style="red", highlight=False)
            return EXIT_USAGE
        hostile.write_json(path, attacked, about, versions, [sys.argv[0], *arguments])
        console.print(f"results: {path}")
        missed = options.check_goals and not all(run.reached for run in attacked)
        return EXIT_MISSED if missed or any(run.error for run in attacked) else 0
    if options.pending is not None:
        backlogs = run_pending(options, say_goals)
        backlog.write_json(path, backlogs, about, versions, [sys.argv[0], *arguments])
        console.print(f"results: {path}")
        missed = any(not reached for run in backlogs for reached, _ in run.goals())
        failed = any(run.error for run in backlogs) or (options.check_goals and missed)
        return EXIT_MISSED if failed else 0
    interrupted = False
    try:
        run_rounds(targets, scenarios, options, results)
    except KeyboardInterrupt:
        interrupted = True
        console.print("[yellow]interrupted; this is what there is[/yellow]")
    reached = conclude(results, scenarios)
    report.write_json(path, results, about, versions, [sys.argv[0], *arguments])
    console.print(f"results: {path}")
    if interrupted:
        return 130
    failed = any(run.error and run.broker in OURS for run in results.runs)
    return EXIT_MISSED if failed or (options.check_goals and not reached) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
