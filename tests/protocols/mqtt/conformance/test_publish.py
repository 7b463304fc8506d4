"""PUBLISH and the exchanges of QoS 0, 1 and 2 (sections 3.3 to 3.7, 4.3, 4.4 and 4.6)."""

import pytest
from mqtt_clauses import both, proves
from mqtt_raw import (
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    ack,
    packet,
    publish,
    text,
)


def kept(version):
    """Options of a session that outlives its connection."""
    return {"clean": False} | ({"session_expiry": 1000} if version == V5 else {})


# --------------------------------------------------------------------------------- as the receiver


@both("3.3.4-1 4.3.2-2 2.3.1-6", "3.3.4-1 4.3.2-4 2.2.1-5 3.4.2-1")
def test_qos_1_is_answered_with_puback(dial, name, version):
    dial(connect=f"{name}s").subscribe(name)
    client = dial(version, connect=name).publish(name, b"x", qos=1, packet_id=0x1234)
    assert client.receive_raw() == b"\x40\x02\x12\x34"
    assert client.is_quiet()


@both("3.3.4-1", "3.3.4-1")
def test_qos_0_is_not_answered(dial, name, version):
    client = dial(version, connect=name).publish(name, b"x")
    assert client.publishes(name, b"y", 1).packet_id == 1  # this is the next that comes


@both("4.3.2-2", "4.3.2-5")
def test_after_puback_the_packet_id_means_a_new_message(dial, name, version):
    subscriber = dial(connect=f"{name}s")
    subscriber.subscribe(name)
    client = dial(version, connect=name)
    for body, dup in ((b"one", False), (b"two", False), (b"two", True)):
        client.publish(name, body, qos=1, packet_id=7, dup=dup)
        assert client.receive_raw() == b"\x40\x02\x00\x07"
    assert [subscriber.message().body for _ in range(3)] == [b"one", b"two", b"two"]


@both("4.3.3-2 3.3.4-1", "4.3.3-8 4.3.3-10 4.3.3-11 4.3.3-12 3.3.4-1 3.5.2-1 3.7.2-1")
def test_qos_2_is_delivered_once_until_the_exchange_is_over(dial, name, version):
    subscriber = dial(connect=f"{name}s")
    subscriber.subscribe(name)
    client = dial(version, connect=name)
    for dup in (False, True, True):
        client.publish(name, b"one", qos=2, packet_id=7, dup=dup)
        assert client.receive_raw() == b"\x50\x02\x00\x07"
    client.send(ack(PUBREL, 7))
    assert client.receive_raw() == b"\x70\x02\x00\x07"
    client.publish(name, b"two", qos=2, packet_id=7)  # another message
    assert client.receive_raw() == b"\x50\x02\x00\x07"
    client.send(ack(PUBREL, 7))
    assert client.receive_raw() == b"\x70\x02\x00\x07"
    assert [subscriber.message().body for _ in range(2)] == [b"one", b"two"]
    assert subscriber.is_passed_over(client)


@both("4.3.3-2 4.1.0-1 4.4.0-1", "4.3.3-10 4.4.0-1")
def test_qos_2_is_delivered_once_also_across_connections(dial, name, version):
    subscriber = dial(connect=f"{name}s")
    subscriber.subscribe(name)
    client = dial(version, connect=name, **kept(version))
    client.publish(name, b"one", qos=2, packet_id=7)
    assert client.receive_raw() == b"\x50\x02\x00\x07"
    client.drop()
    client = dial(version, connect=name, **kept(version))
    client.publish(name, b"one", qos=2, packet_id=7, dup=True)
    assert client.receive_raw() == b"\x50\x02\x00\x07"
    client.send(ack(PUBREL, 7))
    assert client.receive_raw() == b"\x70\x02\x00\x07"
    assert subscriber.message().body == b"one"
    assert subscriber.is_passed_over(client)


