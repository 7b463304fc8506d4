"""The protocol between the gateway and its admin process: lines of JSON on a socket pair.

The gateway sends :class:`Start` and the listening socket (:func:`hand_over`). The process then asks
any number of questions, many at a time. Each :class:`Ask` gets one :class:`Answer` with its number,
each :class:`AskHealth` one :class:`Health`, each :class:`AskSample` one :class:`Sample`. Answers are
JSON already and are passed on unchanged.
"""

from __future__ import annotations

import socket
import struct
from typing import Final, TypeAlias

import msgspec

from tidegate.spi.clients.operators import Readiness
from tidegate.spi.operate import DestinationSort, Overview


class Start(msgspec.Struct, frozen=True, tag="start"):
    """How to serve.

    Attributes:
        name, version: of the gateway.
        hosts: names that requests may use, besides addresses and localhost.
        certificate, key: paths; "" for no TLS.
        health_is_public, connections_max, requests_max, event_streams_max, request_limit, request_timeout,
            metrics_destinations_max, metrics_destinations_by, metrics_destinations: see the options.
        directory: one that only the gateway's user can access.
    """

    name: str
    version: str
    hosts: tuple[str, ...]
    certificate: str
    key: str
    health_is_public: bool
    connections_max: int
    requests_max: int
    event_streams_max: int
    request_limit: int
    request_timeout: float
    metrics_destinations_max: int
    metrics_destinations_by: DestinationSort
    metrics_destinations: str
    directory: str


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """Reread the certificate."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """Attributes: kind, problem: of an error, "" for none; body: the answer as JSON."""

    id: int
    body: msgspec.Raw = msgspec.Raw(b"null")
    kind: str = ""
    problem: str = ""


class Health(msgspec.Struct, frozen=True, tag="health"):
    """The answer to :class:`AskHealth`."""

    id: int
    readiness: Readiness


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """The answer to :class:`AskSample`. Attributes: overview: None if the gateway does not run."""

    id: int
    overview: Overview | None


class Credentials(msgspec.Struct, frozen=True):
    """A request's credentials: a bearer token, or user name and password."""

    token: str = ""
    username: str = ""
    password: bytes | None = None

    def __repr__(self) -> str:  # must never reach a log
        return f"Credentials({self.username!r})"


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Carry out a request. ``null`` only checks the credentials and the caller's right to ask.

    Attributes: peer: ``host:port`` of the client; request: JSON of a :data:`tidegate.spi.operate.Request`.
    """

    id: int
    peer: str
    credentials: Credentials
    request: msgspec.Raw


class AskHealth(msgspec.Struct, frozen=True, tag="ask-health"):
    """Asks for the gateway's health."""

    id: int


class AskSample(msgspec.Struct, frozen=True, tag="ask-sample"):
    """Asks for a sample of the gateway's traffic."""

    id: int


FromGateway: TypeAlias = Start | Renew | Answer | Health | Sample
FromServer: TypeAlias = Ask | AskHealth | AskSample

#: Kind of the error for missing or invalid credentials.
LOGIN: Final = "LoginError"

#: The length prefix of :class:`Start`, which is read before there is an event loop.
_LENGTH: Final = struct.Struct(">I")

_encode: Final = msgspec.json.Encoder().encode
decode_from_gateway: Final = msgspec.json.Decoder(FromGateway).decode
decode_from_server: Final = msgspec.json.Decoder(FromServer).decode


def line(told: FromGateway | FromServer) -> bytes:
    """*told* as sent over the link."""
    return _encode(told) + b"\n"


def hand_over(link: socket.socket, start: Start, listening: socket.socket) -> None:
    """Send *start* and the socket. Never blocks: it is the first write. Raises: OSError."""
    text = _encode(start)
    socket.send_fds(link, [_LENGTH.pack(len(text)) + text], [listening.fileno()])


def handed_over(link: socket.socket) -> tuple[Start, socket.socket] | None:
    """Receive what :func:`hand_over` sends; blocks. None: the gateway is gone."""
    header, numbers, _, _ = socket.recv_fds(link, _LENGTH.size, 1)
    header += _exactly(link, _LENGTH.size - len(header))
    text = _exactly(link, _LENGTH.unpack(header)[0]) if len(header) == _LENGTH.size else b""
    if not text:
        return None
    start = decode_from_gateway(text)
    assert isinstance(start, Start), start
    return start, socket.socket(fileno=numbers[0])


def _exactly(link: socket.socket, size: int) -> bytes:
    """Exactly *size* bytes; b"" when the stream ends early."""
    data = bytearray()
    while len(data) < size:
        more = link.recv(size - len(data))
        if not more:
            return b""
        data += more
    return bytes(data)
