"""DISCONNECT of MQTT 5.0 (section 3.14), and the reason codes of all packets."""

import pytest
from mqtt_clauses import proves
from mqtt_raw import (
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    disconnect,
    packet,
    properties,
    two,
)


def ends(client, *codes):
    assert client.receive(DISCONNECT).code in codes
    assert client.is_closed()


@pytest.mark.parametrize("data", [b"\xe0\x00", b"\xe0\x01\x00", b"\xe0\x02\x00\x00"])
@proves("5.0", "3.14.4-3 3.14.4-2 3.14.2-1")
def test_disconnect_0_is_a_clean_end_in_every_form(dial, name, data):
    observer = dial(connect=f"{name}o")
    observer.subscribe(f"{name}/will")
    client = dial(V5, connect=name, will=(f"{name}/will", b"gone")).send(data)
    assert client.is_closed()  # without an answer
    assert observer.is_passed_over(dial(connect=f"{name}p"))


@pytest.mark.parametrize("code", [0x04, 0x80, 0x81, 0x93, 0x97])
@proves("5.0", "3.1.2-8 3.14.2-1")
def test_any_other_reason_of_a_client_publishes_the_will(dial, name, code):
    observer = dial(connect=f"{name}o")
    observer.subscribe(f"{name}/will")
    client = dial(V5, connect=name, will=(f"{name}/will", b"gone"))
    client.send(disconnect(code, reason_string="why", user_property=[("a", "b")]))
    assert client.is_closed()
    assert observer.message().body == b"gone"


@pytest.mark.parametrize("code", [0x01, 0x03, 0x7F, 0x91, 0xFF])
@proves("5.0", "3.14.2-1")
def test_a_reason_that_disconnect_does_not_have_is_an_error(dial, name, code):
    ends(dial(V5, connect=name).send(disconnect(code)), 0x81)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        pytest.param(PUBACK, 0x01, marks=proves("5.0", "3.4.2-1")),
        pytest.param(PUBREC, 0x92, marks=proves("5.0", "3.5.2-1")),
        pytest.param(PUBREL, 0x10, marks=proves("5.0", "3.6.2-1")),
        pytest.param(PUBCOMP, 0x80, marks=proves("5.0", "3.7.2-1")),
    ],
)
def test_a_reason_that_an_acknowledgement_does_not_have_is_an_error(dial, name, kind, code):
    client = dial(V5, connect=name)
    client.send(packet(kind << 4 | (2 if kind == PUBREL else 0), two(1) + bytes([code])))
    ends(client, 0x81)


@pytest.mark.parametrize(
    ("block", "code"),
    [
        pytest.param(properties(session_expiry=[1, 1]), 0x82, id="expiry twice"),
        pytest.param(properties(reason_string=["a", "b"]), 0x82, id="reason twice"),
        pytest.param(properties(server_reference="other"), 0x82, id="server reference"),
        pytest.param(properties(receive_maximum=1), 0x81, id="receive maximum"),
    ],
)
@proves("5.0", "4.13.1-1")
def test_properties_that_a_clients_disconnect_must_not_have_are_errors(dial, name, block, code):
    client = dial(V5, connect=name, session_expiry=10)
    ends(client.send(packet(0xE0, b"\x00" + block)), code)


@proves("5.0", "3.14.2-2 3.14.4-1 3.14.4-2 4.13.2-1")
def test_the_gateways_disconnect_is_its_last_word_and_has_no_session_expiry(dial, name):
    client = dial(V5, connect=name, session_expiry=100)
    client.subscribe(name, 1)
    publisher = dial(connect=f"{name}p")
    client.send(packet(0x00))
    publisher.publishes(name, b"x")
    last = client.receive(DISCONNECT)
    assert last.code == 0x81
    assert "session_expiry" not in last.props
    assert client.is_closed()


@proves("5.0", "3.14.2-2 3.14.2-1 4.13.2-1")
def test_a_gateway_that_stops_says_so(dial, name, start_gateway):
    gateway = start_gateway()
    client = dial(V5, connect=name, gateway=gateway, session_expiry=100)
    gateway.restart()
    last = client.receive(DISCONNECT)
    assert (last.code, "session_expiry" in last.props) == (0x8B, False)
    assert client.is_closed()


@proves("5.0", "4.13.1-1 4.13.2-1")
def test_an_error_ends_no_other_connection(dial, name):
    other = dial(V5, connect=f"{name}o")
    ends(dial(V5, connect=name).send(packet(0x00)), 0x81)
    assert other.is_quiet()
