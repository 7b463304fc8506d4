"""Measure Tidegate on each of its stores beside ActiveMQ Classic on KahaDB and on JDBC, in one run.

    .venv/bin/python benchmarks/stores.py                      # 3 rounds of 5 seconds each
    .venv/bin/python benchmarks/stores.py --rounds 1 --duration 2 --no-classic

The load is the scenario stomp-1x1 of bench.py. Each round starts every broker once, on an empty store;
both JDBC stores use one PostgreSQL of the benchmark's own, each in fresh tables. How to read the
figures: docs/benchmarks.md.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import bench
from benchkit import machine, targets
from benchkit.arguments import ROOT
from benchkit.brokers import BROKERS, PEERS_SCRIPT, TIDEGATE, Address, Target, tidegate_config
from benchkit.generator import build_load_generator
from benchkit.postgres import PASSWORD, USER, Postgres, postgres
from benchkit.process import BrokerStartError, free_ports, running
from benchkit.scenarios import SCENARIOS
from rich.console import Console

console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)


@dataclass(frozen=True, slots=True)
class Variant:
    """One broker on one store.

    Attributes:
        store: lines of the table [store], `{url}` and `{round}` filled in; None: a peer.
        needs_postgres: it cannot run without one.
    """

    name: str
    store: str | None
    needs_postgres: bool = False


_SERVER: Final = f'url = "{{url}}"\nuser = "{USER}"\ntable_prefix = "R{{round}}_"\n'
VARIANTS: Final = (
    Variant("journal", 'plugin = "journal"\n'),
    Variant("sqlite", 'plugin = "jdbc"\n'),
    Variant("postgresql", 'plugin = "jdbc"\n' + _SERVER, True),
    Variant("journaled-sqlite", 'plugin = "journaled"\n'),
    Variant(
        "journaled-postgresql",
        'plugin = "journaled"\n' + _SERVER.replace('"R', '"J'),
        True,
    ),
    Variant(
        "quick-postgresql",
        'plugin = "journaled"\nuse_quick_journal = true\n' + _SERVER.replace('"R', '"Q'),
        True,
    ),
    Variant("classic-kahadb", None),
    Variant("classic-postgresql", None, True),
)

#: (variant, times, the other): what has to be reached in one run.
GOALS: Final = (
    ("sqlite", 2.0, "classic-kahadb"),
    ("postgresql", 2.0, "classic-postgresql"),
    ("journaled-sqlite", 0.8, "journal"),
    ("journaled-postgresql", 0.8, "journal"),
)


@dataclass(frozen=True, slots=True)
class Result:
    """One measured run: messages a second, and the confirm times in microseconds."""

    variant: str
    round: int
    rate: float = 0.0
    confirm_p50: float = 0.0
    confirm_p99: float = 0.0
    cpu_us: float = 0.0
    error: str = ""


def store_lines(variant: Variant, server: Postgres | None, turn: int) -> str:
    """The table [store] of a gateway."""
    assert variant.store is not None
    url = server.url if server else ""
    return "\n[store]\n" + variant.store.format(url=url, round=turn)


def run_one(
    variant: Variant, server: Postgres | None, options: argparse.Namespace, turn: int
) -> Result:
    """Start one broker on an empty store, warm it up and measure it."""
    stomp, mqtt, aux, aux2 = free_ports(4)
    work: Path = options.work
    if variant.store is None:
        command = [str(PEERS_SCRIPT), "run", "classic", str(work)]
        command += [str(port) for port in (stomp, mqtt, aux, aux2)]
        os.environ.pop("CLASSIC_JDBC_URL", None)
        if variant.needs_postgres and server is not None:
            os.environ |= {"CLASSIC_JDBC_URL": f"jdbc:{server.url}", "PGUSER": USER}
            os.environ["PGPASSWORD"] = PASSWORD
        target = Target(BROKERS["classic"])
    else:
        state = work / "tidegate-state"
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir()
        config = state / "bench.toml"
        text = tidegate_config(state / "data", {"stomp": stomp})
        config.write_text(text + store_lines(variant, server, turn))
        command = [str(options.tidegate_command), "run", "--config", str(config)]
        target = Target(BROKERS[TIDEGATE])
    address = Address("127.0.0.1", stomp)
    try:
        with running(command, work / f"{variant.name}.log", [address]) as broker:
            found = bench.measure(
                target, SCENARIOS["stomp-1x1"], address, broker, options, turn, first=True
            )
    except BrokerStartError as error:
        return Result(variant.name, turn, error=str(error))
    faults = f"faults: {found.faults}" if found.faults else ""
    count = found.rate * options.duration
    return Result(
        variant.name,
        turn,
        found.rate,
        found.confirm_p50,
        found.confirm_p99,
        1e6 * (found.broker_cpu_s or 0.0) / count if count else 0.0,
        found.error or faults,
    )


def judge(results: Sequence[Result]) -> list[tuple[bool, str]]:
    """Whether each goal that was measured is reached, by the median of the rounds."""
    rates: dict[str, list[float]] = {}
    for result in results:
        if not result.error:
            rates.setdefault(result.variant, []).append(result.rate)
    verdicts: list[tuple[bool, str]] = []
    for name, factor, other in GOALS:
        if name in rates and other in rates:
            ratio = statistics.median(rates[name]) / statistics.median(rates[other])
            verdicts.append(
                (ratio >= factor, f"{name} is {ratio:.2f} times {other} (at least {factor:g})")
            )
    return verdicts


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; on a mistake, exit with code 2."""
    parser = argparse.ArgumentParser(prog="stores.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--duration", type=float, default=5.0, help="seconds of sending in each run"
    )
    parser.add_argument("--messages", type=int, default=2_000_000, help="most messages of a run")
    parser.add_argument("--only", default="", help="variants, with commas")
    parser.add_argument("--no-classic", action="store_true", help="Tidegate alone")
    parser.add_argument("--quick", action="store_true", help="hardly warmed up")
    parser.add_argument("--work", type=Path, default=Path("/tmp/tidegate-bench"))
    parser.add_argument("--json", type=Path, help="result file")
    parser.add_argument(
        "--tidegate-command", type=Path, default=ROOT / ".venv" / "bin" / "tidegate"
    )
    options = parser.parse_args(arguments)
    known = {variant.name for variant in VARIANTS}
    options.only = [name for name in options.only.split(",") if name] or sorted(known)
    if not set(options.only) <= known:
        parser.error(f"--only: there are {', '.join(sorted(known))}")
    if options.rounds < 1 or not 0.1 <= options.duration <= 600:
        parser.error("--rounds from 1, --duration 0.1 to 600")
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and return the exit code: 1 when a goal is missed."""
    options = parse_arguments(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    build_load_generator()
    variants = [variant for variant in VARIANTS if variant.name in options.only]
    if options.no_classic:
        variants = [variant for variant in variants if variant.store is not None]
    if any(variant.store is None for variant in variants):
        targets.make_ready("classic", options.work, fetch=True)
    results: list[Result] = []
    with postgres(options.work) as server:
        console.print(f"PostgreSQL {server.version}")
        for turn in range(1, options.rounds + 1):
            for variant in variants:
                result = run_one(variant, server, options, turn)
                results.append(result)
                console.print(
                    f"round {turn}  {variant.name:<22} {result.rate:>9,.0f}/s  confirm p50 "
                    f"{result.confirm_p50:,.0f} p99 {result.confirm_p99:,.0f} us, broker CPU "
                    f"{result.cpu_us:.1f} us a message {result.error}"
                )
    verdicts = judge(results)
    for is_reached, text in verdicts:
        console.print(f"goal {'reached' if is_reached else 'MISSED'}  {text}")
    if options.json:
        document = {
            "command": [sys.argv[0], *arguments],
            "machine": machine.facts(options.work),
            "runs": [asdict(result) for result in results],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    failed = any(result.error for result in results)
    return 1 if failed or not all(is_reached for is_reached, _ in verdicts) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
