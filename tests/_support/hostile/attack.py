"""A gateway in a process of its own that is attacked, what memory it takes, and plain sockets that attack it.

Everything is bounded: an attacker sends so many bytes and no more, and gives up when the gateway takes
nothing for ``PATIENCE_S``; that is what a defence looks like, so a slow machine never fails a test for it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Self

from gateway_process import GatewayProcess

#: A gateway that takes no byte for so long has stopped reading from this attacker.
PATIENCE_S: Final = 1.5
#: Bounds a hanging test; nothing waits for it.
ANSWER_S: Final = 60.0

MB: Final = 1 << 20


class Victim(GatewayProcess):
    """A gateway under attack. Arguments: see :class:`GatewayProcess`.

    Args: patch: ``module.NAME = value``: switches off a defence that is no option.
    Attributes: base_bytes: its memory when it had started, or at the last :meth:`mark`.
    """

    base_bytes = 0

    def __init__(self, directory: Path, *, patch: str = "", **options: str) -> None:
        super().__init__(directory, **options)
        self.patch = patch

    def command(self) -> list[str]:
        command = super().command()
        if not self.patch:
            return command
        module = self.patch.partition(" = ")[0].rpartition(".")[0]
        code = (
            f"import sys, {module}; {self.patch}; from tidegate.cli import main;"
            " sys.exit(main(sys.argv[1:]))"
        )
        return [command[0], "-c", code, *command[3:]]

    def start(self) -> Self:
        super().start()
        self.mark()
        return self

    def mark(self) -> None:
        """Measure from here on: the growth and its peak."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")  # resets VmHWM, see proc(5)
        self.base_bytes = self.rss_bytes

    @property
    def rss_bytes(self) -> int:
        """Memory of the process now."""
        return self._status("VmRSS")

    @property
    def growth_bytes(self) -> int:
        """The most that it ever was above the mark."""
        return self._status("VmHWM") - self.base_bytes

    def __enter__(self) -> Self:
        return self.start()

    def _status(self, key: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"the gateway is gone:\n{self.tail()}")

    def attacker(self, data: bytes = b"", *, port: int = 0) -> Attacker:
        """A connection, by default to the STOMP listener, that begins with *data*."""
        return Attacker(port or self.stomp_port, data)


class Attacker:
    """A plain socket to the gateway."""

    def __init__(self, port: int, data: bytes = b"") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self.heard = b""
        if data:
            self.socket.sendall(data)

    def flood(self, pieces: Iterable[bytes], patience_s: float = PATIENCE_S) -> int:
        """Send *pieces* without ever reading.

        Returns: bytes that were taken, until the gateway took no more or closed the connection.
        """
        self.socket.settimeout(patience_s)
        sent = 0
        try:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    count = self.socket.send(rest)
                    sent += count
                    rest = rest[count:]
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self.socket.settimeout(ANSWER_S)
        return sent

    def until(self, wanted: bytes) -> bytes:
        """Read until *wanted* has come. Returns: all that was heard since the last call."""
        while wanted not in self.heard:
            data = self.socket.recv(1 << 16)
            assert data, f"closed before {wanted!r} came, after {self.heard[-2000:]!r}"
            self.heard += data
        heard, self.heard = self.heard, b""
        return heard

    def rest(self) -> bytes:
        """Read until the gateway closes. Returns: all that was heard since the last call."""
        try:
            while data := self.socket.recv(1 << 16):
                self.heard += data
        except ConnectionError:
            pass
        heard, self.heard = self.heard, b""
        return heard

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def frame(command: str, body: bytes = b"", **headers: object) -> bytes:
    """A STOMP frame; ``_`` in the names of *headers* stands for ``-``."""
    return frame_of(command, {key.replace("_", "-"): value for key, value in headers.items()}, body)


def frame_of(command: str, headers: Mapping[str, object], body: bytes = b"") -> bytes:
    """A STOMP frame."""
    lines = "".join(f"{key}:{value}\n" for key, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


#: A STOMP client without a name.
CONNECT: Final = frame("CONNECT", accept_version="1.2", host="h")


def connected(victim: Victim, **headers: str) -> Attacker:
    """A STOMP attacker that was let in. Args: headers: more of its CONNECT."""
    first = frame_of("CONNECT", {"accept-version": "1.2", "host": "h"} | headers)
    attacker = victim.attacker(first)
    attacker.until(b"\0")
    return attacker
