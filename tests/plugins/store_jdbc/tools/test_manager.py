"""The database manager's functions, on both databases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from jdbc_kit import QUEUE, new_store, pending, postgres_options, write
from numbered import add
from postgres_server import PostgresServer

from tidegate.spi import ConfigError, ConfiguredStore, StoreIOError, StoreLockedError
from tidegate_store_jdbc import JdbcOptions, plugin
from tidegate_store_jdbc.database.schema import SCHEMA_VERSION
from tidegate_store_jdbc.tools.manager import Manager, jdbc_options, manager

T = TypeVar("T")


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ConfiguredStore:
    options = JdbcOptions(table_prefix="own_", brokerid="b7", lock_policy="fail")
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        options = postgres_options(server, tmp_path, brokerid="b7")
    factory: Any = plugin.register_message_store()
    return ConfiguredStore("jdbc", factory, options, tmp_path)


async def managed(store: ConfiguredStore, work: Callable[[Manager], Awaitable[T]]) -> T:
    async with manager(store) as found:
        return await work(found)


async def test_tables_are_created_counted_recreated_and_deleted(store: ConfiguredStore) -> None:
    assert not await managed(store, lambda m: m.exists())
    with pytest.raises(StoreIOError, match="create"):
        await managed(store, lambda m: m.query())
    await managed(store, lambda m: m.create())
    assert await managed(store, lambda m: m.exists())
    with pytest.raises(StoreIOError, match="exist already"):
        await managed(store, lambda m: m.create())
    gateway = store.create()
    await gateway.open()
    await write(gateway, QUEUE, add(1), add(2))
    await gateway.close()
    report = await managed(store, lambda m: m.query())
    assert report.destinations == [("queue://q", 2, 200)]
    assert (report.owner, report.journal, report.version) == ("", None, SCHEMA_VERSION)
    messages = next(name for name in report.tables if "TIDEGATE_MSGS" in name)
    assert messages.endswith("_b7")
    assert report.tables[messages] == 2
    await managed(store, lambda m: m.recreate(forced=False))
    again = await managed(store, lambda m: m.query())
    assert again.destinations == []
    assert again.store_id != report.store_id
    deleted = await managed(store, lambda m: m.delete(forced=False))
    assert sorted(deleted) == sorted(report.tables)
    assert not await managed(store, lambda m: m.exists())


async def test_a_store_in_use_is_not_deleted_and_its_lock_can_be_removed(
    store: ConfiguredStore,
) -> None:
    options = jdbc_options(store)
    gateway = new_store(store.data_directory, options)
    await gateway.open()
    await write(gateway, QUEUE, add(1))
    for work in (
        lambda m: m.delete(forced=False),
        lambda m: m.recreate(forced=False),
    ):
        with pytest.raises(StoreLockedError, match="remove-lock"):
            await managed(store, work)
    assert (await managed(store, lambda m: m.query())).owner.startswith("test on ")
    owner = await managed(store, lambda m: m.remove_lock())
    assert owner.startswith("test on ")
    with pytest.raises(StoreIOError, match="another gateway"):
        await write(gateway, add(2))
    other = new_store(store.data_directory, options)
    await other.open()
    assert await pending(other) == [1]
    await other.close()
    await gateway.close()
    assert await managed(store, lambda m: m.remove_lock()) == ""


async def test_a_store_that_lacks_a_table_is_no_store_and_can_be_deleted(
    store: ConfiguredStore,
) -> None:
    await managed(store, lambda m: m.create())
    async with manager(store) as found:
        name = next(name for name in await found.tables() if "JOURNAL" in name)
        await found._adapter.create([("drop", f"DROP TABLE {name}")])  # pyright: ignore[reportPrivateUsage]
    assert not await managed(store, lambda m: m.exists())
    with pytest.raises(StoreIOError, match="a gateway that starts makes them"):
        await managed(store, lambda m: m.query())
    assert await managed(store, lambda m: m.remove_lock()) == ""
    assert len(await managed(store, lambda m: m.delete(forced=False))) == 13
    with pytest.raises(StoreIOError, match="'create' makes them"):
        await managed(store, lambda m: m.remove_lock())


def test_another_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not in a database"):
        jdbc_options(ConfiguredStore("journal", object(), object(), tmp_path))  # type: ignore[arg-type]
