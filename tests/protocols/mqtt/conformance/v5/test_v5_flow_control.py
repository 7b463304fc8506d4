"""Receive maximum, maximum packet size and reason strings (MQTT 5.0, sections 3.1.2.11 and 4.9)."""

import pytest
from mqtt_clauses import proves
from mqtt_raw import (
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    V5,
    ack,
    connect,
    packet,
    publish,
    subscribe,
    text,
    unsubscribe,
)

KEPT = {"clean": False, "session_expiry": 1000}


# ------------------------------------------------------------------------ towards the client


@pytest.mark.parametrize("maximum", [1, 2, 10])
@pytest.mark.parametrize("qos", [1, 2])
@proves("5.0", "3.3.4-9 4.9.0-1 4.9.0-2 4.3.2-3 4.3.3-3 4.3.3-5")
def test_no_more_than_the_receive_maximum_is_on_its_way(dial, name, maximum, qos):
    client = dial(V5, connect=name, receive_maximum=maximum)
    client.subscribe(name, 2)
    publisher = dial(connect=f"{name}p")
    bodies = [b"%d" % number for number in range(maximum + 3)]
    for body in bodies:
        publisher.publishes(name, body, qos)
    sent = [client.message() for _ in range(maximum)]
    assert client.is_passed_over(publisher)  # QoS 0 may pass
    for at, body in enumerate(bodies[maximum:]):
        oldest = sent[at]
        if qos == 1:
            client.send(ack(PUBACK, oldest.packet_id))
        else:
            client.send(ack(PUBREC, oldest.packet_id))
            assert client.receive(PUBREL).packet_id == oldest.packet_id
            assert client.is_passed_over(publisher)  # only PUBCOMP makes room
            client.send(ack(PUBCOMP, oldest.packet_id))
        sent.append(client.message())
        assert sent[-1].body == body
    assert [m.body for m in sent] == bodies


@proves("5.0", "3.3.4-9 4.9.0-2")
def test_a_refusing_pubrec_makes_room(dial, name):
    client = dial(V5, connect=name, receive_maximum=1)
    client.subscribe(name, 2)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, b"one", 2)
    publisher.publishes(name, b"two", 2)
    client.send(ack(PUBREC, client.message().packet_id, 0x80))
    assert client.message().body == b"two"


@proves("5.0", "3.3.4-10 4.9.0-3")
def test_the_receive_maximum_holds_up_nothing_else(dial, name):
    client = dial(V5, connect=name, receive_maximum=1)
    client.subscribe(f"{name}/1", 1)
    client.subscribe(f"{name}/0", 0)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(f"{name}/1", b"one")
    publisher.publishes(f"{name}/1", b"two")
    first = client.message()
    publisher.publishes(f"{name}/0", b"zero")
    assert client.message().topic == f"{name}/0"
    assert client.is_quiet()
    client.send(subscribe(10, (f"{name}/x", 0), version=V5))
    assert client.receive(SUBACK).packet_id == 10
    client.send(unsubscribe(11, f"{name}/x", version=V5))
    assert client.receive(UNSUBACK).packet_id == 11
    client.publish(f"{name}/y", b"", qos=1, packet_id=12)
    assert client.receive(PUBACK).packet_id == 12
    client.publish(f"{name}/y", b"", qos=2, packet_id=13)
    assert client.receive(PUBREC).packet_id == 13
    client.send(ack(PUBREL, 13))
    assert client.receive(PUBCOMP).packet_id == 13
    client.send(ack(PUBACK, first.packet_id))
    assert client.message().body == b"two"


@proves("5.0", "4.3.3-6 4.4.0-1")
def test_a_qos_0_message_does_not_release_what_has_yet_to_come_again(dial, name):
    """It overtakes what waits for the window. A PUBREL would make the client forget the ids, and
    take what comes again under them for new messages."""
    client = dial(V5, connect=name, **KEPT)
    client.subscribe(name, 2)
    publisher = dial(connect=f"{name}p")
    bodies = [b"%d" % number for number in range(3)]
    for body in bodies:
        publisher.publishes(name, body, 2)
    ids = [client.message().packet_id for _ in bodies]
    client.drop()
    client = dial(V5, connect=name, receive_maximum=1, **KEPT)
    again = [client.message()]
    publisher.publish(name, b"passes")
    assert client.message().body == b"passes"
    for packet_id in ids:
        assert (again[-1].packet_id, again[-1].dup) == (packet_id, True)
        client.send(ack(PUBREC, packet_id))
        release = client.receive()
        assert (release.kind, release.packet_id, release.code) == (PUBREL, packet_id, 0)
        client.send(ack(PUBCOMP, packet_id))
        if packet_id != ids[-1]:
            again.append(client.message())
    assert [packet.body for packet in again] == bodies


