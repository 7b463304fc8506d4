"""``tidegate store show``, ``files`` and ``why``: the store of a gateway that runs."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import typer

from tidegate.cli import _show
from tidegate.cli._commands import ConfigOption, JsonOption
from tidegate.cli.groups._asking import ask, connected, moment
from tidegate.cli.groups._lists import (
    Columns,
    LimitOption,
    MatchArgument,
    rows_of,
    show_facts,
    show_rows,
)
from tidegate.cli.groups._words import size, sized
from tidegate.spi import FileHolder, StoreFile, StorePart
from tidegate.spi.operate import (
    ExplainFile,
    FileDetails,
    FilePage,
    FileSort,
    ListFiles,
    ShowStore,
    StoreDetails,
)
from tidegate.spi.printable import printable

_FILES: Final[Columns[StoreFile]] = (
    ("file", lambda row: row.name),
    ("is", lambda row: row.state),
    ("length", lambda row: size(row.length)),
    ("alive", lambda row: f"{row.live_bytes / max(1, row.length):.1%}"),
    ("references", lambda row: row.references),
)

_PARTS: Final[Columns[StorePart]] = (
    ("part", lambda row: row.kind),
    ("name", lambda row: row.name),
    ("on disks", lambda row: "" if row.disk_bytes is None else size(row.disk_bytes)),
    ("of it free", lambda row: "" if row.reusable_bytes is None else size(row.reusable_bytes)),
    ("rows, about", lambda row: "" if row.rows is None else row.rows),
    ("dead, about", lambda row: "" if row.dead_rows is None else row.dead_rows),
    ("state", lambda row: _state(row)),
)

_HOLDERS: Final[Columns[FileHolder]] = (
    ("kept for", lambda row: row.kind),
    ("destination", lambda row: row.destination),
    ("client id", lambda row: row.client_id),
    ("name", lambda row: row.subscription),
    ("user", lambda row: row.principal),
    ("messages", lambda row: row.messages),
    ("bytes", lambda row: size(row.live_bytes)),
    ("the first", lambda row: ", ".join(map(str, row.sequences[:5]))),
)


def add_to(app: typer.Typer) -> None:
    """Make them commands of ``tidegate store``."""
    app.command()(show)
    app.command()(files)
    app.command()(why)


def show(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the store of the running gateway."""
    with connected(config) as client:
        found = ask(client, ShowStore(), StoreDetails)
    if as_json:
        _show.print_json(msgspec.to_builtins(found))
        return
    facts: list[tuple[str, object]] = [
        ("store id", found.store_id),
        ("takes messages", found.problem or "yes"),
        ("writes", "yes" if found.is_writable else "no, not until the gateway is restarted"),
        ("survives a power cut", "yes" if found.is_durable else "no"),
        ("messages", found.messages),
        ("on disks", size(found.disk_bytes)),
        ("of it for new messages", size(found.reusable_bytes)),
        ("used", sized(found.used)),
        ("acknowledged", "no sinks" if found.acknowledged is None else sized(found.acknowledged)),
        ("free on its disk", "unknown" if found.disk_free is None else size(found.disk_free)),
        ("offers", ", ".join(found.offers) or "nothing above the minimum"),
    ]
    facts += [("directory", directory) for directory in found.directories]
    if found.parts_problem:
        facts.append(("what it is made of", printable(found.parts_problem)))
    show_facts(facts)
    if found.parts:
        show_rows(_PARTS, found.parts, "", as_json=False)


def files(
    match: MatchArgument = "",
    sort: Annotated[
        FileSort,
        typer.Option("--sort", help="Keep the store's order, or show the emptiest files first."),
    ] = FileSort.ORDER,
    limit: LimitOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the running gateway's store files and how much live data each holds."""
    rows = rows_of(config, ListFiles(match, sort), FilePage, limit)
    show_rows(_FILES, rows, "no files", as_json)


def why(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Name of the file, as listed.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show why the running gateway's store keeps a file."""
    with connected(config) as client:
        found = ask(client, ExplainFile(file), FileDetails)
    if as_json:
        _show.print_json(msgspec.to_builtins(found))
        return
    show_rows(_FILES, [found.row], "", as_json=False)
    show_rows(_HOLDERS, found.holders, "no live data", as_json=False)


def _state(row: StorePart) -> str:
    words = [row.state] if row.state else []
    if row.holder:
        words.append(f"held by {row.holder}")
    if row.expires_at is not None:
        words.append(f"until {moment(row.expires_at)} unless it is renewed")
    return ", ".join(words)
