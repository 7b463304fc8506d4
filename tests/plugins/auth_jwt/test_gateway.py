"""Tokens at a gateway: in over both protocols, and out when the token is over."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from wire import StompClient

from tidegate.broker.core import MAINTENANCE_INTERVAL_S
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


def config(jwks: Path) -> str:
    return (
        "[broker]\npersistent = false\n[[extensions]]\nplugin = 'auth-jwt'\n"
        f"jwks = '{jwks}'\nissuer = 'https://issuer.example'\naudience = ['tidegate']\n"
    )


async def test_a_connection_ends_when_its_token_does(jwks: Path, issuer) -> None:
    now = int(time.time())
    short, long = issuer.token("ec", exp=now + 3600), issuer.token("ec", exp=now + 7200)
    async with EmbeddedGateway(config(jwks)) as gateway, asyncio.timeout(120):
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


async def test_a_new_token_lets_a_connection_go_on(jwks: Path, issuer) -> None:
    """MQTT 5.0 section 4.12.1: AUTH 0x19 with the token, before the old one expires."""

    def said(token: str) -> bytes:
        data = token.encode()
        return b"\x15" + field("OAUTH2-JWT") + b"\x16" + len(data).to_bytes(2, "big") + data

    def framed(first: int, rest: bytes) -> bytes:
        return bytes((first, len(rest) & 127 | 128, len(rest) >> 7)) + rest

    def counted(properties: bytes) -> bytes:
        return bytes((len(properties) & 127 | 128, len(properties) >> 7)) + properties

    now = int(time.time())
    first = issuer.token("ec", exp=now + 3600)
    second, others = issuer.token("ec", exp=now + 7200), issuer.token("ec", sub="bob")
    async with EmbeddedGateway(config(jwks)) as gateway, asyncio.timeout(120):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.mqtt_port)
        opened = field("MQTT") + bytes((5, 2, 0, 0)) + counted(said(first)) + field("device")
        writer.write(framed(0x10, opened))
        connack = await packet(reader)
        assert (connack[0], connack[3]) == (0x20, 0)
        writer.write(framed(0xF0, b"\x19" + counted(said(second))))
        assert (await packet(reader))[::2][:2] == b"\xf0\0"  # AUTH, success
        gateway.gateway.broker.now = lambda: (now + 3700) * 1_000_000
        await asyncio.sleep(2 * MAINTENANCE_INTERVAL_S)  # long enough to be ended, if it were to be
        writer.write(framed(0xF0, b"\x19" + counted(said(others))))
        assert (await packet(reader))[::2][:2] == b"\xe0\x87"
        writer.close()
