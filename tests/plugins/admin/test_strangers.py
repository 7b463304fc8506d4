"""Who speaks something else to the admin listener is in the log, with who it is and what to do."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import trustme
from admin_start import START
from http_raw import HttpClient, answer_of

from tidegate.spi.clients import seldom
from tidegate.spi.clients.operators import Phase, Readiness
from tidegate_admin import _protocol as protocol
from tidegate_admin._process import AdminProcess
from tidegate_admin.server.strangers import Strangers

TLS = b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03"
STOMP = b"CONNECT\naccept-version:1.2\nlogin:ann\npasscode:secret\n\n\0"
MQTT = b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02ab"


@pytest.mark.parametrize(
    ("first", "is_late", "said"),
    [
        (TLS, False, "the peer speaks TLS, and this listener plain HTTP: http://, or another port"),
        (STOMP, False, "the peer speaks STOMP, and this listener HTTP: let it use another port"),
        (MQTT, True, "the peer speaks MQTT, and this listener HTTP: let it use another port"),
        (b"GET / HTTP/1.1\r\n\r\n", False, "malformed HTTP"),
        (b"GET / HTTP/1.1\r\nHost: a", True, "not complete within request_timeout"),
        (b"\xff\xfbgarbage", False, "no HTTP: it begins with the bytes ff fb 67 61 72 62 61 67"),
    ],
)
def test_what_came_is_told(
    first: bytes, is_late: bool, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    Strangers(8161).no_http("10.0.0.7:5", first, is_late=is_late)
    assert caplog.messages == [f"http refused port=8161 peer=10.0.0.7:5 reason={said!r} count=1"]


def test_a_storm_is_a_line_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers = Strangers(8161)
    for _ in range(100):
        strangers.no_http("10.0.0.7:5", TLS)
    strangers.no_handshake("10.0.0.8:5", "why")
    assert len(caplog.messages) == 2
    monkeypatch.setattr(seldom, "LOG_EVERY_S", 0.0)
    strangers._no_http._next_at = 0.0  # ten seconds later
    strangers.no_http("10.0.0.9:5", TLS)
    assert caplog.messages[-1].startswith("http refused port=8161 peer=10.0.0.9:5")
    assert caplog.messages[-1].endswith(" count=100")


async def answering(ask: protocol.FromServer) -> protocol.FromGateway:
    if isinstance(ask, protocol.AskSample):
        return protocol.Sample(ask.id, None)
    return protocol.Health(ask.id, Readiness(Phase.RECOVERING, "replaying", 40.0))


@contextlib.asynccontextmanager
async def served(**changes: str) -> AsyncIterator[int]:
    """An admin process on the port that it gives."""
    process = await AdminProcess.start()
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            start = msgspec.structs.replace(START, **changes)
            await process.serve(start, listening, answering)
            yield listening.getsockname()[1]
    finally:
        await process.end()


async def logged(caplog: pytest.LogCaptureFixture, what: str) -> str:
    """The line of the gateway's log: it comes from another process."""
    async with asyncio.timeout(60):
        while True:
            for line in caplog.messages:
                if what in line:
                    return re.sub(r"127\.0\.0\.1:\d+", "PEER", line)
            await asyncio.sleep(0.02)


async def test_a_plain_listener_tells_of_tls(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as port:
        assert (await HttpClient(port).raw(TLS)).status == 400
        line = await logged(caplog, "http refused")
        assert f"port={port} peer=PEER reason='the peer speaks TLS, and" in line
        assert (await HttpClient(port).get("/health/ready")).status == 503
    assert "secret" not in caplog.text


async def test_a_listener_with_tls_tells_of_plain_http_and_serves_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("gateway.example")
    pem = tmp_path / "both.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(pem)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with served(certificate=str(pem), key=str(pem)) as port:
        assert (await HttpClient(port).get("/health/ready")).status == 0
        line = await logged(caplog, "tls refused")
        assert (
            f"port={port} peer=PEER reason='the client speaks HTTP without TLS: use https://"
            in line
        )
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname="gateway.example"
            )
            writer.write(b"GET /health/ready HTTP/1.1\r\nHost: gateway.example\r\n")
            writer.write(b"Connection: close\r\n\r\n")
            assert answer_of(await reader.read()).json()["percent"] == 40.0
            writer.close()
