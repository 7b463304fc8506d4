"""Compaction by command and a new metadata store: what is there before is there afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from journal_kit import KB, data_files, new_store, opened, options, pending, write
from numbered import ack, add

from tidegate.spi import (
    AddDestination,
    ConfiguredStore,
    CorruptRecordError,
    PutSubscription,
    RecordDelivery,
    StoreLockedError,
    Subscription,
)
from tidegate_store_journal import JournalStore
from tidegate_store_journal.log.format import DATA_OFFSET
from tidegate_store_journal.plugin import JournalStoreFactory
from tidegate_store_journal.tools import offline as _offline
from tidegate_store_journal.tools.offline import compact, rebuild_index, space_of

NEVER: dict[str, Any] = {"journal_compact_min_files": 0, "journal_max_file_length": 64 * KB}


def silent(_what: str, _done: int, _total: int) -> None: ...


def configured(where: Path) -> ConfiguredStore:
    return ConfiguredStore("journal", JournalStoreFactory(), options(**NEVER), where)


async def sparse(where: Path) -> JournalStore:
    """Twelve files with one living message each, and rows of the log in the last ones."""
    store, _ = await opened(where, keep=True, **NEVER)
    await write(
        store,
        AddDestination("queue://q", 1),
        PutSubscription(Subscription(2, "c", "s", "topic://t", True)),
    )
    for sequence in range(1, 121):
        await write(store, add(sequence, 1, 2, size=5000))
    gone = [sequence for sequence in range(1, 121) if sequence % 10]
    await write(store, ack(*gone), ack(*gone, pending_list=2), RecordDelivery(1, (10,), (4,)))
    await store.release_acknowledged(2 * len(gone) - 3)
    return store


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    await (await sparse(tmp_path)).close()
    return tmp_path


async def held(where: Path) -> tuple[object, ...]:
    store = new_store(where, keep=True, **NEVER)
    state = await store.open()
    page = await store.acknowledged(store.log_statistics().first - 1, 100, 1 << 30)
    first = (await store.page_in(1, 0, 1, 1))[0]
    found = (
        await pending(store),
        await pending(store, 2),
        first.delivery_count,
        [(row.ack_sequence, row.sequence, row.message) for row in page.rows],
        sorted(state.pending),
        state.subscriptions,
        state.store_id,
    )
    await store.close()
    return found


async def test_sparse_files_are_emptied_whatever_the_options_say_and_nothing_is_lost(
    journal: Path,
) -> None:
    expected = await held(journal)
    assert len(expected[0]) == 12  # type: ignore[arg-type]
    told: list[tuple[str, int, int]] = []
    before, after = await asyncio.to_thread(
        lambda: compact(
            configured(journal), lambda *one: told.append(one), percentage=50, delete_free=True
        )
    )
    assert before.files >= 12
    assert after.files <= 5
    assert after.disk_bytes < before.disk_bytes / 2
    assert after.live_bytes >= 12 * 5000
    assert space_of(journal / "journal") == (after.files, after.disk_bytes)
    assert any(what == "compacting data files" for what, _, _ in told)
    assert await held(journal) == expected


def test_dead_files_stay_to_be_used_again_unless_they_are_to_be_deleted(journal: Path) -> None:
    before, after = compact(configured(journal), silent, percentage=50, delete_free=False)
    assert after.disk_bytes >= before.disk_bytes
    assert len(data_files(journal)) <= 5
    assert list((journal / "journal").glob("journal-*.free"))
    _, after = compact(configured(journal), silent, percentage=50, delete_free=True)
    assert list((journal / "journal").glob("journal-*.free")) == []
    assert after.files == len(data_files(journal))


def test_files_that_are_alive_enough_are_left_alone(journal: Path) -> None:
    names = [path.name for path in data_files(journal)]
    compact(configured(journal), silent, percentage=1, delete_free=False)
    assert set(names[:3]) <= {path.name for path in data_files(journal)}


async def test_metadata_is_built_anew_and_says_the_same(journal: Path) -> None:
    expected = await held(journal)
    told: list[str] = []
    found = await asyncio.to_thread(
        rebuild_index, configured(journal), lambda what, _done, _total: told.append(what)
    )
    assert "rebuilding from the journal" in told
    assert (found.pending_messages, found.destinations, found.subscriptions) == (12, 1, 1)
    assert found.notes == ()
    assert found.replayed > 100
    assert await held(journal) == expected
    assert not (journal / "journal" / "metadata.before").exists()


async def test_metadata_is_built_anew_when_the_old_one_is_garbage_or_gone(journal: Path) -> None:
    expected = await held(journal)
    path = journal / "journal" / "metadata" / "data.mdb"
    path.write_bytes(b"garbage" * 1000)
    await asyncio.to_thread(rebuild_index, configured(journal), silent)
    assert await held(journal) == expected
    for name in path.parent.iterdir():
        name.unlink()
    path.parent.rmdir()
    await asyncio.to_thread(rebuild_index, configured(journal), silent)
    assert await held(journal) == expected


def test_when_the_data_files_are_damaged_the_old_metadata_stays(journal: Path) -> None:
    path = data_files(journal)[0]
    data = bytearray(path.read_bytes())
    data[DATA_OFFSET + 100] ^= 1
    path.write_bytes(data)
    metadata = journal / "journal" / "metadata" / "data.mdb"
    before = metadata.read_bytes()
    with pytest.raises(CorruptRecordError):
        rebuild_index(configured(journal), silent)
    assert metadata.read_bytes() == before
    assert not (journal / "journal" / "metadata.before").exists()


async def test_both_refuse_while_somebody_has_the_journal(tmp_path: Path) -> None:
    store = await sparse(tmp_path)
    for work in (
        lambda: compact(configured(tmp_path), silent, percentage=50, delete_free=True),
        lambda: rebuild_index(configured(tmp_path), silent),
    ):
        with pytest.raises(StoreLockedError):
            await asyncio.to_thread(work)
    assert (tmp_path / "journal" / "metadata").exists()
    assert len(await pending(store)) == 12
    await store.close()


async def test_what_an_interrupted_rebuild_left_aside_is_no_harm(journal: Path) -> None:
    aside = journal / "journal" / _offline.ASIDE
    aside.mkdir()
    (aside / "data.mdb").write_bytes(b"old")
    expected = await held(journal)
    await asyncio.to_thread(rebuild_index, configured(journal), silent)
    assert await held(journal) == expected
    assert not aside.exists()