@proves("5.0", "3.3.4-9 4.9.0-1 4.4.0-1")
def test_what_comes_again_counts_for_the_receive_maximum_of_the_new_connection(dial, name):
    client = dial(V5, connect=name, receive_maximum=10, **KEPT)
    client.subscribe(name, 1)
    publisher = dial(connect=f"{name}p")
    for number in range(6):
        publisher.publishes(name, b"%d" % number)
    sent = [client.message() for _ in range(6)]
    client.drop()
    client = dial(V5, connect=name, receive_maximum=2, **KEPT)
    seen = [client.message() for _ in range(2)]
    assert client.is_passed_over(publisher)
    for at in range(4):
        client.send(ack(PUBACK, seen[at].packet_id))
        seen.append(client.message())
    assert [(m.body, m.packet_id) for m in seen] == [(m.body, m.packet_id) for m in sent]


# -------------------------------------------------------------------------- towards the gateway


@proves("5.0", "3.3.4-7 3.14.2-1 4.13.2-1")
def test_more_than_the_gateways_receive_maximum_ends_the_connection(dial, name, start_gateway):
    gateway = start_gateway(
        '[[listeners]]\nprotocol = "mqtt"\nbind = "127.0.0.1:0"\nreceive_maximum = 10\n'
    )
    client = dial(V5, gateway=gateway)
    assert client.connect(name).props["receive_maximum"] == 10
    ids = range(1, 11)
    client.send(*(publish(name, b"", version=V5, qos=2, packet_id=i) for i in ids))
    assert [client.receive(PUBREC).packet_id for _ in ids] == list(ids)
    client.publish(name, b"", qos=0)  # no limit for these
    client.publish(name, b"", qos=2, packet_id=10, dup=True)  # nor is this one more
    assert client.receive(PUBREC).packet_id == 10
    client.send(ack(PUBREL, 1))
    assert client.receive(PUBCOMP).packet_id == 1
    client.publish(name, b"", qos=1, packet_id=11)  # there is room for one
    assert client.receive(PUBACK).packet_id == 11
    client.publish(name, b"", qos=2, packet_id=12)
    assert client.receive(PUBREC).packet_id == 12
    client.publish(name, b"", qos=1, packet_id=13)
    assert client.receive(DISCONNECT).code == 0x93
    assert client.is_closed()


@proves("5.0", "3.3.4-7")
def test_a_client_that_waits_for_its_acknowledgements_has_room_for_ever(dial, name, start_gateway):
    gateway = start_gateway(
        '[[listeners]]\nprotocol = "mqtt"\nbind = "127.0.0.1:0"\nreceive_maximum = 1\n'
    )
    client = dial(V5, connect=name, gateway=gateway)
    for qos in (1, 2, 1, 2):
        assert client.publishes(name, b"", qos).code == 0x10


# ------------------------------------------------------------------------ maximum packet size


@pytest.mark.parametrize("qos", [0, 1, 2])
@proves("5.0", "3.1.2-24 3.1.2-25")
def test_a_message_that_is_too_large_is_discarded_as_if_it_had_been_sent(dial, name, qos):
    limit = 100
    client = dial(V5, connect=name, maximum_packet_size=limit, receive_maximum=1)
    client.subscribe(name, qos)
    publisher = dial(connect=f"{name}p")
    fits = bytes(limit - 2 - len(text(name)) - (2 if qos else 0) - 1)
    for body in (fits + b"x", fits, fits + b"xx", fits):
        if qos:
            publisher.publishes(name, body, qos)
        else:
            publisher.publish(name, body)
    for _ in range(2):
        message = client.takes()
        assert (len(message.raw), message.body) == (limit, fits)
    assert client.is_passed_over(publisher)


@proves("5.0", "3.1.2-25")
def test_what_was_too_large_once_does_not_come_on_the_next_connection(dial, name):
    client = dial(V5, connect=name, maximum_packet_size=100, **KEPT)
    client.subscribe(name, 1)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, bytes(200))
    publisher.publishes(name, b"small")
    assert client.takes().body == b"small"
    client.leave()
    client = dial(V5, connect=name, **KEPT)
    assert client.is_passed_over(publisher)


