"""The current users of a file, which is reread when it changes."""

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

#: How often the file is checked while nobody logs in: the delay until a removed user is out.
WATCH_INTERVAL_S: Final = 1.0


@final
class UserDirectory:
    """See the module.

    A file that turns invalid is logged once, and the previous users stay: a half-written file must
    not lock everybody out.

    Args: memory_bytes_max: most that checking one password may take.
    Raises: ConfigError when the file is invalid at the start.
    """

    def __init__(self, path: Path, memory_bytes_max: int = sys.maxsize) -> None:
        self._path = path
        self._memory_bytes_max = memory_bytes_max
        self._changed: Callable[[], None] | None = None
        self._file = WatchedFile(path, self._read_again, self._accept, self._refuse)
        self._users = self._read()
        # Without one in the file, it lasts as long as the process.
        self._secret = secrets.token_bytes(SECRET_BYTES)
        # Proof of a hash that the gateway replaced -> proof of the new hash of that password.
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
        """Watch the file until cancelled. *changed*: called when a user's access has changed."""
        self._changed = changed
        try:
            await self._file.watch(WATCH_INTERVAL_S)
        finally:
            self._changed = None

    async def refresh(self) -> None:
        """Reread the file if it has changed. Cancellation: the next call reads it."""
        await self._file.refresh()

    async def reload(self) -> None:
        """Read the file. Raises: ConfigError; the previous users stay."""
        await self._file.reload()

    def _accept(self, read: tuple[Users, bool]) -> None:
        self._users, differs = read
        logger.info("users read again file=%s users=%d", self._path, len(self._users.names))
        if self._changed is not None and differs:
            self._changed()

    def _refuse(self, error: ConfigError) -> None:
        logger.error("users unchanged, the new file has an error: %s", error.problem)

    def principal(self, name: str, found: PasswordHash) -> Principal | None:
        """The principal whose password matched *found*; None: gone, or the password has changed."""
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
        """*after* is of the same password as *before*, so nobody is logged out."""
        self._rehashed[self._proof(name, before)] = self._proof(name, after)

    def _counts(self, proof: str, name: str, users: Users) -> bool:
        accepted = proof, self._rehashed.get(proof)
        return any(self._proof(name, found) in accepted for found in users.hashes_of(name))

    def _proof(self, name: str, found: PasswordHash) -> str:
        """A digest that tells hashes apart and reveals nothing about them."""
        digest = hashlib.blake2b(key=self._secret, digest_size=16)
        digest.update(f"{name}:{found.written()}".encode())
        return digest.hexdigest()

    def find_hash(self, name: str) -> tuple[PasswordHash | None, bool]:
        """The hash for the plain password of *name*, and whether there is such a user.

        For an unknown user it is another user's, so that timing does not reveal who exists; None
        when there are no users at all.
        """
        users = self._users
        found = users.hash_of(name)
        if found is not None:
            return found, True
        return users.hash_like(name, users.secret or self._secret), False

    def find(self, name: str, method: str) -> tuple[Verifier, bool]:
        """The SCRAM verifier of *name*, and whether there is one.

        For an unknown user it is made up, always the same for a name, so that answers do not
        reveal who exists.
        """
        verifier = self._users.get(name, method)
        if verifier is not None:
            return verifier, True
        return self._users.made_up(name, method, self._users.secret or self._secret), False

    def _read_again(self) -> tuple[Users, bool]:
        """The current users, and whether anyone left, or changed groups or password."""
        before, users = self._users, self._read()
        return users, any(
            users.groups_of(name) != before.groups_of(name) or self._lost(name, before, users)
            for name in before.names
        )

    def _lost(self, name: str, before: Users, after: Users) -> bool:
        """Whether the proof that *name* was admitted by may be void now."""
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
