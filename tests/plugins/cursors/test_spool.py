"""The spool is a bounded first-in-first-out file that leaves nothing behind."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from tidegate.spi import LargeBody, Message, StoredMessage, StoreIOError, TemporarySpace
from tidegate_cursors import _spool, _spool_file
from tidegate_cursors._spool import Spool
from tidegate_cursors._spool_file import SpoolFile, SpoolThreads, Write

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


async def settled(spool: Spool) -> None:
    """The disk has caught up."""
    while spool._job is not None:
        await asyncio.wait([spool._job])


def size_of(spool: Spool) -> int:
    """Bytes of its file."""
    assert spool._file._file is not None
    return os.fstat(spool._file._file.fileno()).st_size


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
    await spool.close()


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
    await spool.close()


async def test_the_file_has_no_name(tmp_path: Path) -> None:
    spool = make(tmp_path)
    spool.append(messages_of(1, 5))
    await settled(spool)
    assert list(tmp_path.iterdir()) == []
    assert size_of(spool) >= spool.spooled_bytes > 0
    assert spool.buffered_bytes == 0
    await spool.close()
    await spool.close()
    assert not spool._file.is_open


async def test_the_file_never_grows_beyond_the_limit_and_shrinks_when_drained(
    tmp_path: Path,
) -> None:
    spool = make(tmp_path, limit_bytes=5_000)
    expected: list[StoredMessage] = []
    found: list[StoredMessage] = []
    for first in range(1, 400, 4):
        batch = messages_of(first, first + 3)
        expected += batch[: spool.append(batch)]
        await settled(spool)
        assert size_of(spool) <= 5_000
        found += await spool.read(3, ALL)
    assert len(found) > 200, "it went through the file many times"
    found += await drain(spool)
    assert found == expected
    await settled(spool)
    assert size_of(spool) == 0
    await spool.close()


async def test_room_is_reserved_before_it_is_written(tmp_path: Path) -> None:
    """What is in the file has its blocks, so that a write into them cannot find the disk full."""
    spool = make(tmp_path)
    spool.append(messages_of(1, 5))
    await settled(spool)
    assert spool._file._file is not None
    found = os.fstat(spool._file._file.fileno())
    assert found.st_blocks * 512 >= found.st_size == _spool_file.SEGMENT_BYTES
    spool.append(messages_of(6, 1_500))
    await settled(spool)
    found = os.fstat(spool._file._file.fileno())
    assert found.st_blocks * 512 >= found.st_size > spool.spooled_bytes
    await spool.close()


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
async def test_a_file_system_that_cannot_reserve_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    asked: list[int] = []

    def cannot(*_: int) -> None:
        asked.append(1)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", cannot)
    spool = make(tmp_path)
    for first in range(1, 2_000, 100):
        assert spool.append(messages_of(first, first + 99)) == 100
        await settled(spool)
    assert len(asked) == 1, "once is enough to know"
    assert await drain(spool) == messages_of(1, 2_000)
    await spool.close()


class Held:
    """Threads wait at *name* of a spool's file until they are let go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.has_come, self.may_go_on = threading.Event(), threading.Event()
        real = getattr(SpoolFile, name)

        def held_up(file: SpoolFile, *args: object) -> object:
            if threading.current_thread() is not threading.main_thread():
                self.has_come.set()
                assert self.may_go_on.wait(60)
            return real(file, *args)

        monkeypatch.setattr(SpoolFile, name, held_up)

    async def come(self) -> None:
        assert await asyncio.to_thread(self.has_come.wait, 60)


