"""``tidegate replay``: rows of a sink's table become messages again."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

import typer

from tidegate.spi import ConfigError, format_size, names
from tidegate.spi.commands import CommandHost, OperatorConnection, Progress
from tidegate.spi.operate import Done
from tidegate.spi.printable import printable
from tidegate.spi.replay import ForgetReplay
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._target import default_table, with_table
from tidegate_sink_spark.replay.asking import Asking
from tidegate_sink_spark.replay.messages import Maker
from tidegate_sink_spark.replay.running import Replayer, Told
from tidegate_sink_spark.replay.selecting import Plan, Reader, Selection
from tidegate_sink_spark.replay.tables import open_table

app = typer.Typer(
    rich_markup_mode=None, help="Rows of a sink's table become messages again, each exactly once."
)

#: Seconds between two lines that say the same.
_SAID_S: Final = 10.0

#: Destinations that a dry run lists individually.
_SHOWN_MAX: Final = 100


@app.command(name="replay")
def replay(
    context: typer.Context,
    sink: Annotated[
        str,
        typer.Option(
            "--sink", metavar="NAME", help="Name of the sink; may be left out if there is only one."
        ),
    ] = "",
    table: Annotated[
        str,
        typer.Option(
            "--table", metavar="TABLE", help="Path, URI or name of a table, instead of the sink's."
        ),
    ] = "",
    table_format: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", help="Format of --table; without it, the sink's."
        ),
    ] = "",
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="Engine that reads the table, spark or deltalake; without it, the sink's.",
        ),
    ] = "",
    where: Annotated[
        str,
        typer.Option(
            "--where", metavar="SQL", help="SQL condition: publish only rows for which it is true."
        ),
    ] = "",
    since: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Only rows whose acked_at is this time or later.",
        ),
    ] = "",
    until: Annotated[
        str,
        typer.Option("--to", metavar="TIME", help="Only rows whose acked_at is before this time."),
    ] = "",
    to_destination: Annotated[
        str,
        typer.Option(
            "--to-destination",
            metavar="DESTINATION",
            help="A queue (NAME or queue://NAME) or topic (topic://NAME); without it, each "
            "row's own destination.",
        ),
    ] = "",
    rate: Annotated[
        float,
        typer.Option("--rate", min=0, help="At most this many messages per second; 0: no limit."),
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be published, without publishing it.")
    ] = False,
    replay_id: Annotated[
        str,
        typer.Option(
            "--id", metavar="ID", help="Id of the replay; another id replays the same rows again."
        ),
    ] = "",
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="Forget the replay, so that it starts from the beginning next time."
        ),
    ] = False,
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
    """Publish rows of a sink's table again, to a gateway that runs.

    Killed at any moment, or the gateway: the same command goes on, nothing comes twice and nothing is left out. When
    it is complete the same command does nothing; --id NAME makes another replay of it.
    """
    host: CommandHost = context.obj
    selection = Selection(where, _time(since), _time(until), not to_destination)
    destination = _canonical(to_destination) if to_destination else ""
    options, directory = _configured(host, config, sink, table)
    options = _options(options, table, table_format, engine)
    default = default_table(directory)
    name = _name(options.table or str(default))
    of = _what(options.table or str(default), selection, destination)
    replay_id = replay_id or "r" + hashlib.sha256(of.encode()).hexdigest()[:16]
    with Asking(lambda: host.operator(config)) as gateway:
        if forget:
            _forget(host, gateway, replay_id, as_json)
            return
        with closing(open_table(options, default)) as rows:
            progress = host.progress()
            told = _Teller(progress)
            replayer = Replayer(
                gateway,
                Reader(rows, selection),
                Maker(name, replay_id, destination),
                of,
                rate=rate,
                tell=told,
            )
            if dry_run:
                _show(host, replayer, as_json)
                return
            try:
                found = replayer.run()
            finally:
                told.end()
    if as_json:
        host.print_json({"replay": replay_id, "published": found.count, "complete": True})
    elif found.is_new:
        typer.echo("No row is selected, so nothing was published.")
    else:
        again = (
            "" if told.has_published else " It was already complete; --id NAME replays it again."
        )
        typer.echo(f"The replay {replay_id} has published {found.count} messages.{again}")


class _Teller:
    """A progress bar on a terminal; also a line, now and then, while the gateway takes none."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._said_at: dict[str, float] = {}
        self._first = self._done = -1
        self.has_published = False

    def __call__(self, told: Told) -> None:
        self._first = told.done if self._first < 0 else self._first
        self._done = told.done
        self.has_published = self.has_published or told.done > self._first
        now = time.monotonic()
        if told.waiting and now >= self._said_at.get(told.waiting, now):
            self._said_at = {told.waiting: now + _SAID_S}
            text = printable(told.waiting)
            sys.stderr.write(f"waiting after {told.done} messages: {text}\n")
        self._progress("messages", told.done, told.total)

    def end(self) -> None:
        """Remove the bar, however it ended."""
        if self._done > 0:
            self._progress("messages", self._done, self._done)


