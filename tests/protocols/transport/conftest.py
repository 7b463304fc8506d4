"""Every test over sockets runs on asyncio's loop and on uvloop."""

import asyncio

import pytest
import trustme
import uvloop
from async_tests import watched
from cryptography.hazmat.primitives import serialization as pem


def pytest_asyncio_loop_factories():
    return {"asyncio": watched(asyncio.new_event_loop), "uvloop": watched(uvloop.new_event_loop)}


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def files(authority, tmp_path_factory):
    """Certificates on disk: ca.pem, server.pem (chain), server.key, both.pem, client.pem, client.key."""
    directory = tmp_path_factory.mktemp("certificates")
    server = authority.issue_cert("localhost", "127.0.0.1")
    client = authority.issue_cert(
        "anna@harbour.example", common_name="anna", organization_name="Pier"
    )
    authority.cert_pem.write_to_path(directory / "ca.pem")
    chain = b"".join(blob.bytes() for blob in server.cert_chain_pems)
    (directory / "server.pem").write_bytes(chain)
    server.private_key_pem.write_to_path(directory / "server.key")
    (directory / "both.pem").write_bytes(chain + server.private_key_pem.bytes())
    client.cert_chain_pems[0].write_to_path(directory / "client.pem")
    client.private_key_pem.write_to_path(directory / "client.key")
    return directory


@pytest.fixture(scope="session")
def locked(files):
    """The server's key with a password, and files with passwords, beside the other files."""
    key = pem.load_pem_private_key((files / "server.key").read_bytes(), None)
    (files / "locked.key").write_bytes(
        key.private_bytes(  # type: ignore[union-attr]  # trustme makes EC keys
            pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"s3cret")
        )
    )
    (files / "password").write_bytes(b"s3cret\r\nsecond line\n")
    (files / "wrong-password").write_text("guess\n")
    (files / "empty").write_text("\n")
    (files / "long-password").write_text("x" * 5000)
    (files / "damaged.pem").write_text(
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    )
    (files / "damaged.key").write_text(
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
    )
    return files
