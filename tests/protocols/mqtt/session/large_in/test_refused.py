"""Large messages of MQTT clients that are refused, over a limit, or break a rule."""

import mqtt_raw
import pytest
from large_fakes import settled
from mqtt_large_in import ANSWERS, BIG, LEVELS, Case, by_level, wired

from tidegate.spi import AccessError, FlowControlError, RequestError, StoreFullError, StoreIOError
from tidegate_protocols.mqtt import (
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrel,
    ReasonCode,
    SessionState,
)

TEXT = Properties(payload_format_indicator=1)


# ---------------------------------------------------------------------------------------- refusals


REFUSALS = [
    (AccessError("no"), 0x87),
    (RequestError("bad name"), 0x90),
    (FlowControlError("too much"), 0x97),
    (StoreFullError("no room"), 0x97),
    (StoreIOError("read-only"), 0x83),
]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("when", ["check_publish", "publish"])
@pytest.mark.parametrize(("error", "reason"), REFUSALS)
async def test_a_refused_large_message_is_answered_and_its_body_passed_over(
    case, qos, when, error, reason
):
    it = case()
    it.connection.errors[when] = error
    await it.feed(wired(5, Publish("a", BIG, qos, 7 if qos else 0), Pingreq()), 11)
    assert it.client.gets() == [Pingresp()]
    wanted = Properties(reason_string=error.for_client)
    assert it.answers() == ([ANSWERS[qos](7, reason, wanted)] if qos else [])
    assert len(it.bodies.writers) == (when == "publish")
    it.connection.errors.clear()
    await it.sends(Publish("a", BIG, qos, 7 if qos else 0))
    assert len(it.published()) == 1, "the connection goes on and the id is free"


@pytest.mark.parametrize("level", [3, 4])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("when", ["check_publish", "publish"])
async def test_before_5_0_a_refused_large_message_ends_the_connection(case, level, qos, when):
    it = case(level)
    it.connection.errors[when] = AccessError("no")
    wire = wired(level, Publish("a", BIG, qos, 7 if qos else 0))
    await it.feed(wire[: 50 if when == "check_publish" else len(wire)], 11)
    assert it.state() is SessionState.CLOSED
    assert it.answers() == []
    assert len(it.bodies.writers) == (when == "publish")


@pytest.mark.parametrize(("fails_at", "size"), [(0, 300), (1 << 20, 3 << 20)])
async def test_a_disk_without_room_is_an_answer_and_the_connection_goes_on(case, fails_at, size):
    it = case()
    it.bodies.fails_at = fails_at
    await it.feed(wired(5, Publish("a", b"x" * size, 1, 7), Pingreq()), 1 << 18)
    assert it.client.gets() == [Pingresp()]
    (answer,) = it.answers()
    assert (answer.packet_id, answer.reason_code) == (7, 0x97)
    assert it.bodies.writers[0].is_abandoned
    it.bodies.fails_at = None
    await it.sends(Publish("a", BIG, 1, 8))
    assert it.answers() == [Puback(8)]


@pytest.mark.parametrize("level", [3, 4])
async def test_before_5_0_a_disk_without_room_ends_the_connection(case, level):
    it = case(level)
    it.bodies.fails_at = 0
    await it.sends(Publish("a", BIG, 1, 7), Publish("b", BIG, 1, 8))
    assert it.state() is SessionState.CLOSED
    assert (it.published(), it.answers()) == ([], [])
    assert all(writer.is_abandoned for writer in it.bodies.writers)


@pytest.mark.parametrize("step", [1, 100, 10_000])
@pytest.mark.parametrize(
    ("body", "is_text"),
    [
        ("ä€😀".encode() * 50, True),
        ("ä€😀".encode() * 50 + b"\xc3", False),
        (b"a" * 200 + b"\xff" + b"a" * 200, False),
    ],
)
async def test_a_payload_that_is_said_to_be_text_is_checked_as_it_comes(case, body, is_text, step):
    it = case()
    await it.feed(wired(5, Publish("a", body, 1, 7, properties=TEXT), Pingreq()), step)
    assert it.client.gets() == [Pingresp()]
    (answer,) = it.answers()
    assert answer.reason_code == (0 if is_text else ReasonCode.PAYLOAD_FORMAT_INVALID)
    assert len(it.published()) == is_text
    assert it.bodies.writers[0].is_abandoned != is_text


async def test_the_check_of_text_can_be_turned_off(case):
    it = case(payload_format_check=False)
    await it.sends(Publish("a", b"\xff" * 300, 1, 7, properties=TEXT))
    assert it.answers() == [Puback(7)]


