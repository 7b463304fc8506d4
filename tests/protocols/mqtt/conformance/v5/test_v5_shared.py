"""Shared subscriptions (MQTT 5.0, section 4.8.2)."""

import pytest
from mqtt_clauses import proves
from mqtt_raw import DISCONNECT, PUBACK, PUBCOMP, PUBREC, PUBREL, V5, ack, subscribe

KEPT = {"clean": False, "session_expiry": 1000}


@pytest.mark.parametrize(
    "topic_filter",
    [
        pytest.param("$share//a", marks=proves("5.0", "4.8.2-1"), id="empty name"),
        pytest.param("$share/g", marks=proves("5.0", "4.8.2-2"), id="no filter"),
        pytest.param("$share/g/", marks=proves("5.0", "4.8.2-2"), id="empty filter"),
        pytest.param("$share/+/a", marks=proves("5.0", "4.8.2-2"), id="+"),
        pytest.param("$share/#", marks=proves("5.0", "4.8.2-2"), id="#"),
    ],
)
def test_a_shared_filter_of_a_wrong_form_is_refused(dial, name, topic_filter):
    client = dial(V5, connect=name)
    assert client.subscribe(topic_filter) == 0x8F
    assert client.subscribe(name) == 0  # the connection goes on


@pytest.mark.parametrize(
    "topic_filter",
    [
        pytest.param("$share/g+/a", marks=proves("5.0", "4.8.2-2 4.7.1-2"), id="+ in the name"),
        pytest.param("$share/g#/a", marks=proves("5.0", "4.8.2-2 4.7.1-1"), id="# in the name"),
        pytest.param("$share/g/a#", marks=proves("5.0", "4.7.1-1"), id="bad filter"),
    ],
)
@proves("5.0", "4.13.1-1")
def test_a_malformed_shared_filter_ends_the_connection(dial, name, topic_filter):
    client = dial(V5, connect=name).send(subscribe(1, (topic_filter, 0), version=V5))
    assert client.receive(DISCONNECT).code == 0x82
    assert client.is_closed()


@proves("5.0", "4.8.2-1 4.8.2-2 4.8.2-3")
def test_each_message_goes_to_one_of_a_group_at_the_qos_it_was_granted(dial, name):
    group = [dial(V5, connect=f"{name}{qos}") for qos in (0, 1, 2)]
    for qos, client in enumerate(group):
        assert client.subscribe(f"$share/g/{name}/+", qos) == qos
    alone = dial(V5, connect=f"{name}a")
    alone.subscribe(f"{name}/#", 0)
    publisher = dial(connect=f"{name}p")
    wanted = [b"%d" % number for number in range(30)]
    for body in wanted:
        publisher.publishes(f"{name}/t", body, 2)
    assert [alone.message().body for _ in wanted] == wanted
    seen = []
    for qos, client in enumerate(group):
        client.subscribe(f"fence/{name}/{qos}")
        publisher.publishes(f"fence/{name}/{qos}", b"")
        while (message := client.takes()).topic == f"{name}/t":
            assert message.qos == qos
            seen.append(message.body)
    assert sorted(seen) == sorted(wanted)


@proves("5.0", "4.8.2-3")
def test_different_groups_get_each_message(dial, name):
    one, other = (dial(V5, connect=f"{name}{group}") for group in "ab")
    one.subscribe(f"$share/a/{name}", 1)
    other.subscribe(f"$share/b/{name}", 1)
    publisher = dial(connect=f"{name}p")
    for number in range(5):
        publisher.publishes(name, b"%d" % number)
    wanted = [b"%d" % number for number in range(5)]
    assert [one.takes().body for _ in wanted] == wanted
    assert [other.takes().body for _ in wanted] == wanted


