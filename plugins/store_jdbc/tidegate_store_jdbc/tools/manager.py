"""The database manager: works on a store's tables while no gateway runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from tidegate.spi import (
    ConfigError,
    ConfiguredStore,
    RecoveredDestination,
    StoreIOError,
    StoreLockedError,
)
from tidegate_store_jdbc._options import JdbcOptions, table_names
from tidegate_store_jdbc._tables import Tables
from tidegate_store_jdbc.database.adapter import DatabaseError
from tidegate_store_jdbc.database.schema import read_version
from tidegate_store_jdbc.rows import codec
from tidegate_store_jdbc.transactions.lock import LockRow, describe, is_gone, read_lock
from tidegate_store_jdbc.transactions.recovery import Mark, read_mark

#: A statement without parameters, with one column, that may take its time: its slot is borrowed
#: for counting the rows of a table.
_COUNT: Final = "acknowledged_bytes_statement"


class Report(msgspec.Struct, frozen=True):
    """What :meth:`Manager.query` found.

    Attributes:
        database: its URL, without secrets.
        version: of the schema; store_id: identity of the contents.
        owner: who holds the lock, "" when nobody does.
        journal: the journal in front, None when there never was one.
        tables: rows by table.
        destinations: (name, messages, bytes of their bodies).
    """

    database: str
    version: int
    store_id: str
    owner: str
    journal: Mark | None
    tables: dict[str, int]
    destinations: list[tuple[str, int, int]]


def jdbc_options(store: ConfiguredStore) -> JdbcOptions:
    """The options of an SQL store. Raises: ConfigError for any other store."""
    if not isinstance(store.options, JdbcOptions):
        raise ConfigError(
            f"the configured store, {store.plugin!r}, is not in a database; this command is for "
            "'jdbc' and 'journaled'",
            key="store.plugin",
        )
    return store.options


class Manager:
    """One database's tables of one store. Use :func:`manager`."""

    def __init__(self, options: JdbcOptions, made: Tables) -> None:
        self._made = made
        self._adapter = made.adapter
        self._tables = table_names(options)
        self._database = str(made.url)

    async def tables(self) -> list[str]:
        """Names of the tables that exist. Rows are not counted, which could take long."""
        return [name for name in self._tables.values() if await self._is_there(name)]

    async def _is_there(self, name: str) -> bool:
        try:
            await self._prepare_count(name)
        except DatabaseError as error:
            if error.statement:
                return False
            raise
        return True

    async def _prepare_count(self, name: str) -> None:
        await self._adapter.prepare({_COUNT: f"SELECT COUNT(*) FROM {name}"})

    async def _rows(self, name: str) -> int:
        await self._prepare_count(name)
        return int((await self._adapter.fetch(_COUNT, ()))[0][0])

    async def exists(self) -> bool:
        """Whether all tables exist."""
        return len(await self.tables()) == len(self._tables)

    async def create(self) -> None:
        """Create all tables. Raises: StoreIOError when some exist already."""
        found = await self.tables()
        if found:
            raise StoreIOError(
                f"{', '.join(found)} exist already in {self._database}; 'recreate' deletes them first"
            )
        await self._create()

    async def _create(self) -> None:
        await self._made.create()
        await self._adapter.prepare(self._made.statements)
        await self._made.fill()

    async def delete(self, *, forced: bool) -> list[str]:
        """Delete all tables and everything in them. Returns: their names.

        Raises: StoreLockedError while a gateway has the store, unless *forced*.
        """
        found = await self.tables()
        if self._tables["lock_table"] in found and not forced:
            self._require_free(await self._lock())
        await self._adapter.create([(f"drop {name}", f"DROP TABLE {name}") for name in found])
        return found

    async def recreate(self, *, forced: bool) -> None:
        """Delete and create. Raises: as :meth:`delete`."""
        await self.delete(forced=forced)
        await self._create()

    async def query(self) -> Report:
        """What is in the store. Raises: StoreIOError when there is none."""
        await self._require(*self._tables)
        tables = {name: await self._rows(name) for name in self._tables.values()}
        await self._adapter.prepare(self._made.statements)
        lock = await read_lock(self._adapter)
        version, store_id = await read_version(self._adapter)
        mark = await read_mark(self._adapter)
        counts = {
            int(row[0]): (int(row[1]), int(row[2]))
            for row in await self._adapter.fetch("destination_message_count_statement", ())
        }
        rows = await self._adapter.fetch("find_all_destinations_statement", ())
        known = [codec.decoded(RecoveredDestination, row[0], "destination table") for row in rows]
        destinations = [
            (found.destination, *counts.get(found.pending_list, (0, 0))) for found in known
        ]
        return Report(
            database=self._database,
            version=version,
            store_id=store_id,
            owner=describe(lock.owner) if _is_held(lock) else "",
            journal=mark,
            tables=tables,
            destinations=sorted(destinations),
        )

    async def remove_lock(self) -> str:
        """Free the lock; its holder can no longer write. Returns: who that was."""
        await self._require("lock_table")
        lock = await self._lock()
        if lock.owner:
            await self._adapter.control(
                "lock_create_statement", ("", 0, lock.fencing_token, lock.expires_at), fetch=False
            )
            await self._adapter.control(
                "lock_release_statement", (lock.fencing_token + 1,), fetch=False
            )
        return describe(lock.owner) if lock.owner else ""

    async def _require(self, *tables: str) -> None:
        """Raises: StoreIOError when one of *tables* (placeholders) is missing."""
        there = await self.tables()
        missing = [self._tables[table] for table in tables if self._tables[table] not in there]
        if missing:
            maker = "a gateway that starts" if there else "'create'"
            raise StoreIOError(
                f"no store in {self._database}: {', '.join(missing)} missing; {maker} makes them"
            )

    async def _lock(self) -> LockRow:
        names = ("find_lock_statement", "lock_create_statement", "lock_release_statement")
        await self._adapter.prepare({name: self._made.statements[name] for name in names})
        return await read_lock(self._adapter)

    def _require_free(self, lock: LockRow) -> None:
        if _is_held(lock):
            raise StoreLockedError(
                f"the store belongs to {describe(lock.owner)}; stop that gateway, or, when it is "
                "gone for good, use 'tidegate store remove-lock'",
                owner=describe(lock.owner),
            )


def _is_held(lock: LockRow) -> bool:
    return bool(lock.owner) and lock.expires_at > lock.now and not is_gone(lock.owner)


@contextlib.asynccontextmanager
async def manager(store: ConfiguredStore) -> AsyncGenerator[Manager]:
    """Connect to the database of *store*; a missing embedded one is created.

    Raises: ConfigError; StoreError for anything that the database refuses.
    """
    options = jdbc_options(store)
    tables = Tables(options, store.data_directory)
    try:
        await tables.connect()
        yield Manager(options, tables)
    except DatabaseError as error:
        raise error.store_error(str(tables.url)) from error
    finally:
        await tables.adapter.close()
