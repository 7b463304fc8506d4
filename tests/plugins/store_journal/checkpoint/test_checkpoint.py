"""Checkpoints: what reaches the metadata store, which files die, and what is kept of them."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest
from journal_kit import (
    ANY_SIZE,
    KB,
    CrashStorage,
    data_files,
    killed,
    opened,
    pending,
    until,
    write,
    write_only,
)
from numbered import ack, add

from tidegate.spi import PutSession, RecordDelivery, Session
from tidegate_store_journal import JournalStore
from tidegate_store_journal.checkpoint.bindings import Bindings, Mark
from tidegate_store_journal.checkpoint.checkpoint import RESERVE_BYTES, RESERVE_NAME, Checkpointer


def checkpointer_of(store: JournalStore) -> Checkpointer:
    return store._checkpointer  # pyright: ignore[reportPrivateUsage]


async def test_what_comes_and_goes_between_two_checkpoints_never_reaches_the_metadata(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path, keep=True, journal_max_file_length=8 << 20)
    counters = store.metadata_counters
    before = counters.checkpoints
    sequence = 0
    for _ in range(5):
        for _ in range(20):
            batch = list(range(sequence + 1, sequence + 51))
            sequence += 50
            await write(store, *[add(item, 1, 2) for item in batch])
            await write_only(store, RecordDelivery(1, tuple(batch[:3]), (1, 1, 1)))
            await write(store, ack(*batch), ack(*batch, pending_list=2))
        await store.release_acknowledged(store.log_statistics().last)
        await checkpointer_of(store).run()
    assert counters.checkpoints == before + 5
    assert counters.pending_put == counters.pending_deleted == 0
    assert counters.pieces_put == counters.pieces_deleted == 0
    assert counters.acknowledged_put == counters.acknowledged_deleted == 0
    # One that stays is put once and deleted once.
    await write(store, add(sequence + 1))
    await checkpointer_of(store).run()
    await checkpointer_of(store).run(force=True)
    assert (counters.pending_put, counters.pending_deleted) == (1, 0)
    await write(store, ack(sequence + 1))
    await checkpointer_of(store).run()
    assert (counters.pending_put, counters.pending_deleted) == (1, 1)
    assert (counters.acknowledged_put, counters.acknowledged_deleted) == (1, 0)
    await store.close()


async def test_an_idle_store_writes_no_checkpoint(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, add(1))
    await checkpointer_of(store).run()
    count = store.metadata_counters.checkpoints
    await checkpointer_of(store).run()
    await checkpointer_of(store).run(cleanup=True)
    assert store.metadata_counters.checkpoints == count
    await store.close()


async def test_a_start_after_a_kill_goes_on_from_the_checkpoint_that_is_there(
    tmp_path: Path,
) -> None:
    sizes = {"max_checkpoint_message_add_size": 4096, "journal_max_file_length": 8 << 20}
    store, _ = await opened(tmp_path / "a", **sizes)
    count = store.metadata_counters.checkpoints
    await write(store, *[add(item) for item in range(1, 4001)])
    left = killed(tmp_path / "a", tmp_path / "b")
    await store.close()

    again, state = await opened(left, **sizes)
    assert (state.report.clean, state.pending[1].messages) == (False, 4000)
    assert again.metadata_counters.checkpoints == count
    # What was replayed counts: however often it is killed, a start replays no more than that.
    await write(again, *[add(item) for item in range(4001, 4101)])
    await until(lambda: again.metadata_counters.checkpoints == count + 1)
    assert await pending(again) == list(range(1, 4101))
    await again.close()

    clean, state = await opened(left, **sizes)
    assert (state.report.clean, clean.metadata_counters.checkpoints) == (True, count + 3)
    torn = killed(left, tmp_path / "c")
    await clean.close()
    last, state = await opened(torn, **sizes)
    assert (state.report.clean, await pending(last)) == (False, list(range(1, 4101)))
    await last.close()


async def test_dead_files_are_used_again_and_acknowledgements_keep_none(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    files = store._files  # pyright: ignore[reportPrivateUsage]
    sequence = 0
    # One message is never acknowledged; the acknowledgements of all others come later.
    await write(store, add(1_000_000 - 1, 9))
    for _ in range(30):
        first = sequence + 1
        sequence += 10
        await write(
            store, *[add(1_000_000 + item, size=5000) for item in range(first, sequence + 1)]
        )
        await write(store, ack(*range(1_000_000 + first, 1_000_000 + sequence + 1)))
        assert files.disk_bytes <= 4 * 64 * KB
    assert max(file.file_id for file in files.used()) > 25
    assert len(data_files(tmp_path)) <= 4
    assert await pending(store, 9) == [999_999]
    copy = killed(tmp_path, tmp_path.parent / "copy")
    await store.close()
    store, state = await opened(copy)
    assert await pending(store, 9) == [999_999]
    assert await pending(store, 1) == []
    assert state.last_sequence == 1_000_000 + sequence
    await store.close()


@pytest.mark.parametrize("with_live_list", [True, False])
async def test_an_acknowledgement_outlives_the_file_it_was_written_in(
    tmp_path: Path, with_live_list: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the metadata store. The control run without live lists shows what they are for."""
    if not with_live_list:
        carry = Bindings.carry

        def without_lists(self: Bindings, small: Any, mark: Mark, lives: Any = None) -> None:
            carry(self, small, mark)

        monkeypatch.setattr(Bindings, "carry", without_lists)
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage, keep=True)
    await write(store, *[add(item, size=3000) for item in (1, 2, 3)], add(4, 1, 2, size=3000))
    await write(store, *[add(item, size=5500) for item in range(10, 20)])
    await write(store, ack(2, 4), ack(*range(10, 20)))
    await store.release_acknowledged(1)
    await write(store, *[add(item, size=5500) for item in range(20, 30)])
    await write(store, ack(*range(20, 30)))
    await store.release_acknowledged(22)
    assert await checkpointer_of(store).run(cleanup=True) == 1
    after = storage.crash()
    await store.close()
    store, state = await opened(tmp_path, after, keep=True)
    found = await pending(store)
    if with_live_list:
        assert found == [1, 3]
        assert await pending(store, 2) == [4]
        assert state.report.notes == ()
    else:
        assert found == [1, 2, 3, 4]
    await store.close()


