"""When it is looked how much room a store's tables take, and how much of it new messages can have."""

from __future__ import annotations

from typing import Final

from tidegate.spi import StoreContext
from tidegate_store_jdbc._options import TABLES
from tidegate_store_jdbc._tables import Tables
from tidegate_store_jdbc.database.adapter import Look, Sizes

#: Time between two looks, in seconds.
_MEASURE_SECONDS: Final = 10.0
#: The same where it costs nothing, or where the broker goes by it.
_MEASURE_OFTEN_SECONDS: Final = 1.0


class Room:
    """See the module."""

    def __init__(self, context: StoreContext, tables: Tables) -> None:
        self._adapter = tables.adapter
        names = [tables.words[table] for table in TABLES.values()]
        self._look = Look(names, context.disk_free_limit, context.store_limit > 0)

    @property
    def sizes(self) -> Sizes:
        """As far as they are known."""
        return self._adapter.sizes

    @property
    def period(self) -> float:
        """Seconds until the next look."""
        is_often = self._adapter.dialect.is_embedded or self._look.is_limited
        return _MEASURE_OFTEN_SECONDS if is_often else _MEASURE_SECONDS

    async def begin(self) -> None:
        """Look for the first time. Raises: ConfigError where a limit cannot be kept; DatabaseError."""
        if self._look.is_limited:
            await self._adapter.check_measurable()
        await self.measure()

    async def measure(self) -> None:
        """Look. Raises: DatabaseError."""
        await self._adapter.measure(self._look)
