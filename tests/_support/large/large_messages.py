"""STOMP clients for large messages: they make bodies up as they send, and check them as they read.

Nothing here holds a body, so a test can send one that is larger than its own memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

PIECE = 1 << 18
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


def pieces(seed: int, size: int) -> Iterator[bytes]:
    """A body of *size* bytes, the same for the same *seed*; every piece differs."""
    block = hashlib.shake_128(b"%d" % seed).digest(PIECE)
    done = 0
    while done < size:
        head = b"%016d" % done
        piece = head + block[len(head) :]
        yield piece[: size - done]
        done += len(piece)


def digest_of(seed: int, size: int) -> str:
    digest = hashlib.blake2b()
    for piece in pieces(seed, size):
        digest.update(piece)
    return digest.hexdigest()


def open_pieces(size: int) -> Iterator[bytes]:
    """A body of *size* bytes without a NUL; every piece differs."""
    block = bytes(range(1, 256)) * (PIECE // 255)
    done = 0
    while done < size:
        piece = b"%016d" % done + block
        yield piece[: size - done]
        done += len(piece)


def open_digest_of(size: int) -> str:
    digest = hashlib.blake2b()
    for piece in open_pieces(size):
        digest.update(piece)
    return digest.hexdigest()


@dataclass
class Arrived:
    """One frame. *digest*: of its body, *size* bytes."""

    command: str
    headers: dict[str, str]
    size: int
    digest: str
    body: bytes = field(repr=False)  # of small ones


class LargeClient:
    """A STOMP 1.2 client over TCP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int, **headers: str) -> LargeClient:
        client = cls(*await asyncio.open_connection("127.0.0.1", port, limit=PIECE))
        client.frame("CONNECT", accept_version="1.2", **headers)
        arrived = await client.receive()
        assert arrived.command == "CONNECTED", arrived
        return client

    def frame(self, command: str, **headers: str) -> None:
        self.frame_head(command, **headers)
        self.writer.write(b"\0")

    def frame_head(self, command: str, **headers: str) -> None:
        lines = "".join(f"{n.replace('_', '-')}:{v}\n" for n, v in headers.items())
        self.writer.write(f"{command}\n{lines}\n".encode())

    def begin(self, size: int, **headers: str) -> None:
        self.frame_head("SEND", content_length=str(size), **headers)

    async def send(self, seed: int, size: int, **headers: str) -> None:
        """A SEND with a body of *size* bytes."""
        self.begin(size, **headers)
        for piece in pieces(seed, size):
            self.writer.write(piece)
            await self.writer.drain()
        self.writer.write(b"\0")
        await self.writer.drain()

    async def send_open(self, size: int, **headers: str) -> None:
        """A SEND without content-length, with a body of *size* bytes: :func:`open_pieces`."""
        self.frame_head("SEND", **headers)
        for piece in open_pieces(size):
            self.writer.write(piece)
            await self.writer.drain()
        self.writer.write(b"\0")
        await self.writer.drain()

    async def receive(self) -> Arrived:
        """The next frame. Raises: asyncio.IncompleteReadError when the connection ends in it."""
        while (first := await self.reader.readexactly(1)) == b"\n":
            pass
        head = (first + await self.reader.readuntil(b"\n\n"))[:-2].decode()
        command, *lines = head.split("\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers.setdefault(name, value)
        digest = hashlib.blake2b()
        left = size = int(headers.get("content-length", "0"))
        body = b""
        while left:
            data = await self.reader.read(min(left, PIECE))
            if not data:
                raise asyncio.IncompleteReadError(b"", left)
            digest.update(data)
            left -= len(data)
            if size <= PIECE:
                body += data
        assert await self.reader.readexactly(1) == b"\0"
        return Arrived(command, headers, size, digest.hexdigest(), body)

    async def receipt(self, wanted: str) -> None:
        arrived = await self.receive()
        assert (arrived.command, arrived.headers.get("receipt-id")) == ("RECEIPT", wanted), arrived

    def close(self) -> None:
        self.writer.close()


@contextlib.asynccontextmanager
async def connected(port: int, **headers: str) -> AsyncIterator[LargeClient]:
    client = await LargeClient.connect(port, **headers)
    try:
        yield client
    finally:
        client.close()
        with contextlib.suppress(OSError):
            await client.writer.wait_closed()


def resident_peak(pid: int) -> int:
    """The most memory that a process ever had resident, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * KB
    raise AssertionError("/proc has no VmHWM")


def body_files(data_directory: Path) -> list[Path]:
    """The files of large bodies of a gateway's journal."""
    return sorted((data_directory / "journal" / "large-messages").glob("*.body"))


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Without the cyclic collector: a file must not wait for it, on an idle gateway it runs late."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
