"""What reaches the database and when, and that a crash at any point loses and repeats nothing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from broken_network import Proxy
from jdbc_kit import ANY_SIZE, QUEUE, pending, sqlite_rows
from journaled_kit import (
    checkpoint,
    crash,
    message_rows,
    opened,
    options,
    plan_of,
    steps_of,
    write,
)
from numbered import ack, add
from postgres_server import PostgresServer
from store_process import Child

from tidegate.spi import (
    AddDestination,
    AddDuplicateId,
    Branch,
    BranchId,
    DuplicateId,
    ForgetDuplicateIds,
    LockedMessages,
    PutBranch,
    RemoveBranch,
    RemoveDestination,
    StoreClosedError,
    StoreContext,
    StoreFullError,
    StoreIOError,
    StoreLockedError,
)
from tidegate_store_journaled import JournaledStore

QUICK_LEASE: dict[str, Any] = {
    "lock_renew_period": 0.1,
    "lock_expiration": 4.0,
    "network_timeout": 4.0,
}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_operators_see_the_journal_and_the_database(
    tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("postgres") if database == "postgres" else None
    store, _ = await opened(tmp_path, options(server, tmp_path))
    await write(store, QUEUE, add(1))
    assert store.capabilities.parts is store
    parts = await store.store_parts()
    kinds = [part.kind for part in parts]
    expected = {"sqlite": {"database file", "write-ahead log"}, "postgres": {"table"}}
    assert set(kinds) == {"journal file", "lease", *expected[database]}
    (current,) = [part for part in parts if part.state == "current"]
    assert current.kind == "journal file"
    assert (tmp_path / "journaled" / current.name).stat().st_size == current.disk_bytes
    await store.close()


async def prepared_in(store: JournaledStore) -> tuple[Sequence[Branch], Sequence[DuplicateId]]:
    branches, ids = store.capabilities.branches, store.capabilities.duplicate_ids
    assert branches is not None
    assert ids is not None
    return await branches.recovered_branches(), await ids.recovered_duplicate_ids()


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> PostgresServer | None:
    """Each test on both databases."""
    if request.param == "sqlite":
        return None
    found = request.getfixturevalue("postgres")
    assert isinstance(found, PostgresServer)
    return found


async def test_ten_thousand_produced_and_9900_consumed_write_100_rows(
    server: PostgresServer | None, tmp_path: Path
) -> None:
    store, _ = await opened(tmp_path, options(server, tmp_path))
    await write(store, QUEUE)
    await checkpoint(store)
    told = steps_of(store)
    for first in range(1, 10_001, 500):
        await write(store, *[add(n) for n in range(first, first + 500)])
    for first in range(1, 9_901, 300):
        await write(store, ack(*range(first, first + 300)), synced=False)
    assert told == []
    assert len(plan_of(store).messages) == 100  # nor does memory hold what was consumed
    await checkpoint(store)
    assert [(step.statement, len(step.rows)) for step in told] == [
        ("add_message_statement", 100),
        ("add_pending_statement", 100),
        ("put_journal_statement", 1),
    ]
    assert await pending(store) == list(range(9_901, 10_001))
    assert store.statistics().pending_messages == 100
    await store.close()
    store, state = await opened(tmp_path, options(server, tmp_path))
    assert state.pending[1].messages == 100
    assert state.last_sequence == 10_000
    assert await pending(store) == list(range(9_901, 10_001))
    await store.close()


async def test_an_interval_starts_checkpoints(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, checkpoint_interval=0.02)
    await write(store, QUEUE, add(1))
    async with asyncio.timeout(60):
        while message_rows(tmp_path) != 1:
            await asyncio.sleep(0.01)
    await store.close()


async def test_half_a_journal_starts_a_checkpoint_and_a_full_one_waits_for_it(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path, journal_log_file_size=64 << 10)
    await write(store, QUEUE)
    for number in range(1, 101):
        await write(store, add(number, size=10_000))
        assert sum(o.size_bytes for o in store._overlays()) <= 140_000  # pyright: ignore[reportPrivateUsage]
    assert await pending(store) == list(range(1, 101))
    await store.close()


@pytest.mark.parametrize("place", ["before the transaction", "before the journal forgets"])
async def test_a_crash_in_a_checkpoint_loses_and_repeats_nothing(
    server: PostgresServer | None, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = await opened(tmp_path, options(server, tmp_path), keep=True)
    await write(store, QUEUE, *[add(n) for n in range(1, 11)])
    await checkpoint(store)
    await write(store, ack(1, 2), add(11), add(12))
    await write(store, ack(11))

    async def fails(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    target: Any = store._database if "transaction" in place else store._front  # pyright: ignore[reportPrivateUsage]
    name = "carry_out" if "transaction" in place else "discard"
    monkeypatch.setattr(target, name, fails)
    with pytest.raises(asyncio.CancelledError):
        await checkpoint(store)
    await crash(store)
    store, state = await opened(tmp_path, options(server, tmp_path), keep=True)
    assert not state.report.clean or "forgets" in place
    assert await pending(store) == [*range(3, 11), 12]
    assert store.statistics().pending_messages == 9
    page = await store.acknowledged(0, 100, ANY_SIZE)
    assert [(row.ack_sequence, row.sequence) for row in page.rows] == [(1, 1), (2, 2), (3, 11)]
    await write(store, add(13), ack(3))
    assert [row.ack_sequence for row in (await store.acknowledged(3, 9, ANY_SIZE)).rows] == [4]
    await store.close()


async def test_a_reader_sees_each_message_once_while_a_checkpoint_moves_it(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, checkpoint_interval=0.01)
    await write(store, QUEUE)
    acknowledged, done = 0, False

    async def read() -> None:
        while not done:
            await asyncio.sleep(0)
            found = await pending(store)
            assert found == sorted(set(found))
            # What was acknowledged while the page was read may be in it or not.
            waiting = [number for number in found if number > acknowledged]
            first = max(acknowledged + 1, found[0]) if found else 0
            assert waiting == (list(range(first, found[-1] + 1)) if found else [])

    reading = asyncio.create_task(read())
    for number in range(1, 400):
        await write(store, add(number), synced=False)
        if number > 50:
            acknowledged = number - 50
            await write(store, ack(acknowledged), synced=False)
    done = True
    await reading
    assert await pending(store) == list(range(350, 400))
    await store.close()


async def test_a_removed_queue_is_gone_in_both(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, AddDestination("queue://r", 2), *[add(n, 1, 2) for n in (1, 2)])
    await checkpoint(store)
    await write(store, add(3, 1, 2), add(4))
    await write(store, RemoveDestination("queue://q", 1))
    assert await pending(store) == []
    assert await pending(store, 2) == [1, 2, 3]
    assert store.statistics().pending_messages == 3
    await store.close()
    assert sqlite_rows(tmp_path, "SELECT COUNT(*) FROM TIDEGATE_ACKS") == [(3,)]
    assert message_rows(tmp_path) == 3


async def test_what_is_released_before_a_checkpoint_never_reaches_the_database(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await write(store, QUEUE, *[add(n) for n in range(1, 11)])
    await write(store, ack(*range(1, 9)))
    assert len((await store.acknowledged(0, 100, ANY_SIZE)).rows) == 8
    await store.release_acknowledged(6)
    await checkpoint(store)
    assert sqlite_rows(tmp_path, "SELECT ack_sequence FROM TIDEGATE_ACKLOG") == [(7,), (8,)]
    assert message_rows(tmp_path) == 4
    await crash(store)
    store, _ = await opened(tmp_path, keep=True)
    assert store.log_statistics().first == 7
    await store.release_acknowledged(8)
    assert store.log_statistics().held_bytes == 0
    await store.close()
    assert message_rows(tmp_path) == 2


async def test_what_is_released_is_held_no_longer_though_the_database_has_it_until_a_checkpoint(
    tmp_path: Path,
) -> None:
    """Or a log at its limit would be discarded as a whole: the broker discards until it is small enough."""
    store, _ = await opened(tmp_path, keep=True)
    await write(store, QUEUE, *[add(n, size=1000) for n in range(1, 11)])
    await write(store, ack(*range(1, 9)))
    await checkpoint(store)
    held = store.log_statistics().held_bytes
    assert held >= 8000
    await store.release_acknowledged(2)
    assert store.log_statistics().held_bytes == held * 6 // 8
    await store.release_acknowledged(7)
    assert store.log_statistics().held_bytes == held * 1 // 8
    await write(store, ack(9, 10))
    await store.release_acknowledged(8)
    assert store.log_statistics().held_bytes == 0
    await checkpoint(store)
    assert store.log_statistics().held_bytes == held * 2 // 8
    await store.close()


async def test_without_the_database_confirmations_go_on_until_the_journal_is_full(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with Proxy(postgres.port) as proxy:
        made = options(
            postgres,
            tmp_path,
            url=f"postgresql://127.0.0.1:{proxy.port}/{postgres.url.rpartition('/')[2]}",
            journal_log_file_size=64 << 10,
            reconnect_wait=0.2,
            network_timeout=5.0,
        )
        store, _ = await opened(tmp_path, made)
        await write(store, QUEUE)
        await checkpoint(store)
        proxy.refuses = True
        proxy.cut()
        # No row of the queue is in the database, so reading goes on, too.
        for number in range(1, 11):
            await write(store, add(number, size=10_000))
        assert await pending(store) == list(range(1, 11))

        async def fill() -> None:
            for number in range(11, 30):
                await write(store, add(number, size=10_000))

        with pytest.raises(StoreFullError):
            await fill()
        assert not store.statistics().writable
        await write(store, ack(1))  # there is room left for what makes room
        proxy.refuses = False
        async with asyncio.timeout(60):
            while not store.statistics().writable:
                await asyncio.sleep(0.02)
        await write(store, add(100, size=10_000))
        found = await pending(store)
        assert found[:9] == list(range(2, 11))
        assert found[-1] == 100
        await store.close()


async def test_a_cancelled_write_is_in_both_or_in_none(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, *[add(n) for n in range(1, 11)])
    for number in range(1, 11):
        task = asyncio.create_task(write(store, ack(number), add(100 + number)))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await write(store)
    before = await pending(store)
    assert store.statistics().pending_messages == len(before)
    await crash(store)
    store, _ = await opened(tmp_path)
    assert await pending(store) == before
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await store.close()
    await store.close()
    for call in (write(store, QUEUE), store.page_in(1, 0, 1, 1), store.open()):
        with pytest.raises(StoreClosedError):
            await call


async def bodies(where: Path, made: Any) -> dict[int, str]:
    store, _ = await opened(where, made)
    page = await store.page_in(1, 0, 1_000_000, ANY_SIZE)
    await store.close()
    return {stored.sequence: stored.message.body.decode() for stored in page}


def confirmed(child: Child, tag: str) -> dict[int, str]:
    return {n: f"{tag} {n}" for n in child.confirmed}


@pytest.mark.parametrize("quick", [False, True], ids=["journal", "quick"])
@pytest.mark.long
async def test_a_killed_process_loses_nothing_that_it_confirmed(
    server: PostgresServer | None, tmp_path: Path, quick: bool
) -> None:
    made = options(server, tmp_path, checkpoint_interval=0.02, use_quick_journal=quick)
    expected: dict[int, str] = {}
    for life, count in enumerate((1, 40, 90)):
        with Child(tmp_path, f"life{life}", "load", made) as child:
            child.until_confirmed(count)
            child.kill()
        expected.update(confirmed(child, f"life{life}"))
    found = await bodies(tmp_path, made)
    assert {n: found.get(n) for n in expected} == expected
    assert list(found) == list(range(1, max(found) + 1))


@pytest.mark.long
async def test_a_stopped_master_that_wakes_up_hands_its_journal_over(
    server: PostgresServer | None, tmp_path: Path
) -> None:
    """The standby has the lock of the database; the journal comes when the master lets go of it."""
    made = options(server, tmp_path, checkpoint_interval=0.05, lock_policy="wait", **QUICK_LEASE)
    with Child(tmp_path, "master", "load", made) as first, ExitStack() as stack:
        first.until_confirmed(20)
        second = stack.enter_context(Child(tmp_path, "standby", "load", made))
        second.until("standby")
        first.stop()
        second.until("standby")  # now for the journal
        first.signal(signal.SIGCONT)
        assert "StoreLostError" in first.until("failed")
        second.until_confirmed(20)
        second.kill()
    found = await bodies(tmp_path, made)
    expected = confirmed(first, "master") | confirmed(second, "standby")
    assert {n: found.get(n) for n in expected} == expected
    assert list(found) == list(range(1, max(found) + 1))
    assert max(first.confirmed) <= second.opened_at


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("carried_over", [False, True])
async def test_branches_and_duplicate_ids_survive_a_crash_before_and_after_a_checkpoint(
    server: PostgresServer | None, tmp_path: Path, *, quick: bool, carried_over: bool
) -> None:
    made = options(server, tmp_path, use_quick_journal=quick)
    prepared, done = BranchId(7, b"global", b"\0\xff", "me"), BranchId(7, b"other")
    locked = (LockedMessages(1, (1, 2), (5, 6), "c", "s", "stomp"),)
    branch = Branch(prepared, 3, prepared_at=9, locked=locked)
    known = [DuplicateId("queue://q", "id 3", 9)]

    store, _ = await opened(tmp_path, made)
    assert store.capabilities.branches
    assert store.capabilities.duplicate_ids
    await write(store, QUEUE, *[add(number) for number in range(1, 4)])
    await write(store, PutBranch(Branch(done, 2)), add(4, 2))
    await write(store, PutBranch(branch), add(5, 3), add(6, 3))
    await write(store, *[AddDuplicateId("queue://q", f"id {n}", 6 + n) for n in range(1, 4)])
    if carried_over:
        await checkpoint(store)
    await write(store, RemoveBranch(done, 2), add(10), ForgetDuplicateIds("queue://q", 8))
    await crash(store)

    for _ in range(2):
        store, state = await opened(tmp_path, made)
        assert await prepared_in(store) == ([branch], known)
        assert (state.last_sequence, state.last_pending_list) == (10, 3)
        assert await pending(store) == [1, 2, 3, 10]
        assert await pending(store, 2) == []
        assert await pending(store, 3) == [5, 6]
        assert store.statistics().pending_messages == 6
        await store.close()

    store, _ = await opened(tmp_path, made)
    await write(store, RemoveBranch(prepared, 3), ForgetDuplicateIds("queue://q", 9))
    assert await pending(store, 3) == []
    await crash(store)
    store, state = await opened(tmp_path, made)
    assert await prepared_in(store) == ([], [])
    assert await pending(store) == [1, 2, 3, 10]
    await store.close()


async def test_a_command_does_not_wait_for_the_journal_whatever_the_policy(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    shared = str(tmp_path / "journal")
    master, _ = await opened(tmp_path / "one", options(journal_directory=shared))
    context = StoreContext(tmp_path / "two", "command", may_stand_by=False)
    made = options(journal_directory=shared, lock_policy="wait")
    with pytest.raises(StoreLockedError):
        await JournaledStore(context, made).open()
    await write(master, QUEUE, add(1))
    await master.close()


async def test_a_second_gateway_on_an_embedded_database_is_refused(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    with pytest.raises(StoreLockedError):
        await opened(tmp_path)
    await write(store, QUEUE, add(1))
    await store.close()


async def test_without_its_journal_a_master_confirms_only_what_is_surely_its_own(
    tmp_path: Path,
) -> None:
    """With journal_lost_policy = 'ignore' another gateway may go on elsewhere."""

    made = options(journal_lost_policy="ignore", lock_renew_period=300.0, lock_expiration=600.0)
    store, _ = await opened(tmp_path, made)
    await write(store, QUEUE, add(1))
    lease = store._database._lease  # pyright: ignore[reportPrivateUsage]
    lease._sure_until = 0.0  # pyright: ignore[reportPrivateUsage] - it slept for long
    await write(store, add(2))
    assert lease.is_sure
    import sqlite3

    thief = sqlite3.connect(tmp_path / "tidegate.db")
    with thief:
        thief.execute("UPDATE TIDEGATE_LOCK SET fencing_token = fencing_token + 1")
    thief.close()
    lease._sure_until = 0.0  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(StoreIOError):
        await write(store, add(3))
    await store.close()


async def test_what_a_checkpoint_will_take_of_the_disk_is_claimed(tmp_path: Path) -> None:
    made = options(journal_log_file_size=1 << 20, checkpoint_interval=3600)
    store, _ = await opened(tmp_path, made)
    await write(store, QUEUE)
    await checkpoint(store)
    before = store.statistics()
    await write(store, *[add(number, size=10_000) for number in range(1, 21)])
    assert store.statistics().claimed_bytes >= before.claimed_bytes + 200_000
    await checkpoint(store)
    after = store.statistics()
    assert after.claimed_bytes < before.claimed_bytes + 200_000
    async with asyncio.timeout(30):  # the database is looked at now and then
        while store.statistics().disk_bytes < before.disk_bytes + 200_000:
            await asyncio.sleep(0.05)
    await store.close()
