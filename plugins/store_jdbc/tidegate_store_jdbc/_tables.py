"""A store's tables in its database: connected to, made when they are missing, brought up to date."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from typing import Final

from tidegate.spi import ConfigError, StoreContext, StoreIOError
from tidegate_store_jdbc._options import JdbcOptions
from tidegate_store_jdbc.database.adapter import (
    Adapter,
    AdapterContext,
    DatabaseCorruptError,
    DatabaseError,
    DatabaseUnavailableError,
    adapter_factory,
    register_adapter,
)
from tidegate_store_jdbc.database.schema import SCHEMA_VERSION, create_statements, migrate, words
from tidegate_store_jdbc.database.secrets import ask, credentials
from tidegate_store_jdbc.database.sqlite import SqliteAdapter
from tidegate_store_jdbc.database.statements import resolve
from tidegate_store_jdbc.database.url import parse_url
from tidegate_store_jdbc.transactions.lock import FAIL_SECONDS

logger = logging.getLogger("tidegate.store.jdbc")

#: Statements that must work before the schema's version is known to be right.
_FIRST: Final = (
    "find_lock_statement",
    "add_lock_statement",
    "lock_create_statement",
    "lock_update_statement",
    "lock_release_statement",
    "find_version_statement",
    "add_version_statement",
)


def _postgres(context: AdapterContext) -> Adapter:
    from tidegate_store_jdbc.database.postgres import PostgresAdapter  # its driver is not small

    return PostgresAdapter(context)


register_adapter("sqlite", SqliteAdapter, ("sqlite", "sqlite3"))
register_adapter("postgresql", _postgres, ("postgresql", "postgres"))


class Tables:
    """See the module.

    Attributes: adapter: the database. words: what stands for each placeholder of its statements.
    """

    def __init__(self, context: StoreContext, options: JdbcOptions) -> None:
        """Touches no disk and no network. Raises: ConfigError."""
        self._options = options
        self._is_persistent = context.persistent
        self._url = parse_url(options.url)
        self._credentials = credentials(options, self._url, context.data_directory, os.environ)
        made = AdapterContext(
            url=self._url,
            credentials=self._credentials,
            directory=context.data_directory,
            network_timeout=options.network_timeout,
            connections_max=options.connections_max,
        )
        self.adapter: Adapter = (
            adapter_factory(options.adapter, self._url.scheme)(made)
            if context.persistent
            else SqliteAdapter(made, in_memory=True)
        )
        dialect = self.adapter.dialect
        self.words = words(options, dialect)
        self._statements = resolve(dialect.statements, options.statements, self.words)
        self._are_there = False

    async def connect(self) -> None:
        """Connect and make what is missing: the lock can be taken then. Raises: as ``open``."""
        adapter, options = self.adapter, self._options
        if self._is_persistent:
            await ask(self._credentials)
        await self._connect()
        self._are_there = await self._can_prepare()
        if not self._are_there:
            if options.create_tables_on_startup or not self._is_persistent:
                await adapter.create(create_statements(options, adapter.dialect, self.words))
            await adapter.prepare({name: self._statements[name] for name in _FIRST})
        identity = secrets.token_hex(16)
        await adapter.control("add_version_statement", (SCHEMA_VERSION, identity), fetch=False)
        await adapter.control("add_lock_statement", (), fetch=False)
        await self._version()

    async def upgrade(self) -> str:
        """Bring them up to date; the caller has the lock. Returns: the store's identity."""
        version, store_id = await self._version()
        if await migrate(self.adapter, self.words, version) or not self._are_there:
            await self.adapter.prepare(self._statements)
        return store_id

    async def _connect(self) -> None:
        """Connect; wait a while for a database that is being started at the same time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._options.network_timeout
        while True:
            try:
                await self.adapter.connect()
            except DatabaseUnavailableError as error:
                if loop.time() + FAIL_SECONDS > end:
                    raise
                logger.warning("waiting for the database: %s", error)
                await asyncio.sleep(FAIL_SECONDS)
            else:
                return

    async def _can_prepare(self) -> bool:
        """Whether nothing needs to be created: that would wait for a master that is writing."""
        try:
            await self.adapter.prepare(self._statements)
        except (DatabaseUnavailableError, DatabaseCorruptError):
            raise
        except DatabaseError:
            return False
        return True

    async def _version(self) -> tuple[int, str]:
        rows = await self.adapter.control("find_version_statement", (), fetch=True)
        if not rows:
            raise StoreIOError("the version table has no row; was it emptied by hand?")
        version = int(rows[0][0])
        if version > SCHEMA_VERSION:
            await migrate(self.adapter, self.words, version)  # refuses
        return version, str(rows[0][1])

    def open_error(self, error: DatabaseError) -> Exception:
        """What whoever opens the store is told of *error*."""
        if isinstance(error, DatabaseCorruptError):
            return error.store_error(str(self._url))
        told = error.store_error(f"cannot open the store in {self._url}")
        if error.statement and not told.retryable:
            name = error.statement
            is_create = name.startswith("create_statements.")
            hint = "" if is_create else "; is a table missing (create_tables_on_startup)?"
            key = name if "." in name else f"statements.{name}"
            return ConfigError(f"the database refuses it: {error.problem}{hint}", key=key)
        return told
