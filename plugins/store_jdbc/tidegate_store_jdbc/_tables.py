"""A store's tables in its database: connected to, and made when they are missing."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets

from tidegate.spi import ConfigError, StoreContext
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
from tidegate_store_jdbc.database.schema import (
    SCHEMA_VERSION,
    create_statements,
    read_version,
    words,
)
from tidegate_store_jdbc.database.secrets import ask, credentials
from tidegate_store_jdbc.database.sqlite import SqliteAdapter
from tidegate_store_jdbc.database.statements import resolve
from tidegate_store_jdbc.database.url import parse_url
from tidegate_store_jdbc.transactions.lock import FAIL_SECONDS

logger = logging.getLogger("tidegate.store.jdbc")


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

    async def connect(self) -> None:
        """Connect and make what is missing: the lock can be taken then. Raises: as ``open``."""
        adapter, options = self.adapter, self._options
        if self._is_persistent:
            await ask(self._credentials)
        await self._connect()
        if not await self._can_prepare():
            if options.create_tables_on_startup or not self._is_persistent:
                await adapter.create(create_statements(options, adapter.dialect, self.words))
            await adapter.prepare(self._statements)
        identity = secrets.token_hex(16)
        await adapter.control("add_version_statement", (SCHEMA_VERSION, identity), fetch=False)
        await adapter.control("add_lock_statement", (), fetch=False)
        await self.identity()

    async def identity(self) -> str:
        """The store's. Raises: StoreIOError for tables of another version."""
        return (await read_version(self.adapter))[1]

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
