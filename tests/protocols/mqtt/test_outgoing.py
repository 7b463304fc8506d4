"""The sending side: packet ids, the window, order, and every answer at every stage."""

import logging
from typing import Any

import pytest

from tidegate.spi import InflightDirection, InflightRecord, InflightState, RequestError
from tidegate_protocols.mqtt import (
    Codec,
    PacketViolationError,
    Publish,
    Pubrel,
)
from tidegate_protocols.mqtt._outgoing import (
    PACKET_ID_MAX,
    Outgoing,
    OutgoingSubscription,
)

OUT = InflightDirection.OUT
PUBLISHED, RELEASED = InflightState.PUBLISHED, InflightState.RELEASED


class Side:
    """An Outgoing with what it sent and what it asked for."""

    def __init__(self, connection, *, is_persistent=False, inflight_max=10):
        self.connection = connection
        self.sent: list[bytes] = []
        self.outgoing = Outgoing(
            connection,
            self.sent.append,
            "dev",
            is_persistent=is_persistent,
            inflight_max=inflight_max,
        )

    def gets(self) -> list[Any]:
        codec = Codec(1 << 28)
        for data in self.sent:
            codec.receive_data(data)
        self.sent.clear()
        return codec.events()

    def bodies(self):
        return [packet.body for packet in self.gets() if isinstance(packet, Publish)]

    def durable(self):
        tokens, self.connection.tokens = self.connection.tokens, []
        self.sent += tokens


@pytest.fixture
def side(connection):
    return Side(connection)


def subscription(key="a", qos=2, *, is_storable=True):
    return OutgoingSubscription(key, qos, is_storable=is_storable)


def messages(stored, *sequences, **values):
    return [stored(number, body=b"%d" % number, **values) for number in sequences]


# --------------------------------------------------------------------------------- the window


def test_the_window_holds_back_what_it_has_no_room_for_in_order(connection, stored):
    side = Side(connection, inflight_max=2)
    first, second = subscription("a", 1), subscription("b", 1)
    side.outgoing.deliver(first, messages(stored, 1, 2, 3))
    side.outgoing.deliver(second, messages(stored, 4))
    side.outgoing.deliver(first, messages(stored, 5))
    assert side.bodies() == [b"1", b"2"]
    side.outgoing.puback(2)
    side.outgoing.settle()
    assert side.bodies() == [b"3"]
    side.outgoing.puback(1)
    side.outgoing.puback(3)
    side.outgoing.settle()
    assert side.bodies() == [b"4", b"5"]
    assert side.outgoing.inflight_count == 2
    side.outgoing.settle()
    assert side.bodies() == []


def test_messages_of_qos_0_do_not_wait_for_the_window(connection, stored):
    side = Side(connection, inflight_max=1)
    side.outgoing.deliver(subscription("a", 1), messages(stored, 1, 2))
    side.outgoing.deliver(subscription("b", 0), messages(stored, 3))
    assert side.bodies() == [b"1", b"3"]


def test_messages_of_qos_0_keep_their_place_in_their_own_subscription(connection, stored):
    side = Side(connection, inflight_max=1)
    wanted = subscription("a", 1)
    side.outgoing.deliver(wanted, messages(stored, 1, 2))
    side.outgoing.deliver(wanted, messages(stored, 3, qos=0))
    assert side.bodies() == [b"1"]
    side.outgoing.puback(1)
    side.outgoing.settle()
    assert side.bodies() == [b"2", b"3"]


def test_a_released_id_takes_room_until_it_is_complete(connection, stored):
    side = Side(connection, inflight_max=1)
    side.outgoing.deliver(subscription(), messages(stored, 1, 2))
    side.outgoing.pubrec(1)
    side.outgoing.settle()
    assert side.bodies() == [b"1"]
    side.outgoing.pubcomp(1)
    side.outgoing.settle()
    assert side.gets() == [Publish("a", b"2", 2, 2)]


# --------------------------------------------------------------------------------- packet ids


def test_packet_ids_go_round_and_leave_out_what_is_in_use(connection, stored):
    side = Side(connection, inflight_max=3)
    wanted = subscription("a", 1)
    side.outgoing.deliver(wanted, messages(stored, 0))  # takes 1 and keeps it
    side.gets()
    for number in range(1, PACKET_ID_MAX):
        side.outgoing.deliver(wanted, messages(stored, number))
        side.outgoing.puback(number + 1)
    side.gets()
    side.outgoing.deliver(wanted, messages(stored, 70_000, 70_001))
    ids = [packet.packet_id for packet in side.gets()]
    assert ids == [2, 3]  # never 0 [MQTT-2.3.1-1], never one in use [MQTT-2.3.1-4]


