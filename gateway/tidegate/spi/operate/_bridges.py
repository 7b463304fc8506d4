"""Bridges to other brokers, and how far each of their rules is."""

from __future__ import annotations

import msgspec

from tidegate.spi.operate._paging import Limit


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
        server: what the other broker says that it is; "" while it is not connected.
        moved, moved_bytes: confirmed at the target since the gateway's start, and bytes of their bodies.
        on_the_way, on_the_way_bytes: taken from the source and not confirmed at the target yet. What has not been taken waits
            at the source: of a rule ``out``, in the queue or subscription here.
        looped: dropped, because this bridge had brought them itself.
        last_at: when something was confirmed last, microseconds since the Unix epoch; 0: never.
        problem, remedy: why it was not connected last, and what to do; "" when nothing was wrong yet.
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

    @property
    def is_connected(self) -> bool:
        return bool(self.server)


class BridgePage(msgspec.Struct, frozen=True, tag="bridge-page"):
    """Rows of a list. Attributes: next: what to ask for as ``after``; "" when there are no more."""

    rows: tuple[BridgeRow, ...]
    next: str = ""