async def test_a_live_list_that_is_new_enough_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[list[int]] = []
    carry = Bindings.carry

    def watched(self: Bindings, small: Any, mark: Mark, lives: Any = None) -> None:
        written.append(sorted(lives or ()))
        carry(self, small, mark, lives or {})

    monkeypatch.setattr(Bindings, "carry", watched)
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    await write(store, *[add(item, size=6000) for item in range(1, 11)])  # file 1
    for first in (20, 40, 60):  # files behind it, all of which speak of it
        await write(store, *[add(item, size=6000) for item in range(first, first + 10)])
        await write(store, ack(first // 20))
        staying = first + 9 if first == 40 else 0
        gone = [item for item in range(first, first + 10) if item != staying]
        await write(store, ack(*gone))
    await write(store, *[add(item, size=6000) for item in range(80, 90)])
    checkpointer = checkpointer_of(store)
    await checkpointer.run(cleanup=True)
    assert [1] in written
    await write(store, ack(49))
    written.clear()
    assert await checkpointer.run(cleanup=True) == 1
    assert written == [[]]
    after = storage.crash()
    await store.close()
    store, _ = await opened(tmp_path, after)
    assert await pending(store) == [*range(4, 11), *range(80, 90)]
    # The file that they are about is gone, and its list with it.
    await write(store, ack(*range(4, 11)))
    written.clear()
    await checkpointer_of(store).run(cleanup=True)
    await write(store, ack(*range(80, 89)))
    await checkpointer_of(store).run(cleanup=True)
    last = after.crash()
    await store.close()
    store, _ = await opened(tmp_path, last)
    assert await pending(store) == [89]
    await store.close()


async def test_rows_of_the_log_outlive_the_file_of_their_acknowledgement(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage, keep=True)
    await write(store, *[add(item, size=3000) for item in (1, 2, 3)])
    await write(store, *[add(item, size=5500) for item in range(10, 20)])
    await write(store, ack(*range(10, 20)))
    await write(store, ack(3, 1))
    await write(store, *[add(item, size=5500) for item in range(20, 30)])
    await store.release_acknowledged(10)
    assert await checkpointer_of(store).run(cleanup=True) == 1
    after = storage.crash()
    await store.close()
    store, state = await opened(tmp_path, after, keep=True)
    assert state.report.notes == ()
    page = await store.acknowledged(10, 10, ANY_SIZE)
    assert [(row.ack_sequence, row.sequence, row.delivered_at) for row in page.rows] == [
        (11, 3, 1003),
        (12, 1, 1001),
    ]
    assert await pending(store) == [2, *range(20, 30)]
    await store.close()


async def test_a_checkpoint_that_fails_is_made_up_for_by_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tidegate.store.journal"):
        store, _ = await opened(tmp_path / "a", checkpoint_interval=0.02)
        metadata = store._metadata  # pyright: ignore[reportPrivateUsage]
        save = metadata.save
        failures = 0

        def fail(*_: object) -> None:
            nonlocal failures
            failures += 1
            raise OSError(errno.EIO, "broken")

        metadata.save = fail  # type: ignore[method-assign]
        await write(store, add(1), add(2), PutSession(Session("c", 1)))
        await until(lambda: failures > 0)
        await write(store, ack(1), add(3))
        seen = failures
        await until(lambda: failures > seen)
        metadata.save = save  # type: ignore[method-assign]
        count = store.metadata_counters.checkpoints
        await until(lambda: store.metadata_counters.checkpoints > count)
        assert store.statistics().writable
        copy = killed(tmp_path / "a", tmp_path / "b")
        await store.close()
        store, state = await opened(copy)
        assert state.report.counts["replayed"] == 0
        assert [session.key for session in state.sessions] == ["c"]
        assert await pending(store) == [2, 3]
        await store.close()
    assert "a checkpoint or cleanup failed" in caplog.text
    told = [name for record in caplog.records if (name := vars(record).get("event"))]
    assert told == ["checkpoint-failed", "checkpoint-recovered"]  # however often it fails


async def test_the_reserve_is_given_up_when_a_checkpoint_finds_the_disk_full(
    tmp_path: Path,
) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    checkpointer = checkpointer_of(store)
    assert storage.open(RESERVE_NAME).length == RESERVE_BYTES
    for sequence in range(1, 10):
        await write(store, add(sequence, size=30_000), PutSession(Session("c", sequence)))
    await write(store, ack(*range(1, 10)))

    def full_for_reserve(operation: str, name: str) -> OSError | None:
        if operation == "preallocate" and name == RESERVE_NAME:
            return OSError(errno.ENOSPC, "full")
        return None

    def full_until_reserve_is_gone(operation: str, name: str) -> OSError | None:
        if operation == "pwritev" and RESERVE_NAME in storage.list() and "bindings" in name:
            return OSError(errno.ENOSPC, "full")
        return None

    storage.fault = full_until_reserve_is_gone
    assert await checkpointer.run(cleanup=True) > 0
    assert RESERVE_NAME not in storage.list()
    # It cannot be made again while there is no room, and an empty one is not left behind.
    storage.fault = full_for_reserve
    checkpointer.make_reserve()
    assert RESERVE_NAME not in storage.list()
    # Without a reserve the error is reported.
    storage.fault = lambda operation, name: (
        OSError(errno.ENOSPC, "full") if operation == "pwritev" and "bindings" in name else None
    )
    await write(store, PutSession(Session("d", 1)))
    with pytest.raises(OSError, match="full"):
        await checkpointer.run()
    storage.fault = lambda *_: None
    checkpointer.make_reserve()
    assert RESERVE_NAME in storage.list()
    await store.close()


async def test_a_file_that_is_being_read_and_those_behind_it_are_put_away_later(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    for sequence in range(1, 10):
        await write(store, add(sequence, size=30_000))
    files = store._files  # pyright: ignore[reportPrivateUsage]
    first = files.used()[0]
    files.borrow(first)
    await write(store, ack(*range(1, 10)))
    dead = len(files.used()) - 1
    assert dead > 2
    assert await checkpointer_of(store).run(cleanup=True) == 0
    assert (tmp_path / "journal" / first.name).exists()
    files.give_back(first)
    assert await checkpointer_of(store).run(cleanup=True) == dead
    assert not (tmp_path / "journal" / first.name).exists()
    await store.close()


async def test_dead_files_are_put_away_in_the_journals_order(tmp_path: Path) -> None:
    """A file that says what became of messages never goes before the file of those messages."""
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    for sequence in range(1, 30):
        await write(store, add(sequence, size=20_000))
    await write(store, ack(*range(1, 30)))
    files = store._files  # pyright: ignore[reportPrivateUsage]
    order = [file.name for file in files.used()[:-1]]
    gone: list[str] = []
    real = storage.rename

    def rename(old: str, new: str) -> None:
        if new.endswith(".free"):
            gone.append(old)
        real(old, new)

    storage.rename = rename  # type: ignore[method-assign]  # only looks on
    assert await checkpointer_of(store).run(cleanup=True) == len(order)
    assert gone == order
    await store.close()
