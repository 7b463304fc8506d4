"""The extension: SCRAM for MQTT 5.0, and user name with password for everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from tidegate.spi import AccessError, AuthenticationExchange, Credentials, Principal, option
from tidegate_auth_file._exchange import MESSAGE_BYTES_MAX, ScramExchange
from tidegate_auth_file._users import UserDirectory
from tidegate_auth_file._verifier import METHODS, is_correct, prepared_name

#: Passwords that wait to be checked. At 25 ms each, two at a time, the last one waits
#: longer than a client may take to connect.
WAITING_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class ScramOptions:
    """The extension's own keys of its ``[[extensions]]`` table."""

    users: Path = option(
        help="The file of users, made with `python -m tidegate_auth_file add FILE NAME`. Nobody "
        "else may read it; it is read again when it changes."
    )
    checks_max: int = option(
        2,
        minimum=1,
        maximum=64,
        help="Plain passwords checked at a time, each in a thread: what a flood of wrong ones can "
        "take of the machine. SCRAM needs no threads.",
    )


@final
class ScramAuthenticator:
    """Implements :class:`tidegate.spi.Authenticator` and `tidegate.spi.EnhancedAuthenticator`.

    Raises: ConfigError when the file of users is missing or wrong.
    """

    def __init__(self, options: ScramOptions) -> None:
        self._users = UserDirectory(options.users)
        self._checks = asyncio.Semaphore(options.checks_max)
        self._waiting_count = 0

    def __repr__(self) -> str:
        return "scram"

    @property
    def methods(self) -> Sequence[str]:
        """See EnhancedAuthenticator."""
        return tuple(METHODS)

    def begin(self, method: str, credentials: Credentials) -> AuthenticationExchange:
        """See EnhancedAuthenticator. The name in the exchange counts, not that of CONNECT."""
        if method not in METHODS:
            raise AccessError(f"the method {method[:40]!r} is not offered")
        return ScramExchange(method, self._users)

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """See Authenticator. Without a password others may know the client."""
        if credentials.password is None:
            return None
        name = credentials.username
        refused = AccessError("wrong user name or password", principal=name)
        if len(credentials.password) > MESSAGE_BYTES_MAX or len(name) > MESSAGE_BYTES_MAX:
            raise refused
        try:
            password = credentials.password.decode()
            name = prepared_name(name)
        except ValueError:  # UnicodeDecodeError is one
            raise refused from None
        if self._waiting_count >= WAITING_MAX:
            raise AccessError(
                f"{WAITING_MAX} passwords wait to be checked already; try again later",
                principal=name,
            )
        self._waiting_count += 1
        try:
            async with self._checks:
                await self._users.refresh()
                verifier, exists = self._users.find(name, "")
                # One that does not exist costs the same.
                correct = await asyncio.to_thread(is_correct, password, verifier)
        finally:
            self._waiting_count -= 1
        if not (correct and exists):
            raise refused
        return Principal(name)
