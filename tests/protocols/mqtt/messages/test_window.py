"""Packet ids towards a client: every answer at every stage, and what is stored of them."""

import itertools

import pytest

from tidegate.spi import InflightDirection, InflightRecord, InflightState, RequestError
from tidegate_protocols.mqtt import (
    PacketViolationError,
    Properties,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
)
from tidegate_protocols.mqtt.messages.window import PACKET_ID_MAX, SENT_THROUGH_ID, refusal_of

OUT = InflightDirection.OUT
PUBLISHED, RELEASED = InflightState.PUBLISHED, InflightState.RELEASED

#: In a session that stays a message of this sequence gets packet id 1.
FIRST = PACKET_ID_MAX


def sent_through(sequence):
    """The record that says how far QoS 1 messages were sent."""
    return InflightRecord("dev", OUT, SENT_THROUGH_ID, PUBLISHED, "", sequence)


def said(text):
    return Properties(reason_string=text)


def messages(stored, *sequences, **values):
    return [stored(number, body=b"%d" % number, **values) for number in sequences]


# --------------------------------------------------------------------- every answer, every stage

# stage -> how to get packet id 1 there
STAGES = {
    "free": lambda side, stored: None,
    "qos 1": lambda side, stored: side.outgoing.deliver(side.subscribed("a", 1), [stored(FIRST)]),
    "qos 2": lambda side, stored: side.outgoing.deliver(side.subscribed("a", 2), [stored(FIRST)]),
    "released": lambda side, stored: side.window.restore(
        [InflightRecord("dev", OUT, 1, RELEASED)], {}
    ),
    "reserved": lambda side, stored: side.window.restore(
        [InflightRecord("dev", OUT, 1, PUBLISHED, "a", 41)], {"a": side.subscribed("a")}
    ),
}

# (stage, answer) -> what the client gets, and the names of the calls to the broker.
# None: a violation. MQTT 3.1.1 figures 4.2 and 4.3.
ANSWERS = {
    ("free", "puback"): ([], []),
    ("free", "pubrec"): ([Pubrel(1)], []),
    ("free", "pubcomp"): ([], []),
    ("qos 1", "puback"): ([], ["acknowledge"]),
    ("qos 1", "pubrec"): None,
    ("qos 1", "pubcomp"): None,
    ("qos 2", "puback"): None,
    ("qos 2", "pubrec"): ([Pubrel(1)], ["acknowledge"]),
    ("qos 2", "pubcomp"): None,
    ("released", "puback"): None,
    ("released", "pubrec"): ([Pubrel(1)], ["synchronize"]),
    ("released", "pubcomp"): ([], ["record_inflight"]),
    ("reserved", "puback"): ([], []),
    ("reserved", "pubrec"): ([], []),
    ("reserved", "pubcomp"): ([], []),
}


@pytest.mark.parametrize(("stage", "answer"), ANSWERS, ids=lambda value: value)
def test_an_answer_does_what_its_stage_allows(make_side, stored, stage, answer):
    side = make_side(is_persistent=True)
    STAGES[stage](side, stored)
    side.durable()
    side.gets()
    side.connection.calls.clear()
    expected = ANSWERS[stage, answer]
    if expected is None:
        with pytest.raises(PacketViolationError):
            getattr(side.window, answer)(1)
        assert side.connection.calls == []
        return
    getattr(side.window, answer)(1)
    side.outgoing.settle()
    side.durable()
    assert (side.gets(), [name for name, _ in side.connection.calls]) == expected


def test_the_table_of_answers_is_complete():
    assert len(ANSWERS) == len(STAGES) * 3


def test_a_reserved_id_can_still_be_used_after_an_early_answer(make_side, stored):
    side = make_side(is_persistent=True)
    STAGES["reserved"](side, stored)
    side.window.puback(1)
    wanted = side.by_key["a"]
    wanted.qos = 1
    side.outgoing.deliver(wanted, [stored(41)])
    assert side.gets() == [Publish("a", b"x", 1, 1, False, True)]


# ------------------------------------------------------------------------------ acknowledging


def test_one_message_that_is_gone_does_not_keep_the_others(side, stored):
    wanted = side.subscribed("a", 1)
    side.outgoing.deliver(wanted, messages(stored, 1, 2, 3))
    for packet_id in (1, 2, 3):
        side.window.puback(packet_id)
    acknowledged = []

    def acknowledge(key, sequences, token=None, transaction=None, inflight=None):
        if 2 in sequences:
            raise RequestError("2 is not in flight")
        acknowledged.extend(sequences)

    side.connection.acknowledge = acknowledge
    side.outgoing.settle()
    assert acknowledged == [1, 3]


