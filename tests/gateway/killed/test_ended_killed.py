"""A gateway that is killed again and again while rows are made of what a deleted queue still held: in the table each
message has one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import deltalake
import pytest
from gateway_process import GatewayProcess
from sink_load import sink_into
from wire import StompClient

from tidegate.operator_socket import OperatorClient
from tidegate.spi.operate import DeleteDestination

COUNT: Final = 4_000
KILLS: Final = 3


@pytest.mark.long
@pytest.mark.parametrize("store", ["journal", "jdbc", "journaled"])
async def test_each_message_has_one_row_whenever_the_gateway_is_killed(
    tmp_path: Path, store: str
) -> None:
    table = tmp_path / "table"
    sink = sink_into(
        table,
        engine="deltalake",
        commit_interval="100ms",
        segment_interval="50ms",
        stop_timeout="120s",
    )
    extra = f'[store]\nplugin = "{store}"\n{sink}'
    with GatewayProcess(tmp_path, extra=extra) as gateway:
        client = await StompClient.connect(gateway.stomp_port)
        for number in range(COUNT):
            last = {"receipt": "r"} if number == COUNT - 1 else {}
            client.send("SEND", b"%d" % number, destination="/queue/q", **last)
        await client.receipt("r")
        client.close()
        with OperatorClient(tmp_path / "data") as operator:
            request = DeleteDestination("queue://q", with_messages=True)
            assert operator.ask(request).error is None
        for number in range(KILLS):
            time.sleep(0.02 * number)
            gateway.kill()
            gateway.start()
        deadline = time.monotonic() + 120
        while rows_in(table) < COUNT and time.monotonic() < deadline:
            time.sleep(0.2)
        assert gateway.stop(180) == 0, gateway.tail()
    found = deltalake.DeltaTable(str(table)).to_pyarrow_table(
        columns=["ack_seq", "body", "outcome", "reason"]
    )
    assert sorted(found["ack_seq"].to_pylist()) == list(range(1, COUNT + 1))
    assert sorted(map(int, found["body"].to_pylist())) == list(range(COUNT))
    assert set(found["outcome"].to_pylist()) == {"purged"}
    assert set(found["reason"].to_pylist()) == {"its queue was deleted"}


def rows_in(table: Path) -> int:
    if not (table / "_delta_log").is_dir():
        return 0
    return deltalake.DeltaTable(str(table)).to_pyarrow_table(columns=["ack_seq"]).num_rows
