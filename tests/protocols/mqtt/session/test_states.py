"""Every pair of state and input, against the rules written once more in other words."""

import pytest

from tidegate.spi import LocalProtocolError
from tidegate_protocols.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketViolationError,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    SessionState,
    Suback,
    Subscribe,
    TopicRequest,
    Unsuback,
    Unsubscribe,
)
from tidegate_protocols.mqtt.codec.packets import LargePublish
from tidegate_protocols.mqtt.session.states import PACKET_INPUTS, TRANSITIONS, Input, next_state

CONNECTING = SessionState.CONNECTING
AUTHENTICATING = SessionState.AUTHENTICATING
CHALLENGED = SessionState.CHALLENGED
CONNECTED = SessionState.CONNECTED
REFUSED = SessionState.REFUSED
CLOSED = SessionState.CLOSED

FROM_CLIENTS = [
    Publish("a", b""),
    Puback(1),
    Pubrec(1),
    Pubrel(1),
    Pubcomp(1),
    Subscribe(1, (TopicRequest("a", 0),)),
    Unsubscribe(1, ("a",)),
    Pingreq(),
]
FROM_SERVERS = [Connack(False, 0), Suback(1, (0,)), Unsuback(1), Pingresp()]
BEFORE_5: list[Packet] = [Connect(client_id="c"), Disconnect(), *FROM_CLIENTS, *FROM_SERVERS]
AUTH = Auth(ReasonCode.REAUTHENTICATE, Properties(authentication_method="PUZZLE"))
PACKETS: list[Packet] = [*BEFORE_5, AUTH]
IN_5 = [Unsuback(1, (0,)) if isinstance(packet, Unsuback) else packet for packet in PACKETS]


def expected(state: SessionState, event: Input) -> SessionState | None:
    """The rules in words; None where the input must not come."""
    packets = {PACKET_INPUTS[type(packet)] for packet in FROM_CLIENTS}
    if state is CLOSED:
        return None
    if event in (Input.LOST, Input.TIMED_OUT, Input.ENDED):
        return CLOSED
    if state is CONNECTING:
        return {Input.CONNECT: AUTHENTICATING, Input.BAD_INPUT: CLOSED}.get(event)
    if state is AUTHENTICATING:
        answers = {Input.ACCEPTED: CONNECTED, Input.REFUSED: CLOSED, Input.CHALLENGE: CHALLENGED}
        return answers.get(event)
    if state is CHALLENGED:
        ends = (Input.DISCONNECT, Input.BAD_INPUT)
        return AUTHENTICATING if event is Input.AUTH else CLOSED if event in ends else None
    if state is REFUSED:
        return CLOSED if event in (Input.BAD_INPUT, Input.FAILED) else None
    if event in packets or event is Input.AUTH:
        return CONNECTED
    if event is Input.WAITS:
        return REFUSED
    return CLOSED if event in (Input.DISCONNECT, Input.BAD_INPUT, Input.FAILED) else None


@pytest.mark.parametrize("state", SessionState, ids=lambda state: state.value)
@pytest.mark.parametrize("event", Input, ids=lambda event: event.name)
def test_the_table_says_what_the_rules_say(state, event):
    target = expected(state, event)
    assert TRANSITIONS.get((state, event)) is target
    if target is not None:
        assert next_state(state, event) is target
    else:
        wanted = PacketViolationError if event in PACKET_INPUTS.values() else LocalProtocolError
        with pytest.raises(wanted):
            next_state(state, event)


def test_every_packet_is_an_input():
    assert set(PACKET_INPUTS) == {LargePublish, *(type(packet) for packet in PACKETS)}
    assert PACKET_INPUTS[LargePublish] is PACKET_INPUTS[Publish]


