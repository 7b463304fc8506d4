"""The spool is a bounded first-in-first-out file that leaves nothing behind."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from tidegate.spi import LargeBody, Message, StoredMessage, StoreIOError, TemporarySpace
from tidegate_cursors import _spool
from tidegate_cursors._spool import Spool

ALL = 1 << 30


def messages_of(first: int, last: int, size: int = 100) -> list[StoredMessage]:
    return [
        StoredMessage.of(
            sequence,
            Message("queue://q", bytes([sequence % 256]) * size, (("n", str(sequence)),)),
            sequence % 3,
        )
        for sequence in range(first, last + 1)
    ]


def make(directory: Path, limit_bytes: int = ALL, buffer_bytes: int = 0) -> Spool:
    return Spool(directory, limit_bytes, "queue://q", buffer_bytes)


async def drain(spool: Spool, limit: int = 7) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while spool.count:
        found += await spool.read(limit, ALL)
    return found


@pytest.mark.parametrize("buffer_bytes", [0, 1_000, ALL])
async def test_messages_come_back_whole_and_in_order(tmp_path: Path, buffer_bytes: int) -> None:
    spool = make(tmp_path, buffer_bytes=buffer_bytes)
    messages = messages_of(1, 50)
    assert spool.append(messages[:20]) == 20
    assert await spool.read(5, ALL) == messages[:5]
    assert spool.append(messages[20:]) == 30
    assert spool.count == 45
    assert await drain(spool) == messages[5:]
    assert (spool.count, spool.spooled_bytes, spool.buffered_bytes) == (0, 0, 0)
    spool.close()


async def test_a_large_body_comes_back_with_the_very_handle_that_keeps_it(tmp_path: Path) -> None:
    spool = make(tmp_path)
    bodies = [LargeBody(f"b{sequence}", 1000, 7) for sequence in range(1, 5)]
    messages = [
        StoredMessage.of(sequence, Message("topic://t", b"", large=body))
        for sequence, body in enumerate(bodies, 1)
    ]
    spool.append(messages)
    spool.append(messages_of(5, 6))
    spool.remove({2})
    found = await drain(spool, 2)
    assert found == [messages[0], *messages[2:], *messages_of(5, 6)]
    assert [stored.message.large for stored in found[3:]] == [None, None]
    for stored in found[:3]:
        assert stored.message.large is bodies[stored.sequence - 1]
    assert spool._large == {}
    spool.append(messages)
    spool.clear()
    assert spool._large == {}
    spool.close()


def test_the_file_has_no_name(tmp_path: Path) -> None:
    spool = make(tmp_path)
    spool.append(messages_of(1, 5))
    assert list(tmp_path.iterdir()) == []
    assert spool._file is not None
    assert os.fstat(spool._file.fileno()).st_size == spool.spooled_bytes > 0
    spool.close()
    spool.close()


async def test_the_file_never_grows_beyond_the_limit_and_shrinks_when_drained(
    tmp_path: Path,
) -> None:
    spool = make(tmp_path, limit_bytes=5_000)
    expected: list[StoredMessage] = []
    found: list[StoredMessage] = []
    for first in range(1, 400, 4):
        batch = messages_of(first, first + 3)
        expected += batch[: spool.append(batch)]
        assert spool._file is not None
        assert os.fstat(spool._file.fileno()).st_size <= 5_000
        found += await spool.read(3, ALL)
    assert len(found) > 200, "it went round the ring many times"
    found += await drain(spool)
    assert found == expected
    assert spool._file is not None
    assert os.fstat(spool._file.fileno()).st_size == 0
    spool.close()


async def test_appending_stops_at_the_limit(tmp_path: Path) -> None:
    spool = make(tmp_path, limit_bytes=1_000)
    kept = spool.append(messages_of(1, 20))
    assert 0 < kept < 20
    assert spool.last == kept
    assert spool.append(messages_of(21, 21, size=990)) == 0
    assert [message.sequence for message in await drain(spool)] == list(range(1, kept + 1))
    assert make(tmp_path, limit_bytes=0).append(messages_of(1, 1)) == 0
    spool.close()


async def test_a_message_larger_than_one_read_comes_back(tmp_path: Path) -> None:
    spool = make(tmp_path)
    messages = messages_of(1, 3, size=_spool.READ_BYTES * 2)
    spool.append(messages)
    assert await spool.read(10, 1) == messages[:1]
    assert await drain(spool) == messages[1:]
    spool.close()


async def test_removed_messages_are_left_out(tmp_path: Path) -> None:
    spool = make(tmp_path)
    spool.append(messages_of(10, 20))
    assert await spool.read(2, ALL) == messages_of(10, 11)
    assert spool.remove({9, 10, 11, 12, 15, 20, 21}) == 3
    assert spool.remove({12}) == 0, "it left already"
    assert spool.count == 6
    assert [message.sequence for message in await drain(spool)] == [13, 14, 16, 17, 18, 19]
    spool.close()


async def test_removing_all_gives_the_space_back(tmp_path: Path) -> None:
    spool = make(tmp_path)
    spool.append(messages_of(1, 10))
    assert spool.remove(set(range(1, 11))) == 10
    assert (spool.count, spool.spooled_bytes) == (0, 0)
    assert spool.append(messages_of(11, 12)) == 2
    assert await drain(spool) == messages_of(11, 12)
    assert spool.remove({11}) == 0
    spool.close()


async def test_a_read_that_was_overtaken_brings_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest are dropped, and their place overwritten, while a thread reads them."""
    spool = make(tmp_path, limit_bytes=2_000)
    kept = spool.append(messages_of(1, 50))
    is_reading, may_go_on = threading.Event(), threading.Event()
    read_file = spool._read_file

    def held_up(self: Spool, head: int, written: int) -> bytes:
        if threading.current_thread() is threading.main_thread():
            return read_file(head, written)
        is_reading.set()
        assert may_go_on.wait(60)
        return read_file(head, written)

    monkeypatch.setattr(Spool, "_read_file", held_up)

    async def overtake() -> list[StoredMessage]:
        task = asyncio.create_task(spool.read(5, ALL))
        await asyncio.to_thread(is_reading.wait, 10)
        assert len(spool.read_now(3, ALL)) == 3
        assert spool.append(messages_of(51, 53)) == 3
        may_go_on.set()
        return await task

    assert await overtake() == []
    left = [message.sequence for message in await drain(spool)]
    assert left == [*range(4, kept + 1), 51, 52, 53]
    spool.close()


