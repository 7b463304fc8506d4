"""SQLite through aiosqlite: the embedded database.

A whole transaction is one call into the connection's thread, and one SQL statement carries hundreds
of rows. The thread must retake the GIL after every statement, which costs more than the statement
itself while the event loop is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar

import aiosqlite

from tidegate.spi import StorePart, store_error
from tidegate.spi.private_files import DIRECTORY_MODE, FILE_MODE, warn_of_others
from tidegate_store_jdbc.database.adapter import (
    AdapterContext,
    DatabaseCorruptError,
    DatabaseError,
    DatabaseFullError,
    DatabaseUnavailableError,
    Dialect,
    FenceError,
    Look,
    Row,
    Sizes,
    Step,
    StepResult,
)
from tidegate_store_jdbc.database.sqlite_sql import DIALECT
from tidegate_store_jdbc.database.statements import STATEMENTS

T = TypeVar("T")

#: Most rows per statement, so that statements, and texts to prepare, are few.
#: 256 rows of 15 parameters stay far below SQLite's limit of 32766 parameters.
CHUNKS: Final = (256, 64, 16, 4, 1)
_VALUES: Final = re.compile(r"VALUES\s*(\(\s*\?(?:\s*,\s*\?)*\s*\))", re.IGNORECASE)
#: Pages of the write-ahead log before a checkpoint copies it into the database file: 32 MiB.
#: Short-lived messages are then written once to the log and never to the file.
_WAL_PAGES: Final = 8192
#: The transaction that fills it may go beyond.
_WAL_BEYOND_BYTES: Final = 4 << 20
#: Sizes are measured after a transaction, at most this often unless it wrote this many rows.
_LOOK_SECONDS: Final = 0.005
_MANY_ROWS: Final = 64
#: Sizes of the log's header and of each page's header there, bytes.
_WAL_HEADER_BYTES: Final = 32
_WAL_FRAME_BYTES: Final = 24

#: The size to which a checkpoint truncates the WAL: a reader can make it grow far larger.
_WAL_BYTES_KEPT: Final = 4 << 20
_CACHE_KIB: Final = 32 << 10


class _Connection(aiosqlite.Connection):
    """Runs a whole function in its thread, so that a transaction is one trip."""

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Call *function* with the connection, in its thread."""

        # Not a partial: aiosqlite's debug log would show its arguments, bodies included.
        def call() -> T:
            return function(self._conn)

        # Never cancelled half-way: the function always runs to its end.
        return await self._execute(call)  # pyright: ignore[reportUnknownMemberType]

    async def ended(self) -> None:
        """Wait for the thread of a connection that failed to open; it still calls the loop."""
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)


