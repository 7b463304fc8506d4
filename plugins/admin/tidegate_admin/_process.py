"""The admin process as a child: started, asked by, and certainly ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from tidegate.spi.machine.children import follow_lines, kill_group, start_child
from tidegate_admin import _protocol as protocol

_log = logging.getLogger("tidegate.admin")

#: ``-P``: a file named ``json.py`` in the working directory must not replace Python's.
COMMAND: Final = (sys.executable, "-P", "-m", "tidegate_admin.server.main")
#: What is said besides a request's body: credentials, names. JSON escapes a byte with six at worst.
_ASK_BYTES: Final = 256 << 10
_ESCAPED: Final = 6

Answering = Callable[[protocol.FromServer], Awaitable[protocol.FromGateway]]


class AdminProcess:
    """A running admin process. Made by :meth:`start`; used on one event loop.

    Attributes: pid.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answering: Answering,
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._reader = reader
        self._writer = writer
        self._answering = answering
        self._running: set[asyncio.Task[None]] = set()
        self._following = (
            asyncio.create_task(follow_lines(process.stderr, self._say)),
            asyncio.create_task(self._follow_asks()),
        )

    @classmethod
    async def start(
        cls, start: protocol.Start, listening: socket.socket, answering: Answering
    ) -> AdminProcess:
        """Start it; it serves on *listening* soon, and whoever connects before waits. Raises: OSError."""
        ours, theirs = socket.socketpair()
        limit = _ASK_BYTES + _ESCAPED * start.request_limit
        try:
            with theirs:
                fds = (theirs.fileno(), listening.fileno())
                process = await start_child([*COMMAND, *map(str, fds)], pass_fds=fds)
            reader, writer = await asyncio.open_connection(sock=ours, limit=limit)
        except BaseException:
            ours.close()
            raise
        writer.write(protocol.line(start))
        return cls(process, reader, writer, answering)

    async def wait(self) -> int:
        """Wait until it has ended, by itself or not; its exit code."""
        return await self._process.wait()

    def renew(self) -> None:
        """Let it read the certificate anew."""
        self._writer.write(protocol.line(protocol.Renew()))

    async def end(self) -> None:
        """Kill it: it has nothing that would be lost. Idempotent."""
        kill_group(self._process)
        await self._process.wait()
        tasks = (*self._following, *self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _follow_asks(self) -> None:
        try:
            while line := await self._reader.readline():
                task = asyncio.create_task(self._answer(protocol.decode_from_server(line)))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
        except (ValueError, msgspec.DecodeError, OSError) as error:
            _log.warning("admin process pid=%d asks what is no question: %s", self.pid, error)
        kill_group(self._process)  # whoever waits for its end starts another one

    async def _answer(self, ask: protocol.FromServer) -> None:
        answer = await self._answering(ask)
        if not self._writer.is_closing():
            self._writer.write(protocol.line(answer))
            with contextlib.suppress(OSError):
                await self._writer.drain()

    def _say(self, line: str) -> None:
        """What it says when something is wrong with it: never a request's content."""
        _log.warning("admin process pid=%d %s", self.pid, line[:500])
