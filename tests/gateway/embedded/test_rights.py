"""Rights that are taken away while something is on its way, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import mqtt_raw as raw
import pytest

from tidegate.testing.embedded import EmbeddedGateway

WAIT_S: Final = 60

#: More than the sockets of both sides take, so that something of it stays in the gateway.
LARGE_BYTES: Final = 15 << 20

OPEN: Final = '[[rules]]\nallow = "all"\n'
SHUT: Final = '[[rules]]\ndeny = "subscribe"\ndestinations = "topic://secret.>"\n' + OPEN


class Wires:
    """Connections of a test, closed with it."""

    def __init__(self, gateway: EmbeddedGateway) -> None:
        self.gateway = gateway
        self._writers: list[asyncio.StreamWriter] = []

    async def dial(self, port: int, data: bytes, *, is_slow: bool = False) -> asyncio.StreamReader:
        """Args: is_slow: its socket takes little."""
        connection = socket.socket()
        if is_slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
        self._writers.append(writer)
        writer.write(data)
        return reader

    async def slow(self, protocol: str, wanted: str) -> asyncio.StreamReader:
        """Has subscribed to a filter (as MQTT has it), at most once, and reads nothing by itself."""
        if protocol == "mqtt":
            hello = raw.connect("slow") + raw.subscribe(1, (wanted, 0))
            answer, port = raw.packet(0x90, b"\0\1\0"), self.gateway.mqtt_port
        else:
            hello = (
                b"CONNECT\naccept-version:1.2\nhost:h\n\n\0"
                b"SUBSCRIBE\nid:s\ndestination:/topic/%b\nreceipt:r\n\n\0"
                % wanted.replace("/", ".").replace("+", "*").encode()
            )
            answer, port = b"receipt-id:r", self.gateway.stomp_port
        reader = await self.dial(port, hello, is_slow=True)
        async with asyncio.timeout(WAIT_S):
            await reader.readuntil(answer)
        return reader

    async def send_large(self, topic: str) -> None:
        """A large body, and a small one that waits behind it."""
        port = self.gateway.mqtt_port
        sender = await self.dial(
            port,
            raw.connect("sender")
            + raw.publish(topic, bytes(LARGE_BYTES), qos=1, packet_id=1)
            + raw.publish(topic, b"behind it", qos=1, packet_id=2),
        )
        async with asyncio.timeout(WAIT_S):
            await sender.readexactly(4 + 4 + 4)  # CONNACK, PUBACK, PUBACK

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(
            *[writer.wait_closed() for writer in self._writers], return_exceptions=True
        )


@asynccontextmanager
async def guarded(tmp_path: Path) -> AsyncIterator[Wires]:
    """A gateway whose rules are in ``acl.toml``, which allows everything at first."""
    rules = tmp_path / "acl.toml"
    rules.write_text(OPEN)
    text = f"""
    [store]
    plugin = "journal"
    large_message_min_size = "1mb"

    [[extensions]]
    plugin = "acl"
    rules = "{rules}"
    check_interval = "100ms"
    audit_log = "{tmp_path}/audit.log"
    """
    async with EmbeddedGateway(text, data_directory=tmp_path / "data") as gateway:
        wires = Wires(gateway)
        try:
            yield wires
        finally:
            await wires.close()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the gateway closes."""
    data = bytearray()
    try:
        async with asyncio.timeout(WAIT_S):
            while more := await reader.read(1 << 20):
                data += more
    except ConnectionError:
        pass
    return bytes(data)


@pytest.mark.parametrize("protocol", ["mqtt", "stomp"])
async def test_what_waits_unsent_when_a_right_is_gone_is_not_sent(
    tmp_path: Path, protocol: str
) -> None:
    async with guarded(tmp_path) as wires:
        slow = await wires.slow(protocol, "+/plan")
        await wires.send_large("secret/plan")
        (tmp_path / "acl.toml").write_text(SHUT)
        connections = wires.gateway.gateway.broker.connections
        async with asyncio.timeout(WAIT_S):
            while len(connections) > 1:
                await asyncio.sleep(0.01)
        got = await rest(slow)
        assert len(got) < LARGE_BYTES
        assert b"behind it" not in got


@pytest.mark.parametrize("protocol", ["mqtt", "stomp"])
async def test_a_change_that_takes_nothing_from_it_leaves_a_slow_client_alone(
    tmp_path: Path, protocol: str
) -> None:
    async with guarded(tmp_path) as wires:
        slow = await wires.slow(protocol, "open/+")
        await wires.send_large("open/plan")
        # Ended when the rules are other ones: it may not subscribe to that any more.
        hello = raw.connect("other") + raw.subscribe(1, ("secret/x", 0))
        other = await wires.dial(wires.gateway.mqtt_port, hello)
        async with asyncio.timeout(WAIT_S):
            await other.readexactly(4 + 5)
            (tmp_path / "acl.toml").write_text(SHUT)
            assert not await other.read()
            got = bytearray()
            while b"behind it" not in got[-1000:]:
                more = await slow.read(1 << 20)
                assert more
                got += more
        assert len(got) > LARGE_BYTES


async def test_a_reload_begins_the_audit_log_anew(tmp_path: Path) -> None:
    async with guarded(tmp_path) as wires:
        log = tmp_path / "audit.log"
        assert log.exists()
        log.rename(tmp_path / "audit.log.1")
        await wires.gateway.gateway.reload()
        assert log.exists()
