"""The acknowledged log: blocks of rows, dense, until they are released.

Each :class:`~tidegate.spi.Acknowledge` operation makes one block, which keeps what its rows have in
common once. Not thread-safe, but blocks never change after they were appended.

A sink may stand still for days, so the log does not stay in memory. After a checkpoint all blocks that the metadata
store has, except the newest, leave memory, and an :class:`AckPage` stands for each run of them. Code that needs its
rows (to read, release, copy, or save them) fetches it first; it leaves again after a later checkpoint.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, groupby
from typing import Final

import msgspec

from tidegate.spi import Outcome
from tidegate_store_journal.log.format import (
    FILE_SHIFT,
    MASK_32,
    FormatError,
    encode,
    pack_integers,
    pack_locations,
    unpack_integers,
    unpack_locations,
)

#: Bytes of a row besides its message in the metadata store, or in memory if it came from there; otherwise about 130.
ROW_BYTES: Final = 32
#: Newest rows that stay in memory (17 MB): a sink that keeps up and commits 20,000 rows a second every five seconds
#: never waits for the metadata store.
RESIDENT_ROWS: Final = 131_072
#: A page has about this many rows: 5 ms to fetch, a few MiB of memory.
PAGE_ROWS: Final = 8192
_BlockValue = tuple[int, int, int, str, str, str, bytes, bytes, bytes, str, Outcome, str, bytes]
_decode_block: Final = msgspec.msgpack.Decoder(_BlockValue).decode


class AckBlock(msgspec.Struct, eq=False):
    """Rows *first* … *last* of the log: messages of one list that left it alike, to one consumer."""

    first: int
    pending_list: int
    acked_at: int
    client_id: str
    subscription: str
    protocol: str
    _sequences: Sequence[int] | bytes
    _locations: Sequence[int] | bytes
    _delivered_at: Sequence[int] | bytes
    principal: str = ""
    outcome: Outcome = Outcome.ACKNOWLEDGED
    reason: str = ""
    _delivery_counts: Sequence[int] | bytes = ()  # empty: once each
    count: int = 0
    _file_range: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        data = self._sequences
        self.count = len(data) // 8 if isinstance(data, bytes) else len(data)

    @property
    def last(self) -> int:
        """Ack sequence of the last row."""
        return self.first + self.count - 1

    @property
    def sequences(self) -> Sequence[int]:
        """Message sequence of each row."""
        data = self._sequences
        return unpack_integers(data) if isinstance(data, bytes) else data

    @property
    def locations(self) -> Sequence[int]:
        """Location of each row's message."""
        data = self._locations
        return unpack_locations(data) if isinstance(data, bytes) else data

    @property
    def delivered_at(self) -> Sequence[int]:
        """When each row was delivered; microseconds since the epoch, 0 when unknown."""
        data = self._delivered_at
        values = unpack_integers(data) if isinstance(data, bytes) else data
        return values if len(values) == self.count else (0,) * self.count

    @property
    def delivery_counts(self) -> Sequence[int]:
        """How often each row's message was delivered."""
        data = self._delivery_counts
        values = unpack_integers(data) if isinstance(data, bytes) else data
        return values or (1,) * self.count

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Each as (row, sequence, location)."""
        return zip(range(self.first, self.last + 1), self.sequences, self.locations, strict=True)

    def file_range(self) -> tuple[int, int]:
        """First and last data file that messages are in."""
        if self._file_range is None:
            locations = self.locations
            self._file_range = min(locations) >> FILE_SHIFT, max(locations) >> FILE_SHIFT
        return self._file_range

    def located(self, locations: Sequence[int]) -> AckBlock:
        """The same rows with their messages at other places."""
        return msgspec.structs.replace(self, _locations=locations, _file_range=None)

    def part(self, begin: int, end: int) -> AckBlock:
        """Rows begin … end - 1 (indexes) as a separate block."""
        return msgspec.structs.replace(
            self,
            first=self.first + begin,
            _sequences=self.sequences[begin:end],
            _locations=self.locations[begin:end],
            _delivered_at=self.delivered_at[begin:end],
            _delivery_counts=self.delivery_counts[begin:end] if self._delivery_counts else (),
            _file_range=None,
        )

    def encode(self) -> bytes:
        """docs/journal-format.md section 5, *acknowledged block*.

        A block without locations (section 3, *copied rows*) is encoded without them. In memory it stays as it
        is: one that is read and released soon would only be unpacked for that, and others go (:meth:`AckLog.page_out`).
        """
        delivered_at = self._delivered_at
        if not isinstance(delivered_at, bytes):
            delivered_at = pack_integers(self.delivered_at)
        common = (self.first, self.pending_list, self.acked_at, self.client_id)
        rows = (_packed(self._sequences), self._packed_locations(), delivered_at)
        how = (self.principal, self.outcome, self.reason, _packed(self._delivery_counts))
        return encode((*common, self.subscription, self.protocol, *rows, *how))

    def _packed_locations(self) -> bytes:
        data = self._locations
        if isinstance(data, bytes):
            return data
        if data:
            self.file_range()  # page_out asks for it, and the loop is busier than this thread
        return pack_locations(data)


def _packed(values: Sequence[int] | bytes) -> bytes:
    return values if isinstance(values, bytes) else pack_integers(values)


def decode_block(data: bytes) -> AckBlock:
    """The inverse of :meth:`AckBlock.encode`. Raises: FormatError."""
    try:
        return AckBlock(*_decode_block(data))
    except msgspec.DecodeError as error:
        raise FormatError(f"an acknowledged block cannot be decoded: {error}") from error


class AckPage(msgspec.Struct, frozen=True, eq=False):
    """Rows *first* … *last*, whose blocks are only in the metadata store.

    Attributes: acked_at: of the first row; files: first and last data file that messages are in.
    """

    first: int
    last: int
    acked_at: int
    files: tuple[int, int]


class DurableRows:
    """How far the acknowledged log is on stable storage, as far as its readers have seen it grow.

    Attributes: last: the newest row that is known to be there.
    """

    def __init__(self) -> None:
        self.last = 0
        self._seen: deque[tuple[int, int]] = deque()  # (batch, last row by then), both ascending

    def look(self, last: int, batch: int, synced_batch: int) -> int:
        """:attr:`last`, when the log ends with row *last*, of *batch* or an earlier one."""
        seen = self._seen
        while seen and seen[0][0] <= synced_batch:
            self.last = seen.popleft()[1]
        if batch <= synced_batch:
            self.last = last
        elif not seen or seen[-1][0] < batch:
            seen.append((batch, last))
        return self.last


class AckLog:
    """Rows released + 1 … last.

    Attributes:
        rows: how many are in memory, including those released since the last checkpoint.
        pins: how many currently keep blocks in memory; the first is a store being opened.
        fetch: reads the blocks of a page; None: the metadata store keeps nothing.
        durable: what its readers may see.
    """

    def __init__(self) -> None:
        self.last = 0
        self.durable = DurableRows()
        self.released = 0
        self.rows = 0
        self.pins = 1
        self.fetch: Callable[[AckPage], Awaitable[list[AckBlock]]] | None = None
        self._blocks: list[AckBlock | AckPage] = []  # in order
        self._firsts: list[int] = []
        self._begin = 0  # blocks before it are released
        self._unstored_from = 0  # blocks before it are in the metadata store or never will
        self._relocated: set[int] = set()  # first rows of stored blocks that changed since

    def append(self, block: AckBlock) -> None:
        """Add rows at the end."""
        assert block.first == self.last + 1, "the acknowledged log must be dense"
        self.last = block.last
        self.rows += block.count
        self._blocks.append(block)
        self._firsts.append(block.first)

    def restore(self, blocks: Sequence[AckBlock], last: int, released: int) -> int:
        """Begin with what recovery found in the metadata store, in any order.

        Returns: rows that are missing in the middle, normally 0; *released* is then moved past
            the gap, because a reader must never see one.
        """
        ordered = sorted(
            (block for block in blocks if block.last > released), key=lambda block: block.first
        )
        whole: list[AckBlock] = []
        end = last
        for block in reversed(ordered):
            if block.last != end:
                break
            whole.append(block)
            end = block.first - 1
        there = [min(block.count, block.last - released) for block in ordered if block.last <= end]
        missing = max(0, end - released - sum(there))
        self.last = last
        self.released = max(end, released)
        self._blocks = [*reversed(whole)]
        self._firsts = [block.first for block in self._blocks]
        self.rows = sum(block.count for block in whole)
        self._begin = 0
        self._unstored_from = len(whole)
        return missing

    def mark_everything_changed(self) -> None:
        """The metadata store is empty."""
        self._unstored_from = 0

    # --------------------------------------------------------------------- rows in memory

    def parts(self, after: int, limit: int, bytes_max: int, last: int) -> list[AckBlock]:
        """Rows after *after* (at least ``released``) up to *last*: see MessageStore.acknowledged.

        As parts of their blocks; fewer where the next ones are not in memory.
        """
        parts: list[AckBlock] = []
        number = max(self._begin, bisect_right(self._firsts, after + 1) - 1)
        for block in (self._blocks[at] for at in range(number, len(self._blocks))):
            if isinstance(block, AckPage) or limit <= 0 or block.first > last:
                break
            begin = max(0, after + 1 - block.first)
            end = min(block.count, begin + limit, last + 1 - block.first)
            if begin >= end:
                continue
            sizes = [place & MASK_32 for place in block.locations[begin:end]]
            total = sum(sizes)
            if total > bytes_max:
                fitting = bisect_right(list(accumulate(sizes)), bytes_max)
                end = begin + (fitting or not parts)
            if begin < end:
                parts.append(block if end - begin == block.count else block.part(begin, end))
            if total > bytes_max:
                break
            limit -= end - begin
            bytes_max -= total
        return parts

    def release(self, through: int) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Forget rows up to *through*; yields (sequences, locations) of what was forgotten.

        Stops before rows that are not in memory.
        """
        through = min(through, self.last)
        while self._begin < len(self._blocks) and self.released < through:
            block = self._blocks[self._begin]
            if isinstance(block, AckPage):
                return
            begin = self.released + 1 - block.first
            end = min(through, block.last) + 1 - block.first
            yield block.sequences[begin:end], block.locations[begin:end]
            self.released = block.first + end - 1
            if end == block.count:
                self._begin += 1
        # A log that recovery found empty has nothing to forget but still a mark to move.
        self.released = max(self.released, through)

    def block_of(self, row: int) -> AckBlock | AckPage | None:
        """The block or page that has the row; None when it is released, or not there."""
        number = bisect_right(self._firsts, row) - 1
        if number < self._begin or row <= self.released:
            return None
        block = self._blocks[number]
        return block if row <= block.last else None

    def location_of(self, row: int) -> int | None:
        """Where the row's message is; None when no such row is in memory."""
        block = self.block_of(row)
        return block.locations[row - block.first] if isinstance(block, AckBlock) else None

    def relocate(self, moved: AckBlock) -> list[tuple[int, int]]:
        """Move the rows' messages to where *moved* says; rows that are not there are left out.

        Returns: (sequence, old location) of each row.
        """
        old: list[tuple[int, int]] = []
        places: dict[int, list[int]] = {}  # by the number of the block
        for row, sequence, place in moved.rows():
            block = self.block_of(row)
            if block is None:
                continue
            assert isinstance(block, AckBlock), "rows are fetched before they are copied"
            number = bisect_right(self._firsts, row) - 1
            if number not in places:
                places[number] = list(block.locations)
            at = row - block.first
            old.append((sequence, places[number][at]))
            places[number][at] = place
        for number, locations in places.items():
            block = self._blocks[number]
            assert isinstance(block, AckBlock)
            # Replaced, not changed: a checkpoint may be encoding the old one in its thread.
            self._blocks[number] = block.located(locations)
            if number < self._unstored_from:
                self._relocated.add(block.first)
        return old

    def blocks(self) -> Sequence[AckBlock]:
        """All blocks in memory that have unreleased rows."""
        return [block for block in self._blocks[self._begin :] if isinstance(block, AckBlock)]

    def parts_in(self, file_id: int) -> Iterator[list[AckBlock]]:
        """The unreleased rows in memory whose message is in the data file: block by block, so that
        the caller can pause. Neighbours are in one block."""
        for block in self.blocks():
            first, last = block.file_range()
            parts: list[AckBlock] = []
            if first <= file_id <= last:
                at = max(0, self.released + 1 - block.first)
                places = block.locations[at:]
                for is_here, run in groupby(places, lambda place: place >> FILE_SHIFT == file_id):
                    begin, at = at, at + sum(1 for _ in run)
                    if is_here:
                        parts.append(block.part(begin, at))
            yield parts

    # ------------------------------------------------------------------- rows that are not

    async def at(self, row: int) -> None:
        """Return when the row (and the rest of its page) is in memory, if it exists.

        Raises: StoreIOError, OSError, like :meth:`of_files`. Cancellation: safe.
        """
        while isinstance(page := self.block_of(row), AckPage):
            await self._page_in(page)

    async def of_files(self, file_ids: Callable[[], Collection[int]]) -> None:
        """Return when all rows whose messages are in any of these files by then are in memory."""
        while (page := self._page_of(file_ids())) is not None:
            await self._page_in(page)

    def _page_of(self, file_ids: Collection[int]) -> AckPage | None:
        for page in self._blocks[self._begin : self._unstored_from]:
            if isinstance(page, AckPage):
                first, last = page.files
                if any(first <= file_id <= last for file_id in file_ids):
                    return page
        return None

    async def _page_in(self, page: AckPage) -> None:
        assert self.fetch is not None
        blocks = await self.fetch(page)
        number = bisect_right(self._firsts, page.first) - 1
        if number >= 0 and self._blocks[number] is page:  # otherwise another caller did it
            self._replace(number, number + 1, blocks)
            self.rows += page.last + 1 - page.first

    async def page_out(self) -> None:
        """A checkpoint was written: forget what need not be in memory, a bit at a time."""
        for _ in iter(self._page_one_out, False):
            await asyncio.sleep(0)

    def _page_one_out(self) -> bool:
        """Forget a page of what the metadata store has, except the newest rows. True: there is more."""
        if self.fetch is None or self.pins:
            return False
        newest = self.last - RESIDENT_ROWS
        run: list[AckBlock] = []
        rows = begin = 0
        for number in range(self._begin, self._unstored_from):
            block = self._blocks[number]
            if isinstance(block, AckBlock) and block.first not in self._relocated:
                if block.last > newest:
                    return False
                begin = begin if run else number
                run.append(block)
                rows += block.count
                if rows < PAGE_ROWS:
                    continue
            if run:
                files = [file_id for block in run for file_id in block.file_range()]
                page = AckPage(
                    run[0].first, run[-1].last, run[0].acked_at, (min(files), max(files))
                )
                self._replace(begin, begin + len(run), [page])
                self.rows -= rows
                return True
        return False

    def _replace(self, begin: int, end: int, blocks: Sequence[AckBlock | AckPage]) -> None:
        self._blocks[begin:end] = blocks
        self._firsts[begin:end] = [block.first for block in blocks]
        self._unstored_from += len(blocks) - (end - begin)

    @contextmanager
    def pinned(self) -> Generator[None]:
        """Rows in memory, and those that come there, stay for the length of a ``with`` block."""
        self.pins += 1
        try:
            yield
        finally:
            self.pins -= 1

    # ------------------------------------------------------------------------ checkpoints

    def take_unstored(self) -> dict[int, AckBlock | None]:
        """For a checkpoint, by first row: blocks to put; None for stored ones to delete."""
        begin, stored = self._begin, self._unstored_from
        told: dict[int, AckBlock | None] = {}
        for number, block in enumerate(self._blocks[:begin]):
            assert isinstance(block, AckBlock)
            self.rows -= block.count
            if number < stored:
                told[block.first] = None
        for number in range(begin if self._relocated else max(begin, stored), len(self._blocks)):
            block = self._blocks[number]
            if isinstance(block, AckBlock) and (number >= stored or block.first in self._relocated):
                told[block.first] = block
        del self._blocks[:begin]
        del self._firsts[:begin]
        self._begin = 0
        self._relocated.clear()
        self._unstored_from = len(self._blocks)
        return told

    @property
    def oldest_at(self) -> int:
        """``acked_at`` of the oldest row; 0 when there is none."""
        return self._blocks[self._begin].acked_at if self._begin < len(self._blocks) else 0
