"""MQTT over WebSocket (section 6 of both standards), with a WebSocket library that is not ours."""

import pytest
from mqtt_clauses import both, proves
from mqtt_raw import PING, V5, V311, connect, publish, subscribe, text
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect as websocket
from websockets.typing import Subprotocol

CONFIG = """
[[listeners]]
protocol = "mqtt"
bind = "127.0.0.1:0"

[[listeners]]
protocol = "mqtt"
transport = "ws"
bind = "127.0.0.1:0"
"""
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def gateway(gateway_type):
    """With a listener for WebSocket."""
    with gateway_type(CONFIG) as running:
        yield running


@pytest.fixture
def url(gateway):
    (address,) = [one for one in gateway.addresses if one.startswith(("ws://", "mqtt+ws://"))] or [
        gateway.addresses[1]
    ]
    return f"ws://127.0.0.1:{address.rpartition(':')[2].rstrip('/')}/mqtt"


@pytest.fixture
def opened(url):
    """A connection that offers ``mqtt``."""
    offered = [Subprotocol("mqtt")]
    with websocket(url, subprotocols=offered, open_timeout=TIMEOUT_S, compression=None) as made:
        yield made


def receive(connection, length):
    """The next *length* bytes, which come in binary frames."""
    data = b""
    while len(data) < length:
        frame = connection.recv(timeout=TIMEOUT_S)
        assert isinstance(frame, bytes)
        data += frame
    assert len(data) == length
    return data


def connack_length(connection):
    frame = connection.recv(timeout=TIMEOUT_S)
    assert isinstance(frame, bytes)
    assert frame[0] == 0x20
    assert frame[3] == 0
    return len(frame)


@both("6.0.0-1 6.0.0-4 7.1.1-1", "6.0.0-1 6.0.0-4 4.2.0-1")
def test_packets_travel_in_binary_frames_of_the_subprotocol_mqtt(opened, name, version):
    assert opened.subprotocol == "mqtt"
    opened.send(connect(name, version=version))
    connack_length(opened)
    opened.send(PING)
    assert receive(opened, 2) == b"\xd0\x00"


@both("6.0.0-1", "6.0.0-1")
def test_a_text_frame_closes_the_connection(opened, name, version):
    opened.send(connect(name, version=version))
    connack_length(opened)
    opened.send("\xc0\x00")
    with pytest.raises(ConnectionClosed) as closed:
        receive(opened, 1000)  # MQTT 5.0 may say why first
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1003


@both("6.0.0-2", "6.0.0-2")
def test_packets_may_be_cut_anywhere(opened, name, version):
    wire = connect(name, version=version) + subscribe(1, (name, 0), version=version)
    for at in range(len(wire)):
        opened.send(wire[at : at + 1])
    connack_length(opened)
    props = b"\x00" if version == V5 else b""
    assert receive(opened, 5 + len(props)) == (
        bytes([0x90, 3 + len(props)]) + b"\x00\x01" + props + b"\x00"
    )


@both("6.0.0-2", "6.0.0-2")
def test_a_frame_may_hold_several_packets_and_a_part(opened, name, version):
    message = publish(name, b"x" * 1000, version=version)
    opened.send(connect(name, version=version))
    connack_length(opened)
    opened.send(subscribe(1, (name, 0), version=version))
    receive(opened, 6 if version == V5 else 5)
    opened.send(message + message + message[:500])
    opened.send(message[500:])
    assert receive(opened, 3 * len(message)) == message * 3


@pytest.mark.parametrize("offered", [["stomp"], ["mqtt5", "MQTT"]], ids=["stomp", "nearly"])
@proves("3.1.1", "6.0.0-3")
@proves("5.0", "6.0.0-3")
def test_a_client_that_does_not_offer_mqtt_is_refused(url, offered):
    with (
        pytest.raises(InvalidHandshake),
        websocket(url, subprotocols=offered, open_timeout=TIMEOUT_S),
    ):
        pass


@proves("3.1.1", "6.0.0-4")
@proves("5.0", "6.0.0-4")
@pytest.mark.parametrize("offered", [["other", "mqtt"], ["mqttv3.1", "mqtt"], ["mqtt", "mqttv3.1"]])
def test_of_several_subprotocols_mqtt_is_taken(url, offered):
    with websocket(url, subprotocols=offered, open_timeout=TIMEOUT_S) as connection:
        assert connection.subprotocol == "mqtt"


def test_clients_of_both_transports_reach_each_other(opened, dial, name):
    opened.send(connect(name, version=V311) + subscribe(1, (name, 0)))
    assert receive(opened, 9) == b"\x20\x02\x00\x00\x90\x03\x00\x01\x00"
    dial(connect=f"{name}p").publish(name, b"x")
    assert receive(opened, 2 + len(text(name)) + 1).endswith(text(name) + b"x")
