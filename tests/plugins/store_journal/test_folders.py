"""Directories of destinations: their names, on the real disk and on flat storages."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.testing.faulty_storage import FaultyDisk
from tidegate_store_journal.log.storage import DirectoryStorage, MemoryStorage
from tidegate_store_journal.split.folders import (
    DirectoryFolders,
    FlatFolders,
    Folders,
    FolderStorage,
    covers,
    folder_name,
    folders_of,
    keep_copy,
    lost_error,
)


@pytest.mark.parametrize(
    ("destination", "name"),
    [
        ("queue://orders.eu", "queue#orders.eu"),
        ("topic://a/b", "topic#a%2Fb"),
        ("queue://..", "queue#.."),
        ("queue://a|b\n", "queue#a%7Cb%0A"),
        ("queue://ü", "queue#%C3%BC"),
    ],
)
def test_a_folder_is_called_like_its_destination(destination: str, name: str) -> None:
    assert folder_name(destination) == name


def test_a_long_name_is_cut_and_stays_different() -> None:
    first, second = (folder_name(f"queue://{'x' * 60_000}{end}") for end in "ab")
    assert first != second
    assert len(first.encode()) == len(second.encode()) == 200


@given(st.text(max_size=80), st.text(max_size=80))
def test_two_destinations_never_share_a_folder(first: str, second: str) -> None:
    one, other = (folder_name(f"queue://{name}") for name in (first, second))
    assert (one == other) is (first == second)
    assert "/" not in one
    assert "|" not in one
    assert one not in (".", "..")


@pytest.fixture(params=["directory", "flat", "faulty"])
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> Folders:
    if request.param == "directory":
        found = folders_of(DirectoryStorage(tmp_path))
        assert isinstance(found, DirectoryFolders)
    else:
        storage = MemoryStorage() if request.param == "flat" else FaultyDisk(1).start()
        assert isinstance(storage, FolderStorage) is (request.param == "faulty")
        found = folders_of(storage)
        assert isinstance(found, FlatFolders)
    return found


def test_folders_come_and_go(folders: Folders) -> None:
    assert list(folders.names()) == []
    for name in ("queue#b", "queue#a"):
        files = folders.make(name)
        file = files.open("vrfile.tmp", create=True)
        file.pwritev([b"content of " + name.encode()], 0)
        file.close()
        files.rename("vrfile.tmp", "vrfile")
        files.sync_directory()
    assert list(folders.names()) == ["queue#a", "queue#b"]
    files = folders.get("queue#a")
    assert list(files.list()) == ["vrfile"]
    assert "queue#a" in files.describe("vrfile")
    file = files.open("vrfile")
    assert file.pread(100, 0) == b"content of queue#a"
    file.close()
    folders.get("queue#b").unlink("vrfile")
    assert list(folders.get("queue#b").list()) == []
    folders.remove("queue#a")
    assert "queue#a" not in folders.names()


@pytest.mark.parametrize(
    ("destination", "is_covered"),
    [
        ("queue://orders.eu", True),
        ("queue://orders", True),
        ("queue://other", False),
        ("topic://orders.eu", False),
        ("topic://news", True),
        ("queue://$temporary.1", False),
    ],
)
def test_filters_cover_destinations(destination: str, is_covered: bool) -> None:
    assert covers(("queue://orders.>", "topic://*"), destination) is is_covered


def test_wildcards_do_not_cover_temporary_destinations() -> None:
    assert not covers(("queue://>",), "queue://$temporary.1.2")


def test_what_was_kept_of_damaged_files_is_never_written_over_nor_removed(folders: Folders) -> None:
    files = folders.make("queue#q")
    file = files.open("vrfile", create=True)
    file.pwritev([bytes(range(200))], 0)
    file.datasync()
    file.close()
    names = [keep_copy(files, "vrfile", 10, 20) for _ in range(3)]
    names.append(keep_copy(files, "vrfile", 190, 100))
    kept = ["vrfile.10.damaged", "vrfile.10.damaged.2", "vrfile.10.damaged.3", "vrfile.190.damaged"]
    assert names == [files.describe(name) for name in kept]
    folders.remove("queue#q")
    assert sorted(files.list()) == kept
    for name in kept:
        copy = files.open(name)
        begin, length = (10, 20) if ".10." in name else (190, 10)
        assert copy.pread(1000, 0) == bytes(range(begin, begin + length))
        copy.close()
    assert folders.names() == ["queue#q"]


def test_the_error_for_lost_messages_names_some_of_them(folders: Folders) -> None:
    text = str(lost_error(folders, "queue://q", range(1, 31)))
    assert "30 messages of queue://q" in text
    assert "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …" in text
