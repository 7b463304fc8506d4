"""Packets of MQTT 3.1 and 3.1.1 as data: values beside their bytes, and bytes that are no packet.

The tests of the codec run every case: whole, byte by byte, with others behind it. ``clauses`` are
the statements that a case proves, written as in tests/_support/mqtt/mqtt_clauses.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final

import pytest

from tidegate.spi import PeerProtocolError
from tidegate_protocols.mqtt import (
    Codec,
    Connack,
    Connect,
    Disconnect,
    MalformedPacketError,
    Packet,
    PacketViolationError,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    TopicRequest,
    Unsuback,
    Unsubscribe,
    Will,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One packet. Parts: (what it is, its bytes). decode_only: we never write it this way."""

    name: str
    packet: Packet
    parts: tuple[tuple[str, bytes], ...]
    level: int = 4
    decode_only: bool = False
    clauses: tuple[str, ...] = ()

    @property
    def wire(self) -> bytes:
        return b"".join(data for _, data in self.parts)


@dataclasses.dataclass(frozen=True)
class Refused:
    """Bytes that are refused. clause: of the error; also: further statements that it proves.

    reason: the error's code, 0x81 for what cannot be read.
    """

    name: str
    parts: tuple[bytes, ...]
    clause: str
    reason: int = 0x81
    level: int = 4
    also: tuple[str, ...] = ()

    @property
    def wire(self) -> bytes:
        """The packet, whose first part is its first byte; the remaining length is computed."""
        body = b"".join(self.parts[1:])
        assert len(body) < 128
        return self.parts[0] + bytes((len(body),)) + body

    @property
    def clauses(self) -> tuple[str, ...]:
        own = self.clause if ":" in self.clause else f"3.1.1:{self.clause}"
        return (own, *self.also) if "MQTT-" in own else self.also


@dataclasses.dataclass(frozen=True)
class Forbidden:
    """A packet that can be read and still breaks a rule."""

    name: str
    packet: Packet
    clause: str
    reason: int = 0x82
    level: int = 4

    @property
    def clauses(self) -> tuple[str, ...]:
        own = self.clause if ":" in self.clause else f"3.1.1:{self.clause}"
        return (own,) if "MQTT-" in own else ()


def assert_refused(case: Refused, step: int, behind: bytes = b"") -> None:
    """The codec refuses the bytes, *step* at a time, and what is *behind* them with them."""
    codec = Codec(1 << 20, case.level)
    wire = case.wire + behind

    def feed() -> None:
        for start in range(0, len(wire), step):
            codec.receive_data(wire[start : start + step])
            codec.next_event()

    with pytest.raises(PeerProtocolError) as caught:
        feed()
    expected = MalformedPacketError if case.reason == 0x81 else PacketViolationError
    assert type(caught.value) is expected
    assert caught.value.clause == case.clause
    assert caught.value.wire_code == case.reason
    with pytest.raises(expected):
        codec.next_event()


def params(cases: Iterable[Case | Refused | Forbidden]) -> list[Any]:
    """For ``parametrize``: each case by its name, marked with what it proves."""
    return [
        pytest.param(
            case,
            id=case.name,
            marks=[pytest.mark.mqtt_clause(*case.clauses)] if case.clauses else [],
        )
        for case in cases
    ]


