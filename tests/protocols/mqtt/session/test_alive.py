"""Who is given up: half a packet that stays open, and clients that are silent."""

import pytest
from mqtt_session import LOST

from tidegate_protocols.mqtt import (
    Connect,
    Disconnect,
    Pingreq,
    Publish,
    ReasonCode,
    Will,
    encode,
)
from tidegate_protocols.mqtt.session.receiving import LONG_PACKET_BYTES

# ------------------------------------------------------------------------------ half a packet


@pytest.mark.parametrize(
    "half", [b"\x30", b"\x30\x0a\0\x01a", encode(Publish("a", bytes(60_000)))[:-1]]
)
def test_half_a_packet_does_not_stay_open_without_a_keep_alive(make_client, half):
    client = make_client(frame_timeout=10.0)
    client.connects(level=5)
    client.sends(half)
    client.runtime.advance(9.9)
    assert not client.link.is_closing
    client.runtime.advance(0.1)
    (answer,) = client.gets()
    assert isinstance(answer, Disconnect)
    assert answer.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert "(frame_timeout)" in (answer.properties.reason_string or "")
    assert client.link.is_closing
    assert client.runtime.pending_timers == 0


def test_half_a_packet_that_comes_with_the_connect_does_not_either(make_client):
    client = make_client(frame_timeout=10.0)
    client.sends(encode(Connect(client_id="dev")) + b"\x30\x0a\0\x01a")
    client.runtime.advance(10)
    assert client.link.is_closing


def test_half_a_packet_behind_a_slice_of_work_does_not_either(make_client):
    client = make_client(frame_timeout=10.0)
    client.connects()
    client.sends(encode(Publish("a", b"x")) * 1000 + b"\x30")
    assert client.runtime.pending_timers == 1
    client.runtime.advance(10)
    assert client.link.is_closing


def test_half_a_packet_that_goes_on_on_a_thin_line_is_taken(make_client):
    client = make_client(frame_timeout=10.0)
    client.connects()
    wire = encode(Publish("a", bytes(3000)))
    for start in range(0, len(wire), 120):
        client.sends(wire[start : start + 120])
        client.runtime.advance(1)
    assert len(client.connection.take("publish")) == 1
    client.runtime.advance(100)
    assert not client.link.is_closing
    assert client.runtime.pending_timers == 0


# ---------------------------------------------------------------------------------- keep-alive


def test_a_client_is_given_up_after_one_and_a_half_keep_alives(make_client):
    client = make_client()
    client.connects(keep_alive=10, will=Will("a", b""))
    client.runtime.advance(10)
    client.sends(Pingreq())
    client.runtime.advance(14.9)
    assert not client.link.is_closing
    client.runtime.advance(0.1)  # [MQTT-3.1.2-24]
    assert client.link.is_closing
    assert client.connection.take("disconnect") == [LOST]


def test_half_a_packet_is_no_sign_of_life(make_client):
    client = make_client()
    client.connects(keep_alive=10)
    client.runtime.advance(14)
    client.sends(b"\xc0")
    client.runtime.advance(1)
    assert client.link.is_closing


def test_the_bytes_of_a_long_packet_are_a_sign_of_life(make_client):
    client = make_client()
    client.connects(keep_alive=10)
    wire = encode(Publish("a", b"x" * 3 * LONG_PACKET_BYTES))
    for start in range(0, len(wire), LONG_PACKET_BYTES):
        client.sends(wire[start : start + LONG_PACKET_BYTES])
        client.runtime.advance(14)
    assert not client.link.is_closing
    assert len(client.connection.take("publish")) == 1


def test_a_client_that_is_not_read_cannot_be_too_silent(make_client):
    client = make_client()
    client.connects(keep_alive=10)
    client.session.throttle(True)
    client.runtime.advance(100)
    client.session.throttle(False)
    client.runtime.advance(14)
    assert not client.link.is_closing
    client.runtime.advance(2)
    assert client.link.is_closing


def test_the_listener_has_a_keep_alive_for_clients_without(make_client):
    client = make_client(keep_alive_default=60.0)
    client.connects(keep_alive=0)
    client.runtime.advance(90)
    assert client.link.is_closing
