"""The registry of databases, and a third party's adapter in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from jdbc_kit import QUEUE, add, new_store, pending, run, write

from tidegate.spi import ConfigError
from tidegate_store_jdbc import (
    AdapterContext,
    DatabaseError,
    DatabaseUnavailableError,
    JdbcOptions,
    register_adapter,
)
from tidegate_store_jdbc._adapter import adapter_factory
from tidegate_store_jdbc._sqlite import SqliteAdapter


class OwnAdapter(SqliteAdapter):
    """Another database: here, one that counts how often it was connected."""

    made = 0

    def __init__(self, context: AdapterContext) -> None:
        super().__init__(context)
        OwnAdapter.made += 1


def test_a_third_party_adds_a_database(tmp_path: Path) -> None:
    register_adapter("own", OwnAdapter, ["own"])

    async def scenario() -> None:
        for options in (
            JdbcOptions(url="own:///a.db"),
            JdbcOptions(url="sqlite:///b.db", adapter="own"),
        ):
            made = OwnAdapter.made
            store = new_store(tmp_path, options)
            assert OwnAdapter.made == made + 1
            await store.open()
            await write(store, QUEUE, add(1))
            assert await pending(store) == [1]
            await store.close()

    run(scenario())


def test_a_later_registration_takes_the_place_of_the_earlier() -> None:
    register_adapter("twice", SqliteAdapter, ["TWICE"])
    register_adapter("twice", OwnAdapter)
    assert adapter_factory("", "twice") is OwnAdapter
    assert adapter_factory("twice", "sqlite") is OwnAdapter


@pytest.mark.parametrize(
    ("name", "scheme", "key", "problem"),
    [
        ("sqlit", "sqlite", "adapter", "did you mean 'sqlite'"),
        ("", "postgre", "url", "did you mean 'postgres"),
        ("", "oracle", "url", "known: "),
    ],
)
def test_unknown_databases_are_refused(name: str, scheme: str, key: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        adapter_factory(name, scheme)
    assert caught.value.key == key


def test_an_error_names_its_statement() -> None:
    assert str(DatabaseError("no such table", "add_message_statement")) == (
        "add_message_statement: no such table"
    )
    assert str(DatabaseError("closed")) == "closed"
    assert not DatabaseUnavailableError("gone").in_doubt
