"""The quick journal: bodies stay in the journal, so they must go when their messages go."""

from __future__ import annotations

import logging

from tidegate_store_jdbc import JdbcStore
from tidegate_store_journaled._front import Front
from tidegate_store_journaled._overlay import Overlay

logger = logging.getLogger("tidegate.store.journaled")


class Bodies:
    """Which bodies in the journal nobody needs any more.

    The database tells which references it deleted; an overlay knows which it never wrote.
    """

    def __init__(self, front: Front, database: JdbcStore) -> None:
        self._front = front
        self._database = database
        self._dead: set[int] = set()
        database.tell_dead(self._dead.update)

    def settle(self, overlay: Overlay) -> None:
        """*overlay* was carried over: bodies of what it did not write are not needed."""
        plan = overlay.plan
        if not plan.references:
            return
        held = {sequence for _, sequence in plan.pending}
        held.update(row[1] for row in plan.log)
        self._dead.update(
            place for sequence, place in plan.references.items() if sequence not in held
        )

    def take_dead(self) -> list[int]:
        """Bodies that may be discarded; each is told once."""
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
