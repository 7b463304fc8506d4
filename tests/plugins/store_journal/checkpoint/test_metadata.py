"""The metadata store: what is saved comes back, and damage is noticed before it does harm."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest
from metadata_kit import STORE_ID, SUBSCRIPTION, everything, state, write
from numbered import ack, add

from tidegate.spi import (
    PutSubscription,
    RecordDelivery,
    RemoveSubscription,
)
from tidegate_store_journal.checkpoint import metadata as _metadata
from tidegate_store_journal.checkpoint.metadata import (
    LmdbMetadata,
    Loaded,
    Metadata,
    MetadataCounters,
    MetadataError,
    MetadataState,
    read_counters,
)
from tidegate_store_journal.index import pieces as _pieces
from tidegate_store_journal.index.changes import ACKNOWLEDGED, DELIVERIES, FILES, PENDING
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.storage import FULL_ERRNOS
from tidegate_store_journal.space.compact import Found, encode_copies


def no_progress(_what: str, _done: int, _total: int) -> None: ...


def load(metadata: LmdbMetadata) -> Loaded:
    loaded = metadata.load(no_progress)
    assert loaded is not None
    return loaded


def pending_in(loaded: Loaded) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for (list_id, _), piece in loaded.rows[PENDING].items():
        found.setdefault(list_id, []).extend(piece.arrays[0])
    return found


def places_in(loaded: Loaded, list_id: int) -> list[int]:
    pieces = [piece for key, piece in loaded.rows[PENDING].items() if key[0] == list_id]
    return [place for piece in pieces for place in _pieces.places_in(piece.arrays[1])]


def test_there_is_nothing_before_the_first_checkpoint(tmp_path: Path) -> None:
    metadata = LmdbMetadata(tmp_path / "metadata")
    assert metadata.load(no_progress) is None
    assert metadata.disk_bytes == 0
    metadata.close()


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    index = Index(keep_acknowledged=True)
    write(
        index,
        *[add(sequence, 1 + sequence % 2) for sequence in range(1, 1500)],
        RecordDelivery(1, (4, 6), (1, 7)),
    )
    write(index, ack(2, 10), file_id=2)
    places = dict(index.list_of(1).entries())
    metadata = LmdbMetadata(tmp_path / "metadata")
    metadata.save(index.take_changes(), state())
    assert metadata.counters.pending_put == 1497
    assert metadata.counters.acknowledged_put == 1
    metadata.close()

    metadata = LmdbMetadata(tmp_path / "metadata")
    loaded = load(metadata)
    found = msgspec.structs.replace(loaded.state, counters=MetadataCounters(), digest=0)
    assert found == state()
    assert pending_in(loaded) == {
        1: [item for item in range(2, 1500, 2) if item not in (2, 10)],
        2: list(range(1, 1500, 2)),
    }
    assert places_in(loaded, 1) == list(places.values())
    assert loaded.rows[DELIVERIES] == {(1, 4): 1, (1, 6): 7}
    assert [list(block.sequences) for block in loaded.rows[ACKNOWLEDGED].values()] == [[2, 10]]
    assert loaded.rows[FILES] == {(2,): [1]}
    metadata.close()


def test_later_changes_take_away_what_earlier_ones_put(tmp_path: Path) -> None:
    index = Index(keep_acknowledged=True)
    metadata = LmdbMetadata(tmp_path / "metadata")
    write(
        index,
        PutSubscription(SUBSCRIPTION),
        *[add(sequence, 1, 2, 3) for sequence in range(1, 9)],
        RecordDelivery(1, (1, 2), (1, 1)),
        RecordDelivery(2, (1,), (5,)),
    )
    first = index.take_changes()
    write(
        index,
        ack(1, 3, pending_list=3),
        ack(1),
        RemoveSubscription(2),
        add(9, 1),
        add(10, 4),
    )
    second = index.take_changes()
    metadata.save(first, state())
    metadata.save(second, state(2))
    index.release(3)
    metadata.save(index.take_changes(), state(3))
    loaded = load(metadata)
    assert pending_in(loaded) == {1: [*range(2, 9), 9], 3: [2, 4, 5, 6, 7, 8], 4: [10]}
    assert loaded.rows[DELIVERIES] == {(1, 2): 1}
    assert loaded.rows[ACKNOWLEDGED] == {}
    assert loaded.state.batch == 3
    assert metadata.counters.pending_deleted == 3 + 8  # those of the list that was dropped, too
    metadata.close()


def test_changes_that_could_not_be_saved_are_saved_later_in_their_order(tmp_path: Path) -> None:
    index = Index(keep_acknowledged=False)
    write(index, add(1), add(2))
    first = index.take_changes()
    write(index, ack(1), add(3))
    second = index.take_changes()
    metadata = LmdbMetadata(tmp_path / "metadata")
    second.follow(first)
    metadata.save(second, state())
    assert pending_in(load(metadata)) == {1: [2, 3]}
    metadata.close()


def test_the_map_grows_when_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_metadata, "_MAP_BYTES", 64 << 10)
    index = Index(keep_acknowledged=False)
    write(index, *[add(sequence, size=10) for sequence in range(1, 5000)])
    metadata = LmdbMetadata(tmp_path / "metadata")
    metadata.save(index.take_changes(), state())
    assert pending_in(load(metadata)) == {1: list(range(1, 5000))}
    assert metadata.counters.pending_put == 4999
    metadata.close()


def test_a_map_that_may_not_grow_further_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_metadata, "_MAP_BYTES", 64 << 10)
    monkeypatch.setattr(_metadata, "_MAP_BYTES_MAX", 64 << 10)
    index = Index(keep_acknowledged=False)
    write(index, *[add(sequence, size=10) for sequence in range(1, 5000)])
    metadata = LmdbMetadata(tmp_path / "metadata")
    with pytest.raises(OSError, match="full"):
        metadata.save(index.take_changes(), state())
    assert metadata.load(no_progress) is None
    metadata.close()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    index = Index(keep_acknowledged=False)
    write(index, *[add(sequence) for sequence in range(1, 2000)])
    metadata = LmdbMetadata(tmp_path / "metadata")
    metadata.save(index.take_changes(), state())
    metadata.close()
    return tmp_path / "metadata"


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9])
def test_a_file_that_was_cut_off_is_noticed(saved: Path, keep: float) -> None:
    path = saved / "data.mdb"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    metadata = LmdbMetadata(saved)
    with pytest.raises(MetadataError):
        metadata.load(no_progress)
    metadata.reset()
    assert metadata.load(no_progress) is None
    metadata.close()


def test_a_large_file_that_was_cut_off_is_noticed(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_metadata, "_VERIFY_BYTES_MAX", 0)
    metadata = LmdbMetadata(saved)
    load(metadata)
    metadata.close()
    path = saved / "data.mdb"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(MetadataError):
        LmdbMetadata(saved).load(no_progress)


def test_garbage_is_noticed(saved: Path) -> None:
    path = saved / "data.mdb"
    data = bytearray(path.read_bytes())
    for page in range(0, len(data), 4096):
        data[page + 16 : page + 200] = b"\xff" * 184
    path.write_bytes(bytes(data))
    with pytest.raises(MetadataError):
        LmdbMetadata(saved).load(no_progress)


def test_entries_that_are_not_found_any_more_are_noticed(saved: Path) -> None:
    # As a wrong bit in a page of the tree would: everything that is left is well formed.
    with lmdb.open(str(saved), max_dbs=20) as environment:
        database = environment.open_db(b"pending")
        with environment.begin(write=True) as transaction:
            assert transaction.stat(database)["entries"]
            transaction.drop(database, delete=False)
    metadata = LmdbMetadata(saved)
    with pytest.raises(MetadataError, match="not all of it is there"):
        metadata.load(no_progress)
    metadata.close()


TABLES = (*("meta", "pending", "deliveries", "large", "acknowledged", "files"),)


def changed_value(saved: Path, table: bytes, change: Callable[[bytes], bytes]) -> None:
    """Change the first value of *table* as a wrong bit in its page would."""
    with lmdb.open(str(saved), max_dbs=20) as environment:
        database = environment.open_db(table)
        with environment.begin(write=True) as transaction:
            cursor = transaction.cursor(db=database)
            assert cursor.first()
            key, value = cursor.item()
            assert cursor.put(key, change(bytes(value)))


@pytest.mark.parametrize("table", TABLES)
def test_a_wrong_bit_in_a_value_of_any_table_is_noticed(tmp_path: Path, table: str) -> None:
    metadata = LmdbMetadata(tmp_path)
    metadata.save(everything().take_changes(), state())
    load(metadata)
    metadata.close()
    changed_value(tmp_path, table.encode(), lambda value: value[:-1] + bytes([value[-1] ^ 1]))
    with pytest.raises(MetadataError, match="damaged"):
        LmdbMetadata(tmp_path).load(no_progress)


@pytest.mark.parametrize("table", ["pending", "acknowledged", "meta"])
def test_a_value_of_an_earlier_checkpoint_is_noticed(tmp_path: Path, table: str) -> None:
    """It was right once: so looks a page that the disk did not write."""
    index = everything()
    metadata = LmdbMetadata(tmp_path)
    metadata.save(index.take_changes(), state())
    metadata.close()
    with lmdb.open(str(tmp_path), max_dbs=20) as environment:
        database = environment.open_db(table.encode())
        with environment.begin() as transaction:
            before = {bytes(key): bytes(value) for key, value in transaction.cursor(db=database)}
    metadata = LmdbMetadata(tmp_path)
    load(metadata)
    write(index, add(100, 2), ack(1, pending_list=2))
    index.release(2)  # the block goes
    metadata.save(index.take_changes(), state(2))
    load(metadata)
    metadata.close()
    with lmdb.open(str(tmp_path), max_dbs=20) as environment:
        database = environment.open_db(table.encode())
        with environment.begin(write=True) as transaction:
            changed = [
                key
                for key, value in before.items()
                if transaction.get(key, db=database) not in (None, value)
            ]
            for key in changed or before:
                transaction.put(key, before[key], db=database)
    with pytest.raises(MetadataError, match="not of one checkpoint"):
        LmdbMetadata(tmp_path).load(no_progress)


def test_another_version_is_not_read(tmp_path: Path) -> None:
    metadata = LmdbMetadata(tmp_path / "metadata")
    metadata.save(
        Index(keep_acknowledged=False).take_changes(),
        MetadataState(version=99, store_id=STORE_ID),
    )
    with pytest.raises(MetadataError, match="version 99"):
        metadata.load(no_progress)
    metadata.close()


def test_without_a_directory_nothing_is_kept_but_the_count() -> None:
    metadata = Metadata()
    metadata.save(Index(keep_acknowledged=False).take_changes(), state())
    assert metadata.load(no_progress) is None
    assert metadata.counters.checkpoints == 1
    metadata.reset()
    metadata.close()
    assert metadata.disk_bytes == 0


def test_counters_go_on_where_an_earlier_run_ended_and_can_be_read_beside_it(
    tmp_path: Path,
) -> None:
    index = Index(keep_acknowledged=False)
    assert read_counters(tmp_path) == MetadataCounters()
    metadata = LmdbMetadata(tmp_path / "metadata")
    write(index, *[add(sequence) for sequence in range(1, 2050)])
    metadata.save(index.take_changes(), state())
    metadata.close()
    metadata = LmdbMetadata(tmp_path / "metadata")
    load(metadata)
    write(index, ack(*range(1, 1030)), add(2050))
    metadata.save(index.take_changes(), state(2))
    expected = MetadataCounters(
        checkpoints=2, pending_put=2050, pending_deleted=1029, pieces_put=5, pieces_deleted=1
    )
    assert metadata.counters == expected
    metadata.close()
    assert read_counters(tmp_path) == expected


def test_a_large_store_is_not_left_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_mapped() -> bool:
        return str(tmp_path) in Path("/proc/self/maps").read_text()

    index = Index(keep_acknowledged=False)
    metadata = LmdbMetadata(tmp_path / "metadata")
    write(index, add(1))
    metadata.save(index.take_changes(), state())
    assert is_mapped()
    monkeypatch.setattr(_metadata, "_UNMAP_BYTES", 0)
    write(index, add(2))
    metadata.save(index.take_changes(), state(2))
    assert not is_mapped()
    assert pending_in(load(metadata)) == {1: [1, 2]}
    assert not is_mapped()


def test_moved_references_are_put_again_and_files_that_are_gone_are_forgotten(
    tmp_path: Path,
) -> None:
    index = Index(keep_acknowledged=True)
    index.settle()
    metadata = LmdbMetadata(tmp_path / "metadata")
    write(index, add(1), add(2), add(3), add(4, 2))
    write(index, ack(3), file_id=2)
    metadata.save(index.take_changes(), state())
    assert load(metadata).rows[FILES] == {(2,): [1]}
    found = [(Found(sequence, index.lists[1].get(sequence) or 0, [1]), b"") for sequence in (1, 2)]
    row = (Found(3, index.log.location_of(1) or 0, [], [1]), b"")
    batch = encode_copies([*found, row], 7, 4160, index)
    assert batch is not None
    batch.effects.batch = index.batch + 1
    index.apply(batch.effects)
    write(index, ack(2), file_id=7)
    index.forget_file(2)
    metadata.save(index.take_changes(), state())
    loaded = load(metadata)
    metadata.close()
    assert pending_in(loaded) == {1: [1], 2: [4]}
    assert places_in(loaded, 1) == [index.lists[1].get(1)]
    assert [list(block.locations) for block in loaded.rows[ACKNOWLEDGED].values()] == [
        [index.log.location_of(1)],
        [index.log.location_of(2)],
    ]
    assert {
        place >> 100 for block in loaded.rows[ACKNOWLEDGED].values() for place in block.locations
    } == {7}
    assert loaded.rows[FILES] == {(7,): [1]}


def test_a_page_that_is_damaged_while_the_store_runs_is_found_by_the_next_start(
    tmp_path: Path,
) -> None:
    """Checkpoints go on: nothing of what is in memory depends on them."""
    index = everything()
    metadata = LmdbMetadata(tmp_path)
    metadata.save(index.take_changes(), state())
    metadata.close()
    changed_value(tmp_path, b"meta", lambda value: b"????" + value[4:])
    changed_value(tmp_path, b"pending", lambda value: b"????" + value[4:])
    for batch in (2, 3):
        write(index, add(100 + batch), ack(2 * batch))
        metadata.save(index.take_changes(), state(batch))
    metadata.close()
    with pytest.raises(MetadataError):
        LmdbMetadata(tmp_path).load(no_progress)


@pytest.mark.parametrize("offset", [44, 92], ids=["of the free pages", "of the main tree"])
@pytest.mark.parametrize("bit", range(8))
def test_a_wrong_flag_in_the_meta_page_is_noticed(tmp_path: Path, offset: int, bit: int) -> None:
    """LMDB ends the process when it takes a free page then (Assertion 'mx != NULL' failed)."""
    metadata = LmdbMetadata(tmp_path)
    metadata.save(everything().take_changes(), state())
    metadata.close()
    path = tmp_path / "data.mdb"
    data = bytearray(path.read_bytes())
    for page in (0, 4096):
        data[page + offset] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(MetadataError):
        load(metadata)
    metadata.close()


@pytest.mark.parametrize("table", [b"pending", b"acknowledged", b"files"])
def test_a_wrong_flag_of_a_table_is_noticed(tmp_path: Path, table: bytes) -> None:
    metadata = LmdbMetadata(tmp_path)
    metadata.save(everything().take_changes(), state())
    metadata.close()
    path = tmp_path / "data.mdb"
    data = path.read_bytes()
    at = -1
    while (
        at := data.find(table, at + 1)
    ) >= 0:  # a node: key, then MDB_db with its flags behind 4 bytes
        begin = at + len(table) + 4
        data = data[:begin] + bytes([data[begin] ^ 4]) + data[begin + 1 :]
    path.write_bytes(data)
    with pytest.raises(MetadataError):
        load(metadata)
    metadata.close()


def test_a_write_for_which_there_is_room_in_part_is_a_full_disk(tmp_path: Path) -> None:
    """LMDB says EIO then: a checkpoint did not give up its reserve, and no file was ever freed."""
    metadata = LmdbMetadata(tmp_path)
    index = everything()
    metadata.save(index.take_changes(), state())
    for number in range(100, 3000):
        write(index, add(number, number))
    changes = index.take_changes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (metadata.disk_bytes + 9000, before[1]))
    try:
        with pytest.raises(OSError, match="metadata store") as caught:
            metadata.save(changes, state(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno in FULL_ERRNOS
    metadata.save(changes, state(2))
    assert len(pending_in(load(metadata))) > 2900
    metadata.close()


class FailingCommit:
    """LMDB's environment, whose transactions cannot be committed."""

    def __init__(self, environment: lmdb.Environment, problem: str) -> None:
        self._environment = environment
        self._problem = problem

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    @contextlib.contextmanager
    def begin(self, **options: Any) -> Generator[lmdb.Transaction]:
        with self._environment.begin(**options) as transaction:
            yield transaction
            raise lmdb.Error(f"mdb_txn_commit: {self._problem}")


def test_a_used_up_quota_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB has no error of its own for it."""
    index = everything()
    changes = index.take_changes()
    metadata = LmdbMetadata(tmp_path)
    real_open = lmdb.open

    def open_failing(*args: Any, **options: Any) -> Any:
        return FailingCommit(real_open(*args, **options), os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patch:
        patch.setattr(lmdb, "open", open_failing)
        with pytest.raises(OSError, match="quota") as caught:
            metadata.save(changes, state())
    assert caught.value.errno in FULL_ERRNOS
    metadata.save(changes, state())  # opened anew
    assert pending_in(load(metadata))
    metadata.close()
