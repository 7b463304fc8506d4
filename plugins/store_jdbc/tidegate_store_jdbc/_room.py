"""Measures how much room a store's tables take, and how much of it new messages can use."""

from __future__ import annotations

import time
from typing import Final

from tidegate.spi import StoreContext, StorePart
from tidegate.spi.machine.owners import describe
from tidegate_store_jdbc._options import TABLES
from tidegate_store_jdbc._tables import Tables
from tidegate_store_jdbc.database.adapter import Look, Sizes
from tidegate_store_jdbc.transactions.lock import LockRow

#: Time between two measurements, in seconds.
_MEASURE_SECONDS: Final = 10.0
#: The same where measuring costs nothing, or where a limit depends on it.
_MEASURE_OFTEN_SECONDS: Final = 1.0


class Room:
    """See the module."""

    def __init__(self, context: StoreContext, tables: Tables) -> None:
        self._adapter = tables.adapter
        names = [tables.words[table] for table in TABLES.values()]
        self._lock_table = tables.words["lock_table"]
        self._look = Look(names, context.disk_free_limit, context.store_limit > 0)

    @property
    def sizes(self) -> Sizes:
        """As far as they are known."""
        return self._adapter.sizes

    @property
    def period(self) -> float:
        """Seconds until the next measurement."""
        is_often = self._adapter.dialect.is_embedded or self._look.is_limited
        return _MEASURE_OFTEN_SECONDS if is_often else _MEASURE_SECONDS

    async def parts(self) -> list[StorePart]:
        """The database's parts and the lease's owner, for operators. Raises: DatabaseError."""
        found = list(await self._adapter.parts(self._look.tables))
        (row,) = await self._adapter.fetch("find_lock_statement", ())
        lock = LockRow(str(row[0]), *(int(number) for number in row[1:]))
        # Shown on this machine's clock, like all times; the lease itself runs on the database's.
        ends_at = time.time_ns() // 1000 + (lock.expires_at - lock.now) * 1000
        is_kept = lock.expires_at > lock.now
        part = StorePart(
            "lease",
            self._lock_table,
            state=f"fencing token {lock.fencing_token}{'' if is_kept else ', not kept up'}",
            holder=describe(lock.owner),
            expires_at=ends_at if is_kept else None,
        )
        return [*found, part]

    async def begin(self) -> None:
        """Measure first. Raises: ConfigError where a limit cannot be kept; DatabaseError."""
        if self._look.is_limited:
            await self._adapter.check_measurable()
        await self.measure()

    async def measure(self) -> None:
        """Measure. Raises: DatabaseError."""
        await self._adapter.measure(self._look)
