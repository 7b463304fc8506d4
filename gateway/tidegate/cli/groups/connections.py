"""``tidegate connection``: who is connected to a gateway that runs, why it is slow, and its end."""

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
from tidegate.cli.groups._words import size, sized
from tidegate.spi.operate import (
    ConnectionDetails,
    ConnectionPage,
    ConnectionRow,
    ConnectionSort,
    Done,
    EndConnection,
    ListConnections,
    Served,
    ShowConnection,
    WaitReason,
)

app: Final = typer.Typer(
    cls=Group,
    help="List, show and end the connections of a running gateway.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_NumberArgument = Annotated[
    int, typer.Argument(metavar="NUMBER", min=0, help="Number of the connection, as listed.")
]

#: What each reason means, for people.
_REASONS: Final = {
    WaitReason.HANDSHAKE: "its handshake is not finished",
    WaitReason.RIGHTS: "permissions have changed and are being checked again",
    WaitReason.UNREAD: "the client does not read what was sent to it",
    WaitReason.IN_FLIGHT: "the client, its user or the gateway has reached its limit of unacknowledged bytes",
    WaitReason.ACKNOWLEDGEMENTS: "this subscription has reached its limit of unacknowledged messages",
    WaitReason.LIST: "reading is paused: no room in",
    WaitReason.STORE: "reading is paused: the store has to write first what was already accepted",
    WaitReason.RATE: "reading is paused: the user exceeds quotas.receive_rate",
    WaitReason.STOPPING: "reading is paused: the gateway is stopping",
}

_COLUMNS: Final[Columns[ConnectionRow]] = (
    ("number", lambda row: row.number),
    ("user", lambda row: row.principal),
    ("client id", lambda row: row.client_id),
    ("protocol", lambda row: f"{row.protocol} {row.version}"),
    ("address", lambda row: row.address),
    ("in flight", lambda row: row.in_flight),
    ("unread bytes", lambda row: row.unread_bytes),
    ("per second", lambda row: row.per_second),
    ("waits for", lambda row: ", ".join(reason.value for reason in row.waits) or "nothing"),
)


@app.command(name="list")
def list_connections(
    match: MatchArgument = "",
    sort: Annotated[
        ConnectionSort,
        typer.Option("--sort", help="Sort by name, or by this value, largest first."),
    ] = ConnectionSort.NAME,
    limit: LimitOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the connected clients, by user and client id."""
    rows = rows_of(config, ListConnections(match, sort), ConnectionPage, limit)
    show_rows(_COLUMNS, rows, "no connections", as_json)


@app.command()
def show(number: _NumberArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show a connection: its subscriptions, what it holds, and what it is waiting for."""
    with connected(config) as client:
        found = ask(client, ShowConnection(number), ConnectionDetails)
    if as_json:
        _show.print_json(msgspec.to_builtins(found))
        return
    row = found.row
    facts: list[tuple[str, object]] = [(heading, value(row)) for heading, value in _COLUMNS[:-1]]
    facts += [
        ("listener", row.listener),
        ("certificate", row.certificate or "none"),
        ("connected at", moment(row.connected_at)),
        ("session", found.session or "none"),
        ("delivered, confirmed", f"{row.delivered}, {row.confirmed}"),
        ("transactions", found.transactions),
        ("held", sized(found.held)),
        ("held for its user", sized(found.user_held)),
        ("bytes in flight", sized(found.in_flight)),
        ("in flight for its user", sized(found.user_in_flight)),
    ]
    facts += [(f"subscription {served.key}", _served(served)) for served in found.served]
    facts += [
        ("waits", " ".join(filter(None, (_REASONS[wait.reason], wait.what))))
        for wait in found.waits
    ]
    show_facts(facts)


def _served(served: Served) -> str:
    text = f"{served.destination}: {served.waiting} waiting"
    if not served.in_flight_max:
        return f"{text}, not acknowledged by the consumer"
    text += f", {served.in_flight} of {served.in_flight_max} in flight"
    text += f" ({size(served.in_flight_bytes)} of {size(served.in_flight_bytes_max)})"
    return f"{text}, the oldest since {moment(served.oldest_at)}" if served.oldest_at else text


@app.command()
def end(number: _NumberArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Close a connection; its session stays, and its will is published."""
    with connected(config) as client:
        done = ask(client, EndConnection(number), Done)
    report(f"ended connection {number}", done, as_json)
