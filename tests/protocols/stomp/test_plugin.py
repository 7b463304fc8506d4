"""The plugin module."""

from tidegate.spi import SPI_VERSION, PluginInfo
from tidegate_protocols.stomp import StompFrontEndFactory, StompOptions, plugin


def test_it_says_what_it_is():
    assert isinstance(plugin.tidegate_plugin, PluginInfo)
    assert plugin.tidegate_plugin.spi_version <= SPI_VERSION
    assert "STOMP" in plugin.tidegate_plugin.summary


def test_it_registers_the_factory():
    factory = plugin.register_front_end()
    assert isinstance(factory, StompFrontEndFactory)
    assert factory.options_type is StompOptions
    assert list(factory.transports) == ["tcp", "tls", "ws", "wss"]
    assert factory.default_port == 61613
