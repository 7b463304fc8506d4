"""Files of large bodies: written, found again, and removed when nobody needs them."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from journal_kit import KB, checkpoint, killed, opened, write
from large_bodies import (
    SIZE,
    add_large,
    bodies_of,
    body_files,
    content,
    download,
    message_with,
    pending,
    upload,
)
from numbered import ack

from tidegate.spi import (
    AddDestination,
    AddMessage,
    Discard,
    DiscardReason,
    Message,
    Move,
    RemoveDestination,
    StoreClosedError,
)
from tidegate_store_journal.index.acklog import ROW_BYTES

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
