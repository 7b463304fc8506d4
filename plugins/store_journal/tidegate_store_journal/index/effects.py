"""What one batch does to the index: a value between the encoder, the log and the index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from tidegate.spi import AddMessage, Discard, DiscardReason, LargeBody, Move, Operation
from tidegate_store_journal.index.acklog import AckBlock
from tidegate_store_journal.log.format import FILE_SHIFT, MASK_32, SHARED_BIT

#: Consecutive messages for at least this many lists are put into them together.
WIDE_MIN: Final = 8
#: Entries put into lists in one step: about 0.1 ms. A list itself counts as some entries.
STEP_ENTRIES: Final = 2000
LIST_ENTRIES: Final = 16


class AddReference(msgspec.Struct, frozen=True, gc=False):
    """Replaces an ``AddMessage`` whose message lies in the directory of its destination.

    Attributes: place: its location; synced: it is on stable storage.
    """

    sequence: int
    place: int
    pending_lists: tuple[int, ...]
    synced: bool


class Effects(msgspec.Struct, eq=False):
    """What one batch does to the index; made by the encoder and by replay.

    Attributes:
        file_id: the data file the batch is in.
        adds: per list, sequence → location, in sequence order.
        shared: (sequence, number of lists) of messages with more than one list.
        others: everything but added messages, in order; with an Acknowledge its first row of the
            acknowledged log (0: there is none), with all else the bytes of its record.
        copies: (sequence, new location, lists) of messages that compaction copied.
        copied_rows: rows of the acknowledged log whose messages are among them, without locations.
        large: (sequence, body) of messages whose body has its own file.
        small_bytes: of records that put small state.
        messages: messages added (moves included); references: their references.
        message_bytes: bytes of their records.
        placed: per data file of a destination's directory, references to messages added there, and
            bytes of their records (not in the two before).
        unsynced: (sequence, location) of those that were not synced before this batch.
        batch, last_sequence, last_ack, last_list: counters after this batch.
        _together, _entries: lists that get the same messages, and those: see :meth:`spread_in_steps`.
    """

    file_id: int
    adds: dict[int, dict[int, int]] = {}
    shared: list[tuple[int, int]] = []
    others: list[tuple[Operation, int]] = []
    copies: list[tuple[int, int, tuple[int, ...]]] = []
    copied_rows: list[AckBlock] = []
    large: list[tuple[int, LargeBody]] = []
    small_bytes: int = 0
    messages: int = 0
    references: int = 0
    message_bytes: int = 0
    placed: dict[int, list[int]] = {}
    unsynced: list[tuple[int, int]] = []
    batch: int = 0
    last_sequence: int = 0
    last_ack: int = 0
    last_list: int = 0
    _together: tuple[int, ...] = ()
    _entries: dict[int, int] = {}

    def add(
        self, sequence: int, place: int, lists: tuple[int, ...], large: LargeBody | None
    ) -> None:
        """A message with a record at *place* of this batch was added to *lists*."""
        self.messages += 1
        self.references += len(lists)
        self.message_bytes += place >> 32 & MASK_32
        if large is not None:
            self.large.append((sequence, large))
        if large is not None or len(lists) > 1:
            place |= SHARED_BIT
            self.shared.append((sequence, len(lists)))
        self._put(sequence, place, lists)

    def place(self, sequence: int, place: int, lists: tuple[int, ...]) -> None:
        """A message that lies in the directory of its destination was added to *lists*."""
        if len(lists) > 1:
            self.shared.append((sequence, len(lists)))
        self._put(sequence, place, lists)
        use = self.placed.setdefault(place >> FILE_SHIFT, [0, 0])
        use[0] += len(lists)
        use[1] += place >> 32 & MASK_32
        self.messages += 1

    def _put(self, sequence: int, place: int, lists: tuple[int, ...]) -> None:
        if lists != self._together:
            self.spread()
            if len(lists) < WIDE_MIN:
                for list_id in lists:
                    self.adds.setdefault(list_id, {})[sequence] = place
                return
            self._together = lists
        self._entries[sequence] = place

    @property
    def is_spread(self) -> bool:
        """Whether nothing is held back that :meth:`spread_in_steps` would put into lists."""
        return not self._entries

    def spread(self) -> None:
        """Put what was held back into its lists: call it before ``adds`` is used."""
        for _ in self.spread_in_steps():
            pass

    def spread_in_steps(self) -> Iterator[None]:
        """The same; yields after each step. Ten thousand lists get what they share in a tenth of the time
        needed message by message."""
        lists, entries = self._together, self._entries
        if not entries:
            return
        self._together, self._entries = (), {}
        adds = self.adds
        step = max(1, STEP_ENTRIES // (LIST_ENTRIES + len(entries)))
        for first in range(0, len(lists), step):
            for list_id in lists[first : first + step]:
                own = adds.get(list_id)
                if own is None:
                    adds[list_id] = entries.copy()
                else:
                    own.update(entries)
            yield


def moves_apart(
    operations: Sequence[Operation | AddReference],
) -> list[Operation | AddReference]:
    """*operations*, each move as its two parts: one message leaves, another one comes."""
    result: list[Operation | AddReference] = []
    for operation in operations:
        if type(operation) is Move:
            gone = (operation.sequence,)
            dropped = Discard(operation.pending_list, gone, DiscardReason.DROPPED)
            result.append(operation.row or dropped)
            lists = (operation.target_list,)
            result.append(AddMessage(operation.target_sequence, operation.message, lists))
        else:
            result.append(operation)
    return result
