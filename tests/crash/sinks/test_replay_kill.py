"""Replays whose command and gateway are killed by SIGKILL at any moment: each row comes once, in order."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from replay_table import row, write_delta
from wire import StompClient

from tidegate.operator_socket import OperatorClient
from tidegate.spi.replay import BeginReplay, Replay

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

ROWS = 30_000
KILLS = 12


def begin(gateway: GatewayProcess, table: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tidegate", "replay", "--json", "--engine", "deltalake"]
    return subprocess.Popen(
        [
            *command,
            "--table",
            str(table),
            "--config",
            str(gateway.config),
            "--id",
            "r",
            "--rate",
            "5000",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def published(gateway: GatewayProcess) -> int:
    """As the gateway says. It says it while the command waits for it: on a connection of our own."""
    with OperatorClient(gateway.directory / "data") as client:
        found = client.answer(BeginReplay("r"))
    assert isinstance(found, Replay)
    return found.count


async def bodies(port: int, count: int) -> list[int]:
    """All of the queue in order, and that there is no more."""
    client = await StompClient.connect(port)
    client.send("SUBSCRIBE", id="b", destination="/queue/a", browser="true")
    found: list[int] = []
    while True:
        frame = await client.receive()
        if frame.command == "MESSAGE" and frame.headers.get("browser") == "end":
            client.close()
            return found
        found.append(int(frame.body))
        assert len(found) <= count


@pytest.mark.parametrize("store", ["journal", "jdbc", "journaled"])
async def test_kills_of_the_command_and_the_gateway_neither_double_nor_lose(
    tmp_path: Path, store: str
) -> None:
    table = tmp_path / "table"
    for first in range(1, ROWS, 10_000):
        write_delta(table, [row(n) for n in range(first, first + 10_000)])
    drawn = random.Random(store)
    killed = {"gateway": 0, "command": 0}
    was_at: list[int] = []
    with GatewayProcess(tmp_path, extra=f'[store]\nplugin = "{store}"\n') as gateway:
        while sum(killed.values()) < KILLS:
            command = begin(gateway, table)
            at = published(gateway) + drawn.randint(0, ROWS // KILLS // 2)
            while command.poll() is None and published(gateway) <= at:
                time.sleep(0.005)
            assert command.poll() is None, command.communicate()
            if drawn.random() < 0.5:
                killed["command"] += 1
                command.kill()
            else:
                killed["gateway"] += 1
                gateway.kill()
                gateway.start()
            command.communicate(timeout=120)
            known = await bodies(gateway.stomp_port, ROWS)
            assert known == list(range(1, len(known) + 1))
            was_at.append(len(known))
        command = begin(gateway, table)
        out, err = command.communicate(timeout=600)
        assert command.returncode == 0, err
        assert json.loads(out) == {"replay": "r", "published": ROWS, "complete": True}
        assert await bodies(gateway.stomp_port, ROWS) == list(range(1, ROWS + 1))
    print(f"{store}: {killed}, at {was_at}")
