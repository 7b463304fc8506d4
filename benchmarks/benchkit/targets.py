"""The brokers of one run: chosen, fetched, started."""

import argparse
import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

from benchkit import machine
from benchkit.brokers import (
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
from benchkit.choice import SetupError, chosen
from benchkit.process import BrokerProcess, free_ports, running

_FETCHED: Final = frozenset({"artemis", "classic"})

console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)


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
    asked = [] if options.peers in ("auto", "none") else chosen(options.peers, "peer", PEERS)
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
        if not fetch or name not in _FETCHED:
            raise
        console.print(f"fetching {name} with Maven into {work} ...")
        peers_script("fetch", name, str(work))
    return peers_script("version", name, str(work))


def login_of(target: Target) -> tuple[str, ...]:
    """Options for the load generator."""
    return (f"-user={target.user}", f"-pass={target.password}") if target.user else ()


def fresh_state(options: argparse.Namespace) -> Path:
    """An empty directory for a Tidegate that is about to be started; what was there is gone."""
    state: Path = options.work / "tidegate-state"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir()
    return state


def clean(target: Target, options: argparse.Namespace) -> None:
    """Remove what a target of ours that has ended stored."""
    if target.spec.name in OURS:
        fresh_state(options)
    else:
        peers_script("clean", target.spec.name, str(options.work))


def prepare(
    target: Target, options: argparse.Namespace
) -> tuple[list[str], dict[Protocol, Address]]:
    """Returns: the command that starts a target of ours on an empty store, and its addresses."""
    name = target.spec.name
    stomp, mqtt, aux, aux2 = free_ports(4)
    ports: dict[Protocol, int] = {"stomp": stomp, "mqtt": mqtt}
    ports = {protocol: port for protocol, port in ports.items() if target.speaks(protocol)}
    if name in OURS:
        state = fresh_state(options)
        config = state / "bench.toml"
        rules: Path | None = None
        if target.spec.rules:
            rules = state / "rules.toml"
            rules.write_text(target.spec.rules)
        text = tidegate_config(state / "data", ports, target.spec.store_options, rules)
        config.write_text(text)
        command = [str(options.tidegate_command), "run", "--config", str(config)]
    else:
        command = [str(PEERS_SCRIPT), "run", name, str(options.work)]
        command += [str(port) for port in (stomp, mqtt, aux, aux2)]
    return command, {protocol: Address("127.0.0.1", port) for protocol, port in ports.items()}


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
    command, addresses = prepare(target, options)
    log = options.work / f"{target.spec.name}.log"
    with running(command, log, list(addresses.values())) as broker:
        yield addresses, broker
