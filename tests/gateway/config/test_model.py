"""The values that a configuration is read into."""

import dataclasses

import pytest

from tidegate.config import DEFAULT_POLICY, BrokerConfig, Config


def test_the_embedded_default_is_what_the_documents_promise() -> None:
    config = Config()
    listeners = [(listener.protocol, listener.bind) for listener in config.listeners]
    assert listeners == [
        ("stomp", "127.0.0.1:61613"),
        ("mqtt", "127.0.0.1:1883"),
        ("admin", "127.0.0.1:8161"),
    ]
    assert config.store.plugin == "journal"
    assert str(config.broker.data_directory) == "tidegate-data"
    assert DEFAULT_POLICY.cursor == "store"
    assert config.broker.persistent


@pytest.mark.parametrize("value", [Config(), BrokerConfig(), DEFAULT_POLICY, Config().store])
def test_configuration_values_cannot_be_changed(value: object) -> None:
    name = dataclasses.fields(value)[0].name  # type: ignore[arg-type]  # each of them is one
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, "changed")


def test_the_options_kept_for_a_plugin_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        Config().store.options["x"] = 1  # type: ignore[index]  # that is the point
