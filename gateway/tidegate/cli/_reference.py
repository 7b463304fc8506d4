"""The option tables of docs/configuration.md, made from the declarations.

A document holds blocks ``<!-- options: NAME -->`` … ``<!-- end -->``; NAME is a table of the host
(``broker``) or an entry point (``store-journal``). ``tidegate option-tables --update FILE`` (a
hidden command) rewrites what is between them, and a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tidegate.cli._options import limit_table, option_table
from tidegate.config import (
    BrokerConfig,
    DestinationPolicy,
    ExtensionTable,
    ListenerTable,
    Quota,
    SinkTable,
    StoreTable,
)
from tidegate.plugins import PROVIDERS, PluginHost, PluginKind

_HOST_TABLES: Final[Mapping[str, type]] = {
    "broker": BrokerConfig,
    "listeners": ListenerTable,
    "store": StoreTable,
    "destinations": DestinationPolicy,
    "sinks": SinkTable,
    "extensions": ExtensionTable,
    "quotas": Quota,
}
_BLOCK: Final = re.compile(r"(<!-- options: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def host_tables() -> dict[str, str]:
    """The Markdown table of each of the host's configuration tables, by its name."""
    return {
        name: option_table(table, skip=("options",) if table is not DestinationPolicy else ())
        for name, table in _HOST_TABLES.items()
    }


def plugin_tables(plugins: PluginHost) -> dict[str, str]:
    """The Markdown table of each of our own plugins that is installed and has options.

    Raises: PluginError when one cannot be loaded.
    """
    return {name: option_table(table) for name, table in plugin_options(plugins).items()}


def plugin_options(plugins: PluginHost) -> dict[str, type]:
    """By entry point, the type of the options of each of our own plugins."""
    lookups = {
        PluginKind.STORE: plugins.message_store,
        PluginKind.PROTOCOL: plugins.front_end,
        PluginKind.SINK: plugins.sink,
        PluginKind.EXTENSION: plugins.extension,
    }
    return {
        f"{kind.value}-{name}": lookup(name).options_type
        for kind, lookup in lookups.items()
        for name in plugins.installed_names(kind)
        if f"{kind.value}-{name}" in PROVIDERS
    }


def limit_tables(plugins: PluginHost) -> dict[str, str]:
    """The Markdown tables of docs/limits.md: of each table of options those that have an ``act``."""
    found = {f"limits-{name}": limit_table(table) for name, table in _HOST_TABLES.items()}
    for name, table in plugin_options(plugins).items():
        found[f"limits-{name.removeprefix('protocol-')}"] = limit_table(table)
    return {name: table for name, table in found.items() if table}


def block_names(document: str) -> list[str]:
    """The blocks that *document* has, in order."""
    return [match[2] for match in _BLOCK.finditer(document)]


def update_document(document: str, tables: Mapping[str, str]) -> str:
    """*document* with every block filled from *tables*; blocks without a table stay."""

    def fill(match: re.Match[str]) -> str:
        table = tables.get(match[2])
        return match[0] if table is None else f"{match[1]}{table}{match[3]}"

    return _BLOCK.sub(fill, document)
