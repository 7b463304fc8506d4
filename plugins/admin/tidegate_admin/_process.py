"""Runs the admin process as a child: starts it, hears its questions, and makes sure it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from tidegate.spi.machine.children import NICENESS, follow_lines, kill_group, start_child
from tidegate_admin import _protocol as protocol

_log = logging.getLogger("tidegate.admin")

#: ``-P``: a file named ``json.py`` in the working directory must not replace Python's.
COMMAND: Final = (sys.executable, "-P", "-m", "tidegate_admin.server")
#: Room besides the body: credentials, names. JSON escapes a byte as at most six.
_ASK_BYTES: Final = 256 << 10
_ESCAPED: Final = 6

Answering = Callable[[protocol.FromServer], Awaitable[protocol.FromGateway]]


class AdminProcess:
    """A running admin process. Made by :meth:`start`; used on one event loop.

    Attributes: pid.
    """

    def __init__(self, process: asyncio.subprocess.Process, link: socket.socket) -> None:
        self.pid = process.pid
        self._process = process
        self._link = link
        self._writer: asyncio.StreamWriter | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._following = [asyncio.create_task(follow_lines(process.stderr, self._say))]

    @classmethod
    async def start(cls) -> AdminProcess:
        """Start it; it prepares, then waits for :meth:`serve`. Raises: OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                number = theirs.fileno()
                process = await start_child(
                    [*COMMAND, str(number)], pass_fds=(number,), niceness=NICENESS
                )
            except BaseException:
                ours.close()
                raise
        return cls(process, ours)

    async def serve(
        self, start: protocol.Start, listening: socket.socket, answering: Answering
    ) -> None:
        """Let it serve on *listening*, once. Earlier clients wait. Raises: OSError: it ended."""
        protocol.hand_over(self._link, start, listening)
        limit = _ASK_BYTES + _ESCAPED * start.request_limit
        reader, self._writer = await asyncio.open_connection(sock=self._link, limit=limit)
        following = self._follow_asks(reader, self._writer, answering)
        self._following.append(asyncio.create_task(following))

    async def wait(self) -> int:
        """Wait until it has ended for any reason; returns its exit code."""
        return await self._process.wait()

    def renew(self) -> None:
        """Have it reread the certificate."""
        if self._writer is not None:
            self._writer.write(protocol.line(protocol.Renew()))

    async def end(self) -> None:
        """Kill it: it has nothing to lose. Idempotent."""
        kill_group(self._process)
        await self._process.wait()
        tasks = (*self._following, *self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._writer is None:
            self._link.close()
            return
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _follow_asks(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answering: Answering
    ) -> None:
        try:
            while line := await reader.readline():
                ask = protocol.decode_from_server(line)
                task = asyncio.create_task(_answer(ask, writer, answering))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
        except OSError:
            pass  # it ended before reading everything; the caller of wait reports that
        except (ValueError, msgspec.DecodeError) as error:
            _log.warning("admin process pid=%d asks what is no question: %s", self.pid, error)
        kill_group(self._process)  # the caller of wait starts another one

    def _say(self, line: str) -> None:
        """Log what it prints when something is wrong with it: never a request's content."""
        _log.warning("admin process pid=%d %s", self.pid, line[:500])


async def _answer(
    ask: protocol.FromServer, writer: asyncio.StreamWriter, answering: Answering
) -> None:
    answer = await answering(ask)
    if not writer.is_closing():
        writer.write(protocol.line(answer))
        with contextlib.suppress(OSError):
            await writer.drain()
