"""A TCP proxy between store and server that cuts and delays connections."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self


class Proxy:
    """Forwards to a port of this machine.

    Attributes:
        port: where it listens.
        stalls: bytes are held back, in both directions, while it is set.
        lose_answer_to: when a client sends these bytes they reach the server, but nothing comes
            back: the connection is cut a moment later. Once.
        cut_before: when a client sends these bytes the connection is cut instead. Once.
        refuses: new connections are closed at once.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.stalls = False
        self.refuses = False
        self.lose_answer_to = b""
        self.cut_before = b""
        self.cuts = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._mute: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """End all connections that there are."""
        for writer in list(self._writers):
            writer.transport.abort()

    def go_away(self) -> None:
        """Nothing is connected any more, until ``refuses`` is taken back."""
        self.refuses = True
        self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, back}
        pumps = [
            asyncio.create_task(self._pump(reader, back, writer, upward=True)),
            asyncio.create_task(self._pump(there, writer, writer, upward=False)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._writers -= {writer, back}
            for each in (writer, back):
                each.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        out: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        *,
        upward: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                while self.stalls:
                    await asyncio.sleep(0.01)
                if upward and self.cut_before and self.cut_before in data:
                    self.cut_before = b""
                    self.cuts += 1
                    return
                if upward and self.lose_answer_to and self.lose_answer_to in data:
                    self.lose_answer_to = b""
                    self._mute.add(client)
                if not upward and client in self._mute:
                    # The server has answered, so it is done; nobody hears of it.
                    self._mute.discard(client)
                    self.cuts += 1
                    return
                out.write(data)
                await out.drain()
