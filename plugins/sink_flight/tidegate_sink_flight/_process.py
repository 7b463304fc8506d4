"""Runs the Flight server as a child: starts it, answers its calls, and makes sure that it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from tidegate.spi import GatewayError
from tidegate.spi.machine.children import NICENESS, follow_lines, kill_group, start_child
from tidegate_sink_flight import _protocol as protocol

_log = logging.getLogger("tidegate.sink.flight")

#: ``-P``: a file named ``json.py`` in the working directory must not replace Python's.
COMMAND: Final = (sys.executable, "-P", "-m", "tidegate_sink_flight.server.main")
START_TIMEOUT_S: Final = 60.0
#: Calls are small; answers are not, but they go the other way.
_CALL_BYTES_MAX: Final = 1 << 20
#: Bytes of an answer to write before yielding the loop.
_WRITE_BYTES: Final = 256 * 1024

Answering = Callable[[protocol.Call], Awaitable[protocol.Answer]]


class ServerStartError(GatewayError):
    """The server does not listen; the text says why."""


class ServerProcess:
    """A running Flight server. Made by :meth:`start`; used on one event loop.

    Attributes: port: where it listens; ended: set when it has died, for any reason.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.port = 0
        self._process = process
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._stderr = asyncio.create_task(follow_lines(process.stderr, self._say))
        self._calls: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, start: protocol.Start) -> ServerProcess:
        """Start it and wait until it listens. Raises: OSError, ServerStartError."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await start_child(
                [*COMMAND, str(theirs.fileno())], pass_fds=(theirs.fileno(),), niceness=NICENESS
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        server = cls(process, reader, writer)
        try:
            writer.write(protocol.frame(start))
            async with asyncio.timeout(START_TIMEOUT_S):
                call = await server._next_call()
            if not isinstance(call.question, protocol.Ready):
                raise ServerStartError("the Flight server did not say that it listens")
            if call.question.problem:
                raise ServerStartError(call.question.problem)
            server.port = call.question.port
        except BaseException as error:
            await server.end()
            if isinstance(error, (TimeoutError, asyncio.IncompleteReadError, ConnectionError)):
                raise ServerStartError(
                    "the Flight server does not start; the log has what it said"
                ) from error
            raise
        return server

    @property
    def pid(self) -> int:
        return self._process.pid

    def answer(self, answering: Answering) -> None:
        """From now on each call is answered by *answering*."""
        self._calls = asyncio.create_task(self._follow_calls(answering))

    async def wait(self) -> int:
        """Wait until it has died; returns its exit code."""
        return await self._process.wait()

    async def end(self) -> None:
        """Kill it: it has nothing to lose. Idempotent."""
        kill_group(self._process)
        await self._process.wait()
        tasks = [task for task in (self._calls, self._stderr, *self._running) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _next_call(self) -> protocol.Call:
        size = int.from_bytes(await self._reader.readexactly(protocol.LENGTH_BYTES), "little")
        if size > _CALL_BYTES_MAX:
            raise ConnectionError("the Flight server sends what is no call")
        try:
            return protocol.decode_call(await self._reader.readexactly(size))
        except msgspec.DecodeError as error:
            raise ConnectionError(f"the Flight server sends what is no call: {error}") from error

    async def _follow_calls(self, answering: Answering) -> None:
        try:
            while True:
                call = await self._next_call()
                task = asyncio.create_task(self._answer(call, answering))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            _log.debug("flight server pid=%d link ended: %r", self.pid, error)
            kill_group(self._process)  # the caller of wait starts another one

    async def _answer(self, call: protocol.Call, answering: Answering) -> None:
        pieces = protocol.pieces(await answering(call))
        async with self._sending:
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    await self._write(memoryview(piece))

    async def _write(self, data: memoryview) -> None:
        """Write in slices, and yield even if the socket takes all. Raises: ConnectionError."""
        for at in range(0, len(data), _WRITE_BYTES):
            if at:
                await asyncio.sleep(0)
            if self._writer.is_closing():
                return
            self._writer.write(data[at : at + _WRITE_BYTES])
            await self._writer.drain()

    def _say(self, line: str) -> None:
        """Log a line from the server or from gRPC."""
        _log.debug("flight server pid=%d %s", self.pid, line[:500])
