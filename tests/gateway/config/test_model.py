"""Which policy a destination has, and what follows from it."""

import dataclasses

import pytest

from tidegate.config import DEFAULT_POLICY, BrokerConfig, Config, DestinationPolicy, policy_for


def test_the_first_policy_in_file_order_that_covers_a_destination_wins() -> None:
    narrow = DestinationPolicy(match="orders.eu")
    wide = DestinationPolicy(match="orders.>")
    assert policy_for([narrow, wide], "queue://orders.eu") is narrow
    assert policy_for([wide, narrow], "queue://orders.eu") is wide
    assert policy_for([narrow, wide], "topic://orders.us") is wide
    assert policy_for([narrow, wide], "queue://other") is DEFAULT_POLICY


@pytest.mark.parametrize(
    ("match", "destination", "covered"),
    [
        ("orders.>", "queue://orders.eu.new", True),
        ("orders.>", "queue://orders", True),
        ("orders.*", "queue://orders.eu.new", False),
        ("queue://orders.>", "queue://orders.eu", True),
        ("queue://orders.>", "topic://orders.eu", False),
        ("topic://>", "topic://anything", True),
        ("topic://>", "queue://anything", False),
        (">", "topic://$SYS.uptime", True),
        ("*.uptime", "topic://$SYS.uptime", True),
        ("$SYS.>", "topic://$SYS.uptime", True),
        ("orders.>", "topic://orders.*", True),  # a subscription's filter is matched as a name
        ("orders.>", "topic://orders.>", True),
        ("orders.*", "topic://orders.>", True),
    ],
)
def test_a_policy_covers_what_its_pattern_says(match: str, destination: str, covered: bool) -> None:
    assert DestinationPolicy(match=match).covers(destination) is covered


def test_the_dead_letter_queue_is_named_by_the_template() -> None:
    assert DEFAULT_POLICY.dead_letter_queue("topic://a.b") == "queue://DLQ.a.b"
    shared = DestinationPolicy(match=">", dead_letter="dead")
    assert shared.dead_letter_queue("queue://a") == "queue://dead"
    odd = DestinationPolicy(match=">", dead_letter="x.{name}.{name}")
    assert odd.dead_letter_queue("queue://{name}") == "queue://x.{name}.{name}"


def test_the_embedded_default_is_what_the_documents_promise() -> None:
    config = Config()
    listeners = [(listener.protocol, listener.bind) for listener in config.listeners]
    assert listeners == [("stomp", "127.0.0.1:61613"), ("mqtt", "127.0.0.1:1883")]
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
