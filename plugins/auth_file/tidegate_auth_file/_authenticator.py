"""The extension: SCRAM for MQTT 5.0, user name and password for everybody else."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, final

from tidegate.spi import (
    AccessError,
    AuthenticationExchange,
    ConfigError,
    Credentials,
    Kind,
    KnownUser,
    Principal,
    option,
)
from tidegate_auth_file._directory import UserDirectory
from tidegate_auth_file._edit import replace_hash
from tidegate_auth_file._exchange import ScramExchange
from tidegate_auth_file._hashes import PasswordHash, make_hash
from tidegate_auth_file._verifier import METHODS, PASSWORD_BYTES_MAX, prepared_name

T = TypeVar("T")

logger = logging.getLogger("tidegate.auth_file")

#: Niceness of the threads that check passwords, so that the event loop comes first (Linux only).
_NICENESS: Final = 10


@dataclass(frozen=True, slots=True)
class AuthFileOptions:
    """The extension's own keys of its ``[[extensions]]`` table."""

    users: Path = option(
        help="The file of users, made with `tidegate user add`. Nobody else may have the "
        "right to read it. It is read again when it changes.",
    )
    checks_max: int = option(
        2,
        minimum=1,
        maximum=64,
        help="Plain passwords checked at a time, each in a thread of low priority. Bounds "
        "what a flood of wrong ones can take of the machine. SCRAM needs no threads.",
        act="a login waits",
        metric="logins.waiting",
    )
    memory_limit: int = option(
        128 << 20,
        kind=Kind.SIZE,
        minimum=1 << 20,
        help="Memory that all these checks may take together. A user whose hash needs more "
        "than its share is an error in the file. Guards against hashes that were made to "
        "cost a gigabyte.",
        act="the file is refused",
    )
    rehash: bool = option(
        False,
        help="When a user logs in whose hash was imported (bcrypt, apr1, SHA, mosquitto's), "
        "or costs less than ours, replace it by argon2id. The gateway then writes the file, "
        "and needs the right to.",
    )


@final
class FileAuthenticator:
    """Implements Authenticator, EnhancedAuthenticator, Directory, UserList, Service and Reloadable of
    `tidegate.spi`.

    Raises: ConfigError when the file of users is missing or wrong.
    """

    def __init__(self, options: AuthFileOptions) -> None:
        self._options = options
        self._users = UserDirectory(options.users, options.memory_limit // options.checks_max)
        self._threads = ThreadPoolExecutor(
            options.checks_max, thread_name_prefix="tidegate-password", initializer=_stand_back
        )
        self._turns = asyncio.Semaphore(options.checks_max)
        self._nobody: PasswordHash | None = None
        self._watching: asyncio.Task[None] | None = None
        self._rehashing: set[str] = set()
        self._cannot_rehash = False

    def __repr__(self) -> str:
        return "auth-file"

    # --------------------------------------------------------------- Service, Reloadable, Directory

    async def start(self, changed: Callable[[], None]) -> None:
        """See Service."""
        self._watching = asyncio.create_task(self._users.watch(changed), name="auth-file watch")

    async def stop(self) -> None:
        """See Service."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def reload(self) -> bool:
        """See Reloadable."""
        await self._users.reload()
        return True

    def principal_now(self, principal: Principal) -> Principal | None:
        """See Directory. A user whose password has changed must log in again."""
        return self._users.principal_now(principal)

    # ------------------------------------------------------------------------------------ UserList

    def user_names(self) -> Collection[str]:
        """See UserList."""
        return self._users.names

    def known_user(self, name: str) -> KnownUser | None:
        """See UserList."""
        return self._users.known(name)

    # ------------------------------------------------------------------------------ authenticators

    @property
    def methods(self) -> Sequence[str]:
        """See EnhancedAuthenticator."""
        return tuple(METHODS)

    def begin(self, method: str, credentials: Credentials) -> AuthenticationExchange:
        """See EnhancedAuthenticator. The name in the exchange counts, not the one in CONNECT."""
        if method not in METHODS:
            raise AccessError(f"the authentication method {method[:40]!r} is not offered")
        return ScramExchange(method, self._users)

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """See Authenticator. A client without a password is left to other authenticators.

        Cancellation: a check that has not begun is skipped.
        """
        if credentials.password is None:
            return None
        name = credentials.username
        refused = AccessError("wrong user name or password", principal=name)
        if len(credentials.password) > PASSWORD_BYTES_MAX:
            raise refused
        try:
            password = credentials.password.decode()
            name = prepared_name(name)
        except ValueError:  # UnicodeDecodeError is one
            raise refused from None
        await self._users.refresh()
        found, exists = self._users.find_hash(name)
        if found is None:
            found = await self._nobodys()
        # An unknown user costs the same time.
        correct = await self._in_thread(lambda: found.matches(password))
        if not (correct and exists):
            raise refused
        principal = self._users.principal(name, found)
        if principal is None:
            raise refused  # the file changed meanwhile
        if self._options.rehash and not found.is_ours:
            await self._rehash(name, password, found)
        return principal

    async def _nobodys(self) -> PasswordHash:
        """The hash to check against when there are no users at all."""
        if self._nobody is None:
            self._nobody = await self._in_thread(lambda: make_hash("nobody has this password"))
        return self._nobody

    async def _rehash(self, name: str, password: str, found: PasswordHash) -> None:
        """Replace *found* in the file. On failure the hash stays, and the log says so once."""
        if name in self._rehashing or self._cannot_rehash:
            return
        self._rehashing.add(name)
        path = self._users.path
        try:
            made = await self._in_thread(lambda: make_hash(password))
            self._users.rehashed(name, found, made)  # before anybody can read the new hash
            await self._in_thread(lambda: replace_hash(path, name, found, made))
        except (ConfigError, OSError) as error:
            self._cannot_rehash = True
            logger.warning(
                "hashes are not replaced: %s cannot be written: %s; let the gateway "
                "write the file and its directory, or set rehash = false",
                path,
                error,
            )
        finally:
            self._rehashing.discard(name)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async with self._turns:  # a login cancelled before its turn never takes a thread
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _stand_back() -> None:
    """Lower the priority of a thread that checks passwords: the event loop comes first."""
    if sys.platform == "linux":  # elsewhere niceness is not per thread
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        except OSError:
            logger.debug("threads that check passwords have the priority of others")
