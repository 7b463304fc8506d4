"""The sending side: the window, order, and what MQTT 5.0 says about each message."""

import logging

import pytest

from tidegate.spi import InflightDirection, InflightRecord, InflightState, LargeBody
from tidegate_protocols.mqtt import NO_PROPERTIES, Properties, Publish
from tidegate_protocols.mqtt.messages.outgoing import remaining_length_of
from tidegate_protocols.mqtt.messages.window import PACKET_ID_MAX

OUT = InflightDirection.OUT
PUBLISHED = InflightState.PUBLISHED


def messages(stored, *sequences, **values):
    return [stored(number, body=b"%d" % number, **values) for number in sequences]


# --------------------------------------------------------------------------------- the window


def test_the_window_holds_back_what_it_has_no_room_for_in_order(make_side, stored):
    side = make_side(size=2)
    first, second = side.subscribed("a", 1), side.subscribed("b", 1)
    side.outgoing.deliver(first, messages(stored, 1, 2, 3))
    side.outgoing.deliver(second, messages(stored, 4))
    side.outgoing.deliver(first, messages(stored, 5))
    assert side.bodies() == [b"1", b"2"]
    side.window.puback(2)
    side.outgoing.settle()
    assert side.bodies() == [b"3"]
    side.window.puback(1)
    side.window.puback(3)
    side.outgoing.settle()
    assert side.bodies() == [b"4", b"5"]
    assert len(side.window.inflight) == 2
    side.outgoing.settle()
    assert side.bodies() == []


def test_messages_of_qos_0_do_not_wait_for_the_window(make_side, stored):
    side = make_side(size=1)
    side.outgoing.deliver(side.subscribed("a", 1), messages(stored, 1, 2))
    side.outgoing.deliver(side.subscribed("b", 0), messages(stored, 3))
    assert side.bodies() == [b"1", b"3"]


def test_messages_of_qos_0_keep_their_place_in_their_own_subscription(make_side, stored):
    side = make_side(size=1)
    wanted = side.subscribed("a", 1)
    side.outgoing.deliver(wanted, messages(stored, 1, 2))
    side.outgoing.deliver(wanted, messages(stored, 3, qos=0))
    assert side.bodies() == [b"1"]
    side.window.puback(1)
    side.outgoing.settle()
    assert side.bodies() == [b"2", b"3"]


