"""The entry point module."""

import importlib.metadata

from tidegate.spi import ENTRY_POINT_GROUP, SPI_VERSION
from tidegate_protocols.mqtt import MqttFrontEndFactory, plugin


def test_the_entry_point_names_this_module():
    (entry_point,) = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name="protocol-mqtt")
    assert entry_point.load() is plugin


def test_it_says_what_it_is_and_which_contract_it_was_written_for():
    assert plugin.tidegate_plugin.spi_version <= SPI_VERSION
    assert "MQTT" in plugin.tidegate_plugin.summary


def test_it_registers_the_front_end():
    assert isinstance(plugin.register_front_end(), MqttFrontEndFactory)
    assert hasattr(plugin.register_front_end, "tidegate_impl")  # pluggy's mark