def test_all_packet_ids_can_be_in_use_and_then_the_next_waits(connection, stored):
    side = Side(connection, inflight_max=PACKET_ID_MAX)
    reserved = InflightRecord("dev", OUT, 500, PUBLISHED, "a", 10**9)
    side.outgoing.restore([reserved], {"a"})
    side.outgoing.deliver(subscription("a", 1), [stored(n) for n in range(PACKET_ID_MAX)])
    ids = [packet.packet_id for packet in side.gets()]
    assert len(ids) == len(set(ids)) == PACKET_ID_MAX - 1
    assert 500 not in ids
    side.outgoing.puback(7)
    side.outgoing.settle()
    assert [packet.packet_id for packet in side.gets()] == [7]


def test_a_redelivered_message_is_marked_dup_unless_it_goes_out_with_qos_0(side, stored):
    side.outgoing.deliver(subscription("a", 1), [stored(1, delivery_count=1)])
    side.outgoing.deliver(subscription("b", 0), [stored(2, delivery_count=1)])
    assert [packet.dup for packet in side.gets()] == [True, False]  # [MQTT-3.3.1-2]


# --------------------------------------------------------------------- every answer, every stage

# stage -> how to get packet id 1 there
STAGES = {
    "free": lambda side, stored: None,
    "qos 1": lambda side, stored: side.outgoing.deliver(subscription("a", 1), [stored(41)]),
    "qos 2": lambda side, stored: side.outgoing.deliver(subscription("a", 2), [stored(41)]),
    "released": lambda side, stored: side.outgoing.restore(
        [InflightRecord("dev", OUT, 1, RELEASED)], {"a"}
    ),
    "reserved": lambda side, stored: side.outgoing.restore(
        [InflightRecord("dev", OUT, 1, PUBLISHED, "a", 41)], {"a"}
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
def test_an_answer_does_what_its_stage_allows(connection, stored, stage, answer):
    side = Side(connection, is_persistent=True)
    STAGES[stage](side, stored)
    side.durable()
    side.gets()
    connection.calls.clear()
    expected = ANSWERS[stage, answer]
    if expected is None:
        with pytest.raises(PacketViolationError):
            getattr(side.outgoing, answer)(1)
        assert connection.calls == []
        return
    getattr(side.outgoing, answer)(1)
    side.outgoing.settle()
    side.durable()
    assert (side.gets(), [name for name, _ in connection.calls]) == expected


def test_the_table_of_answers_is_complete():
    assert len(ANSWERS) == len(STAGES) * 3


def test_a_reserved_id_can_still_be_used_after_an_early_answer(connection, stored):
    side = Side(connection, is_persistent=True)
    STAGES["reserved"](side, stored)
    side.outgoing.puback(1)
    side.outgoing.deliver(subscription("a", 1), [stored(41)])
    assert side.gets() == [Publish("a", b"x", 1, 1, False, True)]


# ------------------------------------------------------------------------------ acknowledging


def test_one_message_that_is_gone_does_not_keep_the_others(side, stored):
    wanted = subscription("a", 1)
    side.outgoing.deliver(wanted, messages(stored, 1, 2, 3))
    for packet_id in (1, 2, 3):
        side.outgoing.puback(packet_id)
    acknowledged = []

    def acknowledge(key, sequences, token=None, transaction=None, inflight=None):
        if 2 in sequences:
            raise RequestError("2 is not in flight")
        acknowledged.extend(sequences)

    side.connection.acknowledge = acknowledge
    side.outgoing.settle()
    assert acknowledged == [1, 3]


@pytest.mark.parametrize("is_persistent", [True, False])
def test_qos_2_is_completed_also_when_the_message_is_gone(connection, stored, is_persistent):
    side = Side(connection, is_persistent=is_persistent)
    side.outgoing.deliver(subscription(), messages(stored, 1))
    side.durable()
    side.gets()
    connection.errors["acknowledge"] = RequestError("purged")
    side.outgoing.pubrec(1)
    side.durable()
    assert side.gets() == [Pubrel(1)]
    records = [put for put, _ in connection.take("record_inflight")][1:]
    assert records == ([[InflightRecord("dev", OUT, 1, RELEASED)]] if is_persistent else [])


@pytest.mark.parametrize("is_persistent", [True, False])
def test_after_unsubscribe_what_was_sent_is_completed_and_nothing_acknowledged(
    connection, stored, is_persistent
):
    side = Side(connection, is_persistent=is_persistent, inflight_max=2)  # [MQTT-3.10.4-3]
    one, two = subscription("a", 1), subscription("b", 2)
    side.outgoing.deliver(one, messages(stored, 1))
    side.outgoing.deliver(two, messages(stored, 2, 3))
    side.durable()
    assert len(side.gets()) == 2
    side.outgoing.remove(one)
    side.outgoing.remove(two)
    side.outgoing.puback(1)
    side.outgoing.pubrec(2)
    side.outgoing.settle()
    side.durable()
    assert side.gets() == [Pubrel(2)]  # and 3, which waited, is not sent any more
    side.outgoing.pubcomp(2)
    side.outgoing.settle()
    assert connection.take("acknowledge") == []
    assert side.outgoing.inflight_count == 0
    assert side.outgoing.detached() == []


# ------------------------------------------------------------------------------------ sessions


def test_messages_of_qos_2_keep_their_order_when_a_new_one_comes_first(connection, stored):
    side = Side(connection, is_persistent=True)
    side.outgoing.restore([InflightRecord("dev", OUT, 9, PUBLISHED, "a", 2)], {"a"})
    side.outgoing.deliver(subscription(), messages(stored, 1, 2))
    assert side.gets() == []
    side.durable()
    assert [(packet.packet_id, packet.body) for packet in side.gets()] == [(1, b"1"), (9, b"2")]


def test_an_id_whose_queue_gave_the_message_away_is_completed(connection):
    side = Side(connection, is_persistent=True)
    side.outgoing.restore([InflightRecord("dev", OUT, 4, PUBLISHED, "$queue/q", 41)], {"a"})
    assert side.gets() == []
    released = InflightRecord("dev", OUT, 4, RELEASED)
    assert connection.take("record_inflight") == [([released], [])]
    side.durable()
    assert side.gets() == [Pubrel(4)]
    side.outgoing.pubcomp(4)
    assert connection.take("record_inflight") == [([], [(OUT, 4)])]
    assert side.outgoing.inflight_count == 0


def test_records_of_received_messages_are_not_ours(connection):
    side = Side(connection, is_persistent=True)
    record = InflightRecord("dev", InflightDirection.IN, 4, InflightState.RECEIVED)
    side.outgoing.restore([record], {"a"})
    assert (side.gets(), side.outgoing.inflight_count) == ([], 0)


def test_qos_1_of_a_queue_is_not_handed_to_the_next_connection(connection, stored):
    side = Side(connection, is_persistent=True)
    queue = subscription("$queue/q", 1, is_storable=False)
    side.outgoing.deliver(queue, messages(stored, 1))
    side.outgoing.deliver(subscription("a", 1), messages(stored, 2))
    assert side.outgoing.detached() == [InflightRecord("dev", OUT, 2, PUBLISHED, "a", 2)]


# ------------------------------------------------------------------------- what MQTT cannot carry


@pytest.mark.parametrize(("qos", "rejected"), [(0, []), (1, [("a", [1])])])
def test_a_message_that_mqtt_cannot_carry_goes_back_and_the_others_go_out(
    side, stored, caplog, qos, rejected
):
    long = stored(1, "queue://" + "x" * 65_535)
    with caplog.at_level(logging.WARNING, "tidegate.mqtt"):
        side.outgoing.deliver(subscription("a", qos), [long, stored(2)])
    assert [packet.topic for packet in side.gets()] == ["a"]
    assert side.connection.take("reject") == rejected
    assert "sequence=1" in caplog.text


def test_a_body_longer_than_a_packet_goes_back(side, stored, monkeypatch):
    # 256 MiB for real would be slow: the limit comes down instead.
    monkeypatch.setattr("tidegate_protocols.mqtt._outgoing.REMAINING_LENGTH_MAX", 100)
    fits, exceeds = stored(1, body=b"x" * 95), stored(2, body=b"x" * 96)
    side.outgoing.deliver(subscription("a", 1), [fits, exceeds])
    assert [len(packet.body) for packet in side.gets()] == [95]
    assert side.connection.take("reject") == [("a", [2])]
