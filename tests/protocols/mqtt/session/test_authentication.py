"""Enhanced authentication, with a broker that knows one method: ``PUZZLE`` (see FakeExchange)."""

import logging

import pytest

from tidegate.spi import AccessError, Principal
from tidegate_protocols.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    ReasonCode,
    SessionState,
)

CONTINUE, AGAIN = ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.REAUTHENTICATE


def puzzle(data=None, method="PUZZLE"):
    return Properties(authentication_method=method, authentication_data=data)


def connect(data=None, method="PUZZLE"):
    return Connect(client_id="dev", level=5, properties=puzzle(data, method))


def reason_of(client):
    """The reason in the one packet that the client got."""
    (packet,) = client.gets()
    assert packet.properties.reason_string
    return type(packet), packet.reason_code


def test_a_client_can_prove_itself_with_its_connect(make_client):
    client = make_client(allow_anonymous=False)
    client.sends(connect(b"anonymous"))
    (connack,) = client.gets()
    assert isinstance(connack, Connack)
    assert connack.reason_code == 0
    assert connack.properties.authentication_method == "PUZZLE"  # 5.0:MQTT-4.12.0-5
    assert connack.properties.authentication_data == b"welcome"
    (request,) = client.broker.requests
    assert request.exchange is client.broker.exchanges[0]


def test_a_client_is_asked_until_it_has_said_enough(make_client):
    client = make_client()
    client.sends(connect(b"user"))
    assert client.gets() == [Auth(CONTINUE, puzzle(b"who"))]
    assert client.session.state is SessionState.CHALLENGED
    assert client.link.is_reading
    assert client.broker.requests == []
    client.sends(Auth(CONTINUE, puzzle(b"user")))
    assert client.gets() == [Auth(CONTINUE, puzzle(b"who"))]
    client.sends(Auth(CONTINUE, puzzle(b"anonymous")), Pingreq())
    connack, ping = client.gets()
    assert (connack.reason_code, ping) == (0, Pingresp())
    assert client.session.state is SessionState.CONNECTED


def test_an_answer_in_the_same_read_is_not_missed(make_client):
    client = make_client()
    client.sends(connect(b"user"), Auth(CONTINUE, puzzle(b"anonymous")))
    assert [type(packet) for packet in client.gets()] == [Auth, Connack]


def test_a_step_that_takes_its_time_reads_no_more_than_it_takes_to_see_who_leaves(make_client):
    client = make_client()
    client.sends(connect(b"user"))
    client.gets()
    client.broker.exchanges[0].is_slow = True
    client.sends(Auth(CONTINUE, puzzle(b"anonymous")))
    assert client.link.is_reading
    client.sends(Pingreq())
    assert not client.link.is_reading
    assert client.gets() == []
    client.runtime.tasks[-1].step()
    connack, ping = client.gets()
    assert (connack.reason_code, ping) == (0, Pingresp())
    assert client.link.is_reading


def test_who_leaves_meanwhile_is_not_checked_any_more(make_client):
    client = make_client()
    client.sends(connect(b"user"))
    client.gets()
    client.broker.exchanges[0].is_slow = True
    client.sends(Auth(CONTINUE, puzzle(b"anonymous")))
    task = client.runtime.tasks[-1]
    client.session.link_closed(None)
    assert task.is_cancelled


@pytest.mark.parametrize("method", ["MAGIC", ""])
def test_an_unknown_method_is_refused(make_client, method):
    client = make_client()
    client.sends(connect(b"x", method=method))  # 5.0:MQTT-4.12.0-1
    assert reason_of(client) == (Connack, ReasonCode.BAD_AUTHENTICATION_METHOD)
    assert client.link.is_closing


def test_a_method_can_refuse_to_begin(make_client, broker):
    broker.begin_error = AccessError("not from there")
    client = make_client(broker)
    client.sends(connect(b"x"))
    assert reason_of(client) == (Connack, ReasonCode.NOT_AUTHORIZED)


@pytest.mark.parametrize("data", [b"nobody", b"bug"])
def test_who_fails_is_refused(make_client, data, caplog):
    client = make_client()
    client.sends(connect(b"user"))
    client.gets()
    with caplog.at_level(logging.ERROR, "tidegate.mqtt"):
        client.sends(Auth(CONTINUE, puzzle(data)))
    assert reason_of(client) == (Connack, ReasonCode.NOT_AUTHORIZED)  # 5.0:MQTT-4.12.0-4
    assert client.link.is_closing
    assert client.broker.requests == []
    assert bool(caplog.records) is (data == b"bug")


def test_the_broker_may_refuse_who_has_proved_itself(make_client, broker):
    broker.error = AccessError("banned")
    client = make_client(broker)
    client.sends(connect(b"anonymous"))
    assert reason_of(client) == (Connack, ReasonCode.NOT_AUTHORIZED)


