"""``tidegate journal``: looking into a journal, checking it, and what is done to one offline.

Entry point ``journal`` of the group ``tidegate.commands``. Each command parses its arguments, calls
one function and prints; the work is elsewhere. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidegate.spi import CommandHost, ConfigError, StoreLockedError
from tidegate.spi.printable import printable_lines
from tidegate_store_journal.tools.located import (
    directory_around,
    directory_of,
    find_store,
    large_directory_of,
)

if TYPE_CHECKING:
    from tidegate.spi import ConfiguredStore
    from tidegate_store_journal.tools.report import JournalReport

#: `verify` found damage.
EXIT_DAMAGED: Final = 1
#: Percent: files less alive than this are emptied by `compact`.
COMPACT_BELOW: Final = 50

app: Final = typer.Typer(
    rich_markup_mode=None,
    help="Inspect and check a journal, and maintain it while no gateway is running.",
    epilog="inspect, verify and why change nothing and also work while the gateway is "
    "running; the others need it stopped.",
)

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="The gateway's configuration file."),
]
DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        "-d",
        metavar="DIR",
        help="Directory of the journal, instead of the configuration's.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(name="inspect")
def inspect_command(
    context: typer.Context,
    config: ConfigOption = None,
    directory: DirectoryOption = None,
    records: Annotated[
        bool, typer.Option(help="Count records by type; this reads all data files in use.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Show files, records and pending lists.

    Works beside a running gateway and says how things stood at one moment.
    """
    from tidegate_store_journal.tools.report import report

    host, store = _asked(context, config, directory)
    found = report(directory_of(store), host.progress(), records=records)
    if as_json:
        host.print_json(_inspect_json(found))
    else:
        _print_inspect(host, found)