@pytest.mark.parametrize("is_persistent", [True, False])
def test_qos_2_is_completed_also_when_the_message_is_gone(make_side, stored, is_persistent):
    side = make_side(is_persistent=is_persistent)
    side.outgoing.deliver(side.subscribed(), messages(stored, FIRST))
    side.durable()
    side.gets()
    side.connection.errors["acknowledge"] = RequestError("purged")
    side.window.pubrec(1)
    side.durable()
    assert side.gets() == [Pubrel(1)]
    records = [put for put, _ in side.connection.take("record_inflight")][1:]
    assert records == ([[InflightRecord("dev", OUT, 1, RELEASED)]] if is_persistent else [])


@pytest.mark.parametrize("is_persistent", [True, False])
def test_after_unsubscribe_what_was_sent_is_completed_and_nothing_acknowledged(
    make_side, stored, is_persistent
):
    side = make_side(is_persistent=is_persistent, size=2)  # [MQTT-3.10.4-3]
    one, two = side.subscribed("a", 1), side.subscribed("b", 2)
    side.outgoing.deliver(one, messages(stored, FIRST))
    side.outgoing.deliver(two, messages(stored, FIRST + 1, FIRST + 2))
    side.durable()
    assert len(side.gets()) == 2
    side.outgoing.remove(one)
    side.outgoing.remove(two)
    side.window.puback(1)
    side.window.pubrec(2)
    side.outgoing.settle()
    side.durable()
    assert side.gets() == [Pubrel(2)]  # and 3, which waited, is not sent any more
    side.window.pubcomp(2)
    side.outgoing.settle()
    assert side.connection.take("acknowledge") == []
    assert len(side.window.inflight) == 0


@pytest.mark.parametrize("level", [4, 5])
def test_an_answer_to_nothing_says_so_in_5_0(make_side, level):
    side = make_side(level=level)
    side.window.pubrec(9)
    reason = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if level == 5 else ReasonCode.SUCCESS
    assert side.gets() == [Pubrel(9, reason)]


@pytest.mark.parametrize("is_persistent", [True, False])
def test_a_pubrec_with_an_error_ends_the_message(make_side, stored, is_persistent):
    side = make_side(level=5, is_persistent=is_persistent)  # 5.0:MQTT-4.4.0-2
    side.outgoing.deliver(side.subscribed(), [stored(FIRST)])
    side.durable()
    side.gets()
    side.connection.calls.clear()
    side.window.pubrec(1, "0x97 quota exceeded")
    side.outgoing.settle()
    assert side.gets() == []  # no PUBREL
    assert side.connection.take("refuse") == [("a", [FIRST], "0x97 quota exceeded")]
    removed = [([], [(OUT, 1)])] if is_persistent else []
    assert side.connection.take("record_inflight") == removed
    assert side.window.inflight == {}


def test_a_puback_with_an_error_ends_the_message_alone(make_side, stored):
    side = make_side(level=5, is_persistent=True)  # 5.0:MQTT-4.4.0-2
    side.outgoing.deliver(side.subscribed("a", 1), [stored(FIRST), stored(FIRST + 1)])
    side.connection.calls.clear()
    side.window.puback(1, "0x87 not authorized")
    side.window.puback(2)
    side.outgoing.settle()
    assert side.connection.take("refuse") == [("a", [FIRST], "0x87 not authorized")]
    assert side.connection.take("acknowledge") == [("a", [FIRST + 1], None)]
    assert side.window.inflight == {}


def test_what_is_refused_of_a_subscription_that_is_gone_is_the_broker_s_already(make_side, stored):
    side = make_side(level=5)
    side.connection.errors["refuse"] = RequestError("it is not in flight")
    side.outgoing.deliver(side.subscribed("a", 1), messages(stored, 1, 2))
    one, two = [packet.packet_id for packet in side.gets()]
    side.window.puback(one, "0x80 unspecified error")  # it was purged meanwhile
    side.outgoing.remove(side.subscribed("a", 1))
    side.window.puback(two, "0x80 unspecified error")
    assert side.window.inflight == {}


@pytest.mark.parametrize(
    ("packet", "refusal"),
    [
        (Puback(1), ""),
        (Puback(1, ReasonCode.NO_MATCHING_SUBSCRIBERS), ""),
        (Puback(1, ReasonCode.UNSPECIFIED_ERROR), "0x80 unspecified error"),
        (Pubrec(1, ReasonCode.NOT_AUTHORIZED, said("no")), "0x87 not authorized: no"),
        (
            Pubrec(1, ReasonCode.QUOTA_EXCEEDED, said("é" * 600)),
            f"0x97 quota exceeded: {'é' * 512}",
        ),
    ],
)
def test_a_refusal_is_told_in_words(packet, refusal):
    assert refusal_of(packet) == refusal


