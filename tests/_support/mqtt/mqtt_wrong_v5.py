"""Packets of MQTT 5.0 that are wrong, or that one side may not send, as in mqtt_cases.py."""

from __future__ import annotations

from typing import Final

from mqtt_cases import Forbidden, Refused
from mqtt_cases_v5 import clauses_of

from tidegate_protocols.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    TopicRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from tidegate_protocols.mqtt.codec.packets import Auth
from tidegate_protocols.mqtt.codec.properties import Properties

R = ReasonCode

HEAD: Final = b"\x00\x04MQTT\x05"  # protocol name, level
TAIL: Final = b"\x00\x00\x00\x00\x01c"  # keep-alive 0, no properties, client id "c"
TYPE: Final = "MQTT 5.0 2.2.2.2"  # a property that its packet may not have, or twice
ENDS: Final = "MQTT 5.0 1.5.4"  # a field is longer than its packet
BLOCK: Final = "MQTT 5.0 2.2.2.1"  # a property is longer than the property length
LENGTH: Final = "MQTT 5.0 2.1.4"  # bytes behind the last field


def _m(name: str, clause: str, *parts: bytes, also: tuple[str, ...] = ()) -> Refused:
    return Refused(name, parts, clause, 0x81, 5, clauses_of(*also))


def _v(name: str, clause: str, *parts: bytes, reason: int = 0x82) -> Refused:
    return Refused(name, parts, clause, reason, 5)


def _connect(name: str, clause: str, properties: bytes, make=_m) -> Refused:
    head = HEAD + b"\x02\x00\x00"
    return make(name, clause, b"\x10", head, bytes((len(properties),)), properties, b"\0\1c")


def _connack(name: str, clause: str, properties: bytes, make=_m) -> Refused:
    return make(name, clause, b"\x20", b"\0\0", bytes((len(properties),)), properties)


def _publish(name: str, clause: str, properties: bytes, make=_m) -> Refused:
    return make(name, clause, b"\x30", b"\0\1t", bytes((len(properties),)), properties, b"body")


