"""Minimal STOMP and MQTT clients on asyncio streams, for tests that must know what was confirmed.

They exist because an oracle needs every confirmation and delivery as it happened; that our wire
format is right is proved elsewhere, with clients that nobody here wrote.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field

IO_TIMEOUT_S = 60.0


@dataclass
class Frame:
    command: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def frame(command: str, body: bytes = b"", /, **headers: str) -> bytes:
    """Encode a STOMP frame; ``_`` in a header's name stands for ``-``."""
    lines = [command] + [f"{key.replace('_', '-')}:{value}" for key, value in headers.items()]
    if body:
        lines.append(f"content-length:{len(body)}")
    return "\n".join(lines).encode() + b"\n\n" + body + b"\0"


class StompClient:
    """A STOMP 1.2 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, **headers: str) -> StompClient:
        return await cls.greeted(*await asyncio.open_connection("127.0.0.1", port), **headers)

    @classmethod
    async def greeted(
        cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, **headers: str
    ) -> StompClient:
        """Over a connection that there is."""
        client = cls(reader, writer)
        client.send("CONNECT", accept_version="1.2", host="localhost", **headers)
        try:
            answer = await client.receive()
            assert answer.command == "CONNECTED", answer
        except BaseException:  # the gateway may be killed at this very moment
            writer.close()
            raise
        return client

    def send(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        self.writer.write(frame(command, body, **headers))

    async def receive(self) -> Frame:
        """The next frame. Raises: EOFError, OSError, TimeoutError."""
        async with asyncio.timeout(IO_TIMEOUT_S):
            head = b"\n"
            while head.strip(b"\r\n") == b"":  # heart-beats
                head = await self.reader.readuntil(b"\n")
            head += await self.reader.readuntil(b"\n\n")
            lines = head.decode().rstrip("\n").split("\n")
            headers: dict[str, str] = {}
            for line in lines[1:]:
                key, _, value = line.partition(":")
                headers.setdefault(key, value)
            if "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
                await self.reader.readexactly(1)
            else:
                body = (await self.reader.readuntil(b"\0"))[:-1]
            return Frame(lines[0], headers, body)

    async def receipt(self, receipt_id: str) -> None:
        """Wait for this RECEIPT; anything else on the way is an error."""
        answer = await self.receive()
        assert (answer.command, answer.headers.get("receipt-id")) == ("RECEIPT", receipt_id), answer

    def close(self) -> None:
        self.writer.close()

    async def aclose(self) -> None:
        """Close and wait until the socket is gone; a test that ends sooner leaks it."""
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


@dataclass
class Packet:
    kind: int
    flags: int
    payload: bytes

    @property
    def packet_id(self) -> int:
        """Of an acknowledgement packet."""
        return struct.unpack(">H", self.payload[:2])[0]


@dataclass
class Publish:
    topic: str
    payload: bytes
    qos: int
    packet_id: int
    dup: bool
    retain: bool


CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT = range(8, 15)


def packet(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    length, digits = len(payload), bytearray()
    while True:
        length, digit = divmod(length, 128)
        digits.append(digit | (0x80 if length else 0))
        if not length:
            return bytes([kind << 4 | flags]) + bytes(digits) + payload


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">H", len(raw)) + raw


class MqttClient:
    """An MQTT 3.1.1 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.session_present = False

    @classmethod
    async def connect(cls, port: int, client_id: str, *, clean: bool = True) -> MqttClient:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = cls(reader, writer)
        flags = 0x02 if clean else 0
        head = text("MQTT") + bytes([4, flags]) + struct.pack(">H", 0)
        writer.write(packet(CONNECT, head + text(client_id)))
        try:
            answer = await client.receive()
            assert answer.kind == CONNACK, answer
            assert answer.payload[1] == 0, answer
        except BaseException:  # the gateway may be killed at this very moment
            writer.close()
            raise
        client.session_present = bool(answer.payload[0] & 1)
        return client

    async def receive(self) -> Packet:
        """The next packet. Raises: EOFError, OSError, TimeoutError."""
        async with asyncio.timeout(IO_TIMEOUT_S):
            first = (await self.reader.readexactly(1))[0]
            length = shift = 0
            while True:
                digit = (await self.reader.readexactly(1))[0]
                length |= (digit & 0x7F) << shift
                shift += 7
                if not digit & 0x80:
                    break
            return Packet(first >> 4, first & 0x0F, await self.reader.readexactly(length))

    def publish(
        self, topic: str, body: bytes, *, qos: int, packet_id: int, dup: bool = False
    ) -> None:
        head = text(topic) + (struct.pack(">H", packet_id) if qos else b"")
        self.writer.write(packet(PUBLISH, head + body, flags=qos << 1 | (8 if dup else 0)))

    def acknowledge(self, kind: int, packet_id: int) -> None:
        self.writer.write(packet(kind, struct.pack(">H", packet_id), 2 if kind == PUBREL else 0))

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        self.writer.write(
            packet(SUBSCRIBE, struct.pack(">H", 1) + text(topic_filter) + bytes([qos]), 2)
        )
        answer = await self.receive()
        assert answer.kind == SUBACK, answer
        assert answer.payload[2] == qos, answer

    def disconnect(self) -> None:
        self.writer.write(packet(DISCONNECT))
        self.writer.close()

    def close(self) -> None:
        self.writer.close()


def parse_publish(received: Packet) -> Publish:
    qos = received.flags >> 1 & 3
    size = struct.unpack(">H", received.payload[:2])[0]
    topic = received.payload[2 : 2 + size].decode()
    rest = received.payload[2 + size :]
    packet_id = 0
    if qos:
        packet_id = struct.unpack(">H", rest[:2])[0]
        rest = rest[2:]
    return Publish(topic, rest, qos, packet_id, bool(received.flags & 8), bool(received.flags & 1))
