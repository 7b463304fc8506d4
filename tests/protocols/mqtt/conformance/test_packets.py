"""Fixed headers, lengths and packet ids (section 2)."""

import pytest
from mqtt_clauses import both, proves
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
    V311,
    ack,
    connect,
    disconnect,
    packet,
    publish,
    subscribe,
    text,
    unsubscribe,
)


def is_refused(client, *codes):
    """One of the reasons and the end in MQTT 5.0, the end alone before it."""
    if client.version == V5:
        assert client.receive(DISCONNECT).code in codes
    assert client.is_closed()


def with_flags(flags, data):
    return bytes([data[0] & 0xF0 | flags]) + data[1:]


@pytest.mark.parametrize("flags", [0, 1, 3, 6, 8, 10, 15])
@both("2.2.2-2 3.6.1-1 4.8.0-1", "2.1.3-1 3.6.1-1 4.13.1-1")
def test_the_flags_of_pubrel_are_2(dial, name, version, flags):
    client = dial(version, connect=name).send(with_flags(flags, ack(PUBREL, 1)))
    is_refused(client, 0x81)


@pytest.mark.parametrize("flags", [0, 1, 3, 6, 8, 10, 15])
@both("2.2.2-2 3.8.1-1", "2.1.3-1 3.8.1-1")
def test_the_flags_of_subscribe_are_2(dial, name, version, flags):
    request = subscribe(1, ("a", 0), version=version)
    client = dial(version, connect=name).send(with_flags(flags, request))
    is_refused(client, 0x81)


@pytest.mark.parametrize("flags", [0, 1, 3, 6, 8, 10, 15])
@both("2.2.2-2 3.10.1-1", "2.1.3-1 3.10.1-1")
def test_the_flags_of_unsubscribe_are_2(dial, name, version, flags):
    request = unsubscribe(1, "a", version=version)
    client = dial(version, connect=name).send(with_flags(flags, request))
    is_refused(client, 0x81)


@pytest.mark.parametrize("flags", [1, 2, 4, 8])
@both("2.2.2-2 3.14.1-1", "2.1.3-1 3.14.1-1")
def test_the_flags_of_disconnect_are_0(dial, name, version, flags):
    will = (f"{name}/will", b"gone")
    observer = dial(connect=f"{name}o")
    observer.subscribe(f"{name}/will")
    client = dial(version, connect=name, will=will).send(with_flags(flags, disconnect()))
    is_refused(client, 0x81)
    assert observer.message().body == b"gone"  # it was no DISCONNECT


@pytest.mark.parametrize("kind", [PUBACK, PUBREC, PUBCOMP, 12])
@pytest.mark.parametrize("flags", [1, 2, 8])
@both("2.2.2-2", "2.1.3-1")
def test_the_flags_of_other_packets_are_0(dial, name, version, kind, flags):
    body = b"" if kind == 12 else b"\x00\x01"
    client = dial(version, connect=name).send(packet(kind << 4 | flags, body))
    is_refused(client, 0x81)


@pytest.mark.parametrize("flags", [1, 2, 8])
@both("2.2.2-2 3.1.4-1", "2.1.3-1")
def test_the_flags_of_connect_are_0(dial, name, version, flags):
    client = dial(version).send(with_flags(flags, connect(name, version=version)))
    if version == V5:
        answer = client.receive(CONNACK)
        assert (answer.code, answer.session_present) == (0x81, 0)
    assert client.is_closed()


@pytest.mark.parametrize("flags", [1, 2, 4, 8])
@proves("5.0", "2.1.3-1 3.15.1-1")
def test_the_flags_of_auth_are_0(dial, name, flags):
    client = dial(V5, connect=name).send(packet(0xF0 | flags, b"\x19\x00"))
    is_refused(client, 0x81)


@pytest.mark.parametrize("first", [0x00, 0x0F])
@both("4.8.0-1", "4.13.1-1")
def test_a_packet_of_no_kind_ends_the_connection(dial, name, version, first):
    is_refused(dial(version, connect=name).send(packet(first)), 0x81)


@pytest.mark.parametrize("first", [0x20, 0x90, 0xB0, 0xD0])
@both("4.8.0-1", "4.13.1-1")
def test_a_packet_that_only_a_server_sends_ends_the_connection(dial, name, version, first):
    bodies = {0x20: b"\x00\x00", 0x90: b"\x00\x01\x00", 0xB0: b"\x00\x01", 0xD0: b""}
    if version == V5:
        bodies |= {0x20: b"\x00\x00\x00", 0x90: b"\x00\x01\x00\x00", 0xB0: b"\x00\x01\x00\x00"}
    client = dial(version, connect=name).send(packet(first, bodies[first]))
    is_refused(client, 0x82)