@both("4.3.3-2", "4.3.3-11")
def test_pubrel_is_answered_again_when_pubcomp_was_lost(dial, name, version):
    client = dial(version, connect=name, **kept(version))
    client.publishes(name, b"x", 2)
    client.send(ack(PUBREL, 1))
    answer = client.receive(PUBCOMP)
    assert (answer.packet_id, answer.code) == (1, 0x92 if version == V5 else 0)
    # Lost with the connection, as it usually is, it is no error: clients would say that the publish failed.
    client.drop()
    client = dial(version, connect=name, **kept(version))
    client.send(ack(PUBREL, 1))
    answer = client.receive(PUBCOMP)
    assert (answer.packet_id, answer.code) == (1, 0)


@proves("5.0", "3.7.2-1 3.6.2-1")
def test_packet_ids_that_are_not_known_are_answered_with_0x92(dial, name):
    client = dial(V5, connect=name)
    client.send(ack(PUBREL, 77))
    answer = client.receive(PUBCOMP)
    assert (answer.packet_id, answer.code) == (77, 0x92)
    client.send(ack(PUBREC, 78))
    answer = client.receive(PUBREL)
    assert (answer.packet_id, answer.code) == (78, 0x92)


@both("3.3.1-4 4.8.0-1", "3.3.1-4 4.13.1-1")
def test_qos_3_ends_the_connection(dial, name, version):
    client = dial(version, connect=name)
    client.publish(name, b"x", qos=3, packet_id=1)
    if version == V5:
        assert client.receive(DISCONNECT).code == 0x81
    assert client.is_closed()


@both("3.3.1-2", "3.3.1-2")
def test_dup_at_qos_0_ends_the_connection(dial, name, version):
    client = dial(version, connect=name)
    client.publish(name, b"x", dup=True)
    if version == V5:
        assert client.receive(DISCONNECT).code == 0x82
    assert client.is_closed()


@pytest.mark.parametrize("qos", [1, 2])
@both("3.3.1-3", "3.3.1-3")
def test_the_publishers_dup_is_not_passed_on(dial, name, version, qos):
    subscriber = dial(version, connect=f"{name}s")
    subscriber.subscribe(name, 2)
    client = dial(version, connect=name)
    client.publishes(name, b"x", qos, dup=True)
    message = subscriber.message()
    assert (message.body, message.qos, message.dup) == (b"x", qos, False)


@both("4.6.0-2 4.6.0-3", "")
def test_acknowledgements_come_in_the_order_of_the_messages(dial, name, version):
    for kind, qos in ((PUBACK, 1), (PUBREC, 2)):
        client = dial(version, connect=name)
        ids = [1000 - number for number in range(50)]
        client.send(
            *(publish(name, b"x", version=version, qos=qos, packet_id=number) for number in ids)
        )
        assert [client.receive(kind).packet_id for _ in ids] == ids


# ----------------------------------------------------------------------------------- as the sender


@both("4.3.2-1 3.3.1-3", "4.3.2-2 4.3.3-2 3.3.1-3")
def test_qos_1_and_2_are_sent_first_without_dup(dial, name, version):
    subscriber = dial(version, connect=f"{name}s")
    subscriber.subscribe(name, 2)
    client = dial(connect=name)
    for qos in (1, 2):
        client.publishes(name, b"x", qos)
        message = subscriber.message()
        props = b"\x00" if version == V5 else b""
        head = text(name) + message.packet_id.to_bytes(2, "big") + props
        assert message.raw == packet(0x30 | qos << 1, head + b"x")
        subscriber.send(ack(PUBACK if qos == 1 else PUBREC, message.packet_id))
        if qos == 2:
            subscriber.receive(PUBREL)


