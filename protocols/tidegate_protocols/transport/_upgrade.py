"""The HTTP request that opens a WebSocket (RFC 6455 section 4.2), without I/O.

The library (``websockets``) reads and answers the request; who may connect and with which
subprotocol is decided here.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, cast, final

from websockets.datastructures import Headers, MultipleValuesError
from websockets.exceptions import InvalidHeader, InvalidOrigin, NegotiationError
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from tidegate.spi import ConfigError

#: The library logs every connection at INFO; here that is DEBUG, and we log refusals ourselves.
_logger = logging.getLogger("tidegate.transport.upgrade")
_logger.setLevel(logging.WARNING)

_HEAD_END: Final = b"\r\n\r\n"
_METHOD: Final = b"GET "
_PORT: Final = re.compile(r"(?:^|[^:]|\]):\d*$")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class WebSocketProfile:
    """A protocol's requirements on WebSocket.

    Attributes:
        subprotocols: supported names, the preferred one first.
        text_allowed: text messages are accepted (and answered) beside binary ones.
        split: splits what one ``Link.send`` writes into the messages to send; None: one message.
    """

    subprotocols: Sequence[str]
    text_allowed: bool
    split: Callable[[bytes], Sequence[bytes]] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of the request.

    Attributes: response: bytes to send; refusal: "" when the WebSocket is open, otherwise why not;
    subprotocol: the one agreed upon, "" for none; rest: bytes that came after the request.
    """

    response: bytes
    refusal: str
    subprotocol: str = ""
    rest: bytes = b""


@final
class Upgrade:
    """Collects one request and answers it.

    Args: profile; origins: whose pages may connect; bytes_max: size of the request.
    """

    def __init__(self, profile: WebSocketProfile, origins: Sequence[str], bytes_max: int) -> None:
        self._profile = profile
        self._origins = origins
        self._bytes_max = bytes_max
        self._data = b""

    @property
    def waiting_bytes(self) -> int:
        """Bytes held of an incomplete request."""
        return len(self._data)

    def receive_data(self, data: bytes) -> Answer | None:
        """Take bytes; None: the request is not complete. Never raises on what a peer sends."""
        self._data = data = self._data + data
        if not data.startswith(_METHOD[: len(data)]):
            return refuse(
                HTTPStatus.BAD_REQUEST, "this is a WebSocket port and expects an HTTP GET request"
            )
        end = data.find(_HEAD_END, 0, self._bytes_max)
        if end < 0:
            if len(data) < self._bytes_max:
                return None
            return refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the request is longer than {self._bytes_max} bytes",
            )
        end += len(_HEAD_END)
        return self._answer(data[:end], data[end:])

    def _answer(self, head: bytes, rest: bytes) -> Answer:
        if head.partition(b"\r\n")[0].endswith(b" HTTP/1.0"):
            # RFC 6455 section 4.1 requires 1.1; versions of the library differ in their answer.
            return refuse(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "WebSocket needs HTTP/1.1")
        server = _Server(self._profile.subprotocols, self._origins)
        server.receive_data(head)
        events = server.events_received()
        if not events:
            reason: BaseException | None = server.handshake_exc
            while reason is not None and reason.__cause__ is not None:
                reason = reason.__cause__
            # The line follows the colon, and may be a malformed credential.
            what = str(reason).partition(":")[0]
            return refuse(HTTPStatus.BAD_REQUEST, f"not a valid HTTP request: {what}")
        response = server.accept(cast(Request, events[0]))
        server.send_response(response)
        data = b"".join(server.data_to_send())
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            return Answer(data, f"{response.status_code} {server.handshake_exc}")
        return Answer(data, "", server.subprotocol or "", rest)


def refuse(status: HTTPStatus, text: str) -> Answer:
    """A refusal in the form of HTTP, so that people who try a browser or curl can read why."""
    return Answer(http_refusal(status, text), f"{status.value} {text}")


def http_refusal(status: HTTPStatus, text: str) -> bytes:
    """A complete HTTP response that ends the connection."""
    body = f"{text}\n".encode()
    return (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\n"
        f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def check_origins(origins: Sequence[str]) -> None:
    """Refuse origins that could never match. RFC 6454 section 6.2. Raises: ConfigError."""
    for origin in origins:
        scheme, separator, host = origin.partition("://")
        if origin in ("*", "null") or (scheme and separator and host and "/" not in host):
            continue
        raise ConfigError(
            f"{origin!r} is not an origin; write scheme, host and port such as "
            "'https://app.example' or 'http://localhost:8080', without a path, or '*'",
            key="websocket_origins",
        )


@final
class _Server(ServerProtocol):
    """The library's handshake with our rules for origin and subprotocol."""

    def __init__(self, subprotocols: Sequence[str], origins: Sequence[str]) -> None:
        super().__init__(logger=_logger)
        self._subprotocols = subprotocols
        self._origins_allowed = origins

    def process_origin(self, headers: Headers) -> Origin | None:
        """RFC 6455 section 10.2. Clients that are not browsers usually send no Origin."""
        host = _single(headers, "Host")
        if host is None:
            raise InvalidHeader("Host")  # RFC 6455 section 4.1: required
        origin = _single(headers, "Origin")
        if origin is None:
            return None
        allowed = self._origins_allowed
        if "*" in allowed or origin.lower() in map(str.lower, allowed):
            return cast(Origin, origin)
        if _is_same(origin, host) and _cannot_be_rebound(host):
            return cast(Origin, origin)
        raise InvalidOrigin(f"{origin} is not listed in websocket_origins")

    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        """RFC 6455 section 4.2.2: none offered means none agreed; only unknown ones are refused.

        A browser that offered some and got none would fail the connection anyway, without a reason.
        """
        if not subprotocols:
            return None
        for name in self._subprotocols:
            if name in subprotocols:
                return cast(Subprotocol, name)
        raise NegotiationError(
            f"no common subprotocol; this listener supports {', '.join(self._subprotocols)}"
        )


def _single(headers: Headers, name: str) -> str | None:
    try:
        return headers.get(name)
    except MultipleValuesError:
        raise InvalidHeader(name, "multiple values") from None


def _is_same(origin: str, host: str) -> bool:
    """Whether a page from *origin* claims to talk to the host and port it came from."""
    scheme, _, authority = origin.lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    return port is not None and authority.removesuffix(port) == host.lower().removesuffix(port)


def _cannot_be_rebound(host: str) -> bool:
    """Whether *host* means this machine whatever a name server says: an IP literal or localhost.

    The owner of any other name can point it to another address from one second to the next, even to one
    in its visitor's network (DNS rebinding): to the browser, the page's own host is then this gateway.
    """
    name = host.lower().rpartition(":")[0] if _PORT.search(host) else host.lower()
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761 section 6.3
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
