"""Large bodies that were just written are read from memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from journal_kit import KB, checkpoint, opened, write
from large_bodies import SIZE, add_large, bodies_of, body_files, content, download, pending, upload
from numbered import ack

from tidegate.spi import AddDestination, CorruptRecordError, StoreClosedError
from tidegate_store_journal import JournalStore
from tidegate_store_journal.bodies.large import file_name_of

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
