"""Messages between MQTT 5.0 and STOMP clients of one running gateway, headers and all."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_process import GatewayProcess
from mqtt_raw import PUBACK, V5, Client, ack

from tidegate_protocols.stomp import SERVER_COMMANDS, Decoder, Frame, Version, encode

pytestmark = pytest.mark.interop

IO_TIMEOUT_S = 60.0


class Stomp:
    """A STOMP 1.2 client that sees every header line, repeated ones too."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), IO_TIMEOUT_S)
        self.decoder = Decoder(commands=SERVER_COMMANDS)
        self.frames: list[Frame] = []
        self.send("CONNECT", ("accept-version", "1.2"), ("host", "x"))
        assert self.receive().command == "CONNECTED"
        self.decoder.version = Version.V1_2

    def send(self, command: str, *pairs: tuple[str, str], body: bytes = b"") -> None:
        self.socket.sendall(encode(Frame(command, dict(pairs), body, pairs), Version.V1_2))

    def receive(self) -> Frame:
        while not self.frames:
            data = self.socket.recv(65536)
            assert data, "the gateway closed the connection"
            self.decoder.receive_data(data)
            for event in self.decoder.events():
                if isinstance(event, Frame):
                    self.frames.append(event)
        return self.frames.pop(0)

    def asks(self, command: str, *pairs: tuple[str, str], body: bytes = b"") -> None:
        """Send and wait for the RECEIPT."""
        self.send(command, *pairs, ("receipt", "r"), body=body)
        answer = self.receive()
        assert (answer.command, answer.headers.get("receipt-id")) == ("RECEIPT", "r"), answer


@pytest.fixture
def stomp(gateway: GatewayProcess) -> Iterator[Stomp]:
    client = Stomp(gateway.stomp_port)
    with client.socket:
        yield client


@pytest.fixture
def mqtt(gateway: GatewayProcess) -> Iterator[Client]:
    client = Client(gateway.mqtt_port, V5)
    with client.socket:
        assert client.connect("device").code == 0
        yield client


def pairs_of(frame: Frame) -> list[tuple[str, str]]:
    return list(frame.pairs or frame.headers.items())


PROPERTIES: dict[str, Any] = {
    "payload_format": 1,
    "message_expiry": 3600,
    "content_type": "text/plain; charset=utf-8",
    "response_topic": "answers/a.b",
    "correlation_data": b"\xff\x00\n:",
    "user_property": [
        ("b", "1"),
        ("a", "2"),
        ("b", "3"),
        ("", "no name"),
        ("no value", ""),
        ("destination", "/queue/elsewhere"),
        ("content-length", "1"),
        ("receipt", "r"),
        ("user-ack", "x"),
        ("a:b\n", "c\\:d\r\n"),
    ],
}


@pytest.mark.mqtt_clause(
    "5.0:MQTT-3.3.2-4",
    "5.0:MQTT-3.3.2-6",
    "5.0:MQTT-3.3.2-15",
    "5.0:MQTT-3.3.2-16",
    "5.0:MQTT-3.3.2-17",
    "5.0:MQTT-3.3.2-18",
    "5.0:MQTT-3.3.2-20",
)
def test_properties_reach_a_subscriber_unaltered(mqtt: Client) -> None:
    assert mqtt.subscribe("direct/#") == 0
    mqtt.publish("direct/a.b", b"\xc3\xbc", **PROPERTIES)
    got = mqtt.message()
    assert (got.topic, got.body) == ("direct/a.b", b"\xc3\xbc")
    assert got.props is not None
    left = got.props.pop("message_expiry")
    assert 3590 <= left <= 3600
    expected = {name: value for name, value in PROPERTIES.items() if name != "message_expiry"}
    assert got.props == expected


def test_a_publish_that_a_stomp_client_sends_on_is_the_same_publish(
    mqtt: Client, stomp: Stomp
) -> None:
    stomp.asks("SUBSCRIBE", ("id", "1"), ("destination", "/topic/way.to/stomp"))
    assert mqtt.subscribe("way/back", 1) == 1
    mqtt.publishes("way/to.stomp", b"\xc3\xbc", **PROPERTIES)
    frame = stomp.receive()
    assert frame.body == b"\xc3\xbc"
    headers = frame.headers
    assert headers["destination"] == "/topic/way.to/stomp"
    assert (headers["origin-protocol"], headers["origin-qos"]) == ("mqtt", "1")
    assert headers["reply-to"] == "/topic/answers.a/b"
    assert headers["correlation-id-encoding"] == "base64"
    kept = [pair for pair in pairs_of(frame) if pair[0] not in ("destination", "content-length")]
    stomp.asks("SEND", ("destination", "/topic/way.back"), *kept, body=frame.body)
    again = mqtt.message()
    mqtt.send(ack(PUBACK, again.packet_id))
    assert (again.topic, again.body) == ("way/back", b"\xc3\xbc")
    assert again.props is not None
    assert 3590 <= again.props.pop("message_expiry") <= 3600
    user = again.props.pop("user_property")
    assert user[0] == ("origin-protocol", "stomp")
    assert user[1][0] == "timestamp"
    assert user[2:] == PROPERTIES["user_property"]
    expected = {
        name: value
        for name, value in PROPERTIES.items()
        if name not in ("message_expiry", "user_property")
    }
    assert again.props == expected


