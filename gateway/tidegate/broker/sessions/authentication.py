"""Who a client is: the configured authenticators, in order, and challenge-response exchanges."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from tidegate.spi import (
    AccessError,
    AuthenticationExchange,
    Authenticator,
    ConnectRequest,
    Credentials,
    EnhancedAuthenticator,
    Principal,
)

_log = logging.getLogger("tidegate.broker")

#: The principal of clients that nobody authenticated, whatever name they gave.
ANONYMOUS: Final = "anonymous"


class Authentication:
    """Asks the extensions. *extensions*: all that are configured, in order; others are ignored."""

    def __init__(self, extensions: Sequence[object]) -> None:
        self._authenticators = [e for e in extensions if isinstance(e, Authenticator)]
        self._enhanced: dict[str, EnhancedAuthenticator] = {}
        for extension in extensions:
            if isinstance(extension, EnhancedAuthenticator):
                for method in extension.methods:  # the first one that offers a method has it
                    self._enhanced.setdefault(method, extension)

    def begin(self, method: str, request: ConnectRequest) -> AuthenticationExchange | None:
        """See :meth:`tidegate.spi.Broker.begin_authentication`."""
        authenticator = self._enhanced.get(method)
        if authenticator is None:
            return None
        try:
            return authenticator.begin(method, _credentials(request))
        except AccessError:
            raise
        except Exception:
            _log.exception("authenticator=%s failed peer=%s", authenticator, request.peer)
            raise AccessError("authentication failed", principal=request.username) from None

    async def principal_of(self, request: ConnectRequest) -> Principal:
        """Who the client is.

        Raises: AccessError when nobody vouches for it and the listener wants somebody to.
        """
        if request.exchange is not None:
            if request.exchange.principal is not None:
                return _checked(request.exchange.principal)
            raise AccessError("the authentication was not completed", principal=request.username)
        credentials = _credentials(request)
        for authenticator in self._authenticators:
            try:
                principal = await authenticator.authenticate(credentials)
            except AccessError:
                raise
            except Exception:
                _log.exception("authenticator=%s failed peer=%s", authenticator, request.peer)
                raise AccessError("authentication failed", principal=request.username) from None
            if principal is not None:
                return _checked(principal)
        if request.anonymous_allowed:
            return Principal(
                ANONYMOUS
            )  # a name that nobody checked must not open what it is allowed
        raise AccessError("a user name and a password are required", principal=request.username)


def _checked(principal: Principal) -> Principal:
    """What an extension answered. Raises: AccessError for a name that it cannot give."""
    if not principal.name or principal.name == ANONYMOUS:
        raise AccessError(
            f"nobody can be called {principal.name!r}; give the user another name",
            principal=principal.name,
        )
    return principal


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
