"""Who may write: leases, standbys, and a master that wakes up too late; with real processes."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from jdbc_kit import (
    ANY_SIZE,
    QUEUE,
    new_store,
    opened,
    pending,
    postgres_options,
    sqlite_rows,
    write,
)
from numbered import add
from postgres_server import PostgresServer
from store_process import Child

from tidegate.spi import StoreLockedError, StoreLostError
from tidegate_store_jdbc import JdbcOptions

#: Of a lease that a standby need not wait for long, and that a busy machine does not break off.
QUICK: dict[str, Any] = {"lock_renew_period": 0.1, "lock_expiration": 4.0, "network_timeout": 4.0}


async def bodies(where: Path, options: JdbcOptions) -> dict[int, str]:
    store, _ = await opened(where, options)
    page = await store.page_in(1, 0, 1_000_000, ANY_SIZE)
    await store.close()
    return {stored.sequence: stored.message.body.decode() for stored in page}


@pytest.mark.long
async def test_a_stopped_master_that_wakes_up_cannot_write_on_postgres(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    options = postgres_options(postgres, tmp_path, lock_policy="wait", **QUICK)
    with Child(tmp_path, "master", "load", options) as first, ExitStack() as stack:
        first.until_confirmed(20)
        second = stack.enter_context(Child(tmp_path, "standby", "load", options))
        second.until("standby")
        # Stopped in full flight: perhaps in a transaction that holds the row that everyone checks.
        first.stop()
        second.until("open")
        second.until_confirmed(20)
        first.signal(signal.SIGCONT)
        failure = first.until("failed")
        assert "StoreLostError" in failure
        assert first.process.wait(60) == 3
        second.until_confirmed(20)
        second.kill()
    found = await bodies(tmp_path, options)
    for child, tag in ((first, "master"), (second, "standby")):
        assert {n: found.get(n) for n in child.confirmed} == {
            n: f"{tag} {n}" for n in child.confirmed
        }
    # Nothing of the first gateway is behind the place where the second began.
    late = [n for n, body in found.items() if body.startswith("master") and n > second.opened_at]
    assert late == []
    assert list(found) == list(range(1, max(found) + 1))


@pytest.mark.long
async def test_a_stopped_master_that_wakes_up_cannot_write_on_sqlite(tmp_path: Path) -> None:
    options = JdbcOptions(lock_policy="wait", **QUICK)
    with Child(tmp_path, "master", "step", options) as master:
        master.until("open")
        for _ in range(3):
            master.step()
            master.until("ok")
        with Child(tmp_path, "standby", "step", options) as standby:
            standby.until("standby")
            master.stop()
            standby.until("open")
            assert standby.opened_at == 3
            standby.step()
            standby.until("ok")
            master.step()  # what it will do first when it wakes up
            master.signal(signal.SIGCONT)
            assert "StoreLostError" in master.until("failed")
            standby.step()
            standby.until("ok")
            assert standby.confirmed == [4, 5]
            standby.kill()
    found = await bodies(tmp_path, options)
    tags = ["master"] * 3 + ["standby"] * 2
    assert list(found.values()) == [f"{tag} {n}" for n, tag in enumerate(tags, 1)]


async def test_a_gateway_that_was_killed_is_followed_at_once(tmp_path: Path) -> None:
    """Its lease runs for another hour, but the process is gone."""
    options = JdbcOptions(lock_expiration=3600)
    with Child(tmp_path, "killed", "step", options) as child:
        child.until("open")
        child.step()
        child.until("ok")
        child.kill()
    assert await bodies(tmp_path, options) == {1: "killed 1"}


async def test_a_standby_takes_over_when_the_master_closes(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    options = postgres_options(postgres, tmp_path, lock_policy="wait")
    master, _ = await opened(tmp_path, options)
    await write(master, QUEUE, add(1))
    standby = new_store(tmp_path, options)
    opening = asyncio.create_task(standby.open())
    done, _ = await asyncio.wait([opening], timeout=0.5)
    assert not done
    await master.close()
    state = await opening
    assert state.last_sequence == 1
    assert await pending(standby) == [1]
    await standby.close()


async def test_a_standby_may_be_cancelled(tmp_path: Path) -> None:
    master, _ = await opened(tmp_path)
    standby = new_store(tmp_path, lock_policy="wait")
    opening = asyncio.create_task(standby.open())
    done, _ = await asyncio.wait([opening], timeout=0.2)
    assert not done
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await write(master, QUEUE, add(1))
    await master.close()


async def test_the_refusal_names_the_owner(tmp_path: Path) -> None:
    master, _ = await opened(tmp_path)
    with pytest.raises(StoreLockedError, match="belongs to test on") as caught:
        await opened(tmp_path)
    assert caught.value.owner.startswith("test on ")
    await master.close()


async def test_a_lease_is_renewed_for_as_long_as_its_owner_lives(tmp_path: Path) -> None:
    options = JdbcOptions(lock_renew_period=0.02, lock_expiration=60.0, network_timeout=60.0)
    master, _ = await opened(tmp_path, options)
    async with asyncio.timeout(60):
        first = sqlite_rows(tmp_path, "SELECT expires_at FROM TIDEGATE_LOCK")[0][0]
        while sqlite_rows(tmp_path, "SELECT expires_at FROM TIDEGATE_LOCK")[0][0] < first + 600:
            await asyncio.sleep(0.02)
    with pytest.raises(StoreLockedError):
        await opened(tmp_path, options)
    await master.close()
    assert sqlite_rows(tmp_path, "SELECT expires_at, owner FROM TIDEGATE_LOCK") == [(0, "")]


async def test_without_the_lock_the_last_that_opened_owns_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    first, _ = await opened(tmp_path, lost=told.append, use_database_lock=False)
    await write(first, QUEUE, add(1))
    second, _ = await opened(tmp_path, use_database_lock=False)
    await write(second, add(2))
    for _ in range(2):
        with pytest.raises(StoreLostError, match="another gateway owns the store"):
            await write(first, add(2))
    assert told == ["another gateway owns the store now"]
    assert not caplog.records, "who is told says so"
    assert not first.statistics().writable
    await first.close()
    assert await pending(second) == [1, 2]
    await second.close()


async def test_a_taken_lock_is_noticed_without_writing(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, **QUICK)
    assert store.statistics().writable
    import sqlite3

    thief = sqlite3.connect(tmp_path / "tidegate.db")
    with thief:
        thief.execute("UPDATE TIDEGATE_LOCK SET fencing_token = fencing_token + 1")
    thief.close()
    async with asyncio.timeout(60):
        while store.statistics().writable:
            await asyncio.sleep(0.02)
    with pytest.raises(StoreLostError):
        await store.page_in(1, 0, 1, 1)
    await store.close()
