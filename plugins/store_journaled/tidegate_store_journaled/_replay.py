"""Replays the journal at start: checks whose it is, and merges what the database lacks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from tidegate.spi import AddMessage, Operation, StoreIOError
from tidegate_store_jdbc import JdbcStore, Mark, lost_journal
from tidegate_store_journaled._front import Front
from tidegate_store_journaled._overlay import Overlay
from tidegate_store_journaled._record import Record

logger = logging.getLogger("tidegate.store.journaled")

#: Records between two reports of progress.
_PROGRESS_RECORDS: Final = 1000


async def check_mark(mark: Mark | None, front: Front, *, gives_up: bool) -> int:
    """Check that this journal belongs to that database.

    Args: gives_up: what another journal holds may be lost.
    Returns: up to which record the database has everything.
    Raises: StoreIOError when going on would lose confirmed messages.
    """
    if mark is not None and mark.journal == front.identity:
        return mark.position
    if mark is not None and mark.is_open:
        problem = lost_journal(mark)
        if not gives_up:
            raise problem
        logger.critical("journal=given-up by journal_lost_policy problem=%s", problem)
    if front.records_found:
        held = (
            f"the journal in {front.place} holds {front.records_found} batches for another database, "
            "or another gateway went on without them"
        )
        if not gives_up:
            raise StoreIOError(f"{held}; move that directory away, or use the database it is for")
        logger.critical("journal=given-up by journal_lost_policy problem=%s", held)
        gone = [number async for number, _, _, _ in front.records()]
        await front.discard(gone, [])
    return 0


class Replay:
    """Merges the records that the database does not have.

    Attributes:
        done: numbers of all records: none is needed once *overlay* is written.
        count: operations that were merged.
        released: the acknowledged log was released up to here.
    """

    def __init__(self, front: Front, database: JdbcStore, overlay: Overlay, position: int) -> None:
        self._front = front
        self._database = database
        self._overlay = overlay
        self._position = position
        self.done: list[int] = []
        self.count = 0
        self.released = 0

    async def run(self, progress: Callable[[str, int, int], None]) -> None:
        """Read all records. Raises: CorruptRecordError, StoreIOError."""
        async for number, before, size, record in self._front.records():
            self.done.append(number)
            if number <= self._position:
                continue
            if not self.count and before > self._position:
                raise StoreIOError(
                    f"the database has everything up to record {self._position} of the journal in "
                    f"{self._front.place}, which begins behind record {before}: was an older copy "
                    "of the database restored? Restore the journal of the same time, or move it away"
                )
            await self._merge(number, size, record)
            if not len(self.done) % _PROGRESS_RECORDS:
                progress("merging the journal", len(self.done), self._front.records_found)

    async def _merge(self, number: int, size: int, record: Record) -> None:
        overlay = self._overlay
        operations = await self._with_bodies(record)
        self._database.extend(overlay.plan, operations)
        overlay.plan.references.update(record.references)
        overlay.note(operations)
        overlay.add_record(number, size)
        if record.released:
            self.released = record.released
            overlay.release(record.released)
        self.count += max(len(operations), 1)

    async def _with_bodies(self, record: Record) -> list[Operation]:
        """Its operations with bodies: sizes count, and changed options may store some in full."""
        references = record.references
        if not references:
            return record.operations
        bodies = await self._front.bodies(sorted(references.values()))
        found: list[Operation] = []
        for operation in record.operations:
            place = references.get(getattr(operation, "sequence", 0))
            if isinstance(operation, AddMessage) and place is not None:
                # A missing body belonged to a message that is gone too.
                body = bodies.get(place, b"")
                message = msgspec.structs.replace(operation.message, body=body)
                operation = AddMessage(operation.sequence, message, operation.pending_lists)
            found.append(operation)
        return found
