"""Packet cases as data, each run four ways, and the properties that hold for any bytes."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.spi import FrameTooLargeError, PeerProtocolError
from tidegate_protocols.mqtt import (
    NEED_DATA,
    Codec,
    Connack,
    Connect,
    Disconnect,
    MalformedPacketError,
    Packet,
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
    encode,
)

LIMIT = 1 << 20


@dataclasses.dataclass(frozen=True)
class Case:
    """One packet. Parts: (what it is, its bytes). decode_only: we never write it this way."""

    name: str
    packet: Packet
    parts: tuple[tuple[str, bytes], ...]
    level: int = 4
    decode_only: bool = False

    @property
    def wire(self) -> bytes:
        return b"".join(data for _, data in self.parts)


CASES = [
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
    ),
    Case("UNSUBACK", Unsuback(11), (("type 11, length", b"\xb0\x02"), ("packet id", b"\0\x0b"))),
    Case("PINGREQ", Pingreq(), (("type 12, length 0", b"\xc0\x00"),)),
    Case("PINGRESP", Pingresp(), (("type 13, length 0", b"\xd0\x00"),)),
    Case("DISCONNECT", Disconnect(), (("type 14, length 0", b"\xe0\x00"),)),
]

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@by_name
def test_a_packet_is_written_as_its_bytes(case):
    if case.decode_only:
        assert encode(case.packet) != case.wire
    else:
        assert encode(case.packet) == case.wire


@by_name
def test_a_packet_is_read_whole(case):
    codec = Codec(LIMIT, case.level)
    codec.receive_data(case.wire)
    assert codec.next_event() == case.packet
    assert codec.next_event() is NEED_DATA


@by_name
def test_a_packet_is_read_byte_by_byte(case):
    codec = Codec(LIMIT, case.level)
    for position in range(len(case.wire)):
        assert codec.next_event() is NEED_DATA
        codec.receive_data(case.wire[position : position + 1])
    assert codec.events() == [case.packet]
    assert codec.events() == []
    assert codec.incomplete_bytes == 0


@by_name
def test_a_packet_is_read_with_others_behind_it(case):
    codec = Codec(LIMIT, case.level)
    codec.receive_data(case.wire + b"\xc0\x00" + case.wire + b"\xc0")
    assert codec.events() == [case.packet, Pingreq(), case.packet]
    codec.receive_data(b"\x00")
    assert codec.events() == [Pingreq()]


def test_events_returns_no_more_than_asked_for_and_the_rest_later():
    codec = Codec(LIMIT)
    codec.receive_data(b"\xc0\x00\xe0\x00\xc0\x00")
    assert codec.events(1) == [Pingreq()]
    codec.receive_data(b"\x40\x02\x00\x01")
    assert codec.events(1) == [Disconnect()]
    assert codec.events() == [Pingreq(), Puback(1)]


def test_a_connect_sets_the_level_for_the_packets_behind_it():
    codec = Codec(LIMIT)
    codec.receive_data(encode(Connect(client_id="a", level=3)) + b"\x6a\x02\x00\x01")
    assert codec.events()[1] == Pubrel(1)
    assert codec.level == 3


def test_what_came_before_an_error_is_returned_and_the_error_is_raised_from_then_on():
    codec = Codec(LIMIT)
    codec.receive_data(b"\xc0\x00\x00\x00\xc0\x00")
    assert codec.events() == [Pingreq()]
    for _ in range(2):
        with pytest.raises(MalformedPacketError):
            codec.events()
    codec.receive_data(b"\xc0\x00")
    with pytest.raises(MalformedPacketError):
        codec.next_event()


@pytest.mark.parametrize(
    ("limit", "accepted"), [(5, True), (4, False)], ids=["at the limit", "one byte above it"]
)
def test_a_packet_is_refused_above_the_limit_before_its_body_came(limit, accepted):
    codec = Codec(limit)
    codec.receive_data(b"\x30\x05")
    if accepted:
        assert codec.next_event() is NEED_DATA
        assert codec.incomplete_bytes == 7
    else:
        with pytest.raises(FrameTooLargeError) as caught:
            codec.next_event()
        assert caught.value.wire_code == 0x95


def test_a_remaining_length_of_five_bytes_is_malformed():
    codec = Codec(1 << 28)
    codec.receive_data(b"\x30\xff\xff\xff")
    assert codec.next_event() is NEED_DATA
    codec.receive_data(b"\xff")
    with pytest.raises(MalformedPacketError, match="four bytes") as caught:
        codec.next_event()
    assert caught.value.wire_code == 0x81


def test_the_largest_remaining_length_is_understood():
    codec = Codec(268_435_455)
    codec.receive_data(b"\x30\xff\xff\xff\x7f")
    assert codec.next_event() is NEED_DATA
    assert codec.incomplete_bytes == 268_435_455 + 5


# ---------------------------------------------------------------------------------- properties

packet_ids = st.integers(1, 65535)
text = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20
)
topics = text.filter(lambda name: "+" not in name and "#" not in name)
bodies = st.binary(max_size=300)
qos = st.integers(0, 2)
publishes = st.one_of(
    st.builds(Publish, topics, bodies, st.just(0), st.just(0), st.booleans(), st.just(False)),
    st.builds(Publish, topics, bodies, st.integers(1, 2), packet_ids, st.booleans(), st.booleans()),
)
packets = st.one_of(
    publishes,
    st.builds(
        Connect,
        client_id=st.just("") | text,
        clean_session=st.booleans(),
        keep_alive=st.integers(0, 65535),
        username=text,
        password=st.none() | bodies,
        will=st.none() | st.builds(Will, topics, bodies, qos, st.booleans()),
        level=st.just(4),
    ),
    st.builds(Connack, st.just(False), st.integers(0, 5)),
    *(st.builds(kind, packet_ids) for kind in (Puback, Pubrec, Pubrel, Pubcomp, Unsuback)),
    st.builds(
        Subscribe, packet_ids, st.lists(st.builds(TopicRequest, text, qos), min_size=1).map(tuple)
    ),
    st.builds(Suback, packet_ids, st.lists(st.sampled_from((0, 1, 2, 128))).map(tuple)),
    st.builds(Unsubscribe, packet_ids, st.lists(text, min_size=1).map(tuple)),
    st.sampled_from([Pingreq(), Pingresp(), Disconnect()]),
)


@settings(deadline=None)
@given(st.lists(packets, max_size=8), st.data())
def test_packets_survive_the_wire_however_it_is_cut(sent, data):
    wire = b"".join(encode(packet) for packet in sent)
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=10).map(sorted))
    codec = Codec(LIMIT)
    received: list[Packet] = []
    for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        codec.receive_data(wire[start:stop])
        limit = data.draw(st.integers(1, 3))
        while batch := codec.events(limit):
            received += batch
    assert received == sent


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6), st.integers(0, 100), st.sampled_from((3, 4)))
def test_any_bytes_parse_or_are_the_peers_fault(pieces, limit, level):
    codec = Codec(limit, level)
    for piece in pieces:
        codec.receive_data(piece)
        try:
            while codec.next_event() is not NEED_DATA:
                pass
        except PeerProtocolError:
            return


@settings(deadline=None)
@given(packets, st.data())
def test_a_packet_with_one_wrong_byte_parses_or_is_the_peers_fault(packet, data):
    wire = bytearray(encode(packet))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    codec = Codec(LIMIT)
    codec.receive_data(bytes(wire))
    try:
        for event in codec.events():
            assert isinstance(event, Packet)
    except PeerProtocolError:
        pass
