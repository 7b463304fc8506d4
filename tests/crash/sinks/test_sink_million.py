"""A million messages from a producer into a table, while everything that can die is killed.

Random bodies over two queues. Meanwhile the gateway, the sink's job or (with Spark) its Java machine
alone is killed by SIGKILL, at moments drawn by chance. What was confirmed is then compared with the table by
the hash of every body: sums of hashes agree only when the bodies do, whatever their order.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from crash_crew import amount
from gateway_process import GatewayProcess
from sink_load import job_of, sink_into, stager_of
from table_batches import table_batches
from wire import StompClient

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800)]

MESSAGES = amount(200_000, 1_000_000)
QUEUES = 2
#: Messages between two receipts. Of what is sent again after a kill the gateway remembers the ids.
CONFIRM = 500
KILLS = amount(6, 12)
_HASHES = 1 << 256


def body_of(queue: int, number: int) -> bytes:
    chance = random.Random(f"{queue}/{number}")
    return b"%d/%d " % (queue, number) + chance.randbytes(chance.randrange(40, 400))


def hash_of(body: bytes) -> int:
    return int.from_bytes(hashlib.sha256(body).digest())


class Load:
    """Producer and consumer of one queue; both go on when the gateway is back."""

    def __init__(self, port: int, queue: int, count: int) -> None:
        self._port, self._queue, self._count = port, queue, count
        self._destination = f"/queue/million.{queue}"
        self.confirmed = 0
        self.consumed = 0
        self.sum_of_hashes = 0

    async def produce(self) -> None:
        while self.confirmed < self._count:
            try:
                client = await StompClient.connect(self._port)
            except (OSError, EOFError):
                await asyncio.sleep(0.05)
                continue
            try:
                while self.confirmed < self._count:
                    await self._send_some(client)
            except (OSError, EOFError):
                continue
            finally:
                client.close()

    async def _send_some(self, client: StompClient) -> None:
        end = min(self.confirmed + CONFIRM, self._count)
        hashes = 0
        for number in range(self.confirmed, end):
            body = body_of(self._queue, number)
            hashes += hash_of(body)
            receipt = f"receipt:{end}\n" if number == end - 1 else ""
            head = (
                f"SEND\ndestination:{self._destination}\n_AMQ_DUPL_ID:{number}\n"
                f"content-length:{len(body)}\n{receipt}\n"
            )
            client.writer.write(head.encode() + body + b"\0")
        await client.receipt(str(end))
        self.confirmed = end
        self.sum_of_hashes += hashes

    async def consume(self) -> None:
        """Until each message was acknowledged, and the gateway has said that it has that on the disk."""
        seen: set[int] = set()
        while True:
            try:
                client = await StompClient.connect(self._port)
            except (OSError, EOFError):
                await asyncio.sleep(0.05)
                continue
            try:
                client.send("SUBSCRIBE", destination=self._destination, id="1", ack="client")
                received = 0
                while len(seen) < self._count:
                    frame = await client.receive()
                    received += 1
                    seen.add(int(frame.body.partition(b" ")[0].partition(b"/")[2]))
                    self.consumed = len(seen)
                    if received % 20 == 0 or len(seen) == self._count:
                        client.send("ACK", id=frame.headers["ack"])
                client.send("DISCONNECT", receipt="done")
                await client.receipt("done")
                return
            except (OSError, EOFError):
                continue
            finally:
                client.close()


async def kill_by_chance(gateway: GatewayProcess, loads: list[Load], chance: random.Random) -> int:
    """Kill something each time when another share of the messages was consumed; how often."""
    kills = 0
    for turn in range(KILLS):
        at = (turn + chance.uniform(0.2, 0.8)) / KILLS * 0.95 * MESSAGES
        while min(load.consumed for load in loads) * QUEUES < at:
            await asyncio.sleep(0.01)
        job = job_of(gateway)
        below = job.children(recursive=True) if job else []
        stager = stager_of(gateway)
        what = turn % 4
        if what == 1 and job is not None:
            os.kill(job.pid, signal.SIGKILL)
        elif what == 2 and below:
            os.kill(below[-1].pid, signal.SIGKILL)
        elif what == 3 and stager is not None:
            stager.kill()
        else:
            gateway.kill()
            await asyncio.to_thread(gateway.start)
        kills += 1
    return kills


async def run(gateway: GatewayProcess, chance: random.Random) -> list[Load]:
    loads = [Load(gateway.stomp_port, queue, MESSAGES // QUEUES) for queue in range(QUEUES)]
    async with asyncio.TaskGroup() as tasks:
        for load in loads:
            tasks.create_task(load.produce())
            tasks.create_task(load.consume())
        killing = tasks.create_task(kill_by_chance(gateway, loads, chance))
    assert killing.result() == KILLS
    return loads


@pytest.mark.parametrize(
    ("engine", "table_format"),
    [("spark", "delta"), ("spark", "iceberg"), ("deltalake", "delta")],
)
def test_every_body_that_was_confirmed_is_in_the_table_once(
    engine: str, table_format: str, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    sink = sink_into(
        table,
        engine=engine,
        format=table_format,
        commit_interval="500ms",
        segment_interval="200ms",
        stop_timeout="300s",
    )
    started = time.monotonic()
    with GatewayProcess(tmp_path, extra=sink) as gateway:
        loads = asyncio.run(run(gateway, random.Random(f"{engine} {table_format}")))
        assert gateway.stop(400) == 0, gateway.tail()
    rows, low, high, hashes = 0, 1, 0, 0
    for batch in table_batches(table, table_format):
        numbers, bodies = batch.column("ack_seq").to_pylist(), batch.column("body").to_pylist()
        rows += len(numbers)
        low, high = min([low, *numbers]), max([high, *numbers])
        hashes += sum(hash_of(bytes(body)) for body in bodies)
    print(f"{engine} {table_format}: {rows:,} rows after {time.monotonic() - started:.0f} s")
    assert (rows, low, high) == (MESSAGES, 1, MESSAGES)
    assert hashes == sum(load.sum_of_hashes for load in loads)
    shutil.rmtree(tmp_path)
