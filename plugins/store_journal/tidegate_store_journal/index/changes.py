"""The difference between two checkpoints: what the metadata store is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.spi import (
    Branch,
    BranchId,
    InflightDirection,
    InflightRecord,
    LargeBody,
    Message,
    Session,
    Subscription,
)
from tidegate_store_journal.index.acklog import AckBlock
from tidegate_store_journal.index.pieces import Piece

InflightKey = tuple[InflightDirection, int]

#: (destination, sequence)
DuplicateKey = tuple[str, int]


@dataclass(slots=True)
class Changes:
    """Everything a checkpoint writes: the difference to the checkpoint before.

    Attributes:
        dropped_lists: lists to forget as a whole, before anything else.
        pieces: per list, pieces to put, new or changed; pieces_gone: keys of those to forget.
        added_after: references above this sequence were in no checkpoint before.
        removed: how many references that the metadata store has were removed.
        deliveries: delivery count by (list, sequence); 0 forgets it.
        destinations … retained: new value by key, None when it is gone.
        large: large body by message sequence, None when it is gone.
        acknowledged: blocks to put; acknowledged_gone: first rows of blocks to delete.
        speaks_of: FileUse.speaks_of of files where it changed; files_gone: files to forget.
        last_sequence … ack_released: counters.
        branches, duplicate_ids: new value by key, None when it is gone.
    """

    dropped_lists: list[int]
    pieces: dict[int, list[Piece]]
    pieces_gone: dict[int, list[int]]
    added_after: int
    removed: int
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
    branches: dict[BranchId, Branch | None]
    duplicate_ids: dict[DuplicateKey, str | None]

    @property
    def small_state_changed(self) -> bool:
        """The bindings snapshot is out of date."""
        return bool(
            self.destinations
            or self.subscriptions
            or self.sessions
            or self.inflight
            or self.retained
            or self.branches
        )


@dataclass(slots=True)
class Dirty:
    """Keys changed since the last checkpoint."""

    removed: int = 0
    dropped_lists: list[int] = field(default_factory=list[int])
    deliveries: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    destinations: set[str] = field(default_factory=set[str])
    subscriptions: set[int] = field(default_factory=set[int])
    sessions: set[str] = field(default_factory=set[str])
    inflight: set[tuple[str, InflightKey]] = field(default_factory=set[tuple[str, InflightKey]])
    retained: set[str] = field(default_factory=set[str])
    branches: set[BranchId] = field(default_factory=set[BranchId])
    duplicate_ids: set[DuplicateKey] = field(default_factory=set[DuplicateKey])