class SqliteAdapter:
    """See Adapter. Without a *file* the database is in memory and has one connection.

    Attributes: sizes: as of the last transaction.
    """

    def __init__(self, context: AdapterContext, *, in_memory: bool = False) -> None:
        if not in_memory:
            context.url.require_options()
            context.url.require_no_host()
            context.credentials.refuse("SQLite")
        self._context = context
        self._file = None if in_memory else context.url.file(context.directory)
        self._connections: list[_Connection] = []
        self._readers: asyncio.Queue[_Connection] = asyncio.Queue()
        self._statements: Mapping[str, str] = {}
        self._texts: dict[tuple[str, int], str] = {}
        self._groups: dict[str, re.Match[str] | None] = {}
        self._is_synced: bool | None = None
        self._page_bytes = 0
        self._look_at = 0.0
        self.sizes = Sizes()

    @property
    def dialect(self) -> Dialect:
        """See Adapter."""
        return DIALECT

    async def connect(self) -> None:
        """See Adapter. Creates the file and its directory."""
        try:
            self._writer = await self._open(is_first=True)
            if self._file is None:
                self._control = self._writer
                self._readers.put_nowait(self._writer)
                return
            self._control = await self._open()
            # The lease need not survive a power cut: its holder does not survive one either.
            await self._control.run(lambda connection: connection.execute(_SYNCHRONOUS[False]))
            for _ in range(self._context.connections_max):
                self._readers.put_nowait(await self._open())
        except BaseException:
            await self.close()
            raise

    async def _open(self, *, is_first: bool = False) -> _Connection:
        timeout, file = self._context.network_timeout, self._file

        def connector() -> sqlite3.Connection:
            if file is not None and is_first:
                _make_directory(file.parent)
                # Messages are private; SQLite gives its other files the same mode.
                os.close(os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, FILE_MODE))
                if not file.is_relative_to(self._context.directory):  # the host reports its own
                    warn_of_others(file, "database")
            connection = sqlite3.connect(
                ":memory:" if file is None else file,
                timeout=timeout,
                isolation_level=None,  # transactions are written out below
                cached_statements=512,
            )
            try:
                _set_up(connection, is_first=is_first)
            except BaseException:
                connection.close()
                raise
            return connection

        connection = _Connection(connector, iter_chunk_size=64)
        try:
            await connection
        except BaseException as error:
            # Even if cancelled: its thread still reports to the loop, which must not be closed yet.
            await connection.ended()
            if isinstance(error, OSError):
                raise store_error(f"cannot open {file}", error) from error
            if isinstance(error, sqlite3.Error):
                raise _open_error(error, file) from error
            raise
        self._connections.append(connection)
        return connection

    async def create(self, statements: Sequence[tuple[str, str]]) -> None:
        """See Adapter."""

        def run(connection: sqlite3.Connection) -> None:
            with _transaction(connection) as doing:
                for name, text in statements:
                    doing[0] = name
                    connection.execute(text)
                doing[0] = ""

        await self._call(self._writer, run)

    async def check_measurable(self) -> None:
        """See Adapter. It always can."""

    async def measure(self, look: Look) -> None:
        """See Adapter. First truncates the WAL when less than twice the limit is free on disk:
        SQLite itself does that with the next write, which may never come."""
        file, free_limit = self._file, look.free_limit

        def run(connection: sqlite3.Connection) -> None:
            if file is not None:
                status = os.statvfs(file.parent)
                is_near = status.f_bavail * status.f_frsize < 2 * free_limit
                if is_near and _size(_wal_of(file)) > _WAL_BYTES_KEPT:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self.sizes = self._look(connection)

        await self._call(self._writer, run)

    def _look(self, connection: sqlite3.Connection) -> Sizes:
        """Measure; in the thread of *connection*. Claimed: pages that are only in the WAL go into
        the file too, and the WAL grows to its full length again and again."""
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (unused,) = connection.execute("PRAGMA freelist_count").fetchone()
        if not self._page_bytes:
            (self._page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        disk, claimed, file = pages * self._page_bytes, 0, self._file
        if file is not None:
            wal_bytes = _WAL_PAGES * (self._page_bytes + _WAL_FRAME_BYTES) + _WAL_BEYOND_BYTES
            claimed = max(0, disk - _size(file)) + max(0, wal_bytes - _size(_wal_of(file)))
        return Sizes(disk, unused * self._page_bytes, claimed)

    async def parts(self, tables: Sequence[str]) -> Sequence[StorePart]:
        """See Adapter. The file, with its free pages, and the write-ahead log."""
        file = self._file

        def run(connection: sqlite3.Connection) -> Sequence[StorePart]:
            one = "SELECT page_count, freelist_count, page_size FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()"
            pages, unused, page_bytes = connection.execute(one).fetchone()
            state = f"{unused} of {pages} pages of {page_bytes} bytes are free"
            if file is None:
                return [StorePart("database", "memory", None, unused * page_bytes, state=state)]
            wal = _wal_of(file)
            frames = max(0, _size(wal) - _WAL_HEADER_BYTES) // (page_bytes + _WAL_FRAME_BYTES)
            return [
                StorePart(
                    "database file", str(file), _size(file), unused * page_bytes, state=state
                ),
                StorePart(
                    "write-ahead log",
                    wal,
                    _size(wal),
                    state=f"room for {frames} pages; it is carried into the file at {_WAL_PAGES}",
                ),
            ]

        reader = await self._readers.get()
        try:
            return await self._call(reader, run)
        finally:
            self._readers.put_nowait(reader)

    async def prepare(self, statements: Mapping[str, str]) -> None:
        """See Adapter. EXPLAIN compiles a statement with all its names and runs nothing of it."""

        def run(connection: sqlite3.Connection) -> None:
            for name, text in statements.items():
                info = STATEMENTS[name]
                try:
                    connection.execute(f"EXPLAIN {text}", (None,) * len(info.parameters)).fetchall()
                    if info.columns:
                        found = connection.execute(
                            f"SELECT * FROM ({text}) LIMIT 0", (None,) * len(info.parameters)
                        ).description
                        if len(found) != info.columns:
                            raise DatabaseError(
                                f"gives {len(found)} columns, not {info.columns}", name
                            )
                except sqlite3.Error as error:
                    raise _translated(error, statement=name) from error

        await self._call(self._writer, run)
        self._statements = statements
        self._groups = {name: _group(name, text) for name, text in statements.items()}

    async def transaction(self, steps: Sequence[Step], *, synced: bool) -> list[StepResult]:
        """See Adapter."""

        def run(connection: sqlite3.Connection) -> list[StepResult]:
            if self._is_synced is not synced:
                connection.execute(_SYNCHRONOUS[synced])
                self._is_synced = synced
            results: list[StepResult] = []
            with _transaction(connection) as doing:
                for step in steps:
                    doing[0] = step.statement
                    results.append(self._run(connection, step))
                    if not results[0]:
                        raise FenceError("touched no row", step.statement)
                doing[0] = "COMMIT"
            if monotonic() >= self._look_at or sum([len(step.rows) for step in steps]) > _MANY_ROWS:
                self.sizes = self._look(connection)
                self._look_at = monotonic() + _LOOK_SECONDS
            return results

        return await self._call(self._writer, run)

    def _run(self, connection: sqlite3.Connection, step: Step) -> StepResult:
        rows = step.rows
        found: list[Row] = []
        count = 0
        if len(rows) > 1 and self._groups[step.statement] is None:
            # A statement overridden in the configuration, or an UPDATE, takes one row at a time.
            return connection.executemany(self._statements[step.statement], rows).rowcount
        place = 0
        for size in CHUNKS:
            text = self._text(step.statement, size) if len(rows) - place >= size else ""
            while len(rows) - place >= size:
                flat = list(itertools.chain.from_iterable(rows[place : place + size]))
                place += size
                cursor = connection.execute(text, flat)
                if step.fetch:
                    found += cursor.fetchall()
                else:
                    count += cursor.rowcount
        return found if step.fetch else count

    def _text(self, name: str, size: int) -> str:
        """The statement with its group of values repeated *size* times."""
        if size == 1:
            return self._statements[name]
        text = self._texts.get((name, size))
        if text is None:
            group = self._groups[name]
            assert group is not None
            own = self._statements[name]
            many = ", ".join([group[1]] * size)
            text = f"{own[: group.start(1)]}{many}{own[group.end(1) :]}"
            self._texts[name, size] = text
        return text

    async def fetch(self, statement: str, row: Row) -> Sequence[Row]:
        """See Adapter."""
        text = self._statements[statement]
        reader = await self._readers.get()
        try:
            return await self._call(
                reader, lambda connection: connection.execute(text, tuple(row)).fetchall()
            )
        finally:
            self._readers.put_nowait(reader)

    async def control(self, statement: str, row: Row, *, fetch: bool) -> StepResult:
        """See Adapter."""
        text = self._statements[statement]

        def run(connection: sqlite3.Connection) -> StepResult:
            cursor = connection.execute(text, tuple(row))
            return cursor.fetchall() if fetch else cursor.rowcount

        return await self._call(self._control, run)

    async def explain(self, statement: str, rows: Sequence[Row]) -> str:
        """See Adapter."""
        size = next(size for size in CHUNKS if size <= len(rows))
        if size > 1 and self._groups[statement] is None:
            size = 1
        text = f"EXPLAIN QUERY PLAN {self._text(statement, size)}"
        flat = list(itertools.chain.from_iterable(rows[:size]))
        rows = await self._call(
            self._writer, lambda connection: connection.execute(text, flat).fetchall()
        )
        return "\n".join(str(found[3]) for found in rows)

    async def close(self) -> None:
        """See Adapter. Closing the last connection copies the log into the file."""
        while self._connections:
            connection = self._connections.pop()
            try:
                await connection.close()
            except sqlite3.Error as error:
                logging.getLogger("tidegate.store.jdbc").warning("closing SQLite: %s", error)

    async def _call(
        self, connection: _Connection, function: Callable[[sqlite3.Connection], T]
    ) -> T:
        try:
            return await connection.run(function)
        except sqlite3.Error as error:
            raise _translated(error) from error
        except ValueError as error:  # aiosqlite: the connection was closed meanwhile
            raise DatabaseUnavailableError(str(error)) from error


_SYNCHRONOUS: Final = {True: "PRAGMA synchronous = FULL", False: "PRAGMA synchronous = NORMAL"}


def _set_up(connection: sqlite3.Connection, *, is_first: bool) -> None:
    if is_first:
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute(_SYNCHRONOUS[True])
    connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}").fetchall()
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_KEPT}").fetchall()
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    connection.execute("PRAGMA temp_store = MEMORY")


