"""Connects to a store's database and creates the tables that are missing."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from pathlib import Path

from tidegate.spi import ConfigError
from tidegate_store_jdbc._options import JdbcOptions, check
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

    Attributes:
        url, adapter: the database.
        directories: where an embedded database is.
        words: the replacement for each placeholder in its statements.
        statements: the complete SQL of each.
    """

    def __init__(self, options: JdbcOptions, directory: Path, *, in_memory: bool = False) -> None:
        """Touches no disk and no network. Args: directory: of the gateway's data. Raises: ConfigError."""
        check(options)
        self._options = options
        self._in_memory = in_memory
        self.url = parse_url(options.url)
        self._credentials = credentials(options, self.url, directory, os.environ)
        made = AdapterContext(
            url=self.url,
            credentials=self._credentials,
            directory=directory,
            network_timeout=options.network_timeout,
            connections_max=options.connections_max,
        )
        self.adapter: Adapter = (
            SqliteAdapter(made, in_memory=True)
            if in_memory
            else adapter_factory(options.adapter, self.url.scheme)(made)
        )
        dialect = self.adapter.dialect
        is_here = dialect.is_embedded and not in_memory
        self.directories = (self.url.file(directory).parent,) if is_here else ()
        self.words = words(options, dialect)
        self.statements = resolve(dialect.statements, options.statements, self.words)

    async def open(self) -> None:
        """Connect and create what is missing, ready for the lock. Raises: as ``JdbcStore.open``."""
        await self._connect_soon()
        if not await self._can_prepare():
            if self._options.create_tables_on_startup or self._in_memory:
                await self.create()
            await self.adapter.prepare(self.statements)
        await self.fill()
        await self.identity()

    async def create(self) -> None:
        """Make what is missing. Raises: DatabaseError."""
        made = create_statements(self._options, self.adapter.dialect, self.words)
        await self.adapter.create(made)

    async def fill(self) -> None:
        """Add the two permanent rows if they are missing. Raises: DatabaseError."""
        row = (SCHEMA_VERSION, secrets.token_hex(16))
        await self.adapter.control("add_version_statement", row, fetch=False)
        await self.adapter.control("add_lock_statement", (), fetch=False)

    async def identity(self) -> str:
        """The store's. Raises: StoreIOError for tables of another version."""
        return (await read_version(self.adapter))[1]

    async def connect(self) -> None:
        """Ask for the password if needed, and connect. Raises: ConfigError, DatabaseError."""
        if not self._in_memory:
            await ask(self._credentials)
        await self.adapter.connect()

    async def _connect_soon(self) -> None:
        """Connect, waiting a while for a database that is starting at the same time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._options.network_timeout
        told = ""
        while True:
            try:
                await self.connect()
            except DatabaseUnavailableError as error:
                if loop.time() + FAIL_SECONDS > end:
                    raise
                if told != str(error):
                    told = str(error)
                    logger.warning("waiting for the database %s: %s", self.url, error)
                await asyncio.sleep(FAIL_SECONDS)
            else:
                return

    async def _can_prepare(self) -> bool:
        """Whether nothing needs creating, which would wait for a master that is writing."""
        try:
            await self.adapter.prepare(self.statements)
        except (DatabaseUnavailableError, DatabaseCorruptError):
            raise
        except DatabaseError:
            return False
        return True

    def open_error(self, error: DatabaseError) -> Exception:
        """The exception that *error* becomes for the caller of ``open``."""
        if isinstance(error, DatabaseCorruptError):
            return error.store_error(str(self.url))
        told = error.store_error(f"cannot open the store in {self.url}")
        if error.statement and not told.retryable:
            name = error.statement
            is_create = name.startswith("create_statements.")
            hint = "" if is_create else "; is a table missing (create_tables_on_startup)?"
            key = name if "." in name else f"statements.{name}"
            return ConfigError(f"the database refuses it: {error.problem}{hint}", key=key)
        return told
