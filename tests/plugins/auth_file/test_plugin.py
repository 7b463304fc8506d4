"""The entry point."""

from importlib.metadata import entry_points

import pytest

from tidegate.spi import SPI_VERSION, Authenticator, ConfigError
from tidegate_auth_file import plugin
from tidegate_auth_file._authenticator import AuthFileOptions


def test_the_entry_point_names_this_module():
    (point,) = entry_points(group="tidegate.plugins", name="extension-auth-file")
    assert point.load() is plugin
    assert plugin.tidegate_plugin.spi_version <= SPI_VERSION


def test_the_factory_makes_an_authenticator_of_its_options(users_file, line):
    factory = plugin.register_extension()
    assert factory.options_type is AuthFileOptions
    made = factory.create(AuthFileOptions(users_file(line("alice", "a"))))
    assert isinstance(made, Authenticator)


def test_options_of_somebody_else_are_a_bug():
    with pytest.raises(TypeError, match="AuthFileOptions"):
        plugin.AuthFileFactory().create(object())


def test_a_wrong_file_is_found_when_the_configuration_is_checked(tmp_path):
    with pytest.raises(ConfigError, match="none"):
        plugin.AuthFileFactory().create(AuthFileOptions(tmp_path / "none"))
