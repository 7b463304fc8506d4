"""What the options mean together; what is wrong is an error that names the key and says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.config import options_set
from tidegate.members import problem_of, product_of
from tidegate.spi import ConfigError, ExtensionFactory, Resident, parse_options
from tidegate_bridge._options import BridgeOptions, Direction, checked
from tidegate_bridge.plugin import BridgeFactory, register_extension

RULE = {"name": "a", "direction": "in", "remote": "/queue/a", "local": "queue://a"}
MQTT = {**RULE, "remote": "a"}


def options(rules: object = None, **table: object) -> BridgeOptions:
    whole = {"name": "old", "remote": "stomp://broker", "rules": [RULE] if rules is None else rules}
    return parse_options(BridgeOptions, whole | table)


def test_it_is_what_the_host_asks() -> None:
    made = BridgeFactory().create(options())
    assert problem_of(made, product_of(ExtensionFactory)) == ""
    assert isinstance(made, Resident)
    assert isinstance(register_extension(), BridgeFactory)
    assert repr(made) == "bridge old"
    with pytest.raises(TypeError):
        BridgeFactory().create(object())


def test_ports_are_those_of_the_protocols() -> None:
    for scheme, port in (("stomp", 61613), ("stomps", 61614), ("mqtt", 1883), ("mqtts", 8883)):
        rule = MQTT if scheme.startswith("mqtt") else RULE
        found = checked(options([rule], remote=f"{scheme}://broker"))
        assert (found.host, found.port, found.is_mqtt) == ("broker", port, scheme[0] == "m")
    assert checked(options(remote="stomp://[::1]:7")).port == 7


def test_a_rule_is_read_as_the_table_that_it_is() -> None:
    found = options([RULE | {"direction": "out", "headers": {"x": "y"}}])
    assert found.rules[0].direction is Direction.OUT
    assert found.rules[0].headers == {"x": "y"}
    assert options_set(found)["rules"] == (
        '[{ "name" = "a", "direction" = "out", "remote" = "/queue/a", "local" = "queue://a", "headers" = { "x" = "y" } }]'
    )


@pytest.mark.parametrize(
    ("rules", "key", "says"),
    [
        ([RULE, {**RULE, "loca": "x"}], "rules[1].loca", "did you mean 'local'"),
        ([{"name": "a"}], "rules[0].direction", "missing"),
        ([{**RULE, "direction": "up"}], "rules[0].direction", "'in', 'out'"),
        (["a"], "rules", "not a table"),
    ],
)
def test_a_misspelt_rule_is_named(rules: object, key: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(rules)
    assert caught.value.key == key
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("table", "key", "says"),
    [
        ({"name": "a b"}, "name", "letters"),
        ({"remote": "http://broker"}, "remote", "stomp://HOST:PORT"),
        ({"remote": "stomp://"}, "remote", "none of"),
        ({"remote": "stomp://broker:x"}, "remote", "broker:x"),
        ({"remote": "stomp://me:secret@broker"}, "remote", "password_file"),
        ({"remote": "stomp://broker/x"}, "remote", "none of"),
        ({"principal": "anonymous"}, "principal", "somebody"),
        ({"reconnect_min": "9s", "reconnect_max": "1s"}, "reconnect_max", "at least"),
        ({"tls_ca": "/x"}, "tls_ca", "stomps://"),
        ({"remote": "stomps://broker", "tls_ca": "/none"}, "tls_ca", "PEM"),
        ({"remote": "stomps://broker", "tls_certificate": "/none"}, "tls_certificate", "cannot be read"),
        ({"mqtt_version": "3.1.1"}, "mqtt_version", "no effect"),
        ({"remote": "mqtt://broker", "rules": [MQTT], "virtual_host": "v"}, "virtual_host", "no effect"),
        ({"password_file": "/x"}, "password_file", "user"),
        ({"user": "me", "password_file": "/none"}, "password_file", "cannot be read"),
        ({"rules": [RULE, RULE]}, "rules[1].name", "another rule"),
        ({"rules": [{**RULE, "name": ""}]}, "rules.name", "letters"),
        ({"rules": [{**RULE, "local": "a"}]}, "rules[0].local", "queue://NAME"),
        ({"rules": [{**RULE, "local": "queue://a.>b"}]}, "rules[0].local", "wildcard"),
        ({"rules": [{**RULE, "local": "queue://a.*"}]}, "rules[0].local", "wildcard"),
        ({"rules": [{**RULE, "local": "queue://a.>"}]}, "rules[0].remote", "wildcard"),
        ({"rules": [{**RULE, "remote": ""}]}, "rules[0].remote", "name a destination"),
        ({"rules": [{**RULE, "durable": "d"}]}, "rules[0].durable", "topics"),
        ({"rules": [{**RULE, "jms_type": "text"}]}, "rules[0].jms_type", "out"),
        ({"remote": "mqtt://broker"}, "rules[0].remote", "no MQTT topic"),
        ({"remote": "mqtt://b", "rules": [{**MQTT, "selector": "x=1"}]}, "rules[0].selector", "no selectors"),
        ({"remote": "mqtt://b", "rules": [{**MQTT, "headers": {"a": "b"}}]}, "rules[0].headers", "no effect"),
        (
            {"remote": "mqtt://b", "rules": [{**MQTT, "direction": "out", "remote": "a/+"}]},
            "rules[0].remote",
            "one topic",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_what_to_do(
    table: dict[str, object], key: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        BridgeFactory().create(options(**table))
    assert caught.value.key == key
    assert says in str(caught.value)


def test_a_password_is_of_one_line_and_of_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("geheim\n")
    file.chmod(0o600)
    table = {"user": "me", "password_file": str(file)}
    found = checked(options(**table))
    assert found.password == "geheim"
    assert "geheim" not in repr(found)
    file.write_text("two\nlines")
    with pytest.raises(ConfigError, match="one line"):
        checked(options(**table))


def both_ways(there: str, local: str, **more: object) -> BridgeOptions:
    one = {"name": "a", "direction": "in", "remote": there, "local": local}
    return options([one, {**one, "name": "b", "direction": "out"}], **more)


def test_a_queue_is_bridged_one_way_only() -> None:
    with pytest.raises(ConfigError, match="for ever"):
        checked(both_ways("/queue/a", "queue://a"))
    with pytest.raises(ConfigError, match="for ever"):
        checked(both_ways("/topic/a", "queue://a"))
    with pytest.raises(ConfigError, match="for ever"):
        checked(both_ways("/queue/a.>", "queue://a.>"))


def test_a_topic_may_be_bridged_both_ways_where_there_are_headers() -> None:
    assert checked(both_ways("/topic/a", "topic://a")).is_echoed == (True, True)
    assert checked(options()).is_echoed == (False,)
    mqtt = {"remote": "mqtt://broker"}
    assert checked(both_ways("a/#", "topic://a.>", **mqtt)).is_echoed == (True, True)
    with pytest.raises(ConfigError, match=r"3\.1\.1"):
        checked(both_ways("a/#", "topic://a.>", **mqtt, mqtt_version="3.1.1"))
