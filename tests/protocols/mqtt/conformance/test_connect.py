"""CONNECT and CONNACK (sections 3.1 and 3.2)."""

import string

import pytest
from mqtt_clauses import both, proves
from mqtt_raw import (
    CONNACK,
    DISCONNECT,
    PING,
    PINGRESP,
    PUBLISH,
    SUBACK,
    V5,
    V31,
    V311,
    connect,
    disconnect,
    packet,
    properties,
    publish,
    subscribe,
    text,
    two,
)


def raw_connect(version, flags, payload, *, protocol="MQTT", props=b"\x00"):
    head = text(protocol) + bytes([version, flags]) + two(0)
    return packet(0x10, head + (props if version == V5 else b"") + payload)


def is_refused(client, code):
    """The reason in MQTT 5.0 and the end; the end alone before it."""
    if client.version == V5:
        answer = client.receive(CONNACK)
        assert (answer.code, answer.session_present) == (code, 0)
    assert client.is_closed()


# ------------------------------------------------------------------------------- being accepted


@both(
    "3.1.4-4 3.2.0-1 3.2.2-1 7.1.1-1 7.0.0-2",
    "3.1.4-5 3.2.0-1 3.2.0-2 3.2.2-1 3.2.2-2 3.2.2-8 4.2.0-1",
)
def test_a_connect_is_answered_with_one_connack_before_anything_else(dial, name, version):
    client = dial(version)
    client.send(
        connect(name, version=version),
        subscribe(1, (name, 0), version=version),
        publish(name, b"x", version=version),
        PING,
    )
    first = client.receive(CONNACK)
    assert (first.code, first.session_present) == (0, 0)
    others = {client.receive().kind for _ in range(3)}
    assert others == {SUBACK, PUBLISH, PINGRESP}
    assert client.is_quiet()


@pytest.mark.parametrize(
    "client_id",
    ["a", "0" * 23, string.digits + "abcdefghijklm", string.ascii_uppercase[:23], "nopqrstuvwxyz"],
)
@both("3.1.3-5", "3.1.3-5")
def test_client_ids_of_1_to_23_letters_and_digits_are_allowed(dial, version, client_id):
    assert dial(version).connect(client_id).code == 0


@pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5.0"])
def test_all_three_versions_are_spoken_on_one_listener(dial, name, version):
    client = dial(version, connect=name)
    client.subscribe(name, 2)
    client.publish(name, b"x")
    assert client.message().body == b"x"


@both("3.1.3-6", "3.1.3-6")
def test_clients_without_an_id_are_different_clients(dial, name, version):
    first, second = (dial(version, connect="") for _ in range(2))
    first.subscribe(name)
    second.publish(name, b"x")
    assert first.message().body == b"x"  # nobody was taken over
    assert second.is_quiet()


@proves("5.0", "3.1.3-6 3.1.3-7 3.2.2-16")
def test_the_assigned_client_id_is_told_and_names_the_session(dial, name):
    client = dial(V5)
    assigned = client.connect("", session_expiry=100).props["assigned_client_id"]
    other = dial(V5).connect("", session_expiry=100).props["assigned_client_id"]
    assert assigned
    assert assigned != other
    client.subscribe(name)
    client.drop()
    again = dial(V5)
    answer = again.connect(assigned, clean=False)
    assert answer.session_present == 1
    assert "assigned_client_id" not in answer.props
    dial(connect=f"{name}p").publish(name, b"x")
    assert again.message().body == b"x"


@both("3.1.3-2 3.1.2-4", "3.1.3-2")
def test_the_client_id_names_the_session(dial, name, version):
    kept = {"clean": False} | ({"session_expiry": 100} if version == V5 else {})
    client = dial(version, connect=f"{name}A", **kept)
    client.subscribe(name, 1)
    client.drop()
    assert dial(version).connect(f"{name}a", **kept).session_present == 0
    assert dial(version).connect(f"{name}A", **kept).session_present == 1


@both("3.1.3-1", "3.1.3-1")
def test_the_payload_is_read_in_its_order(dial, name, version):
    observer = dial(connect=f"{name}o")
    observer.subscribe(f"{name}/will")
    payload = text(name)
    payload += properties(content_type="t") if version == V5 else b""
    payload += text(f"{name}/will") + text(b"body") + text("user") + text(b"secret")
    client = dial(version).send(raw_connect(version, 0xC6, payload))
    assert client.receive(CONNACK).code == 0
    client.drop()
    found = observer.message()
    assert (found.topic, found.body) == (f"{name}/will", b"body")


# -------------------------------------------------------------------------------- being refused