CASES: Final = [
    Case(
        "the smallest CONNECT",
        Connect(client_id=""),
        (
            ("type 1, flags 0 [MQTT-2.2.2-1]", b"\x10"),
            ("remaining length", b"\x0c"),
            ("protocol name [MQTT-3.1.2-1]", b"\x00\x04MQTT"),
            ("protocol level 4 [MQTT-3.1.2-2]", b"\x04"),
            ("connect flags: clean session", b"\x02"),
            ("keep-alive 0", b"\x00\x00"),
            ("client id of no bytes [MQTT-3.1.3-6]", b"\x00\x00"),
        ),
        clauses=(
            "3.1.1:MQTT-2.2.2-1",
            "3.1.1:MQTT-3.1.2-1",
            "3.1.1:MQTT-3.1.2-2",
            "3.1.1:MQTT-3.1.3-6",
        ),
    ),
    Case(
        "a CONNECT with every field",
        Connect(
            client_id="dev-ü",
            clean_session=False,
            keep_alive=60,
            username="user",
            password=b"\x00\xff",
            will=Will("gone/dev", b"bye", 2, True),
        ),
        (
            ("type 1", b"\x10"),
            ("remaining length", b"\x2b"),
            ("protocol name", b"\x00\x04MQTT"),
            ("protocol level", b"\x04"),
            ("flags: user, password, will retain, will QoS 2, will", b"\xf4"),
            ("keep-alive 60", b"\x00\x3c"),
            ("client id comes first [MQTT-3.1.3-3]", b"\x00\x06dev-\xc3\xbc"),
            ("will topic [MQTT-3.1.3-10]", b"\x00\x08gone/dev"),
            ("will message", b"\x00\x03bye"),
            ("user name [MQTT-3.1.3-11]", b"\x00\x04user"),
            ("password, any bytes", b"\x00\x02\x00\xff"),
        ),
        clauses=(
            "3.1.1:MQTT-3.1.2-9",
            "3.1.1:MQTT-3.1.2-19",
            "3.1.1:MQTT-3.1.2-21",
            "3.1.1:MQTT-3.1.3-1",
            "3.1.1:MQTT-3.1.3-3",
            "3.1.1:MQTT-3.1.3-10",
            "3.1.1:MQTT-3.1.3-11",
        ),
    ),
    Case(
        "a CONNECT of MQTT 3.1",
        Connect(client_id="a", keep_alive=10, level=3),
        (
            ("type 1", b"\x10"),
            ("remaining length", b"\x0f"),
            ("protocol name of 3.1", b"\x00\x06MQIsdp"),
            ("protocol level 3", b"\x03"),
            ("flags: clean session", b"\x02"),
            ("keep-alive", b"\x00\x0a"),
            ("client id", b"\x00\x01a"),
        ),
    ),
    Case(
        "a CONNECT of MQTT 3.1 whose user name flag has no user name",
        Connect(client_id="a", level=3),
        (
            ("type 1, remaining length", b"\x10\x0f"),
            ("protocol name of 3.1", b"\x00\x06MQIsdp"),
            ("protocol level 3", b"\x03"),
            ("flags: user name, password, clean session", b"\xc2"),
            ("keep-alive", b"\x00\x00"),
            ("client id, and the packet ends", b"\x00\x01a"),
        ),
        decode_only=True,
    ),
    Case(
        "CONNACK with session present",
        Connack(True, 0),
        (
            ("type 2, remaining length", b"\x20\x02"),
            ("session present", b"\x01"),
            ("accepted", b"\x00"),
        ),
    ),
    Case(
        "CONNACK refusing",
        Connack(False, 5),
        (
            ("type 2, remaining length", b"\x20\x02"),
            ("no session", b"\0"),
            ("not authorized", b"\5"),
        ),
    ),
    Case(
        "PUBLISH QoS 0 has no packet id [MQTT-2.3.1-5]",
        Publish("a/b", b"hi"),
        (
            ("type 3, no flags", b"\x30"),
            ("length", b"\x07"),
            ("topic", b"\0\3a/b"),
            ("body", b"hi"),
        ),
        clauses=("3.1.1:MQTT-2.3.1-5",),
    ),
    Case(
        "PUBLISH without a body",
        Publish("a", b"", 0, 0, True),
        (("type 3, RETAIN", b"\x31"), ("length", b"\x03"), ("topic", b"\0\1a")),
    ),
    Case(
        "PUBLISH QoS 1, DUP",
        Publish("a/b", b"x", 1, 258, False, True),
        (
            ("type 3, DUP, QoS 1", b"\x3a"),
            ("length", b"\x08"),
            ("topic", b"\0\3a/b"),
            ("packet id 258", b"\1\2"),
            ("body", b"x"),
        ),
    ),
    Case(
        "PUBLISH QoS 2, RETAIN, body of 128 bytes: a remaining length of two bytes",
        Publish("t", b"z" * 128, 2, 65535, True),
        (
            ("type 3, QoS 2, RETAIN", b"\x35"),
            ("length 133", b"\x85\x01"),
            ("topic", b"\0\1t"),
            ("packet id 65535", b"\xff\xff"),
            ("body", b"z" * 128),
        ),
    ),
    Case(
        "PUBLISH with a remaining length of three bytes",
        Publish("t", b"z" * 16381),
        (
            ("type 3", b"\x30"),
            ("length 16384", b"\x80\x80\x01"),
            ("topic", b"\0\1t"),
            ("body", b"z" * 16381),
        ),
    ),
    Case(
        "PUBLISH with a BOM in the topic, which stays [MQTT-1.5.3-3]",
        Publish("\ufeffa", b""),
        (("type 3", b"\x30"), ("length", b"\x06"), ("topic", b"\0\4\xef\xbb\xbfa")),
        clauses=("3.1.1:MQTT-1.5.3-3",),
    ),
    Case(
        "PUBLISH with a remaining length that is longer than needed",
        Publish("a", b""),
        (("type 3", b"\x30"), ("length 3 in four bytes", b"\x83\x80\x80\x00"), ("topic", b"\0\1a")),
        decode_only=True,
    ),
    Case("PUBACK", Puback(7), (("type 4, length", b"\x40\x02"), ("packet id", b"\0\7"))),
    Case("PUBREC", Pubrec(7), (("type 5, length", b"\x50\x02"), ("packet id", b"\0\7"))),
    Case(
        "PUBREL with flags 0010 [MQTT-3.6.1-1]",
        Pubrel(7),
        (("type 6, flags 2, length", b"\x62\x02"), ("packet id", b"\0\7")),
        clauses=("3.1.1:MQTT-3.6.1-1",),
    ),
    Case(
        "PUBREL of MQTT 3.1 with DUP",
        Pubrel(7),
        (("type 6, DUP, flags 2, length", b"\x6a\x02"), ("packet id", b"\0\7")),
        level=3,
        decode_only=True,
    ),
    Case("PUBCOMP", Pubcomp(7), (("type 7, length", b"\x70\x02"), ("packet id", b"\0\7"))),
    Case(
        "SUBSCRIBE with flags 0010 [MQTT-3.8.1-1] and two filters",
        Subscribe(10, (TopicRequest("a/+", 1), TopicRequest("#", 2))),
        (
            ("type 8, flags 2", b"\x82"),
            ("length", b"\x0c"),
            ("packet id", b"\0\x0a"),
            ("filter, QoS 1", b"\0\3a/+\1"),
            ("filter, QoS 2", b"\0\1#\2"),
        ),
        clauses=("3.1.1:MQTT-3.8.1-1",),
    ),
    Case(
        "SUBACK",
        Suback(10, (1, 0x80)),
        (("type 9, length", b"\x90\x04"), ("packet id", b"\0\x0a"), ("QoS 1, failure", b"\1\x80")),
    ),
    Case(
        "UNSUBSCRIBE",
        Unsubscribe(11, ("a", "b/#")),
        (
            ("type 10, flags 2 [MQTT-3.10.1-1], length", b"\xa2\x0a"),
            ("packet id", b"\0\x0b"),
            ("filters", b"\0\1a\0\3b/#"),
        ),
        clauses=("3.1.1:MQTT-3.10.1-1",),
    ),
    Case("UNSUBACK", Unsuback(11), (("type 11, length", b"\xb0\x02"), ("packet id", b"\0\x0b"))),
    Case("PINGREQ", Pingreq(), (("type 12, length 0", b"\xc0\x00"),)),
    Case("PINGRESP", Pingresp(), (("type 13, length 0", b"\xd0\x00"),)),
    Case("DISCONNECT", Disconnect(), (("type 14, length 0", b"\xe0\x00"),)),
]

