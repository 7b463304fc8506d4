"""The entry point of the store cursor."""

from tidegate.spi import SPI_VERSION
from tidegate.testing._harness import plugin_factory
from tidegate_cursors import StoreCursorFactory
from tidegate_cursors.store_plugin import tidegate_plugin


def test_the_entry_point_gives_the_factory() -> None:
    assert isinstance(plugin_factory("cursor-store", "register_cursor"), StoreCursorFactory)


def test_it_states_the_contract_it_was_written_for() -> None:
    assert tidegate_plugin.spi_version == SPI_VERSION
    assert "store" in tidegate_plugin.summary