MALFORMED: Final = [
    _m("5.0: packet type 0", "MQTT 5.0 2.1.2", b"\x00"),
    # Flags of the fixed header that must be 0, and those that must be 0010.
    _m("5.0: CONNACK with flags", "5.0:MQTT-2.1.3-1", b"\x21", b"\0\0\0"),
    _m("5.0: PUBACK with flags", "5.0:MQTT-2.1.3-1", b"\x41", b"\0\1"),
    _m("5.0: PUBREC with flags", "5.0:MQTT-2.1.3-1", b"\x52", b"\0\1"),
    _m("5.0: PUBREL without flags", "5.0:MQTT-3.6.1-1", b"\x60", b"\0\1"),
    _m("5.0: PUBREL with DUP", "5.0:MQTT-3.6.1-1", b"\x6a", b"\0\1"),
    _m("5.0: PUBCOMP with flags", "5.0:MQTT-2.1.3-1", b"\x78", b"\0\1"),
    _m("5.0: SUBSCRIBE without flags", "5.0:MQTT-3.8.1-1", b"\x80", b"\0\1\0\0\1a\0"),
    _m("5.0: UNSUBSCRIBE without flags", "5.0:MQTT-3.10.1-1", b"\xa0", b"\0\1\0\0\1a"),
    _m("5.0: PINGREQ with flags", "5.0:MQTT-2.1.3-1", b"\xc1"),
    _m("5.0: DISCONNECT with flags", "5.0:MQTT-3.14.1-1", b"\xe2"),
    _m("5.0: AUTH with flags", "5.0:MQTT-3.15.1-1", b"\xf1"),
    # CONNECT
    _m("5.0: CONNECT without properties", "MQTT 5.0 1.5.5", b"\x10", HEAD, b"\x02\0\0"),
    _m("5.0: the reserved connect flag", "5.0:MQTT-3.1.2-3", b"\x10", HEAD, b"\x03", TAIL),
    _m("5.0: will QoS without will", "5.0:MQTT-3.1.2-11", b"\x10", HEAD, b"\x0a", TAIL),
    _m("5.0: will retain without will", "5.0:MQTT-3.1.2-13", b"\x10", HEAD, b"\x22", TAIL),
    _m(
        "5.0: will QoS 3",
        "5.0:MQTT-3.1.2-12",
        b"\x10",
        HEAD,
        b"\x1e",
        TAIL,
        b"\0\0\1w\0\1m",
    ),
    _m("5.0: no client id", ENDS, b"\x10", HEAD, b"\x02\0\0\0", also=("3.1.3-3",)),
    _m("5.0: a client id cut short", ENDS, b"\x10", HEAD, b"\x02\0\0\0\0\5c"),
    _m(
        "5.0: a client id not UTF-8",
        "5.0:MQTT-1.5.4-1",
        b"\x10",
        HEAD,
        b"\x02\0\0\0\0\1\xff",
        also=("3.1.3-4",),
    ),
    _m("5.0: a client id with U+0000", "5.0:MQTT-1.5.4-2", b"\x10", HEAD, b"\x02\0\0\0\0\1\0"),
    _m(
        "5.0: a will flag without will properties",
        "MQTT 5.0 1.5.5",
        b"\x10",
        HEAD,
        b"\x06",
        TAIL,
        also=("3.1.2-9",),
    ),
    _m(
        "5.0: a will flag without will topic",
        ENDS,
        b"\x10",
        HEAD,
        b"\x06",
        TAIL,
        b"\0",
        also=("3.1.2-9",),
    ),
    _m(
        "5.0: a will flag without will payload",
        ENDS,
        b"\x10",
        HEAD,
        b"\x06",
        TAIL,
        b"\0\0\1w",
        also=("3.1.2-9",),
    ),
    _m(
        "5.0: a will topic not UTF-8",
        "5.0:MQTT-1.5.4-1",
        b"\x10",
        HEAD,
        b"\x06",
        TAIL,
        b"\0\0\1\x80\0\0",
        also=("3.1.3-11",),
    ),
    _m("5.0: a user flag without user", ENDS, b"\x10", HEAD, b"\x82", TAIL, also=("3.1.2-17",)),
    _m(
        "5.0: a user name not UTF-8",
        "5.0:MQTT-1.5.4-1",
        b"\x10",
        HEAD,
        b"\x82",
        TAIL,
        b"\0\1\xff",
        also=("3.1.3-12",),
    ),
    _m(
        "5.0: a user name without its flag",
        LENGTH,
        b"\x10",
        HEAD,
        b"\x02",
        TAIL,
        b"\0\1u",
        also=("3.1.2-16", "3.1.2-18"),
    ),
    _m(
        "5.0: a password flag without password",
        ENDS,
        b"\x10",
        HEAD,
        b"\x42",
        TAIL,
        also=("3.1.2-19",),
    ),
    _m(
        "5.0: a property of a message in the properties of CONNECT",
        TYPE,
        b"\x10",
        HEAD,
        b"\x02\0\0",
        b"\x02\x01\x01",
        b"\0\1c",
    ),
    _m(
        "5.0: will delay in the properties of CONNECT",
        TYPE,
        b"\x10",
        HEAD,
        b"\x02\0\0",
        b"\x05\x18\0\0\0\1",
        b"\0\1c",
    ),
    _m(
        "5.0: receive maximum in the properties of the will",
        TYPE,
        b"\x10",
        HEAD,
        b"\x06",
        TAIL,
        b"\x03\x21\0\1",
        b"\0\1w\0\1m",
    ),
    # CONNACK
    _m("5.0: CONNACK of two bytes", "MQTT 5.0 3.2.2", b"\x20", b"\0\0"),
    _m("5.0: a reserved CONNACK flag", "5.0:MQTT-3.2.2-1", b"\x20", b"\x02\0\0"),
    _m("5.0: CONNACK with a return code of 3.1.1", "5.0:MQTT-3.2.2-8", b"\x20", b"\0\5\0"),
    _m("5.0: CONNACK with a reason of DISCONNECT", "5.0:MQTT-3.2.2-8", b"\x20", b"\0\x8b\0"),
    _m("5.0: bytes behind CONNACK", LENGTH, b"\x20", b"\0\0\0x"),
    _connack("5.0: a topic alias in CONNACK", TYPE, b"\x23\0\1"),
    # PUBLISH
    _m("5.0: PUBLISH with QoS 3", "5.0:MQTT-3.3.1-4", b"\x36", b"\0\1a\0\1\0"),
    _m("5.0: PUBLISH of no bytes", "5.0:MQTT-3.3.2-1", b"\x30"),
    _m("5.0: PUBLISH of one byte", "5.0:MQTT-3.3.2-1", b"\x30", b"\0"),
    _m("5.0: a topic cut short", "5.0:MQTT-3.3.2-1", b"\x30", b"\0\5a\0"),
    _m("5.0: PUBLISH without property length", "5.0:MQTT-3.3.2-1", b"\x30", b"\0\1a"),
    _m("5.0: QoS 1 without a packet id", "5.0:MQTT-3.3.2-1", b"\x32", b"\0\1a\0"),
    _m("5.0: QoS 1 without properties", "5.0:MQTT-3.3.2-1", b"\x32", b"\0\1a\0\1"),
    _m("5.0: a topic not UTF-8", "5.0:MQTT-1.5.4-1", b"\x30", b"\0\1\xc3\0", also=("3.3.2-1",)),
    _m("5.0: a topic with a surrogate", "5.0:MQTT-1.5.4-1", b"\x30", b"\0\3\xed\xa0\x80\0"),
    _m("5.0: a topic with U+0000", "5.0:MQTT-1.5.4-2", b"\x30", b"\0\3a\0b\0", also=("4.7.3-2",)),
    _m("5.0: properties beyond PUBLISH", BLOCK, b"\x30", b"\0\1t", b"\x08\x01\x01"),
    _m("5.0: half a property length", "MQTT 5.0 1.5.5", b"\x30", b"\0\1t", b"\x80"),
    _m(
        "5.0: a property length of more bytes than it needs",
        "5.0:MQTT-1.5.5-1",
        b"\x30",
        b"\0\1t",
        b"\x82\0",
        b"\x01\1",
    ),
    _m(
        "5.0: a property length of five bytes",
        "5.0:MQTT-1.5.5-1",
        b"\x30",
        b"\0\1t",
        b"\x80\x80\x80\x80\x01",
    ),
    _publish("5.0: an unknown property", TYPE, b"\x04\1"),
    _publish("5.0: a property identifier of two bytes", TYPE, b"\x81\x00\1"),
    _publish("5.0: property identifier 0", TYPE, b"\x00"),
    _publish("5.0: a session expiry in PUBLISH", TYPE, b"\x11\0\0\0\1"),
    _publish("5.0: a reason string in PUBLISH", TYPE, b"\x1f\0\1r"),
    _publish("5.0: a byte property of no bytes", BLOCK, b"\x01"),
    _publish("5.0: a two-byte property of one byte", BLOCK, b"\x23\1"),
    _publish("5.0: a four-byte property of three bytes", BLOCK, b"\x02\0\0\0"),
    _publish("5.0: a string property cut short", ENDS, b"\x03\0\5c"),
    _publish("5.0: a binary property cut short", ENDS, b"\x09\0"),
    _publish("5.0: a user property without a value", ENDS, b"\x26\0\1k"),
    _publish("5.0: a subscription identifier cut short", "MQTT 5.0 1.5.5", b"\x0b\x80"),
    _publish(
        "5.0: a subscription identifier of more bytes than it needs",
        "5.0:MQTT-1.5.5-1",
        b"\x0b\x81\x00",
    ),
    _publish(
        "5.0: a subscription identifier of five bytes",
        "5.0:MQTT-1.5.5-1",
        b"\x0b\xff\xff\xff\xff\x01",
    ),
    _m(
        "5.0: a content type not UTF-8",
        "5.0:MQTT-1.5.4-1",
        b"\x30",
        b"\0\1t",
        b"\x04\x03\0\1\xff",
        also=("3.3.2-19",),
    ),
    _m(
        "5.0: a response topic not UTF-8",
        "5.0:MQTT-1.5.4-1",
        b"\x30",
        b"\0\1t",
        b"\x04\x08\0\1\xff",
        also=("3.3.2-13",),
    ),
    _publish("5.0: a response topic with U+0000", "5.0:MQTT-1.5.4-2", b"\x08\0\1\0"),
    _m(
        "5.0: a user property name not UTF-8",
        "5.0:MQTT-1.5.4-1",
        b"\x30",
        b"\0\1t",
        b"\x07\x26\0\1\xff\0\1v",
        also=("1.5.7-1",),
    ),
    _m(
        "5.0: a user property value with U+0000",
        "5.0:MQTT-1.5.4-2",
        b"\x30",
        b"\0\1t",
        b"\x07\x26\0\1k\0\1\0",
        also=("1.5.7-1",),
    ),
    # PUBACK, PUBREC, PUBREL, PUBCOMP
    _m("5.0: PUBACK of one byte", "MQTT 5.0 2.2.1", b"\x40", b"\1"),
    _m("5.0: PUBACK with an unknown reason", "5.0:MQTT-3.4.2-1", b"\x40", b"\0\1\x01"),
    _m("5.0: PUBREC with a reason of PUBREL", "5.0:MQTT-3.5.2-1", b"\x50", b"\0\1\x92"),
    _m("5.0: PUBREL with a reason of PUBREC", "5.0:MQTT-3.6.2-1", b"\x62", b"\0\1\x80"),
    _m("5.0: PUBCOMP with a reason of PUBREC", "5.0:MQTT-3.7.2-1", b"\x70", b"\0\1\x10"),
    _m("5.0: PUBACK with bytes behind its properties", LENGTH, b"\x40", b"\0\1\0\0\0"),
    _m("5.0: PUBACK with properties cut short", BLOCK, b"\x40", b"\0\1\0\5\x1f"),
    _m("5.0: a content type in PUBACK", TYPE, b"\x40", b"\0\1\0\x04\x03\0\1c"),
    # SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK
    _m("5.0: SUBSCRIBE of one byte", "MQTT 5.0 2.2.1", b"\x82", b"\0"),
    _m("5.0: SUBSCRIBE without properties", "MQTT 5.0 1.5.5", b"\x82", b"\0\1"),
    _m("5.0: a filter cut short", ENDS, b"\x82", b"\0\1\0\0\5a"),
    _m("5.0: a filter without options", "MQTT 5.0 3.8.3", b"\x82", b"\0\1\0\0\1a"),
    _m("5.0: subscription option 0x40", "5.0:MQTT-3.8.3-5", b"\x82", b"\0\1\0\0\1a\x40"),
    _m("5.0: subscription option 0x80", "5.0:MQTT-3.8.3-5", b"\x82", b"\0\1\0\0\1a\x80"),
    _m(
        "5.0: a filter not UTF-8",
        "5.0:MQTT-1.5.4-1",
        b"\x82",
        b"\0\1\0\0\1\xfe\0",
        also=("3.8.3-1",),
    ),
    _m("5.0: SUBACK with a reserved reason", "5.0:MQTT-3.9.3-2", b"\x90", b"\0\1\0\x03"),
    _m(
        "5.0: a filter of UNSUBSCRIBE not UTF-8",
        "5.0:MQTT-1.5.4-1",
        b"\xa2",
        b"\0\1\0\0\1\xfe",
        also=("3.10.3-1",),
    ),
    _m("5.0: half a length", ENDS, b"\xa2", b"\0\1\0\0"),
    _m("5.0: a subscription identifier in UNSUBSCRIBE", TYPE, b"\xa2", b"\0\1\2\x0b\1\0\1a"),
    _m("5.0: UNSUBACK with a reason of SUBACK", "5.0:MQTT-3.11.3-2", b"\xb0", b"\0\1\0\x01"),
    # PINGREQ, DISCONNECT, AUTH
    _m("5.0: PINGREQ with content", LENGTH, b"\xc0", b"\0"),
    _m("5.0: DISCONNECT with a reason of CONNACK", "5.0:MQTT-3.14.2-1", b"\xe0", b"\x84"),
    _m("5.0: bytes behind DISCONNECT", LENGTH, b"\xe0", b"\0\0x"),
    _m("5.0: AUTH with a reason of DISCONNECT", "5.0:MQTT-3.15.2-1", b"\xf0", b"\x81\0"),
    _m("5.0: AUTH with a reason and no properties", "MQTT 5.0 1.5.5", b"\xf0", b"\x18"),
]

