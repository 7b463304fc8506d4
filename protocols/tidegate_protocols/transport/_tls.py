"""TLS by the standard library: the listener's context, and the subject of a client's certificate."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from tidegate.spi import ConfigError, option
from tidegate.spi.clients.tls import KEY_NOT_OTHERS
from tidegate.spi.private_files import WRITABLE, problem_of_others

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_MODES: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
#: Keys of attribute types (RFC 4514 section 3); others keep OpenSSL's long name.
ATTRIBUTES: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED: Final = frozenset('"+,;<>\\')


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The TLS options of a listener."""

    tls_certificate: Path | None = option(
        None,
        help="Transports `tls` and `wss`, required there: PEM file with the gateway's "
        "certificate, followed by the intermediate ones (leaf first).",
    )
    tls_key: Path | None = option(
        None,
        help="PEM file with the private key. Left out: the key is in the file of "
        "`tls_certificate`.",
    )
    tls_key_password_file: Path | None = option(
        None,
        help="File whose first line is the private key's password. It keeps the password "
        "out of the configuration file.",
    )
    tls_ca: Path | None = option(
        None,
        help="PEM file with the certificate authorities that must have signed client certificates.",
    )
    tls_client_certificate: str = option(
        "none",
        choices=("none", "optional", "required"),
        help="Whether clients are asked for a certificate. A certificate that is shown must "
        "be valid; `required` refuses clients without one before they can send a byte.",
    )
    tls_version_min: str = option(
        "1.2",
        choices=("1.2", "1.3"),
        help="Oldest TLS version accepted. Versions before 1.2 are broken and cannot be chosen.",
    )
    tls_ciphers: str = option(
        "",
        help="Cipher suites of TLS 1.2 in OpenSSL's notation. Left out: Python's choice. "
        "TLS 1.3 always has its own.",
    )
    tls_principal: str = option(
        "none",
        choices=(
            "none",
            "subject",
            "CN",
            "UID",
            "OU",
            "O",
            "emailAddress",
            "serialNumber",
            "SAN:DNS",
            "SAN:email",
            "SAN:URI",
        ),
        help="Which part of a client's certificate is its principal: the whole subject (RFC "
        "4514), one of its attributes, or a kind of subject alternative name. The client's "
        "user name and password are then ignored, and no authenticator is asked. If the "
        "part is there twice with different values, the certificate names nobody.",
    )
    tls_principal_pattern: str = option(
        "",
        help="Regular expression that the whole value of `tls_principal` must match; its "
        "one group is the principal. Of several alternative names, those that do not match "
        "are ignored.",
    )
    tls_principal_unmatched: str = option(
        "refuse",
        choices=("refuse", "authenticate"),
        help="What happens to a client whose certificate names nobody by `tls_principal`: "
        "it is refused, or the authenticators say who it is. The same goes for a client "
        "that shows no certificate where they are `optional`.",
    )
    tls_groups: str = option(
        "none",
        choices=(
            "none",
            "OU",
            "O",
            "SAN:DNS",
            "SAN:email",
            "SAN:URI",
        ),
        help="Which part of a client's certificate names the groups of its principal, "
        "beside `tls_principal`: each attribute, or subject alternative name, of this kind "
        "is a group.",
    )
    tls_groups_pattern: str = option(
        "",
        help="Regular expression that a whole value of `tls_groups` must match to be a "
        "group; its one group in parentheses is the name.",
    )


