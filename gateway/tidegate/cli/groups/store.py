"""``tidegate store``: what one does with any store; store plugins add commands of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from tidegate.cli._commands import ConfigOption, JsonOption, open_typer
from tidegate.spi.commands import CommandHost

app: Final = open_typer("Export and import a store's contents. Store plugins add more commands.")


@app.command(name="export")
def export_command(
    context: typer.Context,
    target: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="A new directory.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the whole store to Parquet files.

    The gateway must be stopped. Any store plugin can import the files; docs/portable-format.md
    describes them.
    """
    host: CommandHost = context.obj
    show_counts(host, host.export_store(host.store(config), target), as_json, target)


@app.command(name="import")
def import_command(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="A directory written by `export`.")
    ],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fill an empty store from an export.

    The gateway must be stopped. A store that is not empty is refused.
    """
    host: CommandHost = context.obj
    show_counts(host, host.import_store(host.store(config), source), as_json, source)


def show_counts(host: CommandHost, counts: Mapping[str, int], as_json: bool, where: Path) -> None:
    """Print how many of each thing were carried to or from *where*."""
    if as_json:
        host.print_json({"directory": str(where), **counts})
    else:
        host.print_table(("what", "carried"), list(counts.items()))
