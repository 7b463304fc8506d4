"""The entry point."""

from importlib.metadata import entry_points

import pytest

from tidegate.spi import SPI_VERSION, Authenticator, ConfigError
from tidegate_auth_jwt import plugin
from tidegate_auth_jwt._authenticator import JwtOptions


def test_the_entry_point_names_this_module():
    (point,) = entry_points(group="tidegate.plugins", name="extension-auth-jwt")
    assert point.load() is plugin
    assert plugin.tidegate_plugin.spi_version <= SPI_VERSION


def test_the_factory_makes_an_authenticator_of_its_options(jwks):
    factory = plugin.register_extension()
    assert factory.options_type is JwtOptions
    assert isinstance(factory.create(JwtOptions(jwks, "i", ("a",))), Authenticator)


def test_options_of_somebody_else_are_a_bug():
    with pytest.raises(TypeError, match="JwtOptions"):
        plugin.JwtFactory().create(object())


def test_a_wrong_file_is_found_when_the_configuration_is_checked(tmp_path):
    with pytest.raises(ConfigError, match="none"):
        plugin.JwtFactory().create(JwtOptions(tmp_path / "none", "i", ("a",)))
