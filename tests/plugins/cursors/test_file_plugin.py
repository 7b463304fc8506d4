"""The entry point of the file cursor."""

from tidegate.spi import SPI_VERSION
from tidegate.testing._harness import plugin_factory
from tidegate_cursors import FileCursorFactory
from tidegate_cursors.file_plugin import tidegate_plugin


def test_the_entry_point_gives_the_factory() -> None:
    assert isinstance(plugin_factory("cursor-file", "register_cursor"), FileCursorFactory)


def test_it_states_the_contract_it_was_written_for() -> None:
    assert tidegate_plugin.spi_version == SPI_VERSION
    assert "file" in tidegate_plugin.summary
