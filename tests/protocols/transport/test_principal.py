"""Which principal a certificate names, by real certificates over real handshakes."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.x509.oid import NameOID

from tidegate.spi import ConfigError, Principal, parse_options
from tidegate_protocols.transport import TransportOptions
from tidegate_protocols.transport._principal import NAME_MAX, PrincipalRule
from tidegate_protocols.transport._tls import server_context


def options(files: Path, **changes: str) -> TransportOptions:
    table = {
        "tls_certificate": str(files / "server.pem"),
        "tls_key": str(files / "server.key"),
        "tls_ca": str(files / "ca.pem"),
        "tls_client_certificate": "required",
        **changes,
    }
    return parse_options(TransportOptions, {key: value for key, value in table.items() if value})


def seen(files: Path, client: ssl.SSLContext) -> dict[str, Any]:
    """What a listener sees of the certificate, by a handshake in memory."""
    server = server_context(options(files))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = server.wrap_bio(to_server, to_client, server_side=True)
    here = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(8):
        for side in (here, there):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    found = there.getpeercert()
    assert found
    return found


def context(authority: trustme.CA) -> ssl.SSLContext:
    made = ssl.create_default_context()
    authority.configure_trust(made)
    return made


@pytest.fixture(scope="module")
def anna(authority: trustme.CA, files: Path) -> dict[str, Any]:
    """CN=anna,O=Pier with several alternative names."""
    made = context(authority)
    authority.issue_cert(
        "anna@harbour.example", "anna.harbour.example", common_name="anna", organization_name="Pier"
    ).configure_cert(made)
    return seen(files, made)


def forged(authority: trustme.CA, files: Path, *names: tuple[Any, str]) -> dict[str, Any]:
    """What is seen of a certificate with these names in its subject, from the listener's authority."""
    import datetime

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    ca = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    signer = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in names])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(signer, hashes.SHA256())  # type: ignore[arg-type]  # trustme makes EC keys
    )
    encoding = serialization.Encoding.PEM
    path = files / "forged.pem"
    path.write_bytes(
        certificate.public_bytes(encoding)
        + key.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    made = context(authority)
    made.load_cert_chain(path)
    return seen(files, made)


def principal(files: Path, certificate: dict[str, Any] | None, **changes: str) -> Principal | None:
    return PrincipalRule(options(files, **changes)).principal_of(certificate)


def named(files: Path, certificate: dict[str, Any] | None, **changes: str) -> str | None:
    """ "" when the authenticators are to say, None when nobody is to be let in."""
    found = principal(files, certificate, **changes)
    return "" if found is None else found.name or None


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"tls_principal": "CN"}, "anna"),
        ({"tls_principal": "O"}, "Pier"),
        ({"tls_principal": "SAN:email"}, "anna@harbour.example"),
        ({"tls_principal": "SAN:DNS"}, "anna.harbour.example"),
        (
            {"tls_principal": "SAN:DNS", "tls_principal_pattern": r"([^.]+)\.harbour\.example"},
            "anna",
        ),
        ({"tls_principal": "subject", "tls_principal_pattern": "CN=([a-z]+),.*O=Pier"}, "anna"),
        ({"tls_principal": "CN", "tls_principal_pattern": "(ann|an)"}, None),  # all of it
        ({"tls_principal": "UID"}, None),
        ({"tls_principal": "SAN:URI"}, None),
        ({"tls_principal": "UID", "tls_principal_unmatched": "authenticate"}, ""),
        ({}, ""),
    ],
)
def test_a_rule_reads_one_thing_of_a_certificate(
    files: Path, anna: dict[str, Any], changes: dict[str, str], name: str | None
) -> None:
    assert named(files, anna, **changes) == name


def test_a_client_without_a_certificate_is_left_to_the_authenticators(files: Path) -> None:
    assert named(files, None, tls_principal="CN", tls_client_certificate="optional") == ""
    assert named(files, {}, tls_principal="CN", tls_client_certificate="optional") == ""


CN, ORG = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME
SUBJECT = {"tls_principal": "subject", "tls_principal_pattern": "CN=(.+),O=Pier"}


