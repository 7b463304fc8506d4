"""How long the certificates named by options are valid: of listeners, sinks and extensions.

Each user of a file reads it for itself. Only its dates are read here, for every table with an option
``tls_certificate`` or ``tls_ca``, so no plugin has to report them. An expired certificate is no error: a gateway
that does not start serves nobody; one that starts and logs the problem still serves all clients that do not check.
"""

from __future__ import annotations

import enum
import importlib
import logging
from collections.abc import Collection, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from tidegate.spi.events import Event, Tell, log_only
from tidegate.spi.operate import CertificateEnd
from tidegate.spi.units import moment

if TYPE_CHECKING:
    from tidegate.config._resolve import ResolvedConfig

_log = logging.getLogger("tidegate.gateway")

#: A certificate ends soon when this many days are left: two thirds of the life of a 90-day certificate are over by
#: then, when its renewal (certbot, cert-manager) should have happened.
ENDS_SOON_DAYS: Final = 14


class Lasts(enum.Enum):
    """The state of a certificate at a given time."""

    LONG = "long"
    ENDS_SOON = "ends soon"
    HAS_ENDED = "has ended"
    HAS_NOT_BEGUN = "has not begun"


_EVENTS: Final = {
    Lasts.ENDS_SOON: Event.CERTIFICATE_ENDS,
    Lasts.HAS_ENDED: Event.CERTIFICATE_INVALID,
    Lasts.HAS_NOT_BEGUN: Event.CERTIFICATE_INVALID,
}


def lasts(certificate: CertificateEnd, now: int) -> Lasts:
    """Args: now: microseconds since the epoch."""
    if now >= certificate.ends_at:
        return Lasts.HAS_ENDED
    if now < certificate.begins_at:
        return Lasts.HAS_NOT_BEGUN
    is_soon = now >= certificate.ends_at - ENDS_SOON_DAYS * 86_400_000_000
    return Lasts.ENDS_SOON if is_soon else Lasts.LONG


def certificate_problem(certificate: CertificateEnd, now: int) -> str:
    """What is wrong with its dates, as a sentence, and what to do; "" when nothing is."""
    found = lasts(certificate, now)
    if found is Lasts.LONG:
        return ""
    whose = f"{certificate.path}: the certificate {certificate.subject or 'without a subject'}"
    renew = "put a new one there, then `tidegate reload`"
    match found:
        case Lasts.ENDS_SOON:
            return f"{whose} expires at {moment(certificate.ends_at // 1_000_000)}; {renew}"
        case Lasts.HAS_ENDED:
            return f"{whose} expired at {moment(certificate.ends_at // 1_000_000)}: peers that check it refuse it; {renew}"
        case Lasts.HAS_NOT_BEGUN:
            begins = moment(certificate.begins_at // 1_000_000)
            return f"{whose} is not valid before {begins}: peers that check it refuse it; check this machine's clock, or {renew}"


def certificate_ends(
    config: ResolvedConfig, had: Iterable[CertificateEnd] = (), read: Collection[str] = ()
) -> tuple[CertificateEnd, ...]:
    """The validity of every existing file that holds certificates. Reads them; blocks briefly.

    Args: had: the previous result; kept, except for tables that have *read* their files again.
    """
    tables: list[tuple[str, object]] = [(one.key, one.config.options) for one in config.listeners]
    tables += [(f"sinks[{number}]", one.options) for number, one in enumerate(config.sinks)]
    tables += [
        (f"extensions[{number}]", one.options) for number, one in enumerate(config.extensions)
    ]
    by_path = {one.path: one for one in had}
    found: list[CertificateEnd] = []
    for table, options in tables:
        for option in ("tls_certificate", "tls_ca"):
            path = getattr(options, option, None)
            if not isinstance(path, Path):
                continue
            key, old = f"{table}.{option}", by_path.get(str(path))
            end = None
            if old is None or table in read:
                end = _end(key, path, is_chain=option == "tls_certificate")
            if end is None and old is not None:
                end = replace(old, key=key)
            if end is not None:
                found.append(end)
    return tuple(found)


class CertificateWatch:
    """Watches for certificates that expire while the gateway runs. On the event loop.

    Attributes: known: all certificates; tell: reports events.
    """

    def __init__(self) -> None:
        self.known: tuple[CertificateEnd, ...] = ()
        self.tell: Tell = log_only
        self._told: dict[CertificateEnd, Lasts] = {}

    def look(self, now: int) -> None:
        """Report each whose state has changed since the last look. Args: now: microseconds since the epoch."""
        seen = {certificate: lasts(certificate, now) for certificate in self.known}
        told, self._told = self._told, seen
        for certificate, found in seen.items():
            event = _EVENTS.get(found)
            if event is not None and told.get(certificate) is not found:
                problem = certificate_problem(certificate, now)
                self.tell(event, _log, "option=%s %s", certificate.key, problem)

    @property
    def invalid(self) -> int:
        """How many had expired, or not begun, at the last look."""
        return sum(_EVENTS.get(found) is Event.CERTIFICATE_INVALID for found in self._told.values())


def _end(key: str, path: Path, *, is_chain: bool) -> CertificateEnd | None:
    """A chain ends with its first certificate; of authorities, one that is still valid is enough."""
    x509 = importlib.import_module("cryptography.x509")  # many gateways have no certificate
    try:
        there = x509.load_pem_x509_certificates(path.read_bytes())
        chosen = (min if is_chain else max)(there, key=lambda one: one.not_valid_after_utc)
        begins, ends = _micros(chosen.not_valid_before_utc), _micros(chosen.not_valid_after_utc)
        return CertificateEnd(key, str(path), chosen.subject.rfc4514_string(), begins, ends)
    except (OSError, ValueError, x509.InvalidVersion):
        return None  # the user of the file has refused it


def _micros(date: datetime) -> int:
    return int(date.timestamp()) * 1_000_000
