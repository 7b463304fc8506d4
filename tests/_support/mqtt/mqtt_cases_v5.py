"""Packets of MQTT 5.0 as data, as in mqtt_cases.py."""

from __future__ import annotations

from typing import Final

from mqtt_cases import Case, Forbidden, Refused

from tidegate_protocols.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
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


def _c(*numbers: str) -> tuple[str, ...]:
    return tuple(f"5.0:MQTT-{number}" for number in numbers)


CASES: Final = [
    # ------------------------------------------------------------------------------- CONNECT
    Case(
        "the smallest CONNECT of 5.0",
        Connect(client_id="", level=5),
        (
            ("type 1, flags 0", b"\x10"),
            ("remaining length", b"\x0d"),
            ("protocol name", b"\x00\x04MQTT"),
            ("protocol level 5", b"\x05"),
            ("connect flags: clean start", b"\x02"),
            ("keep-alive 0", b"\x00\x00"),
            ("no properties", b"\x00"),
            ("client id of no bytes", b"\x00\x00"),
        ),
        5,
        clauses=_c("2.1.3-1", "2.2.2-1", "3.1.2-1", "3.1.2-2", "3.1.3-3", "3.1.3-6"),
    ),
    Case(
        "a CONNECT of 5.0 with every field and property",
        Connect(
            client_id="dev",
            clean_session=False,
            keep_alive=60,
            username="user",
            password=b"\x00\xff",
            level=5,
            properties=Properties(
                session_expiry_interval=0xFFFFFFFF,
                authentication_method="SCRAM-SHA-256",
                authentication_data=b"n,,",
                request_problem_information=0,
                request_response_information=1,
                receive_maximum=20,
                topic_alias_maximum=10,
                user_properties=(("a", "1"), ("a", "2")),
                maximum_packet_size=65536,
            ),
            will=Will(
                "gone",
                b"bye",
                1,
                True,
                Properties(
                    payload_format_indicator=1,
                    message_expiry_interval=60,
                    content_type="text/plain",
                    response_topic="r",
                    correlation_data=b"\x00\x01",
                    will_delay_interval=5,
                    user_properties=(("w", "x"),),
                ),
            ),
        ),
        (
            ("type 1", b"\x10"),
            ("remaining length 135", b"\x87\x01"),
            ("protocol name", b"\x00\x04MQTT"),
            ("protocol level", b"\x05"),
            ("flags: user, password, will retain, will QoS 1, will", b"\xec"),
            ("keep-alive 60", b"\x00\x3c"),
            ("property length 56", b"\x38"),
            ("17 session expiry: never", b"\x11\xff\xff\xff\xff"),
            ("21 authentication method", b"\x15\x00\x0dSCRAM-SHA-256"),
            ("22 authentication data", b"\x16\x00\x03n,,"),
            ("23 request problem information: no", b"\x17\x00"),
            ("25 request response information: yes", b"\x19\x01"),
            ("33 receive maximum 20", b"\x21\x00\x14"),
            ("34 topic alias maximum 10", b"\x22\x00\x0a"),
            ("38 user property", b"\x26\x00\x01a\x00\x011"),
            ("38 the same name again", b"\x26\x00\x01a\x00\x012"),
            ("39 maximum packet size 65536", b"\x27\x00\x01\x00\x00"),
            ("client id comes first", b"\x00\x03dev"),
            ("will property length 41", b"\x29"),
            ("1 payload is UTF-8", b"\x01\x01"),
            ("2 message expiry 60 s", b"\x02\x00\x00\x00\x3c"),
            ("3 content type", b"\x03\x00\x0atext/plain"),
            ("8 response topic", b"\x08\x00\x01r"),
            ("9 correlation data", b"\x09\x00\x02\x00\x01"),
            ("24 will delay 5 s", b"\x18\x00\x00\x00\x05"),
            ("38 user property", b"\x26\x00\x01w\x00\x01x"),
            ("will topic", b"\x00\x04gone"),
            ("will payload", b"\x00\x03bye"),
            ("user name", b"\x00\x04user"),
            ("password, any bytes", b"\x00\x02\x00\xff"),
        ),
        5,
        clauses=_c(
            "1.5.7-1",
            "3.1.2-9",
            "3.1.2-17",
            "3.1.2-19",
            "3.1.3-1",
            "3.1.3-4",
            "3.1.3-11",
            "3.1.3-12",
        ),
    ),
    Case(
        "a CONNECT of 5.0 with a password and no user name",
        Connect(client_id="c", password=b"token", level=5),
        (
            ("type 1, remaining length", b"\x10\x15"),
            ("protocol name, level", b"\x00\x04MQTT\x05"),
            ("flags: password, clean start", b"\x42"),
            ("keep-alive, no properties", b"\x00\x00\x00"),
            ("client id", b"\x00\x01c"),
            ("password", b"\x00\x05token"),
        ),
        5,
        clauses=_c("3.1.2-16", "3.1.2-18"),
    ),
    # ------------------------------------------------------------------------------- CONNACK
    Case(
        "CONNACK of 5.0 without properties",
        Connack(True, R.SUCCESS),
        (
            ("type 2, remaining length", b"\x20\x03"),
            ("session present", b"\x01"),
            ("success", b"\x00"),
            ("no properties", b"\x00"),
        ),
        5,
        clauses=_c("2.2.2-1", "3.2.2-1"),
    ),
    Case(
        "CONNACK of 5.0 with every property",
        Connack(
            False,
            R.SUCCESS,
            Properties(
                session_expiry_interval=1,
                assigned_client_identifier="id",
                server_keep_alive=30,
                authentication_method="m",
                authentication_data=b"d",
                response_information="ri",
                server_reference="other",
                reason_string="why",
                receive_maximum=65535,
                topic_alias_maximum=0,
                maximum_qos=1,
                retain_available=0,
                user_properties=(("k", ""),),
                maximum_packet_size=0xFFFFFFFF,
                wildcard_subscription_available=1,
                subscription_identifier_available=1,
                shared_subscription_available=0,
            ),
        ),
        (
            ("type 2", b"\x20"),
            ("remaining length 70", b"\x46"),
            ("no session", b"\x00"),
            ("success", b"\x00"),
            ("property length 67", b"\x43"),
            ("17 session expiry 1 s", b"\x11\x00\x00\x00\x01"),
            ("18 assigned client id", b"\x12\x00\x02id"),
            ("19 server keep-alive 30 s", b"\x13\x00\x1e"),
            ("21 authentication method", b"\x15\x00\x01m"),
            ("22 authentication data", b"\x16\x00\x01d"),
            ("26 response information", b"\x1a\x00\x02ri"),
            ("28 server reference", b"\x1c\x00\x05other"),
            ("31 reason string", b"\x1f\x00\x03why"),
            ("33 receive maximum", b"\x21\xff\xff"),
            ("34 topic alias maximum 0", b"\x22\x00\x00"),
            ("36 maximum QoS 1", b"\x24\x01"),
            ("37 retain not available", b"\x25\x00"),
            ("38 user property with an empty value", b"\x26\x00\x01k\x00\x00"),
            ("39 maximum packet size", b"\x27\xff\xff\xff\xff"),
            ("40 wildcard subscriptions", b"\x28\x01"),
            ("41 subscription identifiers", b"\x29\x01"),
            ("42 no shared subscriptions", b"\x2a\x00"),
        ),
        5,
        clauses=_c("3.2.2-1", "3.2.2-8"),
    ),
    Case(
        "CONNACK of 5.0 refusing",
        Connack(False, R.BANNED),
        (
            ("type 2, remaining length", b"\x20\x03"),
            ("no session", b"\x00"),
            ("banned", b"\x8a"),
            ("no properties", b"\x00"),
        ),
        5,
        clauses=_c("3.2.2-6", "3.2.2-8"),
    ),
    # ------------------------------------------------------------------------------- PUBLISH
    Case(
        "PUBLISH of 5.0 at QoS 0 has no packet id",
        Publish("a/b", b"hi"),
        (
            ("type 3, no flags", b"\x30"),
            ("length", b"\x08"),
            ("topic", b"\0\3a/b"),
            ("no properties", b"\0"),
            ("body", b"hi"),
        ),
        5,
        clauses=_c("2.2.1-2", "2.2.2-1", "3.3.2-1"),
    ),
    Case(
        "PUBLISH of 5.0 with every property, QoS 2, DUP, RETAIN",
        Publish(
            "t",
            b"x",
            2,
            258,
            True,
            True,
            Properties(
                payload_format_indicator=1,
                message_expiry_interval=7,
                content_type="c",
                response_topic="r/s",
                correlation_data=b"\xff",
                subscription_identifiers=(1, 268_435_455),
                topic_alias=3,
                user_properties=(("b", "1"), ("a", "2"), ("b", "3")),
            ),
        ),
        (
            ("type 3, DUP, QoS 2, RETAIN", b"\x3d"),
            ("length 59", b"\x3b"),
            ("topic", b"\0\1t"),
            ("packet id 258", b"\1\2"),
            ("property length 52", b"\x34"),
            ("1 payload is UTF-8", b"\x01\x01"),
            ("2 expiry 7 s", b"\x02\0\0\0\7"),
            ("3 content type", b"\x03\0\1c"),
            ("8 response topic", b"\x08\0\3r/s"),
            ("9 correlation data", b"\x09\0\1\xff"),
            ("11 subscription 1", b"\x0b\x01"),
            ("11 subscription 268435455", b"\x0b\xff\xff\xff\x7f"),
            ("35 topic alias 3", b"\x23\0\3"),
            ("38 user property", b"\x26\0\1b\0\x011"),
            ("38 user property", b"\x26\0\1a\0\x012"),
            ("38 user property", b"\x26\0\1b\0\x013"),
            ("body", b"x"),
        ),
        5,
        clauses=_c("3.3.2-1", "3.3.2-13", "3.3.2-19", "1.5.5-1", "1.5.7-1"),
    ),
    Case(
        "PUBLISH of 5.0 with its properties in another order",
        Publish("t", b"", 0, 0, properties=Properties(content_type="c", topic_alias=3)),
        (
            ("type 3, length", b"\x30\x0b"),
            ("topic", b"\0\1t"),
            ("property length 7", b"\x07"),
            ("35 topic alias 3", b"\x23\0\3"),
            ("3 content type", b"\x03\0\1c"),
        ),
        5,
        decode_only=True,
    ),
    Case(
        "PUBLISH of 5.0 with a topic alias alone",
        Publish("", b"x", properties=Properties(topic_alias=65535)),
        (
            ("type 3, length", b"\x30\x07"),
            ("topic of no bytes", b"\0\0"),
            ("property length 3", b"\x03"),
            ("35 topic alias 65535", b"\x23\xff\xff"),
            ("body", b"x"),
        ),
        5,
    ),
    Case(
        "PUBLISH of 5.0 with 140 bytes of properties: a property length of two bytes",
        Publish("t", b"", properties=Properties(content_type="c" * 137)),
        (
            ("type 3, length 145", b"\x30\x91\x01"),
            ("topic", b"\0\1t"),
            ("property length 140", b"\x8c\x01"),
            ("3 content type of 137 bytes", b"\x03\0\x89" + b"c" * 137),
        ),
        5,
        clauses=_c("1.5.5-1"),
    ),
    Case(
        "PUBLISH of 5.0 with a BOM in the topic and in a property, which stay",
        Publish("\ufeffa", b"", properties=Properties(content_type="\ufeff")),
        (
            ("type 3, length", b"\x30\x0d"),
            ("topic", b"\0\4\xef\xbb\xbfa"),
            ("property length 6", b"\x06"),
            ("3 content type", b"\x03\0\3\xef\xbb\xbf"),
        ),
        5,
        clauses=_c("1.5.4-3"),
    ),
    # ------------------------------------------------------------- PUBACK, PUBREC, PUBREL, PUBCOMP
    Case(
        "PUBACK of 5.0 in two bytes: success, no properties",
        Puback(7),
        (("type 4, length", b"\x40\x02"), ("packet id", b"\0\7")),
        5,
    ),
    Case(
        "PUBACK of 5.0 in three bytes: a reason, no properties",
        Puback(7, R.QUOTA_EXCEEDED),
        (("type 4, length", b"\x40\x03"), ("packet id", b"\0\7"), ("quota exceeded", b"\x97")),
        5,
        clauses=_c("3.4.2-1"),
    ),
    Case(
        "PUBACK of 5.0 with a reason string and user properties",
        Puback(
            7,
            R.NOT_AUTHORIZED,
            Properties(reason_string="no", user_properties=(("k", "v"),)),
        ),
        (
            ("type 4, length", b"\x40\x10"),
            ("packet id", b"\0\7"),
            ("not authorized", b"\x87"),
            ("property length 12", b"\x0c"),
            ("31 reason string", b"\x1f\0\2no"),
            ("38 user property", b"\x26\0\1k\0\1v"),
        ),
        5,
        clauses=_c("3.4.2-1"),
    ),
    Case(
        "PUBACK of 5.0 that says in full that there is nothing to say",
        Puback(7),
        (
            ("type 4, length", b"\x40\x04"),
            ("packet id", b"\0\7"),
            ("success", b"\0"),
            ("no properties", b"\0"),
        ),
        5,
        decode_only=True,
        clauses=_c("2.2.2-1"),
    ),
    Case("PUBREC of 5.0", Pubrec(7), (("type 5, length", b"\x50\x02"), ("packet id", b"\0\7")), 5),
    Case(
        "PUBREC of 5.0 without receivers",
        Pubrec(7, R.NO_MATCHING_SUBSCRIBERS),
        (("type 5, length", b"\x50\x03"), ("packet id", b"\0\7"), ("reason", b"\x10")),
        5,
        clauses=_c("3.5.2-1"),
    ),
    Case(
        "PUBREL of 5.0 with flags 0010",
        Pubrel(7),
        (("type 6, flags 2, length", b"\x62\x02"), ("packet id", b"\0\7")),
        5,
        clauses=_c("3.6.1-1"),
    ),
    Case(
        "PUBREL of 5.0 for an unknown packet id",
        Pubrel(7, R.PACKET_IDENTIFIER_NOT_FOUND, Properties(reason_string="?")),
        (
            ("type 6, flags 2, length", b"\x62\x08"),
            ("packet id", b"\0\7"),
            ("reason", b"\x92"),
            ("property length, 31 reason string", b"\x04\x1f\0\1?"),
        ),
        5,
        clauses=_c("3.6.2-1"),
    ),
    Case(
        "PUBCOMP of 5.0", Pubcomp(7), (("type 7, length", b"\x70\x02"), ("packet id", b"\0\7")), 5
    ),
    Case(
        "PUBCOMP of 5.0 for an unknown packet id",
        Pubcomp(7, R.PACKET_IDENTIFIER_NOT_FOUND),
        (("type 7, length", b"\x70\x03"), ("packet id", b"\0\7"), ("reason", b"\x92")),
        5,
        clauses=_c("3.7.2-1"),
    ),
    # ------------------------------------------------------------------------- subscriptions
    Case(
        "SUBSCRIBE of 5.0 without properties",
        Subscribe(10, (TopicRequest("a", 0),)),
        (
            ("type 8, flags 2, length", b"\x82\x07"),
            ("packet id", b"\0\x0a"),
            ("no properties", b"\0"),
            ("filter, no options", b"\0\1a\0"),
        ),
        5,
        clauses=_c("3.8.1-1", "3.8.3-1", "3.8.3-2"),
    ),
    Case(
        "SUBSCRIBE of 5.0 with an identifier and every option",
        Subscribe(
            10,
            (
                TopicRequest("a", 1, True),
                TopicRequest("b", 2, False, True),
                TopicRequest("c", 0, False, False, 1),
                TopicRequest("$share/g/d", 2, False, True, 2),
            ),
            Properties(subscription_identifiers=(200,), user_properties=(("k", "v"),)),
        ),
        (
            ("type 8, flags 2", b"\x82"),
            ("length 38", b"\x26"),
            ("packet id", b"\0\x0a"),
            ("property length 10", b"\x0a"),
            ("11 subscription identifier 200", b"\x0b\xc8\x01"),
            ("38 user property", b"\x26\0\1k\0\1v"),
            ("QoS 1, no local", b"\0\1a\x05"),
            ("QoS 2, retain as published", b"\0\1b\x0a"),
            ("QoS 0, retain handling 1", b"\0\1c\x10"),
            ("QoS 2, retain as published, retain handling 2", b"\0\x0a$share/g/d\x2a"),
        ),
        5,
        clauses=_c("3.8.1-1", "1.5.5-1"),
    ),
    Case(
        "SUBACK of 5.0",
        Suback(10, (R.GRANTED_QOS_1, R.TOPIC_FILTER_INVALID), Properties(reason_string="r")),
        (
            ("type 9, length", b"\x90\x09"),
            ("packet id", b"\0\x0a"),
            ("property length, 31 reason string", b"\x04\x1f\0\1r"),
            ("QoS 1, filter invalid", b"\1\x8f"),
        ),
        5,
        clauses=_c("3.9.3-1", "3.9.3-2"),
    ),
    Case(
        "UNSUBSCRIBE of 5.0",
        Unsubscribe(11, ("a", "b/#"), Properties(user_properties=(("", ""),))),
        (
            ("type 10, flags 2, length", b"\xa2\x10"),
            ("packet id", b"\0\x0b"),
            ("property length, 38 user property", b"\x05\x26\0\0\0\0"),
            ("filters", b"\0\1a\0\3b/#"),
        ),
        5,
        clauses=_c("3.10.1-1", "3.10.3-1", "3.10.3-2"),
    ),
    Case(
        "UNSUBACK of 5.0",
        Unsuback(11, (R.SUCCESS, R.NO_SUBSCRIPTION_EXISTED)),
        (
            ("type 11, length", b"\xb0\x05"),
            ("packet id", b"\0\x0b"),
            ("no properties", b"\0"),
            ("success, none existed", b"\x00\x11"),
        ),
        5,
        clauses=_c("3.11.3-1", "3.11.3-2"),
    ),
    # ------------------------------------------------------- PINGREQ, PINGRESP, DISCONNECT, AUTH
    Case("PINGREQ of 5.0", Pingreq(), (("type 12, length 0", b"\xc0\x00"),), 5),
    Case("PINGRESP of 5.0", Pingresp(), (("type 13, length 0", b"\xd0\x00"),), 5),
    Case(
        "DISCONNECT of 5.0 in no bytes: normal, no properties",
        Disconnect(),
        (("type 14, length 0", b"\xe0\x00"),),
        5,
        clauses=_c("3.14.1-1"),
    ),
    Case(
        "DISCONNECT of 5.0 in one byte: a reason, no properties",
        Disconnect(R.DISCONNECT_WITH_WILL),
        (("type 14, length", b"\xe0\x01"), ("with the will", b"\x04")),
        5,
        clauses=_c("3.14.2-1"),
    ),
    Case(
        "DISCONNECT of 5.0 with properties of both sides",
        Disconnect(
            R.SERVER_MOVED,
            Properties(session_expiry_interval=0, server_reference="b", reason_string="moved"),
        ),
        (
            ("type 14, length", b"\xe0\x13"),
            ("server moved", b"\x9d"),
            ("property length 17", b"\x11"),
            ("17 session expiry 0", b"\x11\0\0\0\0"),
            ("28 server reference", b"\x1c\0\1b"),
            ("31 reason string", b"\x1f\0\5moved"),
        ),
        5,
        clauses=_c("3.14.2-1"),
    ),
    Case(
        "AUTH in no bytes: success, no properties",
        Auth(),
        (("type 15, length 0", b"\xf0\x00"),),
        5,
        clauses=_c("3.15.1-1"),
    ),
    Case(
        "AUTH with a step",
        Auth(
            R.CONTINUE_AUTHENTICATION,
            Properties(authentication_method="m", authentication_data=b"\0", reason_string="s"),
        ),
        (
            ("type 15, length", b"\xf0\x0e"),
            ("continue", b"\x18"),
            ("property length 12", b"\x0c"),
            ("21 method", b"\x15\0\1m"),
            ("22 data", b"\x16\0\1\0"),
            ("31 reason string", b"\x1f\0\1s"),
        ),
        5,
        clauses=_c("3.15.1-1", "3.15.2-1"),
    ),
]

HEAD: Final = b"\x00\x04MQTT\x05"  # protocol name, level
TAIL: Final = b"\x00\x00\x00\x00\x01c"  # keep-alive 0, no properties, client id "c"
TYPE: Final = "MQTT 5.0 2.2.2.2"  # a property that its packet may not have, or twice
ENDS: Final = "MQTT 5.0 1.5.4"  # a field is longer than its packet
BLOCK: Final = "MQTT 5.0 2.2.2.1"  # a property is longer than the property length
LENGTH: Final = "MQTT 5.0 2.1.4"  # bytes behind the last field


def _m(name: str, clause: str, *parts: bytes, also: tuple[str, ...] = ()) -> Refused:
    return Refused(name, parts, clause, 0x81, 5, _c(*also))


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
