"""A gateway inside a test: real sockets on free ports, data that is gone or stays."""

import asyncio
from pathlib import Path

import pytest

from tidegate.spi import ConfigError
from tidegate.testing.embedded import EmbeddedGateway

CONNECT = b"CONNECT\naccept-version:1.2\nhost:/\n\n\0"
SEND = b"SEND\ndestination:/queue/a\nreceipt:1\n\nhello\0"
SUBSCRIBE = b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:auto\n\n\0"


async def stomp(port: int, frame: bytes, answer: bytes) -> bytes:
    """Connect, send one frame, and read up to the frame that begins with *answer*."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(60):
        writer.write(CONNECT)
        assert (await reader.readuntil(b"\0")).startswith(b"CONNECTED\n")
        writer.write(frame)
        found = (await reader.readuntil(b"\0")).lstrip(b"\r\n")
        assert found.startswith(answer)
        writer.close()
        await writer.wait_closed()
    return found


async def test_a_message_survives_a_restart_and_the_data_goes_with_the_gateway() -> None:
    async def scenario() -> Path:
        async with EmbeddedGateway() as gateway:
            assert gateway.data_directory.is_dir()
            assert [address.split(":")[0] for address in gateway.addresses] == ["stomp", "mqtt"]
            assert gateway.stomp_port != gateway.mqtt_port
            await stomp(gateway.stomp_port, SEND, b"RECEIPT\n")
            await gateway.restart()
            message = await stomp(gateway.stomp_port, SUBSCRIBE, b"MESSAGE\n")
            assert message.endswith(b"\n\nhello\0")
        return gateway.data_directory

    assert not (await scenario()).exists()


async def test_a_given_directory_stays(tmp_path: Path) -> None:
    async with EmbeddedGateway(data_directory=tmp_path) as gateway:
        await stomp(gateway.stomp_port, SEND, b"RECEIPT\n")
    async with EmbeddedGateway(data_directory=tmp_path) as gateway:
        await stomp(gateway.stomp_port, SUBSCRIBE, b"MESSAGE\n")
    assert list(tmp_path.iterdir())


async def test_the_configuration_is_the_gateways() -> None:
    text = """
    [broker]
    persistent = false
    [[listeners]]
    protocol = "stomp"
    bind = "127.0.0.1:0"
    [[destinations]]
    match = ">"
    cursor = "file"
    """

    async with EmbeddedGateway(text) as gateway:
        assert len(gateway.addresses) == 1
        assert set(gateway.gateway.config.cursors) >= {"file"}
        with pytest.raises(LookupError, match="mqtt"):
            _ = gateway.mqtt_port
        await stomp(gateway.stomp_port, SEND, b"RECEIPT\n")
        assert list(gateway.data_directory.iterdir()) == []


async def test_a_gateway_that_does_not_start_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(ConfigError):
        async with EmbeddedGateway("[broker]\nnmae = 'x'"):
            pytest.fail("it started")
    assert list(tmp_path.iterdir()) == []
