"""The operator's entrance: a socket in the data directory that speaks the operator's contract.

``operator.sock`` is for the user that the gateway runs as, and root: mode 0600, in a directory of
mode 0700. A request is one line of JSON, ``{"type": "list-destinations", "limit": 10}``, and so is its
answer: ``{"answer": {"type": …}}`` or ``{"error": {"kind": "RequestError", "problem": …}}``. Fields and
types: :mod:`tidegate.spi.operate`. A connection may send any number of requests, one after another.
A request with bodies of messages may come as MessagePack: a byte 0, its length in four bytes (big-endian), and
the same fields; its answer is a line of JSON, too.

To access control and audit the caller is ``local:USER`` (of the process at the other end, says the kernel).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tidegate.plugin_exit import FAILURES
from tidegate.spi import (
    AccessError,
    GatewayError,
    Identity,
    RequestError,
    StoreUnavailableError,
)
from tidegate.spi.clients.operators import local_operator
from tidegate.spi.commands import ClientError
from tidegate.spi.operate import WORK_S, Answer, Operator, Request, perform
from tidegate.spi.printable import printable
from tidegate.spi.private_files import FILE_MODE
from tidegate.spi.replay import PublishReplayed

if TYPE_CHECKING:
    from types import TracebackType

_log = logging.getLogger("tidegate.operator")

SOCKET_NAME: Final = "operator.sock"

#: A request: names have up to 64 KiB, and so has a selector.
REQUEST_BYTES_MAX: Final = 256 << 10
#: A request as MessagePack: the largest body that is not streamed, and more than a step of a replay.
FRAME_BYTES_MAX: Final = 128 << 20
#: An answer: a page of rows with long names.
ANSWER_BYTES_MAX: Final = 256 << 20
#: Connections at a time. Each costs at most two descriptors and a request's memory.
CONNECTIONS_MAX: Final = 16
#: How long a client may be silent, or take to read an answer.
SILENCE_S: Final = 60.0
#: How long a request may take in all: its work, and waiting for the store before and after it.
REQUEST_S: Final = WORK_S + 50.0

PROTOCOL: Final = "operator"


class Problem(msgspec.Struct, frozen=True):
    """Why there is no answer. Attributes: kind (the error's class), problem (its text)."""

    kind: str
    problem: str


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to one request: one of the two."""

    answer: Answer | None = None
    error: Problem | None = None


_TOO_LONG: Final = Reply(
    error=Problem(
        "RequestError",
        f"a request must not be longer than {REQUEST_BYTES_MAX} bytes, or "
        f"{FRAME_BYTES_MAX} with bodies",
    )
)
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Request).decode
_decode_frame: Final = msgspec.msgpack.Decoder(Request).decode
_encode_frame: Final = msgspec.msgpack.Encoder().encode
_FRAME: Final = struct.Struct(">xI")
_FRAME_BEGINS: Final = b"\0"


class OperatorSocket:
    """Serves *operator* on ``operator.sock`` in *directory*; the store's lock says that it is ours."""

    def __init__(self, operator: Operator, directory: Path) -> None:
        self._operator = operator
        self._directory = directory
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Raises: OSError."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with reachable(self._directory) as directory:
                path = directory / SOCKET_NAME
                path.unlink(missing_ok=True)  # of a gateway that was killed
                listening.bind(str(path))
                path.chmod(FILE_MODE)
            self._server = await asyncio.start_unix_server(
                self._connected, sock=listening, limit=REQUEST_BYTES_MAX
            )
        except BaseException:
            listening.close()
            raise

    async def stop(self) -> None:
        """Accept no more connections and end the open ones. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        with contextlib.suppress(OSError):
            (self._directory / SOCKET_NAME).unlink(missing_ok=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # it was accepted just before the end
            writer.close()
            return
        if len(self._serving) >= CONNECTIONS_MAX:
            reply = Reply(
                error=Problem(
                    "FlowControlError", "too many operators are connected; try again later"
                )
            )
            writer.write(_encode(reply) + b"\n")
            writer.close()
            return
        # Our own task: those of streams cannot be cancelled without a traceback in the log.
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="operator")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        # Not in a `finally`: a task that is cancelled before its first step does nothing at all.
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            who = _who(writer.get_extra_info("socket"))
            while True:
                async with asyncio.timeout(SILENCE_S):
                    data, decode = await _read(reader)
                if decode is None:
                    break
                writer.write(_encode(await self._reply(who, data, decode)) + b"\n")
                del data
                async with asyncio.timeout(SILENCE_S):
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass
        except ValueError:  # longer than the limit
            writer.write(_encode(_TOO_LONG) + b"\n")
        except FAILURES:
            _log.exception("serving an operator failed")

    async def _reply(self, who: Identity, data: bytes, decode: Callable[[bytes], Request]) -> Reply:
        try:
            return Reply(await perform_in_time(self._operator, who, decode(data)))
        except msgspec.DecodeError as error:
            return Reply(error=Problem("RequestError", f"not a valid request: {error}"))
        except GatewayError as error:
            return Reply(error=Problem(type(error).__name__, str(error)))


async def perform_in_time(operator: Operator, who: Identity, request: Request) -> Answer:
    """Carry out *request* within :data:`REQUEST_S`; unforeseen errors are logged.

    Raises: GatewayError, StoreUnavailableError when the store does not answer, and nothing else except
        on cancellation.
    """
    try:
        async with asyncio.timeout(REQUEST_S):
            return await perform(operator, who, request)
    except GatewayError:
        raise
    except TimeoutError:
        text = f"the store did not answer within {REQUEST_S:.0f} s; see the gateway's log"
        raise StoreUnavailableError(text) from None
    except FAILURES as error:
        _log.exception("an operator's request failed")
        raise GatewayError(f"unexpected {type(error).__name__}") from error


async def _read(
    reader: asyncio.StreamReader,
) -> tuple[bytes, Callable[[bytes], Request] | None]:
    """The next request and its decoder; None when there are no more.

    Raises: ValueError: it is too long; asyncio.IncompleteReadError.
    """
    first = await reader.read(1)
    if first == _FRAME_BEGINS:
        (size,) = _FRAME.unpack(first + await reader.readexactly(_FRAME.size - 1))
        if size > FRAME_BYTES_MAX:
            raise ValueError("the request is too long")
        return await reader.readexactly(size), _decode_frame
    line = first + await reader.readline() if first not in (b"", b"\n") else first
    return line, _decode if line.endswith(b"\n") else None


def _who(connected: socket.socket) -> Identity:
    uid = os.getuid()  # nobody else except root can connect
    if hasattr(socket, "SO_PEERCRED"):
        size = struct.calcsize("3i")
        found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        uid = struct.unpack("3i", found)[1]
    return Identity(local_operator(uid), frozenset(), "", "", PROTOCOL)


@contextlib.contextmanager
def reachable(directory: Path) -> Generator[Path]:
    """*directory* under a name short enough for the path of a socket (some 100 bytes)."""
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        short = Path(f"/proc/self/fd/{number}")
        yield short if short.exists() else directory
    finally:
        os.close(number)


class OperatorClient:
    """Asks a running gateway; blocks. Use it as a context.

    Args: directory: the gateway's data directory. Raises: OSError when nobody listens there.
    """

    def __init__(self, directory: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(REQUEST_S + SILENCE_S)
        try:
            with reachable(directory) as short:
                self._socket.connect(str(short / SOCKET_NAME))
        except BaseException:
            self._socket.close()
            raise
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> OperatorClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, request: Request) -> Reply:
        """Raises: OSError, EOFError when the gateway goes away; msgspec.DecodeError."""
        if isinstance(request, PublishReplayed):
            frame = _encode_frame(request)
            if len(frame) > FRAME_BYTES_MAX:
                return _TOO_LONG
            data = _FRAME.pack(len(frame)) + frame
        else:
            data = _encode(request) + b"\n"
            if len(data) > REQUEST_BYTES_MAX:
                return _TOO_LONG
        self._socket.sendall(data)
        line = self._file.readline(ANSWER_BYTES_MAX)
        if not line.endswith(b"\n"):
            raise EOFError("the gateway closed the connection")
        return msgspec.json.decode(line, type=Reply)

    def answer(self, request: Request) -> Answer:
        """The answer that :meth:`ask` gets.

        Raises: RequestError, AccessError; ClientError for all else, including when the gateway goes away.
        """
        try:
            reply = self.ask(request)
        except (OSError, EOFError) as error:
            raise ClientError(f"lost the connection to the gateway: {error}") from error
        except msgspec.DecodeError as error:
            raise ClientError(
                f"the gateway and this program are of different versions: {error}"
            ) from error
        if reply.error is not None:
            problem = printable(reply.error.problem)
            if reply.error.kind == "RequestError":
                raise RequestError(problem)
            raise (
                AccessError(problem) if reply.error.kind == "AccessError" else ClientError(problem)
            )
        if reply.answer is None:
            raise ClientError(
                "the gateway and this program are of different versions: the answer was empty"
            )
        return reply.answer