@both("", "2.1.3-1")
def test_type_15_is_auth_only_in_5_0(dial, name, version):
    client = dial(version, connect=name).send(packet(0xF0))
    is_refused(client, 0x82)


@pytest.mark.parametrize(
    "data",
    [
        publish("a", b"", qos=1, packet_id=0),
        publish("a", b"", qos=2, packet_id=0),
        subscribe(0, ("a", 0)),
        unsubscribe(0, "a"),
    ],
    ids=["PUBLISH QoS 1", "PUBLISH QoS 2", "SUBSCRIBE", "UNSUBSCRIBE"],
)
@proves("3.1.1", "2.3.1-1 4.8.0-1")
def test_a_packet_id_is_not_0(dial, name, data):
    assert dial(V311, connect=name).send(data).is_closed()


@pytest.mark.parametrize(
    "data",
    [
        publish("a", b"", qos=1, packet_id=0, version=V5),
        publish("a", b"", qos=2, packet_id=0, version=V5),
        subscribe(0, ("a", 0), version=V5),
        unsubscribe(0, "a", version=V5),
    ],
    ids=["PUBLISH QoS 1", "PUBLISH QoS 2", "SUBSCRIBE", "UNSUBSCRIBE"],
)
@proves("5.0", "2.2.1-3")
def test_a_packet_id_of_5_0_is_not_0(dial, name, data):
    is_refused(dial(V5, connect=name).send(data), 0x82)


@both("2.3.1-5 3.3.1-2 4.3.1-1 2.2.2-1", "2.2.1-2 2.2.2-1 3.3.1-2 4.3.1-1")
def test_qos_0_has_no_packet_id_and_no_dup(dial, name, version):
    client = dial(version, connect=name)
    client.subscribe(name, 2)
    client.publish(name, b"body")
    props = b"\x00" if version == V5 else b""
    head = text(name) + props
    assert client.receive_raw() == packet(0x30, head + b"body")


@both("2.3.1-7 3.8.4-2 3.10.4-4", "2.2.1-6 3.8.4-2 3.10.4-5")
def test_suback_and_unsuback_have_the_packet_id_of_the_request(dial, name, version):
    client = dial(version, connect=name)
    for packet_id in (1, 0x00FF, 0x0100, 0xFFFF):
        client.send(subscribe(packet_id, (name, 1), version=version))
        assert client.receive(SUBACK).packet_id == packet_id
        client.send(unsubscribe(packet_id, name, version=version))
        assert client.receive(UNSUBACK).packet_id == packet_id


@both("2.3.1-6 2.2.2-1", "2.2.1-5 2.1.3-1")
def test_acknowledgements_have_the_packet_id_of_the_publish(dial, name, version):
    client = dial(version, connect=name)
    client.subscribe(name)  # with a subscriber MQTT 5.0 has nothing to add
    for packet_id in (1, 0x00FF, 0x0100, 0xFFFF):
        wire = packet_id.to_bytes(2, "big")
        client.publish(name, b"", qos=1, packet_id=packet_id)
        got = {client.receive_raw(), client.receive_raw()}
        assert b"\x40\x02" + wire in got
        client.publish(name, b"", qos=2, packet_id=packet_id)
        got = {client.receive_raw(), client.receive_raw()}
        assert b"\x50\x02" + wire in got
        client.send(ack(PUBREL, packet_id))
        assert client.receive_raw() == b"\x70\x02" + wire


@both("2.3.1-4 2.3.1-6 4.3.3-1", "2.2.1-4 2.2.1-5 4.3.3-1 4.3.3-4")
def test_the_gateways_pubrel_has_the_packet_id_of_its_publish(dial, name, version):
    client = dial(version, connect=name)
    client.subscribe(name, 2)
    publisher = dial(connect=f"{name}p")
    for _ in range(3):
        publisher.publishes(name, b"x", 2)
    ids = [client.message().packet_id for _ in range(3)]
    assert len(set(ids)) == 3
    for packet_id in ids:
        client.send(ack(PUBREC, packet_id))
        assert client.receive_raw() == b"\x62\x02" + packet_id.to_bytes(2, "big")
        client.send(ack(PUBCOMP, packet_id))


@pytest.mark.parametrize("qos", [1, 2])
@both("2.3.1-4 2.3.1-1 4.3.2-1 4.3.3-1", "2.2.1-4 4.3.2-1 4.3.3-1")
def test_packet_ids_in_use_are_not_given_again(dial, name, version, qos):
    client = dial(version, connect=name)
    client.subscribe(name, qos)
    publisher = dial(connect=f"{name}p")
    open_ids = set()
    for number in range(40):
        publisher.publishes(name, b"%d" % number, qos)
        message = client.message()
        assert message.body == b"%d" % number
        assert message.packet_id not in open_ids | {0}
        if number % 2:  # every second one is done, its id may come again
            client.send(ack(PUBACK if qos == 1 else PUBREC, message.packet_id))
            if qos == 2:
                client.receive(PUBREL)
                client.send(ack(PUBCOMP, message.packet_id))
        else:
            open_ids.add(message.packet_id)
    assert len(open_ids) == 20


