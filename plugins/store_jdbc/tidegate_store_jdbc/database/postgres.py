"""PostgreSQL through asyncpg.

Rows go to the server as one array per column and are unnested there. Any number of rows takes one
round trip and one plan, and, unlike COPY, this also works for updates and deletes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from tidegate.spi import ConfigError, StorePart
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
from tidegate_store_jdbc.database.postgres_sql import DIALECT
from tidegate_store_jdbc.database.statements import STATEMENTS

#: Columns that the gateway reads as bytes.
_ENCODED: Final = ("body", "message", "value")
#: Only one gateway at a time creates or changes tables ("tide" in ASCII).
_SCHEMA_LOCK: Final = 0x74696465


class _Connection(Protocol):
    """What is used of asyncpg's connection, which has no type information."""

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str: ...
    async def fetch(self, query: str, *args: object, timeout: float | None = None) -> list[Row]: ...
    async def prepare(self, query: str) -> Any: ...
    async def close(self, *, timeout: float | None = None) -> None: ...
    def terminate(self) -> None: ...
    def is_closed(self) -> bool: ...


@dataclass(slots=True)
class _Use:
    """A connection and the statement it runs."""

    connection: _Connection
    statement: str = ""


class PostgresAdapter:
    """See Adapter. One connection writes, one holds the lease, some read, one serves operators."""

    def __init__(self, context: AdapterContext) -> None:
        """Raises: ConfigError for options of the URL that are not known."""
        context.url.require_options("sslmode", "sslrootcert")
        self._ssl = _ssl(context.url.options)
        self._context = context
        self._statements: Mapping[str, str] = {}
        self._idle: dict[str, list[_Connection]] = {
            "read": [],
            "write": [],
            "control": [],
            "look": [],
        }
        self._all: set[_Connection] = set()
        self._slots = asyncio.Semaphore(context.connections_max)
        self._locks = {kind: asyncio.Lock() for kind in ("write", "control", "look")}
        self._is_closed = False
        self.sizes = Sizes()

    @property
    def dialect(self) -> Dialect:
        """See Adapter."""
        return DIALECT

    async def connect(self) -> None:
        """See Adapter."""
        self._put("write", await self._connect())

    async def _connect(self) -> _Connection:
        if self._is_closed:
            raise DatabaseUnavailableError("the adapter is closed")
        context, url = self._context, self._context.url
        timeout = context.network_timeout
        connect = cast(Any, asyncpg).connect
        try:
            async with asyncio.timeout(timeout):
                connection: _Connection = await connect(
                    host=url.host or None,
                    port=url.port or None,
                    database=url.path,
                    user=context.credentials.user or None,
                    password=context.credentials.password or None,
                    ssl=self._ssl,
                    timeout=timeout,
                    command_timeout=timeout,
                    server_settings=_settings(timeout),
                )
        except Exception as error:
            raise _translated(error) from error
        self._all.add(connection)
        return connection

    async def _take(self, kind: str) -> _Connection:
        idle = self._idle[kind]
        while idle:
            connection = idle.pop()
            if not connection.is_closed():
                return connection
            self._all.discard(connection)
        try:
            return await self._connect()
        except DatabaseError as error:
            # It worked before, so even a refused password may be fixed without a restart.
            raise DatabaseUnavailableError(str(error)) from error

    def _put(self, kind: str, connection: _Connection) -> None:
        if self._is_closed:
            self._drop(connection)
        else:
            self._idle[kind].append(connection)

    @contextlib.asynccontextmanager
    async def _using(self, kind: str) -> AsyncGenerator[_Use]:
        """Borrow a connection. One in an unknown state is dropped, and the server rolls back.

        Raises: DatabaseError for what asyncpg raises.
        """
        use = _Use(await self._take(kind))
        try:
            yield use
        except FenceError:
            self._put(kind, use.connection)
            raise
        except BaseException as error:
            self._drop(use.connection)
            if not isinstance(error, Exception) or isinstance(error, DatabaseError):
                raise
            in_doubt = use.statement == _COMMIT
            raise _translated(error, use.statement, in_doubt=in_doubt) from error
        self._put(kind, use.connection)

    def _drop(self, connection: _Connection) -> None:
        self._all.discard(connection)
        connection.terminate()

    async def create(self, statements: Sequence[tuple[str, str]]) -> None:
        """See Adapter."""
        before = (
            "BEGIN",
            f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})",
            "SET LOCAL client_min_messages = warning",
        )
        async with self._locks["write"], self._using("write") as use:
            for name, text in [*(("", text) for text in before), *statements, ("", _COMMIT)]:
                use.statement = name
                await use.connection.execute(text)

    async def prepare(self, statements: Mapping[str, str]) -> None:
        """See Adapter. Preparing a statement looks up all its names."""
        async with self._locks["write"], self._using("write") as use:
            for name, text in statements.items():
                use.statement = name
                prepared = await use.connection.prepare(text)
                _check_shape(name, len(prepared.get_parameters()), prepared.get_attributes())
        self._statements = statements

    async def transaction(self, steps: Sequence[Step], *, synced: bool) -> list[StepResult]:
        """See Adapter."""
        async with self._locks["write"], self._using("write") as use:
            await use.connection.execute(_BEGIN[synced])
            results: list[StepResult] = []
            for step in steps:
                use.statement = step.statement
                results.append(await _run(use.connection, self._statements[step.statement], step))
                if not results[0]:
                    await use.connection.execute("ROLLBACK")
                    raise FenceError("touched no row", step.statement)
            use.statement = _COMMIT
            await use.connection.execute(_COMMIT)
            return results

    async def fetch(self, statement: str, row: Row) -> Sequence[Row]:
        """See Adapter."""
        timeout = _WHOLE_SECONDS if STATEMENTS[statement].whole else None
        text = self._statements[statement]
        async with self._slots:
            return await self._one("read", text, row, fetch=True, timeout=timeout)

    async def control(self, statement: str, row: Row, *, fetch: bool) -> StepResult:
        """See Adapter."""
        async with self._locks["control"]:
            return await self._one("control", self._statements[statement], row, fetch=fetch)

    async def _one(
        self, kind: str, text: str, row: Row, *, fetch: bool, timeout: float | None = None
    ) -> StepResult:
        async with self._using(kind) as use:
            if fetch:
                return await use.connection.fetch(text, *row, timeout=timeout)
            return _touched(await use.connection.execute(text, *row))

    async def check_measurable(self) -> None:
        """See Adapter."""
        if not await self._one("read", _FREE_ROOM_SCHEMA, (), fetch=True):
            raise ConfigError(
                "broker.store_limit needs to know how much of the tables can be used again, which this"
                " database does not tell: run CREATE EXTENSION pg_freespacemap in it as a superuser and"
                " grant the gateway's user the role pg_stat_scan_tables, or remove the limit",
                key="url",
            )

    async def measure(self, look: Look) -> None:
        """See Adapter. Reusable space is costly to measure, so only where it is needed."""
        rows = await self.fetch("database_size_statement", ())
        disk, reusable = map(int, rows[0])
        if look.is_limited:
            reusable = await self._reusable_bytes(look.tables)
        self.sizes = Sizes(disk, min(reusable, disk))

    async def parts(self, tables: Sequence[str]) -> Sequence[StorePart]:
        """See Adapter. The tables, as the server's statistics know them."""
        async with self._locks["look"]:
            rows = await self._one(
                "look", _TABLES_SEEN, (list(tables),), fetch=True, timeout=_SEEN_SECONDS
            )
        return [
            StorePart("table", name, size, rows=alive, dead_rows=dead, state=state)
            for name, size, alive, dead, state in rows
        ]

    async def _reusable_bytes(self, tables: Sequence[str]) -> int:
        """The part of *tables*, with their indexes and large values, that is free for new rows.

        Estimated from a sample of pages; deleted rows count after the next VACUUM.
        Raises: DatabaseError.
        """
        found = await self._one("read", _FREE_ROOM_SCHEMA, (), fetch=True)
        if not found:
            return 0
        text = _FREE_ROOM.format(schema=found[0][0], pages=_FREE_ROOM_PAGES)
        rows = await self._one("read", text, (list(tables),), fetch=True)
        return int(rows[0][0])

    async def explain(self, statement: str, rows: Sequence[Row]) -> str:
        """See Adapter."""
        text = f"EXPLAIN {self._statements[statement]}"
        if STATEMENTS[statement].many:
            parameters: Sequence[object] = [list(column) for column in zip(*rows, strict=True)]
        else:
            parameters = rows[0]
        found = await self._one("read", text, parameters, fetch=True)
        return "\n".join(str(row[0]) for row in found)

    async def close(self) -> None:
        """See Adapter."""
        self._is_closed = True
        for connection in list(self._all):
            self._all.discard(connection)
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await connection.close()
            except Exception:  # broken, or busy: the server notices either way
                connection.terminate()


