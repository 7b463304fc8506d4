"""`tidegate limit` and `tidegate cursor` against a real gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from operating import Command
from wire import StompClient

from tidegate.cli._exit import ExitCode
from tidegate.testing.embedded import EmbeddedGateway


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, capsys)


async def test_limits_and_what_is_held_are_shown(tmp_path: Path, command: Command) -> None:
    async with EmbeddedGateway(data_directory=tmp_path) as gateway:
        client = await StompClient.connect(gateway.stomp_port)
        rows = await command.rows("limit", "list", "--sort", "name", "--limit", "3")
        assert [row["scope"] for row in rows] == ["connection", "gateway", "gateway"]
        code, text = await command("limit", "list", "connections_max", "--scope", "gateway")
        assert code == 0
        assert "the next connection is closed at once" in text
        assert "10000" in text
        assert await command("limit", "list", "--percent", "100") == (0, "no limits\n")
        code, text = await command("limit", "show")
        assert (code, "user anonymous" in text) == (0, True)
        assert (await command.rows("limit", "show", "anonymous"))["counts"]["connections"][
            "used"
        ] == 1
        code, text = await command("limit", "show", "nobody")
        assert (code, "nothing is held for" in text) == (ExitCode.CONFIG, True)
        await client.aclose()


async def test_cursors_are_listed(tmp_path: Path, command: Command) -> None:
    async with EmbeddedGateway(data_directory=tmp_path) as gateway:
        assert await command("cursor", "list") == (0, "no cursors\n")
        client = await StompClient.connect(gateway.stomp_port)
        client.send("SEND", b"x", destination="/queue/a", receipt="1")
        await client.receipt("1")
        (row,) = await command.rows("cursor", "list", "--sort", "memory")
        assert (row["destination"], row["cursor"], row["pending"]) == ("queue://a", "store", 1)
        code, text = await command("cursor", "list", "queue://a")
        assert (code, "memory" in text) == (0, True)
        assert await command("cursor", "list", "--paging") == (0, "no cursors\n")
        await client.aclose()
        await asyncio.sleep(0)
