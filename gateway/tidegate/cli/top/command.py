"""``tidegate top``. What draws the screen is imported only when there is one to be drawn."""

from __future__ import annotations

import contextlib
from typing import Annotated

import msgspec
import typer

from tidegate.cli import _show
from tidegate.cli._commands import ConfigOption, JsonOption
from tidegate.cli.groups._asking import connected
from tidegate.cli.top.reading import Reader, Wanted, snapshot


def top(
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, max=3600, help="Seconds between two looks.")
    ] = 2.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a gateway that runs on a screen that one may leave open.

    Keys: t shows the next list, s sorts by the next thing, / asks for destinations, p pauses, r looks now, q ends. With --json one
    look is printed, and that is all.
    """
    if as_json:
        with connected(config) as client:
            _show.print_json(msgspec.to_builtins(snapshot(client, Wanted())))
        return
    from tidegate.cli.top.screen import Top

    with connected(config):
        pass  # an error now, and not on the screen
    with contextlib.closing(Reader(config)) as reader:
        Top(reader, interval).run()
