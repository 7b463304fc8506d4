"""The difference between two checkpoints: what the metadata store and the bindings are told."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.spi import LargeBody, Operation
from tidegate_store_journal.index.acklog import AckBlock
from tidegate_store_journal.index.pieces import Piece
from tidegate_store_journal.index.smallstate import SmallKey


@dataclass(slots=True)
class Changes:
    """Everything a checkpoint writes: the difference to the checkpoint before.

    Attributes:
        dropped_lists: lists to forget as a whole, before anything else.
        pieces: per list, pieces to put by key, new or changed; pieces_gone: keys of those to forget.
        added_after: references above this sequence were in no checkpoint before.
        removed: how many references that the metadata store has were removed.
        deliveries: delivery count by (list, sequence); 0 forgets it.
        large: large body by message sequence, None when it is gone.
        acknowledged: blocks to put, by their first row; acknowledged_gone: first rows of those to
            delete.
        speaks_of: FileUse.speaks_of of files where it changed; files_gone: files to forget.
        last_sequence … ack_released: counters.
        small: for the bindings journal, the latest state of each key; small_bytes: of their records.
    """

    dropped_lists: list[int]
    pieces: dict[int, dict[int, Piece]]
    pieces_gone: dict[int, set[int]]
    added_after: int
    removed: int
    deliveries: dict[tuple[int, int], int]
    large: dict[int, LargeBody | None]
    acknowledged: dict[int, AckBlock]
    acknowledged_gone: set[int]
    speaks_of: dict[int, list[int]]
    files_gone: list[int]
    batch: int
    last_sequence: int
    last_list: int
    ack_last: int
    ack_released: int
    small: dict[SmallKey, Operation]
    small_bytes: int

    def follow(self, before: Changes) -> None:
        """Take in what a checkpoint that failed was to write: each piece once, as it is now.

        Kept apart, each failure on a full disk would keep a copy of everything that changed.
        """
        gone = set(self.dropped_lists)
        self.dropped_lists = before.dropped_lists + self.dropped_lists
        for list_id in before.pieces.keys() | before.pieces_gone.keys():
            if list_id in gone:
                continue
            now_gone = self.pieces_gone.setdefault(list_id, set())
            pieces = self.pieces.setdefault(list_id, {})
            old = before.pieces.get(list_id, {})
            for key in old.keys() - pieces.keys() - now_gone:
                pieces[key] = old[key]
            now_gone |= before.pieces_gone.get(list_id, set()) - pieces.keys()
        self.added_after = before.added_after
        self.removed += before.removed
        kept = {key: count for key, count in before.deliveries.items() if key[0] not in gone}
        self.deliveries = kept | self.deliveries
        self.large = before.large | self.large
        self.acknowledged_gone |= before.acknowledged_gone
        self.acknowledged = {
            first: block
            for first, block in (before.acknowledged | self.acknowledged).items()
            if first not in self.acknowledged_gone
        }
        self.speaks_of = before.speaks_of | self.speaks_of
        self.files_gone = before.files_gone + self.files_gone
        self.small = before.small | self.small
        self.small_bytes += before.small_bytes


@dataclass(slots=True)
class Dirty:
    """What changed since the last checkpoint, besides what each part keeps of itself."""

    removed: int = 0
    dropped_lists: list[int] = field(default_factory=list[int])
    deliveries: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
