"""The entry point gives a working factory, and the factory passes the kit on both databases."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from pathlib import Path

import pytest
from jdbc_kit import LongModel, postgres_options, prefix
from postgres_server import PostgresServer

from tidegate.spi import ConfigError, MessageStore, MessageStoreFactory, StoreContext
from tidegate.spi.version import is_supported
from tidegate.testing.store_kit import StoreConformance
from tidegate_store_jdbc import JdbcOptions, plugin


def factory() -> MessageStoreFactory:
    found = plugin.register_message_store()
    assert found is not None
    return found


class PrefixedFactory:
    """Makes stores whose tables belong to their data directory, as files would."""

    options_type: type = JdbcOptions

    def create(self, context: StoreContext, options: object) -> MessageStore:
        assert isinstance(options, JdbcOptions)
        own = dataclasses.replace(options, table_prefix=prefix(context.data_directory))
        return factory().create(context, own)


class TestConformanceOnSqlite(StoreConformance):
    """The same kit that a third party's store runs."""

    @pytest.fixture
    def store_factory(self) -> MessageStoreFactory:
        return factory()

    @pytest.fixture
    def store_options(self) -> object:
        return JdbcOptions(connections_max=2)


@pytest.mark.timeout(300)  # the model opens a store some hundred times, over the network
class TestConformanceOnPostgres(LongModel):
    """And on a server."""

    @pytest.fixture
    def store_factory(self) -> MessageStoreFactory:
        return PrefixedFactory()

    @pytest.fixture
    def store_options(self, postgres: PostgresServer, tmp_path: Path) -> object:
        return postgres_options(postgres, tmp_path)


@pytest.mark.long
class TestConformanceWithSmallCleanups(StoreConformance):
    """Every clean-up takes many transactions."""

    @pytest.fixture
    def store_factory(self) -> MessageStoreFactory:
        return factory()

    @pytest.fixture
    def store_options(self) -> object:
        return JdbcOptions(cleanup_limit=50, connections_max=1)


def test_the_entry_point_names_the_plugin() -> None:
    (point,) = importlib.metadata.entry_points(group="tidegate.plugins", name="store-jdbc")
    assert point.load() is plugin
    assert is_supported(plugin.tidegate_plugin.spi_version)
    assert plugin.tidegate_plugin.summary


def test_a_store_is_made_without_touching_disk_or_network(tmp_path: Path) -> None:
    store = factory().create(StoreContext(tmp_path, "test"), JdbcOptions())
    assert isinstance(store, MessageStore)
    nobody = JdbcOptions(url="postgresql://192.0.2.1/never")
    assert isinstance(factory().create(StoreContext(tmp_path, "test"), nobody), MessageStore)
    assert factory().options_type is JdbcOptions
    assert list(tmp_path.iterdir()) == []


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    context = StoreContext(tmp_path, "test")
    with pytest.raises(ConfigError):
        factory().create(context, JdbcOptions(url="mysql://host/database"))
    with pytest.raises(TypeError):
        factory().create(context, object())
