"""A disk that loses power keeps what was synced, and anything or nothing of the rest."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddMessage,
    GatewayError,
    Message,
    StoreContext,
    StoreError,
    StoreLockedError,
    WriteBatch,
)
from tidegate.testing._unsynced import SECTOR_BYTES
from tidegate.testing.faulty_storage import (
    Call,
    Faults,
    FaultyDisk,
    FaultyFile,
    FaultyFolder,
    FaultyStorage,
)
from tidegate_store_journal import JournalOptions, JournalStore
from tidegate_store_journal.log.storage import File, MappableFile, Storage

SEEDS = range(40)


def as_journal_storage(storage: FaultyStorage | FaultyFolder) -> Storage:
    return storage  # the type checker compares it with the journal's protocol


def as_journal_file(file: FaultyFile) -> File:
    return file


def as_mappable(file: FaultyFile) -> MappableFile:
    return file


def created(storage: FaultyStorage, name: str, content: bytes = b"") -> FaultyFile:
    """A file that is durable with its content."""
    file = storage.open(name, create=True)
    if content:
        file.pwritev([content], 0)
    file.datasync()
    storage.sync_directory()
    return file


def content_of(storage: FaultyStorage, name: str) -> bytes:
    file = storage.open(name)
    return file.pread(file.length + 100, 0)


def test_a_file_is_read_as_it_was_written() -> None:
    storage = FaultyDisk().start()
    file = storage.open("a", create=True)
    file.pwritev([b"ab", b"cd"], 3)
    assert file.length == 7
    assert file.pread(100, 0) == b"\0\0\0abcd"
    assert file.pread(2, 4) == b"bc"
    file.preallocate(10)
    assert (file.length, file.pread(5, 6)) == (10, b"d\0\0\0")
    file.preallocate(4)
    assert file.length == 10
    assert list(storage.list()) == ["a"]
    assert "a" in storage.describe("a")
    with pytest.raises(FileNotFoundError):
        storage.open("b")
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pread(1, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_synced_bytes_and_names_survive_a_power_cut(seed: int) -> None:
    disk = FaultyDisk(seed)
    storage = disk.start()
    file = created(storage, "a", b"durable")
    storage.rename("a", "b")
    storage.sync_directory()
    file.pwritev([b"unsynced"], 100)
    disk.cut_power()
    assert content_of(disk.start(), "b")[:7] == b"durable"


def outcomes(act: Callable[[FaultyStorage, FaultyFile], None], name: str = "a") -> set[bytes]:
    """What file *name*, durable with 1,200 dots, may hold after *act* and a power cut."""
    found: set[bytes] = set()
    for seed in range(200):
        disk = FaultyDisk(seed)
        storage = disk.start()
        act(storage, created(storage, "a", b"." * 1_200))
        disk.cut_power()
        after = disk.start()
        found.add(content_of(after, name) if name in after.list() else b"")
    return found


def test_an_unsynced_write_is_kept_lost_torn_or_garbled() -> None:
    old, new = b"." * 1_200, b"x" * 1_200
    found = outcomes(lambda _, file: file.pwritev([new], 0))
    first, second = SECTOR_BYTES, 2 * SECTOR_BYTES
    assert {old, new} <= found
    assert new[:first] + old[first:] in found, "torn"
    assert old[:first] + new[first:second] + old[second:] in found, "only a sector in the middle"
    assert any(set(content) - set(b".x") for content in found), "garbled"
    assert all(len(content) == 1_200 for content in found)


def test_a_later_write_may_survive_an_earlier_one() -> None:
    def act(_: FaultyStorage, file: FaultyFile) -> None:
        file.pwritev([b"1"], 0)
        file.pwritev([b"2"], 1_000)

    kept = {(content[:1], content[1_000:1_001]) for content in outcomes(act)}
    assert {(b"1", b"2"), (b"1", b"."), (b".", b"2"), (b".", b".")} <= kept


def test_a_later_write_to_the_same_place_never_gives_way_to_the_earlier_one_once_synced() -> None:
    def act(storage: FaultyStorage, file: FaultyFile) -> None:
        file.pwritev([b"1"], 0)
        file.pwritev([b"2"], 0)
        file.datasync()

    assert {content[:1] for content in outcomes(act)} == {b"2"}


def test_unsynced_names_are_kept_in_their_order_or_not() -> None:
    found: set[frozenset[str]] = set()
    for seed in range(100):
        disk = FaultyDisk(seed)
        storage = disk.start()
        created(storage, "a")
        storage.open("b", create=True)
        storage.rename("a", "c")
        storage.unlink("b")
        storage.unlink("never")
        disk.cut_power()
        found.add(frozenset(disk.start().list()))
    assert found == {frozenset("a"), frozenset("ab"), frozenset("bc"), frozenset("c")}


def test_a_rename_is_atomic() -> None:
    def act(storage: FaultyStorage, _: FaultyFile) -> None:
        other = storage.open("new", create=True)
        other.pwritev([b"new"], 0)
        other.datasync()
        storage.rename("new", "a")

    assert outcomes(act) == {b"." * 1_200, b"new"}


def test_the_power_goes_at_the_sync_that_was_named() -> None:
    storage = FaultyDisk().start(Faults(cut_at_sync=4))
    created(storage, "a")
    file = storage.open("b", create=True)
    file.datasync()
    assert not storage.is_off
    calls: list[Callable[[], object]] = [
        storage.sync_directory,
        storage.list,
        file.datasync,
        lambda: file.pwritev([b"x"], 0),
        lambda: file.pread(1, 0),
        lambda: storage.open("a"),
        lambda: storage.rename("a", "b"),
        lambda: storage.unlink("a"),
        lambda: storage.lock("late"),
    ]
    for call in calls:
        with pytest.raises(OSError, match="power is off") as caught:
            call()
        assert caught.value.errno == errno.EIO
    assert storage.is_off
    assert storage.sync_count == 4


def test_the_sync_at_which_the_power_goes_promises_nothing() -> None:
    found: set[bytes] = set()
    for seed in SEEDS:
        disk = FaultyDisk(seed)
        storage = disk.start(Faults(cut_at_sync=3))
        file = created(storage, "a", b"old")
        file.pwritev([b"new"], 0)
        with pytest.raises(OSError, match="power is off"):
            file.datasync()
        disk.cut_power()
        found.add(content_of(disk.start(), "a"))
    assert {b"old", b"new"} <= found


def test_the_nth_call_fails_with_the_error_that_was_named() -> None:
    errors = {
        (Call.WRITE, 2): errno.ENOSPC,
        (Call.READ, 1): errno.EIO,
        (Call.PREALLOCATE, 1): errno.ENOSPC,
        (Call.CREATE, 2): errno.EDQUOT,
        (Call.RENAME, 1): errno.EIO,
        (Call.SYNC_DIRECTORY, 2): errno.EIO,
    }
    storage = FaultyDisk().start(Faults(errors=errors))
    file = created(storage, "a", b"0123456789")
    calls: list[tuple[int, Callable[[], object]]] = [
        (errno.ENOSPC, lambda: file.pwritev([b"abcdef"], 0)),
        (errno.EIO, lambda: file.pread(1, 0)),
        (errno.ENOSPC, lambda: file.preallocate(100)),
        (errno.EDQUOT, lambda: storage.open("b", create=True)),
        (errno.EIO, lambda: storage.rename("a", "b")),
        (errno.EIO, storage.sync_directory),
    ]
    for number, call in calls:
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is checked below
            call()
        assert caught.value.errno == number
    assert file.pread(10, 0) == b"abc3456789", "a failed write may have written a part"
    assert list(storage.list()) == ["a"]
    for _, call in calls:
        call()


def test_what_a_failed_sync_lost_no_later_sync_makes_durable() -> None:
    found: set[bytes] = set()
    for seed in SEEDS:
        disk = FaultyDisk(seed)
        storage = disk.start(Faults(errors={(Call.SYNC, 2): errno.EIO}))
        file = created(storage, "a", b"old")
        file.pwritev([b"new"], 0)
        with pytest.raises(OSError, match="Input/output"):
            file.datasync()
        assert file.pread(3, 0) == b"new", "it can be read all the same"
        file.datasync()
        disk.cut_power()
        found.add(content_of(disk.start(), "a"))
    assert {b"old", b"new"} <= found


def test_what_replaces_a_lost_write_is_durable_with_its_own_sync() -> None:
    for seed in SEEDS:
        disk = FaultyDisk(seed)
        storage = disk.start(Faults(errors={(Call.SYNC, 2): errno.EIO}))
        file = created(storage, "a", b"old")
        file.pwritev([b"new"], 0)
        with pytest.raises(OSError, match="Input/output"):
            file.datasync()
        file.pwritev([b"newest"], 0)
        file.datasync()
        disk.cut_power()
        assert content_of(disk.start(), "a") == b"newest"


def after_a_failed_sync(seed: int) -> tuple[FaultyDisk, FaultyStorage]:
    """File "a" was durable with "... old"; "new" over its begin can be read, its sync failed."""
    disk = FaultyDisk(seed)
    storage = disk.start(Faults(errors={(Call.SYNC, 2): errno.EIO}))
    file = created(storage, "a", b"... old")
    file.pwritev([b"new"], 0)
    with pytest.raises(OSError, match="Input/output"):
        file.datasync()
    return disk, storage


def test_a_program_started_after_a_failed_sync_reads_what_the_disk_never_got() -> None:
    found: set[bytes] = set()
    for seed in SEEDS:
        disk, storage = after_a_failed_sync(seed)
        disk.kill()
        with pytest.raises(OSError, match="power is off"):
            storage.list()
        storage = disk.start()
        assert content_of(storage, "a") == b"new old"
        storage.open("a").datasync()  # clean pages: it succeeds, and proves nothing
        storage.sync_directory()
        disk.cut_power()
        found.add(content_of(disk.start(), "a"))
    assert {b"... old", b"new old"} <= found


def test_what_is_written_once_more_is_durable_with_its_own_sync_and_nothing_else() -> None:
    found: set[bytes] = set()
    for seed in SEEDS:
        disk, _ = after_a_failed_sync(seed)
        file = disk.start().open("a")
        file.pwritev([file.pread(2, 0)], 0)
        file.datasync()
        disk.cut_power()
        content = content_of(disk.start(), "a")
        assert (content[:2], content[3:]) == (b"ne", b" old")
        found.add(content)
    assert {b"ne. old", b"new old"} <= found, "the byte that was not written again"


def test_caches_that_are_dropped_show_what_the_disk_has() -> None:
    found: set[bytes] = set()
    for seed in SEEDS:
        disk, _ = after_a_failed_sync(seed)
        storage = disk.start()
        storage.open("a").pwritev([b"!"], 6)
        disk.drop_caches()
        content = content_of(storage, "a")
        assert content[3:] == b" ol!", "what is dirty stays"
        storage.open("a").datasync()
        disk.cut_power()
        assert content_of(disk.start(), "a") == content, "it was decided when it was dropped"
        found.add(content)
    assert {b"... ol!", b"new ol!"} <= found


def test_a_full_disk_refuses_growth_and_takes_it_again_when_there_is_room() -> None:
    disk = FaultyDisk(capacity_bytes=100)
    storage = disk.start()
    file = created(storage, "a", bytes(80))
    assert storage.free_bytes() == 20
    for act in (lambda: file.pwritev([bytes(50)], 60), lambda: file.preallocate(101)):
        with pytest.raises(OSError, match="No space") as caught:
            act()
        assert caught.value.errno == errno.ENOSPC
    file.pwritev([bytes(80)], 0)
    disk.capacity_bytes = 200
    file.preallocate(101)
    assert storage.free_bytes() == 99
    storage.unlink("a")
    assert storage.free_bytes() == 200


def test_one_start_at_a_time_and_one_owner_in_it() -> None:
    disk = FaultyDisk(metadata_directory=Path("metadata"))
    first = disk.start()
    first.lock("one")
    with pytest.raises(StoreLockedError, match="two cannot"):
        first.lock("two")
    first.unlock()
    first.lock("two")
    second = disk.start()
    with pytest.raises(OSError, match="power is off"):
        first.list()
    second.lock("three")
    assert (second.durable, second.metadata_directory) == (True, Path("metadata"))


def test_what_is_stored_through_a_mapping_is_read_and_synced_with_the_file() -> None:
    kept: set[bytes] = set()
    for seed in SEEDS:
        disk = FaultyDisk(seed)
        storage = disk.start()
        file = created(storage, "a", bytes(5000))
        mapping = file.map(4096, 1 << 20)
        assert mapping is not None
        assert len(mapping) == 5000 - 4096, "a mapping ends with the file"
        mapping[4:10] = b"synced"
        assert file.pread(6, 4100) == b"synced"
        file.datasync()
        mapping[10:16] = b"unsure"
        mapping[0:0] = b""
        mapping.close()
        file.close()
        disk.cut_power()
        content = content_of(disk.start(), "a")
        assert (len(content), content[4100:4106]) == (5000, b"synced")
        kept.add(content[4106:4112])
    assert {b"unsure", bytes(6)} <= kept


def test_a_mapping_takes_only_what_fits_into_pages_that_are_there() -> None:
    disk = FaultyDisk()
    file = created(disk.start(), "a", bytes(5000))
    with pytest.raises(ValueError, match="begins with a page"):
        file.map(1, 10)
    assert file.map(8192, 10) is None
    mapping = as_mappable(file).map(0, 4096)
    assert mapping is not None
    with pytest.raises(IndexError):
        mapping[0:3] = b"four"
    with pytest.raises(IndexError):
        mapping[4095:4097] = b"ab"
    mapping.close()
    with pytest.raises(ValueError, match="closed"):
        mapping[0:1] = b"x"
    mapping = file.map(0, 4096)
    assert mapping is not None
    disk.cut_power()
    with pytest.raises(OSError, match="power is off"):
        mapping[0:1] = b"x"


def test_every_file_that_is_opened_can_be_wrapped() -> None:
    storage = FaultyDisk().start()
    opened: list[tuple[str, bool]] = []

    def wrap(name: str, file: FaultyFile) -> FaultyFile:
        opened.append((name, file.length == 0))
        return file

    storage.wrap = wrap
    storage.open("a", create=True).pwritev([b"x"], 0)
    storage.open("a")
    assert opened == [("a", True), ("a", False)]


def test_a_folder_has_its_own_names_and_syncs_only_them() -> None:
    found: set[frozenset[str]] = set()
    for seed in range(100):
        disk = FaultyDisk(seed)
        storage = disk.start()
        folder = storage.folder("one")
        folder.lock("us")
        created(storage, "b|c")
        storage.folder("b").sync_directory()
        folder.open("x.tmp", create=True).datasync()
        folder.rename("x.tmp", "x")
        storage.open("top", create=True)
        folder.sync_directory()
        assert (list(folder.list()), "one|x" in storage.list()) == (["x"], True)
        disk.cut_power()
        found.add(frozenset(disk.start().list()))
    assert found == {frozenset({"b|c", "one|x"}), frozenset({"b|c", "one|x", "top"})}


def test_the_names_of_a_folder_are_not_synced_with_the_directory() -> None:
    found: set[frozenset[str]] = set()
    for seed in range(100):
        disk = FaultyDisk(seed)
        storage = disk.start()
        storage.folder("one").lock("us")
        storage.folder("one").open("x", create=True)
        storage.open("top", create=True)
        storage.sync_directory()
        disk.cut_power()
        found.add(frozenset(disk.start().list()))
    assert found == {frozenset({"top"}), frozenset({"one|x", "top"})}


def test_a_new_folder_goes_with_all_it_holds_until_the_names_beside_it_are_synced() -> None:
    found: dict[tuple[str, bool], set[frozenset[str]]] = {}
    for parent, made in [("", False), ("one", False), ("", True)]:
        for seed in range(100):
            disk = FaultyDisk(seed)
            storage = disk.start()
            if made:
                storage.folder("one|two").lock("us")
            created(storage, "one|two|x", b"durable")
            storage.folder("one|two").sync_directory()
            created(storage, "top")  # which syncs the names beside "one"
            if parent == "one":
                storage.folder("one").sync_directory()
            copy = disk.fork(seed)
            disk.cut_power()
            copy.cut_power()
            names = frozenset(disk.start().list())
            assert names == frozenset(copy.start().list())
            found.setdefault((parent, made), set()).add(names)
    with_it, without = frozenset({"one|two|x", "top"}), frozenset({"top"})
    assert found["", False] == {with_it, without}
    assert found["one", False] == found["", True] == {with_it}


def test_a_folder_is_no_file() -> None:
    disk = FaultyDisk()
    storage = disk.start()
    storage.folder("one").lock("us")
    assert (list(storage.list()), disk.read_all()) == ([], {})
    with pytest.raises(FileNotFoundError):
        storage.open("one")


def test_only_so_many_files_can_be_open_at_a_time() -> None:
    storage = FaultyDisk().start(Faults(open_max=2))
    first = created(storage, "a", b"first")
    second = storage.open("b", create=True)
    calls: list[Callable[[], object]] = [
        lambda: storage.open("a"),
        lambda: storage.open("c", create=True),
        storage.list,
        storage.sync_directory,
        storage.folder("one").list,
    ]
    for call in calls:
        with pytest.raises(OSError, match="Too many open files") as caught:
            call()
        assert caught.value.errno == errno.EMFILE
    assert (storage.open_count, first.pread(5, 0)) == (2, b"first")
    second.close()
    second.close()
    for call in calls[2:]:
        call()
    assert sorted(storage.list()) == ["a", "b"]
    storage.open_max = 3
    storage.open("b")
    storage.open("a")
    assert (storage.open_count, storage.open_peak) == (3, 3)
    storage.open_max = 0
    storage.open("a")


def test_the_limit_may_be_that_of_the_whole_system() -> None:
    storage = FaultyDisk().start(Faults(open_max=1, open_error=errno.ENFILE))
    storage.open("a", create=True)
    with pytest.raises(OSError, match="in system"):
        storage.open("a")


def test_a_folder_is_a_storage_on_the_same_disk() -> None:
    disk = FaultyDisk(capacity_bytes=100, metadata_directory=Path("metadata"))
    folder = as_journal_storage(disk.start().folder("one"))
    folder.lock("us")
    assert (folder.metadata_directory, folder.durable) == (None, True)
    folder.open("x", create=True).pwritev([bytes(60)], 0)
    assert folder.free_bytes() == 40
    assert "one|x" in folder.describe("x")
    folder.unlink("x")
    assert list(folder.list()) == []
    folder.unlock()
    disk.cut_power()
    with pytest.raises(OSError, match="power is off"):
        folder.sync_directory()


async def fill_until_the_power_goes(store: JournalStore) -> tuple[dict[int, bytes], set[int]]:
    """Write batches, acknowledging some; what was confirmed, and the batch that was not."""
    confirmed: dict[int, bytes] = {}
    for first in range(1, 400, 4):
        sizes = {sequence: bytes([sequence % 256]) * (sequence * 37 % 900) for sequence in
                 range(first, first + 4)}  # fmt: skip
        batch = WriteBatch(
            [AddMessage(number, Message("queue://q", body), (1,)) for number, body in sizes.items()]
        )
        if first > 8:
            batch.operations.append(Acknowledge(1, (first - 6, first - 7)))
        if first == 1:
            batch.operations.insert(0, AddDestination("queue://q", 1))
        try:
            await store.write(batch)
        except StoreError:
            return confirmed, set(sizes)
        confirmed |= sizes
        if first > 8:
            del confirmed[first - 6], confirmed[first - 7]
    return confirmed, set()


@pytest.mark.parametrize("seed", range(20))
async def test_the_journal_on_it_keeps_what_it_confirmed(seed: int, tmp_path: Path) -> None:
    options = JournalOptions(journal_max_file_length=64 * 1024)
    disk = FaultyDisk(seed)

    def make(faults: Faults | None = None) -> JournalStore:
        storage = as_journal_storage(disk.start(faults))
        return JournalStore(StoreContext(tmp_path, "test"), options, storage)

    store = make(Faults(cut_at_sync=31 + seed * 3))
    await store.open()
    confirmed, unsure = await fill_until_the_power_goes(store)
    assert unsure, "the power went"
    try:
        await store.close()
    except GatewayError:
        pass
    disk.cut_power()
    store = make()
    await store.open()
    page = await store.page_in(1, 0, 10_000, 1 << 40)
    found = {stored.sequence: stored.message.body for stored in page}
    assert list(found) == sorted(found)
    arrived = unsure & found.keys()
    assert arrived in (set(), unsure), "a batch is there or it is not"
    last = min(unsure)
    expected = confirmed.keys() | arrived
    if arrived and last > 8:
        expected -= {last - 6, last - 7}
    assert found.keys() == expected
    assert all(found[sequence] == body for sequence, body in confirmed.items() if sequence in found)
    await store.write(WriteBatch([AddMessage(1_000, Message("queue://q", b"!"), (1,))]))
    await store.close()
