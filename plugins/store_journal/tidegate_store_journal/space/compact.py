"""Compaction: the last live messages of a data file are copied forward, so that the file can go.

One message that nobody acknowledges would otherwise keep its whole file, and a few of them the whole
disk. The copy is an ordinary batch of the ordinary writer. The old file goes at the next cleanup,
after a checkpoint that names the copies only; until that is on disk the originals count.

Steps are small and are not synced by themselves, so a confirmation waits for one short write at most;
and between them there are pauses, unless somebody waits for the file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tidegate.spi import CorruptRecordError, Progress, StoreError
from tidegate_store_journal.checkpoint.checkpoint import Checkpointer
from tidegate_store_journal.checkpoint.rows import Rows
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.index.reader import Reader
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.files import DataFiles
from tidegate_store_journal.log.format import MASK_32, location_parts
from tidegate_store_journal.space.copies import RECORD_OVERHEAD_BYTES, Found, encode_copies
from tidegate_store_journal.write.append import Appender
from tidegate_store_journal.write.encode import EncodedBatch

logger = logging.getLogger("tidegate.store.journal")

#: Bytes of records copied in one step: about a millisecond of the loop for 256-byte messages.
STEP_BYTES_MAX: Final = 128 << 10
#: A step is at most this part of a file, so that little of a file stays unused at its end.
_STEP_FILE_PART: Final = 8
#: What a step takes besides its records: the batch header, and the header of copied rows.
_STEP_OVERHEAD_BYTES: Final = 256
#: A pause is so many times as long as the step before it: at most a quarter of the time is taken.
_PAUSE_FACTOR: Final = 3
_PAUSE_SECONDS_MAX: Final = 0.1
#: Everything that was found can be acknowledged before it is copied, and something else be left.
_FRUITLESS_ROUNDS_MAX: Final = 3
#: Entries looked at before other work gets a turn.
_FIND_ENTRIES: Final = 8 * 4096


def choose(
    files: DataFiles,
    index: Index,
    tail: DataFile | None,
    *,
    min_files: int,
    percentage: int,
    unfit: frozenset[int] = frozenset(),
) -> DataFile | None:
    """The file to compact next, the one with the lowest share of live bytes; None: not now.

    Two rules; either is enough, and *min_files* or *percentage* 0 turns both off:

    - Artemis: at least *min_files* files are used, and less than *percentage* of them is alive.
    - The bound: all data files together are more than 3 times the live bytes and 4 files. (The
      four: the current one, two spares, and one that is being emptied.)
    """
    if not min_files or not percentage:
        return None
    used = files.used()
    old = [file for file in used if file is not tail]
    live = sum(index.file_use(file.file_id).live_bytes for file in used)
    used_bytes = sum(file.length for file in used)
    old_bytes = sum(file.length for file in old)
    is_sparse = len(used) >= min_files and live * 100 < used_bytes * percentage
    if not is_sparse and old_bytes <= 3 * live + files.file_length:
        return None
    candidates = [
        (index.files[file.file_id].live_bytes / file.length, file.first_batch, file)
        for file in old
        if file.file_id not in unfit
        and file.file_id in index.files
        and index.files[file.file_id].references
    ]
    return min(candidates)[2] if candidates else None


class Compactor:
    """Compacts one file at a time. All methods are for the event loop."""

    def __init__(
        self,
        index: Index,
        files: DataFiles,
        reader: Reader,
        appender: Appender,
        rows: Rows,
        *,
        is_urgent: Callable[[], bool],
        is_stopped: Callable[[], bool],
        place: Callable[[DataFile, Sequence[tuple[int, bytes, int]]], Awaitable[dict[int, int]]]
        | None = None,
    ) -> None:
        """*is_urgent*: somebody waits for the file, so there are no pauses.

        *place*: puts (sequence, value, bytes of the body) into the directory of a destination; the
        batch then only says where they are, by sequence.

        *is_stopped*: the store is being closed, so the next step is not begun.
        """
        self._is_stopped = is_stopped
        self._index = index
        self._files = files
        self._reader = reader
        self._appender = appender
        self._rows = rows
        self._is_urgent = is_urgent
        self._place = place
        self.copied_messages = 0
        self.copied_bytes = 0
        self.victim: DataFile | None = None  # the file that is being emptied

    def room_needed(self) -> int:
        """Bytes that the copies still to be made of the victim take at most."""
        victim = self.victim
        use = None if victim is None else self._index.files.get(victim.file_id)
        if use is None:
            return 0
        records = use.live_bytes + use.references * RECORD_OVERHEAD_BYTES
        # A step is full when the next message does not fit, so two together exceed the limit.
        steps = 2 * records // self._step_bytes_max() + 2
        return records + steps * _STEP_OVERHEAD_BYTES

    async def compact(self, file: DataFile) -> bool:
        """Copy everything that lives in *file* to the end of the journal.

        Returns: nothing lives in it any more. False: the store is being closed, there was no room,
            or a message cannot be read; that was logged. Raises: StoreError, OSError.
        Cancellation: safe; what was copied is copied.
        """
        self.victim = file
        try:
            with self._rows.pinned():
                return await self._compact(file)
        finally:
            self.victim = None

    async def _compact(self, file: DataFile) -> bool:
        fruitless = 0
        while True:
            found = await self._find(file.file_id)
            copied = 0
            for step in self._steps(found):
                count = None if self._is_stopped() else await self._copy(file, step)
                if count is None:
                    return False
                copied += count
            use = self._index.files.get(file.file_id)
            if use is None or not use.references:
                return True
            fruitless = 0 if copied else fruitless + 1
            if fruitless > _FRUITLESS_ROUNDS_MAX:
                logger.warning(
                    "a data file cannot be emptied name=%s references=%d", file.name, use.references
                )
                return False

    async def _find(self, file_id: int) -> list[Found]:
        """What lives in the file, in the order of its bytes."""
        index = self._index
        found: dict[int, Found] = {}
        looked = 0
        references = 0
        for list_id in list(index.lists):
            pending = index.lists.get(list_id)
            if pending is None:
                continue
            for piece in pending.pieces_in(file_id):
                for sequence, place in piece:
                    lists = found.setdefault(sequence, Found(sequence, place)).lists
                    if list_id not in lists:
                        lists.append(list_id)
                        references += 1
                looked += 4096
                if looked >= _FIND_ENTRIES:
                    looked = 0
                    await asyncio.sleep(0)
        use = index.files.get(file_id)
        if use is not None and references < use.references:
            await self._find_rows(file_id, found)
        return sorted(found.values(), key=lambda item: item.location)

    async def _find_rows(self, file_id: int, found: dict[int, Found]) -> None:
        log = self._index.log
        await self._rows.of_files(lambda: (file_id,))
        looked = 0
        for block in list(log.blocks()):
            looked += 1
            if block.may_speak_of(file_id):
                looked += block.count
                sequences = block.sequences
                for number, place in enumerate(block.locations):
                    row = block.first + number
                    if location_parts(place)[0] == file_id and row > log.released:
                        sequence = sequences[number]
                        found.setdefault(sequence, Found(sequence, place)).rows.append(row)
            if looked >= _FIND_ENTRIES:
                looked = 0
                await asyncio.sleep(0)

    def _step_bytes_max(self) -> int:
        return min(STEP_BYTES_MAX, self._files.file_length // _STEP_FILE_PART)

    def _steps(self, found: list[Found]) -> list[list[Found]]:
        """Pieces of limited size; a larger message is a piece of its own."""
        limit = self._step_bytes_max()
        steps: list[list[Found]] = []
        size = limit
        for item in found:
            size += (item.location >> 32 & MASK_32) + RECORD_OVERHEAD_BYTES
            if size > limit:
                steps.append([])
                size = (item.location >> 32 & MASK_32) + RECORD_OVERHEAD_BYTES
            steps[-1].append(item)
        return steps

    async def _copy(self, file: DataFile, step: list[Found]) -> int | None:
        """Copy one piece. Returns: messages copied; None when it cannot go on."""
        now = asyncio.get_running_loop().time
        begin = now()
        index = self._index
        living = [item for item in step if self._still_there(item)]
        if not living:
            return 0
        try:
            values = await self._reader.read_values([(i.sequence, i.location) for i in living])
        except CorruptRecordError as error:
            logger.warning("a data file cannot be compacted name=%s error=%s", file.name, error)
            return None
        places: dict[int, int] | None = None
        if self._place is not None:
            sizes = [item.location & MASK_32 for item in living]
            sequences = [item.sequence for item in living]
            places = await self._place(file, list(zip(sequences, values, sizes, strict=True)))
        copied = 0
        size = 0

        def encode(file_id: int, offset: int) -> EncodedBatch:
            nonlocal copied, size
            batch = encode_copies(zip(living, values, strict=True), file_id, offset, index, places)
            if batch is None:
                raise _NothingLeftError
            if not self._fits(file_id, offset + len(batch.payload)):
                raise _NoRoomError
            copied = len(batch.effects.copies)
            size = len(batch.payload)
            return batch

        try:
            await self._appender.append(encode, synced=False, waits=False)
        except _NothingLeftError:
            return 0
        except _NoRoomError:
            return None
        self.copied_messages += copied
        self.copied_bytes += size
        if not self._is_urgent():
            await asyncio.sleep(min(_PAUSE_SECONDS_MAX, _PAUSE_FACTOR * (now() - begin)))
        return copied

    def _still_there(self, item: Found) -> bool:
        lists, log = self._index.lists, self._index.log
        for list_id in item.lists:
            pending = lists.get(list_id)
            if pending is not None and pending.get(item.sequence) == item.location:
                return True
        return any(log.location_of(row) == item.location for row in item.rows)

    def _fits(self, file_id: int, end: int) -> bool:
        """The reserve is for acknowledgements when the disk is full: leave it alone then."""
        file = self._files.get(file_id)
        return self._files.has_room or (file is not None and end <= file.length)


class _NothingLeftError(Exception):
    """Everything that was to be copied was acknowledged meanwhile."""


class _NoRoomError(StoreError):
    """The copy would need the last file there is."""


async def compact_files(
    index: Index,
    files: DataFiles,
    reader: Reader,
    appender: Appender,
    checkpointer: Checkpointer,
    *,
    percentage: int,
    progress: Progress,
) -> int:
    """Empty every data file of which less than *percentage* is alive, the emptiest first.

    For a store that nobody else works with. Returns: data files put away.
    Raises: OSError, StoreError.
    """
    put_away = await checkpointer.run(cleanup=True, force=True)
    compactor = Compactor(
        index,
        files,
        reader,
        appender,
        checkpointer.rows,
        is_urgent=lambda: True,
        is_stopped=lambda: False,
    )
    tail = appender.tail.file
    victims = [
        (index.files[file.file_id].live_bytes / file.length, file.first_batch, file)
        for file in files.used()
        if file is not tail
        and file.file_id in index.files
        and index.files[file.file_id].live_bytes * 100 < percentage * file.length
    ]
    for done, (_, _, file) in enumerate(sorted(victims, key=lambda item: item[:2])):
        progress("compacting data files", done, len(victims))
        if not await compactor.compact(file):
            logger.warning("a data file could not be emptied name=%s", file.name)
        put_away += await checkpointer.run(cleanup=True)
    progress("compacting data files", len(victims), len(victims))
    return put_away