@app.command()
def verify(
    context: typer.Context,
    config: ConfigOption = None,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read every record and name what is damaged.

    Checks checksums, that everything pending can be read, and the metadata against the data files.
    Works beside a running gateway. Exit code 0: whole; 1: damaged.
    """
    from tidegate_store_journal.tools import verify as _verify

    host, store = _asked(context, config, directory)
    where = directory_of(store)
    found = _verify.verify(where, host.progress(), large=large_directory_of(store))
    if as_json:
        host.print_json(
            {"directory": str(where), "damaged": bool(found.damages), **dataclasses.asdict(found)}
        )
    else:
        typer.echo(
            f"{where}: {found.files} data files, {found.batches} batches, {found.records} records "
            f"({found.read_bytes / 1e6:.1f} MB) read; {found.references} references followed"
            + (f", {found.bodies} of them to other files" if found.bodies else "")
        )
        _print_notes(found.notes)
        if found.damages:
            _print_table(host, _DAMAGE_COLUMNS, found.damages)
        else:
            typer.echo("no damage found")
    if found.damages:
        raise typer.Exit(EXIT_DAMAGED)


@app.command()
def why(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A data file, by name or path.")],
    config: ConfigOption = None,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what keeps a data file.

    Names destination, pending list and messages. Works beside a running gateway. Without --config and --directory a path to FILE is enough.
    """
    from tidegate_store_journal.tools import report as _report

    if directory is None and config is None and Path(file).parent != Path():
        directory = directory_around(Path(file))
    host, store = _asked(context, config, directory)
    found = _report.why(directory_of(store), file)
    if as_json:
        host.print_json(dataclasses.asdict(found) | {"live_share": found.live_share})
    else:
        typer.echo(printable_lines(_report.describe(found)))


@app.command()
def compact(
    context: typer.Context,
    config: ConfigOption = None,
    directory: DirectoryOption = None,
    below: Annotated[
        int | None,
        typer.Option(
            "--below",
            min=1,
            max=100,
            metavar="PERCENT",
            help=f"Only files less alive than this ({COMPACT_BELOW}).",
        ),
    ] = None,
    delete_free: Annotated[
        bool, typer.Option("--delete-free", help="Delete dead files that are kept for reuse.")
    ] = False,
    destination: Annotated[
        str,
        typer.Option(
            "--destination",
            metavar="NAME",
            help="Compact only the directory of one destination, such as queue://orders.",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Empty sparse data files now.

    Whatever the options say. The gateway must not run. A dead file is kept to be used again as journal_pool_files says;
    --delete-free gives its room back. --destination gives back the room in the directory of one destination
    instead (per_destination, preset flatfile) and leaves the data files alone.
    """
    from tidegate_store_journal.tools import offline as _offline

    host, store = _asked(context, config, directory)
    progress = host.progress()
    if destination:
        if delete_free or below is not None:
            raise ConfigError("--destination cannot be combined with --below or --delete-free")
        with _stopped(store):
            done = _offline.compact_destination(store, progress, destination)
        if as_json:
            host.print_json(dataclasses.asdict(done))
        else:
            _print_table(host, _DESTINATION_COLUMNS, [done])
        return
    percentage = below or COMPACT_BELOW
    with _stopped(store):
        before, after = _offline.compact(
            store, progress, percentage=percentage, delete_free=delete_free
        )
    spaces = {"before": dataclasses.asdict(before), "after": dataclasses.asdict(after)}
    if as_json:
        host.print_json(spaces)
    else:
        rows = [(name, *space.values()) for name, space in spaces.items()]
        host.print_table(("", "data files", "bytes", "live bytes"), rows)


@app.command(name="rebuild-index")
def rebuild_index(
    context: typer.Context,
    config: ConfigOption = None,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drop the metadata store and rebuild it.

    Everything comes from the data files. The gateway must not run. When the files
    are damaged the old one stays.
    """
    from tidegate_store_journal.tools import offline as _offline

    host, store = _asked(context, config, directory)
    with _stopped(store):
        found = _offline.rebuild_index(store, host.progress())
    if as_json:
        host.print_json(dataclasses.asdict(found))
        return
    typer.echo(
        f"rebuilt from {found.replayed} operations: {found.pending_messages} pending messages, "
        f"{found.destinations} destinations, {found.subscriptions} subscriptions"
    )
    _print_notes(found.notes)


@app.command(name="export")
def export_command(
    context: typer.Context,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A new directory.")],
    config: ConfigOption = None,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write everything to Parquet files.

    Like `tidegate store export`: any store can import it. The gateway must be stopped.
    """
    host, store = _asked(context, config, directory)
    with _stopped(store):
        counts = host.export_store(store, target)
    _print_counts(host, counts, as_json, target)


@app.command(name="import")
def import_command(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A directory written by `export`.")
    ],
    config: ConfigOption = None,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fill an empty journal from an export.

    Like `tidegate store import`. The gateway must be stopped.
    """
    host, store = _asked(context, config, directory, is_there=False)
    with _stopped(store):
        counts = host.import_store(store, source)
    _print_counts(host, counts, as_json, source)


def _asked(
    context: typer.Context, config: Path | None, directory: Path | None, *, is_there: bool = True
) -> tuple[CommandHost, ConfiguredStore]:
    """The host, and the journal that is meant."""
    return context.obj, find_store(context.obj, config, directory, is_there=is_there)


@contextmanager
def _stopped(store: ConfiguredStore) -> Generator[None]:
    """Adds advice to the error when a gateway has the journal."""
    try:
        yield
    except StoreLockedError as error:
        raise StoreLockedError(
            f"{directory_of(store)} is in use by a running gateway ({error.owner}): "
            "stop it first; only inspect, verify and why work while it is running",
            owner=error.owner,
        ) from error


# ---------------------------------------------------------------------------------- printing

#: Tables: the heading of a column, and the attribute that it shows.
_DAMAGE_COLUMNS: Final = {"file": "file", "offset": "offset", "damage": "problem"}
_DESTINATION_COLUMNS: Final = {
    "destination": "destination",
    "messages": "messages",
    "bytes before": "bytes_before",
    "bytes after": "bytes_after",
}
_FILE_COLUMNS: Final = {
    "data file": "name",
    "id": "file_id",
    "state": "state",
    "bytes": "length",
    "live": "live_bytes",
    "live %": "live_percent",
    "held": "references",
}
_LIST_COLUMNS: Final = {
    "list": "pending_list",
    "kind": "kind",
    "destination": "destination",
    "client": "client_id",
    "name": "subscription",
    "principal": "principal",
    "messages": "messages",
    "body bytes": "body_bytes",
    "oldest": "first_sequence",
    "delivered": "delivered",
}


def _print_table(host: CommandHost, columns: Mapping[str, str], items: Sequence[object]) -> None:
    host.print_table(list(columns), list(map(attrgetter(*columns.values()), items)))


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        typer.echo(f"note: {note}")


def _print_counts(host: CommandHost, counts: Mapping[str, int], as_json: bool, where: Path) -> None:
    if as_json:
        host.print_json({"directory": str(where), **counts})
    else:
        host.print_table(("what", "carried"), list(counts.items()))


def _print_inspect(host: CommandHost, found: JournalReport) -> None:
    typer.echo(f"{found.directory}: store {found.store_id}")
    rows = max(0, found.acknowledged_last - found.acknowledged_first + 1)
    typer.echo(
        f"last batch {found.batch}, last sequence {found.last_sequence}, {rows} rows in the "
        f"acknowledged log, {found.sessions} sessions, {found.retained} retained messages"
    )
    counters = found.counters
    if counters is None:
        typer.echo("the metadata store cannot be read\n")
    else:
        typer.echo(
            f"metadata store: {counters.checkpoints} checkpoints; {counters.pending_put} references "
            f"to pending messages came in, {counters.pending_deleted} went\n"
        )
    _print_table(host, _FILE_COLUMNS, found.files)
    typer.echo()
    if found.records:
        records = [
            (
                name,
                "{}-{}".format(*found.batches[name]),
                ", ".join(f"{count} {kind}" for kind, count in types.items()),
            )
            for name, types in found.records.items()
        ]
        host.print_table(("data file", "batches", "records"), records)
        typer.echo()
    if found.lists:
        _print_table(host, _LIST_COLUMNS, found.lists)
    else:
        typer.echo("no pending lists")


def _inspect_json(found: JournalReport) -> dict[str, Any]:
    value: dict[str, Any] = dataclasses.asdict(found)
    records, batches = value.pop("records"), value.pop("batches")
    for item, file in zip(value["files"], found.files, strict=True):
        del item["holders"]  # `why` names them
        item["live_share"] = file.live_share
        if found.records:
            item["records"] = records.get(file.name, {})
            item["batches"] = batches.get(file.name)
    return value