@pytest.mark.parametrize(
    "first",
    [
        PING,
        publish("a", b"x"),
        subscribe(1, ("a", 0)),
        disconnect(),
        packet(0xF0, b"\x18\x00"),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["PINGREQ", "PUBLISH", "SUBSCRIBE", "DISCONNECT", "AUTH", "HTTP"],
)
@proves("3.1.1", "3.1.0-1 4.8.0-1")
@proves("5.0", "3.1.0-1 3.14.0-1")
def test_the_first_packet_is_connect(dial, first):
    assert dial().send(first).is_closed()


@both("3.1.0-2 4.8.0-1", "3.1.0-2 3.2.0-2 4.13.1-1")
def test_a_second_connect_ends_the_connection(dial, name, version):
    client = dial(version, connect=name).send(connect(name, version=version))
    if version == V5:
        assert client.receive(DISCONNECT).code == 0x82
    assert client.is_closed()


@pytest.mark.parametrize("protocol", ["MQTX", "mqtt", "", "MQTTT", "MQIsdp2"])
@both("3.1.2-1 3.1.4-1 3.2.2-6", "3.1.2-1")
def test_another_protocol_name_ends_the_connection(dial, name, version, protocol):
    client = dial(version).send(raw_connect(version, 2, text(name), protocol=protocol))
    raw = client.receive_raw()
    assert raw in ((b"", b"\x20\x03\x00\x84\x00") if version == V5 else (b"",))
    assert not raw or client.is_closed()


@pytest.mark.parametrize("level", [0, 3, 6, 127, 0x84])
@proves("3.1.1", "3.1.2-2 3.2.2-4 3.2.2-5")
@proves("5.0", "3.1.2-2")
def test_an_unknown_version_is_refused_with_return_code_1(dial, name, level):
    client = dial().send(raw_connect(level, 2, text(name)))
    assert client.receive_raw() == b"\x20\x02\x00\x01"
    assert client.is_closed()


FLAGS = [
    pytest.param(0x03, text("a"), "3.1.2-3", "3.1.2-3", id="reserved flag"),
    pytest.param(0x06, text("a"), "3.1.2-9", "3.1.2-9", id="no will where there is one"),
    pytest.param(0x06, text("a") + b"\x00" + text("t"), "3.1.2-9", "3.1.2-9", id="no will message"),
    pytest.param(0x02, text("a") + text("t") + text("m"), "3.1.2-11", "", id="a will without flag"),
    pytest.param(0x0A, text("a"), "3.1.2-11 3.1.2-13", "3.1.2-11", id="will QoS without will"),
    pytest.param(0x22, text("a"), "3.1.2-11 3.1.2-15", "3.1.2-13", id="will retain without will"),
    pytest.param(0x82, text("a"), "3.1.2-19", "3.1.2-17", id="no user name"),
    pytest.param(0x02, text("a") + text("u"), "3.1.2-18", "3.1.2-16", id="a user name"),
    pytest.param(0xC2, text("a") + text("u"), "3.1.2-21", "3.1.2-19", id="no password"),
    pytest.param(0x82, text("a") + text("u") + text("p"), "3.1.2-20", "3.1.2-18", id="a password"),
    pytest.param(0x02, b"", "3.1.3-3", "3.1.3-3", id="no client id"),
    pytest.param(0x02, b"\x00\x05abc", "3.1.3-3", "3.1.3-3", id="a client id that is cut off"),
]


def of_version(version, also):
    found = []
    for case in FLAGS:
        flags, payload, *numbers = case.values
        which = numbers[0 if version == "3.1.1" else 1]
        marks = proves(version, f"{which} {also}")
        found.append(pytest.param(flags, payload, id=case.id, marks=marks))
    return found


@pytest.mark.parametrize(("flags", "payload"), of_version("3.1.1", "3.1.4-1 3.2.2-6"))
def test_a_connect_that_contradicts_itself_is_not_answered(dial, flags, payload):
    assert dial().send(raw_connect(V311, flags, payload)).is_closed()


@pytest.mark.parametrize(("flags", "payload"), of_version("5.0", "3.1.4-1 3.14.0-1 4.13.1-1"))
def test_a_connect_of_5_0_that_contradicts_itself_is_malformed(dial, flags, payload):
    is_refused(dial(V5).send(raw_connect(V5, flags, payload)), 0x81)


@both("3.1.2-14 3.1.4-1", "3.1.2-12")
def test_a_will_qos_of_3_is_malformed(dial, name, version):
    client = dial(version)
    client.send(connect(name, version=version, will=("t", b""), will_qos=3))
    is_refused(client, 0x81)


@proves("3.1.1", "3.1.2-22")
def test_a_password_needs_a_user_name(dial):
    assert dial().send(raw_connect(V311, 0x42, text("a") + text("p"))).is_closed()


def test_a_password_of_5_0_needs_no_user_name(dial):
    client = dial(V5).send(raw_connect(V5, 0x42, text("a") + text("p")))
    assert client.receive(CONNACK).code == 0


@proves("3.1.1", "3.1.3-7 3.1.3-8 3.2.2-4 3.2.2-5")
def test_an_empty_client_id_needs_a_clean_session(dial):
    client = dial()
    assert client.connect("", clean=False).raw == b"\x20\x02\x00\x02"
    assert client.is_closed()


def test_an_empty_client_id_of_5_0_gets_a_session_of_its_own(dial):
    answer = dial(V5).connect("", clean=False)
    assert (answer.code, answer.session_present) == (0, 0)
    assert answer.props["assigned_client_id"]


@both("3.1.3-9 3.2.2-4 3.2.2-5", "3.1.3-8 3.2.2-1 3.2.2-6 3.2.2-7 3.2.2-8 4.13.2-1")
def test_a_client_id_that_is_too_long_is_refused(dial, version):
    client = dial(version)
    answer = client.connect("x" * 1025)
    assert (answer.code, answer.session_present) == (0x85 if version == V5 else 2, 0)
    assert client.is_closed()


@both("3.1.4-5", "3.1.4-6")
def test_what_follows_a_refused_connect_is_not_handled(dial, name, version):
    observer = dial(connect=f"{name}o")
    observer.subscribe(name)
    client = dial(version)
    client.send(
        connect("x" * 1025, version=version),
        publish(name, b"x", version=version),
        publish(name, b"x", version=version, qos=1, packet_id=1),
        PING,
    )
    assert client.receive(CONNACK).code != 0
    assert client.is_closed()
    assert observer.is_passed_over(dial(connect=f"{name}p"))


@proves("5.0", "3.1.4-6")
def test_what_follows_a_malformed_connect_is_not_handled(dial, name):
    observer = dial(connect=f"{name}o")
    observer.subscribe(name)
    client = dial(V5)
    client.send(raw_connect(V5, 3, text("a")), publish(name, b"x", version=V5), PING)
    is_refused(client, 0x81)
    assert observer.is_passed_over(dial(connect=f"{name}p"))


# ------------------------------------------------------------------------------------ taking over


@both("3.1.4-2", "3.1.4-3 3.14.2-1 3.14.4-2")
def test_a_client_takes_over_from_its_older_connection(dial, name, version):
    older = dial(version, connect=name)
    newer = dial(version, connect=name)
    if version == V5:
        assert older.receive(DISCONNECT).code == 0x8E
    assert older.is_closed()
    assert newer.is_quiet()


@proves("3.1.1", "3.1.4-2")
@proves("5.0", "3.1.4-3")
def test_clients_of_different_versions_take_over_from_each_other(dial, name):
    older = dial(V5, connect=name)
    newer = dial(V311, connect=name)
    assert older.receive(DISCONNECT).code == 0x8E
    assert older.is_closed()
    newest = dial(V5, connect=name)
    assert newer.is_closed()
    assert newest.is_quiet()


# ------------------------------------------------------------------------- the properties of 5.0


@pytest.mark.parametrize(
    ("props", "code"),
    [
        ({"receive_maximum": 0}, 0x82),
        ({"maximum_packet_size": 0}, 0x82),
        ({"request_problem": 2}, 0x82),
        ({"request_response": 2}, 0x82),
        ({"session_expiry": [1, 2]}, 0x82),
        ({"receive_maximum": [1, 1]}, 0x82),
        ({"auth_data": b"x"}, 0x82),
        ({"topic_alias": 1}, 0x81),
        ({"assigned_client_id": "x"}, 0x81),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
@proves("5.0", "3.1.4-1 4.13.1-1 3.14.0-1")
def test_properties_that_connect_must_not_have_are_refused(dial, name, props, code):
    client = dial(V5).send(connect(name, version=V5, **props))
    answer = client.receive(CONNACK)
    assert (answer.code, answer.session_present) == (code, 0)
    assert client.is_closed()


@pytest.mark.parametrize("asked", [{}, {"request_response": 0}], ids=["absent", "0"])
@proves("5.0", "3.1.2-28")
def test_response_information_is_not_sent_unasked(dial, name, asked, start_gateway):
    gateway = start_gateway(
        '[[listeners]]\nprotocol = "mqtt"\nbind = "127.0.0.1:0"\nresponse_topic_prefix = "answers"\n'
    )
    answer = dial(V5, gateway=gateway).connect(name, request_response=1)
    assert answer.props["response_information"] == f"answers/anonymous/{name}"
    assert "response_information" not in dial(V5, gateway=gateway).connect(name, **asked).props


@proves("5.0", "4.12.0-6")
def test_a_client_without_an_authentication_method_hears_of_none(dial, name):
    client = dial(V5)
    answer = client.connect(name)  # the first packet: there was no AUTH
    assert not {"auth_method", "auth_data"} & set(answer.props)


@pytest.mark.parametrize("reserved", ["receive_maximum", "maximum_packet_size"])
def test_the_largest_values_are_accepted(dial, name, reserved):
    largest = {"receive_maximum": 65_535, "maximum_packet_size": 0xFFFF_FFFF}[reserved]
    assert dial(V5).connect(name, **{reserved: largest}).code == 0


@proves("5.0", "3.2.2-16")
def test_an_id_that_was_given_is_not_assigned(dial, name):
    assert "assigned_client_id" not in dial(V5).connect(name).props
