"""Directories of destinations: their names, on the real disk and on flat storages."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.testing.faulty_storage import FaultyDisk
from tidegate_store_journal.bodies.folders import (
    Folders,
    covers,
    folder_name,
)
from tidegate_store_journal.log.storage import DirectoryStorage


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


@pytest.fixture(params=["directory", "faulty"])
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> Folders:
    if request.param == "directory":
        return Folders(DirectoryStorage(tmp_path))
    return Folders(FaultyDisk(1).start())


def test_folders_come_and_go(folders: Folders) -> None:
    assert list(folders.names()) == []
    for name in ("queue#b", "queue#a"):
        files = folders.make(name)
        file = files.open("a.data.tmp", create=True)
        file.pwritev([b"content of " + name.encode()], 0)
        file.close()
        files.rename("a.data.tmp", "a.data")
        files.sync_directory()
    assert list(folders.names()) == ["queue#a", "queue#b"]
    files = folders.get("queue#a")
    assert list(files.list()) == ["a.data"]
    assert "queue#a" in files.describe("a.data")
    file = files.open("a.data")
    assert file.pread(100, 0) == b"content of queue#a"
    file.close()
    folders.get("queue#b").unlink("a.data")
    assert list(folders.get("queue#b").list()) == []
    folders.remove("queue#b")
    assert folders.names() == ["queue#a"]
    files.unlink("a.data")
    folders.remove("queue#a")
    assert folders.names() == []


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


def test_a_folder_in_which_something_is_left_stays(folders: Folders) -> None:
    folders.make("queue#q").open("notes.txt", create=True).close()
    folders.remove("queue#q")
    assert folders.names() == ["queue#q"]


def test_no_destination_is_named_like_the_hashed_folder_of_another() -> None:
    """`#` is escaped in names, so only the hash of a long name stands behind one."""
    long = f"queue://{'x' * 300}"
    _, _, name = folder_name(long).partition("#")
    assert folder_name(f"queue://{name}") != folder_name(long)
