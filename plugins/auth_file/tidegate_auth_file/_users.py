"""The format of the file of users: one ``NAME:HASH`` per line.

A user has at most one hash for plain passwords and one SCRAM verifier per method, each on its own
line; without the former a SCRAM verifier checks plain passwords too. Empty lines and lines that
begin with ``#`` are ignored. ``!groups:GROUP,GROUP:NAME`` gives a user's groups, and
``!secret:BASE64`` is the source of the salts for unknown users.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tidegate.spi import ConfigError, private_files
from tidegate_auth_file._hashes import HASH_BEGINS, PasswordHash, Scram, parse_hash
from tidegate_auth_file._verifier import (
    ITERATIONS_DEFAULT,
    METHODS,
    SALT_BYTES,
    Verifier,
    prepared_name,
)

#: Room for about 100,000 users; a larger file is a mistake that would use up memory.
FILE_BYTES_MAX: Final = 16 << 20

SECRET_PREFIX: Final = "!secret:"
SECRET_BYTES: Final = 32
GROUPS_PREFIX: Final = "!groups:"

#: Prefix of lines that are not a user's.
NOT_A_NAME: Final = ("#", "!")

#: A reserved name: the principal of clients that no extension authenticated.
ANONYMOUS: Final = "anonymous"

_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP
_GROUP: Final = re.compile(r"[^\s,:]{1,100}")


class Users:
    """The contents of the file.

    Args: hashes: for plain passwords, by name; verifiers: of SCRAM, by name and method; groups: by
        name; secret: None when it has none.
    """

    __slots__ = ("_alike", "_groups", "_hashes", "_plain", "_verifiers", "names", "secret")

    def __init__(
        self,
        hashes: Mapping[str, PasswordHash],
        verifiers: Mapping[tuple[str, str], Verifier],
        groups: Mapping[str, frozenset[str]],
        secret: bytes | None,
    ) -> None:
        self._hashes = dict(hashes)
        self._verifiers = verifiers
        self._groups = groups
        self.secret = secret
        for method in METHODS:  # a user's first verifier checks plain passwords
            for (name, its_method), verifier in verifiers.items():
                if its_method == method:
                    self._hashes.setdefault(name, Scram(verifier))
        self.names: frozenset[str] = frozenset(self._hashes)
        # The models for unknown users: needed at each attempt, so found quickly.
        self._plain: Sequence[PasswordHash] = list(self._hashes.values())
        self._alike: dict[str, list[Verifier]] = {}
        for verifier in verifiers.values():
            self._alike.setdefault(verifier.method, []).append(verifier)

    def groups_of(self, name: str) -> frozenset[str]:
        """The groups that *name* is in."""
        return self._groups.get(name, frozenset())

    def hash_of(self, name: str) -> PasswordHash | None:
        """What checks the plain password of *name*."""
        return self._hashes.get(name)

    def hash_like(self, name: str, secret: bytes) -> PasswordHash | None:
        """One as costly as those of others, always the same for a name; None: no users."""
        if not self._plain:
            return None
        digest = hmac.new(secret, name.encode(), hashlib.sha256).digest()
        return self._plain[int.from_bytes(digest[:8], "big") % len(self._plain)]

    def hashes(self) -> Iterator[tuple[str, PasswordHash]]:
        """All that check plain passwords."""
        return iter(self._hashes.items())

    def get(self, name: str, method: str) -> Verifier | None:
        """The verifier of *name* for *method*."""
        return self._verifiers.get((name, method))

    def verifiers_of(self, name: str) -> Sequence[Verifier]:
        """All verifiers of *name*."""
        return [found for method in METHODS if (found := self.get(name, method)) is not None]

    def hashes_of(self, name: str) -> Sequence[PasswordHash]:
        """Everything that checks passwords of *name*; empty if there is no such user."""
        plain = self._hashes.get(name)
        verifiers = [Scram(verifier) for verifier in self.verifiers_of(name)]
        return verifiers if plain is None else [plain, *verifiers]

    def made_up(self, name: str, method: str, secret: bytes) -> Verifier:
        """One that no password fits: looks like the others, with a salt fixed by the arguments."""
        digest = hmac.new(secret, f"{method}\0{name}".encode(), hashlib.sha512).digest()
        alike = self._alike.get(method)
        like = alike[int.from_bytes(digest[:8], "big") % len(alike)] if alike else None
        length = METHODS[method]
        return Verifier(
            method,
            like.iterations if like else ITERATIONS_DEFAULT,
            hashlib.shake_256(digest).digest(len(like.salt) if like else SALT_BYTES),
            secrets.token_bytes(length),
            secrets.token_bytes(length),
        )


def checked_name(name: str) -> str:
    """*name* normalised for comparison. Raises: ValueError for one that no user can have."""
    prepared = prepared_name(name)
    if prepared.startswith(NOT_A_NAME):
        raise ValueError(f"a user name must not begin with {prepared[0]!r}")
    if prepared == ANONYMOUS:
        raise ValueError(
            "'anonymous' is not allowed as a user name: it stands for clients without a user"
        )
    return prepared


def checked_groups(groups: Sequence[str]) -> frozenset[str]:
    """Raises: ValueError."""
    for group in groups:
        if not _GROUP.fullmatch(group):
            raise ValueError(
                f"{group[:40]!r} is not a valid group: 1 to 100 characters without "
                "spaces, ',' and ':'"
            )
    return frozenset(groups)


class _Parser:
    """Parses the lines of a file."""

    def __init__(self) -> None:
        self.hashes: dict[str, PasswordHash] = {}
        self.verifiers: dict[tuple[str, str], Verifier] = {}
        self.groups: dict[str, frozenset[str]] = {}
        self.groups_at: dict[str, int] = {}
        self.secret: bytes | None = None

    def take(self, number: int, line: str) -> None:
        """Raises: ValueError."""
        if not line or line.startswith("#"):
            return
        if line.startswith(SECRET_PREFIX):
            self.secret = _parse_secret(line)
        elif line.startswith(GROUPS_PREFIX):
            self._take_groups(number, line.removeprefix(GROUPS_PREFIX))
        else:
            self._take_user(line)

    def _take_groups(self, number: int, text: str) -> None:
        listed, mark, name = text.partition(":")
        if not mark:
            raise ValueError(f"is not {GROUPS_PREFIX}GROUP,GROUP:NAME")
        _check_is_prepared(name)
        if name in self.groups:
            raise ValueError(f"is the second one with groups of {name!r}")
        self.groups[name] = checked_groups(listed.split(","))
        self.groups_at[name] = number

    def _take_user(self, line: str) -> None:
        name, text = split_line(line)
        _check_is_prepared(name)
        found = parse_hash(text)
        if isinstance(found, Scram):
            key = name, found.verifier.method
            if key in self.verifiers:
                raise ValueError(f"is the second one of {name!r} with {found.kind}")
            self.verifiers[key] = found.verifier
            return
        if name in self.hashes:
            raise ValueError(f"is the second one of {name!r} with a hash for plain passwords")
        self.hashes[name] = found

    def users(self) -> Users:
        """Raises: ValueError with the line in front."""
        names = {*self.hashes, *(name for name, _ in self.verifiers)}
        for name, number in self.groups_at.items():
            if name not in names:
                raise ValueError(
                    f"line {number} gives groups to {name!r}, which is not a user in this file"
                )
        return Users(self.hashes, self.verifiers, self.groups, self.secret)


def parse_users(text: str, where: str) -> Users:
    """Read the text of the file. Raises: ConfigError with *where* and the line."""
    parser = _Parser()
    for number, line in enumerate(text.split("\n"), 1):
        try:
            parser.take(number, line.removesuffix("\r"))
        except ValueError as error:
            raise ConfigError(f"{where}: line {number} {error}", key="users") from None
    try:
        return parser.users()
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", key="users") from None


def split_line(line: str) -> tuple[str, str]:
    """Name and hash of a user's line. Raises: ValueError."""
    marks = list(HASH_BEGINS.finditer(line))
    if not marks:
        raise ValueError("is not NAME:HASH with a hash of a known kind; see docs/users.md")
    mark = marks[-1]
    return line[: mark.start()], line[mark.end() :]


def _check_is_prepared(name: str) -> None:
    if name != checked_name(name):
        raise ValueError(
            "has a user name that is not in the form in which names are compared"
            " (SASLprep); write it with `tidegate user add`"
        )


def _parse_secret(line: str) -> bytes:
    try:
        secret = base64.b64decode(line.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) < SECRET_BYTES:
        raise ValueError(f"is not {SECRET_PREFIX} and {SECRET_BYTES} bytes in base64")
    return secret


def read_users(path: Path) -> Users:
    """Read the file. Raises: ConfigError saying what is wrong and what to do."""
    return parse_users(read_text(path), str(path))


def read_text(path: Path) -> str:
    """The text of a file that only its owner, and perhaps a group, may read. Raises: ConfigError."""
    return private_files.read_text(
        path,
        key="users",
        bytes_max=FILE_BYTES_MAX,
        others=_OTHERS,
        danger="try passwords",
        missing=f"create it with: tidegate user add --file {path} NAME",
    )
