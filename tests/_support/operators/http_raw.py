"""HTTP as bytes: a request of one's own making, and its answer."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

IO_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class HttpAnswer:
    """Attributes: headers: by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class HttpClient:
    """Asks a server on loopback; each request has a connection of its own."""

    port: int
    authorization: str = ""

    def bearer(self, token: str) -> HttpClient:
        return HttpClient(self.port, f"Bearer {token}")

    def basic(self, username: str, password: str) -> HttpClient:
        encoded = base64.b64encode(f"{username}:{password}".encode()).decode()
        return HttpClient(self.port, f"Basic {encoded}")

    async def get(self, path: str, **headers: str) -> HttpAnswer:
        return await self.raw(self._head("GET", path, headers) + b"\r\n")

    async def post(self, path: str, body: object = None, **headers: str) -> HttpAnswer:
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(data))} | headers
        return await self.raw(self._head("POST", path, headers) + b"\r\n" + data)

    def _head(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        found = {"host": f"127.0.0.1:{self.port}", "connection": "close"}
        if self.authorization:
            found["authorization"] = self.authorization
        found |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in found.items() if v)]
        return "".join(f"{line}\r\n" for line in lines).encode()

    async def raw(self, request: bytes) -> HttpAnswer:
        """Send *request* and read the answer to the end of the connection, however that ends."""
        async with asyncio.timeout(IO_TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            found = b""
            try:
                writer.write(request)
                while data := await reader.read(1 << 16):
                    found += data
            except ConnectionError:
                pass
            finally:
                writer.close()
        return answer_of(found)


def answer_of(data: bytes) -> HttpAnswer:
    """What *data*, all of a connection, answers; status 0: nothing came."""
    head, _, body = data.partition(b"\r\n\r\n")
    if not head:
        return HttpAnswer(0, {}, b"")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.split(": ", 1) for line in lines)
    return HttpAnswer(int(first.split()[1]), {k.lower(): v for k, v in pairs}, body)
