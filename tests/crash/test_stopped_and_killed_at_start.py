"""A gateway as a service manager has it: stopped and killed under load, and killed again and again while it starts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_crew import amount
from gateway_process import GatewayProcess
from masters import LOST
from postgres_server import PostgresServer
from wire import StompClient

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

STORES = ("journal", "sqlite", "postgresql", "journaled")


@contextlib.contextmanager
def store_of(name: str, directory: Path) -> Iterator[str]:
    """A ``[store]``, and what it needs."""
    if name == "journal":
        yield '[store]\nplugin = "journal"\ncheckpoint_interval = "1s"\ncleanup_interval = "1s"\n'
    elif name == "postgresql":
        with PostgresServer() as server:
            login = f'user = "tidegate"\npassword_file = "{server.password_file}"'
            yield f'[store]\nplugin = "jdbc"\nurl = "{server.url}"\n{login}\n'
    else:
        plugin = "jdbc" if name == "sqlite" else "journaled"
        yield f'[store]\nplugin = "{plugin}"\nurl = "sqlite:///{directory}/tidegate.db"\n'


class Producer:
    """Sends one message after the other. Attributes: sent, confirmed: how many."""

    def __init__(self) -> None:
        self.sent = 0
        self.confirmed: list[int] = []

    async def run(self, port: int) -> None:
        """Until the gateway ends."""
        client = await StompClient.connect(port)
        with contextlib.suppress(*LOST):
            while True:
                number, self.sent = self.sent, self.sent + 1
                client.send("SEND", b"%d" % number, destination="/queue/q", receipt=f"{number}")
                await client.receipt(f"{number}")
                self.confirmed.append(number)
        await client.aclose()


async def killed_while_it_starts(gateway: GatewayProcess, after_s: float) -> None:
    """It need not have come far: what it does in this time depends on the machine."""
    with gateway.log.open("ab") as log:
        process = subprocess.Popen(gateway.command(), stdout=log, stderr=subprocess.STDOUT)
    await asyncio.sleep(after_s)
    assert process.poll() is None, gateway.tail()
    process.kill()
    await asyncio.to_thread(process.wait)


@pytest.mark.parametrize("store", STORES)
async def test_nothing_confirmed_is_lost_however_often_it_is_stopped_and_its_start_killed(
    tmp_path: Path, store: str
) -> None:
    chance, producer, starts = random.Random(13), Producer(), list[float]()
    with store_of(store, tmp_path) as table:
        gateway = GatewayProcess(tmp_path, extra=table)
        for turn in range(amount(6, 20)):
            began = time.monotonic()
            await asyncio.to_thread(gateway.start)
            starts.append(time.monotonic() - began)
            loading = asyncio.create_task(producer.run(gateway.stomp_port))
            await asyncio.sleep(chance.uniform(0.2, 0.8))
            if turn % 2:
                await asyncio.to_thread(gateway.kill)
            else:
                assert await asyncio.to_thread(gateway.stop) == 0, gateway.tail()
            await loading
            for _ in range(5):
                await killed_while_it_starts(gateway, chance.uniform(0.1, starts[0] * 1.1))
        await asyncio.to_thread(gateway.start)
        client = await StompClient.connect(gateway.stomp_port)
        client.send("SUBSCRIBE", destination="/queue/q", id="1", ack="auto")
        client.send("SEND", b"last", destination="/queue/q")
        found: list[int] = []
        while (body := (await client.receive()).body) != b"last":
            found.append(int(body))
        await client.aclose()
        assert await asyncio.to_thread(gateway.stop) == 0
    assert found == sorted(set(found))
    assert set(producer.confirmed) <= set(found) <= set(range(producer.sent))
    log = gateway.log.read_text()
    assert "Traceback" not in log
    assert " ERROR " not in log
    print(f"store={store} confirmed={len(found)} starts_s={[round(each, 2) for each in starts]}")
