"""The entry point gives a working factory, and the factory passes the kit in all modes, on both databases."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
from jdbc_kit import postgres_options, prefix
from postgres_server import PostgresServer

from tidegate.spi import ConfigError, MessageStore, MessageStoreFactory, StoreContext
from tidegate.spi.version import is_supported
from tidegate.testing.store_kit import StoreConformance
from tidegate_store_jdbc import JdbcStore
from tidegate_store_journaled import JournaledOptions, JournaledStore, plugin

SMALL: dict[str, Any] = {"journal_log_file_size": 256 << 10, "connections_max": 2}


def factory() -> MessageStoreFactory:
    found = plugin.register_message_store()
    assert found is not None
    return found


def options(**changes: Any) -> JournaledOptions:
    return JournaledOptions(**{**SMALL, **changes})


def on_postgres(server: PostgresServer, directory: Path, **changes: Any) -> JournaledOptions:
    plain = dataclasses.asdict(postgres_options(server, directory))
    return JournaledOptions(**{**plain, **SMALL, **changes})


class PrefixedFactory:
    """Makes stores whose tables belong to their data directory, as files would."""

    options_type: type = JournaledOptions

    def create(self, context: StoreContext, options: object) -> MessageStore:
        assert isinstance(options, JournaledOptions)
        own = dataclasses.replace(options, table_prefix=prefix(context.data_directory))
        return factory().create(context, own)


class TestConformance(StoreConformance):
    """The same kit that a third party's store runs; checkpoints come in the middle of everything."""

    @pytest.fixture
    def store_factory(self) -> MessageStoreFactory:
        return factory()

    @pytest.fixture
    def store_options(self) -> object:
        return options(checkpoint_interval=0.02)


@pytest.mark.long
class TestConformanceBeforeACheckpoint(TestConformance):
    """Everything is read from the journal's side, and goes to the database when it is closed."""

    @pytest.fixture
    def store_options(self) -> object:
        return options(checkpoint_interval=3600)


@pytest.mark.long
class TestConformanceOfTheQuickJournal(TestConformance):
    """Bodies stay in the journal."""

    @pytest.fixture
    def store_options(self) -> object:
        return options(checkpoint_interval=0.01, use_quick_journal=True)


@pytest.mark.long
class TestConformanceOnPostgres(StoreConformance):
    """On a server."""

    @pytest.fixture
    def store_factory(self) -> MessageStoreFactory:
        return PrefixedFactory()

    @pytest.fixture(
        params=[
            pytest.param(False, id="journal"),
            pytest.param(True, id="quick", marks=pytest.mark.fuzz),
        ]
    )
    def store_options(
        self, request: pytest.FixtureRequest, postgres: PostgresServer, tmp_path: Path
    ) -> object:
        quick = bool(request.param)
        return on_postgres(postgres, tmp_path, checkpoint_interval=0.05, use_quick_journal=quick)


def test_the_entry_point_names_the_plugin() -> None:
    (point,) = importlib.metadata.entry_points(group="tidegate.plugins", name="store-journaled")
    assert point.load() is plugin
    assert is_supported(plugin.tidegate_plugin.spi_version)
    assert plugin.tidegate_plugin.summary


def test_a_store_is_made_without_touching_disk_or_network(tmp_path: Path) -> None:
    context = StoreContext(tmp_path, "test")
    assert isinstance(factory().create(context, options()), JournaledStore)
    assert isinstance(factory().create(context, JournaledOptions(use_journal=False)), JdbcStore)
    assert factory().options_type is JournaledOptions
    assert list(tmp_path.iterdir()) == []


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    context = StoreContext(tmp_path, "test")
    with pytest.raises(ConfigError):
        factory().create(context, options(use_journal=False, use_quick_journal=True))
    with pytest.raises(TypeError):
        factory().create(context, object())
