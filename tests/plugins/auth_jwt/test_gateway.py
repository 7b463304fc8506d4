"""Tokens at a gateway: in over both protocols, and out when the token is over."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from wire import StompClient

from tidegate.testing.embedded import EmbeddedGateway


def field(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def connect(token: str) -> bytes:
    """CONNECT of MQTT 5.0 with a password and no user name (section 3.1.2.9 allows that)."""
    rest = field("MQTT") + bytes((5, 0x42, 0, 0, 0)) + field("device") + field(token)
    length = bytes((len(rest) & 127 | 128, len(rest) >> 7))
    return b"\x10" + length + rest


async def packet(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(2)
    return head + await reader.readexactly(head[1])


async def test_a_connection_ends_when_its_token_does(jwks: Path, issuer) -> None:
    config = (
        "[broker]\npersistent = false\n[[extensions]]\nplugin = 'auth-jwt'\n"
        f"jwks = '{jwks}'\nissuer = 'https://issuer.example'\naudience = ['tidegate']\n"
    )
    now = int(time.time())
    short, long = issuer.token("ec", exp=now + 3600), issuer.token("ec", exp=now + 7200)
    async with EmbeddedGateway(config) as gateway, asyncio.timeout(120):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.mqtt_port)
        writer.write(connect(short))
        connack = await packet(reader)
        assert (connack[0], connack[3]) == (0x20, 0)
        stomp = await StompClient.connect(gateway.stomp_port, login="alice", passcode=short)
        other = await StompClient.connect(gateway.stomp_port, login="alice", passcode=long)
        broker = gateway.gateway.broker
        assert {item.principal for item in broker.connections} == {"alice"}
        broker.now = lambda: (now + 3700) * 1_000_000  # what the clock says later
        assert (await packet(reader))[::2][:2] == b"\xe0\x87"  # DISCONNECT, not authorized
        error = await stomp.receive()
        assert error.command == "ERROR"
        assert "expired" in error.headers["message"]
        other.send("SEND", b"x", destination="/topic/a", receipt="1")
        await other.receipt("1")
        writer.close()
        await stomp.aclose()
        await other.aclose()
