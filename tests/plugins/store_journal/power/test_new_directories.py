"""A new directory is only there after a power cut when the one that it is in was synced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from journal_kit import new_store, opened, write
from name_watch import new_directories
from numbered import ack, add

from tidegate.spi import AddDestination


def test_a_new_directory_is_seen_until_the_one_above_it_is_synced(tmp_path: Path) -> None:
    """Otherwise the tests below would prove nothing."""
    with new_directories() as watch:
        (tmp_path / "one" / "two").mkdir(parents=True)
        assert watch.unsynced() == {tmp_path / "one", tmp_path / "one" / "two"}
        for directory, left in [(tmp_path, {tmp_path / "one" / "two"}), (tmp_path / "one", set())]:
            descriptor = os.open(directory, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
            assert watch.unsynced() == left
        (tmp_path / "gone").mkdir()
        (tmp_path / "gone").rmdir()
        assert watch.unsynced() == set()


@pytest.mark.parametrize(
    "changes",
    [{}, {"preset": "flatfile", "per_destination": ("queue://>",)}, {"large_message_min_size": 10}],
    ids=["journal", "a directory for each destination", "large messages"],
)
async def test_a_new_store_is_there_as_soon_as_it_confirmed(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Fault 9: what was confirmed is gone with the store's own directory."""
    with new_directories() as watch:
        store, _ = await opened(tmp_path / "data" / "store", **changes)
        await write(store, AddDestination("queue://q", 1), add(1))
        # The metadata store is made again when it is missing.
        assert {path for path in watch.unsynced() if path.name != "metadata"} == set()
        await store.close()


@pytest.mark.parametrize(
    "above",
    ["", "far"],
    ids=["in the journal", "elsewhere"],
)
async def test_the_archive_is_there_as_soon_as_a_file_was_moved_to_it(
    tmp_path: Path, above: str
) -> None:
    """Fault 9, of the archive: the moved data files are gone with its directory."""
    archive = str(tmp_path / above / "archive") if above else "archive"

    store = new_store(tmp_path, archive_data_logs=True, directory_archive=archive)
    await store.open()
    with new_directories() as watch:
        for number in range(1, 20):
            await write(store, add(number, size=30_000))
            await write(store, ack(number))
        await store.close()
        assert list(tmp_path.rglob("archive/*")), "nothing was archived"
        assert watch.unsynced() == set()
