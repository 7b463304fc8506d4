"""Sinks, and the acknowledged log that they read."""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.spi.operate._paging import PAGE_MAX, Count, Limit
from tidegate.spi.sink import SinkHealth
from tidegate.spi.storage.log import AcknowledgedMessage

#: Largest body in a file of its own that is sent with a row of the log, in bytes.
LOG_BODY_MAX: Final = 8 << 20


class ListSinks(msgspec.Struct, frozen=True, tag="list-sinks"):
    """All sinks, in configured order."""


class ShowSink(msgspec.Struct, frozen=True, tag="show-sink"):
    """One sink, with its last problems. Attributes: sink: its name."""

    sink: str


class ReadLog(msgspec.Struct, frozen=True, tag="read-log"):
    """Rows of the acknowledged log with their bodies; needs the right BROWSE on their destinations.

    Attributes:
        after: only rows after this one; rows the log no longer has are skipped.
        limit: rows, 1 to ``PAGE_MAX``; fewer come when they are large.
    """

    after: Count = 0
    limit: Limit = PAGE_MAX


class CompactSink(msgspec.Struct, frozen=True, tag="compact-sink"):
    """Run a sink's upkeep of its target now. Returns when it begins; ``SinkHealth.upkeep`` says when it has ended.

    Attributes: sink: its name.
    """

    sink: str


# --- answers -------------------------------------------------------------------------------------


class SinkStatus(msgspec.Struct, frozen=True):
    """One sink: its own report, and what the acknowledged log knows of it.

    Attributes:
        health: in a list, with the last of its problems only.
        store_id: of the log whose rows it carries.
        released: the log keeps no rows for it up to here.
        last: highest ack sequence in the log.
        lag_rows: rows acknowledged but not yet in its target; lag_bytes: their bytes, in proportion to what the
            log holds in all when another sink is further behind.
        lag_seconds: since the oldest of them was acknowledged, 0 when there is none; None: not known.
        log_rows, log_bytes: what the log keeps for it; bytes in the same proportion.
        log_share: these bytes as a fraction of the log's limit: 0 to 1, or above.
    """

    name: str
    health: SinkHealth
    store_id: str
    released: int
    last: int
    lag_rows: int
    lag_bytes: int
    lag_seconds: float | None
    log_rows: int
    log_bytes: int
    log_share: float


class SinkList(msgspec.Struct, frozen=True, tag="sink-list"):
    """All sinks."""

    rows: tuple[SinkStatus, ...]


class SinkDetails(msgspec.Struct, frozen=True, tag="sink-details"):
    """One sink."""

    status: SinkStatus


class SinkTurn(msgspec.Struct, frozen=True, tag="sink-turn"):
    """The request will be carried out. Attributes: number: of the turn of upkeep that does it."""

    number: int


class DamagedRow(msgspec.Struct, frozen=True):
    """A row of the acknowledged log that cannot be read. Attributes: problem: why, for people."""

    ack_sequence: int
    problem: str


class LogRows(msgspec.Struct, frozen=True, tag="log-rows"):
    """Rows of the acknowledged log.

    Attributes:
        rows: in order. A body in a file of its own with more than ``LOG_BODY_MAX`` bytes is left out:
            ``message.large`` has its length and checksum.
        through: every row up to here is among them or damaged; use it as ``after`` of the next request. Equal to
            this request's ``after`` at the end of the log.
        damaged: those that cannot be read.
    """

    rows: tuple[AcknowledgedMessage, ...]
    through: int
    damaged: tuple[DamagedRow, ...] = ()
