"""Large messages with paho-mqtt and stomp.py, which nobody here wrote, through one running gateway."""

from __future__ import annotations

from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest
from large_messages import MB, body_files, pieces
from mqtt_transports import MqttGateway
from paho_recorder import WAIT_S, Paho, properties
from stomp_recorder import stomp_connect

pytestmark = pytest.mark.interop

SIZE = 3 * MB
VERSIONS = (paho.MQTTv31, paho.MQTTv311, paho.MQTTv5)
STORE = '\n[store]\nplugin = "journal"\nlarge_message_min_size = "100kb"\n'


class Gateway(MqttGateway):
    def command(self) -> list[str]:
        text = self.config.read_text()
        if STORE not in text:
            self.config.write_text(text + STORE)
        return super().command()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway")) as running:
        assert isinstance(running, Gateway)
        yield running
        assert running.stop() == 0, running.tail()
    assert "Traceback" not in running.log.read_text(), running.tail()


def body_of(seed: int) -> bytes:
    return b"".join(pieces(seed, SIZE))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_large_message_crosses_from_paho_to_paho(large: Gateway, version: int, qos: int) -> None:
    topic = f"large/{version}/{qos}"
    with (
        Paho(large.mqtt_port, f"s{version}{qos}", version=version) as subscriber,
        Paho(large.mqtt_port, f"p{version}{qos}", version=version) as publisher,
    ):
        subscriber.subscribe(topic, qos)
        for seed in (1, 2):
            publisher.publish(topic, body_of(seed), qos)
            message = subscriber.next()
            assert (message.topic, message.qos, message.payload) == (topic, qos, body_of(seed))
        publisher.publish(topic, b"small", qos)
        assert subscriber.next().payload == b"small"


@pytest.mark.parametrize("kind", ["tls", "ws", "wss"])
@pytest.mark.parametrize("qos", [1, 2])
def test_over_every_transport(large: Gateway, kind: str, qos: int) -> None:
    transport = "tcp" if kind == "tls" else "websockets"
    cafile = None if kind == "ws" else large.cafile
    with Paho(
        large.ports[kind],
        f"{kind}{qos}",
        version=paho.MQTTv5,
        transport=transport,
        cafile=cafile,
    ) as client:
        client.subscribe(f"large/{kind}/{qos}", qos)
        client.publish(f"large/{kind}/{qos}", body_of(3), qos)
        assert client.next().payload == body_of(3)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
def test_from_mqtt_to_stomp_and_back(large: Gateway, version: int, qos: int) -> None:
    queue = f"large.{version}.{qos}"
    connection, recorder = stomp_connect(large)
    with Paho(large.mqtt_port, f"b{version}{qos}", version=version) as client:
        sent = {}
        if version == paho.MQTTv5:
            sent = {"properties": properties("PUBLISH", UserProperty=[("colour", "red")])}
        directory = large.directory / "data"
        before = set(body_files(directory))
        client.publish("$queue/" + queue.replace(".", "/"), body_of(4), qos, **sent)
        assert len(set(body_files(directory)) - before) == 1
        connection.subscribe(f"/queue/{queue}", id="1", ack="client-individual")
        frame = recorder.messages.get(timeout=WAIT_S)
        body = frame.body.encode("latin-1") if isinstance(frame.body, str) else frame.body
        assert body == body_of(4)
        assert frame.headers.get("colour") == ("red" if sent else None)
        connection.ack(frame.headers["ack"])
        client.subscribe(f"back/{version}", qos)
        connection.send(f"/topic/back.{version}", body_of(5))
        assert client.next().payload == body_of(5)
    connection.disconnect()
    assert recorder.errors.empty()
