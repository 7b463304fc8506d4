"""PostgreSQL: every statement finds its rows by an index; errors; what a session is told."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import ssl
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest
from jdbc_kit import (
    QUEUE,
    WHOLE_TABLES,
    filled,
    new_store,
    opened,
    pending,
    postgres_options,
    prefix,
    sample_rows,
    write,
)
from numbered import add
from postgres_server import PostgresServer

from tidegate.spi import (
    Acknowledge,
    AddMessage,
    ConfigError,
    Message,
    StoreContext,
    StoreIOError,
    StoreUnavailableError,
)
from tidegate_store_jdbc import (
    STATEMENTS,
    DatabaseError,
    DatabaseFullError,
    DatabaseUnavailableError,
    JdbcStore,
)
from tidegate_store_jdbc._options import TABLES
from tidegate_store_jdbc.database.postgres import PostgresAdapter, _ssl, _translated  # pyright: ignore[reportPrivateUsage]


def adapter(store: JdbcStore) -> PostgresAdapter:
    found = store._adapter  # pyright: ignore[reportPrivateUsage]
    assert isinstance(found, PostgresAdapter)
    return found


async def ask(server: PostgresServer, query: str) -> list[Any]:
    """What another session sees."""
    connection = await asyncpg.connect(f"{server.url}", user="tidegate", password=server.password)
    try:
        return [tuple(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


async def test_every_statement_finds_its_rows_by_an_index(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    store, _ = await opened(tmp_path, postgres_options(postgres, tmp_path), keep=True)
    plans = await explain_all(store)
    await filled(store)
    await ask(postgres, "SELECT 1")
    plans += await explain_all(store)  # with rows, before the server has looked at them
    await ask(postgres, f"ANALYZE {prefix(tmp_path)}TIDEGATE_MSGS")
    await ask(postgres, f"ANALYZE {prefix(tmp_path)}TIDEGATE_ACKS")
    plans += await explain_all(store)
    for statement, plan in plans:
        assert reads_too_much(plan) == "" or "_last_sequence_" in statement, (
            f"{statement}: {reads_too_much(plan)}\n{plan}"
        )
    await store.close()


def reads_too_much(plan: str) -> str:
    """The part of a plan that reads more of a table than the rows it is asked for, or ""."""
    for node in re.split(r"^\s*->", plan, flags=re.MULTILINE):
        if "Seq Scan" in node:
            return node
        index = re.search(r"(?:using|Index Scan on) (\S+)", node)
        if index and "Index Cond: (" not in node:
            return node
        # The index of (list, sequence) finds a sequence only within a list.
        if index and index[1].endswith("acks_pkey") and "(pending_list =" not in node:
            return node
    return ""


async def explain_all(store: JdbcStore) -> list[tuple[str, str]]:
    return [
        (name, await adapter(store).explain(name, sample_rows(name, 300) or [()]))
        for name in sorted(STATEMENTS.keys() - WHOLE_TABLES)
    ]


@pytest.mark.parametrize(
    ("statement", "dropped"),
    [
        ("remove_message_statement", "TIDEGATE_ACKS_SEQ"),
        ("delete_old_messages_statement", "TIDEGATE_ACKLOG_SEQ"),
    ],
)
async def test_the_check_notices_a_missing_index(
    postgres: PostgresServer, tmp_path: Path, statement: str, dropped: str
) -> None:
    store, _ = await opened(tmp_path, postgres_options(postgres, tmp_path), keep=True)
    await filled(store)
    await adapter(store).create([("test", f"DROP INDEX {prefix(tmp_path)}{dropped}")])
    plan = await adapter(store).explain(statement, sample_rows(statement, 300))
    assert reads_too_much(plan)
    await store.close()


async def test_values_that_postgres_cannot_hold_do_not_stop_the_store(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    store, _ = await opened(tmp_path, postgres_options(postgres, tmp_path), keep=True)
    strange = Message(
        "topic://" + "x" * 60_000,
        b"\0",
        (("nul\0", "a\0b"),),
        expires_at=2**63 + 5,
        client_id="nul\0",
        content_type="\0",
        reply_to="queue://\0",
    )
    await write(store, QUEUE, add(1))
    from tidegate.spi import AddDestination, AddMessage, SetRetained

    await write(store, AddDestination(strange.destination, 0), AddMessage(2, strange, (1,)))
    await write(store, SetRetained(strange))
    page = await store.page_in(1, 1, 1, 1)
    assert page[0].message == strange
    await store.close()
    store, state = await opened(tmp_path, postgres_options(postgres, tmp_path), keep=True)
    assert list(state.retained) == [strange]
    assert strange.destination in [known.destination for known in state.destinations]
    await store.close()


async def test_a_wrong_password_is_an_error_that_does_not_show_it(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    options = postgres_options(postgres, tmp_path, password_file="", password="wr0ng-pass")
    with pytest.raises(StoreIOError) as caught:
        await opened(tmp_path, options)
    assert "password authentication failed" in str(caught.value)
    assert "wr0ng-pass" not in str(caught.value)


async def test_a_server_that_never_answers_is_given_up_at_start(tmp_path: Path) -> None:
    from free_ports import free_port

    url = f"postgresql://127.0.0.1:{free_port()}/nothing"
    with pytest.raises(StoreUnavailableError, match="cannot open the store in postgresql://127"):
        await opened(tmp_path, url=url, network_timeout=0.3)


async def test_sessions_end_transactions_that_nobody_ends(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    options = postgres_options(postgres, tmp_path, network_timeout=7.5)
    store, _ = await opened(tmp_path, options)
    writer = await adapter(store)._take("write")  # pyright: ignore[reportPrivateUsage]
    found = await writer.fetch("SHOW idle_in_transaction_session_timeout")
    assert found[0][0] == "7500ms"
    adapter(store)._put("write", writer)  # pyright: ignore[reportPrivateUsage]
    query = "SELECT DISTINCT application_name, state FROM pg_stat_activity WHERE usename = 'tidegate' AND application_name = 'tidegate' AND state LIKE 'idle in%'"
    assert await ask(postgres, query) == []
    await store.close()


async def test_the_size_is_that_of_all_tables(postgres: PostgresServer, tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, postgres_options(postgres, tmp_path))
    before = store.statistics().disk_bytes
    assert before > 0
    await write(store, QUEUE, add(1, size=1_000_000))
    await store._room.measure()  # pyright: ignore[reportPrivateUsage]
    assert store.statistics().disk_bytes > before + 900_000
    assert await pending(store) == [1]
    await store.close()


async def test_operators_see_the_tables_and_who_has_the_lease(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    store, _ = await opened(tmp_path, postgres_options(postgres, tmp_path))
    numbers = tuple(range(1, 201))
    name = f"{prefix(tmp_path)}TIDEGATE_MSGS"
    await ask(postgres, f"ALTER TABLE {name} SET (autovacuum_enabled = off)")
    await write(store, QUEUE, *[add(number) for number in numbers])
    await write(store, Acknowledge(1, numbers[:150]))
    # How many rows are dead is known when the backend that wrote has told so, or by ANALYZE.
    await ask(postgres, f"ANALYZE {name}")
    *tables, lease = await store.store_parts()
    assert {part.kind for part in tables} == {"table"}
    assert len({part.name for part in tables}) == len(tables) == len(TABLES)
    messages = next(part for part in tables if part.name == name)
    ((size,),) = await ask(postgres, f"SELECT pg_total_relation_size('{name}')")
    assert (messages.disk_bytes, messages.rows) == (size, 50)
    assert (messages.dead_rows, messages.state) == (150, "never vacuumed")
    assert (lease.kind, lease.holder) == ("lease", f"test on {socket.gethostname()}")
    assert lease.state.startswith("fencing token ")
    assert lease.expires_at is not None
    await store.close()


async def test_nobody_waits_for_a_look_at_tables_that_somebody_has_locked(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    store, _ = await opened(tmp_path, postgres_options(postgres, tmp_path, connections_max=1))
    await write(store, QUEUE, add(1))
    name = f"{prefix(tmp_path)}TIDEGATE_SESSIONS"
    other = await asyncpg.connect(postgres.url, user="tidegate", password=postgres.password)
    try:
        locking = other.transaction()
        await locking.start()
        await other.execute(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
        looking = asyncio.create_task(store.store_parts())
        waits = (
            "SELECT count(*) FROM pg_locks WHERE NOT granted"
            f" AND relation = to_regclass('{name}')::oid"
        )
        while not looking.done() and (await ask(postgres, waits)) == [(0,)]:
            await asyncio.sleep(0.01)
        await write(store, add(2))
        assert await pending(store) == [1, 2]
        with pytest.raises(StoreUnavailableError, match="looking at what"):
            await looking
        assert store.statistics().writable
        await locking.rollback()
    finally:
        await other.close()
    assert len(await store.store_parts()) == len(TABLES) + 1
    await store.close()


async def test_a_limit_of_the_store_needs_to_know_what_can_be_used_again(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """Tables do not shrink when their rows are deleted: without that it would be full for ever."""
    options = postgres_options(postgres, tmp_path)
    context = StoreContext(tmp_path, "test", store_limit=1 << 30)
    await ask(postgres, "DROP EXTENSION IF EXISTS pg_freespacemap")
    with pytest.raises(ConfigError, match="CREATE EXTENSION pg_freespacemap") as caught:
        await JdbcStore(context, options).open()
    assert "broker.store_limit" in str(caught.value)
    await ask(postgres, 'CREATE SCHEMA IF NOT EXISTS "own Room"')
    await ask(postgres, 'CREATE EXTENSION pg_freespacemap SCHEMA "own Room"')
    store = JdbcStore(context, options)
    await store.open()
    numbers = range(1, 41)
    # Larger than a page, so that they are in the table for large values.
    added = [Message("queue://q", random.randbytes(50_000)) for _ in numbers]
    pairs = zip(numbers, added, strict=True)
    await write(store, QUEUE, *[AddMessage(number, message, (1,)) for number, message in pairs])
    await store._room.measure()  # pyright: ignore[reportPrivateUsage]
    full = store.statistics()
    assert full.used_bytes > 1_500_000
    await write(store, Acknowledge(1, tuple(range(1, 40))))
    await ask(postgres, f"VACUUM (TRUNCATE off) {prefix(tmp_path)}TIDEGATE_MSGS")
    await store._room.measure()  # pyright: ignore[reportPrivateUsage]
    left = store.statistics()
    assert left.disk_bytes >= full.disk_bytes - 500_000
    assert left.used_bytes < full.used_bytes / 2
    assert left.used_bytes >= 50_000
    await store.close()
    await ask(postgres, "DROP EXTENSION pg_freespacemap")


async def test_tables_may_live_in_a_schema(postgres: PostgresServer, tmp_path: Path) -> None:
    await ask(postgres, "CREATE SCHEMA IF NOT EXISTS mq")
    options = postgres_options(
        postgres, tmp_path, table_prefix=f"mq.{prefix(tmp_path)}", brokerid="b7"
    )
    store, _ = await opened(tmp_path, options)
    await write(store, QUEUE, add(1))
    table = f"mq.{prefix(tmp_path)}TIDEGATE_MSGS_b7"
    assert await ask(postgres, f"SELECT sequence FROM {table}") == [(1,)]
    await store.close()


class RefusedError(Exception):
    """An error with a state, as asyncpg has them."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("refused")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RefusedError("08006"), DatabaseUnavailableError),
        (RefusedError("57P01"), DatabaseUnavailableError),
        (RefusedError("57P03"), DatabaseUnavailableError),
        (RefusedError("40P01"), DatabaseUnavailableError),
        (RefusedError("25006"), DatabaseUnavailableError),
        (RefusedError("25P03"), DatabaseUnavailableError),
        (RefusedError("53300"), DatabaseUnavailableError),
        (ConnectionResetError(), DatabaseUnavailableError),
        (TimeoutError(), DatabaseUnavailableError),
        (cast(Any, asyncpg).InterfaceError("closed"), DatabaseUnavailableError),
        (cast(Any, asyncpg).InternalClientError("state"), DatabaseUnavailableError),
        (RefusedError("53200"), DatabaseUnavailableError),
        (RefusedError("53100"), DatabaseFullError),
        (RefusedError("23505"), DatabaseError),
        (RefusedError("28P01"), DatabaseError),
        (cast(Any, asyncpg).DataError("invalid input"), DatabaseError),
        (KeyError("a bug"), DatabaseError),
    ],
)
def test_errors_say_whether_to_try_again(error: Exception, kind: type[DatabaseError]) -> None:
    assert type(_translated(error)) is kind


