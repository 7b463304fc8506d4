"""The journal in front, used like any other store: a queue of records, and one of bodies.

Each batch of the gateway is one message in the journal's list of records. Nothing here depends on
how the journal works; any durable store would do.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from tidegate.spi import (
    AddDestination,
    AddMessage,
    Discard,
    DiscardReason,
    Durability,
    Message,
    MessageStore,
    Operation,
    StorePart,
    WriteBatch,
)
from tidegate_store_jdbc import Mark
from tidegate_store_journaled import _record
from tidegate_store_journaled._record import Record

_RECORDS: Final = 1
_BODIES: Final = 2
_NAMES: Final = {_RECORDS: "queue://journaled.records", _BODIES: "queue://journaled.bodies"}
#: Most that one read of the journal returns, in messages and bytes.
_PAGE: Final = 256
_PAGE_BYTES: Final = 4 << 20
#: Files of the journal that are listed one by one for operators.
_FILES_SHOWN: Final = 100


class Front:
    """See the module. Writes must not overlap, as the contract says.

    Args:
        store: the journal.
        directory: where the journal is, shown to people.
    """

    def __init__(self, store: MessageStore, directory: Path) -> None:
        self._store = store
        self._number = 0
        self._before = 0
        self._is_open = False
        self.identity = ""
        self.place = f"{socket.gethostname()}:{directory}"
        self.records_found = 0
        self.bodies_found = 0

    @property
    def directories(self) -> tuple[Path, ...]:
        """Where the journal is."""
        return self._store.capabilities.directories

    @property
    def disk_bytes(self) -> int:
        """Bytes of the journal's files."""
        return self._store.statistics().disk_bytes if self._is_open else 0

    @property
    def parts(self) -> list[StorePart]:
        """The journal's files for operators, the first of them one by one."""
        files = self._store.capabilities.files
        if files is None or not self._is_open:
            return []
        listed = files.store_files()
        found = [
            StorePart("journal file", item.name, item.length, state=item.state)
            for item in islice(listed, _FILES_SHOWN)
        ]
        others = [item.length for item in listed]
        if others:
            found.append(StorePart("journal files", f"{len(others)} others", sum(others)))
        return found

    async def open(self) -> None:
        """Open the journal. Raises: as MessageStore.open."""
        state = await self._store.open()
        self._is_open = True
        self.identity = state.store_id
        self._number = state.last_sequence
        known = {found.pending_list for found in state.destinations}
        missing = [number for number in _NAMES if number not in known]
        if missing:
            made: list[Operation] = [AddDestination(_NAMES[number], number) for number in missing]
            await self._store.write(WriteBatch(made))
        counts = state.pending
        self.records_found = counts[_RECORDS].messages if _RECORDS in counts else 0
        self.bodies_found = counts[_BODIES].messages if _BODIES in counts else 0

    def mark(self, position: int, *, is_open: bool) -> Mark:
        """The database's mark for this journal."""
        return Mark(self.identity, self.place, position, is_open)

    def skip_to(self, position: int) -> None:
        """Give the next record a number above *position*, whatever the journal lost."""
        self._number = max(self._number, position)
        self._before = position

    # ------------------------------------------------------------------------------- writing

    async def append(
        self, operations: Sequence[Operation], durability: Durability, *, apart: bool
    ) -> tuple[int, int, dict[int, int]]:
        """Append a batch. *apart*: bodies are stored beside the record and can be read one by one.

        Returns: number of the record; bytes; sequence -> number of its body.
        Raises: as MessageStore.write; after StoreFullError it may be repeated.
        """
        number = self._number
        written: list[Operation] = []
        references: dict[int, int] = {}
        size = 0
        if apart:
            for operation in operations:
                if isinstance(operation, AddMessage) and operation.message.body:
                    number += 1
                    body = operation.message.body
                    # The message it belongs to goes into a field that is unused here.
                    kept = Message(_NAMES[_BODIES], body, received_at=operation.sequence)
                    written.append(AddMessage(number, kept, (_BODIES,)))
                    references[operation.sequence] = number
                    size += len(body)
        record = _record.encode(operations, references)
        size += len(record)
        number = await self._append(number + 1, record, written, durability)
        return number, size, references

    async def append_release(self, through: int) -> int:
        """Note how far the acknowledged log was released. Returns: number of the record."""
        record = _record.encode_release(through)
        return await self._append(self._number + 1, record, [], Durability.WRITTEN)

    async def _append(
        self, number: int, record: bytes, before: list[Operation], durability: Durability
    ) -> int:
        # Each record names the one before it, to detect gaps.
        kept = Message(_NAMES[_RECORDS], record, received_at=self._before)
        before.append(AddMessage(number, kept, (_RECORDS,)))
        await self._store.write(WriteBatch(before, durability))
        self._number = self._before = number
        return number

    async def sync(self) -> None:
        """Everything that was appended is durable on return."""
        await self._store.write(WriteBatch())

    async def discard(self, records: Sequence[int], bodies: Sequence[int]) -> None:
        """Discard records that the database has, and bodies that nothing needs."""
        gone: list[Operation] = []
        if records:
            gone.append(Discard(_RECORDS, tuple(records), DiscardReason.PURGED))
        if bodies:
            gone.append(Discard(_BODIES, tuple(sorted(bodies)), DiscardReason.PURGED))
        if gone:
            await self._store.write(WriteBatch(gone, Durability.WRITTEN))

    # ------------------------------------------------------------------------------- reading

    async def records(self) -> AsyncIterator[tuple[int, int, int, Record]]:
        """All records, in order: (number, the one before, bytes, contents)."""
        after = 0
        while page := await self._store.page_in(_RECORDS, after, _PAGE, _PAGE_BYTES):
            for stored in page:
                after = stored.sequence
                body = stored.message.body
                yield after, stored.message.received_at, len(body), _record.decode(body, after)

    async def body_owners(self) -> AsyncIterator[Sequence[tuple[int, int]]]:
        """All bodies, a page at a time: (number, sequence of the message)."""
        after = 0
        while page := await self._store.page_in(_BODIES, after, _PAGE, _PAGE_BYTES):
            after = page[-1].sequence
            yield [(stored.sequence, stored.message.received_at) for stored in page]

    async def bodies(self, numbers: Sequence[int]) -> dict[int, bytes]:
        """Bodies by number; *numbers* are in order. Missing ones are left out."""
        found: dict[int, bytes] = {}
        at = 0
        while at < len(numbers):
            # Neighbours are usually wanted together: read on from the first not read yet.
            wanted = numbers[at : at + _PAGE]
            span = wanted[-1] - wanted[0] + 1
            limit = len(wanted) if span <= 4 * len(wanted) else 1
            page = await self._store.page_in(_BODIES, wanted[0] - 1, limit, _PAGE_BYTES)
            for stored in page:
                found[stored.sequence] = stored.message.body
            last = page[-1].sequence if page else wanted[0]
            at += 1
            while at < len(numbers) and numbers[at] <= last:
                at += 1
        return {number: found[number] for number in numbers if number in found}

    async def close(self) -> None:
        """Close the journal. Idempotent."""
        if self._is_open:
            self._is_open = False
            await self._store.close()
