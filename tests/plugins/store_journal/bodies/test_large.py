"""Files of large bodies: written, found again, removed when nobody needs them, damaged, refused."""

from __future__ import annotations

import asyncio
import errno
import gc
import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from journal_kit import (
    ANY_SIZE,
    KB,
    ack,
    checkpoint,
    killed,
    new_store,
    opened,
    options,
    write,
    write_only,
)

from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddMessage,
    CorruptRecordError,
    Discard,
    DiscardReason,
    LargeBody,
    LargeBodyError,
    Message,
    Move,
    Operation,
    RemoveDestination,
    StoreClosedError,
    StoreContext,
    StoredMessage,
    StoreFullError,
    StoreIOError,
    StoreLockedError,
)
from tidegate.testing.faulty_storage import Call, Faults, FaultyDisk
from tidegate_store_journal import JournalStore, read_large
from tidegate_store_journal.bodies import large as _large
from tidegate_store_journal.bodies.large import LARGE_THREADS, LargeFiles, file_name_of
from tidegate_store_journal.index.acklog import ROW_BYTES
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.index.largereferences import LargeReferences
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.format import DATA_OFFSET
from tidegate_store_journal.log.memory import MemoryStorage
from tidegate_store_journal.log.records import large_body_of
from tidegate_store_journal.log.storage import DirectoryStorage
from tidegate_store_journal.write.encode import encode_batch

SIZE = 300 * KB


@pytest.fixture
def from_memory() -> None:
    """Bodies that were just written are read from memory, as they are outside these tests."""


