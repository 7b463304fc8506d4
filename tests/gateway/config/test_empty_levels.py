"""An empty level is a level: MQTT's ``a//b`` is ``a..b`` here, and every pattern of the configuration may name it."""

from __future__ import annotations

from pathlib import Path

from wire import StompClient

from tidegate.testing.embedded import EmbeddedGateway
from tidegate_bridge._names import Names
from tidegate_protocols.mqtt.messages.names import destination_of
from tidegate_sink_spark.staging.selection import check_pattern, covers


async def test_a_policy_and_an_access_rule_count_for_a_name_with_an_empty_level(
    tmp_path: Path,
) -> None:
    (tmp_path / "acl.toml").write_text(
        '[[rules]]\ndeny = "publish"\ndestinations = "queue://a..b"\n'
        '[[rules]]\nallow = ["connect", "publish", "subscribe", "consume", "create"]\n'
    )
    config = (
        '[[destinations]]\nmatch = "queue://a..b"\nmax_deliveries = 7\n'
        f'[[extensions]]\nplugin = "acl"\nrules = "{tmp_path / "acl.toml"}"\n'
    )
    async with EmbeddedGateway(config) as gateway:
        policy = gateway.gateway._broker.destinations.policy
        assert policy("queue://a..b").max_deliveries == 7
        assert policy("queue://a.b").max_deliveries != 7
        client = await StompClient.connect(gateway.stomp_port)
        client.send("SEND", b"x", destination="/queue/a.b", receipt="1")
        await client.receipt("1")
        client.send("SEND", b"x", destination="/queue/a..b", receipt="2")
        refused = await client.receive()
        assert refused.command == "ERROR"
        assert "publish is not allowed" in refused.headers["message"]
        await client.aclose()


def test_a_sink_and_a_bridge_take_such_a_name() -> None:
    check_pattern("a..b", "include")
    assert destination_of("a//b") == "topic://a..b"
    assert covers(("topic://a..b",), "topic://a..b")
    names = Names("a//#", "topic://a..>", is_in=True, is_mqtt=True)
    assert names.arriving("a//b") == "topic://a..b"
    assert names.leaving("topic://a..b") == "a//b"
