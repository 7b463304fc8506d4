"""The owner of a client's certificate, and the owner's groups: ``tls_principal``, ``tls_groups``.

The certificate has been verified: an authority in ``tls_ca`` vouches for its contents. The value that names
the principal must occur exactly once: of two common names nobody knows which one the authority checked.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, cast

from tidegate.spi import ConfigError, Principal
from tidegate_protocols.transport._tls import ATTRIBUTES, TlsOptions, subject_of

#: Names that :meth:`ssl.SSLSocket.getpeercert` uses for kinds of subject alternative names.
_ALTERNATIVES: Final = {"SAN:DNS": "DNS", "SAN:email": "email", "SAN:URI": "URI"}

#: Longest name, or group, taken from a certificate, in characters.
NAME_MAX: Final = 1024


#: For a certificate as ``getpeercert()`` returns it; see :meth:`PrincipalRule.principal_of`.
PrincipalOf: TypeAlias = Callable[[Mapping[str, object] | None], Principal | None]

#: The client must not be let in.
NOBODY: Final = Principal("")


def nobody(_: Mapping[str, object] | None) -> Principal | None:
    """Without a rule the authenticators decide."""
    return None


class PrincipalRule:
    """Maps certificates to names of principals. Raises: ConfigError for options without effect."""

    def __init__(self, options: TlsOptions) -> None:
        self._source = options.tls_principal
        self._groups_source = options.tls_groups
        self._unmatched = NOBODY if options.tls_principal_unmatched == "refuse" else None
        self._pattern: re.Pattern[str] | None = None
        self._groups_pattern: re.Pattern[str] | None = None
        if self._source == "none":
            for name in ("tls_principal_pattern", "tls_principal_unmatched", "tls_groups"):
                if getattr(options, name) != getattr(TlsOptions(), name):
                    raise ConfigError(
                        "has no effect because tls_principal is 'none'; set "
                        "tls_principal to the part of the certificate to read",
                        key=name,
                    )
            return
        if options.tls_client_certificate == "none":
            raise ConfigError(
                "needs client certificates; set tls_client_certificate to 'optional' or 'required'",
                key="tls_principal",
            )
        if options.tls_principal_pattern:
            self._pattern = _compiled(options.tls_principal_pattern, "tls_principal_pattern")
        if options.tls_groups_pattern:
            if self._groups_source == "none":
                raise ConfigError(
                    "has no effect because tls_groups is 'none'; set tls_groups to the "
                    "part of the certificate to read",
                    key="tls_groups_pattern",
                )
            self._groups_pattern = _compiled(options.tls_groups_pattern, "tls_groups_pattern")

    def principal_of(self, certificate: Mapping[str, object] | None) -> Principal | None:
        """The principal that the certificate names, until it expires.

        Args: certificate: what ``getpeercert()`` returned; None or empty: none was shown.
        Returns: None when the authenticators decide who it is; a principal without a name when the
            client must not be let in.
        """
        if not certificate or self._source == "none":
            return None
        found = self._names(certificate, self._source, self._pattern)
        groups = self._names(certificate, self._groups_source, self._groups_pattern)
        if len(found) != 1 or not all(
            name.isprintable() and len(name) <= NAME_MAX for name in found | groups
        ):
            return self._unmatched
        (name,) = found
        ends_at = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
        return Principal(name, groups, ends_at * 1_000_000)

    def _names(
        self, certificate: Mapping[str, object], source: str, pattern: re.Pattern[str] | None
    ) -> frozenset[str]:
        if source == "none":
            return frozenset()
        values = self._values(certificate, source)
        names = (_name_in(value, pattern, is_escaped=source == "subject") for value in values)
        return frozenset(name for name in names if name)

    @staticmethod
    def _values(certificate: Mapping[str, object], source: str) -> list[str]:
        """All values of *source* in the certificate."""
        if source == "subject":
            return [subject_of(certificate)]
        kind = _ALTERNATIVES.get(source)
        if kind is not None:
            names = cast("tuple[tuple[str, str], ...]", certificate.get("subjectAltName", ()))
            return [value for key, value in names if key == kind]
        subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
        return [
            value
            for relative in subject
            for key, value in relative
            if ATTRIBUTES.get(key, key) == source
        ]


def _name_in(value: str, pattern: re.Pattern[str] | None, *, is_escaped: bool) -> str:
    """The name in one *value*; "" when there is none."""
    if pattern is None:
        return value
    found = pattern.fullmatch(value)
    if found is None or (is_escaped and "\\" in found[1]):
        return ""  # half of an escape (RFC 4514 section 2.4) is not what the authority wrote
    return found[1]


def _compiled(text: str, key: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ConfigError(f"{text!r} is not a regular expression: {error}", key=key) from None
    if pattern.groups != 1:
        raise ConfigError(
            f"{text!r} has {pattern.groups} groups in parentheses; it needs one, around the name"
            " (write the others as '(?:…)')",
            key=key,
        )
    return pattern