@pytest.fixture(autouse=True)
def from_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every body is read from its file, unless a test wants :func:`from_memory`."""
    if "from_memory" not in request.fixturenames:
        monkeypatch.setattr(_large, "RECENT_BYTES_MAX", 0)


def content(number: int = 1, size: int = SIZE) -> bytes:
    return hashlib.shake_128(b"%d" % number).digest(size)


def bodies_of(store: JournalStore) -> Any:
    bodies = store.capabilities.large_bodies
    assert bodies is not None
    return bodies


async def upload(store: JournalStore, number: int = 1, size: int = SIZE) -> LargeBody:
    writer = bodies_of(store).create(size)
    data = content(number, size)
    for at in range(0, size, 100 * KB):
        await writer.write(data[at : at + 100 * KB])
    return await writer.finish()


async def download(store: JournalStore, body: LargeBody, limit: int = 70 * KB) -> bytes:
    reader = bodies_of(store).open(body)
    try:
        parts: list[bytes] = []
        while part := await reader.read(limit):
            parts.append(part)
        return b"".join(parts)
    finally:
        reader.close()


async def pending(store: JournalStore, pending_list: int = 1) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while page := await store.page_in(
        pending_list, found[-1].sequence if found else 0, 50, ANY_SIZE
    ):
        found += page
    return found


def store_with(where: Path, large_storage: Any) -> JournalStore:
    return JournalStore(StoreContext(where, "test"), options(), None, large_storage)


def message_with(body: LargeBody, name: str = "queue://q") -> Message:
    return Message(name, b"", (("n", "1"),), large=body)


def files(directory: Path) -> list[str]:
    return sorted(os.listdir(directory / "journal" / "large-messages"))


def body_files(directory: Path) -> list[str]:
    return [name for name in files(directory) if name.endswith(".body")]


async def add_large(store: JournalStore, sequence: int, *lists: int, number: int = 1) -> None:
    await write(
        store, AddMessage(sequence, message_with(await upload(store, number)), lists or (1,))
    )


# ------------------------------------------------------------------------------------- life


async def test_a_large_body_comes_back_after_a_restart(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await add_large(store, 1)
    (stored,) = await pending(store)
    assert (stored.message.body, stored.message.headers) == (b"", (("n", "1"),))
    assert stored.message.large is not None
    assert await download(store, stored.message.large) == content()
    await store.close()
    again, state = await opened(tmp_path)
    assert state.pending[1].body_bytes == SIZE
    (stored,) = await pending(again)
    assert stored.message.large is not None
    assert await download(again, stored.message.large) == content()
    assert again.statistics().disk_bytes > SIZE
    await again.close()


@pytest.mark.parametrize("lose", ["nothing", "metadata", "checkpoint"])
async def test_a_killed_store_finds_its_large_bodies_again(tmp_path: Path, lose: str) -> None:
    store, _ = await opened(tmp_path)
    await add_large(store, 1, 1, 2)
    await add_large(store, 2, number=2)
    if lose != "checkpoint":
        await checkpoint(store)
    await write(store, ack(2))
    copy = tmp_path / "copy"
    killed(tmp_path / "journal", copy / "journal")
    if lose == "metadata":
        shutil.rmtree(copy / "journal" / "metadata")
    await store.close()
    again, state = await opened(copy)
    assert sorted(state.pending) == [1, 2]
    for list_id in (1, 2):
        (stored,) = await pending(again, list_id)
        assert stored.sequence == 1
        assert stored.message.large is not None
        assert await download(again, stored.message.large) == content()
    assert len(body_files(copy)) == 1  # the other one's message was acknowledged
    await write(again, ack(1), ack(1, pending_list=2))
    del stored
    await checkpoint(again)
    assert body_files(copy) == []
    await again.close()


ENDINGS: dict[str, Callable[[], Any]] = {
    "acknowledged": lambda: ack(1),
    "discarded": lambda: Discard(1, (1,), DiscardReason.EXPIRED),
    "list removed": lambda: RemoveDestination("queue://q", 1),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_file_goes_at_the_checkpoint_after_its_message(tmp_path: Path, ending: str) -> None:
    store, _ = await opened(tmp_path)
    await write(store, AddDestination("queue://q", 1))
    await add_large(store, 1)
    await checkpoint(store)
    assert len(body_files(tmp_path)) == 1
    await write(store, ENDINGS[ending]())
    assert len(body_files(tmp_path)) == 1, "a power cut could bring the message back"
    await checkpoint(store)
    assert body_files(tmp_path) == []
    await store.close()


async def test_a_file_stays_until_the_last_of_its_lists_let_go(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await add_large(store, 1, 1, 2, 3)
    for list_id in (1, 3):
        await write(store, ack(1, pending_list=list_id))
        await checkpoint(store)
        assert len(body_files(tmp_path)) == 1
    await write(store, ack(1, pending_list=2))
    await checkpoint(store)
    assert body_files(tmp_path) == []
    await store.close()


async def test_a_dead_letter_shares_the_file_with_the_original(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    body = await upload(store)
    message = message_with(body)
    await write(store, AddMessage(1, message, (1, 2)))
    await write(store, Move(1, 1, 9, 5, message))
    del body, message
    await store.close()
    again, _ = await opened(tmp_path)
    await write(again, ack(1, pending_list=2))
    await checkpoint(again)
    (stored,) = await pending(again, 9)
    assert stored.message.large is not None
    assert await download(again, stored.message.large) == content()
    await write(again, ack(5, pending_list=9))
    del stored
    await checkpoint(again)
    assert body_files(tmp_path) == []
    await again.close()


@pytest.mark.parametrize("restart", [False, True])
async def test_a_file_stays_until_the_acknowledged_log_let_go(
    tmp_path: Path, restart: bool
) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await add_large(store, 1)
    await write(store, ack(1))
    await checkpoint(store)
    if restart:
        await store.close()
        store, _ = await opened(tmp_path, keep=True)
    assert store.log_statistics().held_bytes == SIZE + ROW_BYTES
    page = await store.acknowledged(0, 10, 1)
    large = page.rows[0].message.large
    assert large is not None
    assert await download(store, large) == content()
    del page, large
    await store.release_acknowledged(1)
    await checkpoint(store)
    assert body_files(tmp_path) == []
    await store.close()


async def test_compaction_takes_large_messages_along(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, journal_compact_min_files=0)
    await add_large(store, 1)
    await add_large(store, 2, 1, 2, number=2)
    compactor = store._compactor  # pyright: ignore[reportPrivateUsage]
    first = store._files.used()[0]  # pyright: ignore[reportPrivateUsage]
    for sequence in range(3, 9):  # begin another data file
        await write(store, AddMessage(sequence, Message("queue://q", bytes(20 * KB)), (1,)))
    await write(store, ack(*range(3, 9)))
    assert await compactor.compact(first)
    await checkpoint(store)
    copy = tmp_path / "copy"
    killed(tmp_path / "journal", copy / "journal")
    await store.close()
    for lose in (False, True):
        if lose:
            shutil.rmtree(copy / "journal" / "metadata")
        again, _ = await opened(copy)
        for list_id, numbers in ((1, [1, 2]), (2, [2])):
            found = await pending(again, list_id)
            assert [stored.sequence for stored in found] == numbers
            for stored in found:
                assert stored.message.large is not None
                assert await download(again, stored.message.large) == content(stored.sequence)
        await again.close()
    again, _ = await opened(copy)
    await write(again, ack(1, 2), ack(2, pending_list=2))
    await checkpoint(again)
    assert body_files(copy) == []
    await again.close()


async def test_a_message_that_never_reaches_a_checkpoint_is_not_in_the_metadata(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    await add_large(store, 1)
    await write(store, ack(1))
    changes = store._index.large.take_changes()  # pyright: ignore[reportPrivateUsage]
    assert changes == {}
    await store.close()


# --------------------------------------------------------------------------- who holds a file


async def test_a_body_that_nobody_published_goes_with_its_handle(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    body = await upload(store)
    held = message_with(body)  # as a transaction would
    del body
    await checkpoint(store)
    assert len(body_files(tmp_path)) == 1
    assert held.large is not None
    del held
    gc.collect()
    await checkpoint(store)
    assert body_files(tmp_path) == []
    await store.close()


async def test_a_body_that_is_being_read_stays_although_it_is_acknowledged(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await add_large(store, 1)
    (stored,) = await pending(store)
    assert stored.message.large is not None
    reader = bodies_of(store).open(stored.message.large)
    del stored
    await write(store, ack(1))
    await checkpoint(store)
    parts: list[bytes] = []
    while part := await reader.read(50 * KB):
        parts.append(part)
        await checkpoint(store)
    assert b"".join(parts) == content()
    reader.close()
    del reader
    async with asyncio.timeout(60):  # the thread that read may not have let go of it yet
        while body_files(tmp_path):
            await checkpoint(store)
    await store.close()


async def test_a_reader_that_is_closed_while_a_thread_lets_go_of_it_leaves_no_descriptor(
    tmp_path: Path,
) -> None:
    class Late:
        """The lock of a reader; it is closed when the thread is done and still has the lock."""

        taken = False

        def acquire(self, blocking: bool = True) -> bool:
            assert not (blocking and self.taken)
            is_mine, self.taken = not self.taken, True
            return is_mine

        def release(self) -> None:
            self.taken = False

        def __enter__(self) -> None:
            self.acquire()

        def __exit__(self, *_: object) -> None:
            reader.close()
            self.release()

    reader: Any = None

    store, _ = await opened(tmp_path)
    body = await upload(store)
    reader = bodies_of(store).open(body)
    reader._lock = Late()
    assert await reader.read(KB) == content()[:KB]
    assert reader._file is None
    await store.close()


async def test_an_upload_that_is_given_up_leaves_no_file(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    writer = bodies_of(store).create(SIZE)
    await writer.write(content()[: 100 * KB])
    assert len(body_files(tmp_path)) == 1
    writer.abandon()
    writer.abandon()
    with pytest.raises(StoreClosedError):
        await writer.write(b"more")
    async with asyncio.timeout(60):
        while body_files(tmp_path):
            await asyncio.sleep(0.002)
    await store.close()


async def test_a_body_of_another_size_than_stated_is_refused(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    writer = bodies_of(store).create(SIZE)
    await writer.write(b"x")
    with pytest.raises(ValueError, match="1 bytes of a body of"):
        await writer.finish()
    await store.close()
    assert body_files(tmp_path) == []


# ---------------------------------------------------------------------------------------- format

GOLDEN = Path(__file__).parents[1] / "golden" / "version-1-large.hex"
GOLDEN_BODY = LargeBody("00112233445566778899aabbccddeeff", 5 << 30, 0xDEADBEEF)


def golden_records() -> bytes:
    """An added, a moved and a copied large message, as records."""
    message = Message("queue://q", b"", (("a", "b"),), 5, large=GOLDEN_BODY)
    index = Index(keep_acknowledged=False)
    operations: list[Operation] = [AddMessage(7, message, (1,)), Move(2, 6, 3, 8, message)]
    payload = encode_batch(operations, 1, DATA_OFFSET, index).payload
    kind = _format.COPY | _format.LARGE_BIT
    value = _format.encode(message)
    size = 0xFFFF_FFFF
    return payload + _format.encode_record(kind, value, sequence=9, pending_list=1, body_bytes=size)


def test_bytes_of_large_messages_have_not_changed() -> None:
    lines = [line for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    assert golden_records() == bytes.fromhex("".join(lines))


def test_the_golden_records_are_what_the_document_says() -> None:
    records = list(_format.iterate_records(golden_records(), 4))
    assert [record.type for record in records] == [129, 3, 129, 144]
    del records[1]  # what the move takes away
    assert [record.body_bytes for record in records] == [0xFFFF_FFFF] * 3
    for record in records:
        assert large_body_of(record) == GOLDEN_BODY
        assert record.payload.endswith(
            b"\x93"
            b"\xd9\x20"
            + GOLDEN_BODY.id.encode()
            + b"\xcf"
            + (5 << 30).to_bytes(8, "big")
            + b"\xce"
            + (0xDEADBEEF).to_bytes(4, "big")
            + b"\xa0\xa0\x00"  # no owner, version and time: there is no sink
        )


def test_a_record_that_says_large_and_names_no_body_is_damage() -> None:
    value = _format.encode(Message("queue://q", b""))
    data = _format.encode_record(_format.ADD | _format.LARGE_BIT, value, sequence=1)
    (record,) = _format.iterate_records(data, 1)
    with pytest.raises(_format.FormatError, match="does not name"):
        large_body_of(record)


# ------------------------------------------------------------------------------- orphans, damage


async def test_orphans_are_removed_at_the_start_and_told(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await add_large(store, 1)
    await store.close()
    directory = tmp_path / "journal" / "large-messages"
    (kept,) = body_files(tmp_path)
    (directory / file_name_of("0" * 32)).write_bytes(bytes(2048))
    (directory / "notes.txt").write_text("not ours")
    again, state = await opened(tmp_path)
    assert body_files(tmp_path) == [kept]
    assert (directory / "notes.txt").exists()
    (note,) = [note for note in state.report.notes if "large messages" in note]
    assert "1 files" in note
    assert "removed" in note
    await again.close()


async def test_a_rebuild_keeps_orphans_aside_since_their_records_may_be_lost(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    await add_large(store, 1)
    await add_large(store, 2, number=2)
    await write(store, ack(2))
    await store.close()
    directory = tmp_path / "journal" / "large-messages"
    (directory / file_name_of("0" * 32)).write_bytes(bytes(2048))
    shutil.rmtree(tmp_path / "journal" / "metadata")
    again, state = await opened(tmp_path)
    assert len(body_files(tmp_path)) == 1
    assert (directory / ("0" * 32 + ".body.lost")).stat().st_size == 2048
    assert any("*.body.lost" in note for note in state.report.notes)
    await again.close()


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_with_quarantine_orphans_are_kept_only_where_something_was_damaged(
    tmp_path: Path, is_damaged: bool
) -> None:
    store, _ = await opened(tmp_path)
    await write(store, AddDestination("queue://q", 1))
    for sequence in range(1, 4):
        await add_large(store, sequence, number=sequence)
    killed(tmp_path / "journal", tmp_path / "killed" / "journal")
    await store.close()
    directory = tmp_path / "killed" / "journal" / "large-messages"
    (directory / file_name_of("0" * 32)).write_bytes(bytes(2048))
    if is_damaged:
        (path, *_) = sorted((tmp_path / "killed" / "journal").glob("journal-*.data"))
        data = bytearray(path.read_bytes())
        data[data.index(b"queue://q", data.index(b"queue://q") + 9)] ^= 1
        path.write_bytes(data)
    again, state = await opened(tmp_path / "killed", damaged_journal_policy="quarantine")
    kept = sorted(name for name in files(tmp_path / "killed") if name.endswith(".lost"))
    assert ("0" * 32 + ".body.lost" in kept) == is_damaged
    assert len(body_files(tmp_path / "killed")) + len(kept) == 3 + is_damaged
    assert any("large messages" in note for note in state.report.notes)
    await again.close()


async def test_the_body_of_a_message_whose_record_is_damaged_is_kept_with_quarantine(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path, damaged_journal_policy="quarantine")
    await write(store, AddDestination("queue://q", 1))
    for sequence in (1, 2):
        await add_large(store, sequence, number=sequence)
    (first, _) = [stored.message.large for stored in await pending(store)]
    assert first is not None
    (path, *_) = sorted((tmp_path / "journal").glob("journal-*.data"))
    with path.open("r+b") as file:
        file.seek(file.read().index(first.id.encode()))
        file.write(b"x")
    assert [stored.sequence for stored in await pending(store)] == [2]
    await checkpoint(store)
    kept = tmp_path / "journal" / "large-messages" / f"{file_name_of(first.id)}.lost"
    assert kept.read_bytes() == content()
    assert f"are kept in {kept}" in (tmp_path / "journal" / "damage-0001.report").read_text()
    del first
    await store.close()
    again, _ = await opened(tmp_path)
    assert [stored.sequence for stored in await pending(again)] == [2]
    await again.close()


@pytest.mark.parametrize("damage", ["missing", "cut off", "flipped"])
async def test_a_damaged_body_is_told_and_never_delivered_whole(
    tmp_path: Path, damage: str
) -> None:
    store, _ = await opened(tmp_path)
    await add_large(store, 1)
    await store.close()
    (name,) = body_files(tmp_path)
    path = tmp_path / "journal" / "large-messages" / name
    if damage == "missing":
        path.unlink()
    elif damage == "cut off":
        os.truncate(path, SIZE - 1)
    else:
        data = bytearray(path.read_bytes())
        data[SIZE // 2] ^= 1
        path.write_bytes(data)
    again, state = await opened(tmp_path)
    told = [note for note in state.report.notes if name in note]
    assert len(told) == (damage != "flipped")
    (stored,) = await pending(again)
    assert stored.message.large is not None
    with pytest.raises(CorruptRecordError, match=name):
        await download(again, stored.message.large)
    await again.close()
    with pytest.raises(CorruptRecordError, match=name):
        list(read_large(path.parent, stored.message.large))


async def test_a_tool_reads_a_body_beside_the_running_store(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    body = await upload(store)
    await write(store, AddMessage(1, message_with(body), (1,)))
    parts = list(read_large(tmp_path / "journal" / "large-messages", body, 100 * KB))
    assert b"".join(parts) == content()
    assert max(map(len, parts)) == 100 * KB
    await store.close()


async def test_two_stores_cannot_share_a_directory_of_bodies(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    shared = str(tmp_path / "shared")
    store, _ = await opened(tmp_path / "a", large_messages_directory=shared)
    with pytest.raises(StoreLockedError):
        await opened(tmp_path / "b", large_messages_directory=shared)
    await store.close()


# ---------------------------------------------------------------------------------- full, broken


async def test_a_body_without_room_is_refused_before_it_is_written(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    writer = bodies_of(store).create(1 << 60)
    with pytest.raises(StoreFullError, match="disk_free_limit"):
        await writer.write(b"x")
    assert body_files(tmp_path) == []
    await write(store, AddMessage(1, Message("queue://q", b"small"), (1,)))
    await store.close()


async def test_a_body_whose_size_is_not_known_is_as_long_as_what_was_written(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    writer = bodies_of(store).create(None)
    for _ in range(3):
        await writer.write(content(), b"", b"x")
    body = await writer.finish()
    assert body.size == 3 * SIZE + 3
    await write(store, AddMessage(1, message_with(body), (1,)))
    await store.close()
    again, state = await opened(tmp_path)
    assert state.pending[1].body_bytes == 3 * SIZE + 3
    assert await download(again, body) == 3 * (content() + b"x")
    await again.close()


async def test_a_body_whose_size_is_not_known_has_one_byte_at_least(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    with pytest.raises(ValueError, match="0 bytes of a body"):
        await bodies_of(store).create(None).finish()
    await store.close()
    assert body_files(tmp_path) == []


async def test_a_body_whose_size_is_not_known_is_refused_when_it_takes_the_room(
    tmp_path: Path,
) -> None:
    class Short(DirectoryStorage):
        free = 1 << 40

        def free_bytes(self) -> int:
            return self.free

    storage = Short(tmp_path / "large")
    store = store_with(tmp_path, storage)
    await store.open()
    limit = bodies_of(store)._free_limit_bytes
    await use_up(store, 1)
    writer = bodies_of(store).create(None)
    await writer.write(content())
    storage.free = limit + 10
    await writer.write(b"y" * 10)
    assert [name for name in storage.list() if name.endswith(".free")], "there is room yet"
    with pytest.raises(StoreFullError, match=f"{SIZE + 21} bytes or more has no room"):
        await writer.write(b"y" * 10, b"z")
    assert [name for name in storage.list() if name.endswith(".free")] == []
    async with asyncio.timeout(60):
        while any(name.endswith(".body") for name in storage.list()):
            await asyncio.sleep(0.002)
    await store.close()


FAULTS = {
    "full while writing": ((Call.WRITE, 2), errno.ENOSPC, StoreFullError),
    "broken while writing": ((Call.WRITE, 1), errno.EIO, LargeBodyError),
    "broken sync": ((Call.SYNC, 1), errno.EIO, LargeBodyError),
    "broken directory": ((Call.SYNC_DIRECTORY, 1), errno.EIO, LargeBodyError),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_disk_that_fails_costs_the_upload_and_nothing_else(
    tmp_path: Path, fault: str
) -> None:
    call, number, expected = FAULTS[fault]
    disk = FaultyDisk(seed=1)
    storage = disk.start(Faults(errors={call: number}))

    store = store_with(tmp_path, storage)
    await store.open()
    with pytest.raises(expected):
        await upload(store)
    async with asyncio.timeout(60):
        while any(name.endswith(".body") for name in storage.list()):
            await asyncio.sleep(0.002)
    await add_large(store, 1)
    assert store.statistics().writable
    await store.close()


@pytest.mark.parametrize("cut_at_sync", range(1, 8))
async def test_a_power_cut_takes_no_body_of_a_confirmed_message(
    tmp_path: Path, cut_at_sync: int
) -> None:
    """The journal itself is safe here (its own tests cut its power): only the bodies' disk fails."""
    disk = FaultyDisk(seed=cut_at_sync)

    async def load() -> list[int]:
        confirmed: list[int] = []
        store = store_with(tmp_path, disk.start(Faults(cut_at_sync=cut_at_sync)))
        await store.open()
        try:
            for sequence in (1, 2, 3):
                await add_large(store, sequence, number=sequence)
                confirmed.append(sequence)
        except (LargeBodyError, StoreIOError):
            pass
        await store.close()
        return confirmed

    async def look(confirmed: list[int]) -> None:
        storage = disk.start()
        store = store_with(tmp_path, storage)
        await store.open()
        found = await pending(store)
        assert [stored.sequence for stored in found] == confirmed
        for stored in found:
            assert stored.message.large is not None
            assert await download(store, stored.message.large) == content(stored.sequence)
        assert len([n for n in storage.list() if n.endswith(".body")]) == len(confirmed)
        await store.close()

    confirmed = await load()
    disk.cut_power()
    await look(confirmed)
    assert (len(confirmed) == 3) == (cut_at_sync > 6)


