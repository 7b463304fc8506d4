"""Which listener a configuration gives; WSS, which is TLS and WebSocket together."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import pytest
from link_recorder import Recorder
from websockets.asyncio.client import connect

from tidegate.spi import ConfigError, ListenerConfig, parse_options
from tidegate_protocols.transport import (
    TcpListener,
    TransportOptions,
    WebSocketProfile,
    make_listener,
)

PROFILE = WebSocketProfile(("v12.stomp",), text_allowed=True)


def make(transport, make_handler: Callable[[], Recorder] = Recorder, **table: object):
    options = parse_options(TransportOptions, table)
    config = ListenerConfig("stomp", transport, "127.0.0.1", 0, True, options)
    return make_listener(config, options, make_handler, profile=PROFILE, connections_max=3)


@pytest.mark.parametrize(
    ("transport", "table", "key"),
    [
        ("quic", {}, "transport"),
        ("tls", {}, "tls_certificate"),
        ("wss", {}, "tls_certificate"),
        ("tcp", {"tls_certificate": "x"}, "tls_certificate"),
        ("tls", {"tls_certificate": "/no/such.pem"}, "tls_certificate"),
        ("ws", {"websocket_origins": ["app.example"]}, "websocket_origins"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(transport, table, key):
    with pytest.raises(ConfigError) as raised:
        make(transport, **table)
    assert raised.value.key == key


def test_tcp_stays_what_it_was():
    assert isinstance(make("tcp"), TcpListener)


async def test_wss_carries_messages_subject_and_subprotocol(files, authority):
    handlers = []

    def make_handler():
        handlers.append(Recorder(lambda data: data.upper()))
        return handlers[-1]

    listener = make(
        "wss",
        make_handler,
        tls_certificate=str(files / "both.pem"),
        tls_client_certificate="required",
        tls_ca=str(files / "ca.pem"),
    )
    host, port = await listener.start()
    context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    context.load_cert_chain(files / "client.pem", files / "client.key")
    url = f"wss://{host}:{port}"
    names: Any = ["v12.stomp"]
    async with connect(url, ssl=context, proxy=None, open_timeout=60, subprotocols=names) as client:
        await client.send("text")
        assert await client.recv() == "TEXT"
        await client.send(b"x" * 300_000)
        received = 0
        while received < 300_000:
            received += len(await client.recv())
        assert handlers[0].link.subprotocol == "v12.stomp"
        assert handlers[0].link.tls_subject.startswith("CN=anna,")
        assert listener.connection_count == 1
        stopping = asyncio.create_task(listener.stop(5.0))
        await client.wait_closed()
        await stopping
        assert client.close_code == 1001
    assert isinstance(handlers[0].events[-1], tuple)
