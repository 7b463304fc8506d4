"""Building in a separate process: the gateway's loop shares neither its interpreter nor its lock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import os
import socket
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from tidegate.spi import EncodedRows
from tidegate.spi.machine.children import NICENESS, follow_lines, kill_group, start_child
from tidegate_sink_spark.staging.building import Added, Bad, BuilderGoneError
from tidegate_sink_spark.staging.dead import DeadLetter
from tidegate_sink_spark.staging.files import StagedFile
from tidegate_sink_spark.staging.further import FurtherSetup

log = logging.getLogger(__name__)

#: ``-P``: a file named ``json.py`` in the working directory must not replace Python's.
COMMAND: Final = (sys.executable, "-P", "-m", "tidegate_sink_spark.staging.worker")
LENGTH_BYTES: Final = 8
#: As a flag in a length: that many bytes are in the shared memory (Linux), and none follow.
IN_ROOM: Final = 1 << 63
#: Size of that memory, of which only what was ever used is taken: a page of the log and more. Anything larger goes over
#: the socket, in pieces that fit its buffer, and the gateway's loop has to come back for each.
ROOM_BYTES: Final = 8 << 20
_ERROR_CHARACTERS: Final = 2_000
_END_TIMEOUT: Final = 5.0


class Setup(msgspec.Struct, frozen=True):
    """The first frame, from the gateway: what to build, and where.

    Attributes: umask: for files that others may read; None: they are only this user's.
    """

    directory: str
    gateway_name: str
    epoch: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    further: FurtherSetup = FurtherSetup()
    is_shared: bool = False
    umask: int | None = None


class Add(msgspec.Struct, frozen=True, tag=True):
    """Answered with :class:`Added`."""

    segment: int
    runs: Sequence[EncodedRows]


class Build(msgspec.Struct, frozen=True, tag=True):
    """Answered with :class:`Built`."""

    segment: int


class Seal(msgspec.Struct, frozen=True, tag=True):
    """Answered with :class:`Sealed`, or :class:`Refused`."""

    segment: int
    lo: int
    hi: int
    taken: int
    letters: list[DeadLetter]


class Built(msgspec.Struct, frozen=True, tag=True):
    bad: tuple[Bad, ...]


class Sealed(msgspec.Struct, frozen=True, tag=True):
    name: str
    size_bytes: int
    rows: int
    dead: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The disk refused. Attributes: errno, text: of the OSError."""

    errno: int
    text: str


Question: TypeAlias = Add | Build | Seal
Answer: TypeAlias = Added | Built | Sealed | Refused

_encode: Final = msgspec.msgpack.Encoder().encode
decode_setup: Final = msgspec.msgpack.Decoder(Setup).decode
decode_question: Final = msgspec.msgpack.Decoder(Question).decode
_decode_answer: Final = msgspec.msgpack.Decoder(Answer).decode


def frame(value: msgspec.Struct) -> bytes:
    """*value* as sent over the socket: eight bytes of length (little-endian), and MessagePack."""
    data = _encode(value)
    return _length(len(data)) + data


def _length(number: int) -> bytes:
    return number.to_bytes(LENGTH_BYTES, "little")


def _make_room() -> tuple[int, mmap.mmap | None]:
    """Memory to share with another process: its descriptor and itself; -1 and None where there is none.

    Raises: OSError.
    """
    if sys.platform != "linux":
        return -1, None
    fd = os.memfd_create("tidegate-staging")
    try:
        os.ftruncate(fd, ROOM_BYTES)
        return fd, mmap.mmap(fd, ROOM_BYTES)
    except BaseException:
        os.close(fd)
        raise


