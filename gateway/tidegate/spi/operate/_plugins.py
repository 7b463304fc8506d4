"""What a gateway is made of: its plugins, what is set of each, and the rules of its bridges to other brokers."""

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


class ListBridges(msgspec.Struct, frozen=True, tag="list-bridges"):
    """Rules of bridges, a page at a time, by bridge and rule.

    Attributes: match: what one of their names has in it, whatever its case; "" for all.
    """

    match: str = ""
    after: str = ""
    limit: Limit = 100


class BridgeRow(msgspec.Struct, frozen=True):
    """One rule of a bridge.

    Attributes:
        direction: ``in`` or ``out``; remote: the other broker; source, target: destinations, as each broker writes them.
        server: what the other broker says that it is; "" unless messages flow: it is connected there, and subscribed at the source.
        moved, moved_bytes: confirmed at the target since the gateway's start, and bytes of their bodies.
        on_the_way, on_the_way_bytes: taken from the source and not confirmed at the target yet. What has not been taken waits
            at the source: of a rule ``out``, in the queue or subscription here.
        looped: dropped, because this bridge had brought them itself, or they had expired.
        last_at: when something was confirmed last, microseconds since the Unix epoch; 0: never.
        problem, remedy: why it was not connected last, and what to do; "" when nothing was wrong yet. It is over where `server`
            says that it is connected; problem_at: when it was, microseconds since the Unix epoch; 0: never, or unknown.
        refused: sequence of the message here that the other broker, or a limit, refuses and on which the rule hangs, 0: none;
            refused_attempts: how often in a row, `problem` has the words.
        parked: messages that were put aside because of that since the gateway's start; failures: attempts that ended or did
            not come about.
        paused: why it waits, and is not connected because of that; "": it does not.
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
    """Rows of a list. Attributes: next: what to ask for as ``after``; "" when there are no more."""

    rows: tuple[BridgeRow, ...]
    next: str = ""