#: Every property that comes twice where only one may be: (packet, the property's bytes).
_ONCE_IN_CONNECT: Final = [
    b"\x11\0\0\0\1", b"\x15\0\1m", b"\x16\0\1d", b"\x17\1", b"\x19\1", b"\x21\0\1", b"\x22\0\1",
    b"\x27\0\0\0\1",
]  # fmt: skip
_ONCE_IN_CONNACK: Final = [
    b"\x11\0\0\0\1", b"\x12\0\1i", b"\x13\0\1", b"\x15\0\1m", b"\x16\0\1d", b"\x1a\0\1i",
    b"\x1c\0\1s", b"\x1f\0\1r", b"\x21\0\1", b"\x22\0\1", b"\x24\1", b"\x25\1", b"\x27\0\0\0\1",
    b"\x28\1", b"\x29\1", b"\x2a\1",
]  # fmt: skip
_ONCE_IN_PUBLISH: Final = [
    b"\x01\1", b"\x02\0\0\0\1", b"\x03\0\1c", b"\x08\0\1r", b"\x09\0\1d", b"\x23\0\1",
]  # fmt: skip

VIOLATIONS_ON_THE_WIRE: Final = [
    *(_connect(f"5.0: twice {p!r} in CONNECT", TYPE, p * 2, _v) for p in _ONCE_IN_CONNECT),
    *(_connack(f"5.0: twice {p!r} in CONNACK", TYPE, p * 2, _v) for p in _ONCE_IN_CONNACK),
    *(_publish(f"5.0: twice {p!r} in PUBLISH", TYPE, p * 2, _v) for p in _ONCE_IN_PUBLISH),
    _v(
        "5.0: twice will delay in the will",
        TYPE,
        b"\x10",
        HEAD,
        b"\x06",
        TAIL,
        b"\x0a",
        b"\x18\0\0\0\1" * 2,
        b"\0\1w\0\1m",
    ),
    _v(
        "5.0: two subscription identifiers in SUBSCRIBE",
        TYPE,
        b"\x82",
        b"\0\1",
        b"\x04\x0b\1\x0b\2",
        b"\0\1a\0",
    ),
    _v("5.0: two reason strings in PUBACK", TYPE, b"\x40", b"\0\1\0", b"\x08", b"\x1f\0\1r" * 2),
    _v("5.0: PUBACK with packet id 0", "MQTT 5.0 2.2.1", b"\x40", b"\0\0"),
    _v("5.0: PUBLISH with packet id 0", "5.0:MQTT-2.2.1-3", b"\x32", b"\0\1a\0\0\0"),
    _v("5.0: an empty topic and no alias", "MQTT 5.0 3.3.2.1", b"\x30", b"\0\0\0"),
    _v(
        "5.0: topic alias 0 on the wire",
        "5.0:MQTT-3.3.2-8",
        b"\x30",
        b"\0\1t",
        b"\x03\x23\0\0",
        reason=0x94,
    ),
    _v("5.0: SUBSCRIBE to nothing on the wire", "5.0:MQTT-3.8.3-2", b"\x82", b"\0\1\0"),
    _v("5.0: maximum QoS 3", "MQTT 5.0 3.8.3.1", b"\x82", b"\0\1\0\0\1a\x03"),
    _v("5.0: retain handling 3 on the wire", "MQTT 5.0 3.8.3.1", b"\x82", b"\0\1\0\0\1a\x30"),
]


