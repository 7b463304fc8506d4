"""Parts that cannot be built are found without building a gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.config import check_parts, parse_config, resolve
from tidegate.plugins import PluginHost
from tidegate.spi import ConfigError, PluginContractError

EVERYTHING_ELSE = """
[[listeners]]
protocol = "stomp"
bind = "127.0.0.1:0"
"""


def check(text: str) -> None:
    config = parse_config(text, path="tidegate.toml")
    check_parts(resolve(config, PluginHost()))


@pytest.mark.parametrize("protocol", ["stomp", "mqtt"])
def test_a_tls_listener_without_a_certificate_is_refused_by_name(protocol: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(
            f'{EVERYTHING_ELSE}\n[[listeners]]\nprotocol = "{protocol}"\n'
            'bind = "127.0.0.1:0"\ntransport = "tls"\n'
        )
    assert refused.value.key == "listeners[1].tls_certificate"
    assert refused.value.path == "tidegate.toml"


def test_a_configuration_whose_parts_can_be_built_passes_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(EVERYTHING_ELSE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_data_directory_of_another_user_is_no_fault_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    config = parse_config(f'{EVERYTHING_ELSE}\n[broker]\ndata_directory = "{tmp_path}"\n')
    resolved = resolve(config, PluginHost())
    place = tmp_path / "journal" if is_ours else tmp_path.parent / "elsewhere"

    def create(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(place))

    monkeypatch.setattr(type(resolved.store.factory), "create", create)
    with pytest.raises(PermissionError if is_ours else PluginContractError, match=str(place)):
        check_parts(resolved)


def test_a_store_that_contradicts_itself_is_refused_by_name() -> None:
    with pytest.raises(ConfigError) as refused:
        check(
            f'{EVERYTHING_ELSE}\n[store]\nplugin = "journal"\n'
            'checkpoint_interval = "60 s"\ncleanup_interval = "30 s"\n'
        )
    assert refused.value.key.startswith("store.")