def _wal_of(file: Path) -> str:
    return f"{file}-wal"


def _size(file: Path | str) -> int:
    """Size in bytes; 0 when it does not exist."""
    try:
        return os.stat(file).st_size
    except FileNotFoundError:
        return 0


def _make_directory(path: Path) -> None:
    """Create it and its parents, each durable in its parent, even if it exists: its creator may
    not have synced. SQLite itself syncs only the directory of the file."""
    if not path.parent.is_dir():
        _make_directory(path.parent)
    path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    above = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(above)
    finally:
        os.close(above)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[list[str]]:
    """Commit, or roll back. Yields a list whose item names the current step, for the error."""
    doing = [""]
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield doing
        connection.execute("COMMIT")
    except BaseException as error:
        if connection.in_transaction:  # some errors roll back by themselves
            connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise _translated(error, statement=doing[0]) from error
        raise


def _group(name: str, text: str) -> re.Match[str] | None:
    """The one group of values of a statement, when it holds all parameters."""
    groups = list(_VALUES.finditer(text))
    parameters = len(STATEMENTS[name].parameters)
    if len(groups) != 1 or not parameters:
        return None
    return groups[0] if groups[0][1].count("?") == parameters == text.count("?") else None


#: Transient: another connection holds the lock, or memory or file descriptors are short.
_PASSING: Final = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_CANTOPEN,
)


def _open_error(error: sqlite3.Error, file: Path | None) -> DatabaseError:
    """SQLite reports an I/O error when there is no room for the files beside the database."""
    told = _translated(error, f"cannot open {file}")
    is_io = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR
    if file is not None and is_io and not os.statvfs(file.parent).f_bavail:
        return DatabaseFullError(f"{told}: there is no room on its disk")
    return told


def _translated(error: Exception, problem: str = "", statement: str = "") -> DatabaseError:
    text = f"{problem}: {error}" if problem else str(error)
    code: Any = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else 0
    if primary == sqlite3.SQLITE_FULL:
        return DatabaseFullError(text, statement)
    if primary in _PASSING:
        return DatabaseUnavailableError(text)
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DatabaseCorruptError(text, statement)
    return DatabaseError(text, statement)
