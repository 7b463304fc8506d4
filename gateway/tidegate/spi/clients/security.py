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

    SUBSCRIBE is for topics, CONSUME and BROWSE are for queues. RETAIN is checked in addition to PUBLISH.
    CREATE is for a queue that its first use creates, in addition to the action of that use. DELETE is for
    a destination or its waiting messages. ADMIN is checked for operators, in addition to what they
    request (:mod:`tidegate.spi.operate`).
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

    FILTER is only for a subscription whose filter is broader than the right: the subscription goes
    ahead, and the authorizer is asked about the concrete destination of each message before it is
    delivered. Anywhere else FILTER means DENY.
    """

    ALLOW = "allow"
    DENY = "deny"
    FILTER = "filter"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a client is, as an authenticator answers.

    Attributes:
        name: not empty; ``anonymous`` is reserved for the gateway and refused.
        groups: the groups it belongs to.
        expires_at: microseconds since the Unix epoch, UTC; the connection ends then. 0: never.
        proof: how it was authenticated, in the authenticator's own words: which key signed its token,
            which of its passwords it showed. A :class:`Directory` gets it back here. Not a secret.
    """

    name: str
    groups: frozenset[str] = frozenset()
    expires_at: int = 0
    proof: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks, as authorizers see it.

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
    """One client's run of a challenge-response method; for one attempt only."""

    @property
    def claimed(self) -> str:
        """The name the client claims, once it has sent it; "" before. Failed guesses are counted by it."""
        ...

    @property
    def principal(self) -> Principal | None:
        """Who the client is, once the exchange has succeeded; None before."""
        ...

    async def step(self, data: bytes) -> bytes:
        """Take the client's data and return the reply, perhaps empty (b"").

        If ``principal`` is set afterwards, the exchange has succeeded, and the returned bytes go out
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
        """Names of the methods, as clients spell them."""
        ...

    def begin(self, method: str, credentials: Credentials) -> AuthenticationExchange:
        """Begin an exchange by one of ``methods``; *credentials* has no password.

        Raises: AccessError.
        """
        ...


@runtime_checkable
class Directory(Protocol):
    """Optional for an authenticator: it can look up later the principals it let in.

    Called when a client connects, after its credentials were checked, and for each connection after
    :class:`Service`'s ``changed()``.
    """

    def principal_now(self, principal: Principal) -> Principal | None:
        """The current state of *principal*, with its groups. Must be quick.

        Args: principal: as this authenticator returned it, with ``proof``. Without a proof when only the
            name is known: the principal has not connected since before this start of the gateway.
        Returns: a principal with the same name, whose groups now apply; None when it no longer exists or
            its proof is no longer valid: its connection ends.
        """
        ...


@dataclass(frozen=True, slots=True)
class KnownUser:
    """A user, without secrets.

    Attributes: name; groups: the groups it belongs to; checks: how it is authenticated, in words:
        ``argon2id``.
    """

    name: str
    groups: frozenset[str] = frozenset()
    checks: tuple[str, ...] = ()


@runtime_checkable
class UserList(Protocol):
    """Optional for an authenticator: it can list its users for operators.

    Both methods must be quick: called on the event loop.
    """

    def user_names(self) -> Collection[str]:
        """The names of all users."""
        ...

    def known_user(self, name: str) -> KnownUser | None:
        """The user of this name; None when it no longer exists."""
        ...


@runtime_checkable
class Authorizer(Protocol):
    """Allows or refuses an action. Must be quick: called on the event loop, its answer is cached.

    If its answers can change, it must also be a :class:`Service` and call ``changed``, or the cached
    answers stay.
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
    """An authorizer's answer, and why.

    Attributes: verdict: the answer; why: each reason in words, the decisive one first.
    """

    verdict: Verdict
    why: tuple[str, ...] = ()


@runtime_checkable
class Explainer(Protocol):
    """Optional for an authorizer: it can explain its decisions to operators."""

    def explain(self, identity: Identity, action: Action, destination: str) -> Explanation:
        """What :meth:`Authorizer.authorize` would answer, and why."""
        ...


@dataclass(frozen=True, slots=True)
class AccessRule:
    """A rule of an authorizer, without secrets.

    Attributes:
        number: from 1, in the order of evaluation. line: where it is written; 0: unknown.
        allows: True when it allows, False when it denies.
        actions: the actions it is about.
        destinations: patterns, as they are written; None: any destination, and no destination.
        who: by kind of condition (``groups``), the values that meet it; all conditions must be met. Empty: everybody.
    """

    number: int
    line: int
    allows: bool
    actions: tuple[Action, ...]
    destinations: tuple[str, ...] | None = None
    who: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@runtime_checkable
class RuleList(Protocol):
    """Optional for an authorizer: it can list its rules for operators."""

    def rules_source(self) -> str:
        """Where they are written, such as a file. Must be quick: called on the event loop."""
        ...

    def access_rules(self) -> Iterable[AccessRule]:
        """All current rules, in the order of evaluation.

        Called on the event loop and iterated a few at a time: each must be quick, the whole need not be.
        """
        ...


@runtime_checkable
class Service(Protocol):
    """Optional for any extension: something that runs while the gateway does.

    Started before the listeners, in configured order, and stopped after them in reverse order.
    """

    async def start(self, changed: Callable[[], None]) -> None:
        """Begin.

        Args: changed: call it, on the event loop, when rights or users have changed. The broker then
            drops every cached answer and asks again for live subscriptions.
        Any exception aborts the start of the gateway.
        """
        ...

    async def stop(self) -> None:
        """End; called once, even when a later part of the gateway failed to start."""
        ...


class AuditKind(enum.Enum):
    """What happened."""

    LOGIN = "login"
    LOGIN_REFUSED = "login-refused"
    REFUSED = "refused"
    OPERATED = "operated"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Something worth looking up later.

    Attributes:
        kind: what happened.
        identity: who it was; for a refused login, whom it claimed to be.
        action, destination: what was refused, or what an operator did; None and "" for logins.
        problem: the reason given to the client; "" when nothing was refused.
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
    """Is told of logins, refusals and operators' actions; not of single messages that a filter left out."""

    def audit(self, event: AuditEvent) -> None:
        """Record the event. Must be quick: called on the event loop. Any exception is logged."""
        ...


@runtime_checkable
class Interceptor(Protocol):
    """Sees each publish before it is numbered. Called on the event loop, in configured order.

    Of a message with ``large`` it sees everything but the body, which is already on disk.
    """

    def intercept(self, message: Message, principal: str) -> Message:
        """Return the message, or a changed copy (``msgspec.structs.replace(message, headers=…)``).

        Raises: AccessError to refuse this publish. Any other exception refuses it too and is logged.
        """
        ...