#: Longest time for a statement that counts a whole table, at start.
_WHOLE_SECONDS: Final = 3600.0
#: Longest time to inspect the tables for an operator.
_SEEN_SECONDS: Final = 2.0
#: Longest time to say good-bye to the server on each connection.
_CLOSE_SECONDS: Final = 1.0

#: The schema of the extension that measures it, quoted, if this user may call it.
_FREE_ROOM_SCHEMA: Final = (
    "SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
    " JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname = 'pg_freespace' AND p.pronargs = 2"
    " WHERE e.extname = 'pg_freespacemap' AND has_function_privilege(p.oid, 'EXECUTE')"
)
#: Pages of each table and index that are sampled.
_FREE_ROOM_PAGES: Final = 256
_FREE_ROOM: Final = """
WITH tables AS (
    SELECT c.oid, c.reltoastrelid FROM unnest($1::text[]) AS name
    JOIN pg_class c ON c.oid = to_regclass(name)
), heaps AS (
    SELECT oid FROM tables UNION ALL SELECT reltoastrelid FROM tables WHERE reltoastrelid <> 0
), relations AS (
    SELECT oid FROM heaps
    UNION ALL SELECT indexrelid FROM pg_index JOIN heaps ON indrelid = heaps.oid
), sized AS (
    SELECT oid, pg_relation_size(oid) / current_setting('block_size')::bigint AS blocks
    FROM relations
)
SELECT coalesce(sum(blocks * free), 0)::bigint FROM sized CROSS JOIN LATERAL (
    SELECT avg({schema}.pg_freespace(oid::regclass, block)) AS free
    FROM generate_series(0, blocks - 1, greatest(1, blocks / {pages})) AS block
) AS looked WHERE blocks > 0
"""

