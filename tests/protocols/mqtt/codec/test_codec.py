"""Packet cases as data, each run four ways, and the properties that hold for any bytes."""

from typing import Any

import mqtt_cases
import mqtt_cases_v5
import mqtt_wrong_v5
import msgspec
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
    encode,
)
from tidegate_protocols.mqtt.codec.codes import PACKET_REASONS, PacketType
from tidegate_protocols.mqtt.codec.fields import fixed_header
from tidegate_protocols.mqtt.codec.packets import Auth, Event, LargePublish
from tidegate_protocols.mqtt.codec.properties import (
    NO_PROPERTIES,
    PROPERTIES,
    WILL,
    Properties,
    PropertyType,
)

LIMIT = 1 << 20
CASES = mqtt_cases.CASES + mqtt_cases_v5.CASES
LEVELS = (3, 4, 5)

by_name = pytest.mark.parametrize("case", mqtt_cases.params(CASES))


@by_name
def test_a_packet_is_written_as_its_bytes(case):
    if case.decode_only:
        assert encode(case.packet, case.level) != case.wire
    else:
        assert encode(case.packet, case.level) == case.wire


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


def test_case_names_are_different():
    assert len({case.name for case in CASES}) == len(CASES)


def test_events_returns_no_more_than_asked_for_and_the_rest_later():
    codec = Codec(LIMIT)
    codec.receive_data(b"\xc0\x00\xe0\x00\xc0\x00")
    assert codec.events(1) == [Pingreq()]
    codec.receive_data(b"\x40\x02\x00\x01")
    assert codec.events(1) == [Disconnect()]
    assert codec.events() == [Pingreq(), Puback(1)]


def test_a_long_packet_is_the_last_one_of_a_call() -> None:
    requests = tuple(TopicRequest(f"some/filter/{n}", 0) for n in range(100))
    codec = Codec(LIMIT)
    codec.receive_data(b"\xc0\0" + encode(Subscribe(1, requests)) * 2 + b"\xc0\0\xc0")
    found = [codec.events(64)]
    while codec.left_behind:
        found.append(codec.events(64))
    assert found == [[Pingreq(), Subscribe(1, requests)], [Subscribe(1, requests)], [Pingreq()]]
    codec.receive_data(b"\0")
    assert codec.events() == [Pingreq()]


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


@pytest.mark.mqtt_clause("5.0:MQTT-3.2.2-15")
@pytest.mark.parametrize("size", [7, 128, 129, 130, 131, 16_386, 16_387, 16_388, 2_097_156])
def test_the_packet_limit_of_5_0_counts_the_whole_packet(size):
    packet = max(
        (
            header + b"z" * (length - 1)
            for length in range(max(2, size - 6), size)
            if len(header := fixed_header(0x30, length) + b"\0") + length - 1 <= size
        ),
        key=len,
    )
    for limit, is_accepted in ((len(packet), True), (len(packet) - 1, False)):
        codec = Codec(limit, 5)
        codec.receive_data(packet[:5])
        if is_accepted:
            codec.next_event()
            assert codec.incomplete_bytes in (0, len(packet))
        else:
            with pytest.raises(FrameTooLargeError) as caught:
                codec.next_event()
            assert caught.value.wire_code == 0x95


def test_the_limit_of_5_0_holds_for_what_comes_behind_the_connect():
    connect = encode(Connect(client_id="a", level=5))
    codec = Codec(len(connect))
    codec.receive_data(connect + encode(Publish("t", b"x" * (len(connect) - 6)), 5))
    assert len(codec.events()) == 2
    codec.packet_bytes_max -= 1
    codec.receive_data(encode(Publish("t", b"x" * (len(connect) - 6)), 5))
    with pytest.raises(FrameTooLargeError):
        codec.next_event()


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


def test_a_remaining_length_of_more_bytes_than_it_needs_is_malformed_in_5_0():
    for level, is_refused in ((3, False), (4, False), (5, True)):
        codec = Codec(LIMIT, level)
        codec.receive_data(b"\xc0\x80\x00")
        if is_refused:
            with pytest.raises(MalformedPacketError) as caught:
                codec.next_event()
            assert caught.value.clause == "5.0:MQTT-1.5.5-1"
        else:
            assert codec.next_event() == Pingreq()


def test_a_packet_without_properties_has_the_one_empty_value():
    codec = Codec(LIMIT, 5)
    codec.receive_data(b"\x30\x04\x00\x01t\x00" + b"\x40\x04\x00\x01\x00\x00" + b"\xe0\x00")
    found = [getattr(packet, "properties", None) for packet in codec.events()]
    assert len(found) == 3
    assert all(properties is NO_PROPERTIES for properties in found)


