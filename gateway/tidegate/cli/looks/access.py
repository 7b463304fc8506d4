"""``tidegate access`` and ``tidegate plugins --running``: who may do what, and what a gateway is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from tidegate.cli import _show
from tidegate.cli._commands import ConfigOption, Group, JsonOption
from tidegate.cli.groups._asking import ask, connected
from tidegate.cli.groups._lists import (
    Columns,
    LimitOption,
    MatchArgument,
    rows_of,
    show_rows,
)
from tidegate.spi import Action, Verdict
from tidegate.spi.operate import (
    AccessDetails,
    AccessPage,
    AccessRow,
    ExplainAccess,
    ListAccess,
    ListPlugins,
    ListRules,
    ListUsers,
    PluginPage,
    PluginPart,
    PluginRow,
    RulePage,
    RuleRow,
    UserPage,
    UserRow,
)
from tidegate.spi.printable import printable

app: Final = typer.Typer(
    cls=Group,
    help="Show who may do what on a running gateway, and which users it knows.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_DestinationArgument = Annotated[
    str, typer.Argument(metavar="DESTINATION", help="queue://NAME or topic://NAME.")
]

#: Verdicts in words.
_WORDS: Final = {
    Verdict.ALLOW: "allowed",
    Verdict.DENY: "refused",
    Verdict.FILTER: "allowed in part: each message is checked when it is delivered",
}

_ACCESS: Final[Columns[AccessRow]] = (
    ("user", lambda row: row.user),
    ("groups", lambda row: ", ".join(row.groups)),
    ("connections", lambda row: row.connections),
    ("may", lambda row: _actions(row, Verdict.ALLOW)),
    ("may not", lambda row: _actions(row, Verdict.DENY)),
)

_RULES: Final[Columns[RuleRow]] = (
    ("rule", lambda row: row.number),
    ("line", lambda row: row.line or ""),
    ("says", lambda row: "allow" if row.allows else "deny"),
    ("actions", lambda row: ", ".join(action.value for action in row.actions)),
    (
        "destinations",
        lambda row: "any" if row.destinations is None else ", ".join(row.destinations),
    ),
    ("who", lambda row: _who(row)),
    ("of", lambda row: row.authorizer),
    ("source", lambda row: row.source),
)

_USERS: Final[Columns[UserRow]] = (
    ("user", lambda row: row.user),
    ("groups", lambda row: ", ".join(row.groups)),
    ("of", lambda row: row.authenticator),
    ("checked by", lambda row: ", ".join(row.checks)),
    ("connections", lambda row: row.connections),
)

_PLUGINS: Final[Columns[PluginRow]] = (
    ("kind", lambda row: row.kind or "?"),
    ("name", lambda row: row.name),
    ("version", lambda row: row.version),
    ("distribution", lambda row: row.distribution),
    ("active", lambda row: "yes" if row.is_active else "no"),
    ("what is set", lambda row: "; ".join(map(_set, row.parts))),
)


@app.command()
def explain(
    user: Annotated[str, typer.Argument(help="User name; `anonymous` for no user.")],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="[DESTINATION]",
            help="queue://NAME or topic://NAME, wildcards allowed; without it: connect and admin.",
        ),
    ] = "",
    client_id: Annotated[str, typer.Option("--client-id", help="Client id of the user.")] = "",
    group: Annotated[
        list[str] | None,
        typer.Option("--group", help="A group of the user, instead of those known; repeatable."),
    ] = None,
    address: Annotated[str, typer.Option("--address", help="IP address of the client.")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a user may do with a destination, and which rule decides."""
    request = ExplainAccess(user, destination, tuple(group or ()), client_id, address)
    with connected(config) as client:
        found = ask(client, request, AccessDetails)
    if as_json:
        _show.print_json(msgspec.to_builtins(found))
        return
    for one in found.decided:
        typer.echo(f"{one.action.value}: {_WORDS[one.verdict]}")
        for reason in one.reasons:
            for why in reason.why or (_WORDS[reason.verdict],):
                typer.echo(f"  {printable(reason.authorizer)}: {printable(why)}")


@app.command(name="list")
def list_access(
    destination: _DestinationArgument,
    match: MatchArgument = "",
    limit: LimitOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what each known or connected user may do with a destination."""
    rows = rows_of(config, ListAccess(destination, match), AccessPage, limit)
    show_rows(_ACCESS, rows, "no users", as_json)


@app.command()
def rules(
    match: Annotated[
        str,
        typer.Argument(
            metavar="[TEXT]",
            help="Only rules with this text in a pattern or in the users and groups they apply to.",
        ),
    ] = "",
    action: Annotated[
        Action | None, typer.Option("--action", help="Only rules about this action.")
    ] = None,
    limit: LimitOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the rules in force, in the order in which they are checked."""
    rows = rows_of(config, ListRules(match, action), RulePage, limit)
    show_rows(_RULES, rows, "no rules", as_json)
    if as_json:
        return
    with connected(config) as client:
        found = ask(client, ListRules(limit=1), RulePage)
    if not found.authorizers:
        typer.echo("No authorizer is configured: everything is allowed.")
    for name in found.unlisted:
        typer.echo(f"{printable(name)} also decides, but does not list its rules.")


@app.command()
def users(
    match: MatchArgument = "",
    limit: LimitOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the users that the authenticators know, without their secrets."""
    rows = rows_of(config, ListUsers(match), UserPage, limit)
    show_rows(_USERS, rows, "no users are listed", as_json)


def show_running(config: Path | None, as_json: bool) -> None:
    """Print the plugins that the gateway has found, and what is set of each."""
    rows = rows_of(config, ListPlugins(), PluginPage, 0)
    show_rows(_PLUGINS, rows, "no plugins installed", as_json)


def _actions(row: AccessRow, verdict: Verdict) -> str:
    return ", ".join(action for action, found in row.verdicts.items() if found is verdict)


def _who(row: RuleRow) -> str:
    return "; ".join(f"{key} {', '.join(names)}" for key, names in row.who.items()) or "everybody"


def _set(part: PluginPart) -> str:
    options = ", ".join(f"{key} = {value}" for key, value in part.options.items())
    return f"{part.table}: {options or 'defaults'}"
