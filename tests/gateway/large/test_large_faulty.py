"""One large body that cannot be written: its client hears the truth, the log why, and the rest goes on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from large_messages import KB, body_files
from large_mqtt import mqtt_client
from wire import StompClient

from tidegate.spi import LargeBodyError
from tidegate.testing.embedded import EmbeddedGateway
from tidegate_protocols.mqtt import Puback, Publish, Pubrec

SIZE = 300 * KB
BODY = b"x" * SIZE


class BrokenFile:
    """The file of a body, on a disk that takes no more of it, or takes it and does not keep it."""

    def __init__(self, file: Any, call: str) -> None:
        self._file = file
        self._call = call

    def __getattr__(self, name: str) -> Any:
        if name == self._call:
            return self._fail
        return getattr(self._file, name)

    def _fail(self, *_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")


@contextlib.asynccontextmanager
async def gateway(monkeypatch: pytest.MonkeyPatch, *calls: str) -> AsyncIterator[EmbeddedGateway]:
    """Of the first bodies one after the other fails in these *calls*; those behind them do not."""
    async with asyncio.timeout(60), EmbeddedGateway() as running:
        storage = running.gateway.broker.large_bodies.storage
        opened, left = storage.open, list(calls)

        def broken(name: str, *, create: bool = False) -> Any:
            file = opened(name, create=create)
            return BrokenFile(file, left.pop(0)) if create and left else file

        monkeypatch.setattr(storage, "open", broken)
        yield running


async def until_files(running: EmbeddedGateway, count: int) -> None:
    while len(body_files(running.data_directory)) != count:
        await asyncio.sleep(0.005)


def check_log(text: str, directory: Path, count: int) -> None:
    """The operator can see which file it was, and that others are accepted."""
    lines = [line for line in text.splitlines() if "a large message is refused" in line]
    assert len(lines) == count
    for line in lines:
        assert "others are accepted" in line
        assert str(directory) in line
        assert "Input/output error" in line
    assert "read-only" not in text


def check_told(text: str, directory: Path) -> None:
    assert text == LargeBodyError.client_text
    assert "read-only" not in text
    assert "no messages are accepted" not in text
    assert str(directory) not in text


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[StompClient]:
    client = await StompClient.connect(port)
    try:
        yield client
    finally:
        await client.aclose()


async def publishes(running: EmbeddedGateway, bodies: Sequence[bytes]) -> None:
    async with connected(running.stomp_port) as producer:
        for number, body in enumerate(bodies):
            producer.send("SEND", body, destination="/queue/a", receipt=str(number))
            assert (await producer.receive()).headers["receipt-id"] == str(number)


@pytest.mark.parametrize("call", ["pwritev", "datasync"])
async def test_stomp_refuses_that_message_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    async with gateway(monkeypatch, call) as running:
        async with connected(running.stomp_port) as producer:
            producer.send("SEND", b"before", destination="/queue/a", receipt="before")
            producer.send("SEND", BODY, destination="/queue/a", receipt="large")
            assert (await producer.receive()).headers["receipt-id"] == "before"
            error = await producer.receive()
            assert (error.command, error.headers["receipt-id"]) == ("ERROR", "large")
            check_told(error.headers["message"], running.data_directory)
        await until_files(running, 0)
        check_log(caplog.text, running.data_directory, 1)
        await publishes(running, [b"small", BODY])
        assert running.gateway.broker.store.statistics().writable


@pytest.mark.parametrize("qos", [1, 2])
async def test_mqtt_5_refuses_that_message_alone_and_the_connection_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, qos: int
) -> None:
    async with gateway(monkeypatch, "pwritev", "datasync") as running:
        async with mqtt_client(running.mqtt_port) as client:
            client.write(
                Publish("$queue/a", b"before", qos, 1),
                Publish("$queue/a", BODY, qos, 2),
                Publish("$queue/a", BODY, qos, 3),
                Publish("$queue/a", b"small", qos, 4),
                Publish("$queue/a", BODY, qos, 5),
            )
            answers: list[Any] = [await client.receive() for _ in range(5)]
        for answer, code in zip(answers, (0, 0x83, 0x83, 0, 0), strict=True):
            assert isinstance(answer, Puback if qos == 1 else Pubrec)
            assert answer.reason_code == code
            if code:
                check_told(answer.properties.reason_string or "", running.data_directory)
        assert [answer.packet_id for answer in answers] == [1, 2, 3, 4, 5]
        check_log(caplog.text, running.data_directory, 2)


async def test_before_mqtt_5_the_connection_ends_behind_what_came_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(monkeypatch, "datasync") as running:
        async with mqtt_client(running.mqtt_port, 4) as client:
            client.write(
                Publish("$queue/a", b"before", 1, 1),
                Publish("$queue/a", BODY, 1, 2),
                Publish("$queue/a", b"behind", 1, 3),
            )
            assert await client.receive() == Puback(1)
            with pytest.raises(EOFError):
                await client.receive()
        check_log(caplog.text, running.data_directory, 1)
        async with mqtt_client(running.mqtt_port, 4) as client:
            client.write(Publish("$queue/a", BODY, 1, 2))
            assert await client.receive() == Puback(2)