def _message(name: str, clause: str, reason: int = 0x82, **properties: object) -> Forbidden:
    packet = Publish("t", b"", properties=Properties(**properties))  # type: ignore[arg-type]
    return Forbidden(name, packet, clause, reason, 5)


def _of_connect(name: str, clause: str, **properties: object) -> Forbidden:
    packet = Connect(
        client_id="c",
        level=5,
        properties=Properties(**properties),  # type: ignore[arg-type]
    )
    return Forbidden(name, packet, clause, level=5)


def _of_will(name: str, clause: str, topic: str = "w", **properties: object) -> Forbidden:
    will = Will(topic, b"", properties=Properties(**properties))  # type: ignore[arg-type]
    return Forbidden(name, Connect(client_id="c", level=5, will=will), clause, level=5)


def _of_connack(name: str, clause: str, **properties: object) -> Forbidden:
    packet = Connack(False, R.SUCCESS, Properties(**properties))  # type: ignore[arg-type]
    return Forbidden(name, packet, clause, level=5)


def _f(name: str, packet, clause: str) -> Forbidden:
    return Forbidden(name, packet, clause, level=5)


VIOLATIONS: Final = [
    # PUBLISH
    _f("5.0: no topic and no alias", Publish("", b""), "MQTT 5.0 3.3.2.1"),
    _f(
        "5.0: no topic, no alias, but properties",
        Publish("", b"", properties=Properties(content_type="c")),
        "MQTT 5.0 3.3.2.1",
    ),
    _f("5.0: + in a topic", Publish("a/+", b""), "5.0:MQTT-3.3.2-2"),
    _f("5.0: # in a topic", Publish("#", b""), "5.0:MQTT-3.3.2-2"),
    _f("5.0: QoS 1 with packet id 0", Publish("a", b"", 1, 0), "5.0:MQTT-2.2.1-3"),
    _f("5.0: DUP with QoS 0", Publish("a", b"", 0, 0, False, True), "5.0:MQTT-3.3.1-2"),
    _message("5.0: topic alias 0", "5.0:MQTT-3.3.2-8", 0x94, topic_alias=0),
    _message("5.0: payload format 2", "MQTT 5.0 3.3.2.3.2", payload_format_indicator=2),
    _message("5.0: + in the response topic", "5.0:MQTT-3.3.2-14", response_topic="a/+"),
    _message("5.0: # in the response topic", "5.0:MQTT-3.3.2-14", response_topic="#"),
    _message("5.0: an empty response topic", "5.0:MQTT-4.7.3-1", response_topic=""),
    _message(
        "5.0: subscription identifier 0", "MQTT 5.0 3.3.2.3.8", subscription_identifiers=(1, 0)
    ),
    # CONNECT
    _of_connect("5.0: receive maximum 0", "MQTT 5.0 3.1.2.11.3", receive_maximum=0),
    _of_connect("5.0: maximum packet size 0", "MQTT 5.0 3.1.2.11.4", maximum_packet_size=0),
    _of_connect(
        "5.0: response information 2", "MQTT 5.0 3.1.2.11.6", request_response_information=2
    ),
    _of_connect("5.0: problem information 2", "MQTT 5.0 3.1.2.11.7", request_problem_information=2),
    _of_connect("5.0: data without a method", "MQTT 5.0 3.1.2.11.10", authentication_data=b""),
    _of_will("5.0: an empty will topic", "5.0:MQTT-4.7.3-1", ""),
    _of_will("5.0: a wildcard will topic", "5.0:MQTT-4.7.0-1", "a/#"),
    _of_will("5.0: will payload format 255", "MQTT 5.0 3.3.2.3.2", payload_format_indicator=255),
    _of_will("5.0: + in the will's response topic", "5.0:MQTT-3.3.2-14", response_topic="+"),
    # CONNACK
    _f("5.0: CONNACK refusing a session", Connack(True, R.BANNED), "5.0:MQTT-3.2.2-6"),
    _of_connack("5.0: receive maximum 0 of a server", "MQTT 5.0 3.2.2.3.3", receive_maximum=0),
    _of_connack("5.0: maximum QoS 2", "MQTT 5.0 3.2.2.3.4", maximum_qos=2),
    _of_connack("5.0: retain available 2", "MQTT 5.0 3.2.2.3.5", retain_available=2),
    _of_connack("5.0: packet size 0 of a server", "MQTT 5.0 3.2.2.3.6", maximum_packet_size=0),
    _of_connack("5.0: wildcards 2", "MQTT 5.0 3.2.2.3.11", wildcard_subscription_available=2),
    _of_connack("5.0: identifiers 2", "MQTT 5.0 3.2.2.3.12", subscription_identifier_available=2),
    _of_connack("5.0: shared 2", "MQTT 5.0 3.2.2.3.13", shared_subscription_available=2),
    # packet identifiers
    *(
        _f(f"5.0: {kind.__name__} with packet id 0", kind(0), "MQTT 5.0 2.2.1")
        for kind in (Puback, Pubrec, Pubrel, Pubcomp)
    ),
    _f("5.0: SUBACK with packet id 0", Suback(0, (0,)), "MQTT 5.0 2.2.1"),
    _f("5.0: UNSUBACK with packet id 0", Unsuback(0, (0,)), "MQTT 5.0 2.2.1"),
    # subscriptions
    _f(
        "5.0: SUBSCRIBE with packet id 0",
        Subscribe(0, (TopicRequest("a", 0),)),
        "5.0:MQTT-2.2.1-3",
    ),
    _f("5.0: SUBSCRIBE to nothing", Subscribe(1, ()), "5.0:MQTT-3.8.3-2"),
    _f("5.0: an empty filter", Subscribe(1, (TopicRequest("", 0),)), "5.0:MQTT-4.7.3-1"),
    _f("5.0: a filter a#", Subscribe(1, (TopicRequest("a#", 0),)), "5.0:MQTT-4.7.1-1"),
    _f("5.0: a filter a/+e", Subscribe(1, (TopicRequest("a/+e", 0),)), "5.0:MQTT-4.7.1-2"),
    _f("5.0: UNSUBSCRIBE from a/#/b", Unsubscribe(1, ("a", "a/#/b")), "5.0:MQTT-4.7.1-1"),
    _f("5.0: UNSUBSCRIBE from a+", Unsubscribe(1, ("a+",)), "5.0:MQTT-4.7.1-2"),
    _f("5.0: QoS 3 wanted", Subscribe(1, (TopicRequest("a", 3),)), "MQTT 5.0 3.8.3.1"),
    _f(
        "5.0: retain handling 3",
        Subscribe(1, (TopicRequest("a", 0, retain_handling=3),)),
        "MQTT 5.0 3.8.3.1",
    ),
    _f(
        "5.0: no local in a shared subscription",
        Subscribe(1, (TopicRequest("$share/g/a", 0, no_local=True),)),
        "5.0:MQTT-3.8.3-4",
    ),
    _f(
        "5.0: subscription identifier 0 in SUBSCRIBE",
        Subscribe(1, (TopicRequest("a", 0),), Properties(subscription_identifiers=(0,))),
        "MQTT 5.0 3.8.2.1.2",
    ),
    _f("5.0: SUBACK without a reason", Suback(1, ()), "MQTT 5.0 3.9.3"),
    _f("5.0: UNSUBACK without a reason", Unsuback(1), "MQTT 5.0 3.11.3"),
    _f("5.0: UNSUBSCRIBE with packet id 0", Unsubscribe(0, ("a",)), "5.0:MQTT-2.2.1-3"),
    _f("5.0: UNSUBSCRIBE from nothing", Unsubscribe(1, ()), "5.0:MQTT-3.10.3-2"),
    _f("5.0: UNSUBSCRIBE from an empty filter", Unsubscribe(1, ("a", "")), "5.0:MQTT-4.7.3-1"),
    # AUTH
    _f("5.0: AUTH without a method", Auth(R.CONTINUE_AUTHENTICATION), "MQTT 5.0 3.15.2.2.2"),
    _f(
        "5.0: AUTH with data and no method",
        Auth(R.SUCCESS, Properties(authentication_data=b"d")),
        "MQTT 5.0 3.15.2.2.2",
    ),
]

#: What only the other side may say: (packet, whether a client sent it, clause).
WRONG_SENDER: Final = [
    (_message("5.0: a subscription identifier of a client", "5.0:MQTT-3.3.4-6",
              subscription_identifiers=(1,)), True),
    (_f("5.0: a client that takes over", Disconnect(R.SESSION_TAKEN_OVER),
        "5.0:MQTT-3.14.2-1"), True),
    (_f("5.0: a client that refers to a server",
        Disconnect(R.SUCCESS, Properties(server_reference="s")), "MQTT 5.0 3.14.2.2.5"), True),
    (_f("5.0: a client that says AUTH succeeded", Auth(), "5.0:MQTT-3.15.2-1"), True),
    (_f("5.0: a server with a will", Disconnect(R.DISCONNECT_WITH_WILL),
        "5.0:MQTT-3.14.2-1"), False),
    (_f("5.0: a server with a session expiry",
        Disconnect(R.SUCCESS, Properties(session_expiry_interval=1)), "5.0:MQTT-3.14.2-2"), False),
    (_f("5.0: a server that authenticates again",
        Auth(R.REAUTHENTICATE, Properties(authentication_method="m")),
        "5.0:MQTT-3.15.2-1"), False),
]  # fmt: skip
