"""What MQTT 5.0 adds: why it ends is said, and for how long the session is kept; and any bytes whatever."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mqtt_session import LEFT, LOST, OUT, PUBLISHED

from tidegate.spi import (
    AccessError,
    ConnectionEndedError,
    FlowControlError,
    InflightRecord,
    RequestError,
    Subscription,
)
from tidegate_protocols.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Properties,
    Publish,
    ReasonCode,
    SessionState,
)

# ------------------------------------------------------------------------- MQTT 5.0: why it ends


def reason_of(client):
    """Type, reason and words of the one packet that the client got."""
    (packet,) = client.gets()
    return type(packet), packet.reason_code, packet.properties.reason_string


@pytest.mark.parametrize(
    ("ending", "reason"), [("taken-over", 0x8E), ("shutdown", 0x8B), ("by an operator", 0x98)]
)
def test_a_client_of_5_0_hears_why_the_broker_ends_it(client_5, ending, reason):
    client_5.session.closed(ConnectionEndedError(ending, "because"))
    assert reason_of(client_5) == (Disconnect, reason, "because")
    assert client_5.link.is_closing


@pytest.mark.parametrize(
    ("ending", "reason"), [("taken-over", 0x80), ("shutdown", 0x88), ("by an operator", 0x80)]
)
def test_a_client_of_5_0_that_is_ended_before_its_connack_hears_of_it_and_is_closed(
    make_client, broker, ending, reason
):
    broker.is_slow = True
    client = make_client(broker)
    client.sends(Connect(level=5, client_id="dev"))
    assert client.session.state is SessionState.AUTHENTICATING
    client.session.closed(ConnectionEndedError(ending, "because"))
    assert reason_of(client) == (Connack, reason, "because")
    assert client.link.is_closing


def test_a_client_of_5_0_that_was_silent_hears_of_it(make_client):
    client = make_client()
    client.connects(level=5, keep_alive=10)
    client.runtime.advance(15)
    assert reason_of(client)[:2] == (Disconnect, 0x8D)
    assert client.connection.take("disconnect") == [LOST]


def test_a_client_of_5_0_is_given_up_after_the_keep_alive_that_it_was_told(make_client):
    client = make_client(keep_alive_max=10.0)
    assert client.connects(level=5, keep_alive=0).properties.server_keep_alive == 10
    client.runtime.advance(15)
    assert client.link.is_closing


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (b"\x00\x00", 0x81),
        (b"\x30\x03\x00\x01#", 0x81),
        (b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00", 0x82),
        (b"\x30\xff\xff\xff\x7f", 0x95),
    ],
    ids=["malformed", "short", "second connect", "too large"],
)
def test_a_client_of_5_0_hears_what_it_did_wrong(client_5, wire, reason):
    client_5.sends(wire)
    assert reason_of(client_5)[:2] == (Disconnect, reason)  # 5.0:MQTT-4.13.1-1
    assert client_5.link.is_closing
    assert client_5.connection.take("disconnect") == [LOST]


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (b"\x10\x0d\x00\x04MQTT\x05\x03\x00\x00\x00\x00\x00", 0x81),
        (b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x03\x21\x00\x00\x00\x00", 0x82),
    ],
    ids=["reserved flag", "receive maximum 0"],
)
def test_a_connect_of_5_0_that_is_wrong_is_refused_in_its_own_words(make_client, wire, reason):
    client = make_client()
    client.codec.level = 5
    client.sends(wire)
    assert reason_of(client)[:2] == (Connack, reason)
    assert client.link.is_closing
    assert client.broker.requests == []


@pytest.mark.parametrize(
    ("error", "username", "reason"),
    [
        (AccessError("no"), None, 0x87),
        (AccessError("no"), "user", 0x86),
        (FlowControlError("too many connections"), None, 0x88),
        (RequestError("bad id"), None, 0x85),
    ],
)
def test_a_client_of_5_0_hears_why_it_is_refused(make_client, broker, error, username, reason):
    broker.error = error
    client = make_client(broker)
    client.sends(Connect(client_id="dev", username=username, level=5))
    assert reason_of(client) == (Connack, reason, error.for_client)
    assert client.link.is_closing


@pytest.mark.parametrize("level", [4, 5])
def test_a_redirected_client_is_told_where_to_go(make_client, level):
    client = make_client(server_redirect="moved", server_reference="b.example:1883")
    answer = client.connects(level=level)
    assert answer.reason_code == (0x9D if level == 5 else 3)
    assert answer.properties.server_reference == ("b.example:1883" if level == 5 else None)
    assert client.link.is_closing
    assert client.broker.requests == []


def test_a_refusal_keeps_to_what_the_client_takes(make_client):
    client = make_client(client_id_bytes_max=23)
    properties = Properties(maximum_packet_size=20)
    client.sends(Connect(client_id="x" * 24, level=5, properties=properties))
    assert client.gets() == [Connack(False, 0x85)]


def test_a_connack_that_the_client_does_not_take_is_not_sent(make_client):
    client = make_client()
    client.sends(Connect(client_id="dev", level=5, properties=Properties(maximum_packet_size=6)))
    assert client.gets() == [Connack(False, 0x95)]
    assert client.connection.take("disconnect") == [LEFT]
    assert client.link.is_closing


def test_the_certificates_name_reaches_the_broker(make_client):
    client = make_client(tls_subject="CN=dev-7", client_id_from_certificate=True)
    client.connects(level=5, client_id="")
    (request,) = client.broker.requests
    assert (request.client_id, request.tls_subject) == ("dev-7", "CN=dev-7")


# ------------------------------------------------------------------ MQTT 5.0: the session's end


def test_a_session_that_was_taken_up_to_end_now_is_completed_as_it_began(
    make_client, broker, stored
):
    broker.session_present = True
    broker.subscriptions = [Subscription(1, "dev", "a", "topic://a", True, 2)]
    broker.inflight = [InflightRecord("dev", OUT, 0, PUBLISHED, "", 41)]
    client = make_client(broker)
    client.sends(Connect(client_id="dev", level=5, clean_session=False))
    assert client.gets()[0].session_present is True
    client.session.deliver("a", [stored(41, qos=1)])
    assert client.gets() == [Publish("a", b"x", 1, 42, False, True)]  # 5.0:MQTT-4.4.0-1


@pytest.mark.parametrize(("clean", "present"), [(True, False), (False, True)])
def test_a_session_is_present_unless_a_clean_start_was_asked_for(
    make_client, broker, clean, present
):
    broker.session_present = True
    client = make_client(broker)
    assert client.connects(level=5, clean_session=clean).session_present is present


@pytest.mark.parametrize(("reason", "will"), [(0x00, False), (0x04, True), (0x80, True)])
def test_only_a_normal_disconnect_takes_back_the_will(client_5, reason, will):
    client_5.sends(Disconnect(ReasonCode(reason)))
    assert client_5.connection.take("disconnect") == [(True, will, None)]
    assert client_5.gets() == []


@pytest.mark.parametrize(
    ("before", "asked", "longest", "kept"),
    [(60, 0, 0.0, 0), (60, 90, 0.0, 90), (60, 9999, 3600.0, 3600), (0, 0, 0.0, 0)],
)
def test_a_disconnect_may_change_how_long_the_session_is_kept(
    make_client, before, asked, longest, kept
):
    client = make_client(session_expiry=longest)
    client.connects(level=5, properties=Properties(session_expiry_interval=before))
    client.sends(Disconnect(properties=Properties(session_expiry_interval=asked)))
    assert client.connection.take("disconnect") == [(True, False, kept)]


def test_a_session_that_was_to_end_cannot_be_kept_after_all(client_5):
    client_5.sends(Disconnect(properties=Properties(session_expiry_interval=1)))
    assert reason_of(client_5)[:2] == (Disconnect, 0x82)
    assert client_5.connection.take("disconnect") == [LOST]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_bytes_whatever_upset_a_session(make_client, data):
    client = make_client()
    level = data.draw(st.sampled_from([0, 4, 5]))
    if level:
        method = Properties(authentication_method="PUZZLE", authentication_data=b"user")
        properties = data.draw(st.sampled_from([Properties(), method])) if level == 5 else None
        packet = Connect(client_id="c", clean_session=False, level=level)
        if properties:
            packet = Connect(client_id="c", level=level, properties=properties)
        client.sends(packet)
    kinds = [0x10, 0x30, 0x32, 0x34, 0x40, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xC0, 0xE0, 0xF0]
    first = st.sampled_from(kinds)
    packet = st.tuples(first, st.binary(max_size=12)).map(
        lambda parts: bytes((parts[0], len(parts[1]))) + parts[1]
    )
    for piece in data.draw(st.lists(packet | st.binary(max_size=20), max_size=8)):
        if not client.link.is_closing:
            client.sends(piece)
    client.hangs_up()
    assert client.session.state is SessionState.CLOSED
    assert client.runtime.pending_timers == 0
