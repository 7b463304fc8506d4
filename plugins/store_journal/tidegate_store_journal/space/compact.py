"""Compaction: copies the last live messages of a data file forward, so that it can be removed.

Otherwise one unacknowledged message would keep its whole file, and a few could fill the disk. The
copy is an ordinary batch of the ordinary writer. The old file is removed at the next cleanup, after
a checkpoint that names only the copies; until that is on disk the originals count.

Only messages that are still where they were found are copied, and only when *every* reference to them
is known: a message is never in two places (docs/journal-format.md section 6).

Steps are small and not synced by themselves, so a confirmation waits for one short write at most.
There are pauses between steps, unless a writer is waiting for the file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from tidegate.spi import CorruptRecordError, StoreError
from tidegate_store_journal.bodies.directory import item_of
from tidegate_store_journal.bodies.series import Series
from tidegate_store_journal.index.acklog import AckBlock
from tidegate_store_journal.index.effects import Effects
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.index.reader import Reader
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.files import DataFiles
from tidegate_store_journal.log.format import (
    MASK_32,
    RECORD_HEADER_BYTES,
    encode_record,
    location,
    pack_integers,
)
from tidegate_store_journal.log.records import encode_reference
from tidegate_store_journal.write.append import Appender
from tidegate_store_journal.write.encode import EncodedBatch, mark_shared

logger = logging.getLogger("tidegate.store.journal")

#: Bytes of records copied in one step: about a millisecond of the loop for 256-byte messages.
STEP_BYTES_MAX: Final = 128 << 10
#: A step is at most this part of a file, so that little space is wasted at its end.
_STEP_FILE_PART: Final = 8
#: Bytes of a step besides its records: the batch header, and the header of copied rows.
_STEP_OVERHEAD_BYTES: Final = 256
#: A pause is this many times as long as the step before it, so copying takes a quarter of the time.
_PAUSE_FACTOR: Final = 3
_PAUSE_SECONDS_MAX: Final = 0.1
#: All messages found can be acknowledged before they are copied, while others are left.
_FRUITLESS_ROUNDS_MAX: Final = 3
#: Pieces of lists and blocks of rows to look at before other work gets a turn.
_FIND_PIECES: Final = 8
#: Bytes of a record besides the message: its header and two or three further lists.
_RECORD_OVERHEAD_BYTES: Final = RECORD_HEADER_BYTES + 24


@dataclass(slots=True)
class Found:
    """A message in the file being compacted: its place, and what refers to it.

    Attributes: lists: pending lists; rows: ack sequences of the acknowledged log.
    """

    sequence: int
    location: int
    lists: list[int] = field(default_factory=list[int])
    rows: list[int] = field(default_factory=list[int])


@dataclass(eq=False)
class Compactor:
    """Empties data files, including those of destinations' directories. For the event loop.

    Copies from a directory go into that directory; the batch then only says where they are.
    """

    index: Index
    files: DataFiles
    reader: Reader
    appender: Appender
    series: Series
    copied_messages: int = field(default=0, init=False)
    copied_bytes: int = field(default=0, init=False)

    def room_needed(self, file: DataFile) -> int:
        """Most bytes that the remaining copies of the file can take."""
        use = self.index.files.get(file.file_id)
        if use is None:
            return 0
        records = use.live_bytes + use.references * _RECORD_OVERHEAD_BYTES
        # A step is full when the next message does not fit, so two together exceed the limit.
        steps = 2 * records // self._step_bytes_max() + 2
        return records + steps * _STEP_OVERHEAD_BYTES

    async def compact(
        self,
        file: DataFile,
        *,
        is_urgent: Callable[[], bool] = lambda: True,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Copy all live records of *file* to the end of the journal, or of its directory.

        Args: is_urgent: a writer waits for the file, so make no pauses. is_stopped: the store is
            being closed, so start no further step.
        Returns: True when the file has no live records left. False: stopped, no room, or an
            unreadable message, which was logged. Raises: StoreError, OSError.
        Cancellation: safe; copies already made count.
        """
        fruitless = 0
        with self.index.log.pinned():
            while True:
                found = await self._find(file.file_id)
                copied = 0
                for step in self._steps(found):
                    count = None if is_stopped() else await self._copy(file, step, is_urgent)
                    if count is None:
                        return False
                    copied += count
                references = self.index.references_to(file.file_id)
                if not references:
                    return True
                fruitless = 0 if copied else fruitless + 1
                if fruitless > _FRUITLESS_ROUNDS_MAX:
                    logger.warning(
                        "a data file cannot be emptied name=%s references=%d", file.name, references
                    )
                    return False

    async def _find(self, file_id: int) -> list[Found]:
        """The live records of the file, in file order."""
        index = self.index
        found: dict[int, Found] = {}
        looked = references = 0
        for list_id in list(index.lists):
            pending = index.lists.get(list_id)
            for piece in pending.pieces_in(file_id) if pending is not None else ():
                for sequence, place in piece:
                    lists = found.setdefault(sequence, Found(sequence, place)).lists
                    if list_id not in lists:
                        lists.append(list_id)
                        references += 1
                looked += 1
                if looked % _FIND_PIECES == 0:
                    await asyncio.sleep(0)
        if references < index.references_to(file_id):
            await index.log.of_files(lambda: (file_id,))
            for parts in index.log.parts_in(file_id):
                for row, sequence, place in chain.from_iterable(part.rows() for part in parts):
                    found.setdefault(sequence, Found(sequence, place)).rows.append(row)
                looked += 1
                if looked % _FIND_PIECES == 0:
                    await asyncio.sleep(0)
        return sorted(found.values(), key=lambda item: item.location)

    def _step_bytes_max(self) -> int:
        return min(STEP_BYTES_MAX, self.files.file_length // _STEP_FILE_PART)

    def _steps(self, found: list[Found]) -> list[list[Found]]:
        """Pieces of limited size; a larger message is its own piece."""
        limit = self._step_bytes_max()
        steps: list[list[Found]] = []
        size = limit
        for item in found:
            item_bytes = (item.location >> 32 & MASK_32) + _RECORD_OVERHEAD_BYTES
            size += item_bytes
            if size > limit:
                steps.append([])
                size = item_bytes
            steps[-1].append(item)
        return steps

    async def _copy(
        self, file: DataFile, step: list[Found], is_urgent: Callable[[], bool]
    ) -> int | None:
        """Copy one piece. Returns: messages copied; None when it cannot go on."""
        now = asyncio.get_running_loop().time
        begin = now()
        index = self.index
        living = [item for item in step if any(holders(index, item))]
        if not living:
            return 0
        try:
            values = await self.reader.read_values([(i.sequence, i.location) for i in living])
        except CorruptRecordError as error:
            logger.warning("a data file cannot be compacted name=%s error=%s", file.name, error)
            return None
        places: dict[int, int] | None = None
        if file.folder:
            # Synced: the batch that refers to the copies replaces the originals.
            items = [
                item_of(found.sequence, value, found.location & MASK_32)
                for found, value in zip(living, values, strict=True)
            ]
            places = await self.series.place("copies", {file.folder: items}, synced=True)
        copied = 0
        size = 0

        def encode(file_id: int, offset: int) -> EncodedBatch:
            nonlocal copied, size
            batch = encode_copies(zip(living, values, strict=True), file_id, offset, index, places)
            if batch is None:
                raise _NothingLeftError
            if not self._fits(file_id, offset + batch.size):
                raise _NoRoomError
            copied = len(batch.effects.copies)
            size = batch.size
            return batch

        try:
            await self.appender.append(encode, synced=False, waits=False)
        except _NothingLeftError:
            return 0
        except _NoRoomError:
            return None
        self.copied_messages += copied
        self.copied_bytes += size
        if not is_urgent():
            await asyncio.sleep(min(_PAUSE_SECONDS_MAX, _PAUSE_FACTOR * (now() - begin)))
        return copied

    def _fits(self, file_id: int, end: int) -> bool:
        """The reserve is for acknowledgements on a full disk: leave it alone then."""
        file = self.files.get(file_id)
        return self.files.has_room or (file is not None and end <= file.length)


class _NothingLeftError(Exception):
    """Everything to copy was acknowledged meanwhile."""


class _NoRoomError(StoreError):
    """The copy would need the last file."""


def encode_copies(
    messages: Iterable[tuple[Found, bytes]],
    file_id: int,
    offset: int,
    index: Index,
    places: Mapping[int, int] | None = None,
) -> EncodedBatch | None:
    """Copy *messages* (with their encoded values) to *offset* of the file.

    *places*: by sequence, where copies already are: in the directory of their destination.

    Returns: None when there is nothing left to copy.
    """
    effects = Effects(file_id)
    base = location(file_id, offset, 0, 0)
    parts: list[bytes] = []
    rows: list[int] = []
    at = 0
    for found, value in messages:
        sequence, old = found.sequence, found.location
        lists, held_rows = holders(index, found)
        if not lists and not held_rows:
            continue
        if len(lists) + len(held_rows) != index.held(sequence):
            continue  # acknowledged in one list meanwhile: found again in the next round
        body = index.large.bodies.get(sequence)
        if body is not None:
            effects.large.append((sequence, body))
        if places is not None:
            place = places[sequence]
            record = encode_reference(_format.COPY_REFERENCE, sequence, place, lists, synced=True)
        else:
            prefix = pack_integers(lists[1:])
            record = encode_record(
                _format.COPY if body is None else _format.COPY | _format.LARGE_BIT,
                prefix + value,
                sequence=sequence,
                pending_list=lists[0] if lists else 0,
                prefix_bytes=len(prefix),
                body_bytes=old & MASK_32,
            )
            place = base + (at << 64 | len(record) << 32 | old & MASK_32)
        effects.copies.append((sequence, place, tuple(lists)))
        rows += held_rows
        parts.append(record)
        at += len(record)
    if not parts:
        return None
    for block in _blocks_of(sorted(rows), index):
        effects.copied_rows.append(block)
        record = encode_record(_format.COPIED_ROWS, block.encode(), pending_list=block.pending_list)
        parts.append(record)
        at += len(record)
    mark_shared(effects)
    effects.last_sequence = index.last_sequence
    effects.last_ack = index.log.last
    effects.last_list = index.last_list
    return EncodedBatch((b"".join(parts),), at, len(parts), effects)


def holders(index: Index, found: Found) -> tuple[list[int], list[int]]:
    """Which of the lists and rows that referred to a message where it was found still do."""

    def is_in(list_id: int) -> bool:
        pending = index.lists.get(list_id)
        return pending is not None and pending.get(found.sequence) == found.location

    rows = [row for row in found.rows if index.log.location_of(row) == found.location]
    return list(filter(is_in, found.lists)), rows


def _blocks_of(rows: Sequence[int], index: Index) -> list[AckBlock]:
    """*rows* as blocks without locations, neighbours of one block together."""
    blocks: list[AckBlock] = []
    begin = 0
    while begin < len(rows):
        owner = index.log.block_of(rows[begin])
        assert isinstance(owner, AckBlock)
        end = begin + 1
        while end < len(rows) and rows[end] == rows[end - 1] + 1 and rows[end] <= owner.last:
            end += 1
        first = rows[begin] - owner.first
        blocks.append(owner.part(first, first + end - begin).located(()))
        begin = end
    return blocks
