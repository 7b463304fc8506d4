"""The PROXY protocol: whose word counts, for what, and what becomes of everybody else."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from link_recorder import Recorder
from websockets.asyncio.client import connect

from tidegate.spi import ConfigError, ListenerConfig, parse_options
from tidegate_protocols.transport import TransportOptions, WebSocketProfile, make_listener
from tidegate_protocols.transport._proxy import (
    FIXED_BYTES,
    SIGNATURE,
    VARIABLE_BYTES_MAX,
    ProxyHeaderError,
    length_of,
    parse,
    parse_networks,
)

PROFILE = WebSocketProfile(("v12.stomp",), text_allowed=True)
TIMEOUT_S = 30.0


def header(
    client: str = "203.0.113.9",
    port: int = 40_000,
    *,
    command: int = 1,
    family: int | None = None,
    version: int = 2,
    more: bytes = b"",
) -> bytes:
    """A header as a proxy sends it; *more*: TLVs behind the addresses."""
    kind = socket.AF_INET6 if ":" in client else socket.AF_INET
    packed = socket.inet_pton(kind, client)
    if family is None:
        family = 0x21 if kind == socket.AF_INET6 else 0x11
    rest = packed + packed + port.to_bytes(2, "big") + b"\xf0\xb1" + more
    start = SIGNATURE + bytes((version << 4 | command, family)) + len(rest).to_bytes(2, "big")
    return start + rest


def told(data: bytes) -> str:
    head = data[:FIXED_BYTES]
    size = length_of(head)
    return parse(head, data[FIXED_BYTES : FIXED_BYTES + size])


# --------------------------------------------------------------------------------- the header


def test_the_client_s_address_is_what_the_proxy_says():
    assert told(header("203.0.113.9", 40_000)) == "203.0.113.9:40000"
    assert told(header("2001:db8::7", 1)) == "[2001:db8::7]:1"
    assert told(header("::ffff:203.0.113.9", 1)) == "203.0.113.9:1"
    assert told(header(more=b"\x20\x00\x05\x01\0\0\0\0")) == "203.0.113.9:40000"


@pytest.mark.parametrize(
    "data",
    [header(command=0), header(family=0x00), header(family=0x31), header(command=0, family=0xFF)],
)
def test_a_header_without_a_client_leaves_the_real_address(data):
    assert told(data) == ""


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", "version 1"),
        (b"CONNECT\naccept-version:1.2\n\n\0", "does not begin"),
        (b"\x16\x03\x01" + bytes(20), "does not begin"),
        (header(version=1), "unknown PROXY version 1"),
        (header(version=3), "unknown PROXY version 3"),
        (header(command=2), "command 2"),
        (header(family=0x12), "only TCP"),  # UDP
        (header(family=0x22), "only TCP"),
        (header(family=0x41), "only TCP"),
        (header(family=0x21), "ends inside its addresses"),
        (header(more=bytes(VARIABLE_BYTES_MAX)), "4096 at most"),
        (SIGNATURE + b"\x21\x11\x00\x00", "ends inside its addresses"),
    ],
)
def test_a_malformed_header_is_refused_with_its_reason(data, says):
    with pytest.raises(ProxyHeaderError, match=says):
        told(data)


@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_an_address_or_refused(data, signed):
    data = (SIGNATURE + data if signed else data) + bytes(FIXED_BYTES)
    with contextlib.suppress(ProxyHeaderError):
        told(data)


# -------------------------------------------------------------------------------- the options


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"proxy_protocol": True}, "proxy_addresses"),
        ({"proxy_addresses": ["10.0.0.1"]}, "proxy_protocol"),
        ({"proxy_protocol": True, "proxy_addresses": ["proxy.example"]}, "proxy_addresses"),
        ({"proxy_protocol": True, "proxy_addresses": ["10.0.0.1/8"]}, "proxy_addresses"),
    ],
)
def test_a_list_of_proxies_is_needed_and_must_be_one(table, key):
    with pytest.raises(ConfigError) as raised:
        parse_options(TransportOptions, table)
    assert raised.value.key == key


def test_addresses_and_networks_are_read():
    assert [str(n) for n in parse_networks(["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"])] == [
        "10.0.0.0/8",
        "192.0.2.7/32",
        "2001:db8::/32",
    ]


# -------------------------------------------------------------------------------- on the wire


@contextlib.asynccontextmanager
async def behind_a_proxy(
    transport: str = "tcp", addresses: str = "127.0.0.0/8", **table: object
) -> AsyncIterator[tuple[int, list[Recorder]]]:
    handlers: list[Recorder] = []

    def make_handler() -> Recorder:
        handlers.append(Recorder(lambda data: data.upper()))
        return handlers[-1]

    options = parse_options(
        TransportOptions, {"proxy_protocol": True, "proxy_addresses": [addresses], **table}
    )
    config = ListenerConfig("stomp", transport, "127.0.0.1", 0, True, options)
    listener = make_listener(config, options, make_handler, profile=PROFILE, connections_max=3)
    _, port = await listener.start()
    try:
        yield port, handlers
    finally:
        await listener.stop(1.0)
        assert listener.connection_count == 0


async def test_tcp_and_the_bytes_behind_the_header_are_the_client_s():
    async with asyncio.timeout(TIMEOUT_S), behind_a_proxy() as (port, handlers):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(header("2001:db8::7", 5) + b"hello")
        assert await reader.readexactly(5) == b"HELLO"
        assert handlers[0].link.peer == "[2001:db8::7]:5"
        writer.close()


async def test_a_header_may_come_byte_by_byte():
    async with asyncio.timeout(TIMEOUT_S), behind_a_proxy() as (port, handlers):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for byte in header() + b"a":
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readexactly(1) == b"A"
        assert handlers[0].link.peer == "203.0.113.9:40000"
        writer.close()


async def test_tls_begins_behind_the_header_and_its_word_on_tls_is_not_taken(files, authority):
    says_subject = b"\x20\x00\x0e\x07\0\0\0\0\x22\x00\x06mallor"  # PP2_TYPE_SSL with a CN
    table = {
        "tls_certificate": str(files / "both.pem"),
        "tls_client_certificate": "optional",
        "tls_ca": str(files / "ca.pem"),
    }
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with asyncio.timeout(TIMEOUT_S), behind_a_proxy("tls", **table) as (port, handlers):
        plain = socket.create_connection(("127.0.0.1", port))
        plain.sendall(header(more=says_subject))
        plain.setblocking(False)
        reader, writer = await asyncio.open_connection(
            sock=plain, ssl=context, server_hostname="localhost"
        )
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"HELLO"
        assert handlers[0].link.peer == "203.0.113.9:40000"
        assert handlers[0].link.tls_subject == ""
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


async def test_websocket():
    async with asyncio.timeout(TIMEOUT_S), behind_a_proxy("ws") as (port, handlers):
        plain = socket.create_connection(("127.0.0.1", port))
        plain.sendall(header())
        plain.setblocking(False)
        async with connect(f"ws://127.0.0.1:{port}/", sock=plain) as client:
            await client.send(b"hello")
            assert await client.recv() == b"HELLO"
            assert handlers[0].link.peer == "203.0.113.9:40000"


@pytest.mark.parametrize(
    "sent",
    [b"hello, world, I am no proxy", header(version=1), b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"],
)
async def test_without_a_good_header_the_connection_is_closed(sent, caplog):
    async with asyncio.timeout(TIMEOUT_S), behind_a_proxy() as (port, handlers):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    assert handlers == []
    assert "proxy refused peer=127.0.0.1:" in caplog.text


async def test_an_address_that_is_not_listed_is_closed_whatever_it_sends(caplog):
    async with (
        asyncio.timeout(TIMEOUT_S),
        behind_a_proxy(addresses="192.0.2.0/24") as (
            port,
            handlers,
        ),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(header() + b"hello")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    assert handlers == []
    assert "not listed in proxy_addresses" in caplog.text


async def test_half_a_header_is_waited_for_no_longer_than_the_handshake(caplog):
    async with (
        asyncio.timeout(TIMEOUT_S),
        behind_a_proxy(handshake_timeout="50ms") as (port, handlers),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(header()[:20])
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    assert handlers == []
    assert "no complete PROXY header within 0.05 s" in caplog.text


async def test_one_too_many_is_closed_before_it_has_sent_a_header():
    async with asyncio.timeout(TIMEOUT_S), behind_a_proxy("ws") as (port, _):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        for _, each in [*held, (reader, writer)]:
            each.close()


async def test_a_listener_that_stops_does_not_wait_for_a_header():
    async with asyncio.timeout(TIMEOUT_S), behind_a_proxy() as (port, _):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(header()[:20])
        await asyncio.sleep(0.01)
    writer.close()
