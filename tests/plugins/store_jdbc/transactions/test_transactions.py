"""Losing the database: nothing confirmed is lost, nothing is written twice, the store goes on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from broken_network import Proxy
from jdbc_kit import ANY_SIZE, QUEUE, opened, pending, postgres_options, write
from numbered import ack, add
from postgres_server import PostgresServer

from tidegate.spi import StoreClosedError, StoreUnavailableError
from tidegate_store_jdbc import JdbcOptions, JdbcStore


def through(proxy: Proxy, server: PostgresServer, where: Path, **changes: object) -> JdbcOptions:
    url = f"postgresql://127.0.0.1:{proxy.port}/tidegate"
    return postgres_options(server, where, url=url, **changes)


@asynccontextmanager
async def linked(
    server: PostgresServer, where: Path, **changes: object
) -> AsyncIterator[tuple[Proxy, JdbcStore]]:
    """A store with one message, and the proxy that is between it and its database."""
    async with Proxy(server.port) as proxy:
        store, _ = await opened(where, through(proxy, server, where, **changes))
        await write(store, QUEUE, add(1))
        yield proxy, store
        await store.close()


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_killing_the_server_under_load_loses_nothing_confirmed(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    options = postgres_options(postgres, tmp_path, reconnect_wait=3600)
    store, _ = await opened(tmp_path, options, keep=True)
    await write(store, QUEUE)
    confirmed: list[int] = []
    acknowledged: list[int] = []
    is_over = False

    async def produce() -> None:
        first = 1
        while not is_over:
            numbers = range(first, first + 20)
            old = [n for n in range(first - 20, first - 10) if n > 0]
            acks = [ack(*old)] if old else []
            await write(store, *[add(n) for n in numbers], *acks)
            confirmed.extend(numbers)
            acknowledged.extend(old)
            first += 20

    producing = asyncio.create_task(produce())
    loop = asyncio.get_running_loop()
    for _ in range(2):
        count = len(confirmed)
        await until(lambda count=count: len(confirmed) >= count + 400)
        postgres.stop(signal.SIGKILL)
        await until(lambda: not store.statistics().writable)
        assert not producing.done()
        await loop.run_in_executor(None, postgres.start)
        await until(lambda: store.statistics().writable)
    count = len(confirmed)
    await until(lambda: len(confirmed) > count)
    is_over = True
    await producing
    left = sorted(set(confirmed) - set(acknowledged))
    assert await pending(store) == left
    assert store.statistics().pending_messages == len(left)
    await store.close()

    store, state = await opened(tmp_path, options, keep=True)
    assert await pending(store) == left
    assert state.last_sequence == confirmed[-1]
    page = await store.acknowledged(0, 1_000_000, ANY_SIZE)
    assert [row.sequence for row in page.rows] == acknowledged
    assert [row.ack_sequence for row in page.rows] == list(range(1, len(acknowledged) + 1))
    await store.close()


async def test_a_server_that_crashed_gets_the_batches_again_that_nobody_waited_for(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    options = postgres_options(
        postgres, tmp_path, lock_renew_period=600, lock_expiration=1800, reconnect_wait=3600
    )
    store, _ = await opened(tmp_path, options, keep=True)
    await write(store, QUEUE, *[add(number) for number in range(1, 11)])
    with postgres.crash_behind():
        await write(store, ack(1, 2), synced=False)
        await write(store, ack(3), add(11), synced=False)
    await write(store, add(12), ack(4))
    assert await pending(store) == [5, 6, 7, 8, 9, 10, 11, 12]
    assert store.statistics().pending_messages == 8
    page = await store.acknowledged(0, 10, ANY_SIZE)
    assert [(row.ack_sequence, row.sequence) for row in page.rows] == [
        (1, 1), (2, 2), (3, 3), (4, 4),
    ]  # fmt: skip
    await store.close()


async def test_without_anybody_waiting_batches_are_synced_now_and_then(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    store, _ = await opened(tmp_path, postgres_options(postgres, tmp_path))
    await write(store, QUEUE)
    for number in range(1, 66):
        await write(store, add(number), synced=False)
        kept = store._transactions._unsynced  # pyright: ignore[reportPrivateUsage]
        assert len(kept) == number % 65
    await store.close()


async def test_a_commit_whose_answer_is_lost_is_not_repeated(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with Proxy(postgres.port) as proxy:
        store, _ = await opened(tmp_path, through(proxy, postgres, tmp_path), keep=True)
        await write(store, QUEUE, add(1), add(2), add(3))
        proxy.lose_answer_to = b"COMMIT"
        await write(store, add(4), ack(1, 2))
        assert proxy.cuts == 1
        await write(store, add(5))
        assert await pending(store) == [3, 4, 5]
        statistics = store.statistics()
        assert statistics.pending_messages == 3
        assert store.log_statistics().held_bytes == 200
        assert statistics.writable
        page = await store.acknowledged(0, 10, ANY_SIZE)
        assert [row.sequence for row in page.rows] == [1, 2]
        await store.close()


async def test_a_commit_that_never_arrived_is_repeated(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with linked(postgres, tmp_path) as (proxy, store):
        for number, place in enumerate((b"COMMIT", b"BEGIN", b"\x00\x02"), 2):
            cuts = proxy.cuts
            proxy.cut_before = place
            await write(store, add(number), ack(number - 1))
            assert proxy.cuts == cuts + 1, place
            assert await pending(store) == [number]
        assert store.statistics().pending_messages == 1


async def test_a_connection_that_goes_silent_is_given_up(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with linked(postgres, tmp_path, network_timeout=3.0) as (proxy, store):
        proxy.stalls = True
        writing = asyncio.create_task(write(store, add(2)))
        reading = asyncio.create_task(pending(store))
        await until(lambda: not store.statistics().writable)
        assert not writing.done()
        proxy.stalls = False
        await writing
        assert await reading in ([1], [1, 2])
        assert await pending(store) == [1, 2]


async def test_publishes_are_refused_when_the_database_stays_away(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """StoreUnavailableError: the broker tells the producer, and writes acknowledgements again later."""

    async with linked(postgres, tmp_path, reconnect_wait=0.2) as (proxy, store):
        proxy.go_away()
        with pytest.raises(StoreUnavailableError, match="cannot be reached, nothing was written"):
            await write(store, add(2))
        with pytest.raises(StoreUnavailableError):
            await write(store, add(2))
        assert not store.statistics().writable
        proxy.refuses = False
        async with asyncio.timeout(60):
            while True:
                try:
                    await write(store, add(3), ack(1))
                    break
                except StoreUnavailableError:
                    await asyncio.sleep(0.05)
        assert store.statistics().writable
        assert await pending(store) == [3]


async def test_a_store_can_be_closed_while_its_database_is_away(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with linked(postgres, tmp_path, reconnect_wait=3600) as (proxy, store):
        proxy.go_away()
        writing = asyncio.create_task(write(store, add(2)))
        reading = asyncio.create_task(pending(store))
        await until(lambda: not store.statistics().writable)
        await store.close()
        for task in (writing, reading):
            with pytest.raises(StoreClosedError):
                await task


async def test_an_idle_store_is_healthy_again_without_a_batch(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with Proxy(postgres.port) as proxy:
        store, _ = await opened(tmp_path, through(proxy, postgres, tmp_path))
        await write(store, QUEUE, add(1), synced=False)
        proxy.cut()
        assert await pending(store) == [1]
        await until(lambda: store.statistics().writable)
        await store.close()
        async with asyncio.timeout(60):  # the lease was given back
            store, state = await opened(tmp_path, through(proxy, postgres, tmp_path))
        assert state.report.clean
        await store.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"lock_renew_period": 0.05},
        {"use_database_lock": False, "lock_policy": "auto", "cleanup_period": 0.05},
    ],
    ids=["by its lease", "without a lease"],
)
async def test_an_idle_store_says_that_its_database_is_away(
    postgres: PostgresServer, tmp_path: Path, changes: dict[str, object]
) -> None:
    async with Proxy(postgres.port) as proxy:
        store, _ = await opened(tmp_path, through(proxy, postgres, tmp_path, **changes))
        proxy.go_away()
        await until(lambda: not store.statistics().writable)
        proxy.refuses = False
        await until(lambda: store.statistics().writable)
        await write(store, QUEUE, add(1))
        assert await pending(store) == [1]
        await store.close()
