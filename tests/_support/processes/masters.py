"""Gateways with one store, each with load while it serves: the master is struck, and a standby follows it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from gateway_process import GatewayProcess
from wire import StompClient

LOST = (OSError, EOFError, AssertionError, asyncio.IncompleteReadError)
#: Longest wait for what must happen; not for how fast it does.
WAIT_S = 90.0
Strike = Callable[["Member"], Awaitable[None]]


def on_this_machine(directory: Path, store: str) -> Member:
    """One whose data is in *directory*."""
    directory.mkdir()
    return Member(GatewayProcess(directory, extra=store))


class Member:
    """One of them. Attributes: gateway; serving: ends when it lets clients in."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.serving: asyncio.Future[None] | None = None
        self._read = 0

    async def start(self) -> None:
        """Returns: when it lets clients in, or waits for the store."""
        log = self.gateway.log
        self._read = log.stat().st_size if log.exists() else 0
        self.serving = asyncio.get_running_loop().create_future()
        loop, serving = asyncio.get_running_loop(), self.serving

        def start() -> None:
            try:
                self.gateway.start()
            except AssertionError as error:
                process = self.gateway.process
                if process is not None and process.poll() != -signal.SIGKILL:
                    loop.call_soon_threadsafe(serving.set_exception, error)
                    return  # whoever waits for it is told why it does not serve
            loop.call_soon_threadsafe(serving.set_result, None)

        threading.Thread(target=start, daemon=True).start()
        async with asyncio.timeout(WAIT_S):
            while not serving.done() and "standby: waiting for" not in self._log():
                await asyncio.sleep(0.01)

    async def client(self) -> StompClient:
        return await StompClient.connect(self.gateway.stomp_port)

    def _log(self) -> str:
        if not self.gateway.log.exists():
            return ""
        with self.gateway.log.open() as log:
            log.seek(self._read)
            return log.read()

    async def end(self) -> None:
        self.gateway.__exit__()
        if self.serving is not None:
            await asyncio.wait([self.serving])

    async def killed(self) -> None:
        await asyncio.to_thread(self.gateway.kill)

    async def has_given_way(self) -> None:
        """It ends by itself, since the store is another's."""
        assert self.gateway.process is not None
        code = await asyncio.to_thread(self.gateway.process.wait, WAIT_S)
        assert code == 4, self.gateway.tail()


@dataclass
class Load:
    """Sends messages one after another, each with a receipt, until its gateway is gone.

    Attributes: confirmed: bodies ``master.number``; first_at: when the first one was confirmed.
    """

    name: int
    confirmed: list[str] = field(default_factory=list)
    first_at: float = 0.0

    async def run(self, member: Member) -> None:
        client = await member.client()
        try:
            with contextlib.suppress(*LOST, TimeoutError):
                for number in range(1_000_000):
                    body = f"{self.name}.{number}"
                    client.send("SEND", body.encode(), destination="/queue/q", receipt=body)
                    await client.receipt(body)
                    self.first_at = self.first_at or time.monotonic()
                    self.confirmed.append(body)
        finally:
            client.close()


async def struck_again_and_again(
    one: Member,
    two: Member,
    strikes: list[Strike],
    seed: int,
    *,
    load_s: float = 0.5,
    at_last: Callable[[], Awaitable[None]] | None = None,
) -> list[float]:
    """Strike the master as *strikes* say, one after the other; the last one that serves has all messages.

    *at_last* is called while that one still serves.

    Returns: how long it took each time from the strike to the first confirmation. Raises: AssertionError.
    """
    chance, loads, took = random.Random(seed), list[Load](), list[float]()
    try:
        await one.start()
        await two.start()
        master, standby = one, two
        loading = await loaded(loads, master)
        for strike in strikes:
            async with asyncio.timeout(WAIT_S):
                while len(loads[-1].confirmed) < 20:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(chance.uniform(0, load_s))
            struck_at, before = time.monotonic(), loading
            await strike(master)
            loading = await loaded(loads, standby)
            async with asyncio.timeout(WAIT_S):
                while not loads[-1].first_at:
                    await asyncio.sleep(0.001)
                took.append(loads[-1].first_at - struck_at)
                await before
            await master.end()
            await master.start()
            master, standby = standby, master
        await master.killed()
        await loading
        assert standby.serving is not None
        await asyncio.wait_for(asyncio.shield(standby.serving), WAIT_S)
        await account(loads, await standby.client())
        if at_last is not None:
            await at_last()
        assert await asyncio.to_thread(standby.gateway.stop) == 0
    finally:
        await one.end()
        await two.end()
    return took


async def loaded(loads: list[Load], member: Member) -> asyncio.Task[None]:
    """When *member* serves, its load."""
    assert member.serving is not None
    await asyncio.wait_for(asyncio.shield(member.serving), WAIT_S)
    loads.append(Load(len(loads)))
    return asyncio.create_task(loads[-1].run(member))


async def account(loads: list[Load], client: StompClient) -> None:
    """Each confirmed message is there, once, in order, those of each master behind all of its predecessor's."""
    client.send("SUBSCRIBE", destination="/queue/q", id="1", ack="auto")
    client.send("SEND", b"last", destination="/queue/q")
    found: list[tuple[int, int]] = []
    while (body := (await client.receive()).body) != b"last":
        name, _, number = body.decode().partition(".")
        found.append((int(name), int(number)))
    await client.aclose()
    assert found == sorted(set(found)), "twice, or a master that had been followed has written"
    for load in loads:
        there = [number for name, number in found if name == load.name]
        # At most the one that was under way is there without its confirmation.
        assert there == list(range(len(there)))
        assert len(load.confirmed) <= len(there) <= len(load.confirmed) + 1
