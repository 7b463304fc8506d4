"""Messages that are published again over the operator's socket, in frames and in lines."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest
from wire import StompClient

from tidegate.operator_socket import (
    FRAME_BYTES_MAX,
    SOCKET_NAME,
    OperatorClient,
    reachable,
)
from tidegate.spi import RequestError
from tidegate.spi.commands import ClientError
from tidegate.spi.operate import ListDestinations
from tidegate.spi.replay import BeginReplay, PublishReplayed, Replay, ReplayedMessage
from tidegate.testing.embedded import EmbeddedGateway

A = "queue://a"


def begin(directory: Path) -> Replay:
    with OperatorClient(directory) as client:
        found = client.answer(BeginReplay("r", "plan", "0"))
    assert isinstance(found, Replay)
    return found


async def test_a_body_of_megabytes_comes_as_a_frame_and_is_delivered_as_it_is(
    tmp_path: Path,
) -> None:
    body = bytes(range(256)) * (3 << 12)
    async with EmbeddedGateway(data_directory=tmp_path) as gateway:

        def ask() -> Replay:
            begin(tmp_path)
            with OperatorClient(tmp_path) as client:
                item = ReplayedMessage("1", A, body, (("n", "\u00e9"),), protocol="stomp")
                answer = client.answer(PublishReplayed("r", "0", (item,), is_last=True))
                assert isinstance(client.answer(ListDestinations()), object)
            assert isinstance(answer, Replay)
            return answer

        answer = await asyncio.to_thread(ask)
        assert (answer.count, answer.is_complete, answer.problem) == (1, True, "")
        client = await StompClient.connect(gateway.port("stomp"))
        client.send("SUBSCRIBE", id="s", destination="/queue/a")
        frame = await client.receive()
        assert frame.body == body
        assert frame.headers["n"] == "\u00e9"
        client.close()


async def test_a_frame_that_is_cut_too_long_or_none_harms_nobody(tmp_path: Path) -> None:
    async with EmbeddedGateway(data_directory=tmp_path):

        def speak(data: bytes, *, ends: bool = False) -> bytes:
            with (
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client,
                reachable(tmp_path) as short,
            ):
                client.connect(str(short / SOCKET_NAME))
                client.sendall(data)
                if ends:
                    client.shutdown(socket.SHUT_WR)
                client.settimeout(60)
                return client.makefile("rb").readline()

        head = struct.Struct(">xI").pack
        said = await asyncio.to_thread(speak, head(FRAME_BYTES_MAX + 1))
        assert b"RequestError" in said
        said = await asyncio.to_thread(speak, head(3) + b"\xc1\xc1\xc1")
        assert b"not a valid request" in said
        for cut in (b"\0", head(10), head(10) + b"abc"):
            assert await asyncio.to_thread(speak, cut, ends=True) == b""
        assert (await asyncio.to_thread(begin, tmp_path)).is_new


async def test_what_is_wrong_is_an_error_of_its_kind(tmp_path: Path) -> None:
    async with EmbeddedGateway(data_directory=tmp_path):

        def ask() -> None:
            with OperatorClient(tmp_path) as client:
                with pytest.raises(RequestError, match="no replay 'other'"):
                    client.answer(PublishReplayed("other", "0"))
                with pytest.raises(RequestError, match="not a valid request"):
                    client.answer(BeginReplay("a/b"))

        await asyncio.to_thread(ask)
    with pytest.raises((ClientError, OSError)):
        begin(tmp_path)
