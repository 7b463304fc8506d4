"""What is known about a sink: what it says of itself, and how far it lags behind the acknowledged log."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from tidegate.plugin_exit import FAILURES, failure_of
from tidegate.spi import LogStatistics, Sink, SinkHealth, SinkState
from tidegate.spi.operate import SinkStatus

_log = logging.getLogger("tidegate.broker.acknowledged")

_US: Final = 1_000_000


class Watched(Protocol):
    """What the log knows about a sink."""

    name: str
    #: None until it is made.
    sink: Sink | None
    #: A line in the log has said that it cannot tell its health.
    is_mute: bool

    @property
    def store_id(self) -> str: ...

    @property
    def released(self) -> int: ...

    @property
    def oldest_at(self) -> int | None:
        """When the oldest row that is not in its target was acknowledged, by the clock as it is now.

        Microseconds since the epoch; 0: there is none, or it has just come; None: unknown.
        """
        ...


def health_of(reader: Watched) -> SinkHealth:
    """What the sink says; a plugin that fails to answer counts as failing."""
    if reader.sink is None:
        return SinkHealth(SinkState.STARTING, 0, 0)
    try:
        return reader.sink.health()
    except FAILURES as raised:
        if not reader.is_mute:
            _log.exception("sink=%s cannot report its health", reader.name)
            reader.is_mute = True
        return SinkHealth(
            SinkState.FAILING, 0, 0, f"it cannot report its health: {failure_of(raised)}"
        )


def status_of(reader: Watched, statistics: LogStatistics, limit: int, now: int) -> SinkStatus:
    """Args: limit: of the log, in bytes; now: microseconds since the epoch, by the clock as it is now."""
    health = health_of(reader)
    held, total = statistics.held_bytes, statistics.last - statistics.first + 1
    lag_rows = max(0, statistics.last - max(reader.released, health.mark))
    log_rows = max(0, statistics.last - reader.released)
    log_bytes = _share(held, log_rows, total)
    return SinkStatus(
        name=reader.name,
        health=health,
        store_id=reader.store_id,
        released=reader.released,
        last=statistics.last,
        lag_rows=lag_rows,
        lag_bytes=_share(held, lag_rows, total),
        lag_seconds=_age(reader.oldest_at, now) if lag_rows else 0.0,
        log_rows=log_rows,
        log_bytes=log_bytes,
        log_share=log_bytes / limit if limit else 0.0,
    )


def metrics_of(status: SinkStatus) -> dict[str, int | str]:
    """The same for system topics, by topic below ``$SYS/broker/``; what is unknown is left out."""
    health, commit = status.health, status.health.last_commit
    found: dict[str, int | str | None] = {
        "state": health.state.value,
        "mark": health.mark if health.is_mark_known else None,
        "rows_behind": status.lag_rows,
        "bytes_behind": status.lag_bytes,
        "seconds_behind": None if status.lag_seconds is None else f"{status.lag_seconds:.1f}",
        "late": int(health.is_late),
        "rows_per_second": f"{health.rows_per_second:.1f}",
        "table.files": health.target_files,
        "table.version": commit.version if commit else None,
        "dead_letters": health.dead_rows,
        "commit.at": commit.at // _US if commit else None,
        "commit.rows": commit.rows if commit else None,
        "staged.files": health.staged_files,
        "staged.rows": health.staged_rows,
        "staged.bytes": health.staged_bytes,
        "log.rows": status.log_rows,
        "log.bytes": status.log_bytes,
        "log.percent": f"{status.log_share * 100:.1f}",
    }
    return {
        f"sinks.{status.name}.{name}": value for name, value in found.items() if value is not None
    }


def _share(held: int, rows: int, total: int) -> int:
    return held * min(rows, total) // total if total > 0 else 0


def _age(oldest_at: int | None, now: int) -> float | None:
    """Args: oldest_at: 0: the row came a moment ago, and nobody has looked yet."""
    if oldest_at is None:
        return None
    return max(0, now - oldest_at) / _US if oldest_at else 0.0