@both("4.4.0-1 3.3.1-1 2.3.1-4 4.3.2-1", "4.4.0-1 3.3.1-1 4.3.2-3 4.3.3-3")
def test_what_is_not_acknowledged_comes_again_on_the_next_connection(dial, name, version):
    client = dial(version, connect=name, **kept(version))
    client.subscribe(name, 2)
    publisher = dial(connect=f"{name}p")
    for qos in (1, 2):
        publisher.publishes(name, b"%d" % qos, qos)
    first = [client.message() for _ in range(2)]
    assert [m.dup for m in first] == [False, False]
    client.drop()
    client = dial(version, connect=name, **kept(version))
    second = [client.takes() for _ in range(2)]
    assert [(m.body, m.packet_id, m.dup) for m in second] == [
        (m.body, m.packet_id, True) for m in first
    ]
    client.leave()
    client = dial(version, connect=name, **kept(version))  # now it is acknowledged
    assert client.is_passed_over(publisher)


@both("4.4.0-1 4.3.3-1", "4.4.0-1 4.3.3-4 4.3.3-5 4.3.3-6")
def test_pubrel_comes_again_on_the_next_connection_but_no_publish(dial, name, version):
    client = dial(version, connect=name, **kept(version))
    client.subscribe(name, 2)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, b"x", 2)
    message = client.message()
    released = b"\x62\x02" + message.packet_id.to_bytes(2, "big")
    client.send(ack(PUBREC, message.packet_id))
    assert client.receive_raw() == released
    client.drop()
    for _ in range(2):
        client = dial(version, connect=name, **kept(version))
        assert client.receive_raw() == released
        assert client.is_quiet()
        client.drop()
    client = dial(version, connect=name, **kept(version))
    assert client.receive_raw() == released
    client.send(ack(PUBCOMP, message.packet_id))
    client.leave()
    client = dial(version, connect=name, **kept(version))
    assert client.is_quiet()
    assert client.is_passed_over(publisher)


@both("4.3.3-1", "4.3.3-4")
def test_a_repeated_pubrec_is_answered_with_pubrel_again(dial, name, version):
    client = dial(version, connect=name)
    client.subscribe(name, 2)
    dial(connect=f"{name}p").publishes(name, b"x", 2)
    message = client.message()
    for _ in range(2):
        client.send(ack(PUBREC, message.packet_id))
        assert client.receive_raw() == b"\x62\x02" + message.packet_id.to_bytes(2, "big")


@both("4.5.0-2", "4.4.0-1 4.5.0-2")
def test_nothing_is_sent_again_while_the_connection_is_open(dial, name, version):
    client = dial(version, connect=name, **kept(version))
    client.subscribe(name, 2)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, b"1", 1)
    publisher.publishes(name, b"2", 2)
    messages = [client.message() for _ in range(2)]  # neither is acknowledged
    for _ in range(3):
        assert client.is_quiet()
    assert client.is_passed_over(publisher)
    client.drop()
    client = dial(version, connect=name, **kept(version))
    assert [client.message().packet_id for _ in range(2)] == [m.packet_id for m in messages]


@both("4.6.0-1", "4.4.0-1")
def test_messages_come_again_in_their_order(dial, name, version):
    client = dial(version, connect=name, **kept(version))
    client.subscribe(name, 1)
    publisher = dial(connect=f"{name}p")
    for number in range(20):
        publisher.publishes(name, b"%d" % number)
    first = [client.message() for _ in range(20)]
    client.send(*(ack(PUBACK, m.packet_id) for m in first[::3]))
    assert client.is_quiet()
    client.drop()
    client = dial(version, connect=name, **kept(version))
    left = [m for at, m in enumerate(first) if at % 3]
    again = [client.message() for _ in left]
    assert [(m.body, m.packet_id) for m in again] == [(m.body, m.packet_id) for m in left]
    assert all(m.dup for m in again)


