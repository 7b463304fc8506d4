"""Whoever says nothing is let go of, on every transport of every protocol, and makes room."""

import asyncio
import contextlib

import pytest
from link_recorder import hang_up
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tidegate.testing.embedded import EmbeddedGateway

LISTENER = """
[[listeners]]
protocol = "{protocol}"
transport = "{transport}"
bind = "127.0.0.1:0"
connections_max = 2
connect_timeout = "200ms"
{more}
"""


CONNECTS = {
    "stomp": b"CONNECT\naccept-version:1.2\nheart-beat:0,0\n\n\0",
    "mqtt": b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01c",
}
#: What a client is told of half a frame; MQTT 3.1.1 has no words for it.
TOLD = {"stomp": b"(frame_timeout)", "mqtt": b""}


async def is_closed(reader, writer, within_s):
    """Whether the gateway ends the connection in time; it is over for us in any case."""
    try:
        async with asyncio.timeout(within_s):
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(1000):
                    pass
            return True
    except TimeoutError:
        return False
    finally:
        await hang_up(writer)


@pytest.mark.parametrize("protocol", ["stomp", "mqtt"])
@pytest.mark.parametrize("transport", ["tcp", "tls", "ws", "wss"])
async def test_a_silent_connection_is_closed_and_another_has_its_place(files, protocol, transport):
    more = "" if transport == "tcp" else 'handshake_timeout = "200ms"\n'
    if transport in ("tls", "wss"):
        more += f'tls_certificate = "{files}/server.pem"\ntls_key = "{files}/server.key"\n'
    config = LISTENER.format(protocol=protocol, transport=transport, more=more)
    async with asyncio.timeout(60), EmbeddedGateway(config) as gateway:
        port = gateway.port(protocol)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert [await is_closed(*one, within_s=20.0) for one in silent] == [True, True]
        while await is_closed(*await asyncio.open_connection("127.0.0.1", port), within_s=0.05):
            pass  # the ends of the others have not come yet


@pytest.mark.parametrize("protocol", ["stomp", "mqtt"])
async def test_half_a_frame_is_let_go_of(protocol):
    config = LISTENER.format(protocol=protocol, transport="tcp", more='frame_timeout = "50ms"')
    async with asyncio.timeout(60), EmbeddedGateway(config) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port(protocol))
        writer.write(CONNECTS[protocol] + CONNECTS[protocol][:5])
        assert TOLD[protocol] in await reader.read()
        await hang_up(writer)


@pytest.mark.parametrize("protocol", ["stomp", "mqtt"])
async def test_half_a_frame_in_fragments_of_a_websocket_message_is_let_go_of(protocol):
    config = LISTENER.format(protocol=protocol, transport="ws", more='frame_timeout = "50ms"')

    async def fragments():
        yield CONNECTS[protocol]
        for byte in CONNECTS[protocol][:5]:
            yield bytes((byte,))
        await asyncio.Event().wait()  # the last fragment never comes

    async with asyncio.timeout(60), EmbeddedGateway(config) as gateway:
        uri, names = (
            f"ws://127.0.0.1:{gateway.port(protocol)}/",
            [Subprotocol("mqtt"), Subprotocol("v12.stomp")],
        )
        async with connect(uri, subprotocols=names) as client:
            sending = asyncio.ensure_future(client.send(fragments()))
            heard = b""
            with contextlib.suppress(ConnectionClosed):
                while True:
                    said = await client.recv()
                    heard += said if isinstance(said, bytes) else said.encode()
            assert TOLD[protocol] in heard
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
