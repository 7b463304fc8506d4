"""``tidegate limit`` and ``tidegate cursor``: what is near its limit, and where lists are fed from."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import typer

from tidegate.cli import _show
from tidegate.cli._commands import ConfigOption, Group, JsonOption
from tidegate.cli.groups._asking import ask, connected, moment
from tidegate.cli.groups._lists import (
    Columns,
    LimitOption,
    MatchArgument,
    rows_of,
    show_facts,
    show_rows,
)
from tidegate.cli.groups._words import counted, size, sized
from tidegate.spi.operate import (
    CursorPage,
    CursorRow,
    CursorSort,
    HeldDetails,
    LimitPage,
    LimitRow,
    LimitScope,
    LimitSort,
    ListCursors,
    ListLimits,
    ShowHeld,
)

limits: Final = typer.Typer(
    cls=Group,
    help="Show what is close to its limit in a running gateway.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
cursors: Final = typer.Typer(
    cls=Group,
    help="Show where queues and subscriptions get their messages from.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_LIMITS: Final[Columns[LimitRow]] = (
    ("used", lambda row: f"{row.percent:g} %"),
    ("scope", lambda row: row.scope.value),
    ("of", lambda row: row.holder),
    ("option", lambda row: row.option),
    ("now", lambda row: _amount(row, row.used)),
    ("limit", lambda row: _bound(row)),
    ("at the limit", lambda row: row.act),
)

_CURSORS: Final[Columns[CursorRow]] = (
    ("list", lambda row: row.number),
    ("destination", lambda row: row.destination),
    ("subscription", lambda row: row.feed.subscription),
    ("cursor", lambda row: row.cursor),
    ("pending", lambda row: row.pending),
    ("memory", lambda row: sized(row.memory)),
    ("fed from", lambda row: "pages" if row.feed.is_paging else "memory"),
    ("since", lambda row: moment(row.feed.since)),
    ("why", lambda row: row.feed.why),
    ("read from pages", lambda row: row.feed.paged_messages),
)


@limits.command(name="list")
def list_limits(
    match: MatchArgument = "",
    scope: Annotated[
        LimitScope | None, typer.Option("--scope", help="Only limits of this scope.")
    ] = None,
    percent: Annotated[
        int,
        typer.Option(
            "--percent",
            min=0,
            max=100,
            help="Only limits that are used to at least this percentage.",
        ),
    ] = 0,
    sort: Annotated[
        LimitSort, typer.Option("--sort", help="Sort by the share that is used, or by name.")
    ] = LimitSort.NEAREST,
    limit: LimitOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the limits of the gateway, users, connections and destinations, and their use."""
    rows = rows_of(config, ListLimits(match, scope, sort, percent), LimitPage, limit)
    show_rows(_LIMITS, rows, "no limits", as_json)


@limits.command()
def show(
    user: Annotated[
        str, typer.Argument(metavar="[USER]", help="A user; without it, all users together.")
    ] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is held in memory for all users or for one, and who holds the most."""
    with connected(config) as client:
        found = ask(client, ShowHeld(user), HeldDetails)
    if as_json:
        _show.print_json(msgspec.to_builtins(found))
        return
    facts: list[tuple[str, object]] = [
        ("held", sized(found.held)),
        ("peak", size(found.held_peak)),
        ("in flight", sized(found.in_flight)),
        ("peak in flight", size(found.in_flight_peak)),
        ("refused", found.refused),
    ]
    facts += [(name.replace("_", " "), size(held)) for name, held in found.kinds.items() if held]
    facts += [(f"number of {name}", counted(room)) for name, room in found.counts.items()]
    facts += [
        (
            f"connection {below.number} {below.name}" if below.number else f"user {below.name}",
            f"{sized(below.held)}, in flight {sized(below.in_flight)}",
        )
        for below in found.below
    ]
    show_facts(facts)


@cursors.command(name="list")
def list_cursors(
    match: MatchArgument = "",
    sort: Annotated[
        CursorSort,
        typer.Option("--sort", help="Sort by destination, or by this value, largest first."),
    ] = CursorSort.NAME,
    paging: Annotated[
        bool, typer.Option("--paging", help="Only those that read from pages.")
    ] = False,
    limit: LimitOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the cursors: what holds each queue's and subscription's pending messages in memory."""
    rows = rows_of(config, ListCursors(match, sort, paging), CursorPage, limit)
    show_rows(_CURSORS, rows, "no cursors", as_json)


def _bound(row: LimitRow) -> str:
    """What is free must not fall below its limit."""
    floor = "at least " if row.option.endswith("free_limit") else ""
    return floor + _amount(row, row.limit)


def _amount(row: LimitRow, count: int) -> str:
    """Options that end so count things, and all others bytes."""
    return str(count) if row.option.endswith("_max") and "bytes" not in row.option else size(count)
