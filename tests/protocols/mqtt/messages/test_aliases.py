"""Topic aliases in both directions."""

import pytest

from tidegate_protocols.mqtt import PacketViolationError, ReasonCode
from tidegate_protocols.mqtt.messages.aliases import AliasesIn, AliasesOut


def untold(size):
    raise AssertionError(f"short topics are not told, but {size} bytes are")


def test_long_topics_that_have_an_alias_count():
    told = []
    aliases = AliasesIn(16, told.append)
    for alias in range(1, 17):
        aliases.resolve("t" * 60_000, alias)
    assert len(told) == 16
    assert told[-1] >= 16 * 60_000
    aliases.resolve("short", 1)
    assert told[-1] < told[-2]


def test_an_alias_stands_for_the_topic_that_it_was_last_given():
    aliases = AliasesIn(2, untold)
    assert aliases.resolve("a", 1) == "a"
    assert aliases.resolve("b", 2) == "b"
    assert aliases.resolve("", 1) == "a"
    assert aliases.resolve("c", 1) == "c"
    assert [aliases.resolve("", 1), aliases.resolve("", 2)] == ["c", "b"]


@pytest.mark.parametrize(("alias_max", "alias"), [(0, 1), (2, 3), (2, 0)])
def test_an_alias_that_was_not_offered_is_invalid(alias_max, alias):
    with pytest.raises(PacketViolationError) as caught:  # 5.0:MQTT-3.3.2-9
        AliasesIn(alias_max, untold).resolve("a", alias)
    assert caught.value.wire_code == ReasonCode.TOPIC_ALIAS_INVALID


def test_an_alias_without_a_meaning_is_a_protocol_error():
    with pytest.raises(PacketViolationError) as caught:
        AliasesIn(2, untold).resolve("", 1)
    assert caught.value.wire_code == ReasonCode.PROTOCOL_ERROR


def test_towards_the_client_the_first_destinations_get_an_alias_for_good():
    aliases = AliasesOut(2)
    assert aliases.use("topic://a", b"\0\1a") == (b"\0\1a", 1)
    assert aliases.use("topic://a", b"\0\1a") == (b"\0\0", 1)
    assert aliases.use("topic://b", b"\0\1b") == (b"\0\1b", 2)
    for _ in range(2):
        assert aliases.use("topic://c", b"\0\1c") == (b"\0\1c", 0)
    assert aliases.use("topic://a", b"\0\1a") == (b"\0\0", 1)
