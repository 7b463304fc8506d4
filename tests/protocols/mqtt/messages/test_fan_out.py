"""QoS 0 to many: encoded once, and never for a client to whom something else is to be said."""

import pytest

from tidegate_protocols.mqtt import Publish
from tidegate_protocols.mqtt.messages.fan_out import KEPT_BYTES_MAX, FanOut


@pytest.fixture
def shared():
    return FanOut()


def test_only_the_last_messages_are_known(shared, stored):
    first, second = [stored(1), stored(2)], [stored(1)]
    assert shared.find(first) == b""
    shared.keep(first, b"12")
    assert shared.find(list(first)) == b"12"
    assert shared.find(first[:1]) == b""
    assert shared.find([*first, stored(3)]) == b""
    shared.keep(second, b"1")
    assert (shared.find(first), shared.find(second)) == (b"", b"1")


def test_what_is_large_is_not_kept(shared, stored):
    messages = [stored(1)]
    shared.keep(messages, b"x" * (KEPT_BYTES_MAX + 1))
    assert shared.find(messages) == b""


@pytest.mark.parametrize("level", [4, 5])
def test_all_get_the_same_bytes(make_side, shared, stored, level):
    messages = [stored(1), stored(2, qos=0, retained=True)]
    sides = [make_side(level=level, fan_out=shared) for _ in range(3)]
    for side in sides:
        side.outgoing.deliver(side.subscribed("a", 0), list(messages))
    assert sides[0].sent[0] is sides[1].sent[0] is sides[2].sent[0]
    assert [packet.retain for packet in sides[2].gets()] == [False, True]


@pytest.mark.parametrize(
    ("side", "subscription", "differs"),
    [
        ({}, {"qos": 1}, lambda packet: packet.qos == 1),
        ({}, {"qos": 0, "retain_as_published": True}, lambda packet: packet.retain),
        (
            {},
            {"qos": 0, "identifier": 7},
            lambda packet: packet.properties.subscription_identifiers == (7,),
        ),
        ({"topic_alias_max": 2}, {"qos": 0}, lambda packet: packet.properties.topic_alias == 1),
    ],
    ids=["qos", "retain as published", "identifier", "alias"],
)
@pytest.mark.parametrize("special_first", [True, False])
def test_what_is_a_clients_own_is_not_shared(
    make_side, shared, stored, side, subscription, differs, special_first
):
    messages = [stored(1, retain=True)]
    plain = make_side(level=5, fan_out=shared)
    special = make_side(level=5, fan_out=shared, **side)
    wanted = [(plain, {"qos": 0}), (special, subscription)]
    for one, values in reversed(wanted) if special_first else wanted:
        one.outgoing.deliver(one.subscribed("a", **values), messages)
    assert plain.gets() == [Publish("a", b"x")]
    (packet,) = special.gets()
    assert differs(packet)


@pytest.mark.parametrize("small_first", [True, False])
def test_a_client_that_takes_less_is_sent_less(make_side, shared, stored, small_first):
    messages = [stored(1, body=b"x" * 100), stored(2)]
    small = make_side(level=5, fan_out=shared, packet_bytes_max=50)
    large = make_side(level=5, fan_out=shared)
    for side in (small, large) if small_first else (large, small):
        side.outgoing.deliver(side.subscribed("a", 0), messages)
    assert [len(body) for body in small.bodies()] == [1]
    assert [len(body) for body in large.bodies()] == [100, 1]


def test_a_message_that_expires_is_encoded_for_each(make_side, shared, stored):
    first, second = (make_side(level=5, fan_out=shared) for _ in range(2))
    messages = [stored(1, expires_at=first.now_us + 5_000_000)]
    first.outgoing.deliver(first.subscribed("a", 0), messages)
    second.now_us += 3_000_000
    second.outgoing.deliver(second.subscribed("a", 0), messages)
    left = [side.gets()[0].properties.message_expiry_interval for side in (first, second)]
    assert left == [5, 2]


def test_a_message_that_cannot_be_sent_is_not_forgotten(make_side, shared, stored, caplog):
    messages = [stored(1, "queue://" + "x" * 65_535), stored(2)]
    for _ in range(2):
        side = make_side(fan_out=shared)
        side.outgoing.deliver(side.subscribed("a", 0), messages)
        assert len(side.gets()) == 1
    assert caplog.text.count("sequence=1 ") == 2
