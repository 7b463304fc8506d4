"""TLS of listeners of any protocol: PEM files for libraries that take their text; why a handshake failed."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from tidegate.spi.errors import ConfigError
from tidegate.spi.private_files import problem_of_others

#: For a private key: one that everybody can read, or others can replace, protects nothing. Its group may read
#: it: that is how keys are shared on purpose (``ssl-cert``).
KEY_NOT_OTHERS: Final = 0o026
#: OpenSSL's reasons for a failed handshake that have a remedy.
_NO_TLS: Final = "the client does not speak TLS: enable TLS in the client, or use another port"
_REMEDIES: Final = {
    "HTTP_REQUEST": "the client speaks HTTP without TLS: use https:// or wss://, or another port",
    "HTTPS_PROXY_REQUEST": _NO_TLS,  # any text that begins with CONNECT
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate; tls_client_certificate requires one",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the authority that signed tls_certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client rejects tls_certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client rejects tls_certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client says that tls_certificate has expired",
    "UNSUPPORTED_PROTOCOL": "the client supports only TLS versions below tls_version_min",
}


def read_pair(certificate: Path | None, key: Path | None) -> tuple[str, str]:
    """The PEM texts of ``tls_certificate`` and ``tls_key``, checked to belong together.

    The key must not be encrypted. Reads the files; blocks briefly.

    Raises: ConfigError naming the option, the file and the problem.
    """
    texts: list[str] = []
    for path, name, wanted, what in (
        (certificate, "tls_certificate", "BEGIN CERTIFICATE-----", "certificate"),
        (key, "tls_key", "PRIVATE KEY-----", "private key"),
    ):
        if path is None:
            raise ConfigError("is required for TLS, but missing", key=name)
        try:
            text = path.read_text("ascii", "replace")
            problem = problem_of_others(path, among=KEY_NOT_OTHERS) if path is key else ""
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}", key=name) from None
        if wanted not in text:
            problem = f"contains no {what} in PEM form"
        if problem:
            raise ConfigError(f"{path}: {problem}", key=name)
        texts.append(text)
    assert certificate is not None
    try:
        # "" as the password: without one, OpenSSL would ask for it on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: b"")
    except (ssl.SSLError, ValueError):
        raise ConfigError(
            f"{key}: is encrypted, or does not belong to the certificate in {certificate}",
            key="tls_key",
        ) from None
    return texts[0], texts[1]


def why_no_handshake(error: OSError, timeout: str) -> str:
    """Why a handshake ended, for the log; "" when the peer merely closed, as health checks do.

    Args: timeout: the option that sets how long it may take.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate was rejected: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return _REMEDIES.get(reason) or reason.lower().replace("_", " ")
    if isinstance(error, ConnectionAbortedError):
        return f"not complete within {timeout}"
    return ""
