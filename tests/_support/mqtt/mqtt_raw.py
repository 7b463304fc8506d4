"""A raw MQTT client on a blocking socket: 3.1, 3.1.1 and 5.0, every byte as the test wants it.

It shares no code with the gateway's codec, so that a mistake there is not made here too.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Any, Final, Self

V31, V311, V5 = 3, 4, 5
IO_TIMEOUT_S: Final = 60.0

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE = range(1, 9)
SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(9, 16)

#: MQTT 5.0 table 2-4: name of a property to (identifier, how its value is written).
PROPERTIES: Final[dict[str, tuple[int, str]]] = {
    "payload_format": (0x01, "byte"),
    "message_expiry": (0x02, "four"),
    "content_type": (0x03, "text"),
    "response_topic": (0x08, "text"),
    "correlation_data": (0x09, "binary"),
    "subscription_id": (0x0B, "variable"),
    "session_expiry": (0x11, "four"),
    "assigned_client_id": (0x12, "text"),
    "server_keep_alive": (0x13, "two"),
    "auth_method": (0x15, "text"),
    "auth_data": (0x16, "binary"),
    "request_problem": (0x17, "byte"),
    "will_delay": (0x18, "four"),
    "request_response": (0x19, "byte"),
    "response_information": (0x1A, "text"),
    "server_reference": (0x1C, "text"),
    "reason_string": (0x1F, "text"),
    "receive_maximum": (0x21, "two"),
    "topic_alias_maximum": (0x22, "two"),
    "topic_alias": (0x23, "two"),
    "maximum_qos": (0x24, "byte"),
    "retain_available": (0x25, "byte"),
    "user_property": (0x26, "pair"),
    "maximum_packet_size": (0x27, "four"),
    "wildcard_available": (0x28, "byte"),
    "subscription_ids_available": (0x29, "byte"),
    "shared_available": (0x2A, "byte"),
}
_NAMES: Final = {number: (name, kind) for name, (number, kind) in PROPERTIES.items()}
_REPEATED: Final = ("user_property", "subscription_id")
_INTEGERS: Final = {"byte": ">B", "two": ">H", "four": ">I"}


# -------------------------------------------------------------------------------------- writing


def variable(value: int) -> bytes:
    """A variable byte integer."""
    digits = bytearray()
    while True:
        value, digit = divmod(value, 128)
        digits.append(digit | (0x80 if value else 0))
        if not value:
            return bytes(digits)


def packet(first: int, body: bytes = b"") -> bytes:
    """*first*: the whole first byte."""
    return bytes([first]) + variable(len(body)) + body


def text(value: str | bytes) -> bytes:
    """Two length bytes and the value; also for binary data."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(raw)) + raw


def two(value: int) -> bytes:
    return struct.pack(">H", value)


def properties(**values: Any) -> bytes:
    """A property block with its length; a list repeats the property."""
    block = bytearray()
    for name, value in values.items():
        number, kind = PROPERTIES[name]
        for one in value if isinstance(value, list) else [value]:
            block.append(number)
            if kind in _INTEGERS:
                block += struct.pack(_INTEGERS[kind], one)
            elif kind == "variable":
                block += variable(one)
            elif kind == "pair":
                block += text(one[0]) + text(one[1])
            else:
                block += text(one)
    return variable(len(block)) + bytes(block)


def connect(
    client_id: str | bytes,
    *,
    version: int = V311,
    clean: bool = True,
    keep_alive: int = 0,
    will: tuple[str, bytes] | None = None,
    will_qos: int = 0,
    will_retain: bool = False,
    will_properties: dict[str, Any] | None = None,
    username: str | bytes | None = None,
    password: bytes | None = None,
    flags: int | None = None,
    **props: Any,
) -> bytes:
    """CONNECT. flags: instead of those that the other arguments make."""
    made = 0x02 if clean else 0
    payload = text(client_id)
    if will is not None:
        made |= 0x04 | will_qos << 3 | (0x20 if will_retain else 0)
        if version == V5:
            payload += properties(**will_properties or {})
        payload += text(will[0]) + text(will[1])
    if username is not None:
        made |= 0x80
        payload += text(username)
    if password is not None:
        made |= 0x40
        payload += text(password)
    head = text("MQIsdp" if version == V31 else "MQTT") + bytes([version])
    head += bytes([made if flags is None else flags]) + two(keep_alive)
    if version == V5:
        head += properties(**props)
    else:
        assert not props
    return packet(0x10, head + payload)


def publish(
    topic: str | bytes,
    body: bytes,
    *,
    version: int = V311,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
    **props: Any,
) -> bytes:
    first = 0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0)
    head = text(topic) + (two(packet_id) if qos else b"")
    if version == V5:
        head += properties(**props)
    else:
        assert not props
    return packet(first, head + body)


