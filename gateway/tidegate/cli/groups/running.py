"""``tidegate reload``: changes the gateway that runs."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from tidegate.cli import _show
from tidegate.cli._commands import ConfigOption, JsonOption
from tidegate.cli.groups._asking import ask, connected
from tidegate.spi.operate import ReloadConfiguration, Reloaded
from tidegate.spi.printable import printable


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
