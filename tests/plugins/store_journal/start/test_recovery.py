"""Starting again: after a kill, a power cut, a torn tail, damage, and without the metadata store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from journal_kit import (
    ANY_SIZE,
    CrashStorage,
    checkpoint,
    data_files,
    killed,
    opened,
    pending,
    write,
)
from numbered import ack, add

from tidegate.spi import (
    AddDestination,
    CorruptRecordError,
    PutSubscription,
    RecoveredState,
    RemoveSubscription,
    Subscription,
)
from tidegate_store_journal.log import format as _format

NAME = "journal-0000000001.data"


# ---------------------------------------------------------------------------------------- damage


async def test_a_damaged_file_header_is_reported(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    await write(store, add(1))
    await store.close()
    storage.flip(NAME, 20)
    storage.flip(NAME, 2048 + 20)
    with pytest.raises(CorruptRecordError, match="file header") as caught:
        await opened(tmp_path, storage)
    assert NAME in caught.value.location


async def test_a_file_of_another_store_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        store, _ = await opened(tmp_path / name)
        await write(store, add(1))
        await store.close()
    foreign = data_files(tmp_path / "b")[1]
    shutil.copy(foreign, tmp_path / "a" / "journal" / "journal-0000000009.data")
    with pytest.raises(CorruptRecordError, match="move it away"):
        await opened(tmp_path / "a")


@pytest.mark.parametrize("number", [0, -1])
async def test_a_missing_data_file_with_pending_messages_is_refused(
    tmp_path: Path, number: int
) -> None:
    store, _ = await opened(tmp_path)
    for sequence in range(1, 8):
        await write(store, add(sequence, size=20_000))
    used = [file.name for file in store._files.used()]  # pyright: ignore[reportPrivateUsage]
    await store.close()
    (tmp_path / "journal" / used[number]).unlink()
    with pytest.raises(CorruptRecordError, match="missing") as caught:
        await opened(tmp_path)
    assert used[number] in caught.value.location


async def test_leftovers_of_unfinished_work_are_removed(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, add(1))
    await store.close()
    journal = tmp_path / "journal"
    leftovers = [
        journal / "journal-0000000077.data.tmp",
        journal / "bindings-0000000077.free.tmp",
    ]
    for path in leftovers:
        path.write_bytes(b"x")
    (journal / "notes.txt").write_text("mine")
    store, _ = await opened(tmp_path)
    assert not any(path.exists() for path in leftovers)
    assert (journal / "notes.txt").exists()
    assert await pending(store) == [1]
    await store.close()


async def test_spares_of_another_length_are_replaced(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, add(1))
    await store.close()
    store, _ = await opened(tmp_path, journal_max_file_length=128 << 10)
    for sequence in range(2, 10):
        await write(store, add(sequence, size=30_000))
    assert await pending(store) == list(range(1, 10))
    await store.close()
    assert {path.stat().st_size for path in data_files(tmp_path)} == {64 << 10, 128 << 10}
    store, _ = await opened(tmp_path)
    assert await pending(store) == list(range(1, 10))
    await store.close()


# -------------------------------------------------------------------------------------- restarts


async def test_subscriptions_that_are_not_durable_are_told_after_a_kill_and_gone_when_they_are_removed(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path / "a")
    durable = Subscription(1, "c", "d", "topic://t", True)
    other = Subscription(2, "c", "e", "topic://t", False)
    await write(store, PutSubscription(durable), PutSubscription(other), add(1, 1, 2))
    copy = killed(tmp_path / "a", tmp_path / "b")
    await store.close()
    store, state = await opened(copy)
    assert sorted(state.subscriptions, key=lambda item: item.pending_list) == [durable, other]
    assert set(state.pending) == {1, 2}
    assert await pending(store, 2) == [1]
    await write(store, RemoveSubscription(2))
    await store.close()
    for _ in range(2):
        store, state = await opened(copy)
        assert list(state.subscriptions) == [durable]
        assert state.last_pending_list == 2
        assert set(state.pending) == {1}
        assert await pending(store, 2) == []
        await store.close()


def same(left: RecoveredState, right: RecoveredState) -> bool:
    """Everything but the report is equal."""

    def key(state: RecoveredState) -> tuple[Any, ...]:
        return (
            state.store_id,
            state.last_sequence,
            state.last_pending_list,
            sorted(
                (item.destination, item.pending_list, item.owner) for item in state.destinations
            ),
            sorted(state.subscriptions, key=lambda item: item.pending_list),
            sorted(state.sessions, key=lambda item: item.key),
            sorted(state.inflight, key=lambda item: (item.session, item.packet_id)),
            sorted(state.retained, key=lambda item: item.destination),
            dict(state.pending),
        )

    return key(left) == key(right)


async def test_a_damaged_metadata_store_is_rebuilt_with_a_note(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, AddDestination("queue://q", 1), *[add(item) for item in range(1, 50)])
    await store.close()
    path = tmp_path / "journal" / "metadata" / "data.mdb"
    path.write_bytes(path.read_bytes()[:5000])
    store, state = await opened(tmp_path)
    assert "rebuilt" in state.report.notes[0]
    assert await pending(store) == list(range(1, 50))
    await store.close()


async def test_metadata_of_another_store_is_not_used(tmp_path: Path) -> None:
    for name in ("a", "b"):
        store, _ = await opened(tmp_path / name)
        await write(store, add(1 if name == "a" else 7))
        await store.close()
    shutil.rmtree(tmp_path / "a" / "journal" / "metadata")
    shutil.copytree(
        tmp_path / "b" / "journal" / "metadata", tmp_path / "a" / "journal" / "metadata"
    )
    marker = Path("journal") / "index-store-state"
    shutil.copy(tmp_path / "b" / marker, tmp_path / "a" / marker)
    store, state = await opened(tmp_path / "a")
    assert "another store" in state.report.notes[0]
    assert await pending(store) == [1]
    await store.close()


async def test_rows_are_forgotten_when_no_sink_is_configured_any_more(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await write(store, add(1), add(2), ack(1))
    await store.close()
    store, _ = await opened(tmp_path, keep=False)
    statistics = store.log_statistics()
    assert (statistics.first, statistics.last) == (2, 1)
    await write(store, ack(2))
    await store.close()
    store, _ = await opened(tmp_path, keep=True)
    await write(store, add(3), ack(3))
    page = await store.acknowledged(1, 10, ANY_SIZE)
    assert [(row.ack_sequence, row.sequence) for row in page.rows] == [(2, 3)]
    await store.close()


async def test_a_journal_of_version_1_is_read_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_format, "FORMAT_VERSION", 1)
        store, _ = await opened(tmp_path)
        await write(store, *[add(item, size=9000) for item in range(1, 6)])
        for item in range(6, 16):
            await write(store, add(item, size=9000))
        copy = killed(tmp_path, tmp_path.parent / f"{tmp_path.name}-copy")
        await store.close()
    assert {path.read_bytes()[8] for path in data_files(copy)} == {1}
    store, state = await opened(copy)
    assert state.report.notes == ()
    assert await pending(store) == list(range(1, 16))
    await write(store, ack(*[item for item in range(1, 16) if item not in (3, 12)]))
    compactor = store._compactor  # pyright: ignore[reportPrivateUsage]
    for item in range(16, 400):  # compacts, and uses files of version 1 again
        await write(store, add(item, size=9000))
        await write(store, ack(item))
        if item >= 40 and compactor.copied_messages:  # in the background: it may come later
            break
    assert await pending(store) == [3, 12]
    assert compactor.copied_messages > 0
    await store.close()
    assert _format.FORMAT_VERSION in {path.read_bytes()[8] for path in data_files(copy)}
    store, _ = await opened(copy)
    assert await pending(store) == [3, 12]
    await store.close()


async def test_rows_that_were_released_are_so_with_an_older_checkpoint_too(tmp_path: Path) -> None:
    """What they need may be gone: large bodies, records of directories."""
    store, _ = await opened(tmp_path / "a", keep=True)
    await write(store, *[add(sequence) for sequence in range(1, 9)])
    await write(store, ack(1, 2, 3, 4))
    await checkpoint(store)
    shutil.copytree(tmp_path / "a" / "journal" / "metadata", tmp_path / "old")
    await write(store, ack(5))
    await store.release_acknowledged(3)
    await checkpoint(store)
    copy = killed(tmp_path / "a", tmp_path / "b")
    await store.close()
    shutil.rmtree(copy / "journal" / "metadata")
    shutil.copytree(tmp_path / "old", copy / "journal" / "metadata")
    store, state = await opened(copy, keep=True)
    assert state.report.notes == ()
    page = await store.acknowledged(3, 100, ANY_SIZE)
    assert [(row.ack_sequence, row.sequence) for row in page.rows] == [(4, 4), (5, 5)]
    assert store.log_statistics().first == 4
    assert await pending(store) == [6, 7, 8]
    await store.close()
