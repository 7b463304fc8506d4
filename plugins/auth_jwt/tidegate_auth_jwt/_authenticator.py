"""The extension: a token instead of the password."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from tidegate.spi import (
    AccessError,
    AuthenticationExchange,
    ConfigError,
    Credentials,
    Kind,
    Principal,
    option,
)
from tidegate_auth_jwt._keys import ALGORITHMS, KeyFile
from tidegate_auth_jwt._token import RefusedTokenError, Rules, looks_like_a_token, principal_of

logger = logging.getLogger("tidegate.auth_jwt")

#: The method name for MQTT 5.0's enhanced authentication, as other brokers use it.
METHOD: Final = "OAUTH2-JWT"

_REFUSED: Final = "the token is not accepted"


@dataclass(frozen=True, slots=True)
class JwtOptions:
    """The extension's own keys of its ``[[extensions]]`` table."""

    jwks: Path = option(
        help="The issuer's public keys, a JWKS file. It is read again when it changes, so a "
        "job may fetch it. Nobody else may have the right to write it."
    )
    issuer: str = option(help="Who must have made the token: its `iss`.")
    audience: tuple[str, ...] = option(
        help="Whom the token must be for: its `aud` must be, or contain, one of these. "
        "Guards against tokens that the same issuer made for another service."
    )
    algorithms: tuple[str, ...] = option(
        ("RS256", "ES256", "EdDSA"),
        choices=ALGORITHMS,
        help="Signature algorithms that are accepted. The key decides which of them it may "
        "be used for, never the token.",
    )
    leeway: float = option(
        10.0,
        kind=Kind.DURATION,
        minimum=0.0,
        maximum=300.0,
        zero="none",
        help="How far the clocks of the issuer and the gateway may differ.",
    )
    principal_claim: str = option(
        "sub",
        help="The claim that names the client; a dot leads into a claim.",
    )
    groups_claim: str = option(
        "groups",
        help="The claim with the client's groups, a list or words separated by spaces, e.g. "
        '`realm_access.roles` or `scope`; `""` for none.',
    )
    required_claims: tuple[str, ...] = option(
        (), help="Claims that a token must have besides `exp`, `iss`, `aud` and the principal's."
    )
    username: str = option(
        "optional",
        choices=("optional", "required", "any"),
        help="The user name beside the token: `optional`: absent or the principal's name; "
        "`required`: always the principal's name; `any`: anything.",
    )
    token_max: int = option(
        8 << 10,
        kind=Kind.SIZE,
        minimum=256,
        maximum=64 << 10,
        help="Length of the longest token that is checked.",
        act="the login is refused",
    )

    def __post_init__(self) -> None:
        for key in ("issuer", "principal_claim"):
            if not getattr(self, key):
                raise ConfigError("must not be empty", key=key)
        for key in ("audience", "algorithms"):
            values: tuple[str, ...] = getattr(self, key)
            if not values or not all(values):
                raise ConfigError("must name at least one", key=key)


@final
class JwtAuthenticator:
    """Implements Authenticator, EnhancedAuthenticator, Directory, Service and Reloadable of
    `tidegate.spi`.

    Raises: ConfigError when the file of keys is missing or wrong.
    """

    def __init__(self, options: JwtOptions) -> None:
        self._options = options
        self._rules = Rules(
            options.issuer,
            options.audience,
            options.leeway,
            options.principal_claim,
            options.groups_claim,
            options.required_claims,
        )
        self._keys = KeyFile(options.jwks, options.algorithms)
        self._watching: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return "auth-jwt"

    async def start(self, changed: Callable[[], None]) -> None:
        """See Service."""
        self._watching = asyncio.create_task(self._keys.watch(changed), name="auth-jwt watch")

    async def stop(self) -> None:
        """See Service."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def reload(self) -> bool:
        """See Reloadable."""
        await self._keys.reload()
        return True

    def principal_now(self, principal: Principal) -> Principal | None:
        """See Directory. None once the key that signed the token is gone."""
        return principal if self._keys.has(principal.proof) else None

    @property
    def methods(self) -> Sequence[str]:
        """See EnhancedAuthenticator."""
        return (METHOD,)

    def begin(self, method: str, credentials: Credentials) -> AuthenticationExchange:
        """See EnhancedAuthenticator."""
        if method != METHOD:
            raise AccessError(f"the method {method[:40]!r} is not offered")
        return _TokenExchange(self, credentials)

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """See Authenticator. A password that does not look like a token is left to others."""
        password = credentials.password
        if password is None or not looks_like_a_token(password):
            return None
        return await self.bearer_of(password, credentials)

    async def bearer_of(self, password: bytes, credentials: Credentials) -> Principal:
        """Whose token *password* is. Raises: AccessError."""
        username = credentials.username
        await self._keys.refresh()
        try:
            if len(password) > self._options.token_max:
                raise RefusedTokenError(f"has {len(password)} bytes (token_max)")
            if not looks_like_a_token(password):
                raise RefusedTokenError("is none")
            principal = principal_of(password.decode("ascii"), self._keys, self._rules)
            if not self._may_be_called(username, principal.name):
                raise RefusedTokenError("is of somebody else than the user name says")
        except RefusedTokenError as error:
            # Never log the token; what is wrong with it helps an honest bearer.
            logger.info("token refused peer=%s problem=%r", credentials.peer, str(error)[:200])
            raise AccessError(_REFUSED, principal=username) from None
        return principal

    def _may_be_called(self, username: str, name: str) -> bool:
        rule = self._options.username
        return rule == "any" or username == name or (rule == "optional" and not username)


@final
class _TokenExchange:
    """Implements AuthenticationExchange: one step, with the token in CONNECT or the first AUTH.

    A connected client uses it to renew its token before the old one expires (AUTH 0x19).
    """

    def __init__(self, authenticator: JwtAuthenticator, credentials: Credentials) -> None:
        self._authenticator = authenticator
        self._credentials = credentials
        self._was_asked = False
        self.claimed = ""  # only the token says who it is
        self._principal: Principal | None = None

    @property
    def principal(self) -> Principal | None:
        """See AuthenticationExchange."""
        return self._principal

    async def step(self, data: bytes) -> bytes:
        """See AuthenticationExchange."""
        if not data and not self._was_asked:
            self._was_asked = True  # the client may wait to be asked
            return b""
        self._principal = await self._authenticator.bearer_of(data, self._credentials)
        return b""