@both("4.6.0-4", "4.6.0-3 4.6.0-4")
def test_pubrels_come_in_the_order_of_the_pubrecs(dial, name, version):
    client = dial(version, connect=name)
    client.subscribe(name, 2)
    publisher = dial(connect=f"{name}p")
    for number in range(20):
        publisher.publishes(name, b"%d" % number, 2)
    ids = [client.message().packet_id for _ in range(20)]
    ids.reverse()  # any order is taken
    client.send(*(ack(PUBREC, packet_id) for packet_id in ids))
    assert [client.receive(PUBREL).packet_id for _ in ids] == ids
    client.send(*(ack(PUBCOMP, packet_id) for packet_id in ids))
    assert client.is_passed_over(publisher)


@proves("5.0", "4.6.0-2")
def test_pubacks_are_taken_in_any_order(dial, name):
    client = dial(V5, connect=name, **kept(V5))
    client.subscribe(name, 1)
    publisher = dial(connect=f"{name}p")
    for number in range(20):
        publisher.publishes(name, b"%d" % number)
    ids = [client.message().packet_id for _ in range(20)]
    client.send(*(ack(PUBACK, packet_id) for packet_id in reversed(ids)))
    client.leave()
    client = dial(V5, connect=name, **kept(V5))
    assert client.is_passed_over(publisher)


@pytest.mark.parametrize("qos", [0, 1, 2])
@both("4.6.0-5 4.6.0-6", "4.6.0-5 4.6.0-6")
def test_a_subscriber_gets_messages_in_the_order_they_were_sent(dial, name, version, qos):
    subscriber = dial(version, connect=f"{name}s")
    subscriber.subscribe(f"{name}/#", 2)
    client = dial(version, connect=name)
    bodies = [b"%d" % number for number in range(200)]
    for number, body in enumerate(bodies, 1):
        client.publish(f"{name}/t", body, qos=qos, packet_id=number)
    for body in bodies:
        message = subscriber.message()
        assert message.body == body
        if qos == 1:
            subscriber.send(ack(PUBACK, message.packet_id))


@pytest.mark.parametrize("is_kept", [False, True], ids=["ends", "stays"])
@both("4.6.0-6", "4.6.0-6")
def test_qos_1_and_2_do_not_overtake_each_other(dial, name, version, is_kept):
    """The specification asks it of each QoS by itself. The packet id of a QoS 2 message is stored
    before it leaves, and what is behind it waits."""
    subscriber = dial(version, connect=f"{name}s", **(kept(version) if is_kept else {}))
    subscriber.subscribe(name, 2)
    client = dial(version, connect=name)
    bodies = [b"%d" % number for number in range(60)]
    for number, body in enumerate(bodies, 1):
        client.publish(name, body, qos=1 + number % 3 % 2, packet_id=number)
        if not number % 10:  # some come together, some in a turn of their own
            client.receive()
    seen = []
    while len(seen) < len(bodies):
        message = subscriber.message()
        seen.append(message.body)
        if message.qos == 1:
            subscriber.send(ack(PUBACK, message.packet_id))
    assert seen == bodies


# ------------------------------------------------------------------------------------ QoS and reach


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
@both("3.8.4-6", "3.8.4-8")
def test_messages_come_at_the_lower_qos(dial, name, version, published, granted):
    subscriber = dial(version, connect=f"{name}s")
    assert subscriber.subscribe(name, granted) == granted
    client = dial(version, connect=name)
    if published:
        client.publishes(name, b"x", published)
    else:
        client.publish(name, b"x")
    assert subscriber.takes().qos == min(published, granted)


@both("3.3.5-1", "3.3.4-2")
def test_overlapping_subscriptions_deliver_at_the_highest_qos(dial, name, version):
    subscriber = dial(version, connect=f"{name}s")
    subscriber.subscribe(f"{name}/#", 2)
    subscriber.subscribe(f"{name}/+", 1)
    subscriber.subscribe(f"{name}/a", 0)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(f"{name}/a", b"x", 2)
    copy = subscriber.takes()
    assert (copy.qos, copy.body) == (2, b"x")
    assert subscriber.is_passed_over(publisher)  # there is one copy