@pytest.mark.parametrize(
    "packet",
    [
        Publish("a", b""),  # 5.0:MQTT-3.1.2-30
        Pingreq(),
        Auth(CONTINUE, puzzle(b"x", method="MAGIC")),
        Auth(AGAIN, puzzle(b"x")),
        b"\xf0\x01\x55",
    ],
    ids=["publish", "ping", "other method", "again", "malformed"],
)
def test_anything_else_before_connack_is_refused(make_client, packet):
    client = make_client()
    client.sends(connect(b"user"))
    client.gets()
    client.sends(packet)
    (connack,) = client.gets()
    assert isinstance(connack, Connack)
    assert connack.reason_code in (0x81, 0x82)
    assert client.link.is_closing
    assert client.connection.calls == []


def test_a_client_may_leave_before_connack(make_client):
    client = make_client()
    client.sends(connect(b"user"))
    client.gets()
    client.sends(Disconnect())
    assert client.gets() == []
    assert client.link.is_closing


def test_a_client_that_never_answers_is_given_up(make_client):
    client = make_client(connect_timeout=10.0)
    client.sends(connect(b"user"))
    client.gets()
    client.runtime.advance(10)
    assert reason_of(client) == (Connack, ReasonCode.SERVER_BUSY)
    assert client.link.is_closing


def test_a_client_that_leaves_during_a_step_calls_it_off(make_client):
    client = make_client()
    client.sends(connect(b"user"))
    client.broker.exchanges[0].is_slow = True
    client.sends(Auth(CONTINUE, puzzle(b"anonymous")))
    client.hangs_up()
    assert client.runtime.tasks[-1].is_cancelled
    assert client.broker.requests == []


def test_a_challenge_that_is_too_large_for_the_client_refuses_it(make_client):
    client = make_client()
    properties = Properties(
        authentication_method="PUZZLE", authentication_data=b"user", maximum_packet_size=12
    )
    client.sends(Connect(client_id="dev", level=5, properties=properties))
    assert client.gets() == [Connack(False, ReasonCode.PACKET_TOO_LARGE)]


# ------------------------------------------------------------------------- while it is connected


@pytest.fixture
def proved(make_client):
    """A connected client that proved itself as ``anonymous``, which is its principal."""
    client = make_client()
    client.sends(connect(b"anonymous"))
    client.gets()
    return client


def test_a_client_can_prove_itself_again_while_it_goes_on(proved):
    proved.sends(Auth(AGAIN, puzzle(b"user")), Publish("a", b"1"))
    assert proved.gets() == [Auth(CONTINUE, puzzle(b"who"))]
    assert len(proved.connection.take("publish")) == 1
    proved.sends(Auth(CONTINUE, puzzle(b"anonymous")))
    assert proved.gets() == [Auth(ReasonCode.SUCCESS, puzzle(b"welcome"))]
    proved.sends(Auth(AGAIN, puzzle(b"anonymous")))
    assert proved.gets() == [Auth(ReasonCode.SUCCESS, puzzle(b"welcome"))]
    assert len(proved.broker.exchanges) == 3
    assert proved.connection.take("authenticated_again") == [Principal("anonymous")] * 2


@pytest.mark.parametrize("data", [b"nobody", b"somebody else"])
def test_who_fails_to_prove_itself_again_is_sent_away(proved, data):
    proved.sends(Auth(AGAIN, puzzle(data)))
    assert reason_of(proved) == (Disconnect, ReasonCode.NOT_AUTHORIZED)  # 5.0:MQTT-4.12.1-2
    assert proved.link.is_closing
    assert proved.connection.take("disconnect") == [(False, False, None)]


@pytest.mark.parametrize(
    "packets",
    [
        [Auth(AGAIN, puzzle(b"x", method="MAGIC"))],  # 5.0:MQTT-4.12.1-1
        [Auth(CONTINUE, puzzle(b"x"))],
        [Auth(AGAIN, puzzle(b"user")), Auth(AGAIN, puzzle(b"user"))],
    ],
    ids=["other method", "no question", "twice"],
)
def test_an_auth_that_does_not_come_next_is_a_protocol_error(proved, packets):
    proved.sends(*packets)
    packet = proved.gets()[-1]
    assert isinstance(packet, Disconnect)
    assert packet.reason_code == ReasonCode.PROTOCOL_ERROR


def test_an_auth_during_a_step_is_a_protocol_error(proved):
    proved.sends(Auth(AGAIN, puzzle(b"user")))
    proved.gets()
    proved.broker.exchanges[-1].is_slow = True
    proved.sends(Auth(CONTINUE, puzzle(b"anonymous")))
    proved.sends(Auth(CONTINUE, puzzle(b"anonymous")))
    assert reason_of(proved) == (Disconnect, ReasonCode.PROTOCOL_ERROR)
    assert proved.runtime.tasks[-1].is_cancelled


def test_who_connected_without_a_method_cannot_use_one_later(client_5):
    client_5.sends(Auth(AGAIN, puzzle(b"user")))  # 5.0:MQTT-4.12.0-7
    assert reason_of(client_5) == (Disconnect, ReasonCode.PROTOCOL_ERROR)