HEAD: Final = b"\x00\x04MQTT\x04"  # protocol name, level
TAIL: Final = b"\x00\x00\x00\x01c"  # keep-alive 0, client id "c"

MALFORMED: Final = [
    Refused("packet type 0", (b"\x00",), "MQTT 3.1.1 2.2.1"),
    Refused("packet type 15", (b"\xf0",), "MQTT 3.1.1 2.2.1"),
    # Flags of the fixed header that must be 0, and those that must be 0010.
    Refused("CONNECT with flags", (b"\x11", HEAD, b"\x02", TAIL), "MQTT-2.2.2-2"),
    Refused("PUBACK with flags", (b"\x41", b"\0\1"), "MQTT-2.2.2-2"),
    Refused("PUBREL without flags", (b"\x60", b"\0\1"), "MQTT-2.2.2-2"),
    Refused("PUBREL with DUP", (b"\x6a", b"\0\1"), "MQTT-2.2.2-2"),
    Refused("SUBSCRIBE without flags", (b"\x80", b"\0\1\0\1a\0"), "MQTT-2.2.2-2"),
    Refused("UNSUBSCRIBE without flags", (b"\xa0", b"\0\1\0\1a"), "MQTT-2.2.2-2"),
    Refused("PINGREQ with flags", (b"\xc1",), "MQTT-2.2.2-2"),
    Refused("DISCONNECT with flags", (b"\xe2",), "MQTT-2.2.2-2"),
    # CONNECT
    Refused("another protocol name", (b"\x10", b"\x00\x04HTTP\x04\x02", TAIL), "MQTT-3.1.2-1"),
    Refused("a protocol name cut short", (b"\x10", b"\x00\x04MQ"), "MQTT 3.1.1 1.5.3"),
    Refused("CONNECT of no bytes", (b"\x10",), "MQTT 3.1.1 1.5.3"),
    Refused("CONNECT without keep-alive", (b"\x10", HEAD, b"\x02"), "MQTT-3.1.4-1"),
    Refused("the reserved connect flag", (b"\x10", HEAD, b"\x03", TAIL), "MQTT-3.1.2-3"),
    Refused(
        "will QoS without will",
        (b"\x10", HEAD, b"\x0a", TAIL),
        "MQTT-3.1.2-13",
        also=("3.1.1:MQTT-3.1.2-11",),
    ),
    Refused(
        "will retain without will",
        (b"\x10", HEAD, b"\x22", TAIL),
        "MQTT-3.1.2-15",
        also=("3.1.1:MQTT-3.1.2-11",),
    ),
    Refused("will QoS 3", (b"\x10", HEAD, b"\x1e", TAIL, b"\0\1w\0\1m"), "MQTT-3.1.2-14"),
    Refused("password alone", (b"\x10", HEAD, b"\x42", TAIL, b"\0\1p"), "MQTT-3.1.2-22"),
    Refused("no client id", (b"\x10", HEAD, b"\x02\x00\x00"), "MQTT 3.1.1 1.5.3"),
    Refused("a client id cut short", (b"\x10", HEAD, b"\x02\x00\x00\x00\x05c"), "MQTT 3.1.1 1.5.3"),
    Refused(
        "a client id not UTF-8",
        (b"\x10", HEAD, b"\x02\0\0\0\1\xff"),
        "MQTT-1.5.3-1",
        also=("3.1.1:MQTT-3.1.3-4",),
    ),
    Refused("a client id with U+0000", (b"\x10", HEAD, b"\x02\0\0\0\1\0"), "MQTT-1.5.3-2"),
    Refused(
        "a will flag without will",
        (b"\x10", HEAD, b"\x06", TAIL),
        "MQTT 3.1.1 1.5.3",
        also=("3.1.1:MQTT-3.1.2-9",),
    ),
    Refused(
        "a will topic not UTF-8", (b"\x10", HEAD, b"\x06", TAIL, b"\0\1\x80\0\0"), "MQTT-1.5.3-1"
    ),
    Refused(
        "a user flag without user",
        (b"\x10", HEAD, b"\x82", TAIL),
        "MQTT 3.1.1 1.5.3",
        also=("3.1.1:MQTT-3.1.2-19",),
    ),
    Refused(
        "a password flag without one",
        (b"\x10", HEAD, b"\xc2", TAIL, b"\0\1u"),
        "MQTT 3.1.1 1.5.3",
        also=("3.1.1:MQTT-3.1.2-21",),
    ),
    Refused(
        "bytes behind the last field", (b"\x10", HEAD, b"\x02", TAIL, b"x"), "MQTT 3.1.1 2.2.3"
    ),
    Refused(
        "a user name and a password without their flags",
        (b"\x10", HEAD, b"\x02", TAIL, b"\0\1u\0\1p"),
        "MQTT 3.1.1 2.2.3",
        also=("3.1.1:MQTT-3.1.2-18", "3.1.1:MQTT-3.1.2-20"),
    ),
    Refused(
        "a will without its flag",
        (b"\x10", HEAD, b"\x02", TAIL, b"\0\1w\0\1m"),
        "MQTT 3.1.1 2.2.3",
        also=("3.1.1:MQTT-3.1.2-11",),
    ),
    # CONNACK, SUBACK: what a client of ours would refuse
    Refused("CONNACK with a reserved flag", (b"\x20", b"\x02\x00"), "MQTT 3.1.1 3.2.2"),
    Refused("CONNACK of one byte", (b"\x20", b"\x00"), "MQTT 3.1.1 3.2.2"),
    Refused("SUBACK with a reserved code", (b"\x90", b"\0\1\x03"), "MQTT-3.9.3-2"),
    # PUBLISH
    Refused("PUBLISH with QoS 3", (b"\x36", b"\0\1a\0\1"), "MQTT-3.3.1-4"),
    Refused("PUBLISH of no bytes", (b"\x30",), "MQTT-3.3.2-1"),
    Refused("PUBLISH of one byte", (b"\x30", b"\0"), "MQTT-3.3.2-1"),
    Refused("a topic cut short", (b"\x30", b"\0\2a"), "MQTT-3.3.2-1"),
    Refused("QoS 1 without a packet id", (b"\x32", b"\0\1a\0"), "MQTT-3.3.2-1"),
    Refused("a topic not UTF-8", (b"\x30", b"\0\1\xc3"), "MQTT-1.5.3-1"),
    Refused("a topic with a surrogate", (b"\x30", b"\0\3\xed\xa0\x80"), "MQTT-1.5.3-1"),
    Refused("a topic with an overlong slash", (b"\x30", b"\0\2\xc0\xaf"), "MQTT-1.5.3-1"),
    Refused(
        "a topic with U+0000", (b"\x30", b"\0\3a\0b"), "MQTT-1.5.3-2", also=("3.1.1:MQTT-4.7.3-2",)
    ),
    # packets that are only a packet id
    Refused("PUBACK of one byte", (b"\x40", b"\1"), "MQTT 3.1.1 2.2.3"),
    Refused("PUBACK of three bytes", (b"\x40", b"\0\1\0"), "MQTT 3.1.1 2.2.3"),
    Refused("PUBREC of no bytes", (b"\x50",), "MQTT 3.1.1 2.2.3"),
    Refused("UNSUBACK of three bytes", (b"\xb0", b"\0\1\0"), "MQTT 3.1.1 2.2.3"),
    # SUBSCRIBE, UNSUBSCRIBE
    Refused("SUBSCRIBE of one byte", (b"\x82", b"\0"), "MQTT-2.3.1-1"),
    Refused("a filter cut short", (b"\x82", b"\0\1\0\5a"), "MQTT 3.1.1 1.5.3"),
    Refused("a filter without QoS", (b"\x82", b"\0\1\0\1a"), "MQTT 3.1.1 3.8.3"),
    Refused("requested QoS 3", (b"\x82", b"\0\1\0\1a\3"), "MQTT-3.8.3-4"),
    Refused("reserved bits by the QoS", (b"\x82", b"\0\1\0\1a\x04"), "MQTT-3.8.3-4"),
    Refused(
        "a filter not UTF-8",
        (b"\x82", b"\0\1\0\1\xfe\0"),
        "MQTT-1.5.3-1",
        also=("3.1.1:MQTT-3.8.3-1",),
    ),
    Refused("UNSUBSCRIBE of one byte", (b"\xa2", b"\0"), "MQTT-2.3.1-1"),
    Refused("half a length", (b"\xa2", b"\0\1\0"), "MQTT 3.1.1 1.5.3"),
    Refused(
        "a filter of UNSUBSCRIBE not UTF-8",
        (b"\xa2", b"\0\1\0\1\xfe"),
        "MQTT-1.5.3-1",
        also=("3.1.1:MQTT-3.10.3-1",),
    ),
    # packets without content
    Refused("PINGREQ with content", (b"\xc0", b"\0"), "MQTT 3.1.1 2.2.3"),
    Refused("DISCONNECT with content", (b"\xe0", b"\0"), "MQTT 3.1.1 2.2.3"),
]

