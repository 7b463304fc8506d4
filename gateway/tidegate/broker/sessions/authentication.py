"""Who a client is: the configured authenticators, in order, and challenge-response exchanges.

Passwords, and answers in an exchange, are checked when :class:`~.checks.Checks` says it is their turn.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, cast

from tidegate.broker.sessions.checks import Checks
from tidegate.broker.sessions.failed_logins import (
    Attempt,
    FailedLogins,
    address_of,
    counted_name,
)
from tidegate.plugin_exit import EXITS, FAILURES, failure_of
from tidegate.spi import (
    AccessError,
    AuthenticationExchange,
    Authenticator,
    ConnectRequest,
    Credentials,
    Directory,
    EnhancedAuthenticator,
    Principal,
)

if TYPE_CHECKING:
    from tidegate.config import BrokerConfig

T = TypeVar("T")

_log = logging.getLogger("tidegate.broker")

#: The principal of unauthenticated clients, whatever name they gave.
ANONYMOUS: Final = "anonymous"


@dataclass(frozen=True, slots=True)
class Vouched:
    """Who a client is, and the extension that can later say who it then is (None: none can)."""

    principal: Principal
    by: Directory | None = None

    def now(self) -> Principal | None:
        """Who it is now; None: nobody."""
        return self._ask(self.principal)

    def by_name(self) -> Principal | None:
        """The same, however it was let in; None also when its directory knows nobody by name."""
        return self._ask(dataclasses.replace(self.principal, proof=""))

    @property
    def is_followed(self) -> bool:
        """Its directory knows it by name, even after a restart."""
        return self.by is not None and self.by_name() is not None

    def left_behind(self) -> Principal | None:
        """The owner of what it left behind: a new password revokes connections, but no wills."""
        return self.now() or self.by_name()

    def _ask(self, principal: Principal) -> Principal | None:
        if self.by is None:
            return principal
        try:
            return self.by.principal_now(principal)
        except FAILURES:  # an extension that fails throws nobody out
            _log.exception("directory=%s failed", self.by)
            return self.principal


class Authentication:
    """Asks the extensions.

    Args: extensions: all configured ones, in order; others are ignored. config: how fast.
        refused: told of each failed attempt.
    """

    def __init__(
        self,
        extensions: Sequence[object],
        config: BrokerConfig,
        refused: Callable[[ConnectRequest, AccessError], None],
    ) -> None:
        self._refused = refused
        self.refused_count = 0
        self._authenticators = [e for e in extensions if isinstance(e, Authenticator)]
        self._directories = [e for e in self._authenticators if isinstance(e, Directory)]
        self._enhanced: dict[str, EnhancedAuthenticator] = {}
        for extension in extensions:
            if isinstance(extension, EnhancedAuthenticator):
                for method in extension.methods:  # the first that offers a method has it
                    self._enhanced.setdefault(method, extension)
        self.failed_logins = FailedLogins(
            free=config.login_failures_free,
            delay_s=config.login_delay,
            delay_max_s=config.login_delay_max,
            age_s=config.login_failures_age,
            limit_bytes=config.login_failures_limit,
        )
        self.checks = Checks(
            self.failed_logins,
            running_max=config.login_checks_max,
            waiting_bytes_max=config.login_waiting_limit,
        )

    def counts(self) -> Mapping[str, int]:
        """What system topics say about logins; docs/mqtt.md says what each is."""
        checks = self.checks
        return {
            "logins.refused": self.refused_count,
            "logins.checking": checks.running_count,
            "logins.waiting": checks.waiting_count,
            "logins.delayed": checks.delayed,
            "logins.dropped": checks.dropped,
            "logins.abandoned": checks.abandoned,
            "logins.failures.bytes": self.failed_logins.size_bytes,
        }

    def known_by_name(self, principal: Principal) -> Principal | None:
        """Who a principal known by its name is now; None: nobody."""
        if not self._directories:
            return principal  # the one that could say is no longer configured
        for directory in self._directories:
            found = Vouched(principal, directory).by_name()
            if found is not None:
                return found
        return None

    def refused(self, request: ConnectRequest, error: AccessError) -> None:
        """A client was not let in."""
        self.refused_count += 1
        self._refused(request, error)

    def begin(self, method: str, request: ConnectRequest) -> AuthenticationExchange | None:
        """See :meth:`tidegate.spi.Broker.begin_authentication`."""
        authenticator = self._enhanced.get(method)
        if authenticator is None:
            return None
        try:
            exchange = authenticator.begin(method, _credentials(request))
        except AccessError:
            raise
        except FAILURES:
            _log.exception("authenticator=%s failed peer=%s", authenticator, request.peer)
            raise AccessError("authentication failed", principal=request.username) from None
        return _TakenInTurn(self, exchange, authenticator, request)

    async def principal_of(self, request: ConnectRequest) -> Vouched:
        """Who the client is; like :meth:`_principal_of`, and reports a refusal."""
        try:
            return await self._principal_of(request)
        except AccessError as error:
            self.refused(request, error)
            raise

    async def _principal_of(self, request: ConnectRequest) -> Vouched:
        """Who the client is.

        Raises: AccessError when nobody vouches for it, but the listener requires that;
            FlowControlError when too many wait to be checked.
        Cancellation: safe; what waits for its turn then never gets one.
        """
        exchange = request.exchange
        if request.tls_principal is not None:
            return _vouched(_of_certificate(request.tls_principal, exchange), None)
        if exchange is not None:
            return vouched_of(exchange)
        if request.password is None or not self._authenticators:
            return await self._ask(request)  # there is nothing to guess

        async def check() -> tuple[Vouched, bool]:
            vouched = await self._ask(request)
            return vouched, vouched.principal.name != ANONYMOUS

        return await self.in_turn(_attempt(request), len(request.password), check)

    async def in_turn(
        self, attempt: Attempt, size_bytes: int, check: Callable[[], Awaitable[tuple[T, bool]]]
    ) -> T:
        """Await *check* when its turn comes, and remember how it went.

        Args: check: its result, and whether that lets the client in.
        """

        async def remembered() -> T:
            try:
                result, is_in = await check()
            except AccessError as error:
                if not isinstance(error, _OutOfOrderError):
                    self.failed_logins.failed(attempt, asyncio.get_running_loop().time())
                raise
            except asyncio.CancelledError:
                self.failed_logins.abandoned(attempt, asyncio.get_running_loop().time())
                raise
            if is_in:
                self.failed_logins.succeeded(attempt)
            return result

        size_bytes += len(attempt.username) + len(attempt.client_id)
        return await self.checks.run(attempt, size_bytes, remembered)

    async def _ask(self, request: ConnectRequest) -> Vouched:
        credentials = _credentials(request)
        for authenticator in self._authenticators:
            try:
                answer = cast("object", await authenticator.authenticate(credentials))
                if answer is None:
                    continue
                if not isinstance(answer, Principal):
                    raise TypeError(f"authenticate() returned {answer!r}, which is no Principal")
            except AccessError:
                raise
            except FAILURES:
                _log.exception("authenticator=%s failed peer=%s", authenticator, request.peer)
                raise _OutOfOrderError(
                    "authentication failed", principal=request.username
                ) from None
            return _vouched(answer, authenticator)
        if request.anonymous_allowed:
            # An unchecked name must not get the rights of that name.
            return Vouched(Principal(ANONYMOUS))
        raise AccessError("user name and password are required", principal=request.username)


class _OutOfOrderError(AccessError):
    """Not a refusal: an extension failed."""


class _TakenInTurn:
    """An exchange whose steps wait their turn. Implements AuthenticationExchange."""

    def __init__(
        self,
        authentication: Authentication,
        exchange: AuthenticationExchange,
        authenticator: object,
        request: ConnectRequest,
    ) -> None:
        self._authentication = authentication
        self._exchange = exchange
        self._request = request
        self.authenticator = authenticator

    @property
    def claimed(self) -> str:
        """See AuthenticationExchange."""
        return self._exchange.claimed

    @property
    def principal(self) -> Principal | None:
        """See AuthenticationExchange."""
        return self._exchange.principal

    async def step(self, data: bytes) -> bytes:
        """See AuthenticationExchange."""

        async def check() -> tuple[bytes, bool]:
            try:
                answer = await self._exchange.step(data)
            except EXITS as error:
                raise failure_of(error) from error
            return answer, self._exchange.principal is not None

        try:
            attempt = _attempt(self._request, self._exchange.claimed)
            return await self._authentication.in_turn(attempt, len(data), check)
        except AccessError as error:
            self._authentication.refused(self._request, error)
            raise


def _of_certificate(owner: Principal, exchange: AuthenticationExchange | None) -> Principal:
    """Whom the certificate names. Raises: AccessError."""
    if not owner.name:
        raise AccessError("the client's certificate names no user by the listener's tls_principal")
    if exchange is not None:
        other = exchange.principal
        if other is None or other.name != owner.name:
            raise AccessError(
                "the certificate and the login name two different users", principal=owner.name
            )
    return owner


def vouched_of(exchange: AuthenticationExchange) -> Vouched:
    """Who has gone through *exchange*. Raises: AccessError when nobody has."""
    if exchange.principal is None:
        raise AccessError("the authentication was not completed")
    by = exchange.authenticator if isinstance(exchange, _TakenInTurn) else None
    return _vouched(exchange.principal, by)


def _vouched(principal: Principal, by: object) -> Vouched:
    """Raises: AccessError when it is nobody now: what it showed may have been checked long ago."""
    vouched = Vouched(_checked(principal), by if isinstance(by, Directory) else None)
    now = vouched.now()
    if now is None:
        raise AccessError("the authentication is no longer valid", principal=principal.name)
    # Only the groups of a directory's answer count: it need not know how long the login lasts.
    return Vouched(dataclasses.replace(principal, groups=now.groups), vouched.by)


def _checked(principal: Principal) -> Principal:
    """What an extension answered. Raises: AccessError for a name that it may not give."""
    if not principal.name or principal.name == ANONYMOUS:
        raise AccessError(
            f"{principal.name!r} is not allowed as a user name; give the user another name",
            principal=principal.name,
        )
    return principal


def _attempt(request: ConnectRequest, claimed: str = "") -> Attempt:
    """Many clients say only in an exchange or a token who they are: until then the client id counts.

    Args: claimed: the name given in the exchange.
    """
    name = counted_name(claimed or request.username) or request.client_id
    return Attempt(address_of(request.peer), name, request.client_id)


def _credentials(request: ConnectRequest) -> Credentials:
    return Credentials(
        request.username,
        request.password,
        request.client_id,
        request.protocol,
        request.peer,
        request.listener,
        request.tls_subject,
    )
