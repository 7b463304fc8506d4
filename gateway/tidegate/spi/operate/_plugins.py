"""What a gateway is made of: its plugins, their options, and the rules of its bridges to other brokers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidegate.spi.operate._paging import Limit


class ListPlugins(msgspec.Struct, frozen=True, tag="list-plugins"):
    """Installed plugins, a page at a time, by kind and name.

    Attributes:
        match: text in kind, name or distribution, ignoring case; "" for all.
        active: only those that run.
    """

    match: str = ""
    active: bool = False
    after: str = ""
    limit: Limit = 100


class PluginPart(msgspec.Struct, frozen=True):
    """One table of the configuration that names a plugin.

    Attributes: table: ``store``, ``listeners[0]``; options: those that differ from their defaults, as the file
        writes them; secrets are ``***``.
    """

    table: str
    options: Mapping[str, str]


class PluginRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes:
        kind: ``store``, ``cursor``, ``protocol``, ``sink``, ``extension``; "" for none of these.
        distribution, version: the package that it came with.
        is_active: the configuration names it; parts: where.
        summary: its own description; "" when it does not run and so has not been imported.
    """

    kind: str
    name: str
    distribution: str
    version: str
    is_active: bool
    summary: str
    parts: tuple[PluginPart, ...]


class PluginPage(msgspec.Struct, frozen=True, tag="plugin-page"):
    """Rows of a list. Attributes: next: ``after`` of the next page; "" when there are no more."""

    rows: tuple[PluginRow, ...]
    next: str = ""


class ListBridges(msgspec.Struct, frozen=True, tag="list-bridges"):
    """Rules of bridges, a page at a time, by bridge and rule.

    Attributes: match: text in one of their names, ignoring case; "" for all.
    """

    match: str = ""
    after: str = ""
    limit: Limit = 100


class BridgeRow(msgspec.Struct, frozen=True):
    """One rule of a bridge.

    Attributes:
        direction: ``in`` or ``out``; remote: the other broker; source, target: destinations as each broker writes them.
        server: what the other broker calls itself; "" unless connected there and subscribed at the source.
        moved, moved_bytes: messages confirmed at the target since the gateway's start, and bytes of their bodies.
        on_the_way, on_the_way_bytes: taken from the source but not yet confirmed at the target. What has not been
            taken waits at the source: for a rule ``out``, in the queue or subscription here.
        looped: dropped, because this bridge had brought them itself, or they had expired.
        last_at: when a message was last confirmed, microseconds since the Unix epoch; 0: never.
        problem, remedy: why it last failed to connect, and what to do; "" when nothing was wrong yet. The problem is
            over when `server` is set; problem_at: when it was, microseconds since the Unix epoch; 0: never, or unknown.
        refused: sequence of the message here that the other broker, or a limit, refuses and that blocks the rule; 0:
            none; refused_attempts: how often in a row; `problem` has the reason.
        parked: messages put aside because of that since the gateway's start; failures: attempts that ended or did
            not succeed.
        paused: why it waits and so is not connected; "": it does not.
    """

    bridge: str
    rule: str
    direction: str
    remote: str
    source: str
    target: str
    server: str
    moved: int
    moved_bytes: int
    on_the_way: int
    on_the_way_bytes: int
    looped: int
    last_at: int
    problem: str
    remedy: str
    refused: int = 0
    refused_attempts: int = 0
    parked: int = 0
    failures: int = 0
    paused: str = ""
    problem_at: int = 0

    @property
    def is_connected(self) -> bool:
        return bool(self.server)


class BridgePage(msgspec.Struct, frozen=True, tag="bridge-page"):
    """Rows of a list. Attributes: next: ``after`` of the next page; "" when there are no more."""

    rows: tuple[BridgeRow, ...]
    next: str = ""
