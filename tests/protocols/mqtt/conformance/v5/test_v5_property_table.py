"""Which packet of a client may have which property (MQTT 5.0, table 2-4), all of them."""

import pytest
from mqtt_clauses import proves
from mqtt_raw import (
    CONNACK,
    DISCONNECT,
    PROPERTIES,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    packet,
    properties,
    text,
    two,
)

VALUES = {
    "byte": 1,
    "two": 1,
    "four": 1,
    "variable": 1,
    "text": "a",
    "binary": b"a",
    "pair": ("a", "b"),
}

MESSAGE = {"payload_format", "message_expiry", "content_type", "response_topic", "correlation_data"}
ALLOWED = {
    "CONNECT": {
        "session_expiry", "auth_method", "auth_data", "request_problem", "request_response",
        "receive_maximum", "topic_alias_maximum", "user_property", "maximum_packet_size",
    },
    "will": MESSAGE | {"will_delay", "user_property"},
    "PUBLISH": MESSAGE | {"subscription_id", "topic_alias", "user_property"},
    "PUBACK": {"reason_string", "user_property"},
    "PUBREC": {"reason_string", "user_property"},
    "PUBREL": {"reason_string", "user_property"},
    "PUBCOMP": {"reason_string", "user_property"},
    "SUBSCRIBE": {"subscription_id", "user_property"},
    "UNSUBSCRIBE": {"user_property"},
    "DISCONNECT": {"session_expiry", "server_reference", "reason_string", "user_property"},
    "AUTH": {"auth_method", "auth_data", "reason_string", "user_property"},
}  # fmt: skip

#: Allowed by the table, but not to a client, or not in the way that one alone is written here.
OTHERWISE_WRONG = {
    ("PUBLISH", "subscription_id"),  # [MQTT-3.3.4-6]
    ("DISCONNECT", "server_reference"),  # only a server sends it
    ("CONNECT", "auth_method"),  # tests of authentication have it
    ("CONNECT", "auth_data"),  # needs a method
}


def request(kind, name, block):
    """The packet with this property block, otherwise in order."""
    connect = text("MQTT") + b"\x05"
    if kind == "CONNECT":
        return packet(0x10, connect + b"\x02" + two(0) + block + text(name))
    if kind == "will":
        rest = block + text("will") + text(b"")
        return packet(0x10, connect + b"\x06" + two(0) + b"\x00" + text(name) + rest)
    acks = {"PUBACK": PUBACK, "PUBREC": PUBREC, "PUBREL": PUBREL, "PUBCOMP": PUBCOMP}
    if kind in acks:
        first = acks[kind] << 4 | (2 if kind == "PUBREL" else 0)
        return packet(first, two(1) + b"\x00" + block)
    return {
        "PUBLISH": packet(0x30, text(name) + block),
        "SUBSCRIBE": packet(0x82, two(1) + block + text(name) + b"\x00"),
        "UNSUBSCRIBE": packet(0xA2, two(1) + block + text(name)),
        "DISCONNECT": packet(0xE0, b"\x00" + block),
        "AUTH": packet(0xF0, b"\x19" + block),
    }[kind]


def outcome(dial, kind, name, block):
    """The reason that ends the connection, None when it goes on."""
    before = kind in ("CONNECT", "will")
    client = dial(V5) if before else dial(V5, connect=name, session_expiry=10)
    client.send(request(kind, name, block))
    if before:
        answer = client.receive(CONNACK)
        if answer.code:
            assert client.is_closed()
        client.close()
        return answer.code or None
    client.send(packet(0xC0))
    while raw := client.receive_raw():
        if raw[0] >> 4 == DISCONNECT:
            assert client.is_closed()
            client.close()
            return raw[2]
        if raw[0] == 0xD0:
            break
    client.close()
    return None


@pytest.mark.parametrize("kind", ALLOWED)
@proves("5.0", "4.13.1-1 3.1.4-1 4.13.2-1")
def test_a_property_that_the_packet_does_not_have_is_refused(dial, name, kind):
    for prop, (_, form) in PROPERTIES.items():
        if prop in ALLOWED[kind]:
            continue
        found = outcome(dial, kind, name, properties(**{prop: VALUES[form]}))
        assert found == 0x81, prop


@pytest.mark.parametrize("kind", sorted(set(ALLOWED) - {"AUTH", "PUBREC", "PUBACK", "PUBCOMP"}))
def test_a_property_that_the_packet_may_have_is_taken(dial, name, kind):
    for prop in sorted(ALLOWED[kind]):
        if (kind, prop) in OTHERWISE_WRONG:
            continue
        value = VALUES[PROPERTIES[prop][1]]
        if prop == "maximum_packet_size":
            value = 1000
        assert outcome(dial, kind, name, properties(**{prop: value})) is None, prop


@pytest.mark.parametrize("kind", ALLOWED)
@proves("5.0", "4.13.1-1")
def test_a_property_twice_is_refused_unless_it_is_a_user_property(dial, name, kind):
    for prop in sorted(ALLOWED[kind] - {"user_property"}):
        value = VALUES[PROPERTIES[prop][1]]
        found = outcome(dial, kind, name, properties(**{prop: [value, value]}))
        assert found == 0x82, prop


@pytest.mark.parametrize("kind", sorted(set(ALLOWED) - {"AUTH", "PUBREC", "PUBACK", "PUBCOMP"}))
def test_user_properties_may_come_many_times(dial, name, kind):
    block = properties(user_property=[("a", "b")] * 50)
    assert outcome(dial, kind, name, block) is None


@pytest.mark.parametrize("kind", ALLOWED)
@pytest.mark.parametrize(
    "block",
    [
        b"\x02\x7f\x00",
        b"\x02\x00\x00",
        b"\x01\x26",
        b"\x05\x26\x00\x05ab",
        b"\x7f",
        b"\xff\xff\xff\xff\x7f",
    ],
    ids=["unknown", "number 0", "no value", "cut off", "too long", "length of five bytes"],
)
@proves("5.0", "4.13.1-1 3.1.4-1")
def test_a_property_block_that_cannot_be_read_is_malformed(dial, name, kind, block):
    assert outcome(dial, kind, name, block) == 0x81
