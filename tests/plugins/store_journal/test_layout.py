"""Opening the layout: what is lost is either damage, or what a power cut may cost; never silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from journal_kit import ANY_SIZE, CrashStorage, ack, new_store, opened, pending, run, write
from split_kit import ALL, add, split_of, split_store, vrfile

from tidegate.spi import CorruptRecordError
from tidegate_store_journal.options import NEVER, PERIODIC


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("what", ["vrfile", "directory", "all"])
def test_records_that_are_missing_keep_the_store_from_opening(
    tmp_path: Path, what: str, goes_on: bool
) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path)
        await write(store, add(1), add(2), add(3, queue="other"))
        await store.close()
        path = vrfile(tmp_path)
        if what == "vrfile":
            path.unlink()
        else:
            shutil.rmtree(path.parent if what == "directory" else path.parent.parent)
        store = new_store(tmp_path, per_destination=ALL if goes_on else ())
        if what == "all" and not goes_on:
            # Nothing says at the start that there were directories; but nobody gets a reference.
            await store.open()
            with pytest.raises(CorruptRecordError, match=r"queue://q .*records are missing"):
                await store.page_in(1, 0, 10, ANY_SIZE)
            await store.close()
            return
        with pytest.raises(CorruptRecordError, match=r"2 messages of queue://q ") as caught:
            await store.open()
        assert str(path.parent) in str(caught.value)

    run(scenario())


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("strategy", [NEVER, PERIODIC])
def test_without_syncs_a_power_cut_costs_messages_and_the_report_says_so(
    tmp_path: Path, strategy: str, keep: bool
) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store = await split_store(
            tmp_path,
            storage,
            keep=keep,
            journal_disk_sync_strategy=strategy,
            journal_disk_sync_interval=3600.0,
        )
        await write(store, add(1))
        await store._sync_all()  # pyright: ignore[reportPrivateUsage]
        await write(store, add(2), add(3), add(4, queue="other"))
        if keep:
            await write(store, ack(1), ack(3))
        await store._appender.sync()  # pyright: ignore[reportPrivateUsage]
        after = storage.crash()
        await store.close()
        store, state = await opened(tmp_path, after, keep=keep, per_destination=ALL)
        assert await pending(store) == ([] if keep else [1])
        assert any("3 messages were lost in a power cut" in note for note in state.report.notes)
        page = await store.acknowledged(2 if keep else 0, 10, ANY_SIZE)
        assert (list(page.rows), page.last) == ([], 2 if keep else 0)
        await write(store, add(5))
        assert (await pending(store))[-1] == 5
        await store.close()
        store, state = await opened(tmp_path, after, keep=keep, per_destination=ALL)
        assert state.report.notes == ()
        await store.close()

    run(scenario())


def test_periodic_syncs_reach_the_record_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store = await split_store(
            tmp_path,
            storage,
            journal_disk_sync_strategy=PERIODIC,
            journal_disk_sync_interval=0.001,
            max_record_size=1024,
        )
        await write(store, add(1), add(2, size=5000))
        split = split_of(store)
        folder = split.folders()[0]
        assert folder.unsynced
        await split.until_idle()
        timer = split._sync_timer  # pyright: ignore[reportPrivateUsage]
        if timer is not None:
            timer.cancel()
            split._sync_soon()  # pyright: ignore[reportPrivateUsage]
            await split.until_idle()
        assert not folder.unsynced
        await store._appender.sync()  # pyright: ignore[reportPrivateUsage]
        after = storage.crash()
        await store.close()
        store, state = await opened(tmp_path, after, per_destination=ALL)
        assert state.report.notes == ()
        assert await pending(store) == [1, 2]
        await store.close()

    run(scenario())


def test_messages_from_before_the_layout_stay_where_they_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, _ = await opened(tmp_path)
        # Bodies that look like references in length: 9 and 10 bytes.
        await write(store, add(1), add(2, size=9), add(3, size=10))
        await store.close()
        store = await split_store(tmp_path)
        await write(store, add(4), add(5, size=9), add(6, size=10))
        assert await pending(store) == [1, 2, 3, 4, 5, 6]
        assert split_of(store).messages == 3
        await store.close()
        store, _ = await opened(tmp_path)
        await write(store, add(7))
        assert await pending(store) == [1, 2, 3, 4, 5, 6, 7]
        await write(store, ack(4, 5, 6))
        await store.close()

    run(scenario())


def test_without_persistence_there_are_no_directories(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path, persistent=False)
        await write(store, add(1))
        assert await pending(store) == [1]
        assert not split_of(store).is_active
        await store.close()

    run(scenario())
    assert list(tmp_path.iterdir()) == []
