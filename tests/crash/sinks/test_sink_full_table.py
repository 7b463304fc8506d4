"""No room where the table is: the gateway goes on, the operator reads what to do, and then all is there once.

The file system of the table is small and its own (``small_disk``), that of the gateway and of its staged files is not.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gateway_process import GatewayProcess
from sink_load import exchange, sink_into
from small_disk import SmallDiskGateway, need_mounts
from table_batches import table_batches

BATCH = 300
WAIT_S = 240
REMEDY = "free some space where the table is"
#: Bytes that are left, in turn: nothing, too little for the rows, perhaps enough for them and not for the commit.
ROOM = (0, 4 << 10, 24 << 10)


def status(gateway: GatewayProcess, *options: str) -> str:
    done = subprocess.run(
        [*GATEWAY, "sink", "status", "spark", "--config", str(gateway.config), *options],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "1000"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


GATEWAY = (sys.executable, "-m", "tidegate")


def health(gateway: GatewayProcess) -> dict[str, Any]:
    return json.loads(status(gateway, "--json"))["health"]


def wait(gateway: GatewayProcess, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{health(gateway)}\n{gateway.tail()}"
        time.sleep(0.2)


def run(directory: Path, engine: str, table_format: str) -> None:
    need_mounts()
    table, sent = directory / "lake" / "table", 0
    sink = sink_into(table, engine=engine, format=table_format)
    gateway = SmallDiskGateway(directory, extra=sink)
    gateway.small, gateway.size_mb = "lake", 32

    def load() -> None:
        nonlocal sent
        asyncio.run(exchange(gateway.stomp_port, sent, BATCH))
        sent += BATCH

    with gateway:
        load()
        wait(gateway, lambda: health(gateway)["mark"] == sent)
        gateway.fill()
        for room in ROOM:
            load()  # the gateway goes on
            gateway.leave(room)
            if not room:
                wait(gateway, lambda: REMEDY in health(gateway)["problem"])
            time.sleep(3.0)  # it tries again and again meanwhile, and starts again
        gateway.fill()
        load()
        wait(gateway, lambda: REMEDY in health(gateway)["problem"])
        shown = [line for line in status(gateway).splitlines() if line.startswith("problem")]
        assert len(shown) == 1, shown
        assert REMEDY in shown[0], shown
        assert health(gateway)["mark"] < sent
        gateway.free()
        wait(gateway, lambda: health(gateway)["mark"] == sent)
        assert health(gateway)["problem"] == ""
        shutil.copytree(gateway.disk / "table", table)  # its file system goes with the gateway
        assert gateway.stop(180) == 0, gateway.tail()
    rows = [
        (number, bytes(body).decode())
        for batch in table_batches(table, table_format)
        for number, body in zip(
            batch.column("ack_seq").to_pylist(), batch.column("body").to_pylist(), strict=True
        )
    ]
    assert sorted(number for number, _ in rows) == list(range(1, sent + 1))
    assert sorted(body for _, body in rows) == sorted(f"m{number}" for number in range(sent))
    assert "Traceback" not in gateway.log.read_text(), gateway.tail()


@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_spark_goes_on_when_there_is_room_again(table_format: str, tmp_path: Path) -> None:
    run(tmp_path, "spark", table_format)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_delta_rs_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    run(tmp_path, "deltalake", "delta")
