"""The file of users: one ``NAME:VERIFIER`` a line, read again when it has changed.

A user may have a line for each method. Empty lines and those that begin with ``#`` mean nothing.
``!secret:BASE64`` is what the salts of users that do not exist are made of.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from tidegate.spi import ConfigError
from tidegate_auth_file._verifier import (
    ITERATIONS_DEFAULT,
    METHOD_DEFAULT,
    METHODS,
    SALT_BYTES,
    Verifier,
    parse,
    prepared_name,
)

logger = logging.getLogger("tidegate.auth_file")

#: Room for about 100,000 users; a larger file is a mistake that would take the memory.
FILE_BYTES_MAX: Final = 16 << 20

SECRET_PREFIX: Final = "!secret:"
SECRET_BYTES: Final = 32

_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP


class Users:
    """What the file says.

    Args: verifiers: by name and method; secret: None when it has none.
    """

    __slots__ = ("_alike", "_verifiers", "secret")

    def __init__(self, verifiers: Mapping[tuple[str, str], Verifier], secret: bytes | None) -> None:
        self._verifiers = verifiers
        self.secret = secret
        # What a user that does not exist is made like: sought for each attempt, so found quickly.
        self._alike: dict[str, list[Verifier]] = {"": list(verifiers.values())}
        for verifier in self._alike[""]:
            self._alike.setdefault(verifier.method, []).append(verifier)

    def get(self, name: str, method: str) -> Verifier | None:
        """The verifier of *name* for *method*; "" takes any that there is."""
        if method:
            return self._verifiers.get((name, method))
        for one in METHODS:
            verifier = self._verifiers.get((name, one))
            if verifier is not None:
                return verifier
        return None

    def made_up(self, name: str, method: str, secret: bytes) -> Verifier:
        """One that no password fits, the same salt for the same arguments, looking like others."""
        digest = hmac.new(secret, f"{method}\0{name}".encode(), hashlib.sha512).digest()
        alike = self._alike.get(method)
        like = alike[int.from_bytes(digest[:8], "big") % len(alike)] if alike else None
        made_method = method or (like.method if like else METHOD_DEFAULT)
        length = METHODS[made_method]
        return Verifier(
            made_method,
            like.iterations if like else ITERATIONS_DEFAULT,
            hashlib.shake_256(digest).digest(len(like.salt) if like else SALT_BYTES),
            secrets.token_bytes(length),
            secrets.token_bytes(length),
        )


def parse_users(text: str, where: str) -> Users:
    """Read the text of the file. Raises: ConfigError with *where* and the line."""
    verifiers: dict[tuple[str, str], Verifier] = {}
    secret: bytes | None = None
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        try:
            if not line or line.startswith("#"):
                continue
            if line.startswith(SECRET_PREFIX):
                secret = _parse_secret(line)
                continue
            name, mark, verifier_text = line.rpartition(":SCRAM-")
            if not mark:
                raise ValueError("is not NAME:SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY")
            verifier = parse(f"SCRAM-{verifier_text}")
            if name != prepared_name(name):
                raise ValueError(
                    "has a user name that is not in the form in which names are compared"
                    " (SASLprep); write it with 'add'"
                )
            key = name, verifier.method
            if key in verifiers:
                raise ValueError(f"is the second one of {name!r} with {verifier.method}")
        except ValueError as error:
            raise ConfigError(f"{where}: line {number} {error}", key="users") from None
        verifiers[key] = verifier
    return Users(verifiers, secret)


def _parse_secret(line: str) -> bytes:
    try:
        secret = base64.b64decode(line.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) < SECRET_BYTES:
        raise ValueError(f"is not {SECRET_PREFIX} and {SECRET_BYTES} bytes in base64")
    return secret


def read_users(path: Path) -> Users:
    """Read the file. Raises: ConfigError that says what is wrong and what to do."""
    try:
        # Of the open file, so that nobody can exchange it between the check and the reading.
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path} is not a file", key="users")
            if status.st_mode & _OTHERS:
                raise ConfigError(
                    f"{path} can be read or written by others (mode"
                    f" {stat.S_IMODE(status.st_mode):04o}), who could then try passwords;"
                    f" chmod 600 {path}",
                    key="users",
                )
            if status.st_size > FILE_BYTES_MAX:
                raise ConfigError(f"{path} is larger than {FILE_BYTES_MAX} bytes", key="users")
            text = file.read().decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", key="users") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; make it with"
            f" python -m tidegate_auth_file add {path} NAME",
            key="users",
        ) from None
    return parse_users(text, str(path))


@final
class UserDirectory:
    """The users of a file, as it is now.

    A file that has become wrong is reported in the log, once, and the users of before stay: a
    half-written file must not lock everybody out. Raises: ConfigError when it is wrong at first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._stamp_now()
        self._users = read_users(path)
        # Without one in the file it lasts as long as the process.
        self._secret = secrets.token_bytes(SECRET_BYTES)

    def _stamp_now(self) -> tuple[int, int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode

    async def refresh(self) -> None:
        """Read the file again if it has changed. Cancellation: the next call may see the old."""
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._users = await asyncio.to_thread(read_users, self._path)
            logger.info("users read again file=%s", self._path)
        except ConfigError as error:
            logger.error("users stay as they were: %s", error.problem)  # noqa: TRY400

    def find(self, name: str, method: str) -> tuple[Verifier, bool]:
        """What checks the password of *name*, and whether there is such a user.

        Of one that does not exist it is made up, always the same for a name, so that answers do
        not tell who exists. *method*: "" takes whatever the user has.
        """
        verifier = self._users.get(name, method)
        if verifier is not None:
            return verifier, True
        return self._users.made_up(name, method, self._users.secret or self._secret), False
