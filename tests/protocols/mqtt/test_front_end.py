"""The listener with real sockets on the loopback and a broker that is a fake."""

import asyncio
import socket

import pytest

from tidegate.spi import ConfigError, ListenerConfig
from tidegate_protocols.mqtt import (
    Connect,
    Disconnect,
    MqttFrontEndFactory,
    MqttOptions,
    Pingreq,
    encode,
)
from tidegate_protocols.mqtt._front_end import address_of

WAIT_S = 60


def config(**values):
    defaults = {"host": "127.0.0.1", "port": 0, "allow_anonymous": True, "options": MqttOptions()}
    return ListenerConfig(protocol="mqtt", transport="tcp", **(defaults | values))


async def dial(address):
    host, _, port = address.removeprefix("mqtt://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "mqtt://127.0.0.1:1883"), ("::1", "mqtt://[::1]:1883")],
)
def test_an_address_is_a_url(host, address):
    assert address_of(host, 1883) == address


async def test_a_client_connects_pings_and_leaves(broker):
    front_end = MqttFrontEndFactory().create(config(), broker)
    address = await front_end.start()
    assert address.startswith("mqtt://127.0.0.1:")
    reader, writer = await dial(address)
    writer.write(encode(Connect(client_id="dev")) + encode(Pingreq()))
    assert await reader.readexactly(6) == b"\x20\x02\x00\x00\xd0\x00"
    assert broker.requests[0].listener == address
    writer.write(encode(Disconnect()))
    assert await reader.read() == b""
    assert broker.connection.take("disconnect") == [(True, False, None)]
    writer.close()
    await front_end.stop()


async def test_stopping_closes_what_is_left_and_can_be_repeated(broker):
    front_end = MqttFrontEndFactory().create(config(), broker)
    reader, writer = await dial(await front_end.start())
    writer.write(encode(Connect(client_id="dev")))
    await reader.readexactly(4)
    await front_end.stop_accepting()
    await front_end.stop_accepting()
    writer.write(encode(Pingreq()))
    assert await reader.readexactly(2) == b"\xd0\x00"  # the existing ones go on
    stopping = asyncio.ensure_future(front_end.stop())
    assert await reader.read() == b""
    writer.close()
    await stopping
    await front_end.stop()
    assert broker.connection.take("disconnect") == [(False, False, None)]


async def test_stopping_calls_off_what_is_still_connecting(broker):
    started = asyncio.Event()
    cancelled = []

    async def connect(request, peer):
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(request.client_id)
            raise

    broker.connect = connect

    front_end = MqttFrontEndFactory().create(config(), broker)
    reader, writer = await dial(await front_end.start())
    writer.write(encode(Connect(client_id="dev")))
    await started.wait()
    stopping = asyncio.ensure_future(front_end.stop())
    assert await reader.read() == b""
    writer.close()
    await stopping
    assert cancelled == ["dev"]


async def test_stopping_before_starting_is_nothing(broker):
    front_end = MqttFrontEndFactory().create(config(), broker)
    await front_end.stop_accepting()
    await front_end.stop()


async def test_a_connection_over_the_limit_is_closed(broker):
    options = MqttOptions(connections_max=1)
    front_end = MqttFrontEndFactory().create(config(options=options), broker)
    address = await front_end.start()
    reader, writer = await dial(address)
    writer.write(encode(Connect(client_id="first")))
    await reader.readexactly(4)
    second_reader, second_writer = await dial(address)
    assert await second_reader.read() == b""
    second_writer.close()
    writer.close()
    await front_end.stop()


async def test_a_client_that_does_not_read_pauses_its_deliveries_and_resumes(broker, stored):
    peers = []
    connect = broker.connect

    async def connect_and_remember(request, peer):
        peers.append(peer)
        return await connect(request, peer)

    broker.connect = connect_and_remember
    front_end = MqttFrontEndFactory().create(config(), broker)
    reader, writer = await dial(await front_end.start())
    writer.write(encode(Connect(client_id="dev")) + b"\x82\x06\x00\x01\x00\x01a\x00")
    await reader.readexactly(4)
    while not broker.connection.take("subscribe"):
        await asyncio.sleep(0)
    size = 32 * 1024 * 1024  # more than the socket buffers hold
    peers[0].deliver("a", [stored(1, body=b"x" * size)])
    while broker.connection.take("writable") != [False]:
        await asyncio.sleep(0)
    left = 5 + 3 + size
    while left:
        left -= len(await reader.read(min(left, 1 << 20)))
    while broker.connection.take("writable") != [True]:
        await asyncio.sleep(0)
    writer.close()
    await front_end.stop()


async def test_a_port_in_use_is_an_error_at_start(broker):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        front_end = MqttFrontEndFactory().create(config(port=taken.getsockname()[1]), broker)
        with pytest.raises(OSError, match="in use"):
            await front_end.start()
        await front_end.stop()


def test_options_of_another_kind_and_unknown_transports_are_refused(broker):
    factory = MqttFrontEndFactory()
    assert factory.default_port == 1883
    assert factory.options_type is MqttOptions
    with pytest.raises(ConfigError):
        factory.create(config(options=object()), broker)
    unknown = ListenerConfig("mqtt", "carrier-pigeon", "127.0.0.1", 0, True, MqttOptions())
    with pytest.raises(ConfigError, match="carrier-pigeon"):
        factory.create(unknown, broker)


def test_a_client_id_from_certificates_needs_certificates(broker):
    options = MqttOptions(client_id_from_certificate=True)
    with pytest.raises(ConfigError) as caught:
        MqttFrontEndFactory().create(config(options=options), broker)
    assert caught.value.key == "client_id_from_certificate"


async def test_a_client_of_5_0_connects_and_leaves(broker):
    front_end = MqttFrontEndFactory().create(config(), broker)
    reader, writer = await dial(await front_end.start())
    writer.write(encode(Connect(client_id="dev", level=5)))
    header = await reader.readexactly(2)
    assert header[0] == 0x20
    assert (await reader.readexactly(header[1]))[:2] == b"\0\0"
    writer.write(encode(Disconnect(), 5))
    assert await reader.read() == b""
    assert broker.requests[0].version == "5.0"
    writer.close()
    await front_end.stop()
