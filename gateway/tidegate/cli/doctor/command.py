"""``tidegate doctor``: looks at everything, prints what it found, and what to change."""

from __future__ import annotations

import dataclasses
import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from tidegate import __version__
from tidegate.cli import _show
from tidegate.cli._commands import ConfigOption, JsonOption
from tidegate.cli._exit import ExitCode
from tidegate.cli._host import plain_table
from tidegate.cli.doctor.checks import Finding, State, of_disk, of_limits, of_machine
from tidegate.cli.doctor.machine import disk_of, this_machine
from tidegate.config import check_parts, load_config, named_plugins, resolve
from tidegate.operator_socket import SOCKET_NAME, OperatorClient
from tidegate.plugins import PluginHost
from tidegate.spi import GatewayError, private_files
from tidegate.spi.printable import printable

if TYPE_CHECKING:
    from tidegate.config import Config, ResolvedConfig

#: The order for readers.
_ORDER: Final = (State.PROBLEM, State.ADVICE, State.UNKNOWN, State.OK)


def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check this machine and the configuration, and say what to change.

    Needs no running gateway, and changes nothing. Exit code 0: no problems; 1: problems found.
    """
    found = list(look(config))
    if as_json:
        _show.print_json(
            [{**dataclasses.asdict(item), "state": item.state.value} for item in found]
        )
    else:
        rows = [
            (item.check, item.state.value, item.found, item.change)
            for state in _ORDER
            for item in found
            if item.state is state
        ]
        _show.make_console().print(plain_table(("check", "is", "found", "what to do"), rows))
    if any(item.state is State.PROBLEM for item in found):
        raise typer.Exit(ExitCode.UNEXPECTED)


def look(path: Path | None) -> Iterator[Finding]:
    """Everything, in the order of the looking."""
    machine = this_machine()
    yield Finding("tidegate", State.OK, __version__)
    yield from of_machine(machine)
    plugins = PluginHost()
    try:
        config = load_config(path)
    except GatewayError as error:
        yield Finding("configuration", State.PROBLEM, str(error), "see docs/configuration.md")
        return
    yield from _plugins(config, plugins)
    resolved: ResolvedConfig | None = None
    try:
        resolved = resolve(config, plugins)
        check_parts(resolved)
    except GatewayError as error:
        yield Finding("configuration", State.PROBLEM, str(error), "see docs/configuration.md")
    else:
        yield Finding("configuration", State.OK, str(path) if path else "the embedded default")
    yield from of_limits(machine, config.broker)
    is_running = False
    if config.broker.persistent:
        directory = config.broker.data_directory
        yield from of_disk(disk_of(directory), config.broker)
        yield from _others(directory)
        is_running = _runs(directory)
    yield Finding(
        "gateway",
        State.OK,
        "running" if is_running else "not running",
    )
    if resolved is not None and not is_running:
        yield from _ports(resolved)


def _plugins(config: Config, plugins: PluginHost) -> Iterator[Finding]:
    active = {(kind, name) for kind, name, _ in named_plugins(config)}
    rows = plugins.list_plugins(active)
    broken = [row for row in rows if row.problem]
    for row in broken:
        state = State.PROBLEM if row.active else State.ADVICE
        name = f"{row.kind}-{row.name}" if row.kind else row.name
        yield Finding("plugins", state, f"{name}: {row.problem}", "reinstall or uninstall it")
    if not broken:
        yield Finding("plugins", State.OK, f"{len(rows)} installed, {len(active)} in use")


def _others(directory: Path) -> Iterator[Finding]:
    """Who else can reach the data."""
    try:
        problem = private_files.problem_of_others(directory)
    except OSError:
        return  # it does not exist yet
    if problem:
        yield Finding("privacy", State.ADVICE, str(directory), problem)
    else:
        yield Finding("privacy", State.OK, "only its owner can read the data directory")


def _runs(directory: Path) -> bool:
    try:
        with OperatorClient(directory):
            return True
    except PermissionError:
        return (directory / SOCKET_NAME).exists()
    except (OSError, GatewayError):
        return False


def _ports(config: ResolvedConfig) -> Iterator[Finding]:
    """Whether the listeners' ports can be had."""
    for listener in config.listeners:
        host, port = listener.config.host, listener.config.port
        name = f"port {port}" if port else "port"
        try:
            families = socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, number, _, address in families:
                with socket.socket(family, kind, number) as found:
                    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    found.bind(address)
        except OSError as error:
            change = (
                f"change the bind address of {listener.key}, or stop the program that uses this one"
            )
            if error.errno == errno.EACCES:
                change = (
                    "ports below 1024 need CAP_NET_BIND_SERVICE (AmbientCapabilities= in the unit)"
                )
            why = printable(str(error.strerror or error))
            yield Finding(name, State.PROBLEM, f"{listener.config.protocol}: {why}", change)
        else:
            yield Finding(name, State.OK, f"{listener.config.protocol}: free")
