"""Whoever says nothing is let go of, on every transport of every protocol, and makes room."""

import asyncio
import contextlib

import pytest
from link_recorder import hang_up

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
