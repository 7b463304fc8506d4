"""Certificates that have ended are no error, and every file that an option names is looked at."""

from __future__ import annotations

import logging
import random
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tidegate.cli._run import warn_of_certificates
from tidegate.config import (
    CertificateWatch,
    Lasts,
    certificate_ends,
    certificate_problem,
    check_parts,
    lasts,
    load_config,
    resolve,
)
from tidegate.plugins import PluginHost
from tidegate.spi.events import Event
from tidegate.spi.operate import CertificateEnd

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
A_DAY = 86_400_000_000  # the same in microseconds


def micros(at: datetime) -> int:
    return int(at.timestamp()) * 1_000_000


def write(path: Path, ca: trustme.CA, begins: datetime, ends: datetime) -> Path:
    """Certificate and key in one file."""
    leaf = ca.issue_cert(
        "localhost",
        common_name="anna",
        organization_name="Pier",
        not_before=begins,
        not_after=ends,
    )
    blobs = [*leaf.cert_chain_pems, leaf.private_key_pem]
    path.write_bytes(b"".join(blob.bytes() for blob in blobs))
    path.chmod(0o600)
    return path


def config(directory: Path, listener: str) -> Path:
    path = directory / "gateway.toml"
    path.write_text(
        f'[[listeners]]\nprotocol = "stomp"\ntransport = "tls"\nbind = "127.0.0.1:0"\n{listener}\n'
    )
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("begins", "ends", "found", "says"),
    [
        (NOW - 100 * DAY, NOW + 100 * DAY, Lasts.LONG, ""),
        (NOW - 100 * DAY, NOW + 13 * DAY, Lasts.ENDS_SOON, " expires at "),
        (NOW - 100 * DAY, NOW - DAY, Lasts.HAS_ENDED, " expired at "),
        (NOW + DAY, NOW + 100 * DAY, Lasts.HAS_NOT_BEGUN, " is not valid before "),
        # A year of four digits: after 2049 the dates are written in another form.
        (NOW - DAY, NOW.replace(year=2081), Lasts.LONG, ""),
    ],
)
def test_a_listener_with_any_dates_is_taken_and_told_of(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    begins: datetime,
    ends: datetime,
    found: Lasts,
    says: str,
) -> None:
    pem = write(tmp_path / "server.pem", trustme.CA(), begins, ends)
    resolved = resolve(load_config(config(tmp_path, f'tls_certificate = "{pem}"')), PluginHost())
    check_parts(resolved)
    (end,) = certificate_ends(resolved)
    assert end == CertificateEnd(
        "listeners[0].tls_certificate", str(pem), end.subject, micros(begins), micros(ends)
    )
    assert "CN=anna" in end.subject
    assert lasts(end, micros(NOW)) is found
    problem = certificate_problem(end, micros(NOW))
    assert says in problem
    assert bool(problem) is bool(says)
    caplog.set_level(logging.WARNING)
    warn_of_certificates(resolved)
    assert says in caplog.text
    if says:
        assert f"option=listeners[0].tls_certificate {pem}: " in caplog.text
        assert "`tidegate reload`" in caplog.text


def test_the_first_of_a_chain_to_end_counts_and_the_last_of_authorities(tmp_path: Path) -> None:
    ca = trustme.CA()
    short = write(tmp_path / "short.pem", ca, NOW - 9 * DAY, NOW + DAY)
    chain = write(tmp_path / "chain.pem", ca, NOW - 9 * DAY, NOW + 50 * DAY)
    chain.write_bytes(chain.read_bytes() + short.read_bytes())
    authorities = tmp_path / "ca.pem"
    authorities.write_bytes(ca.cert_pem.bytes() + short.read_bytes())
    options = f'tls_certificate = "{chain}"\ntls_ca = "{authorities}"\ntls_client_certificate = "optional"'
    resolved = resolve(load_config(config(tmp_path, options)), PluginHost())
    first, last = certificate_ends(resolved)
    assert (first.key, first.ends_at) == ("listeners[0].tls_certificate", micros(NOW + DAY))
    assert last.key == "listeners[0].tls_ca"
    of_ca = x509.load_pem_x509_certificate(ca.cert_pem.bytes())
    assert last.ends_at == micros(of_ca.not_valid_after_utc)
    assert last.begins_at == micros(of_ca.not_valid_before_utc)


