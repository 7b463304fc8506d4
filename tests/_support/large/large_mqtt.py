"""An MQTT client of any version for large messages, on asyncio streams."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterable
from typing import Any

from tidegate_protocols.mqtt import (
    Codec,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    TopicRequest,
    encode,
)
from tidegate_protocols.mqtt.codec.packets import Event


class LargeMqtt:
    """Writes packets, whole or bit by bit, and reads them whole."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, level: int
    ) -> None:
        self.reader, self.writer, self.level = reader, writer, level
        self._codec = Codec(1 << 28, level, from_client=False)
        self._packets: list[Event] = []

    @classmethod
    async def connect(
        cls, port: int, level: int = 5, *, tls: ssl.SSLContext | None = None, **values: Any
    ) -> LargeMqtt:
        streams = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        client = cls(*streams, level)
        values.setdefault("client_id", "large")
        client.write(Connect(level=level, **values))
        try:
            answer = await client.receive()
            assert isinstance(answer, Connack), answer
            assert answer.reason_code == 0, answer
        except BaseException:
            client.drop()
            raise
        return client

    def wire(self, packet: Packet) -> bytes:
        return encode(packet, self.level)

    def write(self, *packets: Packet) -> None:
        self.writer.write(b"".join(self.wire(packet) for packet in packets))

    async def pour(self, head: Publish, pieces: Iterable[bytes], size: int) -> None:
        """A PUBLISH whose body is made up as it is sent; *pieces* may be fewer than *size* bytes."""
        whole = self.wire(Publish(**_fields(head, b"")))
        # The header of a packet with that body: its remaining length is longer, the rest the same.
        remaining = len(whole) - 2 + size
        assert whole[1] < 128, "the header is short"
        digits = bytearray()
        while remaining:
            remaining, digit = divmod(remaining, 128)
            digits.append(digit | (0x80 if remaining else 0))
        self.writer.write(whole[:1] + bytes(digits) + whole[2:])
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def subscribe(self, name: str, qos: int) -> None:
        self.write(Subscribe(1, (TopicRequest(name, qos),)))
        answer = await self.receive()
        assert isinstance(answer, Suback), answer

    async def receive(self) -> Event:
        """The next packet. Raises: EOFError."""
        while not self._packets:
            data = await self.reader.read(1 << 18)
            if not data:
                raise EOFError
            self._codec.receive_data(data)
            self._packets += self._codec.events()
        return self._packets.pop(0)

    async def expect(self, *packets: Packet) -> None:
        for packet in packets:
            found = await self.receive()
            assert found == packet, found

    def leave(self) -> None:
        self.write(Disconnect())
        self.writer.close()

    def drop(self) -> None:
        self.writer.transport.abort()


def _fields(head: Publish, body: bytes) -> dict[str, Any]:
    return {name: getattr(head, name) for name in head.__struct_fields__} | {"body": body}


@contextlib.asynccontextmanager
async def mqtt_client(port: int, level: int = 5, **values: Any) -> AsyncIterator[LargeMqtt]:
    client = await LargeMqtt.connect(port, level, **values)
    try:
        yield client
        client.writer.close()
    except BaseException:
        client.drop()  # who failed does not say goodbye: under TLS that waits for the other side
        raise
    finally:
        await asyncio.gather(client.writer.wait_closed(), return_exceptions=True)
