"""``tidegate store create|delete|recreate|query|dump|restore|exists|remove-lock|mask``.

Entry point ``store`` of the group ``tidegate.commands``. Each command parses its arguments, calls one
function of the database manager and prints. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from tidegate.spi import CommandHost, ConfigError, ConfiguredStore

if TYPE_CHECKING:
    from tidegate_store_jdbc.tools.manager import Manager

T = TypeVar("T")

#: ``exists`` found that not all tables are there.
EXIT_MISSING: Final = 1

app: Final = typer.Typer(rich_markup_mode=None)

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="The gateway's configuration file."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Do not ask for confirmation; needed without a terminal."),
]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Do it even while a gateway uses the store; that gateway cannot write any more.",
    ),
]


@app.command()
def create(context: typer.Context, config: ConfigOption = None) -> None:
    """Create the tables of an SQL store. Refused if any exist already."""
    store = _store(context, config)
    _run(store, lambda manager: manager.create())
    typer.echo(f"created the tables in {_where(store)}")


@app.command()
def delete(
    context: typer.Context,
    config: ConfigOption = None,
    yes: YesOption = False,
    force: ForceOption = False,
) -> None:
    """Delete the tables of an SQL store and everything in them."""
    store = _store(context, config)
    _confirm(f"Delete all messages in {_where(store)}?", yes)
    found = _run(store, lambda manager: manager.delete(forced=force))
    typer.echo(f"deleted {len(found)} tables in {_where(store)}")


@app.command()
def recreate(
    context: typer.Context,
    config: ConfigOption = None,
    yes: YesOption = False,
    force: ForceOption = False,
) -> None:
    """Delete the tables of an SQL store and create them again, empty."""
    store = _store(context, config)
    _confirm(f"Delete all messages in {_where(store)}?", yes)
    _run(store, lambda manager: manager.recreate(forced=force))
    typer.echo(f"recreated the tables in {_where(store)}")


@app.command()
def query(context: typer.Context, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show what an SQL store holds: version, owner, tables, destinations.

    Works beside a running gateway.
    """
    import msgspec

    host: CommandHost = context.obj
    found = _run(_store(context, config), lambda manager: manager.query())
    if as_json:
        host.print_json(msgspec.to_builtins(found))
        return
    typer.echo(f"database {found.database}: store {found.store_id}, schema {found.version}")
    typer.echo(f"owner: {found.owner or 'nobody'}")
    if found.journal is not None:
        state = "may hold more" if found.journal.is_open else "is empty"
        typer.echo(f"journal: {found.journal.place}, {state}")
    host.print_table(("table", "rows"), list(found.tables.items()))
    host.print_table(("destination", "messages", "body bytes"), found.destinations)


@app.command()
def exists(context: typer.Context, config: ConfigOption = None) -> None:
    """Check whether all tables of an SQL store exist. Exit code 0: they do; 1: they do not."""
    store = _store(context, config)
    if _is_missing_file(store) or not _run(store, lambda manager: manager.exists()):
        typer.echo(f"no store in {_where(store)}")
        raise typer.Exit(EXIT_MISSING)
    typer.echo(f"there is a store in {_where(store)}")


