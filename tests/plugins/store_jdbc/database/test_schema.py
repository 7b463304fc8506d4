"""Tables and their version."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from jdbc_kit import QUEUE, new_store, opened, pending, postgres_options, prefix, sqlite_rows, write
from numbered import add
from postgres_server import PostgresServer

from tidegate.spi import ConfigError, StoreContext, StoreIOError, StoreLockedError
from tidegate_store_jdbc import JdbcOptions, JdbcStore
from tidegate_store_jdbc.database.postgres import PostgresAdapter
from tidegate_store_jdbc.database.schema import CREATE, create_statements, words
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
    context = StoreContext(tmp_path, "standby", stands_by=waiting.append)
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


@pytest.mark.parametrize("version", [0, 99])
async def test_a_schema_of_another_version_is_refused_and_left_alone(
    version: int, tmp_path: Path
) -> None:
    store, _ = await opened(tmp_path)
    await store.close()
    change(tmp_path, f"UPDATE TIDEGATE_VERSION SET version = {version}")
    with pytest.raises(StoreIOError, match=f"schema version {version}"):
        await opened(tmp_path)
    assert sqlite_rows(tmp_path, "SELECT version FROM TIDEGATE_VERSION") == [(version,)]


async def test_a_table_that_is_missing_is_made_and_the_others_are_kept(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, add(1))
    await store.close()
    change(tmp_path, "DROP TABLE TIDEGATE_BRANCHES")
    store, _ = await opened(tmp_path)
    assert await store.recovered_branches() == []
    assert await pending(store) == [1]
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
