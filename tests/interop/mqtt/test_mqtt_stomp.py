"""paho-mqtt in MQTT 5.0 and stomp.py through one running gateway: what docs/mqtt.md "Bridging" says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho_recorder import WAIT_S, Paho, properties
from stomp_recorder import Recorder, stomp_connect

pytestmark = pytest.mark.interop


class Both:
    """A STOMP connection and an MQTT client of one gateway."""

    def __init__(self, stomp: Any, recorder: Recorder, mqtt: Paho) -> None:
        self.stomp = stomp
        self.recorder = recorder
        self.mqtt = mqtt

    def frame(self) -> Any:
        return self.recorder.messages.get(timeout=WAIT_S)

    def stomp_subscribe(self, destination: str) -> None:
        self.stomp.subscribe(
            destination, id="1", ack="client-individual", headers={"receipt": "subscribed"}
        )
        assert self.recorder.receipts.get(timeout=WAIT_S) == "subscribed"


@pytest.fixture
def both(gateway, request) -> Iterator[Both]:
    connection, recorder = stomp_connect(gateway)
    with Paho(gateway.mqtt_port, request.node.name[:60], version=paho.MQTTv5) as client:
        yield Both(connection, recorder, client)
        assert recorder.errors.empty()
    connection.disconnect()


@pytest.mark.parametrize(
    ("topic", "destination", "form"),
    [
        ("bridge/{}.x", "/topic/bridge.{}/x", "topic"),
        ("$queue/bridge/{}", "/queue/bridge.{}", "queue"),
    ],
)
def test_mqtt_properties_are_stomp_headers(both, topic, destination, form) -> None:
    both.stomp_subscribe(destination.format(form))
    before = time.time()
    sent = properties(
        "PUBLISH",
        PayloadFormatIndicator=1,
        MessageExpiryInterval=600,
        ContentType="application/json",
        ResponseTopic="answers/here.now",
        CorrelationData="nr 7: ü".encode(),
        UserProperty=[("colour", "red: dark"), ("destination", "elsewhere"), ("message-id", "9")],
    )
    assert both.mqtt.publish(topic.format(form), b'{"a": 1}', 2, properties=sent).value == 0
    frame = both.frame()
    headers = frame.headers
    assert frame.body == b'{"a": 1}'
    assert headers["destination"] == destination.format(form)
    assert headers["content-type"] == "application/json"
    assert headers["correlation-id"] == "nr 7: ü"
    assert headers["reply-to"] == "/topic/answers.here/now"
    assert headers["payload-format"] == "1"
    assert before + 590 <= int(headers["expires"]) / 1000 <= time.time() + 601
    assert (headers["origin-protocol"], headers["origin-qos"]) == ("mqtt", "2")
    assert headers["colour"] == "red: dark"
    assert headers["user-destination"] == "elsewhere", "it cannot say where the frame goes"
    assert headers["user-message-id"] == "9"
    both.stomp.ack(headers["ack"])


def test_correlation_data_that_is_no_text_comes_back_whole(both) -> None:
    both.stomp_subscribe("/queue/bridge.binary")
    sent = properties("PUBLISH", CorrelationData=b"\xff\x00")
    both.mqtt.publish("$queue/bridge/binary", b"x", 1, properties=sent)
    frame = both.frame()
    assert frame.headers["correlation-id-encoding"] == "base64"
    both.stomp.ack(frame.headers["ack"])
    both.mqtt.subscribe("bridge/back", 1)
    echoed = {name: frame.headers[name] for name in ("correlation-id", "correlation-id-encoding")}
    both.stomp.send("/topic/bridge.back", b"y", headers=echoed)
    assert both.mqtt.next().properties.CorrelationData == b"\xff\x00"


@pytest.mark.parametrize(
    ("topic", "destination"),
    [("bridge/down", "/topic/bridge.down"), ("$queue/bridge/down", "/queue/bridge.down")],
)
def test_stomp_headers_are_mqtt_properties(both, topic, destination) -> None:
    both.mqtt.subscribe(topic, 1)
    sent_at = time.time()
    expires = int((sent_at + 600) * 1000)
    both.stomp.send(
        destination,
        b"<a/>",
        content_type="application/xml",
        headers={
            "correlation-id": "nr 8",
            "reply-to": "/queue/answers.down",
            "expires": str(expires),
            "priority": "7",
            "colour": "blue",
            "user-destination": "mine",
        },
    )
    message = both.mqtt.next()
    got = message.properties
    assert (message.topic, message.payload, message.qos) == (topic, b"<a/>", 1)
    assert got.ContentType == "application/xml"
    assert got.CorrelationData == b"nr 8"
    assert got.ResponseTopic == "$queue/answers/down"
    assert 599 - (time.time() - sent_at) <= got.MessageExpiryInterval <= 600
    user = dict(got.UserProperty)
    assert (user["origin-protocol"], user["priority"], user["colour"]) == ("stomp", "7", "blue")
    assert user["destination"] == "mine"


def test_an_expired_message_reaches_neither_side(both) -> None:
    sent = properties("PUBLISH", MessageExpiryInterval=1)
    both.mqtt.publish("$queue/bridge/old", b"old", 1, properties=sent)
    both.stomp.send(
        "/queue/bridge.old", b"old", headers={"expires": str(int((time.time() + 1) * 1000))}
    )
    both.mqtt.publish("$queue/bridge/old", b"new", 1)
    time.sleep(1.2)  # the expiry itself
    both.stomp_subscribe("/queue/bridge.old")
    frame = both.frame()
    assert frame.body == b"new"
    both.stomp.ack(frame.headers["ack"])


def test_a_stomp_client_asks_and_an_mqtt_client_answers(both) -> None:
    both.mqtt.subscribe("$share/workers/bridge/service", 1)
    both.stomp_subscribe("/temp-queue/replies")
    both.stomp.send(
        "/topic/bridge.service",
        b"question",
        headers={"reply-to": "/temp-queue/replies", "correlation-id": "42"},
    )
    asked = both.mqtt.next().properties
    back = properties("PUBLISH", CorrelationData=asked.CorrelationData)
    assert both.mqtt.publish(asked.ResponseTopic, b"answer", 1, properties=back).value == 0
    frame = both.frame()
    assert (frame.body, frame.headers["correlation-id"]) == (b"answer", "42")
    both.stomp.ack(frame.headers["ack"])


def test_an_mqtt_client_asks_and_a_stomp_client_answers(both) -> None:
    both.stomp_subscribe("/queue/bridge.work")
    both.mqtt.subscribe("bridge/replies/me", 1)
    sent = properties("PUBLISH", ResponseTopic="bridge/replies/me", CorrelationData=b"43")
    both.mqtt.publish("$queue/bridge/work", b"question", 1, properties=sent)
    frame = both.frame()
    both.stomp.send(
        frame.headers["reply-to"],
        b"answer",
        headers={"correlation-id": frame.headers["correlation-id"]},
    )
    both.stomp.ack(frame.headers["ack"])
    message = both.mqtt.next()
    assert (message.payload, message.properties.CorrelationData) == (b"answer", b"43")


def test_retain_is_the_same_from_both_sides(both) -> None:
    both.stomp.send("/topic/bridge.kept", b"from stomp", headers={"retain": "true", "receipt": "r"})
    assert both.recorder.receipts.get(timeout=WAIT_S) == "r"
    both.mqtt.subscribe("bridge/+", 1)
    message = both.mqtt.next()
    assert (message.payload, message.retain) == (b"from stomp", True)


def test_a_user_property_cannot_pretend_to_be_the_gateways(both) -> None:
    both.stomp_subscribe("/topic/bridge.pretend")
    sent = properties("PUBLISH", UserProperty=[("origin-protocol", "stomp"), ("priority", "9")])
    both.mqtt.publish("bridge/pretend", b"x", 1, properties=sent)
    headers = both.frame().headers
    assert headers["origin-protocol"] == "mqtt"
    assert headers["user-origin-protocol"] == "stomp"
    assert headers["user-priority"] == "9"
