"""Who may do what, and what may see or change a publish: the contracts behind extensions.

Deny wins: a publish or subscription goes through when *every* configured authorizer allows it.
"""

from __future__ import annotations

import enum
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
    (``host:port``), listener (``stomp://…``).
    """

    username: str
    password: bytes | None
    client_id: str
    protocol: str
    peer: str
    listener: str

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


@runtime_checkable
class Authorizer(Protocol):
    """Allows or refuses an action. Must be quick: called on the event loop, its answer cached."""

    def authorize(self, principal: str, action: Action, destination: str) -> bool: ...


@runtime_checkable
class Interceptor(Protocol):
    """Sees each publish before it is numbered. Called on the event loop, in configured order."""

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

    def create(self, options: object) -> Authenticator | Authorizer | Interceptor:
        """Build it; one object may implement several of the three. Raises: ConfigError."""
        ...