async def test_closing_during_a_read_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = make(tmp_path)
    spool.append(messages_of(1, 5))

    async def close_meanwhile() -> list[StoredMessage]:
        task = asyncio.create_task(spool.read(5, ALL))
        await asyncio.sleep(0)
        spool.close()
        return await task

    assert await close_meanwhile() == []


async def test_a_full_disk_ends_appending_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = make(tmp_path)
    assert spool.append(messages_of(1, 3)) == 3

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        assert spool.append(messages_of(4, 9)) == 1, "what was buffered when it failed is kept"
    assert "No space left" in caplog.text
    assert spool.append(messages_of(5, 5)) == 0, "refused until it is drained"
    assert await drain(spool) == messages_of(1, 4)
    assert spool.append(messages_of(5, 6)) == 2
    spool.close()


async def test_a_directory_that_is_gone_is_like_a_full_disk(tmp_path: Path) -> None:
    spool = make(tmp_path / "missing")
    assert spool.append(messages_of(1, 5)) == 1
    assert await drain(spool) == messages_of(1, 1)
    spool.close()


async def test_a_file_that_was_cut_is_reported(tmp_path: Path) -> None:
    spool = make(tmp_path)
    spool.append(messages_of(1, 5))
    assert spool._file is not None
    spool._file.truncate(10)
    with pytest.raises(StoreIOError, match=r"queue://q: cannot read the spool"):
        await spool.read(5, ALL)
    assert spool.count == 5
    spool.close()


@pytest.mark.parametrize("offset", [0, 16])
async def test_a_damaged_frame_is_reported(tmp_path: Path, offset: int) -> None:
    spool = make(tmp_path)
    spool.append(messages_of(1, 5))
    assert spool._file is not None
    os.pwrite(spool._file.fileno(), b"\xc1\xff\xff\xff", offset)
    with pytest.raises(StoreIOError, match=r"queue://q"):
        await spool.read(5, ALL)
    spool.close()


async def test_all_files_together_take_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    space = TemporarySpace(10_000)
    one, two = [Spool(tmp_path, ALL, "queue://q", space=space, buffer_bytes=0) for _ in range(2)]
    assert one.append(messages_of(1, 40)) == 40
    assert 5_000 < space.used == one.spooled_bytes
    appended = two.append(messages_of(1, 200))
    assert 0 < appended < 200
    assert space.used <= 10_000
    assert two.append(messages_of(201, 210)) == 0
    assert await drain(two) == messages_of(1, appended), "what was appended is not lost"
    assert space.used == one.spooled_bytes
    two.close()
    assert two.append([]) == 0
    one.clear()
    assert space.used == 0
    assert one.append(messages_of(1, 40)) == 40
    one.close()
    assert space.used == 0
