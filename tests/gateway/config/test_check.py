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


ADMIN = '[[listeners]]\nprotocol = "admin"\nbind = "127.0.0.1:0"\n'
MQTT = '[[listeners]]\nprotocol = "mqtt"\nbind = "127.0.0.1:0"\n'


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[broker]\nacknowledged_limit = "1gb"', "broker.acknowledged_limit"),
        ('[broker]\nacknowledged_body_max = "2mb"', "broker.acknowledged_body_max"),
        ('[broker]\nacknowledged_overflow = "discard_oldest"', "broker.acknowledged_overflow"),
        ("[broker]\nacknowledged_outcomes = []", "broker.acknowledged_outcomes"),
        ("[broker]\nacknowledged_age = 0", "broker.acknowledged_age"),
        ("[broker]\nid_cache_size = 0\npersist_id_cache = false", "broker.persist_id_cache"),
        ('[broker]\nid_cache_size = 0\nid_cache_limit = "1mb"', "broker.id_cache_limit"),
        ('[broker]\nlogin_delay = 0\nlogin_delay_max = "2s"', "broker.login_delay_max"),
        ("[broker]\nlogin_delay = 0\nlogin_failures_free = 7", "broker.login_failures_free"),
        ('[broker]\nlogin_delay = 0\nlogin_failures_age = "7s"', "broker.login_failures_age"),
        ('[broker]\nlogin_delay = 0\nlogin_failures_limit = "1mb"', "broker.login_failures_limit"),
        ('[broker]\nlogin_delay = "3s"\nlogin_delay_max = "2s"', "broker.login_delay_max"),
        (
            f'{MQTT}keep_alive_default = "10s"\nkeep_alive_max = "20s"',
            "listeners[0].keep_alive_default",
        ),
        (
            f'{ADMIN}metrics_destinations_max = 0\nmetrics_destinations_by = "name"',
            "listeners[0].metrics_destinations_by",
        ),
    ],
)
def test_an_option_that_another_one_leaves_without_effect_is_refused(text: str, key: str) -> None:
    with pytest.raises(ConfigError, match="has no effect") as refused:
        check(text)
    assert refused.value.key == key


@pytest.mark.parametrize(
    "text",
    [
        # What is switched off, with the rest as it is.
        "[broker]\nid_cache_size = 0",
        "[broker]\nlogin_delay = 0",
        '[broker]\nlogin_delay = "3s"\nlogin_delay_max = "4s"\nlogin_failures_free = 7',
        '[broker]\nid_cache_limit = "1mb"\npersist_id_cache = false',
        '[broker]\nacknowledged_age = 0\n[[sinks]]\nplugin = "flight"\nname = "f"\nkeep = "1h"',
        f'{MQTT}keep_alive_default = "10s"',
        f"{ADMIN}metrics_destinations_max = 0",
    ],
)
def test_options_that_have_one_are_taken(text: str) -> None:
    check(text)
