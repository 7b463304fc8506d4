"""The messages of one queue that are not stored: in memory, and in temporary files above its share.

They are kept in *blocks* of consecutive messages. What a block has in memory is given out as it is; a
written block has only its sequences in memory. New messages go into the last block. Of the complete
ones the newest is written first: the oldest are wanted next.

Unlike the spool of a file cursor it can be read anywhere and more than once, like a store.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final, TypeAlias, final

import msgspec

from tidegate.broker.unstored.segments import Segment, Segments, Threads
from tidegate.spi import (
    MESSAGE_OVERHEAD_BYTES,
    CursorMemory,
    Message,
    StoredMessage,
    StoreIOError,
)

_log = logging.getLogger("tidegate.broker.unstored")

#: A block is complete with this many messages, or bytes of memory: what is read from a file at once.
BLOCK_COUNT_MAX: Final = 256
BLOCK_BYTES_MAX: Final = 128 << 10
#: … or with this fraction of what its list may have in memory.
_BLOCKS_MIN: Final = 8

#: What each list may have in memory in any case.
FLOOR_BYTES: Final = 64 << 10
#: How far a list may be above its share in memory, at most, while the disk is slower than its producers; and
#: at most this fraction of its share, and two blocks.
BEHIND_BYTES_MAX: Final = 1 << 20
_BEHIND_PART: Final = 4

#: Bytes that are written at once.
JOB_BYTES: Final = 1 << 20
#: Seconds after which a disk that refused is tried again.
RETRY_S: Final = 1.0

_Records: TypeAlias = list[tuple[int, Message]]
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Records).decode
_last_of: Final = attrgetter("last")
_sequence_of: Final = attrgetter("sequence")


@dataclass(frozen=True, slots=True)
class Share:
    """What one list may have.

    Attributes:
        memory: that of all unstored lists, of which it is a part.
        memory_bytes, memory_messages: in memory; 0 messages: no limit.
        high_water_percent: at this part of the limit of *memory* it may have only a little.
    """

    memory: CursorMemory
    memory_bytes: int
    memory_messages: int = 0
    high_water_percent: int = 100

    @property
    def allowed(self) -> int:
        """Bytes in memory, now."""
        memory = self.memory
        if 0 < memory.limit_bytes * self.high_water_percent // 100 <= memory.used + memory.reading:
            return min(self.memory_bytes, FLOOR_BYTES)
        return self.memory_bytes


@final
class _Block:
    """Consecutive messages.

    Attributes:
        first, last: sequences of the first and the last one put in.
        alive: how many were not removed.
        messages: by sequence, while it is in memory; size: bytes of memory.
        numbers: its sequences once written, ascending; gone: those removed since.
        counts: how often each of them was delivered, if it was.
    """

    __slots__ = (
        "alive",
        "counts",
        "first",
        "gone",
        "is_writing",
        "last",
        "length",
        "messages",
        "numbers",
        "offset",
        "segment",
        "size",
    )

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self.alive = self.size = self.offset = self.length = 0
        self.messages: dict[int, StoredMessage] | None = {}
        self.numbers = array("Q")
        self.gone: set[int] = set()
        self.counts: dict[int, int] = {}
        self.segment: Segment | None = None
        self.is_writing = False

    def holds(self, sequence: int) -> bool:
        """It has this message, in memory or in its file."""
        if self.messages is not None:
            return sequence in self.messages
        numbers = self.numbers
        index = bisect_left(numbers, sequence)
        return index < len(numbers) and numbers[index] == sequence and sequence not in self.gone


@final
class ListSpool:
    """See the module. All calls on the event loop; only :meth:`read` and :meth:`close` wait.

    Args:
        name: the queue, for messages.
        has_room: called when ``is_full`` is over.
    Attributes:
        count: messages in it.
        last: sequence of the last one put in.
        memory_bytes: of those in memory.
    """

    __slots__ = (
        "_block_bytes",
        "_block_count",
        "_blocks",
        "_cached",
        "_complete",
        "_has_room",
        "_in_memory",
        "_is_closed",
        "_is_told_full",
        "_job",
        "_name",
        "_open",
        "_retry",
        "_segments",
        "_share",
        "_threads",
        "count",
        "last",
        "memory_bytes",
    )

    def __init__(
        self,
        name: str,
        share: Share,
        segments: Segments,
        threads: Threads,
        has_room: Callable[[], None],
    ) -> None:
        self._name = name
        self._share = share
        self._segments = segments
        self._threads = threads
        self._has_room = has_room
        self._block_bytes = max(1, min(BLOCK_BYTES_MAX, share.memory_bytes // _BLOCKS_MIN))
        few = share.memory_messages // _BLOCKS_MIN
        self._block_count = min(BLOCK_COUNT_MAX, max(1, few)) if few else BLOCK_COUNT_MAX
        self._blocks: list[_Block] = []
        self._open: _Block | None = None  # the last one, if there is room in it
        self._complete: dict[_Block, None] = {}  # in memory, written when there is too much
        self._cached: tuple[_Block, list[StoredMessage]] | None = None  # what was read last
        self._in_memory = 0  # messages
        self._job: asyncio.Future[None] | None = None
        self._retry: asyncio.TimerHandle | None = None  # the disk refused; not tried before then
        self._is_told_full = self._is_closed = False
        self.count = self.last = self.memory_bytes = 0

    @property
    def file_bytes(self) -> int:
        """What its files take."""
        return self._segments.size_bytes

    @property
    def is_writing(self) -> bool:
        """A thread is writing to its files."""
        return self._job is not None

    @property
    def is_full(self) -> bool:
        """Producers must wait: neither memory nor disk has room, or the disk is slower than they are."""
        allowed = self._share.allowed
        behind = max(2 * self._block_bytes, min(BEHIND_BYTES_MAX, allowed // _BEHIND_PART))
        if self.memory_bytes <= allowed + behind:
            return False
        self._is_told_full = True
        return True

    # --- what comes and goes -------------------------------------------------------------------

    def add(self, stored: StoredMessage) -> None:
        """A new message, after all others; :meth:`settle` must follow."""
        block = self._open
        if block is None:
            block = self._open = _Block(stored.sequence)
            self._blocks.append(block)
        messages = block.messages
        if messages is None:
            raise AssertionError("a block is in memory while it is filled")
        messages[stored.sequence] = stored
        size = stored.size + MESSAGE_OVERHEAD_BYTES
        block.last = self.last = stored.sequence
        block.alive += 1
        block.size += size
        self.count += 1
        self._in_memory += 1
        self._tell(size)
        if block.size >= self._block_bytes or len(messages) >= self._block_count:
            self._open = None
            self._complete[block] = None

    def those(self, sequences: Iterable[int]) -> list[int]:
        """Those of *sequences* that are here, in their order."""
        found: list[int] = []
        block: _Block | None = None
        for sequence in sequences:
            if block is None or not block.first <= sequence <= block.last:
                block = self._find(sequence)
            if block is not None and block.holds(sequence):
                found.append(sequence)
        return found

    def remove(self, sequences: Iterable[int]) -> None:
        """They left the list; all of them were here. :meth:`settle` must follow."""
        block: _Block | None = None
        size = 0
        for sequence in sequences:
            if block is None or not block.first <= sequence <= block.last:
                block = self._find(sequence)
            if block is None:
                continue  # two operations of one batch said so
            if block.messages is not None:
                item = block.messages.pop(sequence, None)
                if item is None:
                    continue
                block.size -= item.size + MESSAGE_OVERHEAD_BYTES
                size += item.size + MESSAGE_OVERHEAD_BYTES
                self._in_memory -= 1
            elif sequence in block.gone:
                continue
            else:
                block.gone.add(sequence)
            block.alive -= 1
            self.count -= 1
            if not block.alive:
                self._forget(block)
                block = None
        self._tell(-size)

    def set_delivery_counts(self, counts: Mapping[int, int]) -> None:
        """How often messages were delivered; all of them are here."""
        for sequence, count in counts.items():
            block = self._find(sequence)
            if block is None:
                continue  # an operation of the same batch took it out
            if block.messages is None:
                block.counts[sequence] = count
            elif (known := block.messages.get(sequence)) is not None:
                block.messages[sequence] = StoredMessage(sequence, known.message, known.size, count)

    def settle(self) -> None:
        """Messages came or went: write what is in excess, and tell when there is room again."""
        self._go_on()
        if self._is_told_full and not self.is_full:
            self._is_told_full = False
            self._has_room()

    def _find(self, sequence: int) -> _Block | None:
        blocks = self._blocks
        if not blocks:
            return None
        block = blocks[0]
        if sequence > block.last:
            index = bisect_left(blocks, sequence, key=_last_of)
            if index == len(blocks):
                return None
            block = blocks[index]
        return block if block.first <= sequence else None

    def _forget(self, block: _Block) -> None:
        del self._blocks[bisect_left(self._blocks, block.last, key=_last_of)]
        self._complete.pop(block, None)
        if self._open is block:
            self._open = None
        if self._cached is not None and self._cached[0] is block:
            self._cached = None
        if not block.is_writing:  # otherwise when that is over
            self._release(block)

    def _release(self, block: _Block) -> None:
        segment, block.segment = block.segment, None
        if segment is not None and self._segments.release(segment):
            self._end_retry()

    def _tell(self, size: int) -> None:
        self.memory_bytes += size
        self._share.memory.add(size)

    # --- writing -------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Write the excess in memory, if there is any and nothing is under way."""
        if self._job is not None or self._retry is not None or not self._complete:
            return
        too_much = self._too_much(0, 0)
        if not too_much:
            return
        job: list[tuple[_Block, Segment, bytes]] = []
        size = count = written = 0
        while self._complete and written < JOB_BYTES and self._too_much(size, count):
            block, _ = self._complete.popitem()
            messages = block.messages
            if messages is None:
                raise AssertionError("a block that is written twice")
            data = _encode([(item.sequence, item.message) for item in messages.values()])
            place = self._segments.place(len(data))
            if place is None:
                self._complete[block] = None
                self._refuse("temporary_limit, or broker.temporary_space, is used up")
                break
            block.segment, block.offset = place
            block.length = len(data)
            block.numbers = array("Q", messages)
            block.is_writing = True
            job.append((block, place[0], data))
            size += block.size
            count += len(messages)
            written += len(data)
        if job:
            self._job = self._threads.run(partial(self._write, job))
            self._job.add_done_callback(partial(self._written, [item[0] for item in job]))

    def _too_much(self, size: int, count: int) -> bool:
        """Even without *size* bytes and *count* messages more than its share is in memory."""
        share = self._share
        return self.memory_bytes - size > share.allowed or (
            0 < share.memory_messages < self._in_memory - count
        )

    def _write(self, job: Iterable[tuple[_Block, Segment, bytes]]) -> None:
        for block, segment, data in job:
            self._segments.write(segment, block.offset, data)

    def _written(self, blocks: list[_Block], job: asyncio.Future[None]) -> None:
        self._job = None
        error = InterruptedError("the gateway stops") if job.cancelled() else job.exception()
        for block in reversed(blocks):  # the oldest first: the newest is the next to be written
            block.is_writing = False
            if error is None and block.alive:
                self._let_go(block)
                continue
            self._release(block)
            if block.alive:
                self._complete[block] = None
        if error is not None:
            self._refuse(error)
        if not self._is_closed:
            self.settle()

    def _let_go(self, block: _Block) -> None:
        """It is in its file: forget what is in memory."""
        messages, block.messages = block.messages, None
        if messages is None:
            raise AssertionError("a block that was written twice")
        block.gone = {sequence for sequence in block.numbers if sequence not in messages}
        block.counts = {
            item.sequence: item.delivery_count for item in messages.values() if item.delivery_count
        }
        self._in_memory -= len(messages)
        self._tell(-block.size)
        block.size = 0

    def _refuse(self, error: object) -> None:
        """The disk has no room, or is broken: it stays in memory, and producers wait."""
        if self._retry is None and not self._is_closed:
            _log.warning(
                "destination=%s unstored_messages=kept_in_memory error=%s", self._name, error
            )
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.settle()

    def _end_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    # --- reading -------------------------------------------------------------------------------

    async def read(
        self, after: int, limit: int, bytes_max: int, through: int
    ) -> tuple[list[StoredMessage], bool]:
        """The messages after *after* up to *through*, as :meth:`tidegate.spi.MessageStore.page_in`.

        Returns: them, and whether these are all up to *through*.
        Raises: StoreIOError. Cancellation: safe.
        """
        found: list[StoredMessage] = []
        size = 0
        while True:
            index = bisect_left(self._blocks, after + 1, key=_last_of)
            if index == len(self._blocks) or self._blocks[index].first > through:
                return found, True
            block = self._blocks[index]
            last = block.last
            messages = await self._load(block)
            gone, counts = block.gone, block.counts
            for item in messages[bisect_left(messages, after + 1, key=_sequence_of) :]:
                sequence = item.sequence
                if sequence in gone:
                    continue
                if sequence > through:
                    return found, True
                size += len(item.message.body)
                if found and (len(found) >= limit or size > bytes_max):
                    return found, False
                if sequence in counts:
                    count = counts[sequence]
                    item = StoredMessage(sequence, item.message, item.size, count)
                found.append(item)
            after = last

    async def _load(self, block: _Block) -> list[StoredMessage]:
        """All of the block; from a file also those removed since it was written."""
        if block.messages is not None:
            return [*block.messages.values()]
        if self._cached is not None and self._cached[0] is block:
            return self._cached[1]
        segment = block.segment
        if segment is None:
            return []
        self._segments.begin_read(segment)
        try:
            found = await self._threads.run(partial(_read, segment, block.offset, block.length))
        except (OSError, msgspec.DecodeError) as error:
            raise StoreIOError(
                f"{self._name}: cannot read what is not stored of it: {error}"
            ) from error
        finally:
            self._segments.end_read(segment)
        if block.alive:
            self._cached = block, found
        return found

    # --- the end -------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget everything."""
        for block in self._blocks[::-1]:
            block.alive = 0
            if block.messages is not None:
                self._tell(-block.size)
                block.messages = {}
                block.size = 0
            self._forget(block)
        self._in_memory = self.count = 0
        self._end_retry()

    async def close(self) -> None:
        """Forget everything, and release the files. Idempotent. Cancellation: they go all the same."""
        self._is_closed = True
        self.clear()
        if self._job is not None:
            await asyncio.wait([self._job])


def _read(segment: Segment, offset: int, size: int) -> list[StoredMessage]:
    """In a thread. Raises: OSError, msgspec.DecodeError."""
    records = _decode(segment.read(offset, size))
    return [StoredMessage.of(number, message) for number, message in records]
