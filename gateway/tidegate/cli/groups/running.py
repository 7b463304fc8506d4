"""``tidegate reload``, ``drain``, ``undrain``: change the gateway that runs."""

from __future__ import annotations

import time
from typing import Annotated, Final

import msgspec
import typer

from tidegate.cli import _show
from tidegate.cli._commands import ConfigOption, JsonOption
from tidegate.cli.groups._asking import ask, connected
from tidegate.spi import parse_duration
from tidegate.spi.commands import ClientError
from tidegate.spi.operate import (
    Drain,
    DrainState,
    ReloadConfiguration,
    Reloaded,
    ShowDrain,
    Undrain,
)
from tidegate.spi.printable import printable

#: How often it is looked how far a drain is, and how long it may take to disconnect clients when its time is over.
_LOOK_EVERY_S: Final = 0.2
_BEHIND_S: Final = 30.0


def drain(
    config: ConfigOption = None,
    server_reference: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where clients are told to go.")
    ] = "",
    moved: Annotated[
        bool, typer.Option("--moved", help="They are told to go there for good.")
    ] = False,
    timeout: Annotated[
        str, typer.Option(help="How long clients may take to acknowledge what they have.")
    ] = "30s",
    as_json: JsonOption = False,
) -> None:
    """Let no clients in any more, and wait until those there are have gone.

    Each is disconnected when it has acknowledged what it has, or when the time is over. Then the gateway may be
    stopped without anybody noticing; `tidegate undrain` lets clients in again.
    """
    try:
        timeout_s = parse_duration(timeout)
    except ValueError as error:
        raise typer.BadParameter(f"--timeout: {error}") from None
    ends_at = time.monotonic() + timeout_s + _BEHIND_S
    with connected(config) as client:
        found = ask(client, Drain(server_reference, moved, timeout_s), DrainState)
        while found.connections:
            if time.monotonic() > ends_at or not found.is_draining:
                raise ClientError(
                    f"{found.connections} clients are connected still; nobody else is let in"
                )
            time.sleep(_LOOK_EVERY_S)
            found = ask(client, ShowDrain(), DrainState)
    _print_drain(found, as_json=as_json)


def undrain(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Let clients in again after a drain."""
    with connected(config) as client:
        found = ask(client, Undrain(), DrainState)
    _print_drain(found, as_json=as_json)


def _print_drain(found: DrainState, *, as_json: bool) -> None:
    if as_json:
        _show.print_json(msgspec.to_builtins(found))
    elif found.is_draining:
        typer.echo("drained: no client is connected, and none is let in")
    else:
        typer.echo(f"clients are let in; {found.connections} are connected")


def reload(
    config: ConfigOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say what would change; change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Apply the changed configuration to the gateway that runs.

    It reads the file anew and applies what can change. An error in it changes nothing, and is exit code 2.
    """
    with connected(config) as client:
        found = ask(client, ReloadConfiguration(check_only=check), Reloaded)
    if as_json:
        _show.print_json(msgspec.to_builtins(found))
        return
    for change in found.changed:
        typer.echo(printable(f"{change.key}: {change.what}"))
    for change in found.left:
        typer.echo(printable(f"not now: {change.key}: {change.what}"))
    if not (found.changed or found.left):
        typer.echo("nothing has changed")
