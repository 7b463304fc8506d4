"""What a broken or hostile client sends disturbs nobody else and takes nothing down."""

from __future__ import annotations

import random
import socket
import struct

import psutil
import pytest
from gateway_process import GatewayProcess
from stomp_recorder import stomp_connect

pytestmark = pytest.mark.interop
WAIT_S = 60.0

CONNECT = b"CONNECT\naccept-version:1.2\nhost:localhost\n\n\0"
MQTT_CONNECT = bytes.fromhex("101000044d5154540402003c000474657374")

STOMP_CASES = {
    "random bytes": random.Random(1).randbytes(4096),
    "zeros": bytes(4096),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("160301020001") + bytes(512),
    "frame before connect": b"SEND\ndestination:/queue/x\n\nhello\0",
    "unknown command": CONNECT + b"FROB\n\n\0",
    "connect twice": CONNECT + CONNECT,
    "body where none is allowed": CONNECT + b"BEGIN\ntransaction:t\ncontent-length:3\n\nabc\0",
    "undefined escape": CONNECT + b"SEND\ndestination:/queue/x\nkey:a\\tb\n\nx\0",
    "header without colon": CONNECT + b"SEND\ndestination:/queue/x\nnonsense\n\nx\0",
    "bad content-length": CONNECT + b"SEND\ndestination:/queue/x\ncontent-length:-5\n\nx\0",
    "content-length beyond the limit": CONNECT
    + b"SEND\ndestination:/queue/x\ncontent-length:99999999999\n\nx\0",
    "no NUL after content-length": CONNECT
    + b"SEND\ndestination:/queue/x\ncontent-length:1\n\nxyz\0",
    "endless header line": CONNECT + b"SEND\nkey:" + b"a" * 2_000_000,
    "endless headers": CONNECT + b"SEND\n" + b"k:v\n" * 100_000,
    "ack of nothing": CONNECT + b"ACK\nid:1-999\n\n\0",
    "invalid utf-8": CONNECT + b"SEND\ndestination:/queue/\xff\xfe\n\nx\0",
    "commit without begin": CONNECT + b"COMMIT\ntransaction:zzz\n\n\0",
    "subscribe without id": CONNECT + b"SUBSCRIBE\ndestination:/queue/x\n\n\0",
}

MQTT_CASES = {
    "random bytes": random.Random(2).randbytes(4096),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "publish before connect": bytes.fromhex("30050003612f6278"),
    "connect twice": MQTT_CONNECT * 2,
    "five length bytes": MQTT_CONNECT + bytes.fromhex("30ffffffffff01"),
    "length beyond the limit": MQTT_CONNECT + bytes.fromhex("30ffffff7f"),
    "qos 3": MQTT_CONNECT + bytes.fromhex("36070003612f620001"),
    "wildcard in publish": MQTT_CONNECT + bytes.fromhex("30050003612f23"),
    "reserved packet type": MQTT_CONNECT + b"\x00\x00",
    "packet id 0": MQTT_CONNECT + bytes.fromhex("32070003612f620000"),
    "subscribe without filters": MQTT_CONNECT + bytes.fromhex("82020001"),
    "nul in topic": MQTT_CONNECT + bytes.fromhex("30050003610062"),
    "bad protocol name": bytes.fromhex("1010000458585858 0402003c000474657374".replace(" ", "")),
}


def talk(port: int, data: bytes) -> bytes:
    """Send *data*, return everything that comes back until the gateway closes the connection."""
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as connection:
        connection.settimeout(WAIT_S)
        answer = b""
        try:
            connection.sendall(data)
            while chunk := connection.recv(65536):
                answer += chunk
        except (ConnectionResetError, BrokenPipeError):
            pass
        return answer


@pytest.mark.parametrize("case", STOMP_CASES)
def test_stomp_answers_an_error_and_closes(gateway: GatewayProcess, case: str) -> None:
    answer = talk(gateway.stomp_port, STOMP_CASES[case])
    assert b"ERROR\n" in answer, answer
    assert b"Traceback" not in answer
    assert b"message:" in answer.partition(b"ERROR\n")[2]


@pytest.mark.parametrize("case", MQTT_CASES)
def test_mqtt_closes_the_connection(gateway: GatewayProcess, case: str) -> None:
    answer = talk(gateway.mqtt_port, MQTT_CASES[case])
    accepted = MQTT_CASES[case].startswith(MQTT_CONNECT)
    assert (answer[:4] == bytes.fromhex("20020000")) == accepted


@pytest.mark.parametrize("port", ["stomp_port", "mqtt_port"])
def test_every_truncation_of_a_good_start_leaves_the_gateway_working(
    gateway: GatewayProcess, port: str
) -> None:
    data = CONNECT if port == "stomp_port" else MQTT_CONNECT
    for size in range(len(data)):
        with socket.create_connection(("127.0.0.1", getattr(gateway, port)), WAIT_S) as connection:
            connection.sendall(data[:size])
            if size % 3 == 0:  # a reset instead of an orderly end
                option = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
    connection, recorder = stomp_connect(gateway)
    connection.send("/queue/after-truncation", b"x", receipt="alive")
    assert recorder.receipts.get(timeout=WAIT_S) == "alive"
    connection.disconnect()


def test_a_neighbour_is_not_disturbed_and_no_socket_leaks(gateway: GatewayProcess) -> None:
    neighbour, recorder = stomp_connect(gateway)
    neighbour.subscribe("/queue/calm", id="1", ack="auto")
    process = psutil.Process(gateway.pid)
    before = process.num_fds()
    for data in STOMP_CASES.values():
        talk(gateway.stomp_port, data)
    for data in MQTT_CASES.values():
        talk(gateway.mqtt_port, data)
    neighbour.send("/queue/calm", b"still here")
    assert recorder.messages.get(timeout=WAIT_S).body == b"still here"
    assert process.num_fds() <= before + 4
    neighbour.disconnect()
