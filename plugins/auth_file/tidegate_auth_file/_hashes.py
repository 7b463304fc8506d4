"""Password hashes: our own (argon2id), and those of imported files.

Each is written as its own program writes it, so that files of ``htpasswd`` and ``mosquitto_passwd``
can be used as they are:

* ``$argon2id$v=19$m=19456,t=2,p=1$SALT$HASH``: PHC string format; ours, and mosquitto's of today
* ``$2y$…`` (also ``$2a$``, ``$2b$``): bcrypt, ``htpasswd -B``
* ``$apr1$…``, ``$1$…``, ``$5$…``, ``$6$…``: crypt, ``htpasswd -m``, ``-2``, ``-5``
* ``{SHA}…``: SHA-1 without a salt, ``htpasswd -s``
* ``$6$SALT$HASH`` with a hash in base64: SHA-512 of password and salt, ``mosquitto_passwd`` before 2.0
* ``$7$ITERATIONS$SALT$HASH``: PBKDF2 with HMAC-SHA-512, ``mosquitto_passwd``
* ``SCRAM-SHA-256$…``: see :mod:`._verifier`
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

import bcrypt
from argon2 import extract_parameters
from argon2.exceptions import Argon2Error, InvalidHashError
from argon2.low_level import Type, hash_secret, verify_secret
from passlib import hash as _crypt  # pyright: ignore[reportMissingTypeStubs]  # untyped package

from tidegate_auth_file._verifier import ITERATIONS_MAX, Verifier, is_correct, parse

#: Cost of our hashes: OWASP's first choice for argon2id of 2025 (19 MiB, 2 passes), some 20 ms of
#: a core. An attacker with the file pays as much for each guess, on hardware with that memory.
MEMORY_KIB: Final = 19_456
TIME_COST: Final = 2
PARALLELISM: Final = 1
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32

#: A file must not make a login take minutes: 2**16 rounds are some 4 s, each more doubles it.
_BCRYPT_COST_MAX: Final = 16
_CRYPT_ROUNDS_MAX: Final = 1_000_000
_TIME_COST_MAX: Final = 100

#: bcrypt ignores anything beyond, and htpasswd has always cut longer ones.
_BCRYPT_PASSWORD_BYTES: Final = 72

#: Where a hash begins in a line; what is before it is the user's name.
HASH_BEGINS: Final = re.compile(r":(?=SCRAM-|\{SHA\}|\$(?:argon2id|2[aby]|apr1|[1567])\$)")

_MOSQUITTO_6: Final = re.compile(r"\$6\$([^$]+)\$([A-Za-z0-9+/]{86}==)", re.ASCII)
_MOSQUITTO_7: Final = re.compile(r"\$7\$([1-9][0-9]{0,8})\$([^$]+)\$([^$]+)", re.ASCII)
_UNPADDED: Final = re.compile(r"[A-Za-z0-9+/]+", re.ASCII)
_BCRYPT: Final = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}", re.ASCII)


class PasswordHash(Protocol):
    """Checks one password.

    Attributes:
        kind: its name, for people.
        memory_bytes: memory that one check takes.
        is_ours: rehashing would gain nothing.
    """

    @property
    def kind(self) -> str: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def is_ours(self) -> bool: ...

    def written(self) -> str:
        """As written in the file."""
        ...

    def matches(self, password: str) -> bool:
        """Whether *password* is correct. Slow: call it in a thread."""
        ...


@dataclass(frozen=True, slots=True)
class _Text:
    """A hash that is kept as written."""

    text: str

    def __repr__(self) -> str:  # a hash must never reach a log
        return f"{type(self).__name__}(…)"

    def written(self) -> str:
        return self.text

    @property
    def memory_bytes(self) -> int:
        return 1 << 16

    @property
    def is_ours(self) -> bool:
        return False


@final
class Argon2(_Text):
    __slots__ = ()
    kind = "argon2id"

    @property
    def memory_bytes(self) -> int:
        return extract_parameters(self.text).memory_cost << 10

    @property
    def is_ours(self) -> bool:
        found = extract_parameters(self.text)
        return found.memory_cost >= MEMORY_KIB and found.time_cost >= TIME_COST

    def matches(self, password: str) -> bool:
        try:
            return verify_secret(self.text.encode(), password.encode(), Type.ID)
        except (Argon2Error, InvalidHashError):
            return False


@final
class Bcrypt(_Text):
    __slots__ = ()
    kind = "bcrypt"

    def matches(self, password: str) -> bool:
        data = password.encode()[:_BCRYPT_PASSWORD_BYTES]
        try:
            return bcrypt.checkpw(data, self.text.encode())
        except ValueError:  # contains NUL: no user can have such a password
            return False


@final
class Crypt(_Text):
    """apr1, md5-crypt, sha256-crypt, sha512-crypt."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        return _scheme(self.text)[0]

    def matches(self, password: str) -> bool:
        try:
            return bool(_scheme(self.text)[1].verify(password, self.text))
        except ValueError:  # NUL in it
            return False


@final
class Sha1(_Text):
    __slots__ = ()
    kind = "SHA-1"

    def matches(self, password: str) -> bool:
        made = hashlib.sha1(password.encode(), usedforsecurity=False).digest()
        return hmac.compare_digest(base64.b64encode(made).decode(), self.text[len("{SHA}") :])