async def test_the_loop_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a write is held up, what is in memory can be read, removed and added to."""
    held = Held(monkeypatch, "write")
    spool = make(tmp_path)
    assert spool.append(messages_of(1, 10)) == 10
    await held.come()
    assert spool.append(messages_of(11, 20)) == 10
    assert await spool.read(3, ALL) == messages_of(1, 3)
    assert spool.remove({5, 15}) == 2
    assert spool.is_writing
    held.may_go_on.set()
    await settled(spool)
    left = [number for number in range(4, 21) if number not in (5, 15)]
    assert [message.sequence for message in await drain(spool)] == left
    await spool.close()


async def test_what_is_read_beyond_a_write_that_is_held_up_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, "write")
    spool = make(tmp_path)
    spool.append(messages_of(1, 10))
    await held.come()
    spool.append(messages_of(11, 20))
    assert await spool.read(10, ALL) == messages_of(1, 10)
    assert await spool.read(5, ALL) == messages_of(11, 15)
    held.may_go_on.set()
    await settled(spool)
    spool.append(messages_of(21, 30))
    await settled(spool)
    assert await drain(spool) == messages_of(16, 30)
    await spool.close()


@pytest.mark.parametrize("end", ["clear", "remove", "close", "read"])
async def test_a_write_under_way_when_nothing_is_left_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    held = Held(monkeypatch, "write")
    space = TemporarySpace()
    spool = Spool(tmp_path, ALL, "queue://q", 0, space)
    spool.append(messages_of(1, 10))
    await held.come()
    closing: asyncio.Task[None] | None = None
    if end == "clear":
        spool.clear()
    elif end == "remove":
        assert spool.remove(set(range(1, 11))) == 10
    elif end == "read":
        assert await drain(spool) == messages_of(1, 10)
    else:
        closing = asyncio.create_task(spool.close())
        await asyncio.sleep(0)
    assert (spool.count, spool.spooled_bytes, spool.buffered_bytes) == (0, 0, 0)
    if closing is None:
        assert spool.append(messages_of(11, 20)) == 10
    held.may_go_on.set()
    if closing is None:
        await settled(spool)
        assert await drain(spool) == messages_of(11, 20)
        await settled(spool)
        assert size_of(spool) == 0
        await spool.close()
    else:
        await closing
    assert (space.used, space.unwritten) == (0, 0)
    assert not spool._file.is_open


async def test_a_close_that_is_cancelled_closes_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, "write")
    space = TemporarySpace()
    spool = Spool(tmp_path, ALL, "queue://q", 0, space)
    spool.append(messages_of(1, 10))
    await held.come()
    closing = asyncio.create_task(spool.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    held.may_go_on.set()
    await settled(spool)
    assert not spool._file.is_open
    assert (space.used, space.unwritten) == (0, 0)


async def test_its_threads_are_of_their_own_and_end_with_the_last_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs takes no thread that others need."""
    names: list[str] = []
    write = SpoolFile.write

    def noted(file: SpoolFile, prepared: Write, data: bytes) -> None:
        names.append(threading.current_thread().name)
        write(file, prepared, data)

    monkeypatch.setattr(SpoolFile, "write", noted)
    threads = SpoolThreads()
    one, two = [Spool(tmp_path, ALL, "queue://q", 0, threads=threads) for _ in range(2)]
    for spool in (one, two):
        spool.append(messages_of(1, 5))
        await settled(spool)
        assert await drain(spool) == messages_of(1, 5)
    assert all(name.startswith("tidegate-spool") for name in names)
    assert len(names) == 2
    await one.close()
    await one.close()
    assert threads._executor is not None
    await two.close()
    assert threads._executor is None


async def test_a_disk_that_is_far_behind_ends_appending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_spool, "BEHIND_BYTES_MAX", 5_000)
    held = Held(monkeypatch, "write")
    spool = make(tmp_path)
    kept = spool.append(messages_of(1, 5))
    await held.come()
    kept += spool.append(messages_of(6, 100))
    assert 5 < kept < 100
    assert spool.buffered_bytes <= 5_000
    assert spool.append(messages_of(kept + 1, 100)) == 0
    held.may_go_on.set()
    await settled(spool)
    assert spool.append(messages_of(kept + 1, kept + 9)) == 9
    assert await drain(spool) == messages_of(1, kept + 9)
    await spool.close()


async def test_all_spools_together_have_a_limit_of_what_the_disk_has_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_spool, "BEHIND_BYTES_ALL", 5_000)
    held = Held(monkeypatch, "write")
    space = TemporarySpace()
    one, two = [Spool(tmp_path, ALL, "queue://q", 0, space) for _ in range(2)]
    assert 0 < one.append(messages_of(1, 100)) < 100
    await held.come()
    assert two.append(messages_of(1, 100)) == 1, "one can always pass"
    assert space.unwritten == one.buffered_bytes + two.buffered_bytes
    held.may_go_on.set()
    await settled(one)
    await settled(two)
    assert space.unwritten == 0
    await one.close()
    await two.close()


