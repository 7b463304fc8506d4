"""``tidegate dlq``: dead letters of a gateway that runs: where they are, why, and back."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import typer

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
from tidegate.cli.groups._lists import Columns, LimitOption, report, rows_of, show_rows
from tidegate.cli.groups._words import size
from tidegate.spi.operate import (
    CountDeadLetters,
    DeadLetterGroup,
    DeadLetterGroups,
    Destination,
    DestinationPage,
    DestinationSort,
    ListDestinations,
    PurgeDestination,
    RetryMessages,
)

app: Final = typer.Typer(
    cls=Group,
    help="List, retry and purge the dead letters of a running gateway.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

#: Additional headers of a dead letter.
FROM: Final = "original-destination"
REASON: Final = "dead-letter-reason"

_QueueArgument = Annotated[
    str, typer.Argument(metavar="QUEUE", help="A dead-letter queue: NAME or queue://NAME.")
]
_ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Only dead letters with this reason.")
]
_FromOption = Annotated[
    str,
    typer.Option("--from", metavar="DESTINATION", help="Only dead letters from this destination."),
]

_QUEUES: Final[Columns[Destination]] = (
    ("queue", lambda row: row.destination),
    ("dead letters", lambda row: row.pending),
    ("in flight", lambda row: row.in_flight),
    ("consumers", lambda row: row.consumers),
)


_GROUPS: Final[Columns[DeadLetterGroup]] = (
    ("from", lambda row: row.origin or "unknown"),
    ("messages", lambda row: row.count),
    ("bodies", lambda row: size(row.size)),
    ("reason", lambda row: row.reason or "unknown"),
    ("the first received", lambda row: moment(row.first_at)),
    ("the last", lambda row: moment(row.last_at)),
)


@app.command(name="list")
def list_queues(
    limit: LimitOption = 0, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """List the dead-letter queues, largest first."""
    rows = rows_of(
        config,
        ListDestinations(sort=DestinationSort.PENDING, dead_letters=True),
        DestinationPage,
        limit,
    )
    show_rows(_QUEUES, rows, "no dead-letter queues", as_json)


@app.command()
def reasons(
    queue: _QueueArgument,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=0, help="Look at no more than this many messages; 0 means all."
        ),
    ] = 100_000,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Group the dead letters of a queue by original destination and reason."""
    groups: dict[tuple[str, str], DeadLetterGroup] = {}
    request = CountDeadLetters(canonical(queue), count_max=limit)
    with connected(config) as client:
        while True:
            found = ask(client, request, DeadLetterGroups)
            for group in found.groups:
                key = group.origin, group.reason
                groups[key] = _together(groups[key], group) if key in groups else group
            left = request.count_max - found.count
            if found.is_complete or (limit and left <= 0):
                break
            request = msgspec.structs.replace(
                request, after=found.after, through=found.through, count_max=left if limit else 0
            )
    rows = sorted(groups.values(), key=lambda group: (-group.count, group.origin, group.reason))
    show_rows(_GROUPS, rows, "no dead letters", as_json)


@app.command()
def retry(
    queue: _QueueArgument,
    reason: _ReasonOption = "",
    origin: _FromOption = "",
    selector: SelectorOption = "",
    count: CountOption = 0,
    messages: MessagesOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move dead letters back to the queues they came from."""
    request = RetryMessages(
        canonical(queue),
        _matching(selector, reason, origin),
        count,
        sequences=numbered(messages),
    )
    done = go_on(config, request)
    report(f"moved {done.count} dead letters of {request.destination} back", done, as_json)


@app.command()
def purge(
    queue: _QueueArgument,
    reason: _ReasonOption = "",
    origin: _FromOption = "",
    selector: SelectorOption = "",
    count: CountOption = 0,
    messages: MessagesOption = None,
    keep: KeepOption = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove dead letters, for good or, with --keep, until `tidegate destination undo`."""
    request = PurgeDestination(
        canonical(queue),
        _matching(selector, reason, origin),
        count,
        keep_until=kept_until(keep),
        sequences=numbered(messages),
    )
    done = go_on(config, request)
    report(f"purged {done.count} dead letters of {request.destination}", done, as_json)


def _matching(selector: str, reason: str, origin: str) -> str:
    """A selector of all that is asked for."""
    wanted = [f"({selector})"] if selector else []
    wanted += [
        f'"{header}" = {_quoted(value)}'
        for header, value in ((REASON, reason), (FROM, canonical(origin) if origin else ""))
        if value
    ]
    return " AND ".join(wanted)


def _together(one: DeadLetterGroup, other: DeadLetterGroup) -> DeadLetterGroup:
    """The same group of two answers."""
    return msgspec.structs.replace(
        one,
        count=one.count + other.count,
        size=one.size + other.size,
        first_at=min(one.first_at, other.first_at),
        last_at=max(one.last_at, other.last_at),
    )


def _quoted(text: str) -> str:
    """As a string of a selector."""
    return "'" + text.replace("'", "''") + "'"