@pytest.mark.parametrize(
    ("state", "event", "clause"),
    [
        (CONNECTING, Input.PUBLISH, "MQTT-3.1.0-1"),
        (CONNECTED, Input.CONNECT, "MQTT-3.1.0-2"),
        (CONNECTED, Input.SUBACK, "MQTT-4.8.0-1"),
        (CHALLENGED, Input.PUBLISH, "5.0:MQTT-3.1.2-30"),
    ],
)
def test_a_packet_at_the_wrong_moment_names_the_clause(state, event, clause):
    with pytest.raises(PacketViolationError) as caught:
        next_state(state, event)
    assert caught.value.clause == clause


@pytest.mark.parametrize("packet", BEFORE_5, ids=lambda packet: type(packet).__name__)
def test_a_session_that_waits_for_connect_does_as_the_table_says(make_client, packet):
    client = make_client()
    client.broker.is_slow = True
    client.sends(packet)
    target = TRANSITIONS.get((CONNECTING, PACKET_INPUTS[type(packet)]), CLOSED)
    assert client.session.state is target
    assert client.link.is_closing is (target is CLOSED)
    assert client.gets() == []  # no CONNACK for a stranger [MQTT-3.1.4-1]
    client.hangs_up()


@pytest.mark.parametrize("packet", BEFORE_5, ids=lambda packet: type(packet).__name__)
def test_an_authenticating_session_looks_at_nothing(make_client, packet):
    client = make_client()
    client.broker.is_slow = True
    client.sends(Connect(client_id="c"))
    client.sends(packet)
    assert client.session.state is AUTHENTICATING
    assert not client.link.is_reading
    assert client.connection.calls == []
    client.hangs_up()


@pytest.mark.parametrize("packet", BEFORE_5, ids=lambda packet: type(packet).__name__)
def test_a_connected_session_does_as_the_table_says(client, packet):
    client.sends(packet)
    target = TRANSITIONS.get((CONNECTED, PACKET_INPUTS[type(packet)]), CLOSED)
    assert client.session.state is target
    assert client.link.is_closing is (target is CLOSED)
    graceful = [details[0] for details in client.connection.take("disconnect")]
    if target is CLOSED:
        assert graceful == [isinstance(packet, Disconnect)]
    else:
        assert graceful == []


@pytest.mark.parametrize("packet", BEFORE_5, ids=lambda packet: type(packet).__name__)
def test_a_closed_session_does_nothing(client, packet):
    client.sends(Disconnect())
    client.connection.calls.clear()
    client.sends(packet)
    assert client.connection.calls == []
    assert client.gets() == []


@pytest.mark.parametrize("packet", IN_5, ids=lambda packet: type(packet).__name__)
def test_a_challenged_session_does_as_the_table_says(make_client, packet):
    client = make_client()
    method = Properties(authentication_method="PUZZLE", authentication_data=b"user")
    client.sends(Connect(client_id="c", level=5, properties=method))
    assert client.session.state is CHALLENGED
    client.gets()
    if packet is AUTH:
        packet = Auth(ReasonCode.CONTINUE_AUTHENTICATION, method)
    client.sends(packet)
    target = TRANSITIONS.get((CHALLENGED, PACKET_INPUTS[type(packet)]), CLOSED)
    # What an AUTH says is looked at at once; here it is asked the same again.
    assert client.session.state is (CHALLENGED if target is AUTHENTICATING else target)
    assert client.link.is_closing is (target is CLOSED)
    assert client.connection.calls == []
    client.hangs_up()


@pytest.mark.parametrize("packet", IN_5, ids=lambda packet: type(packet).__name__)
def test_a_connected_session_of_5_0_does_as_the_table_says(make_client, packet):
    client = make_client()
    method = Properties(authentication_method="PUZZLE", authentication_data=b"somebody")
    client.connects(level=5, properties=method)
    client.sends(packet)
    target = TRANSITIONS.get((CONNECTED, PACKET_INPUTS[type(packet)]), CLOSED)
    assert client.session.state is target
    assert client.link.is_closing is (target is CLOSED)
    client.hangs_up()