VIOLATIONS: Final = [
    Forbidden("an empty topic", Publish("", b""), "MQTT-4.7.3-1"),
    Forbidden("+ in a topic", Publish("a/+", b""), "MQTT-3.3.2-2"),
    Forbidden("# in a topic", Publish("#", b""), "MQTT-3.3.2-2"),
    Forbidden("PUBLISH with packet id 0", Publish("a", b"", 1, 0), "MQTT-2.3.1-1"),
    Forbidden("DUP with QoS 0", Publish("a", b"", 0, 0, False, True), "MQTT-3.3.1-2"),
    Forbidden("an empty will topic", Connect(client_id="c", will=Will("", b"")), "MQTT-4.7.3-1"),
    Forbidden(
        "a wildcard will topic", Connect(client_id="c", will=Will("a/#", b"")), "MQTT-4.7.1-1"
    ),
    Forbidden("CONNACK refusing a session", Connack(True, 5), "MQTT-3.2.2-4"),
    Forbidden("CONNACK with a reserved code", Connack(False, 6), "MQTT 3.1.1 3.2.2.3"),
    *(
        Forbidden(f"{kind.__name__} with packet id 0", kind(0), "MQTT-2.3.1-1")
        for kind in (Puback, Pubrec, Pubrel, Pubcomp, Unsuback)
    ),
    Forbidden("SUBACK with packet id 0", Suback(0, (0,)), "MQTT-2.3.1-1"),
    Forbidden("SUBSCRIBE with packet id 0", Subscribe(0, (TopicRequest("a", 0),)), "MQTT-2.3.1-1"),
    Forbidden("SUBSCRIBE to nothing", Subscribe(1, ()), "MQTT-3.8.3-3"),
    Forbidden("SUBSCRIBE to an empty filter", Subscribe(1, (TopicRequest("", 0),)), "MQTT-4.7.3-1"),
    Forbidden("SUBSCRIBE to a#", Subscribe(1, (TopicRequest("a#", 0),)), "MQTT-4.7.1-2"),
    Forbidden("SUBSCRIBE to a+", Subscribe(1, (TopicRequest("a+", 0),)), "MQTT-4.7.1-3"),
    Forbidden("UNSUBSCRIBE from a/#/b", Unsubscribe(1, ("a", "a/#/b")), "MQTT-4.7.1-2"),
    Forbidden("UNSUBSCRIBE from +a", Unsubscribe(1, ("+a",)), "MQTT-4.7.1-3"),
    Forbidden("UNSUBSCRIBE with packet id 0", Unsubscribe(0, ("a",)), "MQTT-2.3.1-1"),
    Forbidden("UNSUBSCRIBE from nothing", Unsubscribe(1, ()), "MQTT-3.10.3-2"),
    Forbidden("UNSUBSCRIBE from an empty filter", Unsubscribe(1, ("a", "")), "MQTT-4.7.3-1"),
]
