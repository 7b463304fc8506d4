"""Runs a bridge's process as a child: starts it, talks to it, and makes sure that it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from tidegate.spi.machine.children import NICENESS, follow_lines, kill_group, start_child
from tidegate_bridge import _protocol as protocol

_log = logging.getLogger("tidegate.bridge")

#: ``-P``: a file named ``stomp.py`` in the working directory must not replace the library.
COMMAND: Final = (sys.executable, "-P", "-m", "tidegate_bridge.remote.main")
#: Frames handled before yielding to others.
_AT_ONCE: Final = 32


class BridgeProcess:
    """A running process. Made by :meth:`start`; used on one event loop."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        heard: Callable[[protocol.FromProcess], None],
    ) -> None:
        self.pid = process.pid
        self._name = name
        self._process = process
        self._reader = reader
        self._writer = writer
        self._heard = heard
        self._following = (
            asyncio.create_task(follow_lines(process.stderr, self._say)),
            asyncio.create_task(self._follow()),
        )

    @classmethod
    async def start(
        cls, start: Callable[[], protocol.Start], heard: Callable[[protocol.FromProcess], None]
    ) -> BridgeProcess:
        """Start it; *heard* gets its frames. Args: start: called once it runs. Raises: OSError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                number = theirs.fileno()
                process = await start_child(
                    [*COMMAND, str(number)], pass_fds=(number,), niceness=NICENESS
                )
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        said = start()
        writer.write(protocol.frame(said))
        return cls(said.name, process, reader, writer, heard)

    def tell(self, told: protocol.FromGateway) -> None:
        """Send a frame. Never waits: the windows limit what is in flight."""
        if not self._writer.is_closing():
            self._writer.write(protocol.frame(told))

    async def drain(self) -> None:
        """Wait until it has read most of what was sent. Raises nothing."""
        with contextlib.suppress(OSError):
            await self._writer.drain()

    @property
    def has_unsent(self) -> bool:
        return self._writer.transport.get_write_buffer_size() > 0

    async def wait(self) -> int:
        """Wait until it has ended; returns its exit code."""
        return await self._process.wait()

    async def end(self) -> None:
        """Kill it: what it holds is unconfirmed and stays at its source. Idempotent."""
        kill_group(self._process)
        await self._process.wait()
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _follow(self) -> None:
        taken = 0
        try:
            while True:
                size = protocol.length_of(await self._reader.readexactly(protocol.LENGTH_BYTES))
                self._heard(protocol.decode_from_process(await self._reader.readexactly(size)))
                taken += 1
                if not taken % _AT_ONCE:
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, OSError):
            pass
        except msgspec.DecodeError as error:
            _log.error("bridge=%s pid=%d says what is no frame: %s", self._name, self.pid, error)
        kill_group(self._process)  # the caller of wait starts another one

    def _say(self, line: str) -> None:
        """Log what it prints when something is wrong with it: never a message's content."""
        _log.warning("bridge=%s pid=%d %s", self._name, self.pid, line[:500])
