"""Who may do what, and what may see or change a publish: the contracts behind extensions.

Deny wins: a publish or subscription goes through when *every* configured authorizer allows it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tidegate.spi.messages import Message


class Action(enum.Enum):
    """What a principal wants to do with a destination."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client shows when it connects.

    Attributes: username ("" when none), password (None when none), client_id, protocol, peer
    (``host:port``), listener (``stomp://…``), tls_subject (of the client's verified certificate,
    RFC 4514, "" when it showed none).
    """

    username: str
    password: bytes | None
    client_id: str
    protocol: str
    peer: str
    listener: str
    tls_subject: str = ""

    def __repr__(self) -> str:  # the password must never reach a log
        return f"Credentials({self.username!r}, client_id={self.client_id!r}, peer={self.peer!r})"


@runtime_checkable
class Authenticator(Protocol):
    """Checks credentials. The first configured authenticator that does not abstain decides."""

    async def authenticate(self, credentials: Credentials) -> str | None:
        """Return the principal's name, or None to abstain.

        Raises: AccessError to refuse. Any other exception refuses too and is logged.
        """
        ...


class AuthenticationExchange(Protocol):
    """One client's way through a challenge-response method; made for one attempt only."""

    @property
    def principal(self) -> str:
        """The principal's name once the exchange has succeeded, "" before."""
        ...

    async def step(self, data: bytes) -> bytes:
        """Take what the client sent and return what it is to be told, perhaps nothing (b"").

        Afterwards a ``principal`` says that the exchange has succeeded; the returned bytes then go
        with the acceptance. Not called again after that or after an error.

        Raises: AccessError to refuse. Any other exception refuses too and is logged.
        Cancellation: the exchange is abandoned.
        """
        ...


@runtime_checkable
class EnhancedAuthenticator(Protocol):
    """Offers challenge-response methods (MQTT 5.0 section 4.12), e.g. ``SCRAM-SHA-256``."""

    @property
    def methods(self) -> Sequence[str]:
        """Names of the methods, as clients write them."""
        ...

    def begin(self, method: str, credentials: Credentials) -> AuthenticationExchange:
        """Begin an exchange by one of ``methods``; *credentials* has no password.

        Raises: AccessError.
        """
        ...


@runtime_checkable
class Authorizer(Protocol):
    """Allows or refuses an action. Must be quick: called on the event loop, its answer cached."""

    def authorize(self, principal: str, action: Action, destination: str) -> bool: ...


@runtime_checkable
class Interceptor(Protocol):
    """Sees each publish before it is numbered. Called on the event loop, in configured order.

    Of a message with ``large`` it sees everything but the body, which is on the disk already.
    """

    def intercept(self, message: Message, principal: str) -> Message:
        """Return the message, or a changed copy.

        Raises: AccessError to refuse this publish.
        """
        ...


class ExtensionFactory(Protocol):
    """What a plugin registers for an extension (hook ``register_extension``)."""

    @property
    def options_type(self) -> type:
        """A frozen dataclass; the host parses the ``[[extensions]]`` table into it."""
        ...

    def create(
        self, options: object
    ) -> Authenticator | EnhancedAuthenticator | Authorizer | Interceptor:
        """Build it; one object may implement several of the four. Raises: ConfigError."""
        ...
