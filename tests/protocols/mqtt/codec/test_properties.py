"""The table of properties against that of the specification."""

import pytest

from tidegate_protocols.mqtt.codec.codes import PacketType
from tidegate_protocols.mqtt.codec.properties import (
    NO_PROPERTIES,
    PROPERTIES,
    WILL,
    Properties,
    PropertyType,
)

#: MQTT 5.0 table 2-4: identifier, name, type, packets.
TABLE = """
1  | Payload Format Indicator          | Byte     | PUBLISH WILL
2  | Message Expiry Interval           | Four     | PUBLISH WILL
3  | Content Type                      | String   | PUBLISH WILL
8  | Response Topic                    | String   | PUBLISH WILL
9  | Correlation Data                  | Binary   | PUBLISH WILL
11 | Subscription Identifiers          | Variable | PUBLISH SUBSCRIBE
17 | Session Expiry Interval           | Four     | CONNECT CONNACK DISCONNECT
18 | Assigned Client Identifier        | String   | CONNACK
19 | Server Keep Alive                 | Two      | CONNACK
21 | Authentication Method             | String   | CONNECT CONNACK AUTH
22 | Authentication Data               | Binary   | CONNECT CONNACK AUTH
23 | Request Problem Information       | Byte     | CONNECT
24 | Will Delay Interval               | Four     | WILL
25 | Request Response Information      | Byte     | CONNECT
26 | Response Information              | String   | CONNACK
28 | Server Reference                  | String   | CONNACK DISCONNECT
31 | Reason String                     | String   | CONNACK PUBACK PUBREC PUBREL PUBCOMP SUBACK \
UNSUBACK DISCONNECT AUTH
33 | Receive Maximum                   | Two      | CONNECT CONNACK
34 | Topic Alias Maximum               | Two      | CONNECT CONNACK
35 | Topic Alias                       | Two      | PUBLISH
36 | Maximum QoS                       | Byte     | CONNACK
37 | Retain Available                  | Byte     | CONNACK
38 | User Properties                   | Pair     | CONNECT CONNACK PUBLISH WILL PUBACK PUBREC \
PUBREL PUBCOMP SUBSCRIBE SUBACK UNSUBSCRIBE UNSUBACK DISCONNECT AUTH
39 | Maximum Packet Size               | Four     | CONNECT CONNACK
40 | Wildcard Subscription Available   | Byte     | CONNACK
41 | Subscription Identifier Available | Byte     | CONNACK
42 | Shared Subscription Available     | Byte     | CONNACK
"""
TYPES = {
    "Byte": PropertyType.BYTE,
    "Two": PropertyType.TWO_BYTES,
    "Four": PropertyType.FOUR_BYTES,
    "Variable": PropertyType.VARIABLE,
    "String": PropertyType.STRING,
    "Binary": PropertyType.BINARY,
    "Pair": PropertyType.STRING_PAIR,
}
LINES = [
    [cell.strip() for cell in line.split("|")] for line in TABLE.strip().split("\n") if line.strip()
]


@pytest.mark.parametrize(
    ("identifier", "name", "kind", "packets"), LINES, ids=[line[1] for line in LINES]
)
def test_a_property_is_as_in_table_2_4(identifier, name, kind, packets):
    rule = PROPERTIES[int(identifier)]
    assert rule.name == name.lower().replace(" ", "_")
    assert rule.kind is TYPES[kind]
    places = {WILL if word == "WILL" else PacketType[word] for word in packets.split()}
    assert rule.places == places
    assert rule.repeats == (
        places if kind == "Pair" else {PacketType.PUBLISH} if kind == "Variable" else set()
    )


def test_every_property_has_a_field_and_every_field_a_property():
    assert len(LINES) == len(PROPERTIES) == 27
    assert {rule.name for rule in PROPERTIES.values()} == set(Properties.__struct_fields__)


def test_properties_show_what_is_there_but_no_authentication_data():
    shown = repr(Properties(topic_alias=0, authentication_data=b"secret", reason_string="why"))
    assert shown == "Properties(authentication_data=..., reason_string='why', topic_alias=0)"
    assert repr(NO_PROPERTIES) == "Properties()"