def test_a_stomp_message_shows_an_mqtt_client_all_it_has(mqtt: Client, stomp: Stomp) -> None:
    assert mqtt.subscribe("$queue/orders/new", 1) == 1
    stomp.asks(
        "SEND",
        ("destination", "queue://orders.new"),
        ("content-type", "application/json"),
        ("correlation-id", "7"),
        ("reply-to", "/queue/answers"),
        ("priority", "9"),
        ("persistent", "false"),
        ("a", "1"),
        ("user-ack", "2"),
        ("a", "3"),
        body=b"{}",
    )
    got = mqtt.message()
    mqtt.send(ack(PUBACK, got.packet_id))
    assert (got.topic, got.body, got.qos) == ("$queue/orders/new", b"{}", 1)
    assert got.props == {
        "content_type": "application/json",
        "correlation_data": b"7",
        "response_topic": "$queue/answers",
        "user_property": [
            ("origin-protocol", "stomp"),
            ("origin-destination", "queue://orders.new"),
            ("priority", "9"),
            ("persistent", "false"),
            ("a", "1"),
            ("ack", "2"),
            ("a", "3"),
        ],
    }


def test_an_mqtt_client_answers_to_a_temporary_queue_of_stomp(mqtt: Client, stomp: Stomp) -> None:
    assert mqtt.subscribe("ask", 1) == 1
    stomp.asks("SUBSCRIBE", ("id", "1"), ("destination", "/temp-queue/answers"))
    stomp.asks(
        "SEND",
        ("destination", "/topic/ask"),
        ("reply-to", "/temp-queue/answers"),
        ("correlation-id", "7"),
        body=b"what?",
    )
    asked = mqtt.message()
    mqtt.send(ack(PUBACK, asked.packet_id))
    assert asked.props is not None
    topic = asked.props["response_topic"]
    assert topic.startswith("$queue/$temporary/")
    mqtt.publishes(topic, b"42", correlation_data=asked.props["correlation_data"])
    answer = stomp.receive()
    assert (answer.body, answer.headers["correlation-id"]) == (b"42", "7")


def test_a_stomp_client_answers_to_a_response_topic(mqtt: Client, stomp: Stomp) -> None:
    stomp.asks("SUBSCRIBE", ("id", "1"), ("destination", "/queue/questions"))
    assert mqtt.subscribe("answers/for/me.only", 1) == 1
    mqtt.publishes(
        "$queue/questions", b"?", response_topic="answers/for/me.only", correlation_data=b"\xff"
    )
    asked = stomp.receive().headers
    stomp.asks(
        "SEND",
        ("destination", asked["reply-to"]),
        ("correlation-id", asked["correlation-id"]),
        ("correlation-id-encoding", asked["correlation-id-encoding"]),
        body=b"!",
    )
    answer = mqtt.message()
    mqtt.send(ack(PUBACK, answer.packet_id))
    assert (answer.topic, answer.body) == ("answers/for/me.only", b"!")
    assert answer.props is not None
    assert answer.props["correlation_data"] == b"\xff"


def test_a_stomp_client_can_retain(mqtt: Client, stomp: Stomp) -> None:
    stomp.asks("SEND", ("destination", "/topic/state.of"), ("retain", "true"), body=b"on")
    assert mqtt.subscribe("state/of", 0) == 0
    got = mqtt.message()
    assert (got.topic, got.body, got.retain) == ("state/of", b"on", True)
    mqtt.unsubscribe("state/of")
    stomp.asks("SEND", ("destination", "/topic/state.of"), ("retain", "true"))
    assert mqtt.subscribe("state/of", 0) == 0
    stomp.asks("SEND", ("destination", "/topic/state.of"), body=b"live")
    assert mqtt.message().body == b"live"


def test_a_stomp_client_that_asks_gets_retained_messages(mqtt: Client, stomp: Stomp) -> None:
    mqtt.publishes("kept/one", b"1", retain=True)
    stomp.asks("SUBSCRIBE", ("id", "1"), ("destination", "/topic/kept.*"), ("retained", "true"))
    frame = stomp.receive()
    assert (frame.body, frame.headers["destination"]) == (b"1", "/topic/kept.one")
    assert (frame.headers["retained"], frame.headers["retain"]) == ("true", "true")
    mqtt.publishes("kept/one", b"2")
    live = stomp.receive()
    assert live.body == b"2"
    assert "retained" not in live.headers
