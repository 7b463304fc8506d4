"""The difference between two checkpoints: what the metadata store is told."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from tidegate.spi import (
    InflightDirection,
    InflightRecord,
    LargeBody,
    Message,
    Session,
    Subscription,
)
from tidegate_store_journal._acklog import AckBlock

InflightKey = tuple[InflightDirection, int]


@dataclass(slots=True)
class Changes:
    """Everything a checkpoint writes: the difference to the checkpoint before.

    Attributes:
        added: list and arrays of :meth:`PendingList.since`; a list may come several times.
        moved: per list, new locations of entries that the metadata store has.
        removed: per list, sequences that the metadata store has and must forget (last of the three).
        dropped_lists: lists to forget as a whole.
        deliveries: delivery count by (list, sequence); 0 forgets it.
        destinations … retained: new value by key, None when it is gone.
        large: large body by message sequence, None when it is gone.
        acknowledged: blocks to put; acknowledged_gone: first rows of blocks to delete.
        speaks_of: FileUse.speaks_of of files where it changed; files_gone: files to forget.
        last_sequence … ack_released: counters.
    """

    added: list[tuple[int, array[int], array[int]]]
    moved: dict[int, dict[int, int]]
    removed: dict[int, list[int]]
    dropped_lists: list[int]
    deliveries: dict[tuple[int, int], int]
    destinations: dict[str, int | None]
    subscriptions: dict[int, Subscription | None]
    sessions: dict[str, Session | None]
    inflight: dict[tuple[str, InflightKey], InflightRecord | None]
    retained: dict[str, Message | None]
    large: dict[int, LargeBody | None]
    acknowledged: list[AckBlock]
    acknowledged_gone: list[int]
    speaks_of: dict[int, list[int]]
    files_gone: list[int]
    batch: int
    last_sequence: int
    last_list: int
    ack_last: int
    ack_released: int

    @property
    def small_state_changed(self) -> bool:
        """The bindings snapshot is out of date."""
        return bool(
            self.destinations
            or self.subscriptions
            or self.sessions
            or self.inflight
            or self.retained
        )


@dataclass(slots=True)
class Dirty:
    """Keys changed since the last checkpoint."""

    moved: dict[int, dict[int, int]] = field(default_factory=dict[int, dict[int, int]])
    removed: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    dropped_lists: list[int] = field(default_factory=list[int])
    deliveries: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    destinations: set[str] = field(default_factory=set[str])
    subscriptions: set[int] = field(default_factory=set[int])
    sessions: set[str] = field(default_factory=set[str])
    inflight: set[tuple[str, InflightKey]] = field(default_factory=set[tuple[str, InflightKey]])
    retained: set[str] = field(default_factory=set[str])