@both("2.3.1-2 4.3.3-2", "4.3.3-10")
def test_a_qos_2_id_that_is_in_use_is_a_repetition(dial, name, version):
    subscriber = dial(connect=f"{name}s")
    subscriber.subscribe(name)
    client = dial(version, connect=name)
    client.publish(name, b"one", qos=2, packet_id=9)
    assert client.receive(PUBREC).packet_id == 9
    client.publish(name, b"two", qos=2, packet_id=9)
    repeated = client.receive(PUBREC)
    assert (repeated.packet_id, repeated.code) == (9, 0)
    assert subscriber.message().body == b"one"
    assert subscriber.is_passed_over(client)


@proves("3.1.1", "2.3.1-3")
def test_a_repetition_under_another_id_is_another_message(dial, name):
    subscriber = dial(connect=f"{name}s")
    subscriber.subscribe(name)
    client = dial(connect=name)
    client.publish(name, b"x", qos=2, packet_id=1)
    client.publish(name, b"x", qos=2, packet_id=2, dup=True)
    assert [client.receive(PUBREC).packet_id for _ in range(2)] == [1, 2]
    assert [subscriber.message().body for _ in range(2)] == [b"x", b"x"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\x87\x00" + b"\x00\x01\x00\x00\x01a\x00",
        b"\x82\x08" + b"\x00\x01\x80\x00\x00\x01a\x00",
    ],
    ids=["remaining length", "property length"],
)
@proves("5.0", "1.5.5-1")
def test_a_length_in_more_bytes_than_it_needs_is_malformed(dial, name, data):
    is_refused(dial(V5, connect=name).send(data), 0x81)


@proves("5.0", "1.5.5-1")
def test_lengths_are_written_in_as_few_bytes_as_they_need(dial, name):
    client = dial(V5, connect=name)
    client.subscribe(name)
    overhead = len(text(name)) + 1
    for length in (127, 128, 16_383, 16_384):
        client.publish(name, bytes(length - overhead))
        raw = client.receive_raw()  # reading it, the helper refuses a longer form
        digits = 1 if length < 128 else 2 if length < 16_384 else 3
        assert len(raw) == 1 + digits + length


@proves("5.0", "1.5.5-1 4.13.1-1")
@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5.0"])
def test_a_length_of_five_bytes_is_malformed(dial, name, version):
    client = dial(version, connect=name).send(b"\x30\xff\xff\xff\xff\x01")
    is_refused(client, 0x81)


@proves("5.0", "2.2.2-1")
def test_suback_and_unsuback_have_a_property_length(dial, name):
    client = dial(V5, connect=name, request_problem=0)
    client.send(subscribe(1, (name, 1), version=V5))
    assert client.receive_raw() == b"\x90\x04\x00\x01\x00\x01"
    client.send(unsubscribe(2, name, version=V5))
    assert client.receive_raw() == b"\xb0\x04\x00\x02\x00\x00"


@proves("3.1.1", "2.2.2-1 3.2.0-1 7.0.0-2")
def test_a_whole_conversation_byte_by_byte(dial, name):
    client = dial()
    client.send(b"\x10" + bytes([12 + len(name)]) + b"\x00\x04MQTT\x04\x02\x00\x00" + text(name))
    assert client.receive_raw() == b"\x20\x02\x00\x00"
    client.send(b"\x82" + bytes([5 + len(name)]) + b"\x00\x0a" + text(name) + b"\x02")
    assert client.receive_raw() == b"\x90\x03\x00\x0a\x02"
    client.send(b"\x34" + bytes([6 + len(name)]) + text(name) + b"\x00\x0bhi")
    assert client.receive_raw() == b"\x50\x02\x00\x0b"
    message = client.receive_raw()
    assert message[:2] == b"\x34" + bytes([6 + len(name)])
    assert message.startswith(text(name), 2)
    assert message.endswith(b"hi")
    packet_id = message[-4:-2]
    client.send(b"\x50\x02" + packet_id)
    assert client.receive_raw() == b"\x62\x02" + packet_id
    client.send(b"\x70\x02" + packet_id, b"\x62\x02\x00\x0b")
    assert client.receive_raw() == b"\x70\x02\x00\x0b"
    client.send(b"\xa2" + bytes([4 + len(name)]) + b"\x00\x0c" + text(name))
    assert client.receive_raw() == b"\xb0\x02\x00\x0c"
    client.send(b"\xc0\x00")
    assert client.receive_raw() == b"\xd0\x00"
    client.send(b"\xe0\x00")
    assert client.receive_raw() == b""
