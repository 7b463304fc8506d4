"""Sinks, and the acknowledged log that they read."""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.spi.operate._paging import PAGE_MAX, Count, Limit
from tidegate.spi.sink import SinkHealth
from tidegate.spi.storage.log import AcknowledgedMessage

#: Bodies in files of their own that rows of the log come with, in bytes.
LOG_BODY_MAX: Final = 8 << 20


class ListSinks(msgspec.Struct, frozen=True, tag="list-sinks"):
    """All sinks, by their order in the configuration."""


class ShowSink(msgspec.Struct, frozen=True, tag="show-sink"):
    """One sink, with its last problems. Attributes: sink: its name."""

    sink: str


class ReadLog(msgspec.Struct, frozen=True, tag="read-log"):
    """Rows of the acknowledged log with their bodies; needs the right BROWSE on their destinations.

    Attributes:
        after: rows behind it; those that the log has no more are passed over.
        limit: rows, 1 to ``PAGE_MAX``; fewer come when they are large.
    """

    after: Count = 0
    limit: Limit = PAGE_MAX


class CompactSink(msgspec.Struct, frozen=True, tag="compact-sink"):
    """Have a sink keep its target up now. It begins; ``SinkHealth.upkeep`` says when it has ended.

    Attributes: sink: its name.
    """

    sink: str


# --- answers -------------------------------------------------------------------------------------


class SinkStatus(msgspec.Struct, frozen=True):
    """One sink: what it says of itself, and what the acknowledged log knows of it.

    Attributes:
        health: a list has the last of its problems only.
        store_id: of the log whose rows it carries.
        released: the log keeps no rows for it up to here.
        last: highest ack sequence in the log.
        lag_rows: acknowledged, and not in its target yet; lag_bytes: of these, in proportion to what the
            log holds in all where another sink is further behind.
        lag_seconds: since the oldest of them was acknowledged, 0 when there is none; None: not known.
        log_rows, log_bytes: what the log keeps for it; bytes in the same proportion.
        log_share: of the log's limit that these bytes are, 0 to 1 and above.
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
    """What was asked for will be done. Attributes: number: of the turn of upkeep in which it is."""

    number: int


class DamagedRow(msgspec.Struct, frozen=True):
    """A row of the acknowledged log that cannot be read. Attributes: problem: why, for people."""

    ack_sequence: int
    problem: str


class LogRows(msgspec.Struct, frozen=True, tag="log-rows"):
    """Rows of the acknowledged log.

    Attributes:
        rows: in order. A body that is in a file of its own and has more than ``LOG_BODY_MAX`` bytes is not there:
            ``message.large`` says how long it is, and its checksum.
        through: there is none up to here that is not among them or damaged; ``after`` of the next request. The
            ``after`` of this one when the log ends there.
        damaged: those that cannot be read.
    """

    rows: tuple[AcknowledgedMessage, ...]
    through: int
    damaged: tuple[DamagedRow, ...] = ()
