"""MQTT 5.0 packets on their way out: reasons, and what a client's packet limit leaves of them."""

import pytest

from tidegate.spi import LocalProtocolError
from tidegate_protocols.mqtt import (
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Unsuback,
    encode,
)
from tidegate_protocols.mqtt.codec.encode_v5 import encode_v5, encode_within
from tidegate_protocols.mqtt.codec.packets import Auth
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, Properties

R = ReasonCode
BOTH = Properties(reason_string="why", user_properties=(("k", "v"),))
WHY = Properties(reason_string="why")


def _answer(packet: Packet, *numbers: str):
    clauses = [f"5.0:MQTT-{number}" for number in numbers]
    return pytest.param(packet, id=type(packet).__name__, marks=pytest.mark.mqtt_clause(*clauses))


#: Every packet of a server that can have a reason string, with what asks to leave it out.
ANSWERS = [
    _answer(Connack(False, R.BANNED, BOTH), "3.2.2-19", "3.2.2-20"),
    _answer(Puback(1, R.QUOTA_EXCEEDED, BOTH), "3.4.2-2", "3.4.2-3"),
    _answer(Pubrec(1, R.QUOTA_EXCEEDED, BOTH), "3.5.2-2", "3.5.2-3"),
    _answer(Pubrel(1, R.PACKET_IDENTIFIER_NOT_FOUND, BOTH), "3.6.2-2", "3.6.2-3"),
    _answer(Pubcomp(1, R.PACKET_IDENTIFIER_NOT_FOUND, BOTH), "3.7.2-2", "3.7.2-3"),
    _answer(Suback(1, (R.GRANTED_QOS_1,), BOTH), "3.9.2-1", "3.9.2-2"),
    _answer(Unsuback(1, (R.SUCCESS,), BOTH), "3.11.2-1", "3.11.2-2"),
    _answer(Disconnect(R.SERVER_BUSY, BOTH), "3.14.2-3", "3.14.2-4"),
]


def with_properties(packet, properties):
    fields = {name: getattr(packet, name) for name in packet.__struct_fields__}
    return type(packet)(**(fields | {"properties": properties}))


@pytest.mark.parametrize("packet", ANSWERS)
def test_an_answer_drops_user_properties_and_then_its_reason_string_to_fit(packet):
    full, shorter, bare = (
        encode_v5(with_properties(packet, properties)) for properties in (BOTH, WHY, NO_PROPERTIES)
    )
    assert len(full) > len(shorter) > len(bare)
    assert encode_within(packet, len(full)) == full
    assert encode_within(packet, len(full) - 1) == shorter
    assert encode_within(packet, len(shorter)) == shorter
    assert encode_within(packet, len(shorter) - 1) == bare
    assert encode_within(packet, len(bare)) == bare
    assert encode_within(packet, len(bare) - 1) == b""


@pytest.mark.mqtt_clause("5.0:MQTT-3.15.2-2", "5.0:MQTT-3.15.2-3")
def test_auth_drops_what_it_can_and_keeps_its_method():
    method = Properties(authentication_method="m")
    packet = Auth(
        R.CONTINUE_AUTHENTICATION,
        Properties(authentication_method="m", reason_string="r", user_properties=(("k", "v"),)),
    )
    assert encode_within(packet, 9) == encode_v5(Auth(R.CONTINUE_AUTHENTICATION, method))


@pytest.mark.mqtt_clause("5.0:MQTT-3.1.2-24")
def test_a_publish_that_is_too_large_is_not_sent_and_loses_nothing():
    packet = Publish("t", b"x", properties=Properties(user_properties=(("k", "v"),)))
    size = len(encode_v5(packet))
    assert encode_within(packet, size) == encode_v5(packet)
    assert encode_within(packet, size - 1) == b""
    assert encode_within(packet, size, with_problems=False) == encode_v5(packet)


@pytest.mark.mqtt_clause("5.0:MQTT-3.1.2-29")
@pytest.mark.parametrize("packet", ANSWERS)
def test_without_problem_information_only_connack_and_disconnect_say_more(packet):
    stays = isinstance(packet, Connack | Disconnect)
    wanted = packet if stays else with_properties(packet, NO_PROPERTIES)
    assert encode_within(packet, 1000, with_problems=False) == encode_v5(wanted)


def test_what_has_nothing_to_drop_is_sent_or_not():
    assert encode_within(Pingreq(), 2) == b"\xc0\x00"
    assert encode_within(Pingreq(), 1) == b""


@pytest.mark.mqtt_clause(
    "5.0:MQTT-3.2.2-8",
    "5.0:MQTT-3.4.2-1",
    "5.0:MQTT-3.9.3-2",
    "5.0:MQTT-3.11.3-2",
    "5.0:MQTT-3.14.2-1",
)
@pytest.mark.parametrize(
    "packet",
    [
        Connack(False, 5),
        Connack(False, R.KEEP_ALIVE_TIMEOUT),
        Puback(1, R.MALFORMED_PACKET),
        Suback(1, (R.GRANTED_QOS_0, R.NO_SUBSCRIPTION_EXISTED)),
        Unsuback(1, (R.GRANTED_QOS_1,)),
        Disconnect(R.BANNED),
    ],
    ids=repr,
)
def test_a_reason_that_the_packet_cannot_carry_is_our_mistake(packet):
    with pytest.raises(LocalProtocolError, match="cannot carry reason"):
        encode_v5(packet)


@pytest.mark.parametrize(
    "packet",
    [
        Publish("", b""),
        Publish("a/#", b""),
        Publish("t\0", b""),
        Publish("t" * 65_536, b""),
        Puback(1, R.SUCCESS, Properties(content_type="c")),
        Disconnect(R.SUCCESS, Properties(reason_string="\ud800")),
    ],
    ids=["no topic", "wildcard", "U+0000", "topic too long", "wrong property", "surrogate"],
)
def test_what_the_protocol_does_not_allow_is_our_mistake(packet):
    with pytest.raises(LocalProtocolError):
        encode(packet, 5)
