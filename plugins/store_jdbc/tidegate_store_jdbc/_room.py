"""How much room a store's tables take, and how much of it new messages can have again."""

from __future__ import annotations

from typing import Final

from tidegate.spi import ConfigError, StoreContext
from tidegate_store_jdbc._options import TABLES
from tidegate_store_jdbc._tables import Tables
from tidegate_store_jdbc.database.adapter import Adapter
from tidegate_store_jdbc.database.sqlite import Sizes, SqliteAdapter

#: Time between two looks, in seconds.
_MEASURE_SECONDS: Final = 10.0
#: The same where it costs nothing, or where the broker goes by it.
_MEASURE_OFTEN_SECONDS: Final = 1.0


class Room:
    """See the module."""

    def __init__(self, context: StoreContext, tables: Tables) -> None:
        self._adapter: Adapter = tables.adapter
        self._names = [tables.words[table] for table in TABLES.values()]
        self._free_limit = context.disk_free_limit
        self._is_limited = context.store_limit > 0
        self._sizes = Sizes()

    @property
    def sizes(self) -> Sizes:
        """At the last look; of SQLite after the last transaction."""
        adapter = self._adapter
        return adapter.sizes if isinstance(adapter, SqliteAdapter) else self._sizes

    @property
    def period(self) -> float:
        """Seconds until the next look."""
        is_often = self._adapter.dialect.is_embedded or self._is_limited
        return _MEASURE_OFTEN_SECONDS if is_often else _MEASURE_SECONDS

    async def check(self) -> None:
        """The database can tell what ``store_limit`` needs. Raises: ConfigError, DatabaseError."""
        if not self._is_limited or self._adapter.dialect.is_embedded:
            return
        from tidegate_store_jdbc.database.postgres import PostgresAdapter  # its driver is not small

        if isinstance(self._adapter, PostgresAdapter) and not await self._adapter.tells_free_room():
            raise ConfigError(
                "broker.store_limit needs to know how much of the tables can be used again, which this"
                " database does not tell: run CREATE EXTENSION pg_freespacemap in it as a superuser and"
                " grant the gateway's user the role pg_stat_scan_tables, or remove the limit",
                key="url",
            )

    async def measure(self) -> None:
        """Look. Raises: DatabaseError."""
        if isinstance(self._adapter, SqliteAdapter):
            await self._adapter.measure(self._free_limit)
            return
        rows = await self._adapter.fetch("database_size_statement", ())
        disk, reusable = map(int, rows[0])
        if self._is_limited and not self._adapter.dialect.is_embedded:
            from tidegate_store_jdbc.database.postgres import PostgresAdapter

            if isinstance(self._adapter, PostgresAdapter):
                reusable = await self._adapter.reusable_bytes(self._names)
        self._sizes = Sizes(disk, min(reusable, disk))
