"""`tidegate events` against a real gateway."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from operating import Command
from wire import MqttClient

from tidegate.cli._exit import ExitCode
from tidegate.testing.embedded import EmbeddedGateway


async def test_events_are_listed_by_kind_severity_and_sequence(
    gateway: EmbeddedGateway, command: Command
) -> None:
    rows = await command.rows("events")
    names = [row["event"] for row in rows]
    assert names[0] == "store-recovered"
    assert names[-1] == "gateway-started"
    assert names.count("listener-added") == len(gateway.addresses)
    last = rows[-1]["sequence"]
    assert [row["sequence"] for row in rows] == list(range(last - len(rows) + 1, last + 1))
    client = await MqttClient.connect(gateway.mqtt_port, "m1")
    assert (await command("destination", "create", "a"))[0] == 0
    behind = await command.rows("events", "--since", str(last))
    assert [row["event"] for row in behind] == ["client-connected", "destination-made", "operated"]
    assert behind[0]["about"]["client"] == "m1"
    assert await command.rows("events", "--limit", "1", "--kind", "client") == behind[:1]
    assert await command.rows("events", "--limit", "0") == rows + behind
    code, text = await command("events", "--kind", "client", "--since", "1h")
    assert (code, "client-connected" in text, "client=m1" in text) == (0, True, True)
    assert await command("events", "--kind", "sink") == (0, "no events\n")
    assert await command.rows("events", "--severity", "error") == []
    code, text = await command("events", "--since", "5")
    assert text.startswith("… the gateway was restarted")
    client.close()


async def test_what_makes_no_sense_is_refused(gateway: EmbeddedGateway, command: Command) -> None:
    for arguments in (("--since", "soon"), ("--kind", "x"), ("--limit", "-1")):
        assert (await command("events", *arguments))[0] == ExitCode.CONFIG


async def test_without_a_gateway_it_says_so(command: Command) -> None:
    assert (await command("events"))[0] == ExitCode.BROKER


@pytest.mark.long
async def test_those_that_come_are_followed_until_the_gateway_goes_away(
    tmp_path: Path,
    command: Command,  # which writes the configuration
) -> None:
    async with EmbeddedGateway(data_directory=tmp_path) as gateway:
        arguments = [
            "events",
            "--follow",
            "--json",
            "--kind",
            "client",
            "--config",
            str(tmp_path / "tidegate.toml"),
        ]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidegate", *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        assert process.stdout is not None
        number = 0
        async with asyncio.timeout(120):
            # Whether it looked before or after the first client came: it is told of each once.
            for number in range(3):
                client = await MqttClient.connect(gateway.mqtt_port, f"m{number}")
                line = json.loads(await process.stdout.readline())
                assert (line["event"], line["about"]["client"]) == (
                    "client-connected",
                    f"m{number}",
                )
                client.close()
                line = json.loads(await process.stdout.readline())
                assert line["event"] == "client-disconnected"
    async with asyncio.timeout(60):
        _, told = await process.communicate()
    assert process.returncode == ExitCode.BROKER
    assert b"lost the connection to the gateway" in told
