"""``tidegate events``: what happened, and what happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
import typer

from tidegate.cli import _show
from tidegate.cli._commands import ConfigOption, JsonOption
from tidegate.cli.groups._asking import ask, connected
from tidegate.operator_socket import OperatorClient
from tidegate.spi import parse_duration
from tidegate.spi.events import EventKind, Severity
from tidegate.spi.operate import EVENT_WAIT_MAX_S, PAGE_MAX, EventPage, EventRow, ListEvents
from tidegate.spi.printable import printable

_US: Final = 1_000_000
#: Column widths: the longest severity, and nearly all names.
_SEVERITY: Final = max(len(severity.value) for severity in Severity)
_NAME: Final = 24


def events(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new events until Ctrl-C.")
    ] = False,
    kind: Annotated[
        list[EventKind] | None, typer.Option("--kind", help="Only events of this kind; repeatable.")
    ] = None,
    severity: Annotated[
        Severity, typer.Option("--severity", help="Only events of this severity or above.")
    ] = Severity.INFO,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="TIME|SEQUENCE",
            help="Only events of the last TIME (15m), or after the event with this sequence.",
        ),
    ] = "",
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=0, help="Show the last events, this many; 0 shows all that are kept."
        ),
    ] = 100,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show recent events of the running gateway; with --follow, also new ones.

    --json prints a list; with --follow, one object per line.
    """
    request = _since(ListEvents(kinds=tuple(kind or ()), severity=severity), since)
    with connected(config) as client:
        page = _first(client, request, limit)
        if as_json and not follow:
            _show.print_json(msgspec.to_builtins(page.rows))
            return
        _print(page, as_json)
        if not (page.rows or follow):
            typer.echo("no events")
        while follow:
            request = msgspec.structs.replace(request, after=page.next, wait_s=EVENT_WAIT_MAX_S)
            page = ask(client, request, EventPage)
            _print(page, as_json)


def _since(request: ListEvents, text: str) -> ListEvents:
    """Raises: typer.BadParameter."""
    if text.isascii() and text.isdecimal():
        return msgspec.structs.replace(request, after=int(text))
    if not text:
        return request
    try:
        age = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{error}; or give a sequence number", param_hint="--since"
        ) from error
    return msgspec.structs.replace(request, since=max(0, time.time_ns() // 1000 - int(age * _US)))


def _first(client: OperatorClient, request: ListEvents, limit: int) -> EventPage:
    """What there is already; of an event that is named all that is behind it, else the last ones."""
    if limit and limit <= PAGE_MAX and not request.after:
        asked = msgspec.structs.replace(request, limit=limit, newest=True)
        return ask(client, asked, EventPage)
    rows: list[EventRow] = []
    missed, is_restarted, after = 0, False, request.after
    for page in _pages(client, request):
        rows += page.rows
        missed, after = missed + page.missed, page.next
        is_restarted = is_restarted or page.is_restarted
    return EventPage(tuple(rows[-limit:] if limit else rows), after, missed, is_restarted)


def _pages(client: OperatorClient, request: ListEvents) -> Iterator[EventPage]:
    request = msgspec.structs.replace(request, limit=PAGE_MAX)
    while True:
        page = ask(client, request, EventPage)
        yield page
        if len(page.rows) < PAGE_MAX:
            return
        request = msgspec.structs.replace(request, after=page.next)


def _print(page: EventPage, as_json: bool) -> None:
    if as_json:
        if page.missed or page.is_restarted:
            _line({"missed": page.missed, "is_restarted": page.is_restarted})
        for row in page.rows:
            _line(msgspec.to_builtins(row))
        return
    if page.is_restarted:
        typer.echo("… the gateway was restarted: earlier events are not kept")
    if page.missed:
        typer.echo(f"… {page.missed} events are no longer kept")
    for row in page.rows:
        typer.echo(
            f"{_moment(row.at)} {row.severity.value:<{_SEVERITY}} {row.event.value:<{_NAME}}"
            f" {printable(row.text)}"
        )


def _line(found: object) -> None:
    typer.echo(msgspec.json.encode(found).decode())


def _moment(microseconds: int) -> str:
    """UTC, with milliseconds."""
    seconds, rest = divmod(microseconds, _US)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1000:03d}Z"