# ------------------------------------------------------------------------------------ the store


def test_the_id_of_a_qos_1_message_follows_from_its_sequence(make_side, stored):
    for _ in range(2):  # on every connection the same
        side = make_side(is_persistent=True)
        side.outgoing.deliver(side.subscribed("a", 1), [stored(n) for n in (41, 65_536, 99)])
        assert [packet.packet_id for packet in side.gets()] == [42, 2, 100]


def test_of_qos_1_the_store_knows_how_far_was_sent(make_side, stored):
    side = make_side(is_persistent=True)
    wanted = side.subscribed("a", 1)
    side.outgoing.deliver(wanted, messages(stored, 41, 42))
    side.outgoing.deliver(wanted, messages(stored, 30))
    assert side.bodies() == [b"41", b"42", b"30"]  # nothing is held back for it
    assert side.connection.take("record_inflight") == [([sent_through(42)], [])]
    assert side.connection.tokens == []
    side.window.puback(43)
    side.window.puback(42)
    side.outgoing.settle()
    assert side.connection.calls == [("acknowledge", ("a", [42, 41], None))]


def test_after_a_crash_what_may_have_been_sent_is_marked_dup(make_side, stored):
    side = make_side(is_persistent=True)
    side.window.restore([sent_through(42)], {})
    side.outgoing.deliver(side.subscribed("a", 1), [stored(n) for n in (41, 42, 43)])
    side.outgoing.deliver(side.subscribed("b", 0), [stored(40)])
    side.outgoing.deliver(side.subscribed("$queue/q", 1, is_own=False), [stored(39)])
    found = [(packet.packet_id, packet.dup) for packet in side.gets()]
    assert found[:4] == [(42, True), (43, True), (44, False), (0, False)]
    assert found[4][1] is False  # the queue's message may never have been sent to this client
    assert side.window.limit == 10


def test_a_connection_that_ends_in_order_leaves_nothing_to_guess(make_side, stored):
    side = make_side(is_persistent=True)
    side.outgoing.deliver(side.subscribed("a", 1), messages(stored, 41, 42))
    side.connection.calls.clear()
    side.window.puback(42)
    side.window.leave()
    assert side.connection.calls == [
        ("acknowledge", ("a", [41], None)),
        ("record_inflight", ([], [(OUT, SENT_THROUGH_ID)])),
    ]


def test_a_connection_that_sent_nothing_leaves_nothing(make_side):
    side = make_side(is_persistent=True)
    side.window.leave()
    assert side.connection.calls == []


def test_an_id_that_could_not_be_the_messages_own_is_recorded(make_side, stored):
    side = make_side(is_persistent=True)
    wanted = side.subscribed("a", 1)
    side.outgoing.deliver(wanted, [stored(41), stored(41 + PACKET_ID_MAX)])
    assert [packet.packet_id for packet in side.gets()] == [42, 43]
    record = InflightRecord("dev", OUT, 43, PUBLISHED, "a", 41 + PACKET_ID_MAX, 1)
    ((put, _),) = side.connection.take("record_inflight")
    assert put == [record, sent_through(41 + PACKET_ID_MAX)]
    # On the next connection it comes back under that id, whatever comes first.
    later = make_side(is_persistent=True)
    again = later.subscribed("a", 1)
    later.window.restore(put, later.by_key)
    later.outgoing.deliver(again, [stored(42), stored(41 + PACKET_ID_MAX)])
    assert [packet.packet_id for packet in later.gets()] == [44, 43]
    later.connection.calls.clear()
    later.window.puback(43)
    later.outgoing.settle()
    assert later.connection.take("record_inflight") == [([], [(OUT, 43)])]


def test_a_message_that_comes_twice_has_two_ids_far_from_each_other(make_side, stored):
    side = make_side(is_persistent=True)
    copies = [
        side.subscribed("a", 1),
        side.subscribed("+", 1, no_local=True),
        side.subscribed("$share/g/a", 1, is_own=False),
        side.subscribed("$share/h/a", 1, is_own=False),
    ]
    for subscription in copies:
        side.outgoing.deliver(subscription, [stored(41)])
    ids = sorted(packet.packet_id for packet in side.gets())
    assert ids[0] == 42
    assert all(after - before > 1000 for before, after in itertools.pairwise(ids))


