"""Who may do what, and what may see or change a publish: the contracts behind extensions.

Deny wins: something goes through when *every* configured authorizer allows it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from tidegate.spi.messages import Message


class Action(enum.Enum):
    """What somebody wants to do with a destination, or with the gateway (CONNECT, ADMIN).

    SUBSCRIBE is to a topic, CONSUME and BROWSE are from a queue. RETAIN is asked besides PUBLISH.
    CREATE is of a queue that its first use makes, asked besides what it is used for. DELETE is of a
    destination, or of what waits in it. ADMIN is asked of operators, besides what they want
    (:mod:`tidegate.spi.operate`).
    """

    CONNECT = "connect"
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    CONSUME = "consume"
    BROWSE = "browse"
    RETAIN = "retain"
    CREATE = "create"
    DELETE = "delete"
    ADMIN = "admin"


class Verdict(enum.Enum):
    """What an authorizer answers.

    FILTER answers only a subscription whose filter is broader than the right: it goes ahead, and
    the authorizer is asked about the concrete destination of each message before it is delivered.
    Anywhere else it is a DENY.
    """

    ALLOW = "allow"
    DENY = "deny"
    FILTER = "filter"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a client is, as an authenticator answers.

    Attributes:
        name: not empty; ``anonymous`` is the gateway's own and refused.
        groups: that it is in.
        expires_at: microseconds since the Unix epoch, UTC; the connection ends then. 0: never.
        proof: what it was let in by, in words of the authenticator's own: which key signed its
            token, which of its passwords it showed. A :class:`Directory` finds it here again. No secret.
    """

    name: str
    groups: frozenset[str] = frozenset()
    expires_at: int = 0
    proof: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks, as authorizers are told.

    Attributes: principal, groups: see :class:`Principal`; client_id ("" for none), address (an IP
    address without port, "" when the transport has none), protocol.
    """

    principal: str
    groups: frozenset[str]
    client_id: str
    address: str
    protocol: str


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

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Return who the client is, or None to abstain.

        Raises: AccessError to refuse. Any other exception refuses too and is logged.
        """
        ...


class AuthenticationExchange(Protocol):
    """One client's way through a challenge-response method; made for one attempt only."""

    @property
    def claimed(self) -> str:
        """Whom the client says to be, as soon as it has; "" before. Guessing is counted by it."""
        ...

    @property
    def principal(self) -> Principal | None:
        """Who the client is, once the exchange has succeeded; None before."""
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
class Directory(Protocol):
    """What an authenticator may be besides: it can tell later who those are whom it let in.

    Asked when one connects, after its credentials were checked, and for each connection after
    :class:`Service`'s ``changed()``.
    """

    def principal_now(self, principal: Principal) -> Principal | None:
        """Who *principal* is now, groups and all. Must be quick.

        Args: principal: as this authenticator answered it, ``proof`` and all; without a proof when
            only the name is known, of one that has been away since a start before this one.
        Returns: one with the same name, of which the groups count; None when it is nobody any more, or
            what it was let in by does not count any more: its connection ends.
        """
        ...


@dataclass(frozen=True, slots=True)
class KnownUser:
    """A user, without secrets. Attributes: checks: what it is let in by, in words: ``argon2id``."""

    name: str
    groups: frozenset[str] = frozenset()
    checks: tuple[str, ...] = ()


@runtime_checkable
class UserList(Protocol):
    """What an authenticator may be besides: it can tell operators which users there are.

    Both must be quick: called on the event loop.
    """

    def user_names(self) -> Collection[str]:
        """All of them."""
        ...

    def known_user(self, name: str) -> KnownUser | None:
        """One of them; None when it is not there any more."""
        ...


@runtime_checkable
class Authorizer(Protocol):
    """Allows or refuses an action. Must be quick: called on the event loop, its answer cached.

    Who changes its mind must be a :class:`Service` that says so, or the cached answers stay.
    """

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        """Decide.

        Args: destination: canonical (``queue://NAME``, ``topic://NAME``); for SUBSCRIBE, CONSUME
            and BROWSE it may be a filter with wildcards; "" for CONNECT and ADMIN.
        Any exception denies and is logged.
        """
        ...


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer of an authorizer's, and why. Attributes: why: each reason in words, the first that counts first."""

    verdict: Verdict
    why: tuple[str, ...] = ()


@runtime_checkable
class Explainer(Protocol):
    """What an authorizer may be besides: it can tell operators why it decides as it does."""

    def explain(self, identity: Identity, action: Action, destination: str) -> Explanation:
        """What :meth:`Authorizer.authorize` would answer, and why."""
        ...


@dataclass(frozen=True, slots=True)
class AccessRule:
    """A rule of an authorizer's, without secrets.

    Attributes:
        number: from 1, in the order in which they are asked. line: where it is written; 0: nobody knows.
        allows: it does, or it denies.
        destinations: patterns, as they are written; None: any, and none.
        who: by kind of condition (``groups``), what of it is met by; all of them must be. None at all: everybody.
    """

    number: int
    line: int
    allows: bool
    actions: tuple[Action, ...]
    destinations: tuple[str, ...] | None = None
    who: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@runtime_checkable
class RuleList(Protocol):
    """What an authorizer may be besides: it can tell operators the rules that it decides by."""

    def rules_source(self) -> str:
        """Where they are written: a file, for instance. Must be quick: called on the event loop."""
        ...

    def access_rules(self) -> Iterable[AccessRule]:
        """All of them, in the order in which they are asked, as they are now.

        Called on the event loop, and gone through a few at a time: one must be quick, all of them need not be.
        """
        ...


@runtime_checkable
class Service(Protocol):
    """What any extension may be besides: something that runs while the gateway does.

    Started before the listeners, in configured order, and stopped after them in reverse order.
    """

    async def start(self, changed: Callable[[], None]) -> None:
        """Begin.

        Args: changed: to be called, on the event loop, when rights or users are other ones now. The
            broker then forgets every cached answer and asks again for live subscriptions.
        Any exception ends the start of the gateway.
        """
        ...

    async def stop(self) -> None:
        """End; called once, also when a later part of the gateway failed to start."""
        ...


class AuditKind(enum.Enum):
    """What happened."""

    LOGIN = "login"
    LOGIN_REFUSED = "login-refused"
    REFUSED = "refused"
    OPERATED = "operated"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Something that somebody wants to look up later.

    Attributes:
        identity: who it was; of a login that was refused, whom it said that it is.
        action, destination: what was refused, or what an operator did; None and "" for logins.
        problem: as the client was told; "" when nothing was refused.
        detail: what an operator did, in words.
    """

    kind: AuditKind
    identity: Identity
    action: Action | None = None
    destination: str = ""
    problem: str = ""
    detail: str = ""


@runtime_checkable
class Auditor(Protocol):
    """Is told of logins, of what was refused and of what operators did; not of single messages that a filter left out."""

    def audit(self, event: AuditEvent) -> None:
        """Take note. Must be quick: called on the event loop. Any exception is logged."""
        ...


@runtime_checkable
class Interceptor(Protocol):
    """Sees each publish before it is numbered. Called on the event loop, in configured order.

    Of a message with ``large`` it sees everything but the body, which is on the disk already.
    """

    def intercept(self, message: Message, principal: str) -> Message:
        """Return the message, or a changed copy (``msgspec.structs.replace(message, headers=…)``).

        Raises: AccessError to refuse this publish. Any other exception refuses it too and is logged.
        """
        ...
