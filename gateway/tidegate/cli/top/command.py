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
        float, typer.Option("--interval", min=0.2, max=3600, help="Seconds between two refreshes.")
    ] = 2.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch the running gateway: a full-screen view that refreshes itself.

    Keys: t shows the next list, s changes the sort order, / filters destinations, p pauses, r refreshes now,
    q quits. --json prints one snapshot and exits.
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
