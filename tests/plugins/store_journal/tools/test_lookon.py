"""Looking at a journal that somebody else writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from journal_kit import data_files, opened, write
from numbered import add

from tidegate.spi import CorruptRecordError, StoreIOError
from tidegate_store_journal.tools.lookon import ReadOnlyStorage, look


async def some_files(where: Path) -> None:
    store, _ = await opened(where)
    for sequence in range(1, 6):
        await write(store, add(sequence, size=50_000))
    await store.close()


async def test_nothing_can_be_changed_through_it(tmp_path: Path) -> None:
    await some_files(tmp_path)
    storage = ReadOnlyStorage(tmp_path / "journal")
    name = data_files(tmp_path)[0].name
    file = storage.open(name)
    before = data_files(tmp_path)[0].read_bytes()
    forbidden: list[Callable[[], object]] = [
        lambda: file.pwritev([b"x"], 0),
        lambda: file.preallocate(1 << 20),
        lambda: storage.open("new", create=True),
        lambda: storage.open(name, create=True),
        lambda: storage.rename(name, "other"),
        lambda: storage.unlink(name),
    ]
    for change in forbidden:
        with pytest.raises(PermissionError):
            change()
    file.datasync()
    assert file.pread(100, 0) == before[:100]
    file.close()
    assert data_files(tmp_path)[0].read_bytes() == before


async def test_files_that_are_put_away_meanwhile_make_it_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await some_files(tmp_path)
    listings = 0
    real = ReadOnlyStorage.list

    def changing(self: ReadOnlyStorage) -> Sequence[str]:
        nonlocal listings
        listings += 1
        names = real(self)
        # The second listing, after everything was read, misses a file that the first one had.
        return [name for name in names if listings != 2 or name != "journal-0000000001.data"]

    monkeypatch.setattr(ReadOnlyStorage, "list", changing)
    assert look(tmp_path / "journal").index.pending_messages == 5
    assert listings == 4


async def test_a_journal_that_never_stands_still_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await some_files(tmp_path)
    real = ReadOnlyStorage.list
    listings = 0

    def changing(self: ReadOnlyStorage) -> Sequence[str]:
        nonlocal listings
        listings += 1
        return real(self) if listings % 2 else []

    monkeypatch.setattr(ReadOnlyStorage, "list", changing)
    with pytest.raises(StoreIOError, match="changes faster"):
        look(tmp_path / "journal")


async def test_damage_is_told_from_change(tmp_path: Path) -> None:
    await some_files(tmp_path)
    path = data_files(tmp_path)[0]
    whole = path.read_bytes()
    path.write_bytes(b"TGJOURNLx" + whole[9:2048] + b"TGJOURNLx" + whole[2057:])
    with pytest.raises(CorruptRecordError, match="header"):
        look(tmp_path / "journal")


def test_what_is_no_journal_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(StoreIOError, match="no journal"):
        look(tmp_path / "journal")