def server_context(options: TlsOptions) -> ssl.SSLContext:
    """Build the context of a listener. Reads the files; blocks briefly.

    Raises: ConfigError naming the key, the file and the problem.
    """
    certificate = options.tls_certificate
    if certificate is None:
        raise ConfigError("is required for TLS, but missing", key="tls_certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[options.tls_version_min]
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could make us burn CPU again and again
    if options.tls_ciphers:
        if context.minimum_version is ssl.TLSVersion.TLSv1_3:
            raise ConfigError(
                "has no effect with tls_version_min = '1.3': it is for TLS 1.2", key="tls_ciphers"
            )
        try:
            context.set_ciphers(options.tls_ciphers)
        except ssl.SSLError:
            raise ConfigError(
                f"{options.tls_ciphers!r} selects no cipher suite; `openssl ciphers` lists them",
                key="tls_ciphers",
            ) from None
    _load_certificate(context, certificate, options)
    _load_authorities(context, options)
    return context


def subject_of(certificate: Mapping[str, object] | None) -> str:
    """The subject of a peer's certificate as RFC 4514 writes it, e.g. ``CN=anna,O=Harbour``.

    Args: certificate: what ``getpeercert()`` returned; None or empty gives "".
    """
    if not certificate:
        return ""
    names = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
    return ",".join(
        "+".join(f"{ATTRIBUTES.get(key, key)}={_escape(value)}" for key, value in relative)
        for relative in reversed(names)  # RFC 4514 section 2.1: the last one first
    )


def _escape(value: str) -> str:
    """RFC 4514 section 2.4."""
    text = "".join(f"\\{c}" if c in _ESCAPED else "\\00" if c == "\0" else c for c in value)
    if text.startswith(("#", " ")):
        text = f"\\{text}"
    if text.endswith(" ") and len(text) > 1 and not text.endswith("\\ "):
        text = f"{text[:-1]}\\ "
    return text


def _load_certificate(context: ssl.SSLContext, certificate: Path, options: TlsOptions) -> None:
    chain = _read(certificate, "tls_certificate")
    _check_certificates(chain, certificate, "tls_certificate")
    key_option = "tls_certificate" if options.tls_key is None else "tls_key"
    key = options.tls_key or certificate
    if b"PRIVATE KEY-----" not in _read(key, key_option):
        hint = "; set tls_key to the file that holds the key" if options.tls_key is None else ""
        raise ConfigError(f"{key}: contains no private key in PEM form{hint}", key=key_option)
    _check_mode(key, key_option)
    was_asked = False

    def password() -> bytes:
        # Without this callback OpenSSL would ask on the terminal and wait there.
        nonlocal was_asked
        was_asked = True
        return given

    given = _password(options.tls_key_password_file)
    try:
        context.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
            problem = f"{key}: the private key does not belong to the certificate in {certificate}"
        elif was_asked and not given:
            problem = f"{key}: the private key is encrypted; set tls_key_password_file"
        elif was_asked:
            raise ConfigError(
                f"{options.tls_key_password_file}: is not the password of {key}",
                key="tls_key_password_file",
            ) from None
        else:
            problem = f"{key}: cannot be used with {certificate}: {error.reason or error}"
        raise ConfigError(problem, key=key_option) from None
    except ValueError as error:  # a password longer than OpenSSL takes
        raise ConfigError(
            f"{options.tls_key_password_file}: {error}", key="tls_key_password_file"
        ) from None
    if given and not was_asked:
        raise ConfigError(
            f"has no effect: the private key in {key} is not encrypted",
            key="tls_key_password_file",
        )


def _load_authorities(context: ssl.SSLContext, options: TlsOptions) -> None:
    mode = options.tls_client_certificate
    if mode == "none":
        if options.tls_ca is not None:
            raise ConfigError(
                "has no effect because tls_client_certificate is 'none'; "
                "set that to 'optional' or 'required'",
                key="tls_ca",
            )
        return
    if options.tls_ca is None:
        raise ConfigError(
            f"is required with tls_client_certificate = {mode!r}: "
            "without authorities, no client certificate can be checked",
            key="tls_ca",
        )
    _check_mode(
        options.tls_ca, "tls_ca", among=WRITABLE
    )  # whoever can add an authority can be anybody
    data = _read(options.tls_ca, "tls_ca")
    _check_certificates(data, options.tls_ca, "tls_ca")
    context.load_verify_locations(cadata=data.decode("ascii", "replace"))
    context.verify_mode = _MODES[mode]


def _check_certificates(data: bytes, path: Path, key: str) -> None:
    """Raises ConfigError unless *data* is at least one certificate in PEM form."""
    if b"-----BEGIN CERTIFICATE-----" not in data:
        raise ConfigError(f"{path}: contains no certificate in PEM form", key=key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(
            cadata=data.decode("ascii", "replace")
        )
    except ssl.SSLError as error:
        reason = error.reason or error
        raise ConfigError(f"{path}: a certificate is damaged: {reason}", key=key) from None


def _password(path: Path | None) -> bytes:
    if path is None:
        return b""
    _check_mode(path, "tls_key_password_file")
    password = _read(path, "tls_key_password_file").partition(b"\n")[0].rstrip(b"\r")
    if not password:
        raise ConfigError(f"{path}: the first line is empty", key="tls_key_password_file")
    return password


def _check_mode(path: Path, key: str, *, among: int = KEY_NOT_OTHERS) -> None:
    """Refuse a secret file that others can read, or a file that they can change. Raises: ConfigError."""
    try:
        problem = problem_of_others(path, among=among)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", key=key) from None
    if problem:
        raise ConfigError(f"{path}: {problem}", key=key)


def _read(path: Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", key=key) from None