@pytest.mark.parametrize(("is_persistent", "is_own"), [(False, True), (True, False)])
def test_of_what_is_not_kept_for_this_client_nothing_is_stored(
    make_side, stored, is_persistent, is_own
):
    side = make_side(is_persistent=is_persistent)
    side.outgoing.deliver(side.subscribed("a", 1, is_own=is_own), messages(stored, FIRST))
    side.window.puback(*side.window.inflight)
    side.outgoing.settle()
    side.window.leave()
    assert side.connection.take("record_inflight") == []
    assert side.connection.take("acknowledge") == [("a", [FIRST], None)]


def test_ids_come_back_in_their_order_with_dup(make_side, stored):
    side = make_side(is_persistent=True, size=2)
    wanted = side.subscribed("a", 2)
    records = [InflightRecord("dev", OUT, n, PUBLISHED, "a", 50 - n, 2) for n in (9, 8, 3)]
    side.window.restore(records, side.by_key)
    side.outgoing.deliver(wanted, messages(stored, 41, 42, 47, 48))
    # Two at a time, also when they are sent again [5.0:MQTT-3.3.4-9].
    assert side.gets() == [
        Publish("a", b"41", 2, 9, False, True),
        Publish("a", b"42", 2, 8, False, True),
    ]
    for packet_id in (9, 8):
        side.window.pubrec(packet_id)
        side.window.pubcomp(packet_id)
    side.outgoing.settle()
    side.durable()
    assert [packet for packet in side.gets() if isinstance(packet, Publish)] == [
        Publish("a", b"47", 2, 3, False, True),
        Publish("a", b"48", 2, 49, False, False),
    ]


def test_an_id_whose_message_left_its_list_is_completed(make_side, stored):
    side = make_side(is_persistent=True)
    wanted = side.subscribed("a", 2)
    records = [InflightRecord("dev", OUT, n, PUBLISHED, "a", 40 + n) for n in (1, 2)]
    side.window.restore(records, side.by_key)
    # 41 has expired: the list is in order, so it would have come before 43.
    side.outgoing.deliver(wanted, [stored(42, delivery_count=1), stored(43)])
    released = InflightRecord("dev", OUT, 1, RELEASED)
    assert ([released], []) in side.connection.take("record_inflight")
    side.durable()
    packets = side.gets()
    assert Pubrel(1) in packets
    assert [p.packet_id for p in packets if isinstance(p, Publish)] == [2, 44]
    side.window.pubcomp(1)
    assert 1 not in side.window.inflight
    assert side.window.limit == 10


def test_messages_of_qos_2_keep_their_order_when_a_new_one_comes_first(make_side, stored):
    side = make_side(is_persistent=True)
    wanted = side.subscribed()
    side.window.restore([InflightRecord("dev", OUT, 9, PUBLISHED, "a", 2)], side.by_key)
    side.outgoing.deliver(wanted, messages(stored, 1, 2))
    assert side.gets() == []
    side.durable()
    assert [(packet.packet_id, packet.body) for packet in side.gets()] == [(2, b"1"), (9, b"2")]


def test_a_qos_2_id_whose_subscription_is_gone_is_completed(make_side):
    side = make_side(is_persistent=True)
    side.window.restore([InflightRecord("dev", OUT, 4, PUBLISHED, "gone", 41, 2)], side.by_key)
    assert side.gets() == []
    released = InflightRecord("dev", OUT, 4, RELEASED)
    assert side.connection.take("record_inflight") == [([released], [])]
    side.durable()
    assert side.gets() == [Pubrel(4)]
    side.window.pubcomp(4)
    assert side.connection.take("record_inflight") == [([], [(OUT, 4)])]
    assert side.window.inflight == {}
    assert side.window.limit == 10


def test_a_qos_1_id_whose_message_is_gone_is_free(make_side, stored):
    side = make_side(is_persistent=True)
    wanted = side.subscribed("a", 1)
    records = [
        InflightRecord("dev", OUT, 4, PUBLISHED, "gone", 41, 1),
        InflightRecord("dev", OUT, 5, PUBLISHED, "a", 42, 1),
    ]
    side.window.restore(records, side.by_key)
    side.outgoing.deliver(wanted, [stored(43)])
    side.outgoing.settle()
    assert [packet.packet_id for packet in side.gets()] == [44]
    assert side.connection.take("record_inflight")[-1] == ([], [(OUT, 4), (OUT, 5)])
    assert list(side.window.inflight) == [44]
    assert side.window.limit == 10


# ------------------------------------------------------------------------- shared subscriptions


