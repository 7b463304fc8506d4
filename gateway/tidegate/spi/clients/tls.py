"""The certificate of a listener whose library takes PEM files, and no ``ssl.SSLContext``, as they are."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from tidegate.spi.errors import ConfigError
from tidegate.spi.private_files import problem_of_others

#: For a private key: one that everybody can read, or others can replace, protects nothing. Its group may read it:
#: that is how keys are shared on purpose (``ssl-cert``).
KEY_NOT_OTHERS: Final = 0o026


def read_pair(certificate: Path | None, key: Path | None) -> tuple[str, str]:
    """The PEM texts of ``tls_certificate`` and ``tls_key``, once it is certain that they belong together.

    The key must not be encrypted. Reads the files; blocks shortly.

    Raises: ConfigError that names the option, the file and the problem.
    """
    texts: list[str] = []
    for path, name, wanted, what in (
        (certificate, "tls_certificate", "BEGIN CERTIFICATE-----", "certificate"),
        (key, "tls_key", "PRIVATE KEY-----", "private key"),
    ):
        if path is None:
            raise ConfigError("is required for TLS and missing", key=name)
        try:
            text = path.read_text("ascii", "replace")
            problem = problem_of_others(path, among=KEY_NOT_OTHERS) if path is key else ""
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}", key=name) from None
        if wanted not in text:
            problem = f"holds no {what} in PEM form"
        if problem:
            raise ConfigError(f"{path}: {problem}", key=name)
        texts.append(text)
    assert certificate is not None
    try:
        # "" as the password: with none, OpenSSL would ask for it on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: b"")
    except (ssl.SSLError, ValueError):
        raise ConfigError(
            f"{key}: is encrypted, or does not belong to the certificate in {certificate}",
            key="tls_key",
        ) from None
    return texts[0], texts[1]
