"""``tidegate sink verify``; :mod:`tidegate_sink_spark.cluster.command` adds to it, and is the entry point."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from tidegate.spi import CommandHost, ConfiguredSink, LogState
from tidegate_sink_spark.java.quiet import JavaOutput

if TYPE_CHECKING:
    from tidegate_sink_spark._options import SparkSinkOptions
    from tidegate_sink_spark._target import Target
    from tidegate_sink_spark.verify.findings import Findings
    from tidegate_sink_spark.verify.seen import SeenTable

app: Final = typer.Typer(rich_markup_mode=None)

_PROBLEMS: Final = 1  # the exit code


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]  # so that `verify` stays a command
    """What carries acknowledged messages into tables."""


@app.command()
def verify(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]", help="Name of a sink; without it, all sinks.", show_default=False
        ),
    ] = "",
    content: Annotated[
        bool,
        typer.Option(
            "--content",
            help="Read all rows and compare their contents with the staged rows and with the log.",
        ),
    ] = False,
    first: Annotated[
        int,
        typer.Option(
            "--from", min=1, metavar="ROW", help="Leave out rows before this ack sequence."
        ),
    ] = 1,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="The configuration file; without it, the embedded default.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Prove that table, staged files and log agree; exit code 1 when they do not.

    Each acknowledged row up to the table's mark is in the table or its dead-letter table, once; none is
    above the mark; staged files and log continue there. The gateway may run.
    """
    from tidegate_sink_spark._remedies import client_errors

    host: CommandHost = context.obj
    results: list[tuple[str, Findings]] = []
    for sink in host.sinks(config, "spark", name):
        with client_errors():
            found = _verify(host, config, sink, first=first, content=content)
        results.append((sink.name, found))
    if as_json:
        host.print_json([{"sink": sink} | dataclasses.asdict(found) for sink, found in results])
    else:
        for sink, found in results:
            _show(host, sink, found)
    if any(found.problems for _, found in results):
        raise typer.Exit(_PROBLEMS)


def _verify(
    host: CommandHost, config: Path | None, sink: ConfiguredSink, *, first: int, content: bool
) -> Findings:
    from tidegate_sink_spark._target import default_table, find_routes, find_target
    from tidegate_sink_spark.cluster.place import log_directory
    from tidegate_sink_spark.job.table import dead_letters_of
    from tidegate_sink_spark.staging.files import list_staged
    from tidegate_sink_spark.staging.selection import Selection
    from tidegate_sink_spark.verify.findings import Seen
    from tidegate_sink_spark.verify.proof import prove
    from tidegate_sink_spark.verify.seen import Log, log_part, look_at

    options = cast("SparkSinkOptions", sink.options)
    before = host.log_state(config)
    log = Log(sink.context.gateway_name, before.store_id)
    main = find_target(options, default_table(sink.context.data_directory))
    of_delta_rs = options.storage_options if options.engine == "deltalake" else None
    with _Sessions(options) as start_spark:

        def look(target: Target) -> SeenTable | None:
            return look_at(target, options.format, log, start_spark, of_delta_rs)

        directory = log_directory(options, sink.context, before.store_id)
        staged = list_staged(directory) if directory.exists() else []
        table = look(main)
        further = {
            target.table: found
            for target in find_routes(options, main).values()
            if (found := look(target)) is not None
        }
        beside = dataclasses.replace(main, table=dead_letters_of(main.table))
        dead = look(beside)
        return prove(
            Seen(
                before,
                _log_after(host, config, before, table.mark if table else 0, staged),
                staged,
                table,
                further,
                dead,
                is_dense=Selection(options.include, options.exclude).takes_all,
                first=first,
                read_log=lambda after, through, take: host.read_log(
                    config, after, through, lambda rows: take(log_part(rows, log))
                ),
            ),
            content=content,
        )


def _log_after(
    host: CommandHost, config: Path | None, before: LogState, mark: int, staged: Any
) -> LogState:
    """How far the log is, read again when something seen is beyond it."""
    reached = max([mark, *(file.hi for file in staged)])
    return before if reached <= before.last else host.log_state(config)


class _Sessions:
    """Starts Spark when it is needed, and ends it."""

    def __init__(self, options: SparkSinkOptions) -> None:
        self._options = options
        self._session: Any = None
        self._output = JavaOutput()

    def __enter__(self) -> Callable[[], Any]:
        return self._start

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._session is not None:
            self._session.stop()
        if kind is not None:
            self._output.tell()
        self._output.close()

    def _start(self) -> Any:
        from tidegate_sink_spark._reader import create_session

        if self._session is None:
            with self._output.taken():
                self._session = create_session("tidegate sink verify", self._options)
        return self._session


def _up_to(count: int, last: int) -> str:
    return f", up to {last}" if count else ""


def _range(first: int, last: int) -> str:
    return f"{first} to {last}" if first <= last else f"empty; the next row is {first}"


def _show(host: CommandHost, name: str, found: Findings) -> None:
    facts: list[tuple[str, object]] = [
        ("sink", name),
        ("mark", found.mark),
        ("rows in the table", found.rows),
        ("rows in the dead-letter table", found.dead_rows),
        ("table files", found.files),
        ("staged", f"{found.staged_rows} rows" + _up_to(found.staged_rows, found.staged_through)),
        ("the log", _range(found.log_first, found.log_last)),
    ]
    if found.content:
        facts += [
            ("content hash", found.content),
            ("compared with staged rows", found.compared),
            ("compared with the log", found.compared_log),
            ("… bodies by size and checksum", found.compared_checksum),
            ("only in the hash", found.only_hashed),
            ("dead letters with their reason", found.dead_named),
        ]
        if found.damaged:
            facts.append(("damaged in the log by now", found.damaged))
        if found.not_taken:
            facts.append(("of the log, not this sink's", found.not_taken))
    facts += [("note", note) for note in found.notes]
    facts += [("WRONG", problem) for problem in found.problems]
    facts.append(
        ("result", "not proved" if found.problems else "table, staged files and log agree")
    )
    host.print_table(("what", "value"), facts)