def test_a_qos_2_message_of_a_group_stays_with_the_client_that_was_sent_it(make_side, stored):
    side = make_side(is_persistent=True)
    group = side.subscribed("$share/g/a", is_own=False)
    side.outgoing.deliver(group, messages(stored, 41, 42))
    assert side.outgoing.unanswered() == {}  # held back: the client has neither
    side.durable()
    side.outgoing.deliver(group, [stored(43), stored(44, qos=1)])
    side.outgoing.deliver(side.subscribed("a"), [stored(45)])
    side.window.pubrec(next(iter(side.window.inflight)))
    assert side.outgoing.unanswered() == {"$share/g/a": [42]}  # 5.0:MQTT-4.8.2-4
    side.durable()
    assert side.outgoing.unanswered() == {"$share/g/a": [42, 43]}
    records = [
        record.sequence for put, _ in side.connection.take("record_inflight") for record in put
    ]
    assert records == [41, 42, 43, 45]  # QoS 1 of a group is anyone's again


def test_without_a_session_that_stays_the_client_may_have_what_was_sent(make_side, stored):
    side = make_side()
    side.outgoing.deliver(side.subscribed("$share/g/a", is_own=False), messages(stored, 41))
    assert side.outgoing.unanswered() == {"$share/g/a": [41]}  # 5.0:MQTT-4.8.2-5


def test_a_message_of_a_group_comes_back_under_its_id(make_side, stored):
    side = make_side(is_persistent=True)
    group = side.subscribed("$share/g/a", is_own=False)
    record = InflightRecord("dev", OUT, 7, PUBLISHED, "$share/g/a", 41, 2)
    side.window.restore([record], side.by_key)
    side.outgoing.deliver(group, [stored(41, delivery_count=1)])
    assert side.gets() == [Publish("a", b"x", 2, 7, False, True)]


# ------------------------------------------------------------------------------- unsubscribing


def test_after_unsubscribe_a_recorded_id_of_qos_1_is_forgotten_by_the_store(make_side, stored):
    side = make_side(is_persistent=True)
    wanted = side.subscribed("a", 1)
    side.outgoing.deliver(wanted, [stored(41), stored(41 + PACKET_ID_MAX)])
    side.connection.calls.clear()
    side.outgoing.remove(wanted)
    side.outgoing.settle()
    assert side.connection.take("record_inflight") == [([], [(OUT, 43)])]
    side.window.puback(43)
    side.window.puback(42)
    side.outgoing.settle()
    assert side.connection.calls == []


def test_after_unsubscribe_ids_that_wait_for_their_message_are_completed(make_side):
    side = make_side(is_persistent=True)
    wanted = side.subscribed("a", 2)
    side.window.restore([InflightRecord("dev", OUT, 4, PUBLISHED, "a", 41)], side.by_key)
    side.outgoing.remove(wanted)
    side.durable()
    assert side.gets() == [Pubrel(4)]


def test_records_of_received_messages_are_not_ours(make_side):
    side = make_side(is_persistent=True)
    record = InflightRecord("dev", InflightDirection.IN, 4, InflightState.RECEIVED)
    side.window.restore([record], side.by_key)
    assert (side.gets(), side.window.inflight) == ([], {})


def test_the_id_of_a_message_that_cannot_be_sent_any_more_is_free(make_side, stored):
    side = make_side(level=5, is_persistent=True, packet_bytes_max=30)
    wanted = side.subscribed("a", 1)
    side.window.restore([InflightRecord("dev", OUT, 4, PUBLISHED, "a", 41, 1)], side.by_key)
    side.outgoing.deliver(wanted, [stored(41, body=b"x" * 30)])
    side.outgoing.settle()
    why = "36 bytes are more than the client accepts"
    assert side.connection.take("refuse") == [("a", [41], why)]
    assert side.connection.take("record_inflight") == [([], [(OUT, 4)])]
    assert side.window.inflight == {}


def test_what_is_in_doubt_at_a_member_and_too_large_by_now_goes_to_no_other(make_side, stored):
    """[MQTT-4.8.2-5]; what was never sent to it is given back."""
    side = make_side(level=5, is_persistent=True, packet_bytes_max=30)
    wanted = side.subscribed("$share/g/a", is_own=False)
    record = InflightRecord("dev", OUT, 4, PUBLISHED, "$share/g/a", 41, 2)
    side.window.restore([record], side.by_key)
    side.outgoing.deliver(wanted, [stored(at, body=b"x" * 30, qos=2) for at in (41, 42)])
    why = "36 bytes are more than the client accepts"
    assert side.connection.take("refuse") == [("$share/g/a", [41], why)]
    assert side.connection.take("reject") == [("$share/g/a", [42])]
