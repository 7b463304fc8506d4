"""Fakes on both sides of an MQTT session, as fixtures: the classes are ``mqtt_fakes``."""

from collections.abc import Callable
from typing import Any

import pytest
from mqtt_fakes import Client, FakeBroker, FakeConnection, FakeLink, FakeRuntime, Side

from tidegate.spi import (
    Message,
    StoredMessage,
)
from tidegate_protocols.mqtt import (
    Connack,
    MqttOptions,
)
from tidegate_protocols.mqtt.session.context import SessionContext
from tidegate_protocols.mqtt.session.session import Session


@pytest.fixture
def make_client() -> Callable[..., Client]:
    """``make_client(broker=…, runtime=…, **options)``: a client whose link is open."""

    def make(
        broker: FakeBroker | None = None,
        runtime: FakeRuntime | None = None,
        allow_anonymous: bool = True,
        tls_subject: str = "",
        **options: Any,
    ) -> Client:
        broker = broker or FakeBroker()
        runtime = runtime or FakeRuntime()
        link = FakeLink(tls_subject)
        context = SessionContext(
            broker, MqttOptions(**options), runtime, allow_anonymous, "mqtt://127.0.0.1:1883"
        )
        return Client(Session(context, link), link, runtime, broker)

    return make


@pytest.fixture
def client(make_client: Callable[..., Client]) -> Client:
    """A client that is connected with a clean session as ``dev``."""
    made = make_client()
    assert made.connects() == Connack(False, 0)
    return made


@pytest.fixture
def client_5(make_client: Callable[..., Client]) -> Client:
    """A client of MQTT 5.0 that is connected as ``dev``; its session ends with the connection."""
    made = make_client()
    assert made.connects(level=5).reason_code == 0
    return made


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


@pytest.fixture
def stored() -> Callable[..., StoredMessage]:
    """``stored(sequence, topic, body, qos=…)``: a message as the broker delivers it."""

    def make(
        sequence: int,
        destination: str = "topic://a",
        body: bytes = b"x",
        *,
        qos: int = 2,
        delivery_count: int = 0,
        **fields: Any,
    ) -> StoredMessage:
        fields.setdefault("protocol", "mqtt")
        message = Message(destination, body, qos=qos, **fields)
        return StoredMessage.of(sequence, message, delivery_count)

    return make


@pytest.fixture
def make_side(connection: FakeConnection) -> Callable[..., Side]:
    """``make_side(is_persistent=…, size=…)``: a sending side at ``connection``."""
    return lambda **values: Side(connection, **values)


@pytest.fixture
def side(make_side: Callable[..., Side]) -> Side:
    """A sending side of MQTT 3.1.1 whose session ends with the connection."""
    return make_side()
