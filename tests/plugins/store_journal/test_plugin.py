"""The entry point gives a working factory, and the factory passes the conformance kit."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from journal_kit import options

from tidegate.spi import ConfigError, MessageStore, MessageStoreFactory, StoreContext
from tidegate.spi.version import is_supported
from tidegate.testing.faulty_storage import FaultyDisk
from tidegate.testing.store_kit import StoreConformance, StoreFullConformance
from tidegate_store_journal import JournalOptions, JournalStore, plugin


def factory() -> MessageStoreFactory:
    found = plugin.register_message_store()
    assert found is not None
    return found


def test_a_limit_that_an_empty_journal_could_be_above_is_refused(tmp_path: Path) -> None:
    made = JournalOptions(journal_max_file_length=1 << 20)
    for limit in (0, 4 << 20):
        factory().create(StoreContext(tmp_path, "test", store_limit=limit), made)
    with pytest.raises(ConfigError, match=r"broker\.store_limit \(") as caught:
        factory().create(StoreContext(tmp_path, "test", store_limit=(4 << 20) - 1), made)
    assert caught.value.key == "journal_max_file_length"


class TestConformance(StoreConformance):
    """The same kit that a third party's store runs."""

    @pytest.fixture
    def store_factory(self) -> MessageStoreFactory:
        return factory()

    @pytest.fixture
    def store_options(self) -> object:
        # Small files, so that the kit's few hundred messages fill several.
        return options()


@pytest.mark.long
class TestConformanceOfAPreset(TestConformance):
    """Every preset is the same store with other names, sizes and layout, whoever writes.

    One on this machine's io_uring, with batches that gather for a while; one with mapped files.
    """

    @pytest.fixture(params=["amq", "flatfile"])
    def store_options(self, request: pytest.FixtureRequest) -> object:
        if request.param == "flatfile":
            changes: dict[str, Any] = {"max_record_size": 1500, "journal_type": "MAPPED"}
        else:
            changes = {
                "journal_type": "ASYNCIO",
                "journal_buffer_timeout": 0.001,
                "journal_buffer_size": 4096,
            }
        return options(preset=request.param, **changes)


@pytest.mark.long
class TestConformanceWithoutIndex(TestConformance):
    """Every start reads all data files."""

    @pytest.fixture
    def store_options(self) -> object:
        return options(persistent_index=False)


class OneDisk:
    """Makes stores on a simulated disk."""

    options_type: type = JournalOptions

    def __init__(self) -> None:
        self.disk = FaultyDisk()

    def create(self, context: StoreContext, options: object) -> MessageStore:
        assert isinstance(options, JournalOptions)
        return JournalStore(context, options, self.disk.start())


class TestConformanceWhenFull(StoreFullConformance):
    """Its disk has no room left."""

    @pytest.fixture
    def store_factory(self) -> OneDisk:
        return OneDisk()

    @pytest.fixture
    def store_options(self) -> object:
        return options()

    @pytest.fixture
    def limit_room(self, store_factory: OneDisk) -> Callable[[int | None], None]:
        disk = store_factory.disk

        def limit(room: int | None) -> None:
            disk.capacity_bytes = 1 << 40 if room is None else disk.used_bytes() + room

        return limit


def test_the_entry_point_names_the_plugin() -> None:
    (point,) = importlib.metadata.entry_points(group="tidegate.plugins", name="store-journal")
    assert point.load() is plugin
    assert is_supported(plugin.tidegate_plugin.spi_version)
    assert plugin.tidegate_plugin.summary


def test_a_store_is_made_without_touching_the_disk(tmp_path: Path) -> None:
    store = factory().create(StoreContext(tmp_path, "test"), JournalOptions())
    assert isinstance(store, MessageStore)
    assert factory().options_type is JournalOptions
    assert list(tmp_path.iterdir()) == []


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    context = StoreContext(tmp_path, "test")
    with pytest.raises(ConfigError):
        factory().create(context, JournalOptions(directory=""))
    with pytest.raises(TypeError):
        factory().create(context, object())
