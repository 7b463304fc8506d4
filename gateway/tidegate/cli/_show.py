"""What the commands print on stdout: what would run, what is installed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from tidegate.cli._options import option_values, toml_text
from tidegate.config import Bind
from tidegate.plugins import PROVIDERS, PluginHost, PluginKind, PluginRow
from tidegate.spi.printable import printable_json

if TYPE_CHECKING:
    from tidegate.config import ResolvedConfig, ResolvedListener

#: Columns when stdout is a file or a pipe and COLUMNS does not say: enough to fold nothing, so
#: that grep sees whole lines. Nothing is padded to it.
_PIPE_COLUMNS: Final = 20_000

Description = dict[str, Any]


def make_console() -> Console:
    """A console on stdout; no colour and no folding when that is not a terminal."""
    terminal = sys.stdout.isatty()
    width = None if terminal or os.environ.get("COLUMNS") else _PIPE_COLUMNS
    return Console(highlight=False, width=width, force_terminal=terminal)


def print_json(value: object) -> None:
    """*value* as JSON on stdout."""
    sys.stdout.write(printable_json(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")


# ---------------------------------------------------------------------------- check-config


def describe(config: ResolvedConfig, plugins: PluginHost) -> Description:
    """What would run, as plain values; each option as the file would give it."""
    return {
        "config": config.path or None,
        "broker": option_values(config.broker)
        | {"data_directory": str(config.broker.data_directory.absolute())},
        "store": {
            "plugin": config.store.name,
            **option_values(config.store.options),
        },
        "listeners": [_listener(listener) for listener in config.listeners],
        "destinations": [option_values(policy) for policy in config.policies],
        "sinks": [
            {
                "plugin": sink.plugin,
                "name": sink.name,
                **option_values(sink.options),
            }
            for sink in config.sinks
        ],
        "extensions": [
            {"plugin": extension.name, **option_values(extension.options)}
            for extension in config.extensions
        ],
        "quotas": [option_values(quota) for quota in config.quotas],
        "plugins": plugins.loaded(),
    }


def _listener(listener: ResolvedListener) -> dict[str, object]:
    config = listener.config
    return {
        "protocol": config.protocol,
        "bind": str(Bind(config.host, config.port)),
        "transport": config.transport,
        "allow_anonymous": config.allow_anonymous,
        **option_values(config.options),
    }


def config_tree(description: Description) -> Tree:
    """The description as a tree that reads like the file."""
    tree = Tree(Text(f"configuration: {description['config'] or 'the embedded default'}"))
    for name, value in description.items():
        if name == "config":
            continue
        if isinstance(value, dict):
            _branch(tree, f"[{name}]", cast("dict[str, object]", value))
        elif name == "plugins":
            tree.add(Text("plugins: " + ", ".join(value)))
        elif not value:
            tree.add(Text(f"{name}: none"))
        else:
            for table in value:
                _branch(tree, f"[[{name}]]", table)
    return tree


def _branch(tree: Tree, title: str, options: Mapping[str, object]) -> None:
    branch = tree.add(Text(title, style="bold"))
    for key, value in options.items():
        branch.add(Text(f"{key} = {toml_text(value)}"))


# -------------------------------------------------------------------------------- plugins


def plugin_table(rows: Sequence[PluginRow]) -> Table:
    """The installed plugins, one row each."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("kind", "name", "version", "SPI", "distribution", "active", "summary"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        about = Text(row.summary)
        if row.problem:
            about = Text(f"PROBLEM: {row.problem}", style="red")
        active = "yes" if row.active else "no"
        cells = (row.kind or "?", row.name, row.version, row.spi_version or "?", row.distribution)
        table.add_row(*map(Text, cells), Text(active), about)
    return table


def missing_kinds(rows: Iterable[PluginRow]) -> dict[str, list[str]]:
    """For each kind of which nothing is installed, our packages that provide some."""
    present = {row.kind for row in rows}
    missing: dict[str, list[str]] = {}
    for kind in PluginKind:
        packages = [
            package for name, package in PROVIDERS.items() if name.startswith(f"{kind.value}-")
        ]
        if packages and kind.value not in present:
            missing[kind.value] = list(dict.fromkeys(packages))
    return missing
