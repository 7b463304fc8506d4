"""Checks tokens and reads their claims: RFC 7519, with the advice of RFC 8725.

Never trusted: what a token says of its algorithm and where its key is (``jku``, ``jwk``, ``x5u``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import jwt
from jwt.exceptions import PyJWTError

from tidegate.spi import Principal
from tidegate_auth_jwt._keys import Key

#: Three parts in base64url: anything else is a password for other extensions.
_FORM: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")

#: Longest principal or group: names are compared, logged and stored.
NAME_CHARACTERS_MAX: Final = 256
GROUPS_MAX: Final = 1000

#: No clock gets there; its microseconds fit into 64 bits.
_EXPIRY_S_MAX: Final = 1 << 42


class Keys(Protocol):
    """Where keys are found."""

    def find(self, kid: str | None) -> Key | None: ...


class RefusedTokenError(ValueError):
    """What is wrong with a token; for the log, not for the client."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a token must satisfy.

    Attributes: issuer, audiences (one of them); leeway_s: between two clocks; principal_claim,
        groups_claim ("" for none): their names; required: other claims that it must have.
    """

    issuer: str
    audiences: Sequence[str]
    leeway_s: float
    principal_claim: str
    groups_claim: str
    required: Sequence[str]


def looks_like_a_token(password: bytes) -> bool:
    """Whether *password* may be one."""
    return _FORM.fullmatch(password) is not None


def principal_of(token: str, keys: Keys, rules: Rules) -> Principal:
    """The bearer, with the key's thumbprint as proof. Raises: RefusedTokenError."""
    try:
        header = cast("Mapping[str, object]", jwt.get_unverified_header(token))
        key = _key(header, keys)
        claims = cast(
            "Mapping[str, Any]",
            jwt.decode(
                token,
                cast("Any", key.key),
                algorithms=list(key.algorithms),
                issuer=rules.issuer,
                audience=list(rules.audiences),
                leeway=rules.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            ),
        )
    except RefusedTokenError:
        raise
    # The library passes on what its parsers raise: for endless numbers, for bottomless JSON.
    except (PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise RefusedTokenError(f"{type(error).__name__}: {error}") from None
    for name in rules.required:
        if _claim(claims, name) is None:
            raise RefusedTokenError(f"has no claim {name!r}")
    return Principal(
        _name(_claim(claims, rules.principal_claim), rules.principal_claim),
        _groups(claims, rules.groups_claim),
        _expires_at(claims["exp"], rules.leeway_s),
        key.thumbprint,
    )


def _key(header: Mapping[str, object], keys: Keys) -> Key:
    kid = header.get("kid")
    if kid is not None and not isinstance(kid, str):
        raise RefusedTokenError("has a kid that is no string")
    if "crit" in header:  # RFC 7515 section 4.1.11: refuse what is not understood
        raise RefusedTokenError("has critical headers, and none is understood")
    key = keys.find(kid)
    if key is None:
        what = (
            "names no key, and there are several"
            if kid is None
            else f"has the unknown kid {kid[:80]!r}"
        )
        raise RefusedTokenError(what)
    return key


def _claim(claims: Mapping[str, Any], name: str) -> object:
    """A claim, or a nested one: ``realm_access.roles``. None: there is none."""
    if name in claims:
        return cast("object", claims[name])
    found: object = claims
    for part in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = cast("Mapping[str, object]", found).get(part)
    return found


def _name(value: object, what: str) -> str:
    if not isinstance(value, str) or not value or len(value) > NAME_CHARACTERS_MAX:
        raise RefusedTokenError(f"{what} is no string of 1 to {NAME_CHARACTERS_MAX} characters")
    if not value.isprintable():
        raise RefusedTokenError(f"{what} has control characters")
    return value


def _groups(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    value = _claim(claims, claim) if claim else None
    if value is None:
        return frozenset()
    if isinstance(value, str):  # as `scope` is written (RFC 8693 section 4.2)
        value = value.split(" ")
    if not isinstance(value, list) or len(cast("list[object]", value)) > GROUPS_MAX:
        raise RefusedTokenError(f"{claim} is no list of at most {GROUPS_MAX} strings")
    return frozenset(_name(item, claim) for item in cast("list[object]", value) if item != "")


def _expires_at(exp: object, leeway_s: float) -> int:
    # An int may be larger than any float.
    is_number = type(exp) is int or (isinstance(exp, float) and math.isfinite(exp))
    if not is_number:
        raise RefusedTokenError("exp is no number")
    return int((min(cast("float", exp), _EXPIRY_S_MAX) + leeway_s) * 1_000_000)
