"""What a gateway is made of: its plugins, and what is set of each."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidegate.spi.operate._paging import Limit


class ListPlugins(msgspec.Struct, frozen=True, tag="list-plugins"):
    """Installed plugins, a page at a time, by kind and name.

    Attributes:
        match: what kind, name or distribution has in it, whatever its case; "" for all.
        active: only those that run.
    """

    match: str = ""
    active: bool = False
    after: str = ""
    limit: Limit = 100


class PluginPart(msgspec.Struct, frozen=True):
    """One table of the configuration that names a plugin.

    Attributes: table: ``store``, ``listeners[0]``; options: those that are not their defaults, as the file
        writes them; what is secret is ``***``.
    """

    table: str
    options: Mapping[str, str]


class PluginRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes:
        kind: ``store``, ``cursor``, ``protocol``, ``sink``, ``extension``; "" for what is none of them.
        distribution, version: the package that it came with.
        is_active: the configuration names it; parts: where.
        summary: what it says of itself; "" of one that does not run, which nobody has imported.
    """

    kind: str
    name: str
    distribution: str
    version: str
    is_active: bool
    summary: str
    parts: tuple[PluginPart, ...]


class PluginPage(msgspec.Struct, frozen=True, tag="plugin-page"):
    """Rows of a list. Attributes: next: what to ask for as ``after``; "" when there are no more."""

    rows: tuple[PluginRow, ...]
    next: str = ""
