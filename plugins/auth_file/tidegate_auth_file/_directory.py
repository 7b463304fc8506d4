"""The users of a file as it is now: read again when it has changed."""

from __future__ import annotations

import hashlib
import logging
import secrets
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, final

from tidegate.spi import ConfigError, KnownUser, Principal
from tidegate.spi.watched_file import WatchedFile
from tidegate_auth_file._hashes import PasswordHash
from tidegate_auth_file._users import SECRET_BYTES, Users, read_users
from tidegate_auth_file._verifier import Verifier

logger = logging.getLogger("tidegate.auth_file")

#: How often the file is looked at while nobody logs in. A removed user is out so soon.
WATCH_INTERVAL_S: Final = 1.0


@final
class UserDirectory:
    """See the module.

    A file that has become wrong is reported in the log, once, and the users of before stay: a
    half-written file must not lock everybody out.

    Args: memory_bytes_max: what checking one password may take.
    Raises: ConfigError when the file is wrong at first.
    """

    def __init__(self, path: Path, memory_bytes_max: int = sys.maxsize) -> None:
        self._path = path
        self._memory_bytes_max = memory_bytes_max
        self._changed: Callable[[], None] | None = None
        self._file = WatchedFile(path, self._read_again, self._accept, self._refuse)
        self._users = self._read()
        # Without one in the file it lasts as long as the process.
        self._secret = secrets.token_bytes(SECRET_BYTES)
        # By proof of a hash that the gateway replaced: that of the new one, of the same password.
        self._rehashed: dict[str, str] = {}

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def names(self) -> Collection[str]:
        """All users."""
        return self._users.names

    def known(self, name: str) -> KnownUser | None:
        """See :class:`tidegate.spi.UserList`."""
        found = self._users.hashes_of(name)
        kinds = tuple(dict.fromkeys(item.kind for item in found))
        return KnownUser(name, self._users.groups_of(name), kinds) if found else None

    async def watch(self, changed: Callable[[], None]) -> None:
        """Look at the file until cancelled. *changed*: called when somebody is another one now."""
        self._changed = changed
        try:
            await self._file.watch(WATCH_INTERVAL_S)
        finally:
            self._changed = None

    async def refresh(self) -> None:
        """Read the file again if it has changed. Cancellation: the next call reads it."""
        await self._file.refresh()

    async def reload(self) -> None:
        """Read the file. Raises: ConfigError; the users of before stay."""
        await self._file.reload()

    def _accept(self, read: tuple[Users, bool]) -> None:
        self._users, differs = read
        logger.info("users read again file=%s users=%d", self._path, len(self._users.names))
        if self._changed is not None and differs:
            self._changed()

    def _refuse(self, error: ConfigError) -> None:
        logger.error("users stay as they were: %s", error.problem)

    def principal(self, name: str, found: PasswordHash) -> Principal | None:
        """Who showed the password that *found* is of; None: nobody, or the password is another one now."""
        return self.principal_now(Principal(name, proof=self._proof(name, found)))

    def principal_now(self, principal: Principal) -> Principal | None:
        """See :class:`tidegate.spi.Directory`."""
        name, users = principal.name, self._users
        is_known = (
            self._counts(principal.proof, name, users) if principal.proof else name in users.names
        )
        if not is_known:
            return None
        return Principal(name, users.groups_of(name), proof=principal.proof)

    def rehashed(self, name: str, before: PasswordHash, after: PasswordHash) -> None:
        """*after* is of the same password as *before*: nobody is out because of it."""
        self._rehashed[self._proof(name, before)] = self._proof(name, after)

    def _counts(self, proof: str, name: str, users: Users) -> bool:
        accepted = proof, self._rehashed.get(proof)
        return any(self._proof(name, found) in accepted for found in users.hashes_of(name))

    def _proof(self, name: str, found: PasswordHash) -> str:
        """Tells hashes apart, and nothing about them."""
        digest = hashlib.blake2b(key=self._secret, digest_size=16)
        digest.update(f"{name}:{found.written()}".encode())
        return digest.hexdigest()

    def find_hash(self, name: str) -> tuple[PasswordHash | None, bool]:
        """What checks the plain password of *name*, and whether there is such a user.

        Of one that does not exist it is somebody's, so that answers do not tell who exists by the
        time that they take; None when there are no users at all.
        """
        users = self._users
        found = users.hash_of(name)
        if found is not None:
            return found, True
        return users.hash_like(name, users.secret or self._secret), False

    def find(self, name: str, method: str) -> tuple[Verifier, bool]:
        """The SCRAM verifier of *name*, and whether there is one.

        Of one that does not exist it is made up, always the same for a name, so that answers do
        not tell who exists.
        """
        verifier = self._users.get(name, method)
        if verifier is not None:
            return verifier, True
        return self._users.made_up(name, method, self._users.secret or self._secret), False

    def _read_again(self) -> tuple[Users, bool]:
        """The users of now, and whether anybody is gone, is in other groups or has another password."""
        before, users = self._users, self._read()
        return users, any(
            users.groups_of(name) != before.groups_of(name) or self._lost(name, before, users)
            for name in before.names
        )

    def _lost(self, name: str, before: Users, after: Users) -> bool:
        """Whether what *name* was let in by may not count any more."""
        written = {found.written() for found in after.hashes_of(name)}
        return any(
            found.written() not in written
            and not self._counts(self._proof(name, found), name, after)
            for found in before.hashes_of(name)
        )

    def _read(self) -> Users:
        users = read_users(self._path)
        for name, found in users.hashes():
            if found.memory_bytes > self._memory_bytes_max:
                raise ConfigError(
                    f"{self._path}: checking the password of {name!r} takes"
                    f" {found.memory_bytes >> 20} MiB; `memory_limit` leaves"
                    f" {self._memory_bytes_max >> 20} MiB for each of `checks_max`. Raise it, or"
                    f" give the user the password anew: tidegate user passwd",
                    key="users",
                )
        return users
