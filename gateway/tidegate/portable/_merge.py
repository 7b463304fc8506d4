"""Every message once, in sequence order: the pending lists and the acknowledged log, merged.

The contract reads a store list by list; a topic's message is in one list per subscription.
Memory is bounded by what is read ahead of each source (READ_AHEAD_BYTES over all of them, at least
one message each) and does not grow with what the store holds.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidegate.portable._columns import decode_row, encode_row
from tidegate.portable._tables import MESSAGES, SCHEMAS, TableWriter, pa, read_table
from tidegate.spi import MESSAGE_OVERHEAD_BYTES, AcknowledgedMessage, Message, MessageStore

#: Bodies read ahead of all lists together.
READ_AHEAD_BYTES: Final = 32 << 20
_READ_AHEAD_MESSAGES: Final = 20_000
#: Rows of the acknowledged log sorted in memory; more are sorted in files.
RUN_BYTES: Final = 32 << 20
#: Small row groups: all runs are open at once.
_RUN_GROUP_BYTES: Final = 256 << 10


@dataclass(slots=True)
class Found:
    """A message, with every list that holds it and every list in which it was acknowledged.

    Attributes: pending: (list, delivery count).
    """

    sequence: int
    message: Message
    pending: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    acknowledged: list[int] = field(default_factory=list[int])


class _List:
    """One pending list, read a page at a time."""

    __slots__ = ("_at", "_bytes_max", "_limit", "_number", "_page", "_store")

    def __init__(self, store: MessageStore, number: int, limit: int, bytes_max: int) -> None:
        self._store = store
        self._number = number
        self._limit = limit
        self._bytes_max = bytes_max
        self._page: Sequence[Any] = ()
        self._at = 0

    async def next(self, after: int) -> Found | None:
        """The first message after *after*, the previous one."""
        if self._at == len(self._page):
            self._page = await self._store.page_in(
                self._number, after, self._limit, self._bytes_max
            )
            self._at = 0
            if not self._page:
                return None
        stored = self._page[self._at]
        self._at += 1
        return Found(stored.sequence, stored.message, [(self._number, stored.delivery_count)])


class _Sorted:
    """Rows of the acknowledged log in order of sequence."""

    def __init__(self, rows: Iterator[Found]) -> None:
        self._rows = rows

    async def next(self, after: int) -> Found | None:
        """The next one; several with the same sequence are possible."""
        return next(self._rows, None)


async def merged(
    store: MessageStore, lists: Sequence[int], acknowledged: Iterator[Found]
) -> AsyncIterator[Found]:
    """Every message of *lists* and of *acknowledged* (in sequence order) once.

    Raises: as ``page_in``.
    """
    count = max(1, len(lists))
    limit = max(1, min(1000, _READ_AHEAD_MESSAGES // count))
    share = max(1, READ_AHEAD_BYTES // count)
    sources: list[_List | _Sorted] = [_List(store, number, limit, share) for number in lists]
    sources.append(_Sorted(acknowledged))
    heap: list[tuple[int, int, Found]] = []
    for place, source in enumerate(sources):
        first = await source.next(0)
        if first is not None:
            heap.append((first.sequence, place, first))
    heapq.heapify(heap)
    current: Found | None = None
    while heap:
        sequence, place, found = heap[0]
        following = await sources[place].next(sequence)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (following.sequence, place, following))
        if current is not None and current.sequence == sequence:
            current.pending += found.pending
            current.acknowledged += found.acknowledged
            continue
        if current is not None:
            yield current
        current = found
    if current is not None:
        yield current


_RUN_SCHEMA: Final = pa.schema(
    [pa.field("of_list", pa.uint64()), *[one for one in SCHEMAS[MESSAGES] if one.name != "pending"]]
)


class LogSorter:
    """Rows of the acknowledged log, given in their order, taken back in order of sequence.

    Sorted in memory up to RUN_BYTES; anything more goes through temporary files in *directory*.
    """

    def __init__(self, directory: Path, *, run_bytes: int = RUN_BYTES) -> None:
        self._directory = directory
        self._run_bytes = run_bytes
        self._waiting: list[Found] = []
        self._waiting_bytes = 0
        self._runs: list[Path] = []

    def add(self, row: AcknowledgedMessage) -> None:
        """One more row. Raises: OSError."""
        self._waiting.append(Found(row.sequence, row.message, [], [row.pending_list]))
        self._waiting_bytes += len(row.message.body) + MESSAGE_OVERHEAD_BYTES
        if self._waiting_bytes >= self._run_bytes:
            self._write_run()

    def rows(self) -> Iterator[Found]:
        """All rows in order of sequence."""
        self._waiting.sort(key=lambda found: found.sequence)
        runs = [_read_run(path) for path in self._runs]
        return heapq.merge(*runs, self._waiting, key=lambda found: found.sequence)

    def _write_run(self) -> None:
        self._waiting.sort(key=lambda found: found.sequence)
        path = self._directory / f"sorting-{len(self._runs)}.tmp"
        self._runs.append(path)
        with TableWriter(path, _RUN_SCHEMA, group_bytes=_RUN_GROUP_BYTES) as writer:
            for found in self._waiting:
                row = encode_row(found.message)
                writer.add(row | {"sequence": found.sequence, "of_list": found.acknowledged[0]})
        self._waiting, self._waiting_bytes = [], 0

    def remove(self) -> None:
        """Remove the temporary files. Idempotent."""
        for path in self._runs:
            path.unlink(missing_ok=True)


def _read_run(path: Path) -> Iterator[Found]:
    for row in read_table(path, _RUN_SCHEMA):
        yield Found(row["sequence"], decode_row(Message, row), [], [row["of_list"]])
