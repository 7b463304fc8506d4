"""What the commands print on stdout: what would run, what is installed."""

from __future__ import annotations

import itertools
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

from tidegate.config import Bind, applies, option_values, ranked, toml_text, why_before
from tidegate.plugins import PROVIDERS, PluginHost, PluginKind, PluginRow
from tidegate.spi import ConfigError, names
from tidegate.spi.printable import printable_json

if TYPE_CHECKING:
    from tidegate.config import PolicyTable, ResolvedConfig, ResolvedListener

#: Columns when stdout is a file or a pipe and COLUMNS is unset: enough to wrap nothing, so that grep
#: sees whole lines. Nothing is padded to this width.
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
        "broker": option_values(config.broker),
        "store": {
            "plugin": config.store.name,
            **option_values(config.store.options),
        },
        "listeners": [_listener(listener) for listener in config.listeners],
        "destinations": [option_values(table.policy) for table in config.policies],
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


# ------------------------------------------------------------------ check-config --destination


def describe_policy(config: ResolvedConfig, destination: str) -> Description:
    """The policy of a canonical *destination* (or filter of a subscription) as plain values.

    ``values`` has for each option ``value`` and ``from``: the key in the file, ``default``, or the
    option that it follows. ``ranked`` has all tables that match, each with why it is before the next.

    Raises: ConfigError when it is no canonical name.
    """
    _check_name(destination)
    tables = {table.policy.match: table for table in config.policies if table.key}
    matching = [
        tables[policy.match]
        for policy in ranked((table.policy for table in tables.values()), destination)
    ]
    chosen = matching[0] if matching else config.policies[-1]
    values = {
        option: {"value": value, "from": _source(chosen, option)}
        for option, value in option_values(chosen.policy).items()
        if option != "match" and applies(option, destination)
    }
    return {
        "config": config.path or None,
        "destination": destination,
        "table": chosen.key or None,
        "ranked": [
            {
                "table": table.key,
                "match": table.policy.match,
                "before_the_next": why_before(table.policy.match, after.policy.match)
                if after is not None
                else None,
            }
            for table, after in itertools.zip_longest(matching, matching[1:])
        ],
        "values": values,
    }


def _source(table: PolicyTable, option: str) -> str:
    policy, key = table.policy, table.written.get(option)
    follows = option == "durable_cursor" or (
        option == "subscriber_cursor" and policy.subscriber_cursor == policy.cursor
    )
    if key is None and follows:
        key = table.written.get("cursor")
    return "default" if key is None else f"{table.key}.{key}"


def _check_name(destination: str) -> None:
    for prefix in (names.QUEUE_PREFIX, names.TOPIC_PREFIX):
        if destination.startswith(prefix):
            try:
                names.check_filter(destination.removeprefix(prefix))
            except ValueError as error:
                raise ConfigError(str(error), key="--destination") from None
            return
    for start, prefix in (("/queue/", names.QUEUE_PREFIX), ("/topic/", names.TOPIC_PREFIX)):
        if destination.startswith(start):
            meant = prefix + destination.removeprefix(start)
            raise ConfigError(
                f"{destination!r} is STOMP notation; write {meant}", key="--destination"
            )
    if "/" in destination:
        meant = names.topic(names.swap_separators(destination))
        raise ConfigError(
            f"the MQTT topic {destination!r} is called {meant} here; write {meant}",
            key="--destination",
        )
    raise ConfigError(
        f"queue or topic? write {names.queue(destination)} or {names.topic(destination)}",
        key="--destination",
    )


def policy_tree(description: Description) -> Tree:
    """The description for people."""
    tree = Tree(
        Text(f"{description['destination']} of {description['config'] or 'the embedded default'}")
    )
    ranked_ = description["ranked"]
    if not ranked_:
        tree.add(Text("no table matches: all values are defaults"))
    for place, table in enumerate(ranked_):
        why = table["before_the_next"]
        text = f"{'has' if not place else 'also matches'}: {table['table']}, match = {toml_text(table['match'])}"
        tree.add(Text(text + (f"; it comes before the next table because {why}" if why else "")))
    values = tree.add(Text("values", style="bold"))
    for option, given in description["values"].items():
        values.add(Text(f"{option} = {toml_text(given['value'])}  # {given['from']}"))
    return tree


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