@pytest.mark.parametrize("level", LEVELS)
async def test_what_is_to_be_retained_passes_through_memory_as_long_as_it_fits(case, level):
    limits = {"packet_bytes_max": 2000, "large_message_max_size": 100_000}
    it = case(level, **limits)
    await it.sends(Publish("a", BIG, 1, 7, True))
    ((message, _),) = it.connection.take("publish")
    assert (message.body, message.retain, it.bodies.writers) == (BIG, True, [])
    # A queue keeps its messages anyway, so there RETAIN means nothing.
    await it.sends(Publish("$queue/a", b"x" * 5000, 1, 8, True))
    ((message, _),) = it.connection.take("publish")
    assert (it.body(message), message.retain) == (b"x" * 5000, False)
    it.answers()
    await it.sends(Publish("a", b"x" * 5000, 1, 9, True))
    assert it.published() == []
    if level == 5:
        (answer,) = it.answers()
        assert (answer.packet_id, answer.reason_code) == (9, ReasonCode.QUOTA_EXCEEDED)
        assert "retained" in answer.properties.reason_string
    else:
        assert it.state() is SessionState.CLOSED


@by_level
async def test_a_large_message_over_its_limit_ends_the_connection_by_its_header(case, level):
    it = case(level, packet_bytes_max=2000, large_message_max_size=4000)
    await it.sends(Publish("a", b"x" * 3900, 0))
    assert len(it.published()) == 1
    await it.sends(wired(level, Publish("a", b"x" * 4100, 0))[:10])
    assert it.state() is SessionState.CLOSED
    if level == 5:
        (packet,) = it.client.gets()
        assert isinstance(packet, Disconnect)
        assert packet.reason_code == ReasonCode.PACKET_TOO_LARGE


def test_the_client_is_told_the_larger_limit(make_client):
    for options, told in (
        ({}, 16 << 20),
        ({"large_message_max_size": 100 << 20}, 100 << 20),
        ({"packet_bytes_max": 4096}, 4096),
    ):
        it = Case(make_client, **options)
        it.client.sends(Connect(client_id="dev", level=5))
        (connack,) = it.client.gets()
        assert connack.properties.maximum_packet_size == told


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (mqtt_raw.publish("a/+", BIG, version=5), 0x82),
        (mqtt_raw.publish("a", BIG, version=5, qos=1), 0x82),
        (mqtt_raw.publish("", BIG, version=5), 0x82),
        (mqtt_raw.publish("a", BIG, version=5, topic_alias=99), 0x94),
        (mqtt_raw.publish("", BIG, version=5, topic_alias=1), 0x82),
        (mqtt_raw.publish("a", BIG, version=5, subscription_id=[1]), 0x82),
    ],
)
async def test_a_header_that_breaks_a_rule_ends_the_connection_before_its_body(
    case, packet, reason
):
    it = case()
    await it.sends((wired(5, Publish("first", BIG)) + packet)[: -len(BIG)])
    assert it.published() == [("topic://first", BIG, 0)], "what came before it counts"
    (answer,) = it.client.gets()
    assert (type(answer), answer.reason_code) == (Disconnect, reason)
    assert it.state() is SessionState.CLOSED


@pytest.mark.parametrize(
    "head",
    [
        b"\x36\xac\x02\x00\x01a\x00\x07\x00",  # QoS 3
        b"\x30\xac\x02\xff\xff",  # a topic that is longer than the packet
        b"\x30\xac\x02\x00\x01\xff\x00",  # a topic that is not UTF-8
        b"\x30\xac\x02\x00\x01a\xff\xff\xff\xff",  # a property length of five bytes
        b"\x30\xac\x02\x00\x01a\xff\x7f",  # properties that are longer than the packet
        b"\x30\xac\x02\x00\x01a\x03\x01\x01\x77",  # no such property
    ],
)
@pytest.mark.parametrize("step", [1, 100])
async def test_a_header_that_cannot_be_read_is_malformed_before_its_body(case, head, step):
    it = case()
    await it.feed(head, step)
    (answer,) = it.client.gets()
    assert (type(answer), answer.reason_code) == (Disconnect, 0x81)


async def test_the_receive_maximum_counts_large_messages(case):
    it = case(receive_maximum=2)
    await it.sends(*(Publish("a", BIG, 1, number) for number in (1, 2)))
    assert it.answers() == [Puback(1), Puback(2)]
    await it.sends(Publish("a", BIG, 2, 1), Publish("a", BIG, 2, 1, dup=True))
    await it.sends(Publish("a", BIG, 1, 2))
    assert len(it.answers()) == 3
    await it.sends(Pubrel(1))
    assert it.answers() == [Pubcomp(1)]
    it.bodies.finish_door.clear()
    await it.sends(*(Publish("a", BIG, 1, number) for number in (1, 2, 3)))
    assert it.state() is SessionState.CONNECTED, "the error waits its turn"
    it.bodies.finish_door.set()
    await settled()
    *answers, packet = it.answers()
    assert it.state() is SessionState.CLOSED
    assert answers == [Puback(1), Puback(2)]
    assert packet.reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