async def test_appending_stops_at_the_limit(tmp_path: Path) -> None:
    spool = make(tmp_path, limit_bytes=1_000)
    kept = spool.append(messages_of(1, 20))
    assert 0 < kept < 20
    assert spool.last == kept
    assert spool.append(messages_of(21, 21, size=990)) == 0
    assert [message.sequence for message in await drain(spool)] == list(range(1, kept + 1))
    assert make(tmp_path, limit_bytes=0).append(messages_of(1, 1)) == 0
    await spool.close()


async def test_a_message_larger_than_one_read_comes_back(tmp_path: Path) -> None:
    spool = make(tmp_path)
    messages = messages_of(1, 3, size=_spool.READ_BYTES_MAX * 2)
    for message in messages:
        assert spool.append([message]) == 1
        await settled(spool)
    assert await spool.read(10, 1) == messages[:1]
    assert await drain(spool) == messages[1:]
    await spool.close()


async def test_removed_messages_are_left_out(tmp_path: Path) -> None:
    spool = make(tmp_path)
    spool.append(messages_of(10, 20))
    assert await spool.read(2, ALL) == messages_of(10, 11)
    assert spool.remove({9, 10, 11, 12, 15, 20, 21}) == 3
    assert spool.remove({12}) == 0, "it left already"
    assert spool.count == 6
    assert [message.sequence for message in await drain(spool)] == [13, 14, 16, 17, 18, 19]
    await spool.close()


async def test_removing_all_gives_the_space_back(tmp_path: Path) -> None:
    spool = make(tmp_path)
    spool.append(messages_of(1, 10))
    assert spool.remove(set(range(1, 11))) == 10
    assert (spool.count, spool.spooled_bytes) == (0, 0)
    assert spool.append(messages_of(11, 12)) == 2
    assert await drain(spool) == messages_of(11, 12)
    assert spool.remove({11}) == 0
    await spool.close()