@both("4.5.0-1", "4.5.0-1")
def test_a_message_is_added_to_every_session_that_wants_it(dial, name, version):
    connected = [dial(version, connect=f"{name}c{n}") for n in range(3)]
    away = [dial(version, connect=f"{name}a{n}", **kept(version)) for n in range(3)]
    for client in (*connected, *away):
        client.subscribe(name, 1)
    for client in away:
        client.drop()
    dial(version, connect=name).publishes(name, b"x")
    assert [client.takes().body for client in connected] == [b"x"] * 3
    back = [dial(version, connect=f"{name}a{n}", **kept(version)) for n in range(3)]
    assert [client.takes().body for client in back] == [b"x"] * 3


@proves("3.1.1", "3.3.5-2 4.7.2-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_that_is_not_allowed_closes_the_connection(dial, name, qos):
    client = dial(connect=name)
    client.publish("$SYS/broker", b"x", qos=qos, packet_id=1)
    assert client.is_closed()


@proves("5.0", "4.3.3-9 3.5.2-1")
def test_after_a_refusing_pubrec_the_packet_id_means_a_new_message(dial, name):
    subscriber = dial(connect=f"{name}s")
    subscriber.subscribe(name)
    client = dial(V5, connect=name)
    client.publish("$SYS/broker", b"x", qos=2, packet_id=5)
    refusal = client.receive(PUBREC)
    assert refusal.packet_id == 5
    assert refusal.code == 0x87
    client.publish(name, b"x", qos=2, packet_id=5)
    answer = client.receive(PUBREC)
    assert (answer.packet_id, answer.code) == (5, 0)
    assert subscriber.message().body == b"x"


@proves("5.0", "3.4.2-1")
def test_a_refused_qos_1_publish_has_the_reason_in_its_puback(dial, name):
    client = dial(V5, connect=name)
    client.publish("$SYS/broker", b"x", qos=1, packet_id=5)
    refusal = client.receive(PUBACK)
    assert (refusal.packet_id, refusal.code) == (5, 0x87)
    assert (
        client.publishes(name, b"x").code == 0x10
    )  # nobody subscribes to it, and the connection goes on


@pytest.mark.parametrize("code", [0x80, 0x83, 0x97])
@proves("5.0", "4.4.0-2")
def test_a_refusing_puback_or_pubrec_acknowledges(dial, name, code):
    client = dial(V5, connect=name, **kept(V5))
    client.subscribe(name, 2)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, b"1", 1)
    publisher.publishes(name, b"2", 2)
    one, two = client.message(), client.message()
    client.send(ack(PUBACK, one.packet_id, code), ack(PUBREC, two.packet_id, code))
    assert client.is_passed_over(publisher)  # there is no PUBREL
    client.drop()
    client = dial(V5, connect=name, **kept(V5))
    assert client.is_passed_over(publisher)


FULL = """
[broker]
disk_free_limit = "1000000tb"

[[listeners]]
protocol = "mqtt"
bind = "127.0.0.1:0"
"""


@pytest.mark.parametrize("qos", [1, 2])
@proves("3.1.1", "4.8.0-2 3.3.5-2")
def test_a_publish_that_cannot_be_stored_closes_the_connection(dial, name, qos, start_gateway):
    client = dial(connect=name, gateway=start_gateway(FULL))
    client.publish(name, b"x", qos=qos, packet_id=1, retain=True)
    assert client.is_closed()  # without PUBACK or PUBREC


@proves("5.0", "3.4.2-1 3.5.2-1 4.3.3-9")
def test_a_publish_of_5_0_that_cannot_be_stored_is_refused_with_0x97(dial, name, start_gateway):
    client = dial(V5, connect=name, gateway=start_gateway(FULL))
    client.publish(name, b"x", qos=1, packet_id=1, retain=True)
    assert client.receive(PUBACK).code == 0x97
    client.publish(name, b"x", qos=2, packet_id=1, retain=True)
    assert client.receive(PUBREC).code == 0x97
    assert client.is_quiet()