def ack(kind: int, packet_id: int, code: int = 0, **props: Any) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP, in the shortest form."""
    first = kind << 4 | (2 if kind == PUBREL else 0)
    if props:
        return packet(first, two(packet_id) + bytes([code]) + properties(**props))
    return packet(first, two(packet_id) + (bytes([code]) if code else b""))


def subscribe(
    packet_id: int, *wanted: tuple[str | bytes, int], version: int = V311, **props: Any
) -> bytes:
    """wanted: topic filters and the option bytes (before 5.0: QoS) of each."""
    body = two(packet_id) + (properties(**props) if version == V5 else b"")
    return packet(0x82, body + b"".join(text(name) + bytes([option]) for name, option in wanted))


def unsubscribe(packet_id: int, *names: str | bytes, version: int = V311, **props: Any) -> bytes:
    body = two(packet_id) + (properties(**props) if version == V5 else b"")
    return packet(0xA2, body + b"".join(text(name) for name in names))


def disconnect(code: int | None = None, **props: Any) -> bytes:
    """DISCONNECT; without a *code* the two bytes that all versions have."""
    if code is None:
        return packet(0xE0)
    return packet(0xE0, bytes([code]) + properties(**props))


def auth(code: int, **props: Any) -> bytes:
    return packet(0xF0, bytes([code]) + properties(**props))


PING: Final = packet(0xC0)


# -------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Packet:
    """One packet as it came.

    Attributes that a packet does not have are at their defaults. ``codes``: of SUBACK and
    UNSUBACK; ``code`` is 0 where the short form leaves it out. ``props``: names of
    :data:`PROPERTIES`; those that can come again have a list.
    """

    kind: int
    flags: int
    raw: bytes
    packet_id: int = 0
    code: int = 0
    codes: tuple[int, ...] = ()
    props: dict[str, Any] | None = None
    topic: str = ""
    body: bytes = b""

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def dup(self) -> bool:
        return bool(self.flags & 8)

    @property
    def retain(self) -> bool:
        return bool(self.flags & 1)

    @property
    def session_present(self) -> int:
        """The whole flags byte of CONNACK."""
        assert self.kind == CONNACK
        return self.raw[2]


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        assert len(found) == count, f"{self.data!r} is cut off"
        self.at += count
        return found

    def number(self, form: str) -> int:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> bytes:
        return self.take(self.number(">H"))

    def variable(self) -> int:
        value = shift = 0
        while True:
            digit = self.number(">B")
            value |= (digit & 0x7F) << shift
            shift += 7
            if not digit & 0x80:
                assert variable(value) == self.data[self.at - shift // 7 : self.at], "not minimal"
                return value

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.at)


def read_properties(cursor: _Cursor) -> dict[str, Any]:
    found: dict[str, Any] = {}
    block = _Cursor(cursor.take(cursor.variable()))
    while block.at < len(block.data):
        name, kind = _NAMES[block.number(">B")]
        value: Any
        if kind in _INTEGERS:
            value = block.number(_INTEGERS[kind])
        elif kind == "variable":
            value = block.variable()
        elif kind == "pair":
            value = (block.string().decode(), block.string().decode())
        else:
            raw = block.string()
            value = raw.decode() if kind == "text" else raw
        if name in _REPEATED:
            found.setdefault(name, []).append(value)
        else:
            assert name not in found, f"{name} comes twice"
            found[name] = value
    return found


def read_packet(raw: bytes, version: int) -> Packet:
    """*raw*: one whole packet, as a server sends it."""
    kind, flags = raw[0] >> 4, raw[0] & 15
    cursor = _Cursor(raw)
    cursor.at = 1
    assert cursor.variable() == len(raw) - cursor.at
    fields: dict[str, Any] = {}
    is_v5 = version == V5
    if kind == CONNACK:
        cursor.take(1)
        fields["code"] = cursor.number(">B")
        if is_v5:
            fields["props"] = read_properties(cursor)
    elif kind == PUBLISH:
        fields["topic"] = cursor.string().decode()
        if flags & 6:
            fields["packet_id"] = cursor.number(">H")
        if is_v5:
            fields["props"] = read_properties(cursor)
        fields["body"] = cursor.rest()
    elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        fields["packet_id"] = cursor.number(">H")
        fields |= _reason(cursor, is_v5)
    elif kind in (SUBACK, UNSUBACK):
        fields["packet_id"] = cursor.number(">H")
        if is_v5:
            fields["props"] = read_properties(cursor)
        fields["codes"] = tuple(cursor.rest())
    elif kind in (DISCONNECT, AUTH):
        assert is_v5, raw
        fields |= _reason(cursor, is_v5)
    else:
        assert kind == PINGRESP, f"a server does not send {raw!r}"
    assert cursor.at == len(raw), f"bytes are left over in {raw!r}"
    return Packet(kind, flags, raw, **fields)


def _reason(cursor: _Cursor, is_v5: bool) -> dict[str, Any]:
    left = len(cursor.data) - cursor.at
    if not is_v5 or not left:
        return {"props": {}} if is_v5 else {}
    code = cursor.number(">B")
    return {"code": code, "props": read_properties(cursor) if left > 1 else {}}


# --------------------------------------------------------------------------------------- client


class Client:
    """One connection. Every wait ends after IO_TIMEOUT_S."""

    def __init__(self, port: int, version: int = V311) -> None:
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", port), IO_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._aside: list[bytes] = []
        self._packet_id = 0

    def send(self, *data: bytes) -> Self:
        self.socket.sendall(b"".join(data))
        return self

    def receive_raw(self) -> bytes:
        """The bytes of the next packet, b"" when the gateway has closed the connection."""
        if self._aside:
            return self._aside.pop(0)
        while True:
            length = _packet_length(self._buffer)
            if length is not None and len(self._buffer) >= length:
                raw, self._buffer = self._buffer[:length], self._buffer[length:]
                return raw
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:  # closed while something of ours was unread
                data = b""
            if not data:
                assert not self._buffer, f"the connection ends inside a packet: {self._buffer!r}"
                return b""
            self._buffer += data

    def receive(self, kind: int | None = None) -> Packet:
        """The next packet, which is of this *kind*."""
        raw = self.receive_raw()
        assert raw, "the gateway closed the connection"
        found = read_packet(raw, self.version)
        assert kind is None or found.kind == kind, found
        return found

    def is_closed(self) -> bool:
        """The gateway closes now, without another packet."""
        raw = self.receive_raw()
        assert not raw, f"before closing came {raw!r}"
        return True

    def connect(self, client_id: str | bytes, **options: Any) -> Packet:
        """Connect and return the CONNACK, whatever it says."""
        return self.send(connect(client_id, version=self.version, **options)).receive(CONNACK)

    def subscribe(self, name: str, options: int = 0, **props: Any) -> int:
        """Returns: the return code. Messages that come before SUBACK are kept for later."""
        packet_id = self.next_id()
        self.send(subscribe(packet_id, (name, options), version=self.version, **props))
        answer = self._behind_messages()
        assert (answer.kind, answer.packet_id) == (SUBACK, packet_id)
        return answer.codes[0]

    def unsubscribe(self, name: str) -> Packet:
        packet_id = self.next_id()
        self.send(unsubscribe(packet_id, name, version=self.version))
        return self.receive(UNSUBACK)

    def publish(self, topic: str, body: bytes = b"", **options: Any) -> Self:
        """Only send it; with QoS 1 or 2 the packet id is the caller's."""
        return self.send(publish(topic, body, version=self.version, **options))

    def publishes(self, topic: str, body: bytes = b"", qos: int = 1, **options: Any) -> Packet:
        """Publish, wait until it is done and return PUBACK or PUBREC."""
        packet_id = self.next_id()
        self.publish(topic, body, qos=qos, packet_id=packet_id, **options)
        answer = self.receive(PUBACK if qos == 1 else PUBREC)
        assert answer.packet_id == packet_id
        if qos == 2 and answer.code < 0x80:
            done = self.send(ack(PUBREL, packet_id)).receive(PUBCOMP)
            assert done.packet_id == packet_id
        return answer

    def message(self) -> Packet:
        """The next packet, a PUBLISH; it is not acknowledged."""
        return self.receive(PUBLISH)

    def takes(self) -> Packet:
        """The next packet, a PUBLISH, and the whole exchange that it asks for.

        Messages that come in the middle of it are kept for later.
        """
        found = self.message()
        if found.qos == 1:
            self.send(ack(PUBACK, found.packet_id))
        elif found.qos == 2:
            self.send(ack(PUBREC, found.packet_id))
            assert self._behind_messages().raw == ack(PUBREL, found.packet_id)
            self.send(ack(PUBCOMP, found.packet_id))
        return found

    def _behind_messages(self) -> Packet:
        """The next packet that is no PUBLISH."""
        early: list[bytes] = []
        while (answer := self.receive()).kind == PUBLISH:
            early.append(answer.raw)
        self._aside = early
        return answer

    def is_quiet(self) -> bool:
        """Nothing came before the answer to a PINGREQ that is sent now."""
        return self.send(PING).receive_raw() == packet(0xD0)

    def is_passed_over(self, publisher: Client) -> bool:
        """What *publisher* sent before this is not on its way here.

        It publishes one message more, which comes here and is the next to come.
        """
        topic = f"fence/{id(self)}"
        self.subscribe(topic)
        publisher.publishes(topic, b"fence")
        return self.message().topic == topic

    def next_id(self) -> int:
        self._packet_id += 1
        return self._packet_id

    def leave(self) -> None:
        """DISCONNECT, and wait until the gateway has closed."""
        self.send(disconnect())
        assert self.is_closed()
        self.close()

    def drop(self) -> None:
        """Close without DISCONNECT, as a network that fails."""
        self.close()

    def close(self) -> None:
        self.socket.close()


def _packet_length(buffer: bytes) -> int | None:
    """Bytes of the packet at the beginning of *buffer*, None when that is not known yet."""
    value = shift = 0
    for at, digit in enumerate(buffer[1:5], 2):
        value |= (digit & 0x7F) << shift
        shift += 7
        if not digit & 0x80:
            return at + value
    return None