@proves("5.0", "3.1.2-24 3.1.2-25")
def test_a_packet_id_whose_message_has_become_too_large_is_released(dial, name):
    """The client may have taken the message. Under an id that it knows the next one would be a
    repetition to it."""
    client = dial(V5, connect=name, **KEPT)
    client.subscribe(name, 2)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, bytes(200), 2)
    packet_id = client.message().packet_id
    client.drop()
    client = dial(V5, connect=name, maximum_packet_size=100, **KEPT)
    assert client.receive(PUBREL).packet_id == packet_id
    client.send(ack(PUBCOMP, packet_id))
    client.leave()
    client = dial(V5, connect=name, **KEPT)
    assert client.is_passed_over(publisher)


@proves("5.0", "3.2.2-15")
def test_a_packet_over_the_gateways_limit_ends_the_connection(dial, name, start_gateway):
    gateway = start_gateway(
        '[[listeners]]\nprotocol = "mqtt"\nbind = "127.0.0.1:0"\npacket_bytes_max = "2kib"\n'
    )
    client = dial(V5, gateway=gateway)
    limit = client.connect(name).props["maximum_packet_size"]
    assert limit == 2048
    head = len(text(name)) + 2 + 1
    client.publish(name, bytes(limit - 3 - head), qos=1, packet_id=1)
    assert client.receive(PUBACK).packet_id == 1
    client.send(publish(name, bytes(limit - 3 - head + 1), version=V5, qos=1, packet_id=2)[:50])
    assert client.receive(DISCONNECT).code == 0x95  # without having read the body
    assert client.is_closed()


# ------------------------------------------------------------------------------- reason strings


def refused(also=""):
    """Requests whose answer has a reason string, and the number about that answer's size."""
    wanted = [
        (publish("$SYS/x", b"", version=V5, qos=1, packet_id=1), PUBACK, "3.4.2-2"),
        (publish("$SYS/x", b"", version=V5, qos=2, packet_id=1), PUBREC, "3.5.2-2"),
        (subscribe(1, ("$share/g", 0), version=V5), SUBACK, "3.9.2-1"),
        (packet(0x00), DISCONNECT, "3.14.2-3"),
    ]
    return pytest.mark.parametrize(
        ("request_", "kind"),
        [
            pytest.param(request, kind, marks=proves("5.0", f"{number} {also}"), id=f"type {kind}")
            for request, kind, number in wanted
        ],
    )


@refused("3.1.2-24")
def test_a_reason_string_that_is_too_long_for_the_client_is_left_out(dial, name, request_, kind):
    whole = dial(V5, connect=f"{name}a").send(request_).receive(kind)
    assert whole.props["reason_string"]
    just = dial(V5, connect=f"{name}b", maximum_packet_size=len(whole.raw))
    assert just.send(request_).receive(kind) == whole
    client = dial(V5, connect=name, maximum_packet_size=len(whole.raw) - 1)
    answer = client.send(request_).receive(kind)
    assert (answer.code, answer.codes, answer.props) == (whole.code, whole.codes, {})


@proves("5.0", "3.2.2-19 3.1.2-24")
def test_a_reason_string_that_is_too_long_for_connack_is_left_out(dial):
    whole = dial(V5).connect("x" * 1025)
    assert whole.props["reason_string"]
    client = dial(V5)
    answer = client.connect("x" * 1025, maximum_packet_size=len(whole.raw) - 1)
    assert (answer.code, answer.props) == (whole.code, {})
    assert client.is_closed()


@refused("3.1.2-29")
def test_without_problem_information_only_some_packets_have_a_reason(dial, name, request_, kind):
    client = dial(V5, connect=name, request_problem=0)
    answer = client.send(request_).receive(kind)
    assert ("reason_string" in answer.props) == (kind == DISCONNECT)


@pytest.mark.parametrize("asked", [{}, {"request_problem": 1}], ids=["absent", "1"])
def test_a_refusal_says_why(dial, name, asked):
    client = dial(V5, connect=name, **asked)
    client.publish("$SYS/x", b"", qos=1, packet_id=1)
    assert client.receive(PUBACK).props["reason_string"]
    client.send(packet(0x00))
    assert client.receive(DISCONNECT).props["reason_string"]


def test_a_refused_connect_says_why(dial):
    client = dial(V5).send(connect("x" * 1025, version=V5))
    assert client.receive(CONNACK).props["reason_string"]
