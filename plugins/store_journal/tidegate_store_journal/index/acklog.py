"""The acknowledged log: blocks of rows, dense, until they are released.

Each :class:`~tidegate.spi.Acknowledge` operation makes one block; what the rows have in common is
kept once. Not thread-safe, but blocks are never changed after they were appended, except that
:meth:`AckBlock.pack` makes one smaller.

A sink may stand still for days, so the log does not stay in memory: behind a checkpoint the blocks
that the metadata store has go, but for the newest, and an :class:`AckPage` stands for each run of them.
Whoever needs its rows (to read, release, copy, or write them down) pages it in first; it goes again
behind a later checkpoint.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import msgspec

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

#: What a row takes beside its message: in the metadata store, or packed in memory.
ROW_BYTES: Final = 32
#: Newest rows that stay in memory: a sink that keeps up never waits for the metadata store.
RESIDENT_ROWS: Final = 32_768
#: A page has about so many rows: 5 ms to page in, a few MiB of memory.
PAGE_ROWS: Final = 8192
_BlockValue = tuple[int, int, int, str, str, str, bytes, bytes, bytes]
_decode_block: Final = msgspec.msgpack.Decoder(_BlockValue).decode


class AckBlock:
    """Rows *first* … *last* of the log: messages of one list, acknowledged by one consumer."""

    __slots__ = (
        "_delivered_at",
        "_file_first",
        "_file_last",
        "_locations",
        "_sequences",
        "acked_at",
        "client_id",
        "count",
        "first",
        "pending_list",
        "protocol",
        "stored",
        "subscription",
    )

    def __init__(
        self,
        first: int,
        pending_list: int,
        acked_at: int,
        client_id: str,
        subscription: str,
        protocol: str,
        sequences: Sequence[int] | bytes,
        locations: Sequence[int] | bytes,
        delivered_at: Sequence[int] | bytes,
    ) -> None:
        self.first = first
        self.pending_list = pending_list
        self.acked_at = acked_at
        self.client_id = client_id
        self.subscription = subscription
        self.protocol = protocol
        self.count = len(sequences) // 8 if isinstance(sequences, bytes) else len(sequences)
        self.stored = False  # it is in the metadata store
        self._sequences = sequences
        self._locations = locations
        self._delivered_at = delivered_at
        self._file_first = self._file_last = 0  # of the locations; 0: not looked at yet

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

    def pack(self) -> None:
        """Turn the rows into byte strings: 32 bytes a row instead of about 150."""
        if not isinstance(self._sequences, bytes):
            if self._locations:
                self.file_range()  # cheaper now than from the bytes
            delivered_at = self.delivered_at
            self._sequences = pack_integers(self._sequences)
            self._locations = pack_locations(self.locations)
            self._delivered_at = pack_integers(delivered_at)

    def located(self, locations: Sequence[int]) -> AckBlock:
        """The same rows with their messages at other places."""
        block = self.part(0, self.count)
        block._locations = locations
        block.stored = self.stored
        return block

    def may_speak_of(self, file_id: int) -> bool:
        """False when no row's message is in that data file."""
        first, last = self.file_range()
        return first <= file_id <= last

    def file_range(self) -> tuple[int, int]:
        """First and last data file that messages are in."""
        if not self._file_first:
            locations = self.locations
            self._file_first = min(locations) >> FILE_SHIFT
            self._file_last = max(locations) >> FILE_SHIFT
        return self._file_first, self._file_last

    def part(self, begin: int, end: int) -> AckBlock:
        """Rows begin … end - 1 (indexes) as a block of their own."""
        return AckBlock(
            self.first + begin,
            self.pending_list,
            self.acked_at,
            self.client_id,
            self.subscription,
            self.protocol,
            self.sequences[begin:end],
            self.locations[begin:end],
            self.delivered_at[begin:end],
        )

    def encode(self) -> bytes:
        """docs/journal-format.md section 5, *acknowledged block*.

        A block without locations (section 3, *copied rows*) is encoded without them.
        """
        self.pack()
        return encode(
            (
                self.first,
                self.pending_list,
                self.acked_at,
                self.client_id,
                self.subscription,
                self.protocol,
                self._sequences,
                self._locations,
                self._delivered_at,
            )
        )


def decode_block(data: bytes) -> AckBlock:
    """The inverse of :meth:`AckBlock.encode`. Raises: FormatError."""
    try:
        return AckBlock(*_decode_block(data))
    except msgspec.DecodeError as error:
        raise FormatError(f"an acknowledged block cannot be decoded: {error}") from error


