"""Memory of who has only connected: sockets with their buffers, and requests before a WebSocket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import attacks
import pytest
import trustme
from attack import ANSWER_S, MB, Attacker, Victim
from free_ports import free_port
from websockets.asyncio.client import connect as websocket_connect
from websockets.typing import Subprotocol

from tidegate.spi import Held
from tidegate.testing.embedded import EmbeddedGateway

#: As many as a process with 1024 descriptors lets in beside what it keeps for the store.
SOCKETS = 400
#: What a gateway grows by that does next to nothing.
NOISE = 8 * MB

REQUEST = b"GET /mqtt HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"x" * 3000) for n in range(4))
STRANGERS = 40


def sockets_with_tls(
    make_victim: Callable[..., Victim], directory: Path, *, least: int, patch: str = ""
) -> bool:
    """Hundreds of sockets that do not even begin with TLS.

    Args: least: bytes that are counted. Returns: the process grows by no more than one and a half times that.
    """
    certificate, port = directory / "server.pem", free_port()
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(certificate))
    listener = f"""
[[listeners]]
protocol = "mqtt"
transport = "tls"
bind = "127.0.0.1:{port}"
tls_certificate = "{certificate}"
handshake_timeout = "5min"
"""
    victim = make_victim(broker='system_topics_interval = "1s"', extra=listener, patch=patch)
    with ExitStack() as stack:
        for _ in range(SOCKETS):
            stack.enter_context(Attacker(port))
        deadline = time.monotonic() + ANSWER_S
        while (grown := victim.rss_bytes - victim.base_bytes) < SOCKETS * 40_000:
            assert time.monotonic() < deadline, grown >> 20
            time.sleep(0.05)
        counted = attacks.counted(victim)
        while counted < least:  # metrics are published once a second
            assert time.monotonic() < deadline, counted >> 20
            counted = attacks.counted(victim)
        return victim.rss_bytes - victim.base_bytes < counted * 1.5 + NOISE


@pytest.mark.long
def test_sockets_with_tls_are_counted(make_victim: Callable[..., Victim], tmp_path: Path) -> None:
    assert sockets_with_tls(make_victim, tmp_path, least=SOCKETS * 52 * 1024)


@pytest.mark.long
def test_control_sockets_with_tls(make_victim: Callable[..., Victim], tmp_path: Path) -> None:
    uncounted = "tidegate_protocols.transport._tcp.TLS_SOCKET_BYTES = 0"
    assert not sockets_with_tls(make_victim, tmp_path, least=0, patch=uncounted)


async def half_requests(limit: str) -> tuple[list[bytes], int]:
    """Forty strangers each begin a request of 12 KB to a WebSocket listener and wait; then somebody
    connects who does not. Returns: what those heard that were sent away, and the bytes counted."""
    config = f"""
[broker]
login_input_limit = "{limit}"

[[listeners]]
protocol = "mqtt"
transport = "ws"
bind = "127.0.0.1:0"
handshake_timeout = "5min"
"""
    async with asyncio.timeout(60), EmbeddedGateway(config) as running:
        port = running.mqtt_port
        account = running.gateway.broker.accounts.gateway
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(STRANGERS)]
        for _, writer in strangers:
            writer.write(REQUEST)
            await writer.drain()
        heard = [asyncio.create_task(reader.read(65_536)) for reader, _ in strangers]
        # Who is asked last: the kernel hands out what has come in turn, so they have been looked at.
        uri = f"ws://127.0.0.1:{port}/mqtt"
        async with websocket_connect(uri, subprotocols=[Subprotocol("mqtt")]) as client:
            while account.kinds[Held.LOGIN] + sum(task.done() for task in heard) * len(
                REQUEST
            ) < STRANGERS * len(REQUEST):
                await asyncio.sleep(0.005)
            counted = account.kinds[Held.LOGIN]
            assert counted % len(REQUEST) == 0
            await client.close()
        told = [task.result() for task in heard if task.done()]
        for task in heard:
            task.cancel()
        await asyncio.gather(*heard, return_exceptions=True)
        for _, writer in strangers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        while account.held:  # of what was counted nothing is left
            await asyncio.sleep(0.005)
        return told, counted


async def test_strangers_that_begin_a_request_share_a_limit() -> None:
    told, counted = await half_requests("256kb")
    assert counted <= 256 * 1024
    assert len(told) >= STRANGERS - 256 * 1024 // len(REQUEST)
    for text in told:
        assert text.startswith(b"HTTP/1.1 503 ")
        assert b"broker.login_input_limit" in text


async def test_control_strangers_that_begin_a_request() -> None:
    assert await half_requests("0b") == ([], STRANGERS * len(REQUEST))