@proves("5.0", "4.8.2-4 4.3.3-5")
def test_an_interrupted_qos_2_delivery_is_completed_with_the_same_client(dial, name):
    one = dial(V5, connect=f"{name}1", **KEPT)
    one.subscribe(f"$share/g/{name}", 2)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, b"unreceived", 2)
    publisher.publishes(name, b"received", 2)
    first, second = one.message(), one.message()
    one.send(ack(PUBREC, second.packet_id))
    assert one.receive(PUBREL).packet_id == second.packet_id
    other = dial(V5, connect=f"{name}2", **KEPT)
    other.subscribe(f"$share/g/{name}", 2)
    one.drop()
    assert other.is_passed_over(publisher)
    one = dial(V5, connect=f"{name}1", **KEPT)
    again = {p.kind: p for p in (one.receive(), one.receive())}
    assert again[PUBREL].packet_id == second.packet_id
    assert (again[3].body, again[3].packet_id) == (b"unreceived", first.packet_id)
    assert again[3].dup
    one.send(ack(PUBCOMP, second.packet_id), ack(PUBREC, first.packet_id))
    assert one.receive(PUBREL).packet_id == first.packet_id
    one.send(ack(PUBCOMP, first.packet_id))
    assert one.is_passed_over(publisher)


@proves("5.0", "4.8.2-4")
def test_what_a_small_window_kept_from_being_sent_again_stays_with_the_client(dial, name):
    """It has it from before: another member would get it a second time."""
    one = dial(V5, connect=f"{name}1", receive_maximum=20, **KEPT)
    one.subscribe(f"$share/g/{name}", 2)
    publisher = dial(connect=f"{name}p")
    for number in range(5):
        publisher.publishes(name, b"%d" % number, 2)
    ids = [one.message().packet_id for _ in range(5)]
    other = dial(V5, connect=f"{name}2", **KEPT)
    other.subscribe(f"$share/g/{name}", 2)
    one.drop()
    assert other.is_passed_over(publisher)
    one = dial(V5, connect=f"{name}1", receive_maximum=1, **KEPT)
    assert one.message().packet_id == ids[0]
    one.drop()
    assert other.is_passed_over(publisher)
    one = dial(V5, connect=f"{name}1", receive_maximum=20, **KEPT)
    again = [one.message() for _ in range(5)]
    assert [(packet.body, packet.packet_id) for packet in again] == [
        (b"%d" % number, packet_id) for number, packet_id in enumerate(ids)
    ]


def in_doubt_at_one_of_two(dial, name, qos, **kept):
    """A member of a group that was sent a message and is silent, the message, a member that joined
    later, and the publisher."""
    one = dial(V5, connect=f"{name}1", **kept)
    one.subscribe(f"$share/g/{name}", qos)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, b"x", qos)
    message = one.message()
    assert message.body == b"x"
    other = dial(V5, connect=f"{name}2")
    other.subscribe(f"$share/g/{name}", qos)
    return one, message, other, publisher


@proves("5.0", "4.8.2-5")
def test_an_interrupted_qos_2_delivery_whose_session_ends_goes_to_nobody_else(dial, name):
    one, _, other, publisher = in_doubt_at_one_of_two(dial, name, 2, **KEPT)
    one.drop()
    dial(V5, connect=f"{name}1", clean=True)  # the session is gone
    assert other.is_passed_over(publisher)


@pytest.mark.parametrize("kept", [{}, KEPT], ids=["ends", "stays"])
def test_what_was_sent_with_qos_2_before_unsubscribe_is_completed_and_goes_to_nobody_else(
    dial, name, kept
):
    one, message, other, publisher = in_doubt_at_one_of_two(dial, name, 2, **kept)
    one.unsubscribe(f"$share/g/{name}")
    assert other.is_passed_over(publisher)
    one.send(ack(PUBREC, message.packet_id))  # [MQTT-3.10.4-3]
    assert one.receive(PUBREL).packet_id == message.packet_id
    one.send(ack(PUBCOMP, message.packet_id))
    assert one.is_passed_over(publisher)
    one.leave()
    assert other.is_passed_over(publisher)


def test_qos_1_that_was_not_acknowledged_before_unsubscribe_goes_to_another(dial, name):
    one = dial(V5, connect=f"{name}1")
    one.subscribe(f"$share/g/{name}", 1)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, b"1")
    publisher.publishes(name, b"2")
    acknowledged, open_ = one.message(), one.message()
    other = dial(V5, connect=f"{name}2")
    other.subscribe(f"$share/g/{name}", 1)
    one.send(ack(PUBACK, acknowledged.packet_id))
    one.unsubscribe(f"$share/g/{name}")
    found = other.takes()
    assert (found.body, found.dup) == (open_.body, True)
    assert other.is_passed_over(publisher)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("code", [0x80, 0x97])