@pytest.mark.parametrize(
    ("names", "changes"),
    [
        # Of two names nobody knows which one was checked; the order of a subject is the client's.
        ([(CN, "anna"), (CN, "admin")], {"tls_principal": "CN"}),
        ([(CN, "admin"), (CN, "anna")], {"tls_principal": "CN"}),
        ([(ORG, "Pier")], {"tls_principal": "CN"}),
        ([(CN, "an\0na")], {"tls_principal": "CN"}),
        ([(CN, "anna\n")], {"tls_principal": "CN"}),
        # What looks like another attribute is escaped in the subject, and cannot be cut in halves.
        ([(ORG, "Jetty"), (CN, "admin,O=Pier")], SUBJECT),
        ([(ORG, "Pier"), (CN, "admin,O=Pier")], SUBJECT),
    ],
)
def test_a_certificate_that_is_not_clear_names_nobody(
    authority: trustme.CA, files: Path, names: list[tuple[Any, str]], changes: dict[str, str]
) -> None:
    certificate = forged(authority, files, *names)
    assert named(files, certificate, **changes) is None
    assert named(files, certificate, tls_principal_unmatched="authenticate", **changes) == ""


UNIT = NameOID.ORGANIZATIONAL_UNIT_NAME


@pytest.mark.parametrize(
    ("names", "changes", "groups"),
    [
        ([(UNIT, "sensors"), (UNIT, "pier 3"), (UNIT, "sensors")], {}, {"sensors", "pier 3"}),
        ([(ORG, "sensors")], {}, set()),
        ([(ORG, "sensors")], {"tls_groups": "O"}, {"sensors"}),
        ([(UNIT, "group:a"), (UNIT, "b")], {"tls_groups_pattern": "group:(.*)"}, {"a"}),
        ([(UNIT, "group:")], {"tls_groups_pattern": "group:(.*)"}, set()),
        ([(UNIT, "sensors")], {"tls_groups": "SAN:DNS"}, set()),
    ],
)
def test_a_certificate_says_in_which_groups_its_owner_is(
    authority: trustme.CA,
    files: Path,
    names: list[tuple[Any, str]],
    changes: dict[str, str],
    groups: set[str],
) -> None:
    certificate = forged(authority, files, (CN, "anna"), *names)
    rule = {"tls_principal": "CN", "tls_groups": "OU", **changes}
    assert principal(files, certificate, **rule) == Principal(
        "anna", frozenset(groups), ssl.cert_time_to_seconds(certificate["notAfter"]) * 1_000_000
    )


def test_alternative_names_are_groups_too(files: Path, anna: dict[str, Any]) -> None:
    found = principal(files, anna, tls_principal="CN", tls_groups="SAN:email")
    assert found is not None
    assert found.groups == {"anna@harbour.example"}


@pytest.mark.parametrize("group", ["sen\nsors", "x" * (NAME_MAX + 1)])
def test_a_group_that_cannot_be_one_names_nobody(files: Path, group: str) -> None:
    """A rule that denies it would be got around if it were left out."""
    subject = ((("commonName", "anna"),), (("organizationalUnitName", group),))
    certificate = {"subject": subject, "notAfter": "Jan  1 00:00:00 2030 GMT"}
    assert named(files, certificate, tls_principal="CN", tls_groups="OU") is None
    assert named(files, certificate, tls_principal="CN") == "anna"


def test_names_are_bounded(files: Path) -> None:
    def subject(count: int) -> dict[str, Any]:
        subject = ((("commonName", "x" * count),),)
        return {"subject": subject, "notAfter": "Jan  1 00:00:00 2030 GMT"}

    assert named(files, subject(NAME_MAX), tls_principal="CN") == "x" * NAME_MAX
    assert named(files, subject(NAME_MAX + 1), tls_principal="CN") is None


@pytest.mark.parametrize(
    ("changes", "key", "problem"),
    [
        ({"tls_principal": "CN", "tls_client_certificate": "", "tls_ca": ""}, "tls_principal",
         "needs client certificates"),
        ({"tls_principal_pattern": "(.*)"}, "tls_principal_pattern", "has no effect"),
        ({"tls_principal_unmatched": "authenticate"}, "tls_principal_unmatched", "has no effect"),
        ({"tls_principal": "CN", "tls_principal_pattern": "("}, "tls_principal_pattern",
         "not a regular expression"),
        ({"tls_principal": "CN", "tls_principal_pattern": ".*"}, "tls_principal_pattern",
         "has 0 groups"),
        ({"tls_principal": "CN", "tls_principal_pattern": "(a)(b)"}, "tls_principal_pattern",
         "has 2 groups"),
        ({"tls_principal": "cn"}, "tls_principal", "CN"),
        ({"tls_groups": "OU"}, "tls_groups", "has no effect"),
        ({"tls_principal": "CN", "tls_groups_pattern": "(.*)"}, "tls_groups_pattern",
         "has no effect"),
        ({"tls_principal": "CN", "tls_groups": "OU", "tls_groups_pattern": "a"},
         "tls_groups_pattern", "has 0 groups"),
    ],
)  # fmt: skip
def test_options_that_say_nothing_are_errors_at_start(
    files: Path, changes: dict[str, str], key: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        options(files, **changes)
    assert error.value.key == key