def test_files_of_sinks_and_extensions_are_looked_at_too(tmp_path: Path) -> None:
    pem = write(tmp_path / "server.pem", trustme.CA(), NOW - DAY, NOW + DAY)
    path = config(tmp_path, f'tls_certificate = "{pem}"')
    path.write_text(
        path.read_text()
        + f'[[extensions]]\nplugin = "bridge"\nname = "b"\nremote = "stomps://127.0.0.1:1"\ntls_ca = "{pem}"\n'
        + f'[[sinks]]\nplugin = "flight"\nname = "f"\ntls_certificate = "{pem}"\ntls_key = "{pem}"\n'
    )
    found = certificate_ends(resolve(load_config(path), PluginHost()))
    assert {end.key for end in found} == {
        "listeners[0].tls_certificate",
        "sinks[0].tls_certificate",
        "extensions[0].tls_ca",
    }


def test_tables_that_have_not_read_their_files_again_have_the_dates_that_they_had(
    tmp_path: Path,
) -> None:
    ca, pem, other = trustme.CA(), tmp_path / "server.pem", tmp_path / "other.pem"
    write(pem, ca, NOW - DAY, NOW + DAY)
    both = f'tls_certificate = "{pem}"\ntls_ca = "{other}"\ntls_client_certificate = "optional"'
    one = resolve(load_config(config(tmp_path, f'tls_certificate = "{pem}"')), PluginHost())
    had = certificate_ends(one)
    write(pem, ca, NOW - DAY, NOW + 9 * DAY)
    write(other, ca, NOW - DAY, NOW + 8 * DAY)
    resolved = resolve(load_config(config(tmp_path, both)), PluginHost())
    for read, ends in (([], 1), (["listeners[1]"], 1), (["listeners[0]"], 9)):
        kept, new = certificate_ends(resolved, had, read)
        assert (kept.ends_at, new.ends_at) == (micros(NOW + ends * DAY), micros(NOW + 8 * DAY))
    pem.unlink()
    assert certificate_ends(resolved, had, ["listeners[0]"])[:1] == had


def test_what_is_no_certificate_is_left_out(tmp_path: Path) -> None:
    """Whatever the file holds: it is read after whoever uses it has taken it."""
    pem = write(tmp_path / "server.pem", trustme.CA(), NOW - DAY, NOW + DAY)
    resolved = resolve(load_config(config(tmp_path, f'tls_certificate = "{pem}"')), PluginHost())
    der = x509.load_pem_x509_certificate(pem.read_bytes()).public_bytes(Encoding.DER)
    chosen = random.Random(7)
    for _ in range(2000):
        damaged = bytearray(der[: chosen.randrange(len(der) + 1)])
        for _ in range(chosen.randrange(4)):
            if damaged:
                damaged[chosen.randrange(len(damaged))] = chosen.randrange(256)
        pem.write_text(ssl.DER_cert_to_PEM_cert(bytes(damaged)))
        assert len(certificate_ends(resolved)) <= 1
    for contents in (b"", b"-----BEGIN CERTIFICATE-----\n", b"\xff" * 100):
        pem.write_bytes(contents)
        assert certificate_ends(resolved) == ()


def end(number: int, ends_at: int, path: str = "") -> CertificateEnd:
    return CertificateEnd(
        f"listeners[{number}].tls_certificate", path or f"/{number}.pem", "CN=a", A_DAY, ends_at
    )


class Watch(CertificateWatch):
    """Remembers what it told: event, option."""

    def __init__(self, *known: CertificateEnd) -> None:
        super().__init__()
        self.known = known
        self.told: list[tuple[str, object]] = []
        self.tell = self._heard

    def _heard(
        self,
        event: Event,
        log: logging.Logger,
        text: str,
        *values: object,
        error: BaseException | None = None,
    ) -> None:
        self.told.append((event.value, values[0]))

    def looked(self, now: int) -> list[tuple[str, object]]:
        self.told.clear()
        self.look(now)
        return self.told.copy()


def test_the_end_comes_near_and_comes() -> None:
    watch = Watch(end(0, 100 * A_DAY), end(1, 200 * A_DAY))
    name = "listeners[0].tls_certificate"
    early = [("certificate-invalid", name), ("certificate-invalid", "listeners[1].tls_certificate")]
    assert watch.looked(A_DAY - 1) == early
    assert watch.invalid == 2
    assert watch.looked(A_DAY) == []
    assert watch.looked(86 * A_DAY - 1) == []
    assert watch.looked(86 * A_DAY) == [("certificate-ends", name)]
    assert watch.looked(99 * A_DAY) == []
    assert watch.invalid == 0
    assert watch.looked(100 * A_DAY) == [("certificate-invalid", name)]
    assert watch.looked(150 * A_DAY) == []
    assert watch.invalid == 1
    watch.known = (end(0, 400 * A_DAY), end(1, 200 * A_DAY))
    assert watch.looked(150 * A_DAY) == []
    assert watch.invalid == 0
