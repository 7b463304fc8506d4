"""A running gateway's certificates: new ones on SIGHUP, on each listener for itself."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest
import trustme

from tidegate.config import parse_config, resolve
from tidegate.gateway import Gateway
from tidegate.plugins import PluginHost

CONFIG = """
[broker]
data_directory = "{directory}/data"
persistent = false

[[listeners]]
protocol = "stomp"
transport = "tls"
bind = "127.0.0.1:0"
allow_anonymous = true
tls_certificate = "{directory}/stomp.pem"

[[listeners]]
protocol = "mqtt"
bind = "127.0.0.1:0"
allow_anonymous = true

[[listeners]]
protocol = "mqtt"
transport = "wss"
bind = "127.0.0.1:0"
allow_anonymous = true
tls_certificate = "{directory}/mqtt.pem"
"""


def issue(authority: trustme.CA, file: Path) -> None:
    made = authority.issue_cert("127.0.0.1")
    chain = b"".join(blob.bytes() for blob in made.cert_chain_pems)
    file.write_bytes(chain + made.private_key_pem.bytes())


async def serials(gateway: Gateway, authority: trustme.CA) -> list[str]:
    """What a new handshake shows on the first and the third listener."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    found: list[str] = []
    for address in (gateway.addresses[0], gateway.addresses[2]):
        port = int(address.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        found.append(writer.get_extra_info("peercert")["serialNumber"])
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()
    return found


async def test_one_listener_s_broken_file_does_not_keep_the_other_from_its_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    for name in ("stomp.pem", "mqtt.pem"):
        issue(authority, tmp_path / name)
    host = PluginHost()
    text = CONFIG.format(directory=tmp_path)
    gateway = Gateway(resolve(parse_config(text), host), host)
    await gateway.start()
    try:
        async with asyncio.timeout(60):
            before = await serials(gateway, authority)
            await gateway.reload()
            assert await serials(gateway, authority) == before
            (tmp_path / "stomp.pem").write_text("nothing")
            issue(authority, tmp_path / "mqtt.pem")
            await gateway.reload()
            after = await serials(gateway, authority)
    finally:
        await gateway.stop()
    assert after[0] == before[0]
    assert after[1] != before[1]
    problems = [
        record.getMessage() for record in caplog.records if "could not be reloaded" in record.msg
    ]
    assert len(problems) == 1
    assert problems[0].startswith("listeners[0] could not be reloaded")
    assert f"{tmp_path}/stomp.pem" in problems[0]
