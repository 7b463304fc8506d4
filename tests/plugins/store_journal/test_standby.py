"""Gateways that wait for a journal's directory, and masters that wake up too late; with real processes."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from store_child import unlock
from store_process import Child

from tidegate.spi import (
    AddDestination,
    AddMessage,
    ConfigError,
    Message,
    StoreContext,
    StoreIOError,
    StoreLockedError,
    StoreLostError,
    WriteBatch,
)
from tidegate_store_journal import JournalOptions, JournalStore
from tidegate_store_journal.checks import check, refuse_idle
from tidegate_store_journal.log.storage import DirectoryFile

#: With a lease that a busy machine does not break off.
STANDBY: dict[str, Any] = {"lock_policy": "wait", "lock_expiration": 60.0}
SMALL: dict[str, Any] = {"journal_max_file_length": 256 << 10}
ANY_SIZE = 1 << 40
TYPES = ["NIO", "ASYNCIO", "MAPPED"]


def options(**more: object) -> dict[str, Any]:
    """What a child is given; it does not know which options are the defaults."""
    return {**STANDBY, **SMALL, **more}


async def bodies(where: Path, **more: Any) -> dict[int, str]:
    """What a gateway finds that starts without waiting."""
    store = JournalStore(StoreContext(where, "reader"), JournalOptions(**SMALL, **more))
    await store.open()
    page = await store.page_in(1, 0, 1_000_000, ANY_SIZE)
    await store.close()
    return {stored.sequence: stored.message.body.decode() for stored in page}


@pytest.mark.long
@pytest.mark.parametrize("journal_type", TYPES)
async def test_a_standby_takes_over_from_a_master_that_was_killed_under_load(
    tmp_path: Path, journal_type: str
) -> None:
    made = options(journal_type=journal_type)
    with Child(tmp_path, "master", "load", made) as master, ExitStack() as stack:
        master.until_confirmed(50)
        standby = stack.enter_context(Child(tmp_path, "standby", "load", made))
        standby.until("standby")
        master.until_confirmed(50)
        killed_at = time.monotonic()
        master.kill()
        standby.until("open")
        print(f"journal_type={journal_type} take_over_s={time.monotonic() - killed_at:.2f}")
        standby.until_confirmed(50)
        standby.kill()
    found = await bodies(tmp_path)
    for child, tag in ((master, "master"), (standby, "standby")):
        assert {n: found.get(n) for n in child.confirmed} == {
            n: f"{tag} {n}" for n in child.confirmed
        }
    assert list(found) == list(range(1, max(found) + 1))


@pytest.mark.long
@pytest.mark.parametrize("journal_type", TYPES)
async def test_a_master_that_was_away_too_long_confirms_nothing_and_lets_go(
    tmp_path: Path, journal_type: str
) -> None:
    made = options(journal_type=journal_type)
    with Child(tmp_path, "master", "step", made | {"lock_expiration": 4.0}) as master:
        master.until("open")
        master.step()
        master.until("ok")
        with Child(tmp_path, "standby", "step", made) as standby:
            standby.until("standby")
            master.stop()
            master.step()  # what it will do first when it wakes up
            time.sleep(4.5)  # longer than its lease: no test of how fast anything is
            master.signal(signal.SIGCONT)
            assert "more than lock_expiration (4 s)" in master.until("lost")
            master.until("failed")
            assert master.process.wait(60) == 3
            standby.until("open")
            standby.step()
            standby.until("ok")
            standby.step("close")
            standby.until("closed")
    assert master.confirmed == [1]
    found = await bodies(tmp_path)
    assert found[1] == "master 1"
    assert found[standby.confirmed[0]] == f"standby {standby.confirmed[0]}"


@pytest.mark.long
async def test_exactly_one_of_two_standbys_follows_and_then_the_other(tmp_path: Path) -> None:
    made = options()
    with ExitStack() as stack:
        master = stack.enter_context(Child(tmp_path, "master", "step", made))
        master.until("open")
        master.step()
        master.until("ok")
        waiting = [stack.enter_context(Child(tmp_path, name, "step", made)) for name in "ab"]
        for child in waiting:
            child.until("standby")
        master.kill()
        second, third = await asyncio.to_thread(first_to_open, waiting)
        if third.said.count("standby") == 1:  # else that line came while both were asked
            third.until("standby")  # now for the second
        second.step()
        second.until("ok")
        second.step("close")
        second.until("closed")
        third.until("open")
        assert third.opened_at == 2
        third.step("close")
        third.until("closed")
    assert sorted(await bodies(tmp_path)) == [1, 2]


def first_to_open(waiting: list[Child]) -> tuple[Child, Child]:
    """Which one opened, and the other."""
    while True:
        for child, other in (waiting, waiting[::-1]):
            if child.has_said("open"):
                assert not other.has_said("open")
                return child, other
        time.sleep(0.02)


async def test_a_standby_follows_a_master_that_closes(tmp_path: Path) -> None:
    made = JournalOptions(**STANDBY, **SMALL)
    waiting, told = asyncio.Event(), list[str]()

    def stands_by(owner: str) -> None:
        told.append(owner)
        waiting.set()

    master = JournalStore(StoreContext(tmp_path, "one"), made)
    await master.open()
    standby = JournalStore(StoreContext(tmp_path, "two", stands_by=stands_by), made)
    opening = asyncio.create_task(standby.open())
    await waiting.wait()
    assert not opening.done()
    await master.close()
    state = await opening
    assert state.report.clean
    assert [owner.partition(" ")[0] for owner in told] == ["gateway=one", ""]
    await standby.close()


async def test_a_standby_may_be_cancelled_and_commands_do_not_wait(tmp_path: Path) -> None:
    made, waiting = JournalOptions(**STANDBY, **SMALL), asyncio.Event()
    master = JournalStore(StoreContext(tmp_path, "one"), made)
    await master.open()
    context = StoreContext(tmp_path, "two", stands_by=lambda _: waiting.set())
    opening = asyncio.create_task(JournalStore(context, made).open())
    await waiting.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    with pytest.raises(StoreLockedError, match="gateway=one"):
        await JournalStore(StoreContext(tmp_path, "tool", may_stand_by=False), made).open()
    await master.close()


async def test_a_master_whose_lock_was_taken_writes_no_more_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, lost = JournalOptions(**STANDBY, **SMALL), asyncio.Event()
    store = JournalStore(StoreContext(tmp_path, "one", lost=lambda _: lost.set()), made)
    await store.open()
    assert store.statistics().writable
    (tmp_path / "journal" / "lock").write_text("another gateway\n")
    await lost.wait()  # without a write
    with pytest.raises(StoreLostError, match="another gateway has taken it"):
        await store.write(WriteBatch([AddDestination("queue://q", 1)]))
    assert not caplog.records, "who is told says so"
    await store.close()
    assert await bodies(tmp_path) == {}, "its locks are free"


async def test_a_batch_that_was_synced_too_late_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = JournalOptions(**STANDBY, **SMALL)
    store = JournalStore(StoreContext(tmp_path, "one"), made)
    await store.open()
    real = DirectoryFile.datasync

    def taken_during(self: DirectoryFile) -> None:
        real(self)
        (tmp_path / "journal" / "lock").write_text("another gateway\n")

    monkeypatch.setattr(DirectoryFile, "datasync", taken_during)
    with pytest.raises(StoreIOError, match="another gateway has taken it"):
        await store.write(WriteBatch([AddDestination("queue://q", 1)]))
    monkeypatch.undo()
    await store.close()


@pytest.mark.parametrize("journal_type", TYPES)
@pytest.mark.parametrize("per_destination", [(), ("queue://>",)])
async def test_what_a_paused_master_writes_after_its_successor_began_harms_nothing(
    tmp_path: Path, journal_type: str, per_destination: tuple[str, ...]
) -> None:
    """The file system gave its locks away; it wakes up with all its files open, and goes on."""
    made = JournalOptions(
        lock_policy="wait",
        lock_renew_period=0.1,
        lock_expiration=0.3,
        checkpoint_interval=3600,  # or that would find out
        cleanup_interval=3600,
        journal_max_file_length=256 << 10,
        journal_type=journal_type,
        per_destination=per_destination,
    )
    paused = JournalStore(StoreContext(tmp_path, "paused"), made)
    await paused.open()
    await paused.write(WriteBatch([AddDestination("queue://q", 1), add(1), add(2)]))
    pause(paused, tmp_path)
    tail = paused._appender.tail.file  # pyright: ignore[reportPrivateUsage]
    assert tail is not None
    written = [tmp_path / "journal" / name for name in (tail.name, "metadata/data.mdb")]
    before = [path.stat().st_ino for path in written]  # in use as long as it has them open
    second = JournalStore(StoreContext(tmp_path, "second"), made)
    await second.open()
    after = [path.stat().st_ino for path in written]
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, False]
    for sequence in (3, 4, 5):
        await second.write(WriteBatch([add(sequence)]))
    await second._checkpointer.run(force=True)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(StoreIOError, match="another gateway has taken it"):
        await paused.write(WriteBatch([add(3, b"stray" * 1000)]))
    await paused.close()
    await second.write(WriteBatch([add(6), AddDestination("queue://r", 2)]))
    await second.close()
    found = JournalStore(StoreContext(tmp_path, "third"), JournalOptions(**SMALL))
    state = await found.open()
    assert not state.report.notes
    assert state.report.clean
    assert {item.destination for item in state.destinations} == {"queue://q", "queue://r"}
    page = await found.page_in(1, 0, 100, ANY_SIZE)
    assert [item.sequence for item in page] == [1, 2, 3, 4, 5, 6]
    assert {item.message.body for item in page} == {b"x"}
    await found.close()


def add(sequence: int, body: bytes = b"x") -> AddMessage:
    return AddMessage(sequence, Message("queue://q", body), (1,))


def pause(store: JournalStore, directory: Path) -> None:
    """It gives no sign of life any more, and the file system takes its locks."""
    lock = store._lock_file  # pyright: ignore[reportPrivateUsage]
    assert lock is not None
    lock._ended.set()  # pyright: ignore[reportPrivateUsage]
    lock._sure_until = math.inf  # pyright: ignore[reportPrivateUsage] - its clock stands still
    unlock(directory)


@pytest.mark.parametrize(
    "made", [JournalOptions(lock_renew_period=1.0), JournalOptions(lock_expiration=1.0)]
)
def test_options_of_a_lease_that_nobody_has_are_refused(made: JournalOptions) -> None:
    with pytest.raises(ConfigError, match="does nothing unless lock_policy is 'wait'"):
        refuse_idle(made)


def test_a_lease_must_be_longer_than_two_renewals() -> None:
    with pytest.raises(ConfigError, match="more than half of lock_expiration"):
        check(JournalOptions(lock_policy="wait", lock_renew_period=1.5))