def test_urls_say_how_to_encrypt(tmp_path: Path) -> None:
    assert _ssl({}) is None
    assert _ssl({"sslmode": "require"}) == "require"
    with pytest.raises(ConfigError, match="sslmode is one of"):
        _ssl({"sslmode": "sometimes"})
    with pytest.raises(ConfigError, match="needs sslmode"):
        _ssl({"sslmode": "require", "sslrootcert": "x"})
    with pytest.raises(ConfigError, match="sslrootcert"):
        _ssl({"sslmode": "verify-full", "sslrootcert": str(tmp_path / "none")})
    import trustme

    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    context = _ssl({"sslmode": "verify-ca", "sslrootcert": str(tmp_path / "ca.pem")})
    assert isinstance(context, ssl.SSLContext)
    assert not context.check_hostname
    with pytest.raises(ConfigError, match="unknown option 'sslmoed'"):
        new_store(tmp_path, url="postgresql://h/d?sslmoed=require")


def test_a_command_tag_tells_how_many_rows() -> None:
    from tidegate_store_jdbc.database.postgres import _touched  # pyright: ignore[reportPrivateUsage]

    assert [_touched(tag) for tag in ("DELETE 5", "INSERT 0 7", "BEGIN")] == [5, 7, 0]
    assert re.fullmatch(r"\d+", str(_touched("UPDATE 12")))
