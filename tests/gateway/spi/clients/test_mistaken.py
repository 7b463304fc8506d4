"""Who speaks another protocol than the listener is told so, or the log is: TLS, HTTP, MQTT, STOMP."""

import pytest

from tidegate.spi.clients.mistaken import mistaken, spoken_by

TLS = b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03"
HTTP = b"GET /mqtt HTTP/1.1\r\nHost: x\r\n"
MQTT = b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02ab"
LONG_MQTT = b"\x10\x8e\x01\x00\x06MQIsdp\x03"
STOMP = b"\r\nCONNECT\r\naccept-version:1.2\r\n"


@pytest.mark.parametrize(
    ("data", "protocol", "said"),
    [
        (TLS, "MQTT", "this is a plain TCP listener and the client speaks TLS"),
        (TLS, "STOMP", "this is a plain TCP listener and the client speaks TLS"),
        (HTTP, "MQTT", "this is a listener for MQTT and the client speaks HTTP"),
        (HTTP, "STOMP", "this is a listener for STOMP and the client speaks HTTP"),
        (MQTT, "STOMP", "this is a listener for STOMP and the client speaks MQTT"),
        (LONG_MQTT, "STOMP", "this is a listener for STOMP and the client speaks MQTT"),
        (STOMP, "MQTT", "this is a listener for MQTT and the client speaks STOMP"),
    ],
)
def test_the_other_protocol_is_named(data: bytes, protocol: str, said: str) -> None:
    assert mistaken(data, protocol).startswith(said)


@pytest.mark.parametrize(
    ("data", "protocol"),
    [
        (MQTT, "MQTT"),
        (LONG_MQTT, "MQTT"),
        (STOMP, "STOMP"),
        (b"\xff" * 40, "MQTT"),
        (b"", "MQTT"),
    ],
)
def test_its_own_and_garbage_are_not(data: bytes, protocol: str) -> None:
    assert mistaken(data, protocol) == ""


@pytest.mark.parametrize(
    ("data", "said"),
    [(TLS, "TLS"), (HTTP, "HTTP"), (LONG_MQTT, "MQTT"), (STOMP, "STOMP"), (b"\xff", ""), (b"", "")],
)
def test_what_is_spoken_is_told(data: bytes, said: str) -> None:
    assert spoken_by(data) == said
