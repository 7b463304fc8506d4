"""`tidegate status` against a real gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from wire import StompClient

from tidegate.cli import main
from tidegate.cli._exit import ExitCode
from tidegate.cli.groups._words import counted, duration, size, sized
from tidegate.spi import StoreIOError
from tidegate.spi.operate import Room
from tidegate.testing.embedded import EmbeddedGateway


async def test_the_gateway_is_shown_and_a_failed_store_is_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "tidegate.toml"
    config.write_text(f'[broker]\ndata_directory = "{tmp_path}"\n')
    arguments = ["status", "--config", str(config)]
    async with EmbeddedGateway(data_directory=tmp_path) as gateway:
        client = await StompClient.connect(gateway.stomp_port)
        client.send("SEND", b"x", destination="/queue/a", receipt="1")
        await client.receipt("1")
        assert await asyncio.to_thread(main, [*arguments, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["state"], found["published"]["total"], found["backlog"]) == ("running", 1, 1)
        assert found["listeners"] == list(gateway.addresses)
        assert found["confirmation"]["p50_ms"] > 0
        assert await asyncio.to_thread(main, arguments) == 0
        text = capsys.readouterr().out
        assert "1 of 10000" in text
        assert "1 messages" in text
        gateway.gateway.broker.writer.error = StoreIOError("the disk is \x1b[31mgone")
        assert await asyncio.to_thread(main, arguments) == ExitCode.BROKER
        captured = capsys.readouterr()
        assert "store-failed" in captured.out
        assert "gone" in captured.err
        assert "\x1b" not in captured.out + captured.err
        gateway.gateway.broker.writer.error = None
        client.close()
    assert await asyncio.to_thread(main, arguments) == ExitCode.BROKER
    assert "no gateway is running" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_are_short(count: int, said: str) -> None:
    assert size(count) == said


def test_room_says_its_limit_where_there_is_one() -> None:
    assert sized(Room(1 << 20, 4 << 20)) == "1.0 MiB of 4.0 MiB (25%)"
    assert sized(Room(5, 0)) == "5 B"
    assert counted(Room(3, 4)) == "3 of 4 (75%)"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (61, "1 min 1 s"), (7260, "2 h 1 min"), (90_061, "1 d 1 h")],
)
def test_durations_have_two_parts(seconds: float, said: str) -> None:
    assert duration(seconds) == said
