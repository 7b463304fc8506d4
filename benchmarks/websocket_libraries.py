"""CPU of a WebSocket server for each message that it receives, library by library.

Answers one question, that of docs/decisions/0005-websocket-library.md: who decodes the frames? A
process of its own sends masked binary messages over loopback as fast as it can; the server hands
each payload to a handler that counts bytes, which is the shape of our transports. Needs libraries
that the gateway does not:

    .uv-env/bin/uv run --with wsproto --with picows python benchmarks/websocket_libraries.py
"""

import argparse
import asyncio
import importlib
import importlib.metadata
import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import uvloop
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from tidegate.spi import ListenerConfig
from tidegate_protocols.transport import TransportOptions, WebSocketProfile, make_listener

REQUEST = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: v12.stomp\r\n\r\n"
)
WAIT_S = 60.0


class Counter:
    """The handler: counts bytes; the future gets the CPU seconds when all have come."""

    def __init__(self, expected: int) -> None:
        self.left = expected
        self.started = 0.0
        self.cpu: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def opened(self, link: Any) -> None: ...
    def input_ended(self) -> bool:
        return False

    def closed(self, error: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

    def data_received(self, data: bytes) -> None:
        self.started = self.started or time.process_time()
        self.left -= len(data)
        if self.left <= 0 and not self.cpu.done():
            self.cpu.set_result(time.process_time() - self.started)


class Websockets(asyncio.Protocol):
    """``websockets``' sans-I/O server protocol for everything."""

    def __init__(self, counter: Counter) -> None:
        self.counter, self.is_open = counter, False
        self.server = ServerProtocol(select_subprotocol=lambda _, names: names[0])

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.server.receive_data(data)
        for event in self.server.events_received():
            if not self.is_open:
                self.server.send_response(self.server.accept(event))  # type: ignore[arg-type]  # a request
                self.is_open = True
            elif event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):  # type: ignore[union-attr]
                self.counter.data_received(event.data)  # type: ignore[union-attr]  # a frame
        for out in self.server.data_to_send():
            self.transport.write(out)


class Wsproto(asyncio.Protocol):
    """``wsproto`` for everything."""

    def __init__(self, counter: Counter) -> None:
        wsproto: Any = importlib.import_module("wsproto")
        self.events: Any = importlib.import_module("wsproto.events")
        self.counter = counter
        self.server = wsproto.WSConnection(wsproto.ConnectionType.SERVER)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.server.receive_data(data)
        for event in self.server.events():
            if isinstance(event, self.events.Request):
                answer = self.events.AcceptConnection(subprotocol="v12.stomp")
                self.transport.write(self.server.send(answer))
            elif isinstance(event, self.events.Message):
                self.counter.data_received(event.data)


async def protocol_server(make: Callable[[], asyncio.Protocol]) -> int:
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    return int(server.sockets[0].getsockname()[1])


async def websockets_server(counter: Counter) -> int:
    return await protocol_server(lambda: Websockets(counter))


async def wsproto_server(counter: Counter) -> int:
    return await protocol_server(lambda: Wsproto(counter))


async def picows_server(counter: Counter) -> int:
    picows: Any = importlib.import_module("picows")

    class Listener(picows.WSListener):
        def on_ws_frame(self, transport: Any, frame: Any) -> None:
            counter.data_received(frame.get_payload_as_bytes())

    server = await picows.ws_create_server(lambda _: Listener(), "127.0.0.1", 0)
    return int(server.sockets[0].getsockname()[1])


async def our_server(counter: Counter) -> int:
    options = TransportOptions()
    config = ListenerConfig("stomp", "ws", "127.0.0.1", 0, True, options)
    profile = WebSocketProfile(("v12.stomp",), text_allowed=True)
    listener = make_listener(config, options, lambda: counter, profile=profile, connections_max=9)
    return (await listener.start())[1]


CANDIDATES = {
    "websockets": websockets_server,
    "wsproto": wsproto_server,
    "picows": picows_server,
    "tidegate": our_server,
}


def send(port: int, size: int, count: int) -> None:
    """The client process."""
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(REQUEST)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += client.recv(4096)
    several = max(1, 65_536 // size)
    frames = Frame(Opcode.BINARY, b"S" * size).serialize(mask=True) * several
    for _ in range(count // several):
        client.sendall(frames)
    client.sendall(Frame(Opcode.BINARY, b"S" * size).serialize(mask=True) * (count % several))
    client.recv(1)  # until the server goes


async def measure(name: str, size: int, count: int) -> float:
    """CPU microseconds a message."""
    counter = Counter(size * count)
    port = await CANDIDATES[name](counter)
    client = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--send", str(port), str(size), str(count)
    )
    try:
        return await asyncio.wait_for(counter.cpu, WAIT_S) / count * 1e6
    finally:
        client.kill()
        await client.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--send", nargs=3, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.send:
        send(*arguments.send)
        return
    versions = []
    for name in ("websockets", "wsproto", "picows", "uvloop"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            CANDIDATES.pop(name, None)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {', '.join(versions)}")
    for size, count in ((300, 40_000), (16_384, 2_000)):
        for name in CANDIDATES:
            runs = sorted(uvloop.run(measure(name, size, count)) for _ in range(arguments.runs))
            print(f"{size:6} B  {name:12} {runs[len(runs) // 2]:7.2f} us a message (median)")


if __name__ == "__main__":
    main()
