"""The keys that tokens may be signed with: a JWKS file (RFC 7517), reread when it changes.

Public keys only: anyone with a shared secret could make tokens, and a file with private keys is a
mistake worth reporting. What a key may be used for follows from the key, never from a token.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, final

from jwt import PyJWK
from jwt.exceptions import PyJWTError

from tidegate.spi import ConfigError, private_files
from tidegate.spi.private_files import WRITABLE
from tidegate.spi.watched_file import WatchedFile

logger = logging.getLogger("tidegate.auth_jwt")

#: Hundreds of keys; a larger file is a mistake.
FILE_BYTES_MAX: Final = 1 << 20

#: How often the file is checked.
WATCH_INTERVAL_S: Final = 1.0

#: NIST SP 800-57: shorter ones no longer protect.
RSA_BITS_MIN: Final = 2048

#: By key type and curve (RFC 7518 section 6, RFC 8037): the algorithms that such a key is for.
_ALGORITHMS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("RSA", ""): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
}

#: All algorithms that can be configured.
ALGORITHMS: Final = tuple(dict.fromkeys(name for names in _ALGORITHMS.values() for name in names))

#: The members that identify a key (RFC 7638 section 3.2), over all kinds: no kind has an optional
#: member that another kind requires.
_REQUIRED: Final = ("crv", "e", "kty", "n", "x", "y")

#: Any of these is part of a private key or a shared secret (RFC 7518 section 6, RFC 8037), whatever
#: kind the key claims to be.
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv"})


@dataclass(frozen=True, slots=True)
class Key:
    """One public key.

    Attributes: kid ("" for none); key: the library's; algorithms: that it may be used with;
        thumbprint: identifies it, whatever its name (RFC 7638).
    """

    kid: str
    key: object
    algorithms: tuple[str, ...]
    thumbprint: str


def parse_keys(text: str, allowed: Collection[str], where: str) -> dict[str, Key]:
    """Parse a JWKS, by key id. Keys that cannot sign with *allowed* are left out.

    Raises: ConfigError with *where* and the number of the key.
    """
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}", key="jwks") from None
    listed = cast("dict[str, object]", document).get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ConfigError(f'{where} is no JWKS: it must be {{"keys": […]}}', key="jwks")
    found: dict[str, Key] = {}
    for number, item in enumerate(cast("list[object]", listed), 1):
        try:
            key = _parse_key(item, allowed)
            if key is None:
                continue
            if key.kid in found:
                raise ValueError(f"has the same kid as another one: {key.kid!r}")
        except ValueError as error:
            raise ConfigError(f"{where}: key {number} {error}", key="jwks") from None
        found[key.kid] = key
    if not found:
        raise ConfigError(
            f"{where} has no key for signatures with {', '.join(allowed)}", key="jwks"
        )
    return found


def _parse_key(item: object, allowed: Collection[str]) -> Key | None:
    """Raises: ValueError."""
    if not isinstance(item, dict):
        raise ValueError("is no object")
    data = cast("dict[str, Any]", item)
    kty, crv, kid = data.get("kty"), data.get("crv", ""), data.get("kid", "")
    if not isinstance(kid, str):
        raise ValueError("has a kid that is no string")
    if kty == "oct":
        raise ValueError("is a shared secret (oct): whoever can check tokens could make them")
    if _PRIVATE & data.keys():
        raise ValueError("is a private key: only its public part belongs here")
    operations = data.get("key_ops", ["verify"])
    if not isinstance(operations, list):
        raise ValueError("has key_ops that are no list")
    if data.get("use", "sig") != "sig" or "verify" not in operations:
        return None
    algorithms = _ALGORITHMS.get((str(kty), str(crv)), ())
    if "alg" in data:
        algorithms = tuple(name for name in algorithms if name == data["alg"])
    algorithms = tuple(name for name in algorithms if name in allowed)
    if not algorithms:
        return None
    try:
        key = PyJWK(data, algorithms[0]).key
    except (PyJWTError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"cannot be read: {type(error).__name__}: {error}") from None
    if kty == "RSA" and key.key_size < RSA_BITS_MIN:
        raise ValueError(f"has {key.key_size} bits; at least {RSA_BITS_MIN} are needed")
    return Key(kid, key, algorithms, _thumbprint(data))


def _thumbprint(data: Mapping[str, object]) -> str:
    required = {name: data[name] for name in _REQUIRED if name in data}
    text = json.dumps(required, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_keys(path: Path, allowed: Collection[str]) -> dict[str, Key]:
    """Read the file. Raises: ConfigError saying what is wrong and what to do."""
    text = private_files.read_text(
        path,
        key="jwks",
        bytes_max=FILE_BYTES_MAX,
        others=WRITABLE,
        danger="let themselves in",
        missing="fetch it from the issuer (`jwks_uri` of its /.well-known/openid-configuration)",
    )
    return parse_keys(text, allowed, str(path))


@final
class KeyFile:
    """The current keys of a file.

    A file that turns invalid is logged once, and the previous keys stay.

    Raises: ConfigError when it is invalid at the start.
    """

    def __init__(self, path: Path, allowed: Collection[str]) -> None:
        self._path = path
        self._allowed = allowed
        self._file = WatchedFile(path, self._read, self._accept, self._refuse)
        self._keys = self._read()
        self._prints = {key.thumbprint for key in self._keys.values()}
        self._changed: Callable[[], None] | None = None

    def has(self, thumbprint: str) -> bool:
        """Whether the key is there."""
        return thumbprint in self._prints

    def find(self, kid: str | None) -> Key | None:
        """The key *kid*. A token that names none gets the only key, if there is just one."""
        if kid is not None:
            return self._keys.get(kid)
        return next(iter(self._keys.values())) if len(self._keys) == 1 else None

    async def watch(self, changed: Callable[[], None]) -> None:
        """Watch the file until cancelled. *changed*: called when a key is gone."""
        self._changed = changed
        try:
            await self._file.watch(WATCH_INTERVAL_S)
        finally:
            self._changed = None

    async def refresh(self) -> None:
        """Reread the file if it has changed."""
        await self._file.refresh()

    async def reload(self) -> None:
        """Read the file. Raises: ConfigError; the previous keys stay."""
        await self._file.reload()

    def _read(self) -> dict[str, Key]:
        return read_keys(self._path, self._allowed)

    def _accept(self, keys: dict[str, Key]) -> None:
        before, self._keys = self._prints, keys
        self._prints = {key.thumbprint for key in keys.values()}
        logger.info("keys read again file=%s keys=%d", self._path, len(keys))
        if self._changed is not None and not before <= self._prints:
            self._changed()

    def _refuse(self, error: ConfigError) -> None:
        logger.error("keys stay as they were: %s", error.problem)
