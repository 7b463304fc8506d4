"""A STOMP broker that says what a test wants it to say, when it wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from wire import Frame, StompClient, frame

_SERVERS = ("CONNECT", "STOMP")


@dataclass(slots=True)
class FakeBroker:
    """Attributes: frames: that came, of all connections; connections: that are there; port: where it listens."""

    answer: Callable[[Frame], Sequence[bytes] | None]
    server: str
    port: int = 0
    frames: list[Frame] = field(default_factory=list[Frame])
    connections: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])

    def say(self, *frames: bytes) -> None:
        """To the client that came last."""
        self.connections[-1].write(b"".join(frames))

    async def until(self, command: str, count: int = 1) -> Frame:
        """Wait until *command* has come so often."""
        async with asyncio.timeout(60):
            while len(found := [one for one in self.frames if one.command == command]) < count:
                await asyncio.sleep(0.005)
        return found[-1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        client = StompClient(reader, writer)  # a frame is read the same way at both ends
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            while True:
                came = await client.receive()
                self.frames.append(came)
                if came.command in _SERVERS:
                    client.send("CONNECTED", version="1.2", server=self.server)
                    continue
                replies = self.answer(came)
                if replies is None:
                    break  # it closes the connection, as brokers do behind an ERROR
                writer.write(b"".join(replies))
        self.connections.remove(writer)
        writer.close()


@asynccontextmanager
async def fake_broker(
    answer: Callable[[Frame], Sequence[bytes] | None], server: str = "ActiveMQ/6.1.6"
) -> AsyncIterator[FakeBroker]:
    """Args: answer: what it says to a frame, in frames; None: it closes the connection."""
    broker = FakeBroker(answer, server)
    listening = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.port = listening.sockets[0].getsockname()[1]
    try:
        yield broker
    finally:
        listening.close()
        for writer in tuple(broker.connections):
            writer.close()


def receipt_of(came: Frame) -> list[bytes]:
    """As every broker answers what it took."""
    found = came.headers.get("receipt")
    return [] if found is None else [frame("RECEIPT", receipt_id=found)]