def test_a_connect_of_5_0_changes_how_a_publish_behind_it_is_read():
    codec = Codec(LIMIT)
    connect = Connect(client_id="a", level=5)
    publish = Publish("t", b"x", properties=Properties(content_type="c"))
    codec.receive_data(encode(connect) + encode(publish, 5))
    assert codec.events() == [connect, publish]
    assert codec.level == 5


@pytest.mark.parametrize(
    ("wire", "level"),
    [
        (b"\x10\x08\x00\x04MQTT\x05\x03", 5),  # ends inside its header
        (b"\x10\xff\xff\x7f\x00\x04MQTT\x05", 5),  # too large
        (b"\x10\x0a\x00\x06MQIsdp\x03\x03", 3),
        (b"\x10\x08\x00\x04MQTT\x06\x02", 4),  # of a version that is not known: as before
        (b"\x30\x08\x00\x04MQTT\x05\x03", 4),  # no CONNECT
    ],
)
def test_a_broken_connect_still_says_in_which_version_to_answer(wire, level):
    codec = Codec(100)
    codec.receive_data(wire)
    try:
        codec.next_event()
    except PeerProtocolError:
        assert wire[0] == 0x10
    assert codec.level == level


@pytest.mark.parametrize(
    ("case", "by_client"),
    [
        pytest.param(
            case,
            by_client,
            id=case.name,
            marks=[pytest.mark.mqtt_clause(*case.clauses)] if case.clauses else [],
        )
        for case, by_client in mqtt_wrong_v5.WRONG_SENDER
    ],
)
def test_what_only_the_other_side_may_say_is_refused(case, by_client):
    wire = encode(case.packet, 5)
    for from_client in (None, not by_client):
        codec = Codec(LIMIT, 5, from_client=from_client)
        codec.receive_data(wire)
        assert codec.next_event() == case.packet
    codec = Codec(LIMIT, 5, from_client=by_client)
    codec.receive_data(wire)
    with pytest.raises(PacketViolationError) as caught:
        codec.next_event()
    assert caught.value.clause == case.clause
    assert caught.value.wire_code == case.reason


# ---------------------------------------------------------------------------------- properties

packet_ids = st.integers(1, 65535)
text = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20
)
topics = text.filter(lambda name: "+" not in name and "#" not in name)
filters = st.one_of(topics, st.sampled_from(["#", "+", "a/#", "+/a/+", "/#", "$share/g/+"]))
bodies = st.binary(max_size=300)
qos = st.integers(0, 2)

#: Values of a property of each type; those that only some properties may have are narrower.
VALUES = {
    PropertyType.BYTE: st.integers(0, 1),
    PropertyType.TWO_BYTES: st.integers(1, 0xFFFF),
    PropertyType.FOUR_BYTES: st.integers(1, 0xFFFF_FFFF),
    PropertyType.STRING: st.just("") | text,
    PropertyType.BINARY: st.binary(max_size=20),
    PropertyType.VARIABLE: st.integers(1, 268_435_455).map(lambda value: (value,)),
    PropertyType.STRING_PAIR: st.lists(st.tuples(text, text), max_size=4).map(tuple),
}


def properties_of(place: int, **always: Any) -> st.SearchStrategy[Properties]:
    """Properties that a packet may have; *always*: values it needs."""
    fields = {
        rule.name: VALUES[rule.kind]
        for rule in PROPERTIES.values()
        if place in rule.places and rule.name != "authentication_data"
    }
    if "response_topic" in fields:
        fields["response_topic"] = topics
    if place == PacketType.PUBLISH:
        fields["subscription_identifiers"] = st.lists(st.integers(1, 268_435_455), max_size=3).map(
            tuple
        )

    def make(values: dict[str, Any]) -> Properties:
        return Properties(**(values | always))

    made = st.fixed_dictionaries({}, optional=fields).map(make)
    return made.map(lambda value: NO_PROPERTIES if value == NO_PROPERTIES else value)


def reasons(kind: PacketType) -> st.SearchStrategy[int]:
    return st.sampled_from(sorted(set(PACKET_REASONS[kind].values())))


