"""Gateways and their clients on machines of their own; the clients turn to the other gateway when one does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gateway_process import GatewayProcess
from masters import LOST, WAIT_S, Member
from namespaces import Host, Network
from wire import StompClient

#: How long a client waits for an answer before it turns to the next gateway.
PATIENCE_S = 3.0
#: Both sides of a consumer's connection give a sign of life this often, in milliseconds.
_HEART_BEAT_MS = 2000


class HostedGateway(GatewayProcess):
    """On *host*, and in a container: to another one its process ids mean nothing."""

    def __init__(self, host: Host, directory: Path, store: str) -> None:
        self.host = host
        self.address = host.address
        anyone = "allow_anonymous = true"
        super().__init__(directory, extra=store, stomp=anyone, mqtt=anyone)

    def start(self) -> GatewayProcess:
        return self.host.inside(super().start)

    def command(self) -> list[str]:
        container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return [*container, *super().command()]

    @property
    def pid(self) -> int:
        """Of the gateway itself, as it is seen from here."""
        outer = super().pid
        return int(Path(f"/proc/{outer}/task/{outer}/children").read_text())


class HostedMember(Member):
    """One on a machine of its own, whose clients are on another. Attributes: host."""

    def __init__(self, host: Host, clients: Host, directory: Path, store: str) -> None:
        directory.mkdir()
        super().__init__(HostedGateway(host, directory, store))
        self.host = host
        self._clients = clients

    async def client(self) -> StompClient:
        return await self.client_on(self._clients)

    async def client_on(self, host: Host, **headers: str) -> StompClient:
        """One on any machine."""
        made = host.socket()
        try:
            address = (self.host.address, self.gateway.stomp_port)
            await asyncio.get_running_loop().sock_connect(made, address)
            reader, writer = await asyncio.open_connection(sock=made)
        except BaseException:
            made.close()
            raise
        return await StompClient.greeted(reader, writer, **headers)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.gateway.pid, number)


@asynccontextmanager
async def two_members(
    network: Network, hosts: Sequence[Host], clients: Host, directory: Path, store: str
) -> AsyncIterator[tuple[HostedMember, HostedMember]]:
    """Two of one *store*, on *hosts*; in the end the network is whole again."""
    one, two = (
        HostedMember(host, clients, directory / name, store)
        for host, name in zip(hosts, ("one", "two"), strict=True)
    )
    yield one, two
    network.restore()
    await one.end()
    await two.end()


class FailingOver:
    """A producer and a consumer of one queue, on *host*. A context manager.

    Attributes: confirmed: how many messages were; received: numbers, those that came again, too.
    """

    def __init__(self, host: Host, members: list[HostedMember]) -> None:
        self._host = host
        self._members = itertools.cycle(members)
        self._has_ended = False
        self._tasks: list[asyncio.Task[None]] = []
        self.confirmed = 0
        self.received: list[int] = []

    async def __aenter__(self) -> FailingOver:
        self._tasks = [asyncio.create_task(self._produce()), asyncio.create_task(self._consume())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for what comes about by messages that go through."""
        async with asyncio.timeout(WAIT_S):
            while not is_so():
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    async def more(self, count: int) -> None:
        """Wait until *count* more messages were confirmed, and came."""
        enough = self.confirmed + count
        await self.until(
            lambda: self.confirmed >= enough and max(self.received, default=0) >= enough
        )

    async def account(self) -> None:
        """Nothing more is sent. All that was confirmed has come, and nothing that nobody sent."""
        self._has_ended = True
        await self._tasks[0]
        await self.until(lambda: set(range(self.confirmed)) <= set(self.received))
        # At most the one that was under way came without its confirmation.
        assert max(self.received) <= self.confirmed

    async def _let_in(self) -> StompClient:
        while True:
            with contextlib.suppress(*LOST, TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    beats = f"{_HEART_BEAT_MS},0"
                    return await next(self._members).client_on(self._host, heart_beat=beats)
            await asyncio.sleep(0.05)

    @contextlib.asynccontextmanager
    async def _client(self):
        client = await self._let_in()
        beating = asyncio.create_task(_beat(client))
        try:
            with contextlib.suppress(*LOST, TimeoutError):
                yield client
        finally:
            beating.cancel()
            client.writer.transport.abort()

    async def _produce(self) -> None:
        while not self._has_ended:
            async with self._client() as client:
                while not self._has_ended:
                    receipt = str(self.confirmed)
                    client.send("SEND", receipt.encode(), destination="/queue/all", receipt=receipt)
                    async with asyncio.timeout(PATIENCE_S):
                        await client.receipt(receipt)
                    self.confirmed += 1

    async def _consume(self) -> None:
        while True:
            async with self._client() as client:
                client.send("SUBSCRIBE", destination="/queue/all", id="1", ack="client-individual")
                while True:
                    async with asyncio.timeout(PATIENCE_S):
                        message = await client.receive()
                    assert message.command == "MESSAGE"  # an ERROR says that it ends
                    self.received.append(int(message.body))
                    client.send("ACK", id=message.headers["ack"])


async def _beat(client: StompClient) -> None:
    while True:
        await asyncio.sleep(_HEART_BEAT_MS / 4000)
        client.writer.write(b"\n")
