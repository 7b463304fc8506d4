"""``tidegate sink``: how sinks are doing, and what they do without a gateway; plugins add commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import msgspec
import typer

from tidegate.cli import _show
from tidegate.cli._commands import ConfigOption, JsonOption, open_typer
from tidegate.cli._host import column_table, plain_table
from tidegate.cli.groups._asking import NoGatewayError, ask, connected, moment
from tidegate.cli.groups._compacting import compact_by, compact_offline
from tidegate.cli.groups._offline import carry
from tidegate.spi import SinkUpkeep
from tidegate.spi.commands import ClientError, CommandHost
from tidegate.spi.operate import ListSinks, ShowSink, SinkDetails, SinkList, SinkStatus
from tidegate.spi.printable import printable

app: Final = open_typer(
    "Show and control the sinks, which carry acknowledged messages into tables."
)

_NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="[NAME]", help="Name of a sink; without it, all sinks.", show_default=False
    ),
]

_TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout", min=0, metavar="SECONDS", help="Give up after this time; 0 means never."
    ),
]

#: Columns of a list, and what each shows.
_COLUMNS: Final[tuple[tuple[str, Callable[[SinkStatus], object]], ...]] = (
    ("sink", lambda row: row.name),
    ("state", lambda row: row.health.state.value),
    ("rows behind", lambda row: row.lag_rows),
    ("oldest", lambda row: _age(row.lag_seconds)),
    ("rows/s", lambda row: round(row.health.rows_per_second)),
    ("last commit", lambda row: _committed_at(row)),
    ("staged rows", lambda row: row.health.staged_rows),
    ("log", lambda row: f"{row.log_share:.0%}"),
    ("problem", lambda row: row.health.problem or "none"),
)


@app.command()
def status(
    name: _NameArgument = "", config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Show the progress and the problems of a running gateway's sinks."""
    with connected(config) as client:
        if name:
            rows = (ask(client, ShowSink(name), SinkDetails).status,)
        else:
            rows = ask(client, ListSinks(), SinkList).rows
    if as_json:
        found = msgspec.to_builtins(rows)
        _show.print_json(found[0] if name else found)
    elif name:
        _show.make_console().print(plain_table(("what", "value"), _facts(rows[0])))
    elif rows:
        _show.make_console().print(column_table(_COLUMNS, rows))
    else:
        typer.echo("no sinks")


def _facts(row: SinkStatus) -> list[tuple[str, object]]:
    """All that is known of one sink."""
    health, commit = row.health, row.health.last_commit
    last = health.problems[0] if health.problems else None
    return [
        ("sink", row.name),
        ("state", health.state.value),
        ("table", health.target or "unknown"),
        (
            "mark",
            health.mark if health.is_mark_known else "not known yet: the job has not reported it",
        ),
        ("behind", f"{row.lag_rows} rows, {row.lag_bytes} bytes, oldest {_age(row.lag_seconds)}"),
        ("rows per second", f"{health.rows_per_second:.1f}"),
        ("last commit", _committed_at(row)),
        ("it had", f"{commit.rows} rows in {commit.seconds:.2f} s" if commit else "unknown"),
        ("table version", commit.version if commit else "unknown"),
        ("table files", _known(health.target_files)),
        ("last upkeep", _upkept(health.upkeep)),
        ("rows in the dead-letter table", _known(health.dead_rows)),
        (
            "staged",
            f"{health.staged_rows} rows in {health.staged_files} files, {health.staged_bytes} bytes",
        ),
        (
            "kept by the log",
            f"{row.log_rows} rows, {row.log_bytes} bytes, {row.log_share:.1%} of its limit",
        ),
        ("problem", health.problem or "none"),
        ("last problem", f"{moment(last.at)} {last.text}" if last else "none"),
    ]


@app.command()
def errors(
    name: _NameArgument = "", config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Show what went wrong in the sinks since the gateway started, and what to do about it."""
    with connected(config) as client:
        names = [name] if name else [row.name for row in ask(client, ListSinks(), SinkList).rows]
        rows = [ask(client, ShowSink(one), SinkDetails).status for one in names]
    if as_json:
        _show.print_json([_described(row) for row in rows])
        return
    for row in rows:
        health = row.health
        dead = _known(health.dead_rows)
        typer.echo(
            f"{printable(row.name)}: {printable(health.problem) or 'no problem now'};"
            f" {dead} rows in the dead-letter table"
        )
    cells = [[row.name, moment(item.at), item.text] for row in rows for item in row.health.problems]
    if cells:
        _show.make_console().print(plain_table(("sink", "when", "what, and what to do"), cells))
    if not rows:
        typer.echo("no sinks")


def _described(row: SinkStatus) -> dict[str, object]:
    health = row.health
    return {
        "name": row.name,
        "problem": health.problem,
        "dead_rows": health.dead_rows,
        "problems": [{"at": item.at, "text": item.text} for item in health.problems],
    }


@app.command()
def run(
    context: typer.Context,
    name: _NameArgument = "",
    timeout: _TimeoutOption = 0.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Carry all acknowledged messages into the tables without a gateway, and exit.

    The gateway must be stopped: this opens its store, and accepts no clients. Errors go to stderr and are
    retried until --timeout.
    """
    host: CommandHost = context.obj
    rows = carry(config, name, timeout, host.progress())
    if as_json:
        _show.print_json([{"name": row.name, "mark": row.health.mark} for row in rows])
        return
    for row in rows:
        typer.echo(f"{printable(row.name)}: everything up to row {row.health.mark} is in its table")


@app.command()
def compact(
    context: typer.Context,
    name: _NameArgument = "",
    timeout: _TimeoutOption = 0.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compact the tables now: merge small files and delete old ones. Exit code 8: one failed.

    A running gateway does this between its commits. Without one, the store is opened as by `run`, and
    acknowledged messages are carried into the tables as well.
    """
    host: CommandHost = context.obj
    try:
        client = connected(config)
    except NoGatewayError:
        rows = compact_offline(config, name, timeout, host.progress())
    else:
        with client:
            rows = compact_by(client, name, timeout)
    done = [(row.name, row.health.upkeep) for row in rows]
    if as_json:
        _show.print_json(
            [{"name": name, "upkeep": msgspec.to_builtins(turn)} for name, turn in done]
        )
    for sink, turn in () if as_json else done:
        typer.echo(f"{printable(sink)}: {_upkept(turn)}")
    if not done and not as_json:
        typer.echo("no sink has anything to compact")
    failed = [f"{sink}: {turn.problem}" for sink, turn in done if turn and turn.problem]
    if failed:
        raise ClientError(printable("; ".join(failed)))


# --- words ---------------------------------------------------------------------------------------


def _upkept(turn: SinkUpkeep | None) -> str:
    if turn is None:
        return "none since the start"
    if turn.problem:
        return f"{moment(turn.at)} failed"
    return (
        f"{moment(turn.at)} {turn.files_removed} files became {turn.files_added} in"
        f" {turn.seconds:.1f} s"
    )


def _committed_at(row: SinkStatus) -> str:
    commit = row.health.last_commit
    return moment(commit.at) if commit else "none since the start"


def _age(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:.1f} s" if seconds else "none"


def _known(count: int | None) -> object:
    return "unknown" if count is None else count