# ------------------------------------------------------------------------------------- the rest


async def test_nothing_is_taken_before_open_and_after_close(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    body = await upload(store)
    reader = bodies_of(store).open(body)
    writer = bodies_of(store).create(SIZE)
    await writer.write(b"x")
    await store.close()
    for use in (lambda: bodies_of(store).create(1), lambda: bodies_of(store).open(body)):
        with pytest.raises(StoreClosedError):
            use()
    with pytest.raises(StoreClosedError):
        await reader.read(1)
    with pytest.raises(StoreClosedError):
        await writer.write(b"x")
    reader.close()
    with pytest.raises(StoreClosedError):
        await reader.read(1)


def test_stores_that_are_not_on_disk_or_do_not_want_to_have_no_large_bodies(tmp_path: Path) -> None:
    assert new_store(tmp_path, large_message_min_size=0).capabilities.large_bodies is None
    assert new_store(tmp_path, persistent=False).capabilities.large_bodies is None
    assert new_store(tmp_path, MemoryStorage()).capabilities.large_bodies is None
    assert bodies_of(new_store(tmp_path)).size_min == 100 * KB


async def test_bodies_that_are_there_are_delivered_after_new_ones_were_switched_off(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    body = await upload(store)
    await write(store, AddMessage(1, Message("queue://q", b"", large=body), (1,)))
    await store.close()
    store, state = await opened(tmp_path, large_message_min_size=0)
    assert state.report.notes == ()
    (found,) = await pending(store)
    assert found.message.large is not None
    assert await download(store, found.message.large) == content()
    assert bodies_of(store).size_min > 1 << 60
    await write(store, ack(1))
    del found
    await store.close()
    assert not list((tmp_path / "journal" / "large-messages").glob("*.body"))


async def test_the_thread_count_is_enough_for_uploads_and_downloads_at_once(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    numbers = range(2 * LARGE_THREADS)
    made = await asyncio.gather(*[upload(store, number) for number in numbers])
    read = await asyncio.gather(*[download(store, body) for body in made])
    assert read == [content(number) for number in numbers]
    await store.close()


async def test_strategy_never_does_not_sync_bodies(tmp_path: Path) -> None:
    syncs: list[str] = []

    class Counting(DirectoryStorage):
        def sync_directory(self) -> None:
            syncs.append("directory")

    files = LargeFiles(Counting(tmp_path), options(journal_datasync=False))
    files.prepare("test", LargeReferences(), False)
    with ThreadPoolExecutor() as executor:
        files.start(executor, executor)
        body = await files.create(None).finish(b"whole")
        assert await files.open(body).read(10) == b"whole"
        files.stop()
    assert syncs == []
    files.release()


async def test_acknowledging_without_a_sync_keeps_the_file_until_the_checkpoint(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    await add_large(store, 1)
    operation = ack(1)
    assert isinstance(operation, Acknowledge)
    await write_only(store, operation)
    assert len(body_files(tmp_path)) == 1
    await checkpoint(store)
    assert body_files(tmp_path) == []
    await store.close()


async def test_a_checkpoint_keeps_the_body_of_a_message_that_came_and_went_while_it_was_written(
    tmp_path: Path,
) -> None:
    """Its acknowledgement need not be on disk yet: after a power cut it would have no body."""
    store, _ = await opened(tmp_path)
    checkpointer: Any = store._checkpointer  # pyright: ignore[reportPrivateUsage]
    sync = checkpointer.sync
    waiting = [message_with(await upload(store))]

    async def sync_while_it_comes_and_goes() -> None:
        checkpointer.sync = sync
        await sync()
        await write(store, AddMessage(1, waiting.pop(), (1,)))
        await write_only(store, ack(1))

    checkpointer.sync = sync_while_it_comes_and_goes
    await checkpointer.run(force=True)
    assert (waiting, len(body_files(tmp_path))) == ([], 1)
    await checkpoint(store)
    assert body_files(tmp_path) == []
    await store.close()


# ----------------------------------------------------------------------------- files used again


async def use_up(store: JournalStore, sequence: int, size: int = SIZE) -> None:
    """A message comes, goes, and is gone at the next checkpoint."""
    body = await upload(store, sequence, size)
    await write(store, AddMessage(sequence, message_with(body), (1,)))
    del body
    await write(store, ack(sequence))
    await checkpoint(store)


async def test_the_next_body_of_about_the_size_is_written_over_a_file_that_nobody_needs(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    await use_up(store, 1)
    (free,) = [name for name in files(tmp_path) if name.endswith(".free")]
    place = tmp_path / "journal" / "large-messages"
    inode = (place / free).stat().st_ino
    body = await upload(store, 2, SIZE - 50 * KB)
    await write(store, AddMessage(2, message_with(body), (1,)))
    assert body.id + ".free" != free
    (name,) = body_files(tmp_path)
    assert ((place / name).stat().st_ino, (place / name).stat().st_size) == (inode, SIZE)
    assert store.statistics().disk_bytes >= SIZE
    assert await download(store, body) == content(2, SIZE - 50 * KB)
    await store.close()
    again, state = await opened(tmp_path)
    assert state.report.notes == ()
    (stored,) = await pending(again)
    assert stored.message.large is not None
    assert await download(again, stored.message.large) == content(2, SIZE - 50 * KB)
    await again.close()


async def test_free_files_are_given_back_when_nothing_comes_and_when_the_store_is_closed(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    await use_up(store, 1)
    for _ in range(2):
        assert len([name for name in files(tmp_path) if name.endswith(".free")]) == 1
        await checkpoint(store)
    assert [name for name in files(tmp_path) if name.endswith(".free")] == []
    await use_up(store, 2)
    killed(tmp_path / "journal", tmp_path / "copy" / "journal")
    await store.close()
    assert [name for name in files(tmp_path) if name.endswith(".free")] == []
    again, state = await opened(tmp_path / "copy")  # as after SIGKILL
    assert state.report.notes == ()
    assert [name for name in files(tmp_path / "copy") if name.endswith(".free")] == []
    await again.close()


async def test_a_free_file_that_somebody_removed_is_made_anew(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await use_up(store, 1)
    for path in (tmp_path / "journal" / "large-messages").glob("*.free"):
        path.unlink()
    body = await upload(store, 2)
    assert await download(store, body) == content(2)
    await store.close()


async def test_an_upload_that_began_with_a_free_file_and_is_given_up_leaves_none(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    await use_up(store, 1)
    bodies_of(store).create(SIZE).abandon()  # before its first byte
    async with asyncio.timeout(60):
        while any(name.endswith(".free") for name in files(tmp_path)):
            await asyncio.sleep(0.002)
    await use_up(store, 2)
    writer = bodies_of(store).create(SIZE)
    await writer.write(b"x" * KB, b"y" * KB)
    writer.abandon()
    async with asyncio.timeout(60):
        while any(name.endswith((".free", ".body")) for name in files(tmp_path)):
            await asyncio.sleep(0.002)
    await store.close()


async def test_free_files_are_the_first_to_go_when_the_disk_is_short(tmp_path: Path) -> None:
    class Short(DirectoryStorage):
        free = 1 << 40

        def free_bytes(self) -> int:
            return self.free

    storage = Short(tmp_path / "large")
    store = store_with(tmp_path, storage)
    await store.open()
    await use_up(store, 1)
    assert [name.rpartition(".")[2] for name in storage.list() if "." in name] == ["free"]
    storage.free = 0
    with pytest.raises(StoreFullError, match="has no room"):
        await upload(store, 2, 3 * SIZE)
    assert [name for name in storage.list() if name.endswith(".free")] == []
    storage.free = 100 << 20  # enough for bodies, too little to keep files that nobody needs
    await use_up(store, 3)
    assert [name for name in storage.list() if name.endswith((".free", ".body"))] == []
    await store.close()


async def test_bodies_that_go_in_numbers_make_a_checkpoint_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_store_journal.index.largereferences.LOOSE_BYTES_MAX", 2 * SIZE)

    store, _ = await opened(tmp_path, checkpoint_interval=3600, cleanup_interval=3600)
    await add_large(store, 1)
    await add_large(store, 2, number=2)
    await write(store, ack(1))
    await asyncio.sleep(0.05)
    assert len(body_files(tmp_path)) == 2
    await write(store, ack(2))
    async with asyncio.timeout(60):
        while body_files(tmp_path):
            await asyncio.sleep(0.002)
    await store.close()


async def test_bodies_that_nobody_takes_make_a_checkpoint_due_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_store_journal.index.largereferences.LOOSE_BYTES_MAX", 2 * SIZE)

    store, _ = await opened(tmp_path, checkpoint_interval=3600, cleanup_interval=3600)
    for number in range(6):  # as for a topic to which nobody subscribes
        await upload(store, number)
    async with asyncio.timeout(60):
        while len(body_files(tmp_path)) > 2:
            await asyncio.sleep(0.002)
    await store.close()


@pytest.mark.parametrize("seed", range(12))
async def test_a_power_cut_while_files_are_used_again_takes_no_body_of_a_confirmed_message(
    tmp_path: Path, seed: int
) -> None:
    disk = FaultyDisk(seed=seed)

    async def load() -> list[int]:
        confirmed: list[int] = []
        store = store_with(tmp_path, disk.start(Faults(cut_at_sync=1 + 2 * seed + seed % 2)))
        await store.open()
        try:
            await add_large(store, 1)
            confirmed.append(1)
            for sequence in range(2, 8):
                await use_up(store, sequence)
                await add_large(store, 10 + sequence, number=10 + sequence)
                confirmed.append(10 + sequence)
        except (LargeBodyError, StoreIOError):
            pass
        await store.close()
        return confirmed

    async def look(confirmed: list[int]) -> None:
        store = store_with(tmp_path, disk.start())
        await store.open()
        found = {stored.sequence: stored for stored in await pending(store)}
        assert [number for number in found if number == 1 or number > 10] == confirmed
        for sequence in confirmed:
            large = found[sequence].message.large
            assert large is not None
            assert await download(store, large) == content(sequence)
        await store.close()

    confirmed = await load()
    disk.cut_power()
    await look(confirmed)


# ------------------------------------------------------------------------------- read from memory


def recent_bytes(store: JournalStore) -> int:
    return bodies_of(store).recent.bytes


@pytest.mark.usefixtures("from_memory")
async def test_a_new_body_is_read_without_its_file_until_it_is_acknowledged(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, AddDestination("queue://q", 1))
    await add_large(store, 1)
    (stored,) = await pending(store)
    body = stored.message.large
    assert body is not None
    (name,) = body_files(tmp_path)
    path = tmp_path / "journal" / "large-messages" / name
    path.rename(tmp_path / "aside")
    reader = bodies_of(store).open(body)
    assert await reader.read(70 * KB) == content()[: 70 * KB]
    assert await download(store, body) == content()
    assert await download(store, body, 1 << 20) == content()
    (tmp_path / "aside").rename(path)
    await write(store, ack(1))
    assert recent_bytes(store) == 0
    assert await download(store, body) == content(), "from the file"
    rest = b""
    while part := await reader.read(1 << 20):  # began before
        rest += part
    assert rest == content()[70 * KB :]
    reader.close()
    await store.close()


@pytest.mark.usefixtures("from_memory")
async def test_readers_do_not_keep_a_body_in_memory(tmp_path: Path) -> None:
    """A client that does not read has one for each message that waits for it."""
    store, _ = await opened(tmp_path)
    body = await upload(store)
    first = bodies_of(store).recent.get(body.id)[0]
    before = sys.getrefcount(first)
    readers = [bodies_of(store).open(body) for _ in range(10)]
    assert await readers[0].read(50 * KB) == content()[: 50 * KB]
    assert sys.getrefcount(first) == before
    for reader in readers:
        reader.close()
    await store.close()


@pytest.mark.usefixtures("from_memory")
@pytest.mark.parametrize("damaged", [None, 10, 200 * KB])
async def test_a_body_that_leaves_memory_while_it_is_read_is_checked_all_the_same(
    tmp_path: Path, damaged: int | None
) -> None:
    store, _ = await opened(tmp_path)
    body = await upload(store)
    reader = bodies_of(store).open(body)
    begin = await reader.read(70 * KB) + await reader.read(70 * KB)
    bodies_of(store).recent.drop(body.id)
    if damaged is not None:
        path = tmp_path / "journal" / "large-messages" / file_name_of(body.id)
        with path.open("r+b") as file:
            file.seek(damaged)
            file.write(bytes([content()[damaged] ^ 1]))
        with pytest.raises(CorruptRecordError, match="checksum"):
            await rest_of(reader)
    else:
        assert begin + await rest_of(reader) == content()
        assert await reader.read(1) == b""
    reader.close()
    await store.close()


async def rest_of(reader: Any) -> bytes:
    rest = b""
    while part := await reader.read(70 * KB):
        rest += part
    return rest


@pytest.mark.usefixtures("from_memory")
async def test_a_piece_without_bytes_does_not_end_a_body(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    writer = bodies_of(store).create(SIZE)
    await writer.write(b"", content()[:1000], b"")
    body = await writer.finish(b"", content()[1000:])
    assert await download(store, body) == content()
    await store.close()


@pytest.mark.usefixtures("from_memory")
async def test_a_reader_of_a_new_body_ends_with_the_store(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    reader = bodies_of(store).open(await upload(store))
    assert await reader.read(10) == content()[:10]
    await store.close()
    with pytest.raises(StoreClosedError):
        await reader.read(10)
    reader.close()
    with pytest.raises(StoreClosedError):
        await reader.read(10)


@pytest.mark.usefixtures("from_memory")
async def test_what_is_long_or_came_in_tiny_pieces_or_never_ended_is_not_kept(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    bodies = bodies_of(store)
    long = await upload(store, 1, (1 << 20) + 1)
    assert recent_bytes(store) == 0
    assert await download(store, long) == content(1, (1 << 20) + 1)
    tiny = bodies.create(1000)
    for _ in range(10):
        await tiny.write(*[b"x"] * 10)
    assert recent_bytes(store) == 0
    body = await tiny.finish(*[b"y"] * 900)
    assert await download(store, body) == b"x" * 100 + b"y" * 900
    given_up = bodies.create(1000)
    await given_up.write(b"x")
    assert recent_bytes(store) == 1000
    given_up.abandon()
    assert recent_bytes(store) == 0
    await store.close()


@pytest.mark.usefixtures("from_memory")
async def test_new_bodies_leave_memory_when_nothing_more_is_written(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    body = await upload(store)
    await checkpoint(store)
    assert recent_bytes(store) == SIZE
    await checkpoint(store)
    assert recent_bytes(store) == 0
    assert await download(store, body) == content()
    await store.close()


async def test_the_last_pieces_may_come_with_the_end(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    writer = bodies_of(store).create(SIZE)
    await writer.write(content()[:1000])
    body = await writer.finish(content()[1000:2000], content()[2000:])
    assert await download(store, body) == content()
    whole = await bodies_of(store).create(SIZE).finish(content())
    assert (whole.checksum, whole.size) == (body.checksum, SIZE)
    assert await download(store, whole) == content()
    short = bodies_of(store).create(SIZE)
    with pytest.raises(ValueError, match="were written"):
        await short.finish(b"x")
    await store.close()
