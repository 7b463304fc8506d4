"""SCRAM verifiers, the stored form of passwords, written as in PostgreSQL.

``SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY``, the last three in base64. A reader cannot
log in with it but can guess passwords (RFC 5802 section 9), so it is guarded like one.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from scramp import ScramMechanism  # pyright: ignore[reportMissingTypeStubs]  # untyped package
from scramp.utils import (  # pyright: ignore[reportMissingTypeStubs]
    ScramException,
    saslprep,  # pyright: ignore[reportUnknownVariableType]
)

#: Longest name and password, also in characters after preparation, which takes time proportional
#: to their length; and strangers send them.
NAME_BYTES_MAX: Final = 256
PASSWORD_BYTES_MAX: Final = 1024

#: The supported methods, and the length of their keys in bytes.
METHODS: Final[Mapping[str, int]] = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
METHOD_DEFAULT: Final = "SCRAM-SHA-256"

#: RFC 7677 section 4: at least 4096. The upper bound is the library's: what a client is told to do.
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 10_000_000

#: OWASP advises 600,000 for PBKDF2 with SHA-256 when the server does the work. With SCRAM every
#: client does it at every connection, and clients may be small; 100,000 cost a server core 25 ms.
ITERATIONS_DEFAULT: Final = 100_000

SALT_BYTES: Final = 16
_SALT_BYTES_MIN: Final = 12

_FORM: Final = re.compile(r"([A-Z0-9-]+)\$([1-9][0-9]{3,7}):([^$:]+)\$([^$:]+):([^$:]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Verifier:
    """Checks one password. Attributes: method, iterations, salt, stored_key, server_key."""

    method: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:  # the keys must never reach a log
        return f"Verifier({self.method}, {self.iterations} iterations)"

    def written(self) -> str:
        """As written in the file, with its keys."""
        salt, stored_key, server_key = (
            base64.b64encode(part).decode()
            for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"{self.method}${self.iterations}:{salt}${stored_key}:{server_key}"


def parse(text: str) -> Verifier:
    """Parse the written form. Raises: ValueError saying what is wrong, without the keys."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError("is not METHOD$ITERATIONS:SALT$STORED_KEY:SERVER_KEY")
    method, iterations = found[1], int(found[2])
    length = METHODS.get(method)
    if length is None:
        raise ValueError(f"has the method {method}; known are {', '.join(METHODS)}")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ValueError(
            f"has {iterations} iterations; from {ITERATIONS_MIN} (RFC 7677) to {ITERATIONS_MAX}"
            " are allowed"
        )
    try:
        salt, stored_key, server_key = (
            base64.b64decode(part, validate=True) for part in found.groups()[2:]
        )
    except (binascii.Error, ValueError):
        raise ValueError("has a salt or a key that is not base64") from None
    if len(salt) < _SALT_BYTES_MIN:
        raise ValueError(f"has a salt of {len(salt)} bytes; at least {_SALT_BYTES_MIN} are needed")
    if len(stored_key) != length or len(server_key) != length:
        raise ValueError(f"has a key that is not {length} bytes long")
    return Verifier(method, iterations, salt, stored_key, server_key)


def make(password: str, method: str, iterations: int, salt: bytes) -> Verifier:
    """Make a verifier. Takes 0.25 microseconds of CPU per iteration, outside the GIL.

    Raises: ValueError for a password that SASLprep (RFC 4013) prohibits, or an empty one.
    """
    mechanism = cast("Any", ScramMechanism)(method)
    try:
        if not _prepared(password, "password", PASSWORD_BYTES_MAX):
            raise ValueError("an empty password is not allowed")
        salt, stored_key, server_key, iterations = mechanism.make_auth_info(
            password, iteration_count=iterations, salt=salt
        )
    except ScramException as error:
        raise ValueError(f"a password cannot contain this: {error}") from None
    return Verifier(method, iterations, salt, stored_key, server_key)


def is_correct(password: str, verifier: Verifier) -> bool:
    """Whether *password* is correct; a wrong one costs the same. See :func:`make`."""
    try:
        made = make(password, verifier.method, verifier.iterations, verifier.salt)
    except ValueError:
        return False  # no user can have such a password
    return hmac.compare_digest(made.stored_key, verifier.stored_key)


def _prepared(text: str, what: str, bytes_max: int) -> str:
    """SASLprep (RFC 4013) of text from strangers: it takes 6 microseconds of CPU per character, and
    one may become 18, so text that is too long is refused first.

    Args: bytes_max: limits the resulting characters too.
    Raises: ValueError; ScramException for prohibited characters.
    """
    _check_length(text, what, bytes_max)
    if len(unicodedata.normalize("NFKC", text)) > bytes_max:
        raise ValueError(_too_long(what, bytes_max))
    return text if text.isascii() and text.isprintable() else saslprep(text)


def check_password(password: str) -> None:
    """Raises: ValueError for one that could not be used to log in."""
    _check_length(password, "password", PASSWORD_BYTES_MAX)


def _check_length(text: str, what: str, bytes_max: int) -> None:
    """Raises: ValueError."""
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"a {what} must be UTF-8 text") from None
    if length > bytes_max:
        raise ValueError(_too_long(what, bytes_max))


def _too_long(what: str, bytes_max: int) -> str:
    return f"a {what} must not be longer than {bytes_max} bytes"


def prepared_name(name: str) -> str:
    """*name* normalised for comparison (RFC 5802 section 5.1: SASLprep).

    Raises: ValueError for a prohibited or empty one.
    """
    try:
        prepared = _prepared(name, "user name", NAME_BYTES_MAX)
    except ScramException as error:
        raise ValueError(f"a user name cannot contain this: {error}") from None
    if not prepared:
        raise ValueError("a user name must not be empty")
    return prepared
