"""``tidegate session`` and ``tidegate subscription``: what outlives connections."""

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
    report,
    rows_of,
    show_facts,
    show_rows,
)
from tidegate.cli.groups._words import duration, size
from tidegate.spi.operate import (
    DeleteSession,
    DeleteSubscription,
    Done,
    ListSessions,
    ListSubscriptions,
    SessionDetails,
    SessionPage,
    SessionRow,
    SessionSort,
    ShowSession,
    ShowSubscription,
    SubscriptionDetails,
    SubscriptionPage,
    SubscriptionRow,
    SubscriptionSort,
)

app: Final = typer.Typer(
    cls=Group,
    help="List, show and delete the MQTT sessions of a running gateway.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
subscriptions: Final = typer.Typer(
    cls=Group,
    help="List, show and delete the topic subscriptions of a running gateway.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="Key of the session, as listed.")]
_NumberArgument = Annotated[
    int, typer.Argument(metavar="NUMBER", help="Number of the subscription, as listed.")
]
_WithConnectionOption = Annotated[
    bool,
    typer.Option("--with-connection", help="Delete it even if it is in use; the connection ends."),
]

_SESSIONS: Final[Columns[SessionRow]] = (
    ("key", lambda row: row.key),
    ("user", lambda row: row.principal),
    ("client id", lambda row: row.client_id),
    ("connection", lambda row: row.connection or "away"),
    ("away since", lambda row: moment(row.left_at) if row.left_at else ""),
    ("kept for", lambda row: "ever" if row.expiry_s is None else duration(row.expiry_s)),
    ("subscriptions", lambda row: row.subscriptions + row.attached),
    ("pending", lambda row: row.pending),
    ("packet ids", lambda row: row.in_flight),
)

_SUBSCRIPTIONS: Final[Columns[SubscriptionRow]] = (
    ("number", lambda row: row.number),
    ("user", lambda row: row.principal),
    ("client id", lambda row: row.client_id),
    ("name", lambda row: row.name),
    ("filter", lambda row: row.filter),
    ("durable", lambda row: "yes" if row.durable else "no"),
    ("consumers", lambda row: row.consumers),
    ("pending", lambda row: row.pending),
    ("in flight", lambda row: row.in_flight),
    ("fed from", lambda row: "pages" if row.is_paging else "memory"),
)


@app.command(name="list")
def list_sessions(
    match: MatchArgument = "",
    sort: Annotated[
        SessionSort, typer.Option("--sort", help="Sort by name, or by this value, largest first.")
    ] = SessionSort.NAME,
    away: Annotated[
        bool, typer.Option("--away", help="Only sessions whose client is disconnected.")
    ] = False,
    limit: LimitOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List sessions, by user and client id."""
    rows = rows_of(config, ListSessions(match, sort, away), SessionPage, limit)
    show_rows(_SESSIONS, rows, "no sessions", as_json)


@app.command(name="show")
def show_session(
    key: _KeyArgument, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Show a session and its subscriptions."""
    with connected(config) as client:
        found = ask(client, ShowSession(key), SessionDetails)
    if as_json:
        _show.print_json(msgspec.to_builtins(found))
        return
    facts: list[tuple[str, object]] = [(heading, value(found.row)) for heading, value in _SESSIONS]
    facts.append(("will", "yes" if found.row.has_will else "no"))
    facts += [
        (f"subscription {row.number}", f"{row.filter}: {row.pending} pending")
        for row in found.subscriptions
    ]
    facts += [("consumes from", destination) for destination in found.attached]
    show_facts(facts)


@app.command(name="delete")
def delete_session(
    key: _KeyArgument,
    with_connection: _WithConnectionOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a session and the messages waiting in it; its will, if any, is published."""
    with connected(config) as client:
        done = ask(client, DeleteSession(key, with_connection), Done)
    report(f"deleted session {key} with {done.count} pending messages", done, as_json)


@subscriptions.command(name="list")
def list_subscriptions(
    match: MatchArgument = "",
    sort: Annotated[
        SubscriptionSort,
        typer.Option("--sort", help="Sort by name, or by this value, largest first."),
    ] = SubscriptionSort.NAME,
    durable: Annotated[
        bool,
        typer.Option(
            "--durable", help="Only durable subscriptions: those that outlive their connection."
        ),
    ] = False,
    limit: LimitOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List subscriptions to topics, by user, client id and name."""
    rows = rows_of(config, ListSubscriptions(match, sort, durable), SubscriptionPage, limit)
    show_rows(_SUBSCRIPTIONS, rows, "no subscriptions", as_json)


@subscriptions.command(name="show")
def show_subscription(
    number: _NumberArgument, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Show a subscription."""
    with connected(config) as client:
        found = ask(client, ShowSubscription(number), SubscriptionDetails)
    if as_json:
        _show.print_json(msgspec.to_builtins(found))
        return
    row = found.row
    facts: list[tuple[str, object]] = [(heading, value(row)) for heading, value in _SUBSCRIPTIONS]
    facts += [
        ("share group", row.share_group or "none"),
        ("selector", row.selector or "none"),
        ("QoS", row.qos),
        ("memory", size(row.memory_bytes)),
        ("producers wait for room", "yes" if row.is_full else "no"),
        ("dropped", row.dropped),
    ]
    facts += [("connection", connection) for connection in found.connections]
    show_facts(facts)


@subscriptions.command(name="delete")
def delete_subscription(
    number: _NumberArgument,
    with_connection: _WithConnectionOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a durable subscription and the messages waiting in it."""
    with connected(config) as client:
        done = ask(client, DeleteSubscription(number, with_connection), Done)
    report(f"deleted subscription {number} with {done.count} pending messages", done, as_json)
