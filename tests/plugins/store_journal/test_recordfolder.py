"""One destination's directory: where records go, and what becomes of files of single messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate_store_journal.log.format import FormatError
from tidegate_store_journal.log.storage import DirectoryStorage, MemoryFile
from tidegate_store_journal.split import records as _records
from tidegate_store_journal.split.recordfolder import (
    Handle,
    PoolPolicy,
    RecordFolder,
    clean_up,
    create,
    dispose,
    read_header,
    scan,
    single_name,
    sync_folders,
)
from tidegate_store_journal.split.records import BLOCK_BYTES, unpack_place

STORE = "0123456789abcdef0123456789abcdef"


def new_folder(where: Path, policy: PoolPolicy | None = None) -> RecordFolder:
    where.mkdir(exist_ok=True)
    files = DirectoryStorage(where)
    header = create(files, STORE, "queue://q")
    return RecordFolder(1, "queue#q", files, header, policy or PoolPolicy(100, 0, False))


def put(folder: RecordFolder, *records: tuple[int, int], limit: int = 10_000) -> dict[int, int]:
    """Write records (sequence, bytes) with a sync; returns their places."""
    job = folder.job(sync=True)
    encoded = [
        (
            sequence,
            _records.encode_record(folder.header.seed, sequence, sequence, b"p" * size, size),
            size,
        )
        for sequence, size in records
    ]
    placed = dict(folder.place(job, encoded, limit))
    job.run()
    job.handle.give_back()
    return placed


def found(folder: RecordFolder) -> dict[int, int]:
    """Sequence → block of every record in the file."""
    file = folder.files.open("vrfile")
    try:
        return {header.sequence: block for block, header in scan(file, folder.header)}
    finally:
        file.close()


def test_records_of_a_batch_lie_side_by_side(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    places = put(folder, (1, 50), (2, 500), (3, 50))
    assert [unpack_place(places[item]).number for item in (1, 2, 3)] == [0, 1, 6]
    assert found(folder) == {1: 0, 2: 1, 3: 6}
    assert (folder.messages, folder.live_blocks) == (3, 7)
    assert (tmp_path / "vrfile").stat().st_size == folder.record_file_bytes == folder.disk_bytes


def test_freed_blocks_are_used_again_and_the_file_does_not_grow(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    for sequence in range(1, 2000):
        places = put(folder, (sequence, 1000))
        folder.give_back(unpack_place(places[sequence]))
    assert folder.record_file_bytes <= 4096 + (64 << 10)
    assert (folder.messages, folder.live_blocks) == (0, 0)


def test_a_batch_that_fits_nowhere_in_one_piece_goes_where_there_is_room(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    blocks = (64 << 10) // BLOCK_BYTES
    places = put(folder, *((sequence, 50) for sequence in range(1, blocks + 1)))
    assert folder.space.free == 0
    for sequence in range(1, blocks + 1, 2):
        folder.give_back(unpack_place(places[sequence]))
    before = folder.record_file_bytes
    again = put(folder, *((sequence, 50) for sequence in range(1001, 1101)))
    assert folder.record_file_bytes == before
    assert len({unpack_place(place).number for place in again.values()}) == 100
    assert {item: unpack_place(place).number for item, place in again.items()}.items() <= (
        found(folder).items()
    )


def test_a_large_message_has_a_file_of_its_own(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    places = put(folder, (1, 50), (2, 101), limit=100)
    assert unpack_place(places[2]).single
    record = (tmp_path / single_name(1)).read_bytes()
    assert _records.payload_of(folder.header.seed, record, 2) == b"p" * 101
    assert found(folder) == {1: 0}


def test_the_pool_has_a_limit_and_files_are_used_again(tmp_path: Path) -> None:
    folder = new_folder(tmp_path, PoolPolicy(limit=2, clean_ratio=0, cleanup=False))
    places = put(folder, *((sequence, 500) for sequence in range(1, 5)), limit=100)
    acts = [folder.give_back(unpack_place(place)) for place in places.values()]
    assert acts == ["", "", "delete", "delete"]
    dispose([(folder, 3, "delete"), (folder, 4, "delete")])
    assert sorted(path.name for path in tmp_path.glob("*.msg")) == ["1.msg", "2.msg"]
    put(folder, (9, 400), limit=100)
    assert (tmp_path / "1.msg").stat().st_size == 540  # the old contents behind the new ones
    assert _records.payload_of(folder.header.seed, (tmp_path / "1.msg").read_bytes(), 9)
    folder.delete_pool()
    assert sorted(path.name for path in tmp_path.glob("*.msg")) == ["1.msg"]


def test_the_clean_ratio_says_how_many_are_emptied(tmp_path: Path) -> None:
    folder = new_folder(tmp_path, PoolPolicy(limit=100, clean_ratio=50, cleanup=False))
    places = put(folder, *((sequence, 500) for sequence in range(1, 11)), limit=100)
    emptied = 0
    for place in map(unpack_place, places.values()):
        if folder.give_back(place) == "empty":
            dispose([(folder, place.number, "empty")])
            folder.emptied(place.number)
            emptied += 1
    assert emptied == 5
    assert sum(path.stat().st_size == 0 for path in tmp_path.glob("*.msg")) == 5
    clean_up([folder])
    assert sum(path.stat().st_size == 0 for path in tmp_path.glob("*.msg")) == 10


def test_the_limit_and_the_ratio_count_files_that_are_being_emptied(tmp_path: Path) -> None:
    folder = new_folder(tmp_path, PoolPolicy(limit=4, clean_ratio=50, cleanup=False))
    places = put(folder, *((sequence, 500) for sequence in range(1, 11)), limit=100)
    acts = [(folder.give_back(place), place.number) for place in map(unpack_place, places.values())]
    assert [act for act, _ in acts] == ["", "empty", "", "empty", *["delete"] * 6]
    dispose([(folder, number, act) for act, number in acts if act])
    for act, number in acts:
        if act == "empty":
            folder.emptied(number)
    assert sorted(path.stat().st_size for path in tmp_path.glob("*.msg")) == [0, 0, 540, 540]
    put(folder, *((sequence, 500) for sequence in range(11, 15)), limit=100)
    assert len(list(tmp_path.glob("*.msg"))) == 4


def test_what_was_found_at_the_start_goes_on(tmp_path: Path) -> None:
    first = new_folder(tmp_path)
    places = put(first, (1, 50), (2, 500), (3, 300), limit=400)
    folder = RecordFolder(1, "queue#q", first.files, first.header, PoolPolicy(9, 0, False))
    single = unpack_place(places[2])
    assert single.single
    (tmp_path / "7.msg").touch()
    folder.adopt(first.record_file_bytes, [(0, 1)], {1: 540, 7: 0}, {1}, 2)
    assert (folder.messages, folder.live_blocks) == (2, 1)
    again = put(folder, (4, 500), (5, 500), (6, 50), limit=400)
    assert [unpack_place(again[item]).number for item in (4, 5, 6)] == [7, 8, 1]


def test_a_header_that_is_longer_than_a_page_is_read(tmp_path: Path) -> None:
    files = DirectoryStorage(tmp_path)
    made = create(files, STORE, "queue://" + "x" * 9000)
    file = files.open("vrfile")
    assert read_header(file) == made
    file.pwritev([b"?"], 9000)
    with pytest.raises(FormatError):
        read_header(file)
    file.close()


def test_unsynced_files_are_synced_by_name(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    put(folder, (1, 500), limit=100)
    handle = folder.borrow()
    sync_folders([(folder, handle, ["1.msg"])])
    with pytest.raises(FileNotFoundError):
        sync_folders([(folder, handle, ["2.msg"])])
    handle.give_back()


def test_a_replaced_file_is_closed_by_its_last_user() -> None:
    class Watched(MemoryFile):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    file = Watched()
    handle = Handle(file)
    handle.users = 2
    handle.retire()
    handle.give_back()
    assert file.closed == 0
    handle.give_back()
    assert file.closed == 1