class AckPage:
    """Rows *first* … *last*, whose blocks are only in the metadata store.

    Attributes: acked_at: of the first row; file_first, file_last: range of files of the locations.
    """

    __slots__ = ("acked_at", "file_first", "file_last", "first", "last")

    def __init__(self, blocks: Sequence[AckBlock]) -> None:
        self.first = blocks[0].first
        self.last = blocks[-1].last
        self.acked_at = blocks[0].acked_at
        ranges = [block.file_range() for block in blocks]
        self.file_first = min(first for first, _ in ranges)
        self.file_last = max(last for _, last in ranges)

    def is_made_of(self, blocks: Sequence[AckBlock]) -> bool:
        """*blocks* are these rows, each once."""
        row = self.first
        for block in blocks:
            if block.first != row:
                return False
            row = block.last + 1
        return row == self.last + 1


class AckRow(msgspec.Struct, frozen=True, gc=False):
    """One row as a page names it; the message is read from *location*."""

    ack_sequence: int
    sequence: int
    location: int
    delivered_at: int
    block: AckBlock


class AckLog:
    """Rows released + 1 … last.

    Attributes:
        rows: how many are in memory, those that were released since the last checkpoint among them.
        pins: how many forbid for now that blocks leave memory; the first is a store that is opened.
    """

    def __init__(self) -> None:
        self.last = 0
        self.released = 0
        self.rows = 0
        self.pins = 1
        self._blocks: list[AckBlock | AckPage] = []  # in order
        self._firsts: list[int] = []
        self._begin = 0  # blocks before it are released
        self._unstored_from = 0  # blocks before it are in the metadata store or released
        self._relocated: set[int] = set()  # first rows of stored blocks that changed since

    def append(self, block: AckBlock) -> None:
        """Add rows at the end."""
        assert block.first == self.last + 1, "the acknowledged log must be dense"
        self.last = block.last
        self.rows += block.count
        self._blocks.append(block)
        self._firsts.append(block.first)

    def restore(self, blocks: Sequence[AckBlock], last: int, released: int) -> int:
        """Begin with what recovery found, in any order.

        Returns: rows that are missing in the middle, normally 0; *released* is then moved behind
            the gap, because a reader must never see one.
        """
        ordered = sorted(
            (block for block in blocks if block.last > released), key=lambda block: block.first
        )
        whole: list[AckBlock] = []
        missing = 0
        end = last
        for block in reversed(ordered):
            if block.last != end:
                break
            whole.append(block)
            end = block.first - 1
        if end > released:
            missing = (
                end
                - released
                - sum(
                    min(block.count, block.last - released)
                    for block in ordered
                    if block.last <= end
                )
            )
            released = end
        whole.reverse()
        self.last = last
        self.released = released
        self._blocks = list[AckBlock | AckPage](whole)
        self._firsts = [block.first for block in whole]
        self.rows = sum(block.count for block in whole)
        self._begin = 0
        self._unstored_from = len(whole) if all(block.stored for block in whole) else 0
        return missing

    def page(self, after: int, limit: int, bytes_max: int) -> list[AckRow]:
        """Rows behind *after* (at least ``released``): see MessageStore.acknowledged.

        Fewer where the next ones are not in memory.
        """
        rows: list[AckRow] = []
        total = 0
        number = max(self._begin, bisect_right(self._firsts, after + 1) - 1)
        while number < len(self._blocks):
            block = self._blocks[number]
            if isinstance(block, AckPage):
                return rows
            locations = block.locations
            sequences = block.sequences
            delivered_at = block.delivered_at
            for index in range(max(0, after + 1 - block.first), block.count):
                total += locations[index] & MASK_32
                if rows and (total > bytes_max or len(rows) >= limit):
                    return rows
                rows.append(
                    AckRow(
                        block.first + index,
                        sequences[index],
                        locations[index],
                        delivered_at[index],
                        block,
                    )
                )
            number += 1
        return rows

    def release(self, through: int) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Forget rows up to *through*; gives (sequences, locations) of what was forgotten.

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

    def location_of(self, row: int) -> int | None:
        """Where the row's message is; None when there is no such row (any more) in memory."""
        if not self.released < row <= self.last:
            return None
        number = bisect_right(self._firsts, row) - 1
        if number < self._begin:
            return None
        block = self._blocks[number]
        if isinstance(block, AckPage) or row > block.last:
            return None
        return block.locations[row - block.first]

    def block_of(self, row: int) -> AckBlock:
        """The block of a row that is in memory."""
        block = self._blocks[bisect_right(self._firsts, row) - 1]
        assert isinstance(block, AckBlock)
        return block

    def relocate(self, moved: AckBlock) -> list[tuple[int, int]]:
        """The messages of rows are where *moved* says; rows that are not there are left out.

        Returns: (sequence, old location) of each row.
        """
        old: list[tuple[int, int]] = []
        sequences, places = moved.sequences, moved.locations
        row = max(moved.first, self.released + 1)
        while row <= moved.last:
            number = bisect_right(self._firsts, row) - 1
            if number < self._begin:
                return old
            block = self._blocks[number]
            assert isinstance(block, AckBlock), "rows are paged in before they are copied"
            if row > block.last:
                row += 1
                continue
            # Replaced and not changed: a checkpoint may be encoding the old one in its thread.
            locations = list(block.locations)
            begin = row - block.first
            end = min(moved.last, block.last) + 1 - block.first
            shift = block.first - moved.first
            for index in range(begin, end):
                old.append((sequences[index + shift], locations[index]))
                locations[index] = places[index + shift]
            self._blocks[number] = block.located(locations)
            if number < self._unstored_from:
                self._relocated.add(block.first)
            row = block.first + end
        return old

    def blocks(self) -> Sequence[AckBlock]:
        """All blocks in memory that have rows which are not released."""
        return _resident(self._blocks[self._begin :])

    def rows_in(self, file_id: int) -> Iterator[list[tuple[int, int, int]]]:
        """(row, sequence, location) of the rows in memory, not released, whose message is in the data
        file: block by block, so that who is in no hurry can pause."""
        for block in self.blocks():
            if not block.may_speak_of(file_id):
                yield []
                continue
            places = enumerate(block.locations, block.first)
            yield [
                (row, sequence, place)
                for sequence, (row, place) in zip(block.sequences, places, strict=True)
                if place >> FILE_SHIFT == file_id and row > self.released
            ]

    def blocks_of(self, file_ids: Collection[int]) -> Sequence[AckBlock]:
        """Those of :meth:`blocks` that may speak of one of these data files."""
        first, last = min(file_ids, default=1), max(file_ids, default=0)
        return [
            block
            for block in self.blocks()
            if block.file_range()[0] <= last and block.file_range()[1] >= first
        ]

    def page_with(self, row: int) -> AckPage | None:
        """What has to be paged in before the row, which is there, can be read; None: nothing."""
        number = bisect_right(self._firsts, row) - 1
        block = self._blocks[number] if number >= self._begin else None
        return block if isinstance(block, AckPage) else None

    def page_of_files(self, file_ids: Collection[int]) -> AckPage | None:
        """One of the pages that may speak of these data files; None: those are all in memory."""
        for block in self._blocks[self._begin : self._unstored_from]:
            if isinstance(block, AckPage) and any(
                block.file_first <= file_id <= block.file_last for file_id in file_ids
            ):
                return block
        return None

    def page_in(self, page: AckPage, blocks: Sequence[AckBlock]) -> None:
        """Put *blocks*, which the metadata store has, in the place of their page.

        Somebody else may have done so meanwhile.
        """
        number = bisect_right(self._firsts, page.first) - 1
        if number < 0 or self._blocks[number] is not page:
            return
        for block in blocks:
            block.stored = True
        self._replace(number, number + 1, blocks)
        self.rows += page.last + 1 - page.first

    def page_out(self) -> bool:
        """Forget a page of what the metadata store has, but for the newest rows. True: there is more.

        It has all that :meth:`take_unstored` last gave, and nothing is being written.
        """
        if self.pins:
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
                self._replace(begin, begin + len(run), [AckPage(run)])
                self.rows -= rows
                return True
        return False

    def _replace(self, begin: int, end: int, blocks: Sequence[AckBlock | AckPage]) -> None:
        self._blocks[begin:end] = blocks
        self._firsts[begin:end] = [block.first for block in blocks]
        self._unstored_from += len(blocks) - (end - begin)

    def take_unstored(self) -> tuple[list[AckBlock], list[int]]:
        """For a checkpoint: blocks to put, and keys of stored blocks to delete."""
        put = _resident(self._blocks[max(self._begin, self._unstored_from) :])
        if self._relocated:
            stored = _resident(self._blocks[self._begin : self._unstored_from])
            put = [block for block in stored if block.first in self._relocated] + put
            self._relocated.clear()
        released = _resident(self._blocks[: self._begin])
        gone = [block.first for block in released if block.stored]
        self.rows -= sum([block.count for block in released])
        for block in put:
            block.stored = True
        if self._begin:
            del self._blocks[: self._begin]
            del self._firsts[: self._begin]
            self._begin = 0
        self._unstored_from = len(self._blocks)
        return put, gone

    @property
    def oldest_at(self) -> int:
        """``acked_at`` of the oldest row; 0 when there is none."""
        return self._blocks[self._begin].acked_at if self._begin < len(self._blocks) else 0


def _resident(blocks: Sequence[AckBlock | AckPage]) -> list[AckBlock]:
    return [block for block in blocks if isinstance(block, AckBlock)]