requests_v5 = st.builds(
    TopicRequest, filters, qos, st.booleans(), st.booleans(), st.integers(0, 2)
).filter(lambda request: not (request.no_local and request.topic_filter.startswith("$share/")))
acknowledgements = {
    Puback: PacketType.PUBACK,
    Pubrec: PacketType.PUBREC,
    Pubrel: PacketType.PUBREL,
    Pubcomp: PacketType.PUBCOMP,
}
P = PacketType


def packets(level: int) -> st.SearchStrategy[Packet]:
    """Every packet of one version."""
    is_new = level == 5

    def props(place: int, **always: Any) -> st.SearchStrategy[Properties]:
        return properties_of(place, **always) if is_new else st.just(NO_PROPERTIES)

    message = props(P.PUBLISH)
    kinds = [
        st.builds(
            Publish, topics, bodies, st.just(0), st.just(0), st.booleans(), st.just(False), message
        ),
        st.builds(
            Publish, topics, bodies, st.integers(1, 2), packet_ids, st.booleans(), st.booleans(),
            message,
        ),
        st.builds(
            Connect,
            client_id=st.just("") | text,
            clean_session=st.booleans(),
            keep_alive=st.integers(0, 65535),
            username=text,
            password=st.none() | bodies,
            will=st.none() | st.builds(Will, topics, bodies, qos, st.booleans(), props(WILL)),
            level=st.just(level),
            properties=props(P.CONNECT),
        ),
        st.sampled_from([Pingreq(), Pingresp(), Disconnect()]),
        st.builds(
            Unsubscribe, packet_ids, st.lists(filters, min_size=1).map(tuple), props(P.UNSUBSCRIBE)
        ),
    ]  # fmt: skip
    if not is_new:
        return st.one_of(
            *kinds,
            st.builds(Connack, st.just(False), st.integers(0, 5)),
            *(st.builds(kind, packet_ids) for kind in (*acknowledgements, Unsuback)),
            st.builds(
                Subscribe,
                packet_ids,
                st.lists(st.builds(TopicRequest, filters, qos), min_size=1).map(tuple),
            ),
            st.builds(Suback, packet_ids, st.lists(st.sampled_from((0, 1, 2, 128))).map(tuple)),
        )
    return st.one_of(
        *kinds,
        st.builds(Connack, st.just(False), reasons(P.CONNACK), props(P.CONNACK)),
        *(
            st.builds(kind, packet_ids, reasons(number), props(number))
            for kind, number in acknowledgements.items()
        ),
        st.builds(
            Subscribe,
            packet_ids,
            st.lists(requests_v5, min_size=1).map(tuple),
            props(P.SUBSCRIBE),
        ),
        *(
            st.builds(
                kind,
                packet_ids,
                st.lists(reasons(number), min_size=1, max_size=9).map(tuple),
                props(number),
            )
            for kind, number in ((Suback, P.SUBACK), (Unsuback, P.UNSUBACK))
        ),
        st.builds(Disconnect, reasons(P.DISCONNECT), props(P.DISCONNECT)),
        st.builds(Auth, reasons(P.AUTH), props(P.AUTH, authentication_method="m")),
    )


PACKETS = {level: packets(level) for level in LEVELS}


@pytest.mark.parametrize("level", LEVELS)
@settings(deadline=None)
@given(data=st.data())
def test_packets_survive_the_wire_however_it_is_cut(level, data):
    sent = data.draw(st.lists(PACKETS[level], max_size=8))
    wire = b"".join(encode(packet, level) for packet in sent)
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=10).map(sorted))
    codec = Codec(LIMIT, level)
    received: list[Event] = []
    for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        codec.receive_data(wire[start:stop])
        limit = data.draw(st.integers(1, 3))
        while batch := codec.events(limit):
            received += batch
    assert received == sent


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6), st.integers(0, 100), st.sampled_from(LEVELS))
def test_any_bytes_parse_or_are_the_peers_fault(pieces, limit, level):
    codec = Codec(limit, level)
    for piece in pieces:
        codec.receive_data(piece)
        try:
            while codec.next_event() is not NEED_DATA:
                pass
        except PeerProtocolError:
            return


@pytest.mark.parametrize("level", LEVELS)
@settings(deadline=None)
@given(data=st.data())
def test_a_packet_with_one_wrong_byte_parses_or_is_the_peers_fault(level, data):
    wire = bytearray(encode(data.draw(PACKETS[level]), level))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    codec = Codec(LIMIT, level)
    codec.receive_data(bytes(wire))
    try:
        for event in codec.events():
            assert isinstance(event, Packet)
    except PeerProtocolError:
        pass


# ------------------------------------------------------------------------------- bodies in pieces


