"""Lists of the operator's contract: asked for page by page, and printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeAlias, TypeVar, cast

import msgspec
import typer

from tidegate.cli import _show
from tidegate.cli._host import column_table, plain_table
from tidegate.cli.groups._asking import ask, connected
from tidegate.spi.operate import Answer, Done, Request
from tidegate.spi.printable import printable

#: Rows asked for at a time.
_PAGE: Final = 500

_RowT = TypeVar("_RowT")
_RowT_co = TypeVar("_RowT_co", covariant=True)

#: Headings, and what each shows.
Columns: TypeAlias = Sequence[tuple[str, Callable[[_RowT], object]]]

LimitOption = Annotated[
    int, typer.Option("--limit", min=0, help="Show at most this many; 0 shows all.")
]
MatchArgument = Annotated[
    str, typer.Argument(metavar="[TEXT]", help="Only entries with this text in one of their names.")
]


class Page(Protocol[_RowT_co]):
    """Rows of a list, and where it goes on."""

    @property
    def rows(self) -> tuple[_RowT_co, ...]: ...

    @property
    def next(self) -> str | int: ...


def rows_of(
    config: Path | None, request: Request, kind: type[Page[_RowT]], limit: int
) -> list[_RowT]:
    """All rows of a list, or *limit* of them, asked for page by page.

    Args: request: has ``limit`` and ``after``; kind: of the pages. Raises: as :func:`ask`.
    """
    rows: list[_RowT] = []
    with connected(config) as client:
        while True:
            wanted = min(_PAGE, limit - len(rows)) if limit else _PAGE
            answer = ask(
                client, msgspec.structs.replace(request, limit=wanted), cast("type[Answer]", kind)
            )
            page = cast("Page[_RowT]", answer)
            rows += page.rows
            if not page.next or len(rows) == limit:
                return rows
            request = msgspec.structs.replace(request, after=page.next)


def show_rows(columns: Columns[_RowT], rows: Sequence[_RowT], nothing: str, as_json: bool) -> None:
    """Print a list. Args: nothing: what to say of an empty one."""
    if as_json:
        _show.print_json(msgspec.to_builtins(rows))
    elif rows:
        _show.make_console().print(column_table(columns, rows))
    else:
        typer.echo(nothing)


def show_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Print what is known of one thing."""
    _show.make_console().print(plain_table(("what", "value"), facts))


def report(text: str, done: Done, as_json: bool) -> None:
    """Say what was done."""
    if as_json:
        facts: dict[str, Any] = {"done": text, "count": done.count, "note": done.note}
        _show.print_json(facts)
    else:
        typer.echo(" ".join(filter(None, (f"{printable(text)}.", done.note))))