class _Child:
    """One process, and the answers it owes."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        room: mmap.mmap | None,
    ) -> None:
        self.process = process
        self.writer = writer
        self._room = room
        self.owed: deque[asyncio.Future[Answer]] = deque()
        self._last_line = ""
        self._stderr = asyncio.create_task(follow_lines(process.stderr, self._take_line))
        self.following = asyncio.create_task(self._follow(reader))

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        """Pass on its answers until it ends."""
        problem = "the process that stages rows ended"
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
                answer = _decode_answer(await reader.readexactly(size))
                future = self.owed.popleft()
                if not future.done():
                    future.set_result(answer)
        except (EOFError, OSError, msgspec.DecodeError) as exc:
            if isinstance(exc, msgspec.DecodeError):
                problem = f"the process that stages rows answers what is no answer: {exc}"
        finally:
            said = await self._said()
            for future in self.owed:
                if not future.done():
                    future.set_exception(BuilderGoneError(f"{problem}{said}"))
            self.owed.clear()
            self.writer.close()
            self._room = None

    def ask(self, question: Question) -> asyncio.Future[Answer]:
        """Send *question*; returns its future answer."""
        data = _encode(question)
        # (While an answer is owed, the shared memory may not have been read.)
        if self._room is None or self.owed or len(data) > ROOM_BYTES:
            self.writer.write(_length(len(data)) + data)
        else:
            self._room[: len(data)] = data
            self.writer.write(_length(len(data) | IN_ROOM))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.owed.append(future)
        return future

    async def _said(self) -> str:
        """Its exit code and last line; it gets a moment to print that, and to end."""
        await asyncio.wait([self._stderr], timeout=_END_TIMEOUT)
        kill_group(self.process)
        self._stderr.cancel()
        code = await self.process.wait()
        return f" (code {code}{f': {self._last_line}' if self._last_line else ''})"

    def _take_line(self, line: str) -> None:
        self._last_line = line.strip()[-_ERROR_CHARACTERS:] or self._last_line


class ProcessBuilder:
    """A :class:`Builder` in a child process, started when there is something to add.

    It ends with the gateway, however that ends, and renames no file afterwards.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._child: _Child | None = None
        self._segment = 0  # the last one that the last process was asked about

    @property
    def pid(self) -> int:
        """The running process's, 0 for none."""
        child = self._child
        return child.process.pid if child is not None and not child.following.done() else 0

    async def add(self, segment: int, runs: Sequence[EncodedRows]) -> Added:
        answer = await self._ask(Add(segment, runs))
        assert isinstance(answer, Added)
        return answer

    async def build(self, segment: int) -> tuple[Bad, ...]:
        answer = await self._ask(Build(segment))
        assert isinstance(answer, Built)
        return answer.bad

    async def seal(
        self, segment: int, lo: int, hi: int, taken: int, letters: Sequence[DeadLetter]
    ) -> StagedFile:
        answer = await self._ask(Seal(segment, lo, hi, taken, list(letters)))
        if isinstance(answer, Refused):
            raise OSError(answer.errno, answer.text)
        assert isinstance(answer, Sealed)
        path = Path(self._setup.directory) / answer.name
        return StagedFile(lo, hi, path, answer.size_bytes, answer.rows, answer.dead)

    async def settled(self) -> None:
        while self._child is not None and self._child.owed:
            await asyncio.wait([self._child.owed[-1]])

    async def rest(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.writer.close()  # it ends with the end of its questions
            await asyncio.gather(child.following, return_exceptions=True)

    async def close(self) -> None:
        await self.settled()
        await self.rest()

    async def _ask(self, question: Question) -> Answer:
        """Raises: BuilderGoneError."""
        child = self._child
        if child is None or child.following.done():
            if question.segment == self._segment:
                # Nobody was waiting when it died; a new one would know nothing about that segment.
                self._segment = 0
                raise BuilderGoneError("the process that stages rows has ended")
            child = self._child = await self._start()
        self._segment = question.segment
        future = child.ask(question)
        try:
            with contextlib.suppress(ConnectionError):  # the end of the answers reports its end
                await child.writer.drain()
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(_retrieved)
            raise

    async def _start(self) -> _Child:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                shared, room = _make_room()
                try:
                    numbers = [fd for fd in (theirs.fileno(), shared) if fd >= 0]
                    process = await start_child(
                        [*COMMAND, *map(str, numbers)], pass_fds=numbers, niceness=NICENESS
                    )
                finally:
                    if room is not None:
                        os.close(shared)
            reader, writer = await asyncio.open_connection(sock=ours)
        except OSError as exc:
            ours.close()
            raise BuilderGoneError(f"no process can be started to stage rows: {exc}") from exc
        log.debug("staging process started pid=%d", process.pid)
        child = _Child(process, reader, writer, room)
        writer.write(frame(self._setup))
        return child


def _retrieved(future: asyncio.Future[Answer]) -> None:
    """Nobody waits for the answer any more."""
    if not future.cancelled():
        future.exception()
