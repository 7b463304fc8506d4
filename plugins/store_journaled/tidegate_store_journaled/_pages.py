"""Reads lists whose beginning is in the database and whose end is only in the journal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from tidegate.spi import (
    AcknowledgedMessage,
    CorruptRecordError,
    Message,
    StoredMessage,
    StoreError,
)
from tidegate_store_jdbc import BodyElsewhere, JdbcStore
from tidegate_store_journaled._counts import Counts
from tidegate_store_journaled._front import Front
from tidegate_store_journaled._overlay import Overlay

logger = logging.getLogger("tidegate.store.journaled")

#: All current overlays, oldest first.
Overlays = Callable[[], Sequence[Overlay]]


class Pages:
    """Pages of pending lists."""

    def __init__(self, database: JdbcStore, counts: Counts, front: Front) -> None:
        self._database = database
        self._counts = counts
        self._front = front

    async def read(
        self, number: int, after: int, limit: int, bytes_max: int, overlays: Overlays
    ) -> list[StoredMessage]:
        """See MessageStore.page_in.

        A checkpoint may write an overlay to the database during the read. So the overlays are
        those of the beginning, and what already came from the database is not taken from them.
        """
        if number in self._counts.gone:
            return []
        seen = list(overlays())
        page: list[StoredMessage] = []
        size = 0
        while number in self._counts.in_database:
            rows = await self._database.page_in(
                number, after, limit - len(page), max(bytes_max - size, 0)
            )
            if not rows:
                break
            hiding = [*seen, *overlays()]
            for stored in await self._filled(number, rows):
                after = stored.sequence
                shown = _shown(number, stored, hiding)
                if shown is None:
                    continue
                if page and size + len(shown.message.body) > bytes_max:
                    return page
                size += len(shown.message.body)
                page.append(shown)
            after = rows[-1].sequence
            if len(page) == limit:
                return page
        for overlay in seen:
            hiding = [other for other in (*seen, *overlays()) if other is not overlay]
            for sequence, message, count in overlay.page(number, after):
                shown = _shown(number, StoredMessage.of(sequence, message, count), hiding)
                if shown is None:
                    continue
                if page and size + len(message.body) > bytes_max:
                    return page
                size += len(message.body)
                page.append(shown)
                if len(page) == limit:
                    return page
            if page:
                after = max(after, page[-1].sequence)
        return page

    async def _filled(self, number: int, rows: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        """*rows* with bodies from the journal. Raises: CorruptRecordError for a missing one."""
        places = [
            stored.message.body.place
            for stored in rows
            if isinstance(stored.message.body, BodyElsewhere)
        ]
        if not places:
            return rows
        bodies = await self._front.bodies(sorted(places))
        filled: list[StoredMessage] = []
        for stored in rows:
            found = _with_body(stored.message, bodies)
            if found is not None:
                filled.append(StoredMessage.of(stored.sequence, found, stored.delivery_count))
                continue
            # Acknowledged while it was read, or lost?
            again = await self._database.page_in(number, stored.sequence - 1, 1, 1)
            if again and again[0].sequence == stored.sequence:
                raise CorruptRecordError(
                    "the journal does not have its body", location=f"message {stored.sequence}"
                )
        return filled

    async def rows(self, rows: Sequence[AcknowledgedMessage]) -> Sequence[AcknowledgedMessage]:
        """Rows of the acknowledged log with the bodies that the journal keeps.

        Raises: CorruptRecordError.
        """
        places = {
            row.message.body.place for row in rows if isinstance(row.message.body, BodyElsewhere)
        }
        if not places:
            return rows
        try:
            bodies = await self._front.bodies(sorted(places))
        except StoreError as error:
            if len(rows) == 1:
                error.known = _bodiless(rows[0])
            raise
        filled: list[AcknowledgedMessage] = []
        for row in rows:
            found = _with_body(row.message, bodies)
            if found is None:
                error = CorruptRecordError(
                    "the journal does not have its body", location=f"message {row.sequence}"
                )
                error.known = _bodiless(row) if len(rows) == 1 else None
                raise error
            filled.append(msgspec.structs.replace(row, message=found))
        return filled


class Bodies:
    """Tracks which bodies in the journal nothing needs any more: they go with their messages.

    The database tells which references it deleted; an overlay knows which it never wrote.
    """

    def __init__(self, front: Front, database: JdbcStore) -> None:
        self._front = front
        self._database = database
        self._dead: set[int] = set()
        database.tell_dead(self._dead.update)

    def settle(self, overlay: Overlay) -> None:
        """*overlay* was written: bodies of messages that it left out are dead."""
        plan = overlay.plan
        if not plan.references:
            return
        held = {sequence for _, sequence in plan.pending}
        held.update(row[1] for row in plan.log)
        self._dead.update(
            place for sequence, place in plan.references.items() if sequence not in held
        )

    def take_dead(self) -> list[int]:
        """Bodies that may be discarded; each is returned once."""
        dead = list(self._dead)
        self._dead.clear()
        return dead

    async def find_dead(self, position: int) -> None:
        """Look for bodies that a crash left behind, up to record *position*.

        A crash between the database's transaction and the discarding of bodies leaves some whose
        messages are gone. Raises: StoreError.
        """
        count = 0
        async for owners in self._front.body_owners():
            kept = await self._database.kept([sequence for _, sequence in owners])
            dead = [number for number, owner in owners if owner not in kept and number <= position]
            self._dead.update(dead)
            count += len(dead)
        if count:
            logger.info("journal=swept bodies=%d", count)


def _shown(number: int, stored: StoredMessage, overlays: Sequence[Overlay]) -> StoredMessage | None:
    """*stored* as the newer overlays have it: None when it left the list."""
    place = (number, stored.sequence)
    count = stored.delivery_count
    for overlay in overlays:
        plan = overlay.plan
        if place in plan.removed:
            return None
        count = plan.deliveries.get(place, count)
    if count == stored.delivery_count:
        return stored
    return StoredMessage(stored.sequence, stored.message, stored.size, count)


def _with_body(message: Message, bodies: dict[int, bytes]) -> Message | None:
    body = message.body
    if not isinstance(body, BodyElsewhere):
        return message
    found = bodies.get(body.place)
    return None if found is None else msgspec.structs.replace(message, body=found)


def _bodiless(row: AcknowledgedMessage) -> AcknowledgedMessage:
    return msgspec.structs.replace(row, message=msgspec.structs.replace(row.message, body=b""))
