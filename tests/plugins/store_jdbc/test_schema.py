"""Tables, versions and migrations."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from jdbc_kit import (
    QUEUE,
    add,
    new_store,
    opened,
    pending,
    postgres_options,
    prefix,
    sqlite_rows,
    write,
)
from postgres_server import PostgresServer

from tidegate.spi import ConfigError, StoreContext, StoreIOError, StoreLockedError
from tidegate_store_jdbc import JdbcOptions, JdbcStore
from tidegate_store_jdbc.database.postgres import PostgresAdapter
from tidegate_store_jdbc.database.schema import (
    CREATE,
    SCHEMA_VERSION,
    create_statements,
    migrate,
    words,
)
from tidegate_store_jdbc.database.sqlite import DIALECT


def change(where: Path, statement: str) -> None:
    connection = sqlite3.connect(where / "tidegate.db")
    with connection:
        connection.execute(statement)
    connection.close()


def test_every_table_is_created_if_it_does_not_exist() -> None:
    options = JdbcOptions(table_prefix="main.P_")
    made = create_statements(options, DIALECT, words(options, DIALECT))
    assert len([text for _, text in made if text.startswith("CREATE TABLE IF")]) == len(CREATE)
    assert all("IF NOT EXISTS" in text and "{" not in text for _, text in made)
    index = [text for _, text in made if "INDEX" in text]
    assert all("EXISTS P_TIDEGATE" in text and "ON main.P_" in text for text in index)


async def test_a_missing_table_is_an_error_when_none_may_be_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="create_tables_on_startup"):
        await opened(tmp_path, create_tables_on_startup=False)


async def test_existing_tables_are_used_when_none_may_be_created(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, add(1))
    await store.close()
    store, _ = await opened(tmp_path, create_tables_on_startup=False)
    assert await pending(store) == [1]
    await store.close()


async def test_tables_of_version_1_are_brought_up_to_date(tmp_path: Path) -> None:
    """It had no tables of duplicate ids and branches; what was in the others is there."""

    store, _ = await opened(tmp_path)
    await write(store, QUEUE, add(1))
    await store.close()
    for statement in (
        "DROP TABLE TIDEGATE_DUPLICATES",
        "DROP TABLE TIDEGATE_BRANCHES",
        "UPDATE TIDEGATE_VERSION SET version = 1",
    ):
        change(tmp_path, statement)
    for _ in range(2):
        store, _ = await opened(tmp_path)
        assert await store.recovered_branches() == []
        assert await store.recovered_duplicate_ids() == []
        assert await pending(store) == [1]
        await store.close()
        rows = sqlite_rows(tmp_path, "SELECT version FROM TIDEGATE_VERSION")
        assert rows == [(SCHEMA_VERSION,)]


async def test_a_command_does_not_wait_for_a_lock_whatever_the_policy(tmp_path: Path) -> None:
    master, _ = await opened(tmp_path)
    context = StoreContext(tmp_path, "command", may_stand_by=False)
    store = JdbcStore(context, JdbcOptions(lock_policy="wait"))
    with pytest.raises(StoreLockedError):
        await store.open()
    await store.close()
    await master.close()


async def test_a_standby_creates_nothing_beside_a_master_that_holds_its_tables(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    options = postgres_options(postgres, tmp_path, lock_policy="wait")
    master, _ = await opened(tmp_path, options)
    adapter = master._adapter  # pyright: ignore[reportPrivateUsage]
    assert isinstance(adapter, PostgresAdapter)
    writer = await adapter._take("write")  # pyright: ignore[reportPrivateUsage]
    table = f"{prefix(tmp_path)}TIDEGATE_MSGS"
    await writer.execute(f"BEGIN; LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
    waiting: list[str] = []
    context = StoreContext(
        tmp_path, "standby", progress=lambda what, _done, _total: waiting.append(what)
    )
    standby = JdbcStore(context, options)
    opening = asyncio.create_task(standby.open())
    async with asyncio.timeout(60):
        while not waiting:
            await asyncio.sleep(0.01)
    await writer.execute("ROLLBACK")
    adapter._put("write", writer)  # pyright: ignore[reportPrivateUsage]
    await master.close()
    await opening
    await standby.close()


async def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await store.close()
    change(tmp_path, "UPDATE TIDEGATE_VERSION SET version = 99")
    with pytest.raises(StoreIOError, match="schema version 99"):
        await opened(tmp_path)


async def test_an_older_schema_without_a_migration_is_refused(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await store.close()
    change(tmp_path, "UPDATE TIDEGATE_VERSION SET version = 0")
    with pytest.raises(StoreIOError, match="no migration from schema version 0"):
        await opened(tmp_path)


STEPS = {
    SCHEMA_VERSION: [("add_site", "ALTER TABLE {message_table} ADD COLUMN site INTEGER")],
    SCHEMA_VERSION + 1: [
        ("fill_site", "UPDATE {message_table} SET site = sequence"),
        ("add_more", "ALTER TABLE {message_table} ADD COLUMN more INTEGER"),
    ],
}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_migrations_are_run_in_order_and_noted(
    kind: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    options = postgres_options(postgres, tmp_path) if kind == "postgres" else JdbcOptions()

    store, _ = await opened(tmp_path, options)
    await write(store, QUEUE, add(5))
    adapter = store._adapter  # pyright: ignore[reportPrivateUsage]
    known = words(options, adapter.dialect)
    wanted = SCHEMA_VERSION + 2
    assert await migrate(adapter, known, SCHEMA_VERSION, wanted=wanted, migrations=STEPS)
    rows = await adapter.control("find_version_statement", (), fetch=True)
    assert rows[0][0] == wanted
    assert not await migrate(adapter, known, wanted, wanted=wanted, migrations=STEPS)
    assert await pending(store) == [5]
    await store.close()
    with pytest.raises(StoreIOError, match="run the newer gateway"):
        await opened(tmp_path, options)


async def test_a_migration_that_fails_leaves_the_version_before_it(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    adapter = store._adapter  # pyright: ignore[reportPrivateUsage]
    known = words(JdbcOptions(), adapter.dialect)
    steps = {
        SCHEMA_VERSION: STEPS[SCHEMA_VERSION],
        SCHEMA_VERSION + 1: [
            ("good", "ALTER TABLE {message_table} ADD COLUMN more INTEGER"),
            ("bad", "ALTER TABLE nothing ADD COLUMN x INTEGER"),
        ],
    }
    with pytest.raises(ConfigError) as caught:
        await migrate(adapter, known, SCHEMA_VERSION, wanted=SCHEMA_VERSION + 2, migrations=steps)
    assert caught.value.key == "bad"
    rows = await adapter.control("find_version_statement", (), fetch=True)
    assert rows[0][0] == SCHEMA_VERSION + 1
    # The half of the failed step is not there, so the mended one can run.
    steps[SCHEMA_VERSION + 1].pop()
    assert await migrate(
        adapter, known, SCHEMA_VERSION + 1, wanted=SCHEMA_VERSION + 2, migrations=steps
    )
    await store.close()


async def test_gateways_share_a_database_by_broker_id(tmp_path: Path) -> None:
    first, one = await opened(tmp_path, brokerid="a")
    second, two = await opened(tmp_path, brokerid="b")
    assert one.store_id != two.store_id
    await write(first, QUEUE, add(1))
    await write(second, QUEUE, add(2))
    assert [await pending(first), await pending(second)] == [[1], [2]]
    await first.close()
    await second.close()
    # Opening one leaves the other's rows alone.
    store = new_store(tmp_path, brokerid="a")
    await store.open()
    assert await pending(store) == [1]
    await store.close()
