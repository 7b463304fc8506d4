"""The few bytes of MQTT and STOMP that the benchmark's own clients send."""

import socket


def field(data: bytes) -> bytes:
    """Bytes behind their length (MQTT 5.0 section 1.5.4)."""
    return len(data).to_bytes(2, "big") + data


def packet(first: int, rest: bytes) -> bytes:
    """An MQTT packet (MQTT 5.0 section 2.1)."""
    length, size = b"", len(rest)
    while True:
        size, seven = size >> 7, size & 127
        length += bytes((seven | (128 if size else 0),))
        if not size:
            return bytes((first,)) + length + rest


def connect(client_id: str, level: int = 4) -> bytes:
    """CONNECT with a clean session (MQTT 5.0 section 3.1)."""
    properties = b"\0" if level == 5 else b""
    return packet(
        0x10, field(b"MQTT") + bytes((level, 2)) + b"\0\0" + properties + field(client_id.encode())
    )


def frame(command: str, body: bytes = b"", **headers: object) -> bytes:
    """A STOMP frame; underscores in header names become hyphens."""
    lines = "".join(f"{key.replace('_', '-')}:{value}\n" for key, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


def publish_v5(topic: bytes, properties: bytes) -> bytes:
    """A PUBLISH of QoS 0 with properties (MQTT 5.0 section 3.3)."""
    size = len(properties)  # of up to three bytes
    length = bytes((size & 127 | 128, size >> 7 & 127 | 128, size >> 14))
    if size < 1 << 7:
        length = bytes((size,))
    elif size < 1 << 14:
        length = bytes((size & 127 | 128, size >> 7))
    return packet(0x30, field(topic) + length + properties + b"x")


def exchange(client: socket.socket, data: bytes, size: int) -> None:
    """Send *data*, and wait for an answer of *size* bytes. Raises: OSError."""
    client.sendall(data)
    while size:
        answer = client.recv(size)
        if not answer:
            raise OSError("the broker closed the connection of a client that waits for its answer")
        size -= len(answer)