_TABLES_SEEN: Final = """
SELECT name, pg_total_relation_size(c.oid), coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
    coalesce('vacuumed ' || to_char(greatest(s.last_vacuum, s.last_autovacuum) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), 'never vacuumed')
FROM unnest($1::text[]) WITH ORDINALITY AS wanted(name, place)
JOIN pg_class c ON c.oid = to_regclass(name)
LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
ORDER BY place
"""

_COMMIT: Final = "COMMIT"
_BEGIN: Final = {
    True: "BEGIN",
    False: "BEGIN; SET LOCAL synchronous_commit = off",
}


def _settings(timeout: float) -> dict[str, str]:
    """The settings of every session.

    Statements are planned at each run, and by key: a plan cached while a table was empty would
    later read all of it. A transaction whose gateway is gone or stopped ends by itself;
    otherwise it would keep the lock on the row that every write checks.
    """
    return {
        "application_name": "tidegate",
        "plan_cache_mode": "force_custom_plan",
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "jit": "off",
        "idle_in_transaction_session_timeout": str(max(1, int(timeout * 1000))),
    }


_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def _ssl(options: Mapping[str, str]) -> object:
    """The ``ssl`` argument for asyncpg. Raises: ConfigError."""
    mode = options.get("sslmode", "")
    certificates = options.get("sslrootcert", "")
    if mode and mode not in _SSL_MODES:
        raise ConfigError(f"sslmode is one of {', '.join(_SSL_MODES)}", key="url")
    if not certificates:
        return mode or None
    if mode not in ("verify-ca", "verify-full"):
        raise ConfigError("sslrootcert needs sslmode=verify-ca or verify-full", key="url")
    try:
        context = ssl.create_default_context(cafile=certificates)
    except OSError as error:
        raise ConfigError(f"sslrootcert: {error}", key="url") from error
    context.check_hostname = mode == "verify-full"
    return context


async def _run(connection: _Connection, text: str, step: Step) -> StepResult:
    if STATEMENTS[step.statement].many:
        parameters: Sequence[object] = [list(column) for column in zip(*step.rows, strict=True)]
    else:
        parameters = step.rows[0]
    if step.fetch:
        return await connection.fetch(text, *parameters)
    return _touched(await connection.execute(text, *parameters))


def _touched(status: str) -> int:
    """Rows touched, from a command tag such as ``DELETE 5`` or ``INSERT 0 5``."""
    number = status.rpartition(" ")[2]
    return int(number) if number.isdigit() else 0


def _check_shape(name: str, parameters: int, attributes: Sequence[Any]) -> None:
    info = STATEMENTS[name]
    if parameters != len(info.parameters):
        raise DatabaseError(f"takes {parameters} parameters, not {len(info.parameters)}", name)
    if len(attributes) != info.columns:
        raise DatabaseError(f"gives {len(attributes)} columns, not {info.columns}", name)
    for attribute in attributes:
        kind = attribute.type.name
        if attribute.name in _ENCODED and kind != "bytea":
            # The server would convert bytes to text on the way in, but not back.
            raise DatabaseError(
                f"its column {attribute.name!r} is of type {kind}, not bytea (binary_data_type)",
                name,
            )


#: Transient errors: connection failures, too many connections, no memory, a server that starts,
#: stops or is a replica, deadlocks. The transaction was rolled back.
_PASSING: Final = re.compile(r"08...|53[234]00|57P0[1-5]|25006|25P0[34]|40001|40P01|55P03|57014")


def _driver_errors() -> tuple[type[Exception], ...]:
    driver = cast(Any, asyncpg)
    return (driver.InterfaceError, driver.InternalClientError)


def _translated(error: Exception, statement: str = "", *, in_doubt: bool = False) -> DatabaseError:
    state: Any = getattr(error, "sqlstate", None)
    text = f"{type(error).__name__}: {error}" if state is None else f"{error} ({state})"
    if isinstance(state, str):
        if _PASSING.fullmatch(state):
            return DatabaseUnavailableError(text, in_doubt=in_doubt)
        if state == "53100":
            return DatabaseFullError(text, statement)
        if state in ("XX001", "XX002"):
            return DatabaseCorruptError(text, statement)
        return DatabaseError(text, statement)
    if isinstance(error, (OSError, TimeoutError)):
        return DatabaseUnavailableError(text, in_doubt=in_doubt)
    # asyncpg raises these when a connection breaks mid-way; ValueErrors are about parameters.
    if isinstance(error, _driver_errors()) and not isinstance(error, ValueError):
        return DatabaseUnavailableError(text, in_doubt=in_doubt)
    return DatabaseError(text, statement)