@final
class Mosquitto(_Text):
    """``$6$`` and ``$7$`` of mosquitto_passwd."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        return "PBKDF2" if self.text.startswith("$7$") else "SHA-512"

    def matches(self, password: str) -> bool:
        if "\0" in password:  # HMAC ignores a NUL at the end of a key
            return False
        *iterations, salt, wanted = self.text.split("$")[2:]
        data, salt_bytes = password.encode(), base64.b64decode(salt)
        if iterations:
            made = hashlib.pbkdf2_hmac("sha512", data, salt_bytes, int(iterations[0]))
        else:
            made = hashlib.sha512(data + salt_bytes).digest()
        return hmac.compare_digest(made, base64.b64decode(wanted))


@final
@dataclass(frozen=True, slots=True)
class Scram:
    """A SCRAM verifier that checks plain passwords."""

    verifier: Verifier

    @property
    def kind(self) -> str:
        return self.verifier.method

    @property
    def memory_bytes(self) -> int:
        return 1 << 16

    @property
    def is_ours(self) -> bool:
        return True  # it must stay, or SCRAM clients could no longer log in

    def written(self) -> str:
        return self.verifier.written()

    def matches(self, password: str) -> bool:
        return is_correct(password, self.verifier)


def make_hash(
    password: str, *, memory_kib: int = MEMORY_KIB, time_cost: int = TIME_COST
) -> PasswordHash:
    """Hash a password. Slow: call it in a thread.

    Raises: ValueError for an empty one.
    """
    if not password:
        raise ValueError("an empty password is not allowed")
    made = hash_secret(
        password.encode(),
        secrets.token_bytes(_SALT_BYTES),
        time_cost=time_cost,
        memory_cost=memory_kib,
        parallelism=PARALLELISM,
        hash_len=_HASH_BYTES,
        type=Type.ID,
    )
    return Argon2(made.decode())


def parse_hash(text: str) -> PasswordHash:
    """Parse the written form. Raises: ValueError saying what is wrong, without the hash."""
    if text.startswith("SCRAM-"):
        return Scram(parse(text))
    if text.startswith("$argon2id$"):
        return _parse_argon2(text)
    if text.startswith("{SHA}"):
        if (
            len(_base64(text.removeprefix("{SHA}")))
            != hashlib.sha1(usedforsecurity=False).digest_size
        ):
            raise ValueError("has a {SHA} hash that is not 20 bytes in base64")
        return Sha1(text)
    if _MOSQUITTO_6.fullmatch(text) or text.startswith("$7$"):
        return _parse_mosquitto(text)
    found = _BCRYPT.fullmatch(text)
    if found is not None:
        if not 4 <= int(found[1]) <= _BCRYPT_COST_MAX:
            raise ValueError(
                f"has a bcrypt cost of {found[1]}; 4 to {_BCRYPT_COST_MAX} are allowed"
            )
        return Bcrypt(text)
    if text.startswith(("$apr1$", "$1$", "$5$", "$6$")):
        return _parse_crypt(text)
    raise ValueError(
        "has a hash of an unknown kind (known are argon2id, bcrypt, apr1, SHA-crypt, "
        "{SHA}, mosquitto's $6$ and $7$, SCRAM)"
    )


def _parse_argon2(text: str) -> PasswordHash:
    try:
        found = extract_parameters(text)
    except (InvalidHashError, ValueError):
        found = None
    parts = text.split("$")
    if found is None or len(parts) != 6 or not all(map(_UNPADDED.fullmatch, parts[4:])):
        raise ValueError("has an argon2id hash that is not in the PHC string format")
    if not 1 <= found.time_cost <= _TIME_COST_MAX or found.memory_cost < 8:
        raise ValueError(f"has an argon2id time cost that is not 1 to {_TIME_COST_MAX}")
    return Argon2(text)


def _parse_mosquitto(text: str) -> PasswordHash:
    found = _MOSQUITTO_7.fullmatch(text)
    if found is not None and int(found[1]) > ITERATIONS_MAX:
        raise ValueError(f"has {found[1]} iterations; up to {ITERATIONS_MAX} are allowed")
    found = found or _MOSQUITTO_6.fullmatch(text)
    if found is None:
        raise ValueError("has a hash that is not $7$ITERATIONS$SALT$HASH")
    _base64(found[found.re.groups - 1])
    if len(_base64(found[found.re.groups])) != hashlib.sha512().digest_size:
        raise ValueError("has a hash that is not 64 bytes in base64")
    return Mosquitto(text)


def _parse_crypt(text: str) -> PasswordHash:
    name, scheme = _scheme(text)
    try:
        rounds = int(getattr(scheme.from_string(text), "rounds", 0))
    except ValueError:
        raise ValueError(f"has a hash that is not of the form of {name}") from None
    if rounds > _CRYPT_ROUNDS_MAX:
        raise ValueError(f"has {rounds} rounds; up to {_CRYPT_ROUNDS_MAX} are allowed")
    return Crypt(text)


def _scheme(text: str) -> tuple[str, Any]:
    names = {
        "apr1": "apr_md5_crypt",
        "1": "md5_crypt",
        "5": "sha256_crypt",
        "6": "sha512_crypt",
    }
    name = names[text.split("$")[1]]
    return name.replace("_", "-"), getattr(_crypt, name)


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("has a salt or a hash that is not base64") from None
