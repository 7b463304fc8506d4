"""The command line of the benchmark."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchkit.brokers import BENCHMARKS, BROKERS, PEERS, TIDEGATE, Address

ROOT: Final = BENCHMARKS.parent
SUMMARY: Final = "Measure Tidegate beside its peers: the same load, one broker at a time, in turn."


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; on a mistake, exit with code 2."""
    parser = argparse.ArgumentParser(prog="bench.py", description=SUMMARY)
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
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--idle",
        type=int,
        metavar="N",
        help="instead of the scenarios: hold N idle connections with heart-beats, and say what each "
        "costs in memory and all of them in CPU",
    )
    parser.add_argument(
        "--idle-hold", type=float, default=30.0, metavar="SECONDS", help="how long --idle measures"
    )
    instead.add_argument(
        "--retained",
        type=int,
        metavar="N",
        help="instead of the scenarios: publish N retained messages, and time a new subscriber to all "
        "of them by a wildcard",
    )
    instead.add_argument(
        "--pending",
        type=int,
        metavar="N",
        help="instead of the scenarios: N pending messages in each broker and the drain, in one queue and "
        "again over --pending-queues; Tidegate is killed in between; goals for N = 5000000",
    )
    instead.add_argument(
        "--hostile",
        action="store_true",
        help="instead of the scenarios: each attack of benchkit/instead/attacks.py on Tidegate (--only chooses), "
        "and how long a second client's QoS 1 round trip takes meanwhile",
    )
    instead.add_argument(
        "--slow",
        action="store_true",
        help="instead of the scenarios: what consumers that do not keep up cost the others "
        "(benchkit/instead/slow.py; --only chooses)",
    )
    instead.add_argument(
        "--sink",
        action="store_true",
        help="instead of the scenarios: what Tidegate's sink costs, and how far its table is behind "
        "(benchkit/instead/sink.py; --only chooses, --idle-hold says how long idle is measured)",
    )
    instead.add_argument(
        "--watched",
        type=int,
        metavar="N",
        help="instead of the scenarios: N queues, and what a console that is open and scrapes cost the other clients "
        "(benchkit/instead/watched.py; --only chooses, --rounds says how many windows of --duration)",
    )
    parser.add_argument(
        "--engines",
        default="spark,deltalake",
        metavar="LIST",
        help="with --sink: what writes the tables (default: %(default)s)",
    )
    parser.add_argument("--pending-queues", type=int, default=1000, metavar="QUEUES")
    parser.add_argument(
        "--pending-starts",
        type=int,
        default=5,
        metavar="N",
        help="how often the killed gateway is started: the quickest start counts (default: 5)",
    )
    parser.add_argument(
        "--pending-peer-seconds",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="with --pending, a peer gets only what it takes in this time at its live rate (default: 300)",
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
    if options.watched is not None and not (1 <= options.watched <= 90_000):
        parser.error("--watched from 1 to 90000")
    if options.pending is not None and not (1000 <= options.pending <= 50_000_000):
        parser.error("--pending from 1000 to 50000000")
    if not 1 <= options.pending_queues <= min(2000, options.pending or 2000):
        parser.error("--pending-queues from 1 to 2000")
    if not 1 <= options.pending_peer_seconds <= 36_000:
        parser.error("--pending-peer-seconds from 1 to 36000")
    if not 1 <= options.pending_starts <= 100:
        parser.error("--pending-starts from 1 to 100")
    if options.only and (options.idle or options.retained or options.pending):
        parser.error("--only has no effect with --idle, --retained and --pending")
    if not 1 <= options.idle_hold <= 3600:
        parser.error("--idle-hold from 1 to 3600")
    return options


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
