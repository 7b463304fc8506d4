"""Large messages that MQTT clients publish: a whole gateway with its journal, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trustme
from large_messages import (
    KB,
    MB,
    LargeClient,
    body_files,
    connected,
    digest_of,
    no_collector,
    pieces,
)
from large_mqtt import LargeMqtt, mqtt_client
from websockets.asyncio.client import connect as websocket_connect
from websockets.typing import Subprotocol

from tidegate.testing.embedded import EmbeddedGateway
from tidegate_protocols.mqtt import (
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    encode,
)

SIZE = 700 * KB
CONFIG = """
[store]
plugin = "journal"
checkpoint_interval = "20ms"
cleanup_interval = "1s"
{store}

[[listeners]]
protocol = "stomp"
bind = "127.0.0.1:0"

[[listeners]]
protocol = "mqtt"
bind = "127.0.0.1:0"
packet_bytes_max = "2mb"
large_message_max_size = "40mb"

[[listeners]]
protocol = "mqtt"
transport = "ws"
bind = "127.0.0.1:0"

[[listeners]]
protocol = "mqtt"
transport = "tls"
bind = "127.0.0.1:0"
tls_certificate = "{certificate}"
"""

by_level = pytest.mark.parametrize("level", [3, 4, 5])


@contextlib.asynccontextmanager
async def gateway(
    certificate: Path, store: str = "", directory: Path | None = None
) -> AsyncIterator[EmbeddedGateway]:
    config = CONFIG.format(store=store, certificate=certificate)
    async with asyncio.timeout(60):
        async with EmbeddedGateway(config, data_directory=directory) as running:
            yield running


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("tls") / "server.pem"
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(path))
    return path


@pytest.fixture(autouse=True)
def files_go_at_once() -> Iterator[None]:
    with no_collector():
        yield


async def until_files(running: EmbeddedGateway, count: int) -> None:
    while len(body_files(running.data_directory)) != count:
        await asyncio.sleep(0.005)


def body_of(seed: int, size: int = SIZE) -> bytes:
    return b"".join(pieces(seed, size))


async def confirm(client: LargeMqtt, qos: int, packet_id: int = 7) -> None:
    """Read what confirms a PUBLISH, and end its exchange."""
    if qos == 1:
        await client.expect(Puback(packet_id))
    if qos == 2:
        await client.expect(Pubrec(packet_id))
        client.write(Pubrel(packet_id))
        await client.expect(Pubcomp(packet_id))


async def consume(client: LargeClient, *seeds: int, size: int = SIZE) -> None:
    """The queue ``a`` holds these, whole, and nothing else."""
    client.frame("SUBSCRIBE", id="1", destination="/queue/a", ack="client-individual")
    for seed in seeds:
        arrived = await client.receive()
        assert (arrived.command, arrived.size) == ("MESSAGE", size)
        assert arrived.digest == digest_of(seed, size)
        client.frame("ACK", id=arrived.headers["ack"])
    client.frame("SEND", destination="/queue/a", n="last")
    assert (await client.receive()).headers.get("n") == "last"


# --------------------------------------------------------------------------------- through the disk


@by_level
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_large_publish_goes_through_a_file_to_a_stomp_consumer(
    certificate: Path, level: int, qos: int
) -> None:
    async with gateway(certificate) as running:
        async with mqtt_client(running.mqtt_port, level) as client:
            head = Publish("$queue/a", b"", qos, 7 if qos else 0)
            await client.pour(head, pieces(1, SIZE), SIZE)
            await confirm(client, qos)
            await until_files(running, 1)
        async with connected(running.stomp_port) as consumer:
            await consume(consumer, 1)
        await until_files(running, 0)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_large_and_small_ones_keep_their_order_to_a_subscriber(
    certificate: Path, qos: int
) -> None:
    async with (
        gateway(certificate) as running,
        mqtt_client(running.mqtt_port, client_id="s") as subscriber,
        mqtt_client(running.mqtt_port, client_id="p") as publisher,
    ):
        await subscriber.subscribe("t", 2)
        # Of those with QoS 0 a subscriber misses what comes while it is sent a large one.
        sizes = [SIZE] * 3 if not qos else [10, SIZE, SIZE, 10, SIZE, SIZE, SIZE, 10, 10]
        for number, size in enumerate(sizes, 1):
            head = Publish("t", b"", qos, number if qos else 0)
            await publisher.pour(head, pieces(number, size), size)
            if not qos:
                packet = await subscriber.receive()
                assert isinstance(packet, Publish)
                assert packet.body == body_of(number, size)
        if qos:
            answer = {1: Puback, 2: Pubrec}[qos]
            await publisher.expect(*(answer(n) for n in range(1, len(sizes) + 1)))
            for number, size in enumerate(sizes, 1):
                packet = await subscriber.receive()
                while isinstance(packet, Pubrel):
                    subscriber.write(Pubcomp(packet.packet_id))
                    packet = await subscriber.receive()
                assert isinstance(packet, Publish)
                assert (packet.qos, packet.body) == (qos, body_of(number, size))
                subscriber.write(answer(packet.packet_id))
        await until_files(running, 0)


async def test_one_above_packet_bytes_max_goes_through_as_well(certificate: Path) -> None:
    async with (
        gateway(certificate) as running,
        mqtt_client(running.mqtt_port) as client,
    ):
        size = 12 * MB
        await client.pour(Publish("$queue/a", b"", 1, 7), pieces(1, size), size)
        await confirm(client, 1)
        async with connected(running.stomp_port) as consumer:
            await consume(consumer, 1, size=size)


@pytest.mark.parametrize("size", [100 * KB - 1, 100 * KB])
async def test_the_size_of_the_payload_decides_whether_it_has_a_file(
    certificate: Path, size: int
) -> None:
    async with gateway(certificate) as running, mqtt_client(running.mqtt_port) as client:
        client.write(Publish("$queue/a", body_of(1, size), 1, 7))
        await confirm(client, 1)
        assert len(body_files(running.data_directory)) == (size == 100 * KB)
        async with connected(running.stomp_port) as consumer:
            await consume(consumer, 1, size=size)


async def test_properties_and_text_cross_with_a_large_body(certificate: Path) -> None:
    async with gateway(certificate) as running, mqtt_client(running.mqtt_port) as client:
        properties = Properties(
            payload_format_indicator=1, user_properties=(("colour", "red: dark"),)
        )
        body = "äß€😀".encode() * 20_000
        client.write(
            Publish("$queue/a", body, 1, 7, properties=properties),
            Publish("$queue/a", body[:-1], 1, 8, properties=properties),
            Pingreq(),
        )
        found = [await client.receive() for _ in (1, 2, 3)]
        assert Pingresp() in found  # which waits for no disk
        taken, refused = (packet for packet in found if isinstance(packet, Puback))
        assert taken == Puback(7)
        assert refused.reason_code == ReasonCode.PAYLOAD_FORMAT_INVALID
        async with connected(running.stomp_port) as consumer:
            consumer.frame("SUBSCRIBE", id="1", destination="/queue/a", ack="auto")
            arrived = await consumer.receive()
            assert (arrived.headers["colour"], arrived.body) == ("red\\c dark", body)
        await until_files(running, 0)


# ------------------------------------------------------------------------------------------- QoS 2


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_qos_2_message_that_is_sent_again_is_swallowed(
    certificate: Path, tmp_path: Path, restarts: bool
) -> None:
    kept = Properties(session_expiry_interval=1000)
    async with gateway(certificate, directory=tmp_path) as running:
        async with mqtt_client(running.mqtt_port, clean_session=False, properties=kept) as one:
            await one.pour(Publish("$queue/a", b"", 2, 7), pieces(1, SIZE), SIZE)
            await one.expect(Pubrec(7))
            one.drop()
        if restarts:
            await running.restart()
        async with mqtt_client(running.mqtt_port, clean_session=False, properties=kept) as two:
            again = Publish("$queue/a", b"", 2, 7, dup=True)
            await two.pour(again, pieces(1, SIZE), SIZE)
            await confirm(two, 2)
            assert len(body_files(tmp_path)) == 1
        async with connected(running.stomp_port) as consumer:
            await consume(consumer, 1)
        await until_files(running, 0)


async def test_a_large_message_that_was_cut_off_can_be_sent_again_under_its_id(
    certificate: Path,
) -> None:
    kept = Properties(session_expiry_interval=1000)
    async with gateway(certificate) as running:
        async with mqtt_client(running.mqtt_port, clean_session=False, properties=kept) as one:
            await one.pour(Publish("$queue/a", b"", 2, 7), pieces(1, SIZE // 2), SIZE)
            await until_files(running, 1)
            one.drop()
        await until_files(running, 0)
        async with mqtt_client(running.mqtt_port, clean_session=False, properties=kept) as two:
            again = Publish("$queue/a", b"", 2, 7, dup=True)
            await two.pour(again, pieces(1, SIZE), SIZE)
            await confirm(two, 2)
        async with connected(running.stomp_port) as consumer:
            await consume(consumer, 1)


# ---------------------------------------------------------------------------------- refused, cut off


async def test_what_is_refused_is_answered_and_leaves_no_file(certificate: Path) -> None:
    async with gateway(certificate) as running, mqtt_client(running.mqtt_port) as client:
        await client.pour(Publish("$SYS/x", b"", 1, 7), pieces(1, SIZE), SIZE)
        answer = await client.receive()
        assert isinstance(answer, Puback)
        assert answer.reason_code == ReasonCode.NOT_AUTHORIZED
        size = 3 * MB
        await client.pour(Publish("t", b"", 1, 8, True), pieces(1, size), size)
        answer = await client.receive()
        assert isinstance(answer, Puback)
        assert answer.reason_code == ReasonCode.QUOTA_EXCEEDED
        assert body_files(running.data_directory) == []
        await client.pour(Publish("$queue/a", b"", 1, 9), pieces(2, SIZE), SIZE)
        await confirm(client, 1, 9)
        async with connected(running.stomp_port) as consumer:
            await consume(consumer, 2)


async def test_a_body_without_room_on_the_disk_is_an_answer_and_small_ones_still_go(
    certificate: Path,
) -> None:
    async with gateway(certificate) as running:
        large = running.gateway.broker.large_bodies
        large._free_limit_bytes = 1 << 60
        async with mqtt_client(running.mqtt_port) as client:
            await client.pour(Publish("$queue/a", b"", 1, 7), pieces(1, SIZE), SIZE)
            answer = await client.receive()
            assert isinstance(answer, Puback)
            assert answer.reason_code == ReasonCode.QUOTA_EXCEEDED
            client.write(Publish("$queue/a", body_of(2, 100), 1, 8))
            await confirm(client, 1, 8)
        async with connected(running.stomp_port) as consumer:
            await consume(consumer, 2, size=100)
        assert body_files(running.data_directory) == []


@by_level
async def test_a_client_that_dies_in_the_middle_leaves_nothing(
    certificate: Path, level: int
) -> None:
    async with gateway(certificate) as running:
        async with mqtt_client(running.mqtt_port, level) as client:
            await client.pour(Publish("$queue/a", b"", 1, 7), pieces(1, 3 * MB), 6 * MB)
            await until_files(running, 1)
            client.drop()
        await until_files(running, 0)
        async with connected(running.stomp_port) as consumer:
            await consume(consumer)


async def test_one_above_every_limit_ends_the_connection(certificate: Path) -> None:
    async with gateway(certificate) as running, mqtt_client(running.mqtt_port) as client:
        await client.pour(Publish("$queue/a", b"", 1, 7), [], 41 * MB)
        answer = await client.receive()
        assert isinstance(answer, Disconnect)
        assert answer.reason_code == ReasonCode.PACKET_TOO_LARGE
        assert body_files(running.data_directory) == []


async def test_a_retained_one_that_fits_passes_through_memory(certificate: Path) -> None:
    async with gateway(certificate) as running, mqtt_client(running.mqtt_port) as client:
        client.write(Publish("t", body_of(1), 1, 7, True))
        await client.receive()
        assert body_files(running.data_directory) == []
        await client.subscribe("t", 0)
        assert await client.receive() == Publish("t", body_of(1), retain=True)


# -------------------------------------------------------------------------------- other transports


@pytest.mark.parametrize("transport", ["tcp", "tls"])
@pytest.mark.parametrize("qos", [0, 1])
async def test_who_leaves_right_behind_a_large_message_has_published_it(
    certificate: Path, authority: trustme.CA, transport: str, qos: int
) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tls = context if transport == "tls" else None
    async with gateway(certificate) as running:
        port = int(running.addresses[1 if tls is None else 3].rpartition(":")[2])
        for seed in (1, 2, 3):
            async with mqtt_client(port, tls=tls, client_id=f"c{seed}") as client:
                head = Publish("$queue/a", b"", qos, seed if qos else 0)
                await client.pour(head, pieces(seed, SIZE), SIZE)
                client.leave()
        async with connected(running.stomp_port) as consumer:
            consumer.frame("SUBSCRIBE", id="1", destination="/queue/a", ack="auto")
            found = {(await consumer.receive()).digest for _ in (1, 2, 3)}
            assert found == {digest_of(seed, SIZE) for seed in (1, 2, 3)}


async def test_over_websocket_a_large_publish_may_come_in_any_number_of_messages(
    certificate: Path,
) -> None:
    async with gateway(certificate) as running:
        url = running.addresses[2].replace("mqtt+ws", "ws")
        async with websocket_connect(
            url, subprotocols=[Subprotocol("mqtt")], max_size=None, proxy=None
        ) as client:
            await client.send(encode(Connect(client_id="w", level=5), 5))
            await client.recv()
            wire = encode(Publish("$queue/a", body_of(1), 1, 7), 5)
            await client.send(wire)
            assert await client.recv() == encode(Puback(7), 5)
            for at in range(0, len(wire), 50_000):
                await client.send(wire[at : at + 50_000])
            assert await client.recv() == encode(Puback(7), 5)
            assert len(body_files(running.data_directory)) == 2
        async with connected(running.stomp_port) as consumer:
            await consume(consumer, 1, 1)
