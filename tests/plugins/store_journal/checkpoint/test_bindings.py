"""The bindings journal: what a carry writes, what room it needs, and what a start makes of it."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from journal_kit import checkpoint, killed, opened, pending, write
from numbered import ack, add

from tidegate.spi import (
    AddDestination,
    AddDuplicateId,
    ClearRetained,
    CorruptRecordError,
    InflightDirection,
    InflightRecord,
    InflightState,
    Message,
    Operation,
    PutInflight,
    PutSession,
    RemoveInflight,
    Session,
    SetRetained,
    StoreFullError,
)
from tidegate.testing.faulty_storage import FaultyDisk
from tidegate_store_journal import JournalStore
from tidegate_store_journal.checkpoint.metadata import MetadataState
from tidegate_store_journal.index.changes import PENDING, Changes
from tidegate_store_journal.log.format import BINDINGS_NAME
from tidegate_store_journal.write import append

MB = 1 << 20


def packet_id(number: int) -> PutInflight:
    return PutInflight(
        InflightRecord("c", InflightDirection.OUT, number, InflightState.RELEASED, "", 0)
    )


def retained(number: int, size: int) -> SetRetained:
    return SetRetained(Message(f"topic://t{number}", b"r" * size))


def used(disk: FaultyDisk) -> int:
    return sum(len(data) for data in disk.read_all().values())


async def fill(store: JournalStore, sequence: int) -> list[int]:
    """Add messages until the store is full. Returns: their sequences."""
    added: list[int] = []
    while True:
        sequence += 1
        try:
            await write(store, add(sequence, size=20_000))
        except StoreFullError:
            return added
        added.append(sequence)


@pytest.mark.parametrize("is_quota", [False, True], ids=["ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("ids", [False, True], ids=["retained messages", "duplicate ids"])
async def test_a_full_disk_recovers_when_everything_is_consumed(
    tmp_path: Path, ids: bool, is_quota: bool
) -> None:
    """Fault 1: 10 MB of small state, a packet id a batch, and no room at all. A used-up quota is
    that, too (fault 18)."""
    disk = FaultyDisk()
    disk.is_quota = is_quota
    store, _ = await opened(tmp_path, disk.start())
    for begin in range(1, 1001, 100):
        batch: list[Operation] = [retained(number, 10_000) for number in range(begin, begin + 100)]
        if ids:
            batch = [
                AddDuplicateId("queue://q", f"{number}".ljust(5000, "i"), number)
                for number in range(2 * begin, 2 * begin + 200)
            ]
        await write(store, *batch)
    await checkpoint(store, cleanup=True)
    disk.capacity_bytes = used(disk) + MB
    added = await fill(store, 3000)
    disk.capacity_bytes = used(disk)  # not a byte more
    for number, sequence in enumerate(added, 1):
        known = packet_id(number % 100 + 1)
        await write(store, known)
        await write(
            store, ack(sequence), RemoveInflight("c", InflightDirection.OUT, known.record.packet_id)
        )
    assert await checkpoint(store, cleanup=True) > 0
    await write(store, add(9000))
    storage = disk.start()  # killed
    store, state = await opened(tmp_path, storage)
    assert await pending(store) == [9000]
    assert len(state.retained) == (0 if ids else 1000)
    assert state.inflight == []
    await write(store, ClearRetained("topic://t1"))
    await checkpoint(store, cleanup=True)
    await store.close()


async def test_a_packet_id_costs_what_it_has_whatever_is_retained(tmp_path: Path) -> None:
    """Fault 5: 199 MB were written and the loop stood still for 89 ms."""
    disk = FaultyDisk()
    store, _ = await opened(tmp_path, disk.start(), journal_max_file_length=4 * MB)
    for begin in range(0, 20_000, 1000):
        await write(store, *(retained(number, 200) for number in range(begin, begin + 1000)))
    await checkpoint(store)
    written = 0

    def observe(change: object) -> None:
        nonlocal written
        data = getattr(change, "data", None)
        written += len(data) if data is not None else 0

    disk.observer = observe
    await write(store, packet_id(1))
    before = written
    await checkpoint(store)
    disk.observer = None
    assert 0 < written - before < 1000
    await store.close()


async def test_checkpoints_that_fail_keep_each_changed_piece_once(tmp_path: Path) -> None:
    """Fault 6: a copy of every changed piece for each."""
    store, _ = await opened(tmp_path / "a")
    metadata = store._metadata  # pyright: ignore[reportPrivateUsage]
    save = metadata.save

    def fails(changes: Changes, state: MetadataState) -> None:
        raise OSError(28, os.strerror(28))

    metadata.save = fails
    checkpointer = store._checkpointer  # pyright: ignore[reportPrivateUsage]
    for sequence in range(1, 21):
        await write(store, add(sequence), PutSession(Session(f"c{sequence}", 1)))
        with pytest.raises(OSError, match="No space"):
            await checkpointer.run()
    unsaved = checkpointer._unsaved  # pyright: ignore[reportPrivateUsage]
    assert unsaved is not None
    assert len(unsaved.rows[PENDING]) == 1
    metadata.save = save
    await checkpointer.run()
    copy = killed(tmp_path / "a", tmp_path / "copy")
    await store.close()
    store, state = await opened(copy)
    assert await pending(store) == list(range(1, 21))
    assert len(state.sessions) == 20
    await store.close()


async def test_a_value_larger_than_a_file_is_carried_and_copied_forward(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path / "a")
    await write(store, SetRetained(Message("topic://large", os.urandom(300_000))))
    for number in range(300):
        await write(store, retained(number % 7, 2000))
        if number % 10 == 0:
            await checkpoint(store)
    await checkpoint(store, cleanup=True)
    files = list((tmp_path / "a" / "journal").glob("bindings-*"))
    assert sum(path.stat().st_size for path in files) < 3 * MB
    copy = killed(tmp_path / "a", tmp_path / "copy")
    await store.close()
    for directory in (tmp_path / "a", copy):
        store, state = await opened(directory)
        assert sorted(len(item.body) for item in state.retained) == [2000] * 7 + [300_000]
        await store.close()


@pytest.mark.parametrize("is_ahead", [True, False])
async def test_room_is_made_before_it_is_needed(
    tmp_path: Path, is_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait for a file would be one for everybody whose messages are in the batch."""
    if not is_ahead:
        monkeypatch.setattr(append, "GROW_AHEAD", 0)
    waits = 0
    make_room = append.Appender._make_small_state_room  # pyright: ignore[reportPrivateUsage]

    async def counted(self: append.Appender, more: int) -> None:
        nonlocal waits
        waits += 1
        await make_room(self, more)

    monkeypatch.setattr(append.Appender, "_make_small_state_room", counted)
    store, _ = await opened(tmp_path / "a")
    appender = store._appender  # pyright: ignore[reportPrivateUsage]
    for begin in range(0, 4000, 200):
        await write(store, *[retained(number, 200) for number in range(begin, begin + 200)])
        while appender._growing is not None:  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.001)
    await store.close()
    if is_ahead:
        assert waits <= 1
    else:
        assert waits >= 5


