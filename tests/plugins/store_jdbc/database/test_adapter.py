"""The registry of databases, and a third party's adapter in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from jdbc_kit import QUEUE, new_store, pending, write
from numbered import add

from tidegate.spi import ConfigError, PluginContractError, PluginLoadError
from tidegate_store_jdbc import (
    ADAPTERS_GROUP,
    AdapterContext,
    DatabaseError,
    DatabaseUnavailableError,
    JdbcOptions,
    register_adapter,
)
from tidegate_store_jdbc.database.adapter import adapter_factory
from tidegate_store_jdbc.database.sqlite import SqliteAdapter


class OwnAdapter(SqliteAdapter):
    """Another database: here, one that counts how often it was connected."""

    made = 0

    def __init__(self, context: AdapterContext) -> None:
        super().__init__(context)
        OwnAdapter.made += 1


async def test_a_third_party_adds_a_database(tmp_path: Path) -> None:
    register_adapter("own", OwnAdapter, ["own"])

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


MYSQL = """
from tidegate_store_jdbc.database.sqlite import SqliteAdapter

class MySqlAdapter(SqliteAdapter):
    pass
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution that nobody imports, as pip installs it."""
    where = tmp_path / "site"
    info = where / "toy_mysql-1.0.dist-info"
    info.mkdir(parents=True)
    (where / "toy_mysql.py").write_text(MYSQL)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-mysql\nVersion: 1.0\n")
    points = [
        "toymysql = toy_mysql:MySqlAdapter",
        "toygone = toy_gone:Adapter",
        "toynone = toy_mysql:__doc__",
    ]
    (info / "entry_points.txt").write_text("\n".join([f"[{ADAPTERS_GROUP}]", *points, ""]))
    monkeypatch.syspath_prepend(str(where))
    return where


def test_an_installed_adapter_is_found_by_name_and_by_scheme(third_party: Path) -> None:
    found = adapter_factory("", "toymysql")
    assert getattr(found, "__name__", "") == "MySqlAdapter"
    assert adapter_factory("toymysql", "sqlite") is found
    with pytest.raises(ConfigError, match="did you mean 'toymysql'"):
        adapter_factory("toymysq", "")


def test_an_adapter_that_cannot_be_loaded_names_its_distribution(third_party: Path) -> None:
    with pytest.raises(PluginLoadError, match=r"toy-mysql 1\.0: toy_gone:Adapter .*toy_gone"):
        adapter_factory("toygone", "")
    with pytest.raises(PluginContractError, match="makes an adapter"):
        adapter_factory("toynone", "")


def test_commands_use_an_installed_adapter(third_party: Path, tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(
        f'[broker]\ndata_directory = "{tmp_path}"\n'
        '[store]\nplugin = "jdbc"\nurl = "toymysql:///own.db"\n'
    )
    done = subprocess.run(
        [Path(sys.executable).with_name("tidegate"), "store", "create", "--config", config],
        env=os.environ | {"PYTHONPATH": str(third_party)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "own.db").exists()
