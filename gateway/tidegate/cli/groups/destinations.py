"""``tidegate destination``: see and change the destinations of a gateway that runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from tidegate.cli import _show
from tidegate.cli._commands import ConfigOption, Group, JsonOption
from tidegate.cli.groups._asking import (
    CountOption,
    KeepOption,
    MessagesOption,
    SelectorOption,
    ask,
    canonical,
    connected,
    go_on,
    kept_until,
    moment,
    numbered,
)
from tidegate.cli.groups._lists import (
    Columns,
    LimitOption,
    MatchArgument,
    report,
    rows_of,
    show_facts,
    show_rows,
)
from tidegate.cli.groups._words import size
from tidegate.spi.operate import (
    BrowsedMessage,
    BrowseMessages,
    CopyMessages,
    CreateDestination,
    DeleteDestination,
    Destination,
    DestinationDetails,
    DestinationPage,
    DestinationSort,
    Done,
    Feed,
    ListDestinations,
    ListPurged,
    MessagePage,
    MoveMessages,
    PauseDestination,
    PurgeDestination,
    PurgedPage,
    PurgedRow,
    Request,
    ResumeDestination,
    ShowDestination,
    Side,
    UndoPurge,
)
from tidegate.spi.printable import printable

app = typer.Typer(
    cls=Group,
    help="Show and change the queues and topics of a running gateway.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="DESTINATION", help="A queue (NAME or queue://NAME) or a topic (topic://NAME)."
    ),
]
_TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="The queue that receives the messages.")
]
#: Columns of a list, and what each shows.
_COLUMNS: Final[tuple[tuple[str, Callable[[Destination], object]], ...]] = (
    ("destination", lambda row: row.destination),
    ("kind", lambda row: row.kind.value),
    ("pending", lambda row: row.pending),
    ("in flight", lambda row: row.in_flight),
    ("consumers", lambda row: row.consumers),
    ("memory bytes", lambda row: row.memory_bytes),
    ("at its limit", lambda row: _overflow(row)),
    ("dropped", lambda row: row.dropped),
    ("paused", lambda row: _paused(row)),
)


#: How much of each body a list shows.
_GLIMPSE_BYTES: Final = 60

_MESSAGES: Final[Columns[BrowsedMessage]] = (
    ("number", lambda row: row.sequence),
    ("received", lambda row: moment(row.received_at)),
    ("size", lambda row: size(row.size)),
    ("handed out", lambda row: row.delivery_count),
    ("in flight", lambda row: "yes" if row.is_in_flight else "no"),
    ("body", lambda row: printable(row.body.decode(errors="backslashreplace"))),
)

_PURGED: Final[Columns[PurgedRow]] = (
    ("purged", lambda row: row.destination),
    ("messages", lambda row: row.pending),
    ("kept until", lambda row: moment(row.until)),
    ("kept", lambda row: row.kept),
)


@app.command(name="list")
def list_destinations(
    match: Annotated[
        str,
        typer.Argument(
            metavar="[FILTER]", help="Only destinations that this name or filter matches."
        ),
    ] = "",
    sort: Annotated[
        DestinationSort,
        typer.Option("--sort", help="Sort by name, or by this value, largest first."),
    ] = DestinationSort.NAME,
    limit: LimitOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the queues, and the topic filters that have subscribers."""
    rows = rows_of(config, ListDestinations(match, sort), DestinationPage, limit)
    show_rows(_COLUMNS, rows, "no destinations", as_json)


