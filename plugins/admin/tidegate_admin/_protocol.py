"""What the gateway and its admin process say to each other: lines of JSON on a socket pair.

The gateway begins with :class:`Start` and the socket that listens (:func:`hand_over`). The process then asks, as often and as much at once as it likes, and
each :class:`Ask` has one :class:`Answer` with its number, each :class:`AskHealth` one :class:`Health`, each :class:`AskSample` one :class:`Sample`.
What is answered is JSON already and goes through as it is.
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
        hosts: that requests may name, beside addresses and localhost.
        certificate, key: paths; "" for no TLS.
        health_is_public, connections_max, requests_max, event_streams_max, request_limit, request_timeout,
            metrics_destinations_max, metrics_destinations_by, metrics_destinations: see the options.
        directory: path of one that is the gateway's user's alone.
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
    """Read the certificate anew."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """Attributes: kind, problem: of an error, "" when there is none; body: JSON of the answer."""

    id: int
    body: msgspec.Raw = msgspec.Raw(b"null")
    kind: str = ""
    problem: str = ""


class Health(msgspec.Struct, frozen=True, tag="health"):
    """The answer to :class:`AskHealth`."""

    id: int
    readiness: Readiness


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """The answer to :class:`AskSample`. Attributes: overview: None: the gateway does not run."""

    id: int
    overview: Overview | None


class Credentials(msgspec.Struct, frozen=True):
    """What a request showed: a bearer's token, or user name and password."""

    token: str = ""
    username: str = ""
    password: bytes | None = None

    def __repr__(self) -> str:  # must never reach a log
        return f"Credentials({self.username!r})"


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Carry out a request; ``null``: only say whether the credentials count, and who they are of may ask.

    Attributes: peer: ``host:port`` of the client; request: JSON of a :data:`tidegate.spi.operate.Request`.
    """

    id: int
    peer: str
    credentials: Credentials
    request: msgspec.Raw


class AskHealth(msgspec.Struct, frozen=True, tag="ask-health"):
    """How is it?"""

    id: int


class AskSample(msgspec.Struct, frozen=True, tag="ask-sample"):
    """How much goes through it?"""

    id: int


FromGateway: TypeAlias = Start | Renew | Answer | Health | Sample
FromServer: TypeAlias = Ask | AskHealth | AskSample

#: Kind of the error of somebody whose credentials do not count, or who showed none.
LOGIN: Final = "LoginError"

#: In front of :class:`Start`, which is read before there is an event loop.
_LENGTH: Final = struct.Struct(">I")

_encode: Final = msgspec.json.Encoder().encode
decode_from_gateway: Final = msgspec.json.Decoder(FromGateway).decode
decode_from_server: Final = msgspec.json.Decoder(FromServer).decode


def line(told: FromGateway | FromServer) -> bytes:
    """*told* as it travels."""
    return _encode(told) + b"\n"


def hand_over(link: socket.socket, start: Start, listening: socket.socket) -> None:
    """Say how to serve, and on which socket. Nothing was written before, so it does not wait. Raises: OSError."""
    text = _encode(start)
    socket.send_fds(link, [_LENGTH.pack(len(text)) + text], [listening.fileno()])


def handed_over(link: socket.socket) -> tuple[Start, socket.socket] | None:
    """What :func:`hand_over` says; blocks until it does. None: the gateway is gone."""
    header, numbers, _, _ = socket.recv_fds(link, _LENGTH.size, 1)
    header += _exactly(link, _LENGTH.size - len(header))
    text = _exactly(link, _LENGTH.unpack(header)[0]) if len(header) == _LENGTH.size else b""
    if not text:
        return None
    start = decode_from_gateway(text)
    assert isinstance(start, Start), start
    return start, socket.socket(fileno=numbers[0])


def _exactly(link: socket.socket, size: int) -> bytes:
    """So many bytes; none when there are fewer."""
    data = bytearray()
    while len(data) < size:
        more = link.recv(size - len(data))
        if not more:
            return b""
        data += more
    return bytes(data)