def test_each_packet_of_a_run_has_its_own_header(make_side, stored):
    side = make_side()
    bodies = [b"a", b"b", b"", b"c" * 300, b"d" * 300, b"e", b"f", b"g" * 20_000]
    run = [
        stored(number, body=body, qos=number % 4 // 2, delivery_count=number % 3 // 2)
        for number, body in enumerate(bodies)
    ]
    side.outgoing.deliver(side.subscribed("a", 1), run)
    assert [(packet.body, packet.qos, packet.dup) for packet in side.gets()] == [
        (m.message.body, m.message.qos, m.message.qos > 0 and m.delivery_count > 0) for m in run
    ]


def test_a_released_id_takes_room_until_it_is_complete(make_side, stored):
    side = make_side(size=1)
    side.outgoing.deliver(side.subscribed(), messages(stored, 1, 2))
    side.window.pubrec(1)
    side.outgoing.settle()
    assert side.bodies() == [b"1"]
    side.window.pubcomp(1)
    side.outgoing.settle()
    assert side.gets() == [Publish("a", b"2", 2, 2)]


# --------------------------------------------------------------------------------- packet ids


def test_packet_ids_go_round_and_leave_out_what_is_in_use(make_side, stored):
    side = make_side(size=3)
    wanted = side.subscribed("a", 1)
    side.outgoing.deliver(wanted, messages(stored, 0))  # takes 1 and keeps it
    side.gets()
    for number in range(1, PACKET_ID_MAX):
        side.outgoing.deliver(wanted, messages(stored, number))
        side.window.puback(number + 1)
    side.gets()
    side.outgoing.deliver(wanted, messages(stored, 70_000, 70_001))
    ids = [packet.packet_id for packet in side.gets()]
    assert ids == [2, 3]  # never 0 [MQTT-2.3.1-1], never one in use [MQTT-2.3.1-4]


def test_all_packet_ids_can_be_in_use_and_then_the_next_waits(make_side, stored):
    side = make_side(size=PACKET_ID_MAX)
    wanted = side.subscribed("a", 1)
    side.window.restore([InflightRecord("dev", OUT, 500, PUBLISHED, "a", 10**9)], side.by_key)
    side.outgoing.deliver(wanted, [stored(n) for n in range(PACKET_ID_MAX)])
    ids = [packet.packet_id for packet in side.gets()]
    assert len(ids) == len(set(ids)) == PACKET_ID_MAX - 1
    assert 500 not in ids
    side.window.puback(7)
    side.outgoing.settle()
    assert [packet.packet_id for packet in side.gets()] == [7]


class CountedIds(dict[int, object]):
    """The table of ids in use, which counts how often it is asked for one."""

    asked = 0

    def __contains__(self, packet_id: object) -> bool:
        self.asked += 1
        return super().__contains__(packet_id)


@pytest.mark.parametrize("is_persistent", [True, False])
def test_ids_that_are_in_use_in_a_row_are_passed_once_and_not_for_every_message(
    make_side, stored, is_persistent
):
    count = 4_000
    side = make_side(size=PACKET_ID_MAX, is_persistent=is_persistent)
    ids = side.window.inflight = CountedIds()
    # Two subscriptions want the same ids, as those of a group and another one can.
    for name in ("a", "b"):
        side.outgoing.deliver(side.subscribed(name, 1), [stored(n) for n in range(count)])
    assert len(ids) == len(side.gets()) == 2 * count
    assert ids.asked < 5 * count


def test_a_redelivered_message_is_marked_dup_unless_it_goes_out_with_qos_0(side, stored):
    side.outgoing.deliver(side.subscribed("a", 1), [stored(1, delivery_count=1)])
    side.outgoing.deliver(side.subscribed("b", 0), [stored(2, delivery_count=1)])
    assert [packet.dup for packet in side.gets()] == [True, False]  # [MQTT-3.3.1-2]


# ------------------------------------------------------------------------- what MQTT cannot carry


@pytest.mark.parametrize(("qos", "rejected"), [(0, []), (1, [("a", [1])])])
def test_a_message_that_mqtt_cannot_carry_goes_back_and_the_others_go_out(
    side, stored, caplog, qos, rejected
):
    long = stored(1, "queue://" + "x" * 65_535)
    with caplog.at_level(logging.WARNING, "tidegate.mqtt"):
        side.outgoing.deliver(side.subscribed("a", qos), [long, stored(2)])
    assert [packet.topic for packet in side.gets()] == ["a"]
    assert side.connection.take("reject") == rejected
    assert "sequence=1" in caplog.text


def test_a_body_longer_than_a_packet_goes_back(make_side, stored, monkeypatch):
    # 256 MiB for real would be slow: the limit comes down instead.
    monkeypatch.setattr("tidegate_protocols.mqtt.messages.outgoing.REMAINING_LENGTH_MAX", 100)
    side = make_side()
    fits, exceeds = stored(1, body=b"x" * 95), stored(2, body=b"x" * 96)
    side.outgoing.deliver(side.subscribed("a", 1), [fits, exceeds])
    assert [len(packet.body) for packet in side.gets()] == [95]
    assert side.connection.take("reject") == [("a", [2])]


# --------------------------------------------------------------------------------- time and size


def test_a_message_that_expired_while_it_waited_is_not_sent(make_side, stored):
    side = make_side(size=1)
    side.outgoing.deliver(
        side.subscribed("a", 1), messages(stored, 1, 2, expires_at=side.now_us + 5_000_000)
    )
    assert side.bodies() == [b"1"]
    side.now_us += 5_000_000
    side.window.puback(1)
    side.outgoing.settle()
    assert side.bodies() == []  # 5.0:MQTT-3.3.2-5
    assert side.connection.take("reject") == [("a", [2])]  # the broker sees that it expired


def test_a_message_that_was_sent_before_it_expired_is_sent_again(make_side, stored):
    side = make_side(level=5, is_persistent=True)  # 5.0:MQTT-4.3.3-7
    wanted = side.subscribed("a", 2)
    side.window.restore([InflightRecord("dev", OUT, 7, PUBLISHED, "a", 1, 2)], side.by_key)
    side.outgoing.deliver(wanted, [stored(1, expires_at=side.now_us - 1)])
    (packet,) = side.gets()
    assert (packet.packet_id, packet.properties.message_expiry_interval) == (7, 0)


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("sent", [1, 2])
def test_what_was_in_flight_is_sent_again_with_its_qos_whatever_is_granted_by_now(
    make_side, stored, sent, granted
):
    side = make_side(is_persistent=True)  # MQTT-4.4.0-1
    wanted = side.subscribed("a", granted)
    side.window.restore([InflightRecord("dev", OUT, 7, PUBLISHED, "a", 1, sent)], side.by_key)
    side.outgoing.deliver(wanted, [stored(1, delivery_count=1), stored(2)])
    side.durable()
    first, second = side.gets()
    assert (first.packet_id, first.qos, first.dup) == (7, sent, True)
    assert (second.qos, second.dup) == (granted, False)


def test_a_message_that_expired_defines_no_alias(make_side, stored):
    side = make_side(level=5, topic_alias_max=1)
    late = stored(1, expires_at=side.now_us)
    side.outgoing.deliver(side.subscribed("a", 0), [late, stored(2)])
    (packet,) = side.gets()
    assert (packet.topic, packet.properties.topic_alias) == ("a", 1)


@pytest.mark.parametrize(
    ("packet_bytes", "length"),
    [(5, 3), (129, 127), (130, 127), (131, 128), (16_386, 16_383), (16_388, 16_384)],
)
def test_a_packet_limit_counts_the_fixed_header(packet_bytes, length):
    assert remaining_length_of(packet_bytes) == length


def test_a_packet_limit_never_exceeds_what_mqtt_can_say():
    assert remaining_length_of(268_435_460) == remaining_length_of(0xFFFF_FFFF) == 268_435_455


@pytest.mark.parametrize(
    ("qos", "is_own", "asked"),
    [
        (0, True, []),
        # As if it had been delivered, but for its row.
        (1, True, [("refuse", ("a", [2], "21 bytes are more than the client accepts"))]),
        (1, False, [("reject", ("a", [2]))]),  # another member may be able to take it
    ],
)
def test_a_message_larger_than_the_client_takes_is_left_out(make_side, stored, qos, is_own, asked):
    side = make_side(level=5, packet_bytes_max=20)
    fits, exceeds = stored(1, body=b"x" * 12), stored(2, body=b"x" * 15)
    side.outgoing.deliver(side.subscribed("a", qos, is_own=is_own), [fits, exceeds, stored(3)])
    assert [len(packet.body) for packet in side.gets()] == [12, 1]  # 5.0:MQTT-3.1.2-24
    assert side.connection.calls == asked


# -------------------------------------------------------------------------------- MQTT 5.0 says more


def test_a_message_without_properties_has_an_empty_block(make_side, stored):
    side = make_side(level=5)
    side.outgoing.deliver(side.subscribed("a", 1), [stored(1), stored(2, qos=0)])
    assert b"".join(side.sent) == b"\x32\x07\0\1a\0\1\0x" + b"\x30\x05\0\1a\0x"


def test_the_properties_of_a_message_go_with_it(make_side, stored):
    side = make_side(level=5)
    side.outgoing.deliver(
        side.subscribed("a", 0),
        [
            stored(
                1,
                headers=(("k", "1"), ("k", "2")),
                content_type="text/plain",
                correlation_data=b"c",
                reply_to="topic://answers.here",
                payload_format=1,
                expires_at=side.now_us + 2_500_000,
            )
        ],
    )
    (packet,) = side.gets()
    assert packet.properties == Properties(
        payload_format_indicator=1,
        message_expiry_interval=3,  # what is left of it [5.0:MQTT-3.3.2-6]
        content_type="text/plain",
        response_topic="answers/here",
        correlation_data=b"c",
        user_properties=(("k", "1"), ("k", "2")),
    )


@pytest.mark.parametrize(
    ("as_published", "fields", "retain"),
    [
        (False, {"retain": True}, False),
        (True, {"retain": True}, True),
        (True, {"retain": False}, False),
        (False, {"retain": True, "retained": True}, True),
        (True, {"retain": True, "retained": True}, True),
    ],
)
def test_retain_says_that_it_was_retained_or_what_the_publisher_said(
    make_side, stored, as_published, fields, retain
):
    side = make_side(level=5)
    wanted = side.subscribed("a", 0, retain_as_published=as_published)
    side.outgoing.deliver(wanted, [stored(1, **fields)])
    (packet,) = side.gets()
    assert packet.retain is retain


def test_the_identifiers_of_all_matching_subscriptions_go_with_a_message(make_side, stored):
    side = make_side(level=5)
    wanted = side.subscribed("a/#", 0, filter_name="a.>", identifier=7)
    side.subscribed("a/b", 0, filter_name="a.b", identifier=300)
    side.subscribed("c", 0, filter_name="c", identifier=9)
    side.outgoing.deliver(wanted, [stored(1, "topic://a.b"), stored(2, "topic://a.x")])
    found = [packet.properties.subscription_identifiers for packet in side.gets()]
    assert found == [(7, 300), (7,)]


# ------------------------------------------------------------------------------- topic aliases


def test_the_first_topics_get_aliases_and_are_named_once(make_side, stored):
    side = make_side(level=5, topic_alias_max=2)
    wanted = side.subscribed("#", 1, filter_name=">")
    topics = ["topic://a", "topic://b", "topic://c", "topic://a", "topic://c"]
    side.outgoing.deliver(wanted, [stored(n, topic) for n, topic in enumerate(topics)])
    found = [(packet.topic, packet.properties.topic_alias) for packet in side.gets()]
    assert found == [("a", 1), ("b", 2), ("c", None), ("", 1), ("c", None)]


def test_a_message_that_is_held_back_neither_defines_nor_uses_an_alias(make_side, stored):
    side = make_side(level=5, topic_alias_max=2, is_persistent=True)
    wanted = side.subscribed("a", 2)
    side.outgoing.deliver(wanted, [stored(1, qos=2), stored(2, qos=0), stored(3, qos=2)])
    side.durable()
    found = [(p.qos, p.topic, p.properties.topic_alias) for p in side.gets()]
    assert found == [(0, "a", 1), (2, "a", None), (2, "a", None)]


def test_a_message_that_is_left_out_defines_no_alias(make_side, stored):
    side = make_side(level=5, topic_alias_max=2, packet_bytes_max=20)
    side.outgoing.deliver(side.subscribed("a", 0), [stored(1, body=b"x" * 16), stored(2)])
    (packet,) = side.gets()
    assert (packet.topic, packet.properties.topic_alias) == ("a", 1)


@pytest.mark.parametrize("packet_bytes_max", [20, 100])
def test_a_large_body_defines_no_alias_whether_it_is_left_out_or_not(
    make_side, stored, packet_bytes_max
):
    side = make_side(level=5, topic_alias_max=2, packet_bytes_max=packet_bytes_max)
    large = stored(1, body=b"", large=LargeBody("k", 16))
    side.outgoing.deliver(side.subscribed("a", 0), [large, stored(2)])
    assert [wire[2:] for wire in side.sent[:-1]] == [b"\0\x01a\0"] * (packet_bytes_max == 100)
    del side.sent[:-1]
    (packet,) = side.gets()
    assert (packet.topic, packet.properties.topic_alias) == ("a", 1)


def test_a_message_that_fits_only_without_an_alias_has_none(make_side, stored):
    side = make_side(level=5, topic_alias_max=2, packet_bytes_max=20)
    side.outgoing.deliver(side.subscribed("a", 0), [stored(1, body=b"x" * 14)])
    (packet,) = side.gets()
    assert (packet.topic, packet.properties) == ("a", NO_PROPERTIES)