@proves("5.0", "4.8.2-6 4.4.0-2")
def test_a_message_that_a_client_refused_goes_to_nobody_else(dial, name, qos, code):
    one, message, other, publisher = in_doubt_at_one_of_two(dial, name, qos)
    one.send(ack(PUBACK if qos == 1 else PUBREC, message.packet_id, code))
    assert one.is_passed_over(publisher)
    one.leave()
    assert other.is_passed_over(publisher)


def test_qos_1_that_a_lost_client_did_not_acknowledge_goes_to_another(dial, name):
    one, _, other, _ = in_doubt_at_one_of_two(dial, name, 1)
    one.drop()
    assert other.takes().body == b"x"


def test_a_share_name_is_its_groups_and_the_filter_its_own(dial, name):
    client = dial(V5, connect=name)
    client.subscribe(f"$share/g/{name}/a", 1)
    client.subscribe(f"$share/g/{name}/b", 1)
    client.unsubscribe(f"$share/g/{name}/a")
    publisher = dial(connect=f"{name}p")
    publisher.publishes(f"{name}/a", b"x")
    publisher.publishes(f"{name}/b", b"x")
    assert client.takes().topic == f"{name}/b"
    assert client.is_passed_over(publisher)


@proves("5.0", "4.8.2-4 3.1.2-23")
def test_an_interrupted_qos_2_delivery_is_completed_also_after_a_restart(dial, name, start_gateway):
    gateway = start_gateway()
    one = dial(V5, connect=f"{name}1", gateway=gateway, **KEPT)
    one.subscribe(f"$share/g/{name}", 2)
    publisher = dial(connect=f"{name}p", gateway=gateway)
    publisher.publishes(name, b"unreceived", 2)
    publisher.publishes(name, b"received", 2)
    first, second = one.message(), one.message()
    one.send(ack(PUBREC, second.packet_id))
    assert one.receive(PUBREL).packet_id == second.packet_id
    one.drop()
    publisher.drop()
    gateway.restart()
    other = dial(V5, connect=f"{name}2", gateway=gateway)
    other.subscribe(f"$share/g/{name}", 2)
    publisher = dial(connect=f"{name}p", gateway=gateway)
    assert other.is_passed_over(publisher)
    one = dial(V5, connect=f"{name}1", gateway=gateway, **KEPT)
    again = {p.kind: p for p in (one.receive(), one.receive())}
    assert again[PUBREL].packet_id == second.packet_id
    assert (again[3].body, again[3].packet_id, again[3].dup) == (
        b"unreceived",
        first.packet_id,
        True,
    )


@proves("5.0", "3.1.2-23 3.1.2-5")
def test_a_kept_session_has_its_shared_subscriptions_again(dial, name, start_gateway):
    gateway = start_gateway()
    one = dial(V5, connect=name, gateway=gateway, **KEPT)
    one.subscribe(f"$share/g/{name}", 1, subscription_id=4)
    one.drop()
    gateway.restart()
    one = dial(V5, connect=name, gateway=gateway, **KEPT)
    dial(connect=f"{name}p", gateway=gateway).publishes(name, b"x")
    message = one.takes()
    assert (message.body, message.qos, message.props) == (b"x", 1, {"subscription_id": [4]})


@proves("5.0", "3.3.4-5 4.8.2-3")
def test_a_shared_subscription_and_one_of_its_own_get_a_copy_each(dial, name):
    client = dial(V5, connect=name)
    client.subscribe(f"$share/g/{name}", 1, subscription_id=5)
    client.subscribe(name, 2, subscription_id=6)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, b"x", 2)
    copies = [client.takes() for _ in range(2)]
    assert {(m.qos, tuple(m.props["subscription_id"])) for m in copies} == {(1, (5,)), (2, (6,))}
    assert client.is_passed_over(publisher)
