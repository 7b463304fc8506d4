"""Large messages that are sent twice under one duplicate id, or through a prepared branch."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from large_messages import KB, LargeClient, body_files, connected, digest_of, no_collector, pieces

from tidegate.spi import (
    BranchId,
    BrokerConnection,
    ConnectRequest,
    GatewayError,
    Message,
    StoredMessage,
    Token,
)
from tidegate.testing.embedded import EmbeddedGateway

SIZE = 300 * KB
BRANCH = BranchId(1, b"one", b"q", "anonymous")
CONFIG = """
[store]
plugin = "journal"
checkpoint_interval = "{checkpoint}"
cleanup_interval = "60s"

[[listeners]]
protocol = "stomp"
bind = "127.0.0.1:0"
"""


@contextlib.asynccontextmanager
async def gateway(directory: Path, checkpoint: str = "20ms") -> AsyncIterator[EmbeddedGateway]:
    async with asyncio.timeout(60):
        async with EmbeddedGateway(
            CONFIG.format(checkpoint=checkpoint), data_directory=directory
        ) as running:
            yield running


@pytest.fixture(autouse=True)
def files_go_at_once() -> Iterator[None]:
    with no_collector():
        yield


async def until_files(running: EmbeddedGateway, names: Sequence[Path]) -> None:
    """A discarded body goes at the next checkpoint, not only at the next start."""
    while body_files(running.data_directory) != names:
        await asyncio.sleep(0.005)


async def consume(running: EmbeddedGateway, seeds: Sequence[int]) -> None:
    """The queue holds these messages, whole, and nothing else."""
    async with connected(running.stomp_port) as client:
        client.frame("SUBSCRIBE", id="1", destination="/queue/a", ack="client-individual")
        for seed in seeds:
            arrived = await client.receive()
            assert (arrived.command, arrived.digest) == ("MESSAGE", digest_of(seed, SIZE))
            client.frame("ACK", id=arrived.headers["ack"])
        client.frame("SEND", destination="/queue/a", n="last")
        assert (await client.receive()).headers.get("n") == "last"


# ------------------------------------------------------------------------------------ duplicates


async def send(client: LargeClient, seed: int, receipt: str, **headers: str) -> None:
    wanted = {"destination": "/queue/a", "receipt": receipt, "_AMQ_DUPL_ID": "x"} | headers
    head = "".join(f"{name}:{value}\n" for name, value in wanted.items())
    client.writer.write(f"SEND\ncontent-length:{SIZE}\n{head}\n".encode())
    for piece in pieces(seed, SIZE):
        client.writer.write(piece)
        await client.writer.drain()
    client.writer.write(b"\0")
    await client.receipt(receipt)


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_body_of_a_repeated_large_message_is_removed_while_the_gateway_runs(
    tmp_path: Path, restarts: bool
) -> None:
    async with gateway(tmp_path) as running:
        async with connected(running.stomp_port) as client:
            await send(client, 1, "first")
        original = body_files(tmp_path)
        assert len(original) == 1
        if restarts:
            await running.restart()
        async with connected(running.stomp_port) as client:
            for number in range(3):
                await send(client, 1, f"again-{number}")
            # The connection stays open: the file is not waiting for its end.
            await until_files(running, original)
        await consume(running, [1])
        await until_files(running, [])


async def test_a_repeated_large_message_in_a_transaction_takes_all_its_bodies_along(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path) as running:
        async with connected(running.stomp_port) as client:
            await send(client, 1, "first")
            original = body_files(tmp_path)
            client.frame("BEGIN", transaction="t")
            await send(client, 2, "new", transaction="t", _AMQ_DUPL_ID="y")
            await send(client, 1, "again", transaction="t")
            assert len(body_files(tmp_path)) == 3
            client.frame("COMMIT", transaction="t", receipt="commit")
            refused = await client.receive()
            assert (refused.command, "duplicate id" in refused.headers["message"]) == (
                "ERROR",
                True,
            )
        await until_files(running, original)
        async with connected(running.stomp_port) as client:
            await send(client, 2, "new", _AMQ_DUPL_ID="y")  # it was not sent before
        await consume(running, [1, 2])


# -------------------------------------------------------------------------------------- branches


class Peer:
    """A client of the embedded interface that only waits for confirmations."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[Token | GatewayError] = asyncio.Queue()
        self.has_unsent = False

    def confirmed(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            self.told.put_nowait(token)

    def failed(self, token: Token, error: GatewayError) -> None:
        self.told.put_nowait(error)

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        raise AssertionError("nothing was subscribed to")

    def throttle(self, paused: bool, *, at_once: bool = False) -> None:
        pass

    def closed(self, error: GatewayError) -> None:
        self.told.put_nowait(error)


@contextlib.asynccontextmanager
async def embedded(running: EmbeddedGateway) -> AsyncIterator[tuple[BrokerConnection, Peer]]:
    peer = Peer()
    request = ConnectRequest(
        protocol="test",
        version="1",
        client_id="manager",
        peer="here",
        listener="test",
        anonymous_allowed=True,
    )
    result = await running.gateway.broker.connect(request, peer)
    try:
        yield result.connection, peer
    finally:
        result.connection.disconnect(graceful=True)


async def prepare(running: EmbeddedGateway, seeds: Sequence[int]) -> None:
    async with embedded(running) as (connection, peer):
        connection.begin("t")
        for seed in seeds:
            writer = running.gateway.broker.large_bodies.create(SIZE)
            for piece in pieces(seed, SIZE):
                await writer.write(piece)
            message = Message("queue://a", b"", large=await writer.finish())
            connection.publish(message, None, "t")
            del message
        connection.prepare("t", BRANCH, "prepared")
        assert await peer.told.get() == "prepared"


async def complete(running: EmbeddedGateway, *, commit: bool) -> None:
    async with embedded(running) as (connection, peer):
        (branch,) = connection.branches()
        assert branch.branch_id == BRANCH
        end = connection.commit_branch if commit else connection.roll_back_branch
        end(BRANCH, "completed")
        assert await peer.told.get() == "completed"


@contextlib.asynccontextmanager
async def with_branch(where: Path, restart: str) -> AsyncIterator[EmbeddedGateway]:
    """A gateway with a prepared branch of two large messages.

    Args: restart: "no"; "clean", or "crash": on what was on the disk while the other ran, which is
        a journal without a checkpoint.
    """
    copy = where / "copy"
    async with gateway(where / "first", "60s" if restart == "crash" else "20ms") as running:
        await prepare(running, [1, 2])
        before = len(body_files(running.data_directory))
        assert before == 2
        if restart == "crash":
            # (Files that are being made ready for later are renamed when they are.)
            unfinished = shutil.ignore_patterns("*.tmp", "*.sock")
            await asyncio.to_thread(
                shutil.copytree, running.data_directory, copy, ignore=unfinished
            )
        else:
            if restart == "clean":
                await running.restart()
            yield running
    if restart == "crash":
        async with gateway(copy) as running:
            yield running


RESTARTS = pytest.mark.parametrize("restart", ["no", "clean", "crash"])


@RESTARTS
async def test_a_prepared_branch_keeps_its_large_messages_until_it_is_committed(
    tmp_path: Path, restart: str
) -> None:
    async with with_branch(tmp_path, restart) as running:
        kept = body_files(running.data_directory)
        await asyncio.sleep(0.1)  # checkpoints, which remove what nobody needs
        assert body_files(running.data_directory) == kept
        await complete(running, commit=True)
        if restart != "no":
            await running.restart()
        assert body_files(running.data_directory) == kept
        await consume(running, [1, 2])
        await until_files(running, [])


@RESTARTS
async def test_rolling_a_branch_back_removes_the_bodies_of_its_large_messages(
    tmp_path: Path, restart: str
) -> None:
    async with with_branch(tmp_path, restart) as running:
        assert len(body_files(running.data_directory)) == 2
        await complete(running, commit=False)
        await until_files(running, [])
        await consume(running, [])
