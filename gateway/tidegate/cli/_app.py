"""The commands. Each parses its arguments, calls public functions and prints; nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tidegate import __version__
from tidegate._logging import LogLevel
from tidegate.cli import _reference, _show
from tidegate.cli._commands import Commands, ConfigOption, JsonOption
from tidegate.cli._exit import ExitCode
from tidegate.cli._host import Host
from tidegate.cli._run import run_gateway, warn_of_certificates, warn_of_configuration
from tidegate.cli.doctor.command import doctor
from tidegate.cli.groups import (
    connections,
    dead_letters,
    destinations,
    running,
    sessions,
    sinks,
    status,
    store,
    transactions,
)
from tidegate.cli.looks import access, bridges, held
from tidegate.cli.looks import store as store_seen
from tidegate.cli.looks.events import events
from tidegate.cli.top.command import top
from tidegate.config import check_parts, load_config, named_plugins, resolve
from tidegate.plugins import PluginHost
from tidegate.spi import SPI_VERSION

app = typer.Typer(
    cls=Commands,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="A plugin-based messaging gateway: STOMP and MQTT in, a lakehouse table out.",
    epilog="Exit codes: 0 ok, 1 unexpected error, 2 wrong usage or configuration, 3 cannot "
    "listen on a port, 4 the store belongs to another gateway, 5 directory or disk, 6 "
    "plugin, 7 damaged store, 8 a broker cannot be reached or refused.",
)
store_seen.add_to(store.app)
app.add_typer(store.app, name="store")
app.add_typer(transactions.app, name="transactions")
app.add_typer(destinations.app, name="destination")
app.add_typer(dead_letters.app, name="dlq")
app.add_typer(sinks.app, name="sink")
app.add_typer(connections.app, name="connection")
app.add_typer(sessions.app, name="session")
app.add_typer(sessions.subscriptions, name="subscription")
app.add_typer(held.limits, name="limit")
app.add_typer(held.cursors, name="cursor")
app.add_typer(access.app, name="access")
app.command()(status.status)
app.command()(doctor)
app.command()(top)
app.command()(events)
app.command()(running.reload)
app.command()(running.drain)
app.command()(running.undrain)
app.command(name="bridges")(bridges.list_bridges)


def call(arguments: Sequence[str]) -> int:
    """Carry out the command; returns the exit code. Raises: whatever it raises, unreported."""
    try:
        result: object = app(args=arguments, prog_name="tidegate", standalone_mode=False)
    except SystemExit as stop:
        # Typer and rich each turn a broken pipe into exit code 1 in their own way.
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None
        raise
    except typer.Abort:
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else ExitCode.OK


def _print_version(wanted: bool) -> None:
    if wanted:
        major, minor = SPI_VERSION
        typer.echo(f"tidegate {__version__} (SPI {major}.{minor})")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    context.obj = Host()
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(ExitCode.CONFIG)


@app.command()
def run(
    config: ConfigOption = None,
    log_level: Annotated[
        LogLevel | None,
        typer.Option("--log-level", help="Log messages of this level and above, to stderr."),
    ] = None,
) -> None:
    """Run the gateway.

    Without --config: STOMP on 127.0.0.1:61613, MQTT on 127.0.0.1:1883, data in ./tidegate-data/.
    SIGTERM or SIGINT stops it cleanly; a second signal ends it at once.
    """
    run_gateway(config, log_level)


@app.command()
def check_config(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration file.")],
    destination: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Print the settings of this queue or topic (queue://NAME or topic://NAME) "
            "and which table each comes from.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a configuration file.

    Prints everything that would run, with every option. Loads the plugins that the file names, but
    opens no port and touches no data.
    """
    plugins = PluginHost()
    resolved = resolve(load_config(file), plugins)
    check_parts(resolved)
    warn_of_configuration(file, resolved)
    warn_of_certificates(resolved)
    if destination is None:
        description, tree = _show.describe(resolved, plugins), _show.config_tree
    else:
        description, tree = _show.describe_policy(resolved, destination), _show.policy_tree
    if as_json:
        _show.print_json(description)
    else:
        _show.make_console().print(tree(description))


@app.command(name="plugins")
def list_plugins(
    running: Annotated[
        bool,
        typer.Option(
            "--running", help="Ask the running gateway, and show the settings of each plugin."
        ),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the installed plugins.

    A plugin is active if the configuration names it.
    """
    if running:
        access.show_running(config, as_json)
        return
    active = {(kind, name) for kind, name, _ in named_plugins(load_config(config))}
    rows = PluginHost().list_plugins(active)
    if as_json:
        _show.print_json([asdict(row) for row in rows])
        return
    if rows:
        _show.make_console().print(_show.plugin_table(rows))
    else:
        typer.echo("no plugins installed")
    for kind, packages in _show.missing_kinds(rows).items():
        choices = " or ".join(f"pip install {package}" for package in packages)
        typer.echo(f"no {kind} plugin: {choices}")


@app.command(hidden=True)
def option_tables(
    update: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rewrite the tables in this document.")
    ] = None,
) -> None:
    """Print the option tables of the host and of our installed plugins, as Markdown."""
    plugins = PluginHost()
    tables = (
        _reference.host_tables()
        | _reference.plugin_tables(plugins)
        | _reference.limit_tables(plugins)
    )
    if update is None:
        for name, table in tables.items():
            typer.echo(f"<!-- options: {name} -->\n{table}<!-- end -->\n")
    else:
        update.write_text(_reference.update_document(update.read_text(), tables))