def streaming(level, size_min=50, limit=1 << 28, packet_bytes_max=LIMIT):
    codec = Codec(packet_bytes_max, level)
    codec.stream_bodies(size_min, limit)
    return codec


def joined(codec, pieces):
    """All packets, with the bodies that came in pieces put back."""
    found: list[Any] = []
    body = b""
    for piece in pieces:
        codec.receive_data(piece)
        while True:
            while data := codec.take_body():
                body += data
            if not codec.end_body():
                assert codec.events() == [], "nothing comes before the body was taken"
                break
            if found and isinstance(found[-1], LargePublish):
                assert len(body) == found[-1].size
                found[-1] = msgspec.structs.replace(found[-1].head, body=body)
                body = b""
            events = codec.events()
            if not events:
                break
            found += events
    return found


@pytest.mark.parametrize("level", LEVELS)
@settings(deadline=None)
@given(data=st.data())
def test_bodies_in_pieces_are_the_same_packets_however_they_are_cut(level, data):
    sent = data.draw(st.lists(PACKETS[level], max_size=8))
    wire = b"".join(encode(packet, level) for packet in sent)
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=10).map(sorted))
    codec = streaming(level, data.draw(st.integers(1, 60)))
    pieces = [wire[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert joined(codec, pieces) == sent
    assert codec.incomplete_bytes == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("step", [1, 3, 64, 100_000])
def test_a_body_of_the_least_size_comes_in_pieces_and_a_smaller_one_does_not(level, step):
    sent = [Publish("t" * 200, b"x" * size, 1, 7) for size in (49, 50, 51, 60_000)]
    codec = streaming(level)
    events = []
    wire = b"".join(encode(packet, level) for packet in sent)
    for at in range(0, len(wire), step):
        codec.receive_data(wire[at : at + step])
        while (packets := codec.events()) or codec.take_body():
            events += packets
    assert [type(event) for event in events] == [Publish] + [LargePublish] * 3
    assert [event.size for event in events[1:]] == [50, 51, 60_000]
    assert {event.head.body for event in events[1:]} == {b""}


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_retained_and_fits_comes_whole(level):
    codec = streaming(level, packet_bytes_max=1000)
    codec.receive_data(encode(Publish("t", b"x" * 900, retain=True), level))
    assert codec.next_event() == Publish("t", b"x" * 900, retain=True)
    codec.receive_data(encode(Publish("t", b"x" * 1900, retain=True), level))
    assert codec.next_event() == LargePublish(Publish("t", b"", retain=True), 1900)


@pytest.mark.parametrize(
    ("wire", "limit"),
    [
        (fixed_header(0x30, 2001) + b"\0\1t", 2000),  # larger than what is streamed may be
        (fixed_header(0x82, 1001) + b"\0\1", 1000),  # not to be streamed
        (fixed_header(0x30, 1020) + b"\x03\xde" + b"t" * 990, 1000),  # with a body of 28 bytes
        (fixed_header(0x30, 1999) + b"\x04\x00" + b"t" * 1024, 1000),  # a header that is too long
    ],
)
def test_each_kind_of_packet_has_its_limit(wire, limit):
    codec = streaming(4, limit=2000, packet_bytes_max=1000)
    codec.receive_data(wire)
    with pytest.raises(FrameTooLargeError, match=f"larger than the limit of {limit}"):
        codec.next_event()
    with pytest.raises(FrameTooLargeError):
        codec.events()


@pytest.mark.parametrize("size", [127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_the_limit_of_a_streamed_packet_of_5_0_counts_the_whole_packet(size):
    head = fixed_header(0x30, size)
    for limit, is_accepted in ((len(head) + size, True), (len(head) + size - 1, False)):
        codec = streaming(5, limit=limit, packet_bytes_max=100)
        codec.receive_data(head + b"\0\1t\0")
        if is_accepted:
            assert codec.next_event() == LargePublish(Publish("t", b""), size - 4)
        else:
            with pytest.raises(FrameTooLargeError):
                codec.next_event()


def test_the_packets_in_front_of_a_large_one_come_with_it():
    codec = streaming(4)
    codec.receive_data(b"\xc0\0" + encode(Publish("t", b"x" * 60), 4) + b"\xc0\0")
    assert codec.events() == [Pingreq(), LargePublish(Publish("t", b""), 60)]
    assert codec.incomplete_bytes == 0
    assert codec.take_body() == b"x" * 60
    assert codec.take_body() == b""
    assert codec.events() == [Pingreq()]
