"""Who the owner of a client's certificate is: the rule of a listener, ``tls_principal``.

The certificate was verified by then: an authority in ``tls_ca`` vouches for what it says. What the rule
reads must be there once: of two common names nobody knows which one the authority looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, cast

from tidegate.spi import ConfigError
from tidegate_protocols.transport._tls import ATTRIBUTES, TlsOptions, subject_of

#: What a kind of subject alternative name is called by :meth:`ssl.SSLSocket.getpeercert`.
_ALTERNATIVES: Final = {"SAN:DNS": "DNS", "SAN:email": "email", "SAN:URI": "URI"}

#: Longest name that a certificate gives somebody, in characters.
NAME_MAX: Final = 1024


#: Of a certificate as ``getpeercert()`` returns it; see :meth:`PrincipalRule.principal_of`.
PrincipalOf: TypeAlias = Callable[[Mapping[str, object] | None], str | None]


def nobody(_: Mapping[str, object] | None) -> str | None:
    """Without a rule it is for the authenticators to say."""
    return ""


class PrincipalRule:
    """Maps certificates to names of principals. Raises: ConfigError for options without effect."""

    def __init__(self, options: TlsOptions) -> None:
        self._source = options.tls_principal
        self._unmatched = None if options.tls_principal_unmatched == "refuse" else ""
        self._pattern: re.Pattern[str] | None = None
        if self._source == "none":
            for name in ("tls_principal_pattern", "tls_principal_unmatched"):
                if getattr(options, name) != getattr(TlsOptions(), name):
                    raise ConfigError(
                        "has no effect while tls_principal is 'none'; say there what is to be read",
                        key=name,
                    )
            return
        if options.tls_client_certificate == "none":
            raise ConfigError(
                "clients show no certificate to take it from; set tls_client_certificate",
                key="tls_principal",
            )
        if options.tls_principal_pattern:
            self._pattern = _compiled(options.tls_principal_pattern)

    def principal_of(self, certificate: Mapping[str, object] | None) -> str | None:
        """The principal's name.

        Args: certificate: what ``getpeercert()`` returned; None or empty: none was shown.
        Returns: "" when the authenticators are to say who it is, None when nobody is to be let in.
        """
        if not certificate or self._source == "none":
            return ""
        found = {name for value in self._values(certificate) if (name := self._name_in(value))}
        if len(found) == 1:
            (name,) = found
            if name.isprintable() and len(name) <= NAME_MAX:
                return name
        return self._unmatched

    def _values(self, certificate: Mapping[str, object]) -> list[str]:
        """What there is to be read; nothing when one attribute is there twice."""
        source = self._source
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

    def _name_in(self, value: str) -> str:
        """The name in one *value*; "" when there is none."""
        if self._pattern is None:
            return value
        found = self._pattern.fullmatch(value)
        if found is None or (self._source == "subject" and "\\" in found[1]):
            return ""  # half of an escape (RFC 4514 section 2.4) is not what the authority wrote
        return found[1]


def _compiled(text: str) -> re.Pattern[str]:
    key = "tls_principal_pattern"
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ConfigError(f"{text!r} is no regular expression: {error}", key=key) from None
    if pattern.groups != 1:
        raise ConfigError(
            f"{text!r} has {pattern.groups} groups in parentheses; it needs one, around the name"
            " (write the others as '(?:…)')",
            key=key,
        )
    return pattern