def _show(host: CommandHost, replayer: Replayer, as_json: bool) -> None:
    """What a dry run prints."""
    plan = replayer.reader.plan()
    problems = replayer.refusals(plan)
    to = replayer.maker.destination
    by = {to: (plan.rows, plan.size)} if to and plan.rows else plan.destinations
    if as_json:
        host.print_json(
            {
                "replay": replayer.maker.replay,
                "messages": plan.rows,
                "body_bytes": plan.size,
                "left_out": plan.left_out,
                "repeated": plan.repeated,
                "destinations": [
                    {
                        "destination": name,
                        "messages": count,
                        "body_bytes": size,
                        "problem": problems.get(name, ""),
                    }
                    for name, (count, size) in by.items()
                ],
            }
        )
        return
    shown = list(by.items())[:_SHOWN_MAX]
    if shown:
        headings = ("destination", "messages", "bytes of bodies", "refused")
        rows = [(name, count, size, problems.get(name, "")) for name, (count, size) in shown]
        host.print_table(headings, rows)
    if len(by) > len(shown):
        typer.echo(f"… and {len(by) - len(shown)} more destinations")
    refused = [name for name in problems if name not in dict(shown)]
    if refused:
        typer.echo(f"… of which are refused: {printable(', '.join(refused[:_SHOWN_MAX]))}")
    typer.echo(_summary(plan, len(problems)))


def _summary(plan: Plan, refused: int) -> str:
    text = f"{plan.rows} messages with {format_size(plan.size)} of bodies would be published."
    if plan.repeated:
        text += f" {plan.repeated} rows are of messages that have an earlier row."
    if plan.left_out:
        text += f" {plan.left_out} rows are left out: no message can be made from them."
    if refused:
        text += f" {refused} destinations refuse them: as it is, nothing would be published."
    return text


def _forget(host: CommandHost, gateway: OperatorConnection, replay_id: str, as_json: bool) -> None:
    answer = gateway.answer(ForgetReplay(replay_id))
    was_there = isinstance(answer, Done) and bool(answer.count)
    if as_json:
        host.print_json({"replay": replay_id, "forgotten": was_there})
    else:
        typer.echo(f"{'Forgot' if was_there else 'Nothing is known of'} the replay {replay_id}.")


# --- what the options mean -----------------------------------------------------------------------


def _configured(
    host: CommandHost, config: Path | None, name: str, table: str
) -> tuple[SparkSinkOptions, Path]:
    """A sink's options, and its directory. Raises: ConfigError; typer.BadParameter."""
    try:
        sinks = host.sinks(config, "spark", name)
    except ConfigError:
        if name or not table:
            raise
        return SparkSinkOptions(), Path()
    if len(sinks) > 1:
        known = ", ".join(item.name for item in sinks)
        raise typer.BadParameter(
            f"choose one of the sinks with --sink: {known}", param_hint="--sink"
        )
    options = sinks[0].options
    assert isinstance(options, SparkSinkOptions)
    return options, sinks[0].context.data_directory


def _options(
    options: SparkSinkOptions, table: str, table_format: str, engine: str
) -> SparkSinkOptions:
    """With the command's own options. Raises: typer.BadParameter."""
    if table_format not in ("", "delta", "iceberg", "parquet"):
        raise typer.BadParameter("choose delta, iceberg or parquet", param_hint="--format")
    if engine not in ("", "spark", "deltalake"):
        raise typer.BadParameter("choose spark or deltalake", param_hint="--engine")
    if table_format and not table:
        raise typer.BadParameter("has an effect only with --table", param_hint="--format")
    if table:
        options = with_table(options, table)
    if table_format:
        options = dataclasses.replace(options, format=table_format)
    if engine:
        options = dataclasses.replace(options, engine=engine)
    if options.engine == "deltalake" and options.format != "delta":
        if engine == "deltalake":
            raise typer.BadParameter("deltalake reads only the format delta", param_hint="--engine")
        options = dataclasses.replace(options, engine="spark")
    return options


def _name(table: str) -> str:
    """As headers show it: only the last part, since the rest is private."""
    return table.rstrip("/").rpartition("/")[2] or table


def _what(table: str, selection: Selection, destination: str) -> str:
    """What distinguishes one replay from another."""
    parts = [f"table {table}"]
    if selection.where:
        parts.append(f"where {selection.where}")
    if selection.since is not None:
        parts.append(f"from {selection.since}")
    if selection.until is not None:
        parts.append(f"to {selection.until}")
    return ", ".join([*parts, f"destination {destination or 'their own'}"])


def _canonical(text: str) -> str:
    return text if names.is_queue(text) or names.is_topic(text) else names.queue(text)


def _time(text: str) -> int | None:
    """Microseconds since the epoch of an ISO 8601 time; UTC by default. Raises: typer.BadParameter."""
    if not text:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time; write 2026-01-31, 2026-01-31T12:00 or "
            "2026-01-31T12:00:00+01:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(
        (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC))
        / datetime.timedelta(microseconds=1)
    )