async def test_a_bindings_journal_that_is_gone_or_cut_off_is_noticed(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path / "a")
    await write(store, PutSession(Session("c", 1)))
    await checkpoint(store)
    await write(store, PutSession(Session("d", 1)), add(1))
    await store.close()
    names = [
        path
        for path in (tmp_path / "a" / "journal").iterdir()
        if BINDINGS_NAME.fullmatch(path.name)
    ]
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for path in names:
        path.unlink()
    with pytest.raises(CorruptRecordError, match="bindings journal ends"):
        await opened(tmp_path / "a")
    store, state = await opened(tmp_path / "a", damaged_journal_policy="quarantine")
    assert any("are lost" in note for note in state.report.notes)
    assert await pending(store) == [1]
    await store.close()
    store, state = await opened(tmp_path / "a")  # that was once
    await store.close()
    store, state = await opened(tmp_path / "b")
    assert sorted(item.key for item in state.sessions) == ["c", "d"]
    await store.close()


async def test_a_journal_that_went_on_behind_missing_files_opens_again(tmp_path: Path) -> None:
    """Fault 8: closed before a write, it never opened again."""
    store, _ = await opened(tmp_path)
    for sequence in range(1, 8):
        await write(store, add(sequence, size=20_000))
    newest = store._files.used()[-1].name  # pyright: ignore[reportPrivateUsage]
    await store.close()
    (tmp_path / "journal" / newest).unlink()
    store, _ = await opened(tmp_path, ignore_missing_journalfiles=True)
    left = await pending(store)
    await store.close()
    for changes in ({}, {"ignore_missing_journalfiles": True}, {}):
        store, _ = await opened(tmp_path, **changes)
        assert await pending(store) == left
        await store.close()


async def test_files_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    """Fault 15: each clean stop left entries of the files that it had put away."""
    sequence = 0
    for _ in range(4):
        store, _ = await opened(tmp_path)
        for _ in range(20):
            sequence += 1
            await write(store, add(sequence, size=20_000))
            if sequence > 3:
                await write(store, ack(sequence - 3))
        await store.close()
    store, _ = await opened(tmp_path)
    known = store._index.files.keys()  # pyright: ignore[reportPrivateUsage]
    files = {file.file_id for file in store._files.used()}  # pyright: ignore[reportPrivateUsage]
    assert known <= files
    await store.close()


async def test_after_damage_all_live_lists_are_written_anew(tmp_path: Path) -> None:
    """Else a rebuild would bring back what was consumed."""
    where = tmp_path / "a"
    store, _ = await opened(where)
    await write(store, AddDestination("queue://q", 1))
    await write(store, *[add(item, size=6000) for item in range(1, 10)])  # the first file
    await write(store, ack(2, 3))
    for first in (20, 40, 60):
        await write(store, *[add(item, size=6000) for item in range(first, first + 10)])
        await write(store, ack(1 + first // 5, *range(first, first + 10)))
    await store._checkpointer.run(cleanup=True)  # pyright: ignore[reportPrivateUsage]
    await write(store, AddDestination("queue://r", 2))
    await store.close()
    journal = where / "journal"
    flipped = 0
    for path in journal.glob("bindings-*.data"):
        data = bytearray(path.read_bytes())
        if (at := data.find(b"\x78\x01")) > 0:  # a packed list
            data[at + 10] ^= 1
            path.write_bytes(data)
            flipped += 1
    assert flipped
    store, state = await opened(where, damaged_journal_policy="quarantine")
    left = await pending(store)
    assert left == [1, 4, 6, 7, 8]
    assert any("bindings journal" in note for note in state.report.notes)
    await store.close()
    shutil.rmtree(journal / "metadata")
    store, _ = await opened(where)
    assert await pending(store) == left
    await store.close()