async def test_a_read_that_was_overtaken_brings_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest are dropped, and their place overwritten, while a thread reads them."""
    spool = make(tmp_path, limit_bytes=2_000)
    kept = spool.append(messages_of(1, 50))
    await settled(spool)
    held = Held(monkeypatch, "read")
    task = asyncio.create_task(spool.read(5, ALL))
    await held.come()
    assert len(spool.read_now(5, ALL)) == 5
    assert spool.append(messages_of(51, 53)) == 3
    await settled(spool)
    held.may_go_on.set()
    assert await task == []
    left = [message.sequence for message in await drain(spool)]
    assert left == [*range(6, kept + 1), 51, 52, 53]
    await spool.close()


async def test_closing_during_a_read_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = make(tmp_path)
    spool.append(messages_of(1, 5))
    await settled(spool)
    held = Held(monkeypatch, "read")
    task = asyncio.create_task(spool.read(5, ALL))
    await held.come()
    await spool.close()
    held.may_go_on.set()
    assert await task == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_a_disk_without_room_loses_nothing_and_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    spool = make(tmp_path)
    assert spool.append(messages_of(1, 3)) == 3
    await settled(spool)

    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        patch.setattr(_spool, "RETRY_S", 1_000.0)
        assert spool.append(messages_of(4, 5)) == 2
        await settled(spool)
        assert spool.append(messages_of(6, 9)) == 0, "what the disk refused is all that it keeps"
        assert os.strerror(code) in caplog.text
        assert len(caplog.records) == 1
    assert await spool.read(4, ALL) == messages_of(1, 3)
    assert await spool.read(1, ALL) == messages_of(4, 4)
    spool._retry_at = 1e-9  # the time is over
    assert spool.append(messages_of(6, 6)) == 0, "but now it is tried again"
    await settled(spool)
    assert spool.buffered_bytes == 0
    assert spool.append(messages_of(6, 9)) == 4
    assert await drain(spool) == messages_of(5, 9)
    await spool.close()


async def test_a_disk_that_is_broken_ends_appending_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = make(tmp_path)
    assert spool.append(messages_of(1, 3)) == 3
    await settled(spool)

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        assert spool.append(messages_of(4, 4)) == 1, "what was buffered when it failed is kept"
        await settled(spool)
    assert "Input/output error" in caplog.text
    assert spool.append(messages_of(5, 5)) == 0, "refused until it is drained"
    assert await drain(spool) == messages_of(1, 4)
    await settled(spool)
    assert spool.append(messages_of(5, 6)) == 2
    await spool.close()


async def test_a_directory_that_is_gone_is_like_a_broken_disk(tmp_path: Path) -> None:
    spool = make(tmp_path / "missing")
    assert spool.append(messages_of(1, 5)) == 5
    await settled(spool)
    assert spool.append(messages_of(6, 6)) == 0
    assert await drain(spool) == messages_of(1, 5)
    await spool.close()


async def test_a_file_that_was_cut_is_reported(tmp_path: Path) -> None:
    spool = make(tmp_path)
    spool.append(messages_of(1, 5))
    await settled(spool)
    assert spool._file._file is not None
    spool._file._file.truncate(10)
    with pytest.raises(StoreIOError, match=r"queue://q: cannot read the spool"):
        await spool.read(5, ALL)
    assert spool.count == 5
    await spool.close()


@pytest.mark.parametrize("offset", [0, 16])
async def test_a_damaged_frame_is_reported(tmp_path: Path, offset: int) -> None:
    spool = make(tmp_path)
    spool.append(messages_of(1, 5))
    await settled(spool)
    assert spool._file._file is not None
    os.pwrite(spool._file._file.fileno(), b"\xc1\xff\xff\xff", offset)
    with pytest.raises(StoreIOError, match=r"queue://q"):
        await spool.read(5, ALL)
    await spool.close()


async def test_all_files_together_take_no_more_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_spool_file, "SEGMENT_BYTES", 500)
    space = TemporarySpace(10_000)
    one, two = [Spool(tmp_path, ALL, "queue://q", space=space, buffer_bytes=0) for _ in range(2)]
    assert one.append(messages_of(1, 40)) == 40
    await settled(one)
    assert 5_000 < one.spooled_bytes <= space.used == size_of(one)
    appended = 0
    while appended < 200 and two.append(messages_of(appended + 1, appended + 1)):
        appended += 1
        await settled(two)
        assert space.used <= 10_000
    assert 5 < appended < 200
    assert space.used == size_of(one) + size_of(two)
    assert await two.read(6, ALL) == messages_of(1, 6)
    await settled(two)
    assert two.append(messages_of(appended + 1, appended + 1)) == 1, "where others were read"
    assert await drain(two) == messages_of(7, appended + 1), "what was appended is not lost"
    await settled(two)
    assert space.used == size_of(one)
    await two.close()
    assert two.append([]) == two.append(messages_of(1, 1)) == 0
    one.clear()
    await settled(one)
    assert space.used == 0
    assert one.append(messages_of(1, 40)) == 40
    await one.close()
    assert (space.used, space.unwritten) == (0, 0)


async def test_so_much_stays_free_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system is asked once a second, and what files grow by in between is counted."""
    monkeypatch.setattr(_spool_file, "SEGMENT_BYTES", 1_000)
    now, free, asked = 0.0, 10_000, 0

    class Found:
        f_frsize = 1

        @property
        def f_bavail(self) -> int:
            return free

    def fstatvfs(_: int) -> Found:
        nonlocal asked
        asked += 1
        return Found()

    monkeypatch.setattr(os, "fstatvfs", fstatvfs)
    space = TemporarySpace(0, 7_000, clock=lambda: now)
    spool = Spool(tmp_path, ALL, "queue://q", 0, space)
    assert spool.append(messages_of(1, 5)) == 5
    await settled(spool)
    assert (size_of(spool), asked) == (1_000, 1)
    for first in (6, 11, 16, 21):
        spool._retry_at = min(spool._retry_at, 1e-9)  # the time is over
        spool.append(messages_of(first, first + 4))
        await settled(spool)
    assert (size_of(spool), space.used, asked) == (2_000, 2_000, 1), "there were 3000 to take"
    free, now = 20_000, 1.0
    spool._retry_at = 1e-9
    spool.append(messages_of(spool.last + 1, spool.last + 5))
    await settled(spool)
    assert (spool.buffered_bytes, asked) == (0, 2)
    assert await drain(spool) == messages_of(1, spool.last)
    await spool.close()
