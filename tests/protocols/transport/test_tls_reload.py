"""Certificates read anew, and secrets that are none: keys that everybody can read."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest
import trustme
from link_recorder import Recorder

from tidegate.spi import ConfigError, ListenerConfig, parse_options, private_files
from tidegate_protocols.transport import TransportOptions, WebSocketProfile, make_listener
from tidegate_protocols.transport._tls import server_context

PROFILE = WebSocketProfile(("v12.stomp",), text_allowed=True)
TIMEOUT_S = 30.0


def issue(authority: trustme.CA, file: Path) -> None:
    """Put a new certificate and its key into *file*."""
    made = authority.issue_cert("localhost", "127.0.0.1")
    chain = b"".join(blob.bytes() for blob in made.cert_chain_pems)
    file.write_bytes(chain + made.private_key_pem.bytes())


async def serial_of(port: int, authority: trustme.CA) -> str:
    """Which certificate a new handshake shows."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    certificate = writer.get_extra_info("peercert")
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
    return str(certificate["serialNumber"])


@pytest.mark.parametrize("transport", ["tls", "wss"])
async def test_a_new_handshake_shows_the_new_certificate_and_old_connections_go_on(
    transport, authority, tmp_path
):
    file = tmp_path / "both.pem"
    issue(authority, file)
    options = parse_options(TransportOptions, {"tls_certificate": str(file)})
    config = ListenerConfig("stomp", transport, "127.0.0.1", 0, True, options)
    handlers: list[Recorder] = []

    def make_handler() -> Recorder:
        handlers.append(Recorder(lambda data: data.upper()))
        return handlers[-1]

    listener = make_listener(config, options, make_handler, profile=PROFILE, connections_max=9)
    _, port = await listener.start()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            old = await serial_of(port, authority)
            context = ssl.create_default_context()
            authority.configure_trust(context)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname="localhost"
            )
            issue(authority, file)
            assert await serial_of(port, authority) == old  # not before it is asked for
            assert await listener.reload()
            new = await serial_of(port, authority)
            assert new != old
            if transport == "tls":
                writer.write(b"still")
                assert await reader.readexactly(5) == b"STILL"
            for broken in (b"", file.read_bytes()[:500], b"-----BEGIN CERTIFICATE-----\n"):
                file.write_bytes(broken)
                with pytest.raises(ConfigError, match=r"both\.pem"):
                    await listener.reload()
                assert await serial_of(port, authority) == new
            file.unlink()
            with pytest.raises(ConfigError, match="cannot be read"):
                await listener.reload()
            assert await serial_of(port, authority) == new
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await writer.wait_closed()
    finally:
        await listener.stop(1.0)


async def test_a_listener_without_certificates_has_nothing_to_reload():
    options = TransportOptions()
    config = ListenerConfig("stomp", "tcp", "127.0.0.1", 0, True, options)
    listener = make_listener(config, options, Recorder, profile=PROFILE, connections_max=1)
    assert not await listener.reload()


# ------------------------------------------------------------------------------------- modes


@pytest.mark.parametrize(
    ("bits", "is_refused"),
    [(0o600, False), (0o400, False), (0o640, False), (0o644, True), (0o604, True), (0o660, True)],
)
@pytest.mark.parametrize("key", ["tls_key", "tls_certificate"])
def test_a_key_that_others_can_read_or_replace_is_refused(
    authority, tmp_path, monkeypatch, key, bits, is_refused
):
    monkeypatch.setattr(private_files, "_within_reach", lambda _path: 0o077)
    both = tmp_path / "both.pem"
    issue(authority, both)
    both.chmod(bits)
    table = {"tls_certificate": str(both)} | ({key: str(both)} if key == "tls_key" else {})
    if not is_refused:
        server_context(parse_options(TransportOptions, table))
        return
    with pytest.raises(ConfigError, match=r"run: chmod go-rwx .*both\.pem") as raised:
        parse_options(TransportOptions, table)
    assert raised.value.key == key


def test_so_are_authorities_that_others_can_add_to(files, monkeypatch):
    monkeypatch.setattr(private_files, "_within_reach", lambda _path: 0o077)
    (files / "both.pem").chmod(0o600)
    table = {
        "tls_certificate": str(files / "both.pem"),
        "tls_client_certificate": "required",
        "tls_ca": str(files / "ca.pem"),
    }
    (files / "ca.pem").chmod(0o644)
    parse_options(TransportOptions, table)
    (files / "ca.pem").chmod(0o664)
    with pytest.raises(ConfigError, match="chmod go-w") as raised:
        parse_options(TransportOptions, table)
    assert raised.value.key == "tls_ca"
    (files / "ca.pem").chmod(0o644)


def test_so_is_a_password_file(locked, monkeypatch):
    monkeypatch.setattr(private_files, "_within_reach", lambda _path: 0o077)
    (locked / "locked.key").chmod(0o600)
    (locked / "password").chmod(0o644)
    table = {
        "tls_certificate": str(locked / "server.pem"),
        "tls_key": str(locked / "locked.key"),
        "tls_key_password_file": str(locked / "password"),
    }
    with pytest.raises(ConfigError, match="chmod") as raised:
        parse_options(TransportOptions, table)
    assert raised.value.key == "tls_key_password_file"
    (locked / "password").chmod(0o600)
    parse_options(TransportOptions, table)