@app.command()
def dump(
    context: typer.Context,
    target: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="A new directory.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write everything in an SQL store to a directory, in the portable format.

    The gateway must be stopped. `restore` reads the directory, and so does `import` for any other store.
    """
    host: CommandHost = context.obj
    _show(host, host.export_store(_store(context, config), target), as_json)


@app.command()
def restore(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="A directory written by `dump` or `export`.")
    ],
    config: ConfigOption = None,
    again: Annotated[
        bool, typer.Option("--recreate", help="Delete the store's contents first.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fill an empty SQL store with what `dump`, or `export` of any store, wrote."""
    store = _store(context, config)
    if again:
        _confirm(f"Delete all messages in {_where(store)}?", yes)
        _run(store, lambda manager: manager.recreate(forced=False))
    host: CommandHost = context.obj
    _show(host, host.import_store(store, source), as_json)


@app.command(name="remove-lock")
def remove_lock(
    context: typer.Context, config: ConfigOption = None, yes: YesOption = False
) -> None:
    """Take the lock from its owner. If that gateway is still running, it cannot write any more."""
    store = _store(context, config)
    _confirm(f"Take the lock of {_where(store)} away from its owner?", yes)
    owner = _run(store, lambda manager: manager.remove_lock())
    typer.echo(f"{owner} does not hold the lock any more" if owner else "nobody held the lock")


@app.command()
def mask(
    context: typer.Context,
    config: ConfigOption = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file", metavar="FILE", help="File with the key; without it, the store's own."
        ),
    ] = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Create the key file, which must not exist yet.")
    ] = False,
) -> None:
    """Print a secret as ENC(…), for the configuration or the password file of an SQL store.

    The secret is asked for, or is the first line of stdin when that is no terminal.
    """
    import os

    from tidegate_store_jdbc._options import JdbcOptions
    from tidegate_store_jdbc.database import secrets

    directory = Path.cwd()
    options = JdbcOptions()
    if key_file is None and (config is not None or not os.environ.get(secrets.KEY_VARIABLE)):
        store = _store(context, config)
        directory = store.data_directory
        assert isinstance(store.options, JdbcOptions)
        options = store.options
    if key_file is not None:
        options = dataclasses.replace(options, mask_key_file=str(key_file.absolute()))
    if new_key:
        if not options.mask_key_file:
            raise ConfigError("--new-key needs --key-file, or store.mask_key_file", key="key-file")
        secrets.new_key(directory / options.mask_key_file)
    secret = secrets.mask_key(options, directory, os.environ)
    typer.echo(secrets.mask(_read_secret(), secret))


def _read_secret() -> str:
    import getpass

    if not sys.stdin.isatty():
        value = sys.stdin.readline().rstrip("\n")
    else:
        value = getpass.getpass("Secret: ", stream=sys.stderr)
        if value != getpass.getpass("Again: ", stream=sys.stderr):
            raise ConfigError("the two entries do not match", key="secret")
    if not value:
        raise ConfigError("is empty", key="secret")
    return value


def _store(context: typer.Context, config: Path | None) -> ConfiguredStore:
    from tidegate_store_jdbc.tools.manager import jdbc_options

    host: CommandHost = context.obj
    found = host.store(config)
    jdbc_options(found)
    return found


def _where(store: ConfiguredStore) -> str:
    from tidegate_store_jdbc.database.url import parse_url
    from tidegate_store_jdbc.tools.manager import jdbc_options

    options = jdbc_options(store)
    names = (
        f" ({options.table_prefix}…{options.brokerid})"
        if (options.table_prefix or options.brokerid)
        else ""
    )
    return f"{parse_url(options.url)}{names}"


def _is_missing_file(store: ConfiguredStore) -> bool:
    """Whether it is an embedded database without a file, which connecting would create."""
    from tidegate_store_jdbc.database.url import parse_url
    from tidegate_store_jdbc.tools.manager import jdbc_options

    url = parse_url(jdbc_options(store).url)
    return url.scheme.startswith("sqlite") and not url.file(store.data_directory).exists()


def _run(store: ConfiguredStore, work: Callable[[Manager], Awaitable[T]]) -> T:
    from tidegate_store_jdbc.tools.manager import manager

    async def connected() -> T:
        async with manager(store) as found:
            return await work(found)

    try:
        return asyncio.run(connected())
    except ConfigError as error:
        raise error.at(prefix="store") from error.__cause__


def _confirm(question: str, yes: bool) -> None:
    """Raises: ConfigError without a terminal to ask on; typer.Abort for a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError("this deletes data; give --yes if there is no terminal", key="yes")
    typer.confirm(question, abort=True, err=True)


def _show(host: CommandHost, counts: Mapping[str, int], as_json: bool) -> None:
    if as_json:
        host.print_json(counts)
    else:
        host.print_table(("what", "carried"), list(counts.items()))
