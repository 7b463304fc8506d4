"""Identifies callers: credentials in a call's headers, and the gateway's sessions for them."""

from __future__ import annotations

import base64
import binascii
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from tidegate_sink_flight import _protocol as protocol

#: Most handshakes whose credentials are still unused. They are checked at the first call: only a
#: call shows the client's address, and guesses are counted by address.
UNUSED_MAX: Final = 1_000
_SESSIONS_MAX: Final = 10_000


class CredentialsError(Exception):
    """Malformed credentials; the text is for the client."""


@dataclass(slots=True)
class Entry:
    """What a bearer token stands for. Attributes: session: the gateway's, once it has one."""

    username: str
    password: bytes | None
    session: protocol.Session | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Tokens:
    """Bearer tokens that this server has issued."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unused: OrderedDict[str, Entry] = OrderedDict()
        self._used: OrderedDict[str, Entry] = OrderedDict()

    def give(self, header: str) -> str:
        """Issue a token for the credentials of a handshake. Raises: CredentialsError."""
        username, password = basic(header)
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._unused[token] = Entry(username, password)
            if len(self._unused) > UNUSED_MAX:
                self._unused.popitem(last=False)
        return token

    def entry(self, token: str) -> Entry | None:
        """What *token* stands for; None: nothing, or no longer."""
        with self._lock:
            return self._used.get(token) or self._unused.get(token)

    def used(self, token: str, entry: Entry) -> None:
        """The gateway has admitted it."""
        with self._lock:
            self._unused.pop(token, None)
            self._used[token] = entry
            if len(self._used) > _SESSIONS_MAX:
                self._used.popitem(last=False)

    def forget(self, token: str) -> None:
        """Revoke *token*."""
        with self._lock:
            self._unused.pop(token, None)
            self._used.pop(token, None)


def basic(header: str) -> tuple[str, bytes]:
    """User name and password of ``Basic …`` (RFC 7617). Raises: CredentialsError."""
    scheme, _, value = header.partition(" ")
    try:
        data = base64.b64decode(value.strip(), validate=True)
        username, colon, password = data.partition(b":")
        if scheme.lower() == "basic" and colon:
            return username.decode(), password
    except (binascii.Error, UnicodeDecodeError):
        pass
    raise CredentialsError("the header authorization holds no user name and password (Basic)")


def peer_of(text: str) -> str:
    """``host:port`` from gRPC's name for a peer, e.g. ``ipv6:%5B::1%5D:50000``."""
    kind, _, address = unquote(text).partition(":")
    return address if kind in ("ipv4", "ipv6") else "local:0"
