"""The entry point of the vm cursor."""

from tidegate.spi import SPI_VERSION
from tidegate.testing._harness import plugin_factory
from tidegate_cursors import VmCursorFactory
from tidegate_cursors.vm_plugin import tidegate_plugin


def test_the_entry_point_gives_the_factory() -> None:
    assert isinstance(plugin_factory("cursor-vm", "register_cursor"), VmCursorFactory)


def test_it_states_the_contract_it_was_written_for() -> None:
    assert tidegate_plugin.spi_version == SPI_VERSION
    assert "vm" in tidegate_plugin.summary
