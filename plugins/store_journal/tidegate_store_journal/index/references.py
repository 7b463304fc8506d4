"""Which references keep which data file: counted continuously, so that nobody ever has to search.

A *reference* is a list entry or a row of the acknowledged log; each keeps the message it points to.
A message with several references is *shared*: its bytes count once, and go with the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from tidegate_store_journal.index.acklog import AckBlock, AckLog
from tidegate_store_journal.index.largereferences import LargeReferences
from tidegate_store_journal.index.pending import PendingList
from tidegate_store_journal.log.format import FILE_SHIFT, MASK_32, SHARED_BIT

#: A message with several references: how many lists hold it, and how many references (lists and
#: rows of the acknowledged log) keep its bytes, in the upper half.
HELD_SHIFT: Final = 32


def held_bytes(location: int) -> int:
    """Bytes that a message takes: its record, or its body where that is elsewhere."""
    return max(location >> 32 & MASK_32, location & MASK_32)


class FileUse(msgspec.Struct, eq=False):
    """What the index knows about one data file.

    Attributes:
        references: how many references (list entries, acknowledged rows) to messages in it exist.
        live_bytes: bytes of the records of those messages, each counted once.
        speaks_of: files with messages that acknowledgements (discards, moves) in this file are
            about: before this file goes, what lives in those is recorded.
        copied_from: files that messages in this one were copied from. A file that speaks of a copy
            also speaks of the original, as long as the original's file is there.
    """

    references: int = 0
    live_bytes: int = 0
    speaks_of: set[int] = set()
    copied_from: set[int] = set()
    speaks_of_stored: int = 0  # size of speaks_of at the last checkpoint


class Held(NamedTuple):
    """A reference to a message. Attributes: pending_list: the holder; 0: the acknowledged log, in *row*."""

    location: int
    sequence: int
    pending_list: int
    row: int = 0


class References:
    """The counting half of :class:`~tidegate_store_journal.index.index.Index`.

    Attributes:
        lists: pending lists by id; log: the acknowledged log; files: use of each data file by id.
        pending_messages: messages that at least one list holds.
        acknowledged_bytes: bytes of records (and of large bodies) that only the log holds.
        large: messages whose body has its own file.
    """

    def __init__(self) -> None:
        self.lists: dict[int, PendingList] = {}
        self.files: dict[int, FileUse] = {}
        self.log = AckLog()
        self.large = LargeReferences()
        self.pending_messages: int = 0
        self.acknowledged_bytes: int = 0
        self._shared: dict[int, int] = {}
        self._file_id = 0  # of the batch that is being applied

    def file_use(self, file_id: int) -> FileUse:
        """The entry of a data file, created if missing."""
        use = self.files.get(file_id)
        if use is None:
            use = self.files[file_id] = FileUse()
        return use

    def live_bytes(self, file_id: int) -> int:
        """Bytes of the records in a data file that have references."""
        use = self.files.get(file_id)
        return use.live_bytes if use is not None else 0

    def references_to(self, file_id: int) -> int:
        """List entries and rows of the acknowledged log whose message is in a data file."""
        use = self.files.get(file_id)
        return use.references if use is not None else 0

    def list_of(self, list_id: int) -> PendingList:
        """The list, created if missing."""
        pending = self.lists.get(list_id)
        if pending is None:
            pending = self.lists[list_id] = PendingList()
        return pending

    def held_in(self, file_id: int) -> Iterator[Held]:
        """Every reference to messages in a data file; of the log only rows in memory."""
        for list_id, pending in self.lists.items():
            for piece in pending.pieces_in(file_id):
                for sequence, place in piece:
                    yield Held(place, sequence, list_id)
        for part in chain.from_iterable(self.log.parts_in(file_id)):
            for row, sequence, place in part.rows():
                yield Held(place, sequence, 0, row)

    def recount(self, blocks: Sequence[AckBlock], last: int, released: int) -> int:
        """Recount references from the lists and *blocks* (at start).

        Returns: rows of the log that are missing, see :meth:`AckLog.restore`.
        """
        for use in self.files.values():
            use.references = use.live_bytes = 0
        shared: dict[int, int] = {}
        places: dict[int, int] = {}
        self.pending_messages = self.acknowledged_bytes = 0
        for pending in self.lists.values():
            for usage in pending.usages():
                for file_id, (references, record_bytes) in usage.files.items():
                    use = self.file_use(file_id)
                    use.references += references
                    use.live_bytes += record_bytes
                    self.pending_messages += references
                for sequence, location in usage.shared:
                    self.file_use(location >> FILE_SHIFT).references += 1
                    shared[sequence] = shared.get(sequence, 0) + (1 << HELD_SHIFT | 1)
                    places[sequence] = location
        missing = self.log.restore(blocks, last, released)
        for block in self.log.blocks():
            begin = max(0, self.log.released + 1 - block.first)
            rows = zip(block.sequences[begin:], block.locations[begin:], strict=True)
            for sequence, location in rows:
                use = self.file_use(location >> FILE_SHIFT)
                use.references += 1
                if location & SHARED_BIT:
                    shared[sequence] = shared.get(sequence, 0) + (1 << HELD_SHIFT)
                    places[sequence] = location
                else:
                    use.live_bytes += location >> 32 & MASK_32
                    self.acknowledged_bytes += held_bytes(location)
        for sequence, counts in shared.items():
            location = places[sequence]
            self.files[location >> FILE_SHIFT].live_bytes += location >> 32 & MASK_32
            if counts & MASK_32:
                self.pending_messages += 1
            else:
                self.acknowledged_bytes += held_bytes(location)
        self._shared = shared
        self.large.keep_only(shared)
        return missing

    def held(self, sequence: int) -> int:
        """How many references keep the message, which has at least one."""
        counts = self._shared.get(sequence)
        return 1 if counts is None else counts >> HELD_SHIFT

    def _move_references(self, sequence: int, count: int, old: int, new: int) -> None:
        """A message with *count* remaining references was copied."""
        source_id, target_id = old >> FILE_SHIFT, new >> FILE_SHIFT
        source, target = self.file_use(source_id), self.file_use(target_id)
        source.references -= count
        source.live_bytes -= old >> 32 & MASK_32
        target.references += count
        target.live_bytes += new >> 32 & MASK_32
        if not new & SHARED_BIT:
            self._shared.pop(sequence, None)
        if source_id not in target.copied_from:
            target.copied_from |= {source_id, *source.copied_from}
            target.speaks_of |= target.copied_from
        if target_id != self._file_id:
            self._speak_of(source_id)  # the copies are elsewhere than this batch

    def _speak_of(self, file_id: int) -> None:
        """The batch being applied says something about messages in another file."""
        spoken = self.file_use(self._file_id).speaks_of
        if file_id not in spoken:
            spoken |= {file_id, *self.files[file_id].copied_from}

    def _leave_shared(
        self, sequences: Sequence[int], locations: Sequence[int], *, held: int, pending: int
    ) -> tuple[list[int], list[int]]:
        """Count down messages with several references; returns the others, for the caller."""
        shared = self._shared
        single: tuple[list[int], list[int]] = ([], [])
        for sequence, location in zip(sequences, locations, strict=True):
            before = shared.get(sequence)
            if before is None:
                single[0].append(sequence)
                single[1].append(location)
                continue
            after = before - (held << HELD_SHIFT | pending)
            use = self.files[location >> FILE_SHIFT]
            use.references -= held
            lists_left = after & MASK_32
            if pending and lists_left == 0:
                self.pending_messages -= 1
            # Bytes that only the log holds: no list does, but a row still does.
            was_log_only = before & MASK_32 == 0
            is_log_only = lists_left == 0 and after > 0
            self.acknowledged_bytes += (is_log_only - was_log_only) * held_bytes(location)
            if after == 0:
                use.live_bytes -= location >> 32 & MASK_32
                del shared[sequence]
                self.large.remove(sequence)
            else:
                shared[sequence] = after
        return single

    def _free(self, locations: Sequence[int]) -> int:
        """The only references to the messages at these places are gone.

        Returns: bytes of their records.
        """
        if not locations:
            return 0
        files = self.files
        only = _only_file(locations)
        if only is not None:
            use = files[only]
            freed = record_bytes(locations, is_one_file=True)
            use.references -= len(locations)
            use.live_bytes -= freed
            return freed
        for location in locations:
            use = files[location >> FILE_SHIFT]
            use.references -= 1
            use.live_bytes -= location >> 32 & MASK_32
        return record_bytes(locations, is_one_file=False)

    def _note_speaks_of(self, locations: Sequence[int]) -> bool:
        """The batch being applied takes these messages off a list. Returns: whether they are in one file."""
        if not locations:
            return True
        only = _only_file(locations)
        own = self._file_id
        if only is not None:
            if only != own:
                spoken = self.file_use(own).speaks_of
                spoken.add(only)
                origin = self.files.get(only)
                if origin is not None and origin.copied_from:
                    spoken |= origin.copied_from
            return True
        spoken = {location >> FILE_SHIFT for location in locations}
        for file_id in list(spoken):
            origin = self.files.get(file_id)
            if origin is not None:
                spoken |= origin.copied_from
        spoken.discard(own)
        self.file_use(own).speaks_of |= spoken
        return False


def _only_file(locations: Sequence[int]) -> int | None:
    """The data file that has all of them; None when they are in several."""
    first = min(locations) >> FILE_SHIFT
    return first if first == max(locations) >> FILE_SHIFT else None


def record_bytes(locations: Sequence[int], *, is_one_file: bool) -> int:
    """Bytes of the records of messages whose bodies are in the records.

    Of records in one file the sums of bodies and of records are below its length and cannot carry into each
    other: one sum in C gives both.
    """
    if is_one_file:
        return sum(locations) >> 32 & MASK_32
    return sum([location >> 32 & MASK_32 for location in locations])
