"""What lives in record files is what the journal refers to, and the newest of it."""

from __future__ import annotations

import shutil
from array import array
from pathlib import Path

import pytest
from journal_kit import ack, opened, pending, run, write
from split_kit import add, folder_of, split_of, split_store, vrfile

from tidegate.spi import CorruptRecordError
from tidegate_store_journal.log.format import encode
from tidegate_store_journal.log.storage import DirectoryStorage
from tidegate_store_journal.split import records as _records
from tidegate_store_journal.split.folders import folders_of
from tidegate_store_journal.split.recordfolder import PoolPolicy, create
from tidegate_store_journal.split.records import BLOCK_BYTES
from tidegate_store_journal.split.splitopen import living, open_folders

STORE = "0123456789abcdef0123456789abcdef"
POOL = PoolPolicy(100, 0, False)


def quiet(_what: str, _done: int, _total: int) -> None: ...


def lay(where: Path, queue: str, *records: tuple[int, int, int]) -> None:
    """A directory with records (block, sequence, write number)."""
    files = folders_of(DirectoryStorage(where)).make(f"queue#{queue}")
    header = create(files, STORE, f"queue://{queue}")
    file = files.open("vrfile")
    for block, sequence, number in records:
        payload = encode(add(sequence, queue=queue).message)
        record = _records.encode_record(header.seed, sequence, number, payload, 100)
        file.pwritev([record.ljust(2 * BLOCK_BYTES, b"\0")], 4096 + block * BLOCK_BYTES)
    file.close()


def test_only_what_is_referred_to_lives_and_the_rest_is_room(tmp_path: Path) -> None:
    lay(tmp_path, "a", (0, 1, 1), (2, 2, 2), (4, 3, 3))
    lay(tmp_path, "b", (0, 4, 4))
    found = open_folders(
        folders_of(DirectoryStorage(tmp_path)), STORE, array("Q", [1, 3, 9]), POOL, quiet
    )
    assert list(found.missing) == [9]
    assert found.last_write == 4
    first, second = found.folders
    assert (first.messages, second.messages) == (2, 0)
    assert (first.space.free, second.space.free) == (2, 2)
    assert _records.unpack_place(found.places.get(3) or 0).number == 4
    assert found.places.get(2) is None


def test_of_two_records_of_one_message_the_later_write_counts(tmp_path: Path) -> None:
    """The other one was written for a batch that never came."""
    lay(tmp_path, "a", (0, 7, 5), (2, 7, 3))
    lay(tmp_path, "b", (0, 7, 4), (4, 8, 1))
    found = open_folders(
        folders_of(DirectoryStorage(tmp_path)), STORE, array("Q", [7, 8]), POOL, quiet
    )
    place = _records.unpack_place(found.places.get(7) or 0)
    assert (place.folder, place.number) == (1, 0)
    assert [folder.messages for folder in found.folders] == [1, 1]
    assert found.folders[1].space.free == 4


def test_a_directory_of_another_store_is_refused(tmp_path: Path) -> None:
    lay(tmp_path, "a", (0, 1, 1))
    with pytest.raises(CorruptRecordError, match="another store"):
        open_folders(folders_of(DirectoryStorage(tmp_path)), "f" * 32, array("Q", [1]), POOL, quiet)


def test_a_damaged_header_is_refused(tmp_path: Path) -> None:
    lay(tmp_path, "a", (0, 1, 1))
    path = tmp_path / "message" / "queue#a" / "vrfile"
    path.write_bytes(b"?" + path.read_bytes()[1:])
    with pytest.raises(CorruptRecordError, match="header of a record file") as caught:
        open_folders(folders_of(DirectoryStorage(tmp_path)), STORE, array("Q"), POOL, quiet)
    assert str(path) in str(caught.value)


def test_an_unfinished_directory_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "journal" / "message" / "queue#q").mkdir(parents=True)
    (vrfile(tmp_path).with_name("vrfile.tmp")).write_bytes(b"half")

    async def scenario() -> None:
        store = await split_store(tmp_path)
        assert not vrfile(tmp_path).with_name("vrfile.tmp").exists()
        await write(store, add(1))
        assert await pending(store) == [1]
        await store.close()

    run(scenario())


def test_living_is_what_lists_and_unreleased_rows_refer_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, _ = await opened(tmp_path, keep=True)
        await write(store, add(1, 1, 2), add(2), add(3), add(4))
        await write(store, ack(1), ack(2), ack(4))
        await store.release_acknowledged(2)
        assert list(living(store._index)) == [1, 3, 4]  # pyright: ignore[reportPrivateUsage]
        await store.close()

    run(scenario())


def test_room_is_found_again_after_a_restart_without_a_clean_stop(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path)
        await write(store, *(add(sequence, size=1000) for sequence in range(1, 41)))
        await write(store, ack(*range(1, 40)))
        killed = tmp_path / "killed"
        shutil.copytree(tmp_path / "journal", killed / "journal")
        before = folder_of(store).record_file_bytes
        await store.close()
        store = await split_store(killed)
        await write(store, *(add(sequence, size=1000) for sequence in range(41, 80)))
        assert folder_of(store).record_file_bytes == before
        assert await pending(store) == list(range(40, 80))
        assert split_of(store).messages == 40
        await store.close()

    run(scenario())