@app.command()
def show(
    destination: _NameArgument, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Show a destination and its policy."""
    with connected(config) as client:
        found = ask(client, ShowDestination(canonical(destination)), DestinationDetails)
    if as_json:
        _show.print_json(msgspec.to_builtins(found))
        return
    row = found.row
    facts: list[tuple[str, object]] = [(heading, value(row)) for heading, value in _COLUMNS]
    facts.append(("subscriptions", row.subscriptions))
    if row.body_bytes is not None:
        facts.append(("body bytes", row.body_bytes))
    facts.append(("store accepts messages", printable(found.refused) or "yes"))
    facts += [fact for feed in found.feeds for fact in _fed(feed)]
    if found.unstored is not None:
        here = found.unstored
        facts.append(
            ("not stored", f"{here.messages} messages, {here.memory_bytes} bytes of memory")
        )
        facts.append(("temporary files", f"{here.file_bytes} bytes"))
    facts.append(("oldest message", moment(found.oldest_at) if found.oldest_at else "none"))
    facts += [(f"policy {name}", value) for name, value in found.policy.items()]
    show_facts(facts)


def _fed(feed: Feed) -> list[tuple[str, object]]:
    """Where a list is fed from, as facts."""
    of = f" of {feed.subscription}" if feed.subscription else ""
    place = "pages" if feed.is_paging else "memory"
    return [
        (
            f"fed from{of}",
            f"{place}, since {moment(feed.since)} ({feed.why}), changed {feed.turns} times",
        ),
        (f"to memory at once{of}", f"{feed.direct_messages} messages, {feed.direct_bytes} bytes"),
        (f"read from pages{of}", f"{feed.paged_messages} messages, {feed.paged_bytes} bytes"),
    ]


@app.command()
def create(
    destination: _NameArgument, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Create a queue."""
    request = CreateDestination(canonical(destination))
    done = _ask_once(config, request)
    report(f"created {request.destination}", done, as_json)


@app.command()
def delete(
    destination: _NameArgument,
    with_messages: Annotated[
        bool,
        typer.Option(
            "--with-messages", help="Delete it even if it is not empty; its messages are lost."
        ),
    ] = False,
    with_consumers: Annotated[
        bool,
        typer.Option(
            "--with-consumers", help="Delete it even if it has consumers; their subscriptions end."
        ),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a queue."""
    request = DeleteDestination(canonical(destination), with_messages, with_consumers)
    done = _ask_once(config, request)
    report(f"deleted {request.destination} with {done.count} pending messages", done, as_json)


_ProducersOption = Annotated[
    bool, typer.Option("--producers", help="Only producers: what they send is refused.")
]
_ConsumersOption = Annotated[
    bool, typer.Option("--consumers", help="Only consumers: no messages are delivered to them.")
]


@app.command()
def pause(
    destination: _NameArgument,
    producers: _ProducersOption = False,
    consumers: _ConsumersOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Refuse what producers send, and deliver nothing to consumers."""
    request = PauseDestination(canonical(destination), _sides(producers, consumers))
    _switch("paused", request, config, as_json)


@app.command()
def resume(
    destination: _NameArgument,
    producers: _ProducersOption = False,
    consumers: _ConsumersOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let producers and consumers continue after a pause."""
    request = ResumeDestination(canonical(destination), _sides(producers, consumers))
    _switch("resumed", request, config, as_json)


@app.command()
def browse(
    destination: _NameArgument,
    selector: SelectorOption = "",
    limit: LimitOption = 100,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the messages of a queue in order, without consuming them."""
    request = BrowseMessages(canonical(destination), selector, body_bytes=_GLIMPSE_BYTES)
    rows = rows_of(config, request, MessagePage, limit)
    show_rows(_MESSAGES, rows, "no messages", as_json)


@app.command()
def purge(
    destination: _NameArgument,
    selector: SelectorOption = "",
    count: CountOption = 0,
    messages: MessagesOption = None,
    keep: KeepOption = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove messages from a queue, for good or, with --keep, until `undo`."""
    request = PurgeDestination(
        canonical(destination),
        selector,
        count,
        keep_until=kept_until(keep),
        sequences=numbered(messages),
    )
    done = go_on(config, request)
    report(f"purged {done.count} messages of {request.destination}", done, as_json)


@app.command()
def purged(
    match: MatchArgument = "",
    limit: LimitOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the purged messages that are kept."""
    rows = rows_of(config, ListPurged(match), PurgedPage, limit)
    show_rows(_PURGED, rows, "no purged messages are kept", as_json)


@app.command()
def undo(
    kept: Annotated[
        str, typer.Argument(metavar="KEPT", help="Key of the kept messages, as `purged` lists it.")
    ],
    selector: SelectorOption = "",
    count: CountOption = 0,
    messages: MessagesOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring back messages that a purge kept."""
    request = UndoPurge(canonical(kept), selector, count, sequences=numbered(messages))
    done = go_on(config, request)
    report(f"brought back {done.count} messages of {request.kept}", done, as_json)


@app.command()
def move(
    destination: _NameArgument,
    target: _TargetArgument,
    selector: SelectorOption = "",
    count: CountOption = 0,
    messages: MessagesOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move messages from one queue to the end of another."""
    ends = canonical(destination), canonical(target)
    request = MoveMessages(*ends, selector, count, sequences=numbered(messages))
    _carry("moved", request, config, as_json)


@app.command()
def copy(
    destination: _NameArgument,
    target: _TargetArgument,
    selector: SelectorOption = "",
    count: CountOption = 0,
    messages: MessagesOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy messages from one queue to the end of another."""
    ends = canonical(destination), canonical(target)
    request = CopyMessages(*ends, selector, count, sequences=numbered(messages))
    _carry("copied", request, config, as_json)


# --- asking ------------------------------------------------------------------------------------


def _ask_once(config: Path | None, request: Request) -> Done:
    with connected(config) as client:
        return ask(client, request, Done)


def _switch(
    word: str, request: PauseDestination | ResumeDestination, config: Path | None, as_json: bool
) -> None:
    done = _ask_once(config, request)
    sides = " and ".join(side.value for side in request.sides)
    report(f"{word} {sides} of {request.destination}", done, as_json)


def _carry(
    word: str, request: MoveMessages | CopyMessages, config: Path | None, as_json: bool
) -> None:
    done = go_on(config, request)
    text = f"{word} {done.count} messages of {request.destination} to {request.target}"
    report(text, done, as_json)


# --- words -------------------------------------------------------------------------------------


def _sides(producers: bool, consumers: bool) -> tuple[Side, ...]:
    if producers is consumers:
        return (Side.PRODUCERS, Side.CONSUMERS)
    return (Side.PRODUCERS,) if producers else (Side.CONSUMERS,)


def _overflow(row: Destination) -> str:
    acts = " and ".join(row.overflow) or "pages"
    return f"{acts}: producers wait" if row.is_full else acts


def _paused(row: Destination) -> str:
    paused = {"producers": row.producers_paused, "consumers": row.consumers_paused}
    return " and ".join(word for word, is_paused in paused.items() if is_paused) or "no"
