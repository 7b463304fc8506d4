"""`verify` in directories of destinations, and of large bodies."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from journal_kit import KB, new_store, opened, write
from numbered import ack
from series_kit import add, directory_of, files_of, series_store

from tidegate.spi import AddDestination, AddMessage, Message
from tidegate_store_journal import JournalStore
from tidegate_store_journal.tools.verify import VerifyReport, verify


def silent(_what: str, _done: int, _total: int) -> None: ...


def checked(where: Path, sleep: Callable[[float], None] = lambda _: None) -> VerifyReport:
    return verify(where / "journal", silent, sleep=sleep)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def where_is(path: Path, number: int) -> int:
    """Offset of the body of ``series_kit.message(number)`` in a file."""
    return path.read_bytes().index(b"%d ..." % number)


async def filled(where: Path) -> JournalStore:
    """Messages 1 and 20 to 29 live in the record file, 31 in a file of its own; two queues."""
    store = await series_store(where, max_record_size=5000)
    await write(store, AddDestination("queue://q", 1), AddDestination("queue://other", 2))
    await write(store, *(add(sequence) for sequence in range(1, 30)))
    await write(store, add(30, 2, queue="other"), add(31, size=9000))
    await write(store, ack(*range(2, 20)))
    return store


@pytest.fixture
async def split(tmp_path: Path) -> Path:
    await (await filled(tmp_path)).close()
    return tmp_path


# ------------------------------------------------------------------------------------- directories


def test_messages_in_directories_are_read(split: Path) -> None:
    found = checked(split)
    assert (found.damages, found.references, found.files) == ([], 13, 5)


def test_a_damaged_record_is_named_with_file_and_offset(split: Path) -> None:
    path = files_of(split)[0]
    at = where_is(path, 25)
    flip(path, at)
    damages = checked(split).damages
    assert {damage.file for damage in damages} == {f"message/queue#q/{path.name}"}
    named = [damage for damage in damages if "message 25" in damage.problem]
    assert 0 <= at - named[0].offset <= 200


def test_a_damaged_file_of_a_single_message_is_named(split: Path) -> None:
    path = files_of(split)[1]
    flip(path, where_is(path, 31))
    damages = checked(split).damages
    assert {damage.file for damage in damages} == {f"message/queue#q/{path.name}"}
    path.unlink()
    (damage,) = checked(split).damages
    assert path.name in damage.file
    assert "1 pending messages" in damage.problem


def test_a_damaged_header_is_named(split: Path) -> None:
    path = files_of(split)[0]
    flip(path, 20)
    assert checked(split).damages == []  # it is there twice
    flip(path, path.read_bytes().rindex(b"TGJOURNL", 0, 4096) + 20)
    (damage,) = checked(split).damages
    assert (damage.file, damage.offset) == (f"message/queue#q/{path.name}", 0)
    assert "header" in damage.problem


def test_a_missing_directory_is_named_with_its_messages(split: Path) -> None:
    shutil.rmtree(directory_of(split, "other"))
    (damage,) = checked(split).damages
    assert "1 pending messages of queue://other" in damage.problem


async def test_a_data_file_of_another_store_is_named(split: Path, tmp_path: Path) -> None:
    other = tmp_path / "another"

    await (await filled(other)).close()
    shutil.copy(files_of(other)[0], files_of(split)[0])
    assert any("belongs to another store" in damage.problem for damage in checked(split).damages)


async def test_a_record_that_is_consumed_meanwhile_is_not_damaged(split: Path) -> None:
    loop = asyncio.get_running_loop()

    async def consume() -> None:
        store = await series_store(split, max_record_size=5000)
        await write(store, ack(31))
        await store.close()

    pauses: list[float] = []

    def consumed(seconds: float) -> None:
        if not pauses:
            asyncio.run_coroutine_threadsafe(consume(), loop).result()
        pauses.append(seconds)

    path = files_of(split)[1]
    path.write_bytes(path.read_bytes()[:4200])  # the batch ends early, as one under way
    assert (await asyncio.to_thread(checked, split, consumed)).damages == []
    assert len(pauses) == 1


# ------------------------------------------------------------------------------------ large bodies


@pytest.fixture
async def large(tmp_path: Path) -> Path:
    """A journal with one large body that two messages share."""
    store, _ = await opened(tmp_path)
    bodies = store.capabilities.large_bodies
    assert bodies is not None
    writer = bodies.create(300 * KB)
    await writer.write(b"x" * 300 * KB)
    message = Message("queue://q", b"", large=await writer.finish())
    await write(store, AddDestination("queue://q", 1))
    await write(store, AddMessage(1, message, (1,)), AddMessage(2, message, (1,)))
    await store.close()
    return tmp_path


def body_of(where: Path, folder: str = "large-messages") -> Path:
    (path,) = (where / "journal" / folder).glob("*.body")
    return path


def test_large_bodies_are_read(large: Path) -> None:
    found = checked(large)
    assert (found.damages, found.references, found.bodies) == ([], 2, 2)


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda path: flip(path, 200 * KB), "checksum"),
        (lambda path: path.write_bytes(b"x" * 1000), "ends before byte 307200"),
        (lambda path: path.unlink(), "is missing"),
    ],
    ids=["flipped", "cut off", "missing"],
)
def test_a_damaged_large_body_is_named_with_its_messages(
    large: Path, harm: Callable[[Path], object], problem: str
) -> None:
    path = body_of(large)
    harm(path)
    (damage,) = checked(large).damages
    assert damage.file == f"large-messages/{path.name}"
    assert "message 1, 2" in damage.problem
    assert problem in damage.problem


def test_a_file_may_be_longer_than_its_body(large: Path) -> None:
    with body_of(large).open("ab") as file:
        file.write(b"of the body that had it before")
    assert checked(large).damages == []


def test_large_bodies_are_looked_for_where_they_are(large: Path, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    (large / "journal" / "large-messages").rename(place)
    assert len(checked(large).damages) == 1
    assert verify(large / "journal", silent, large=place).damages == []


async def test_a_body_that_is_removed_meanwhile_is_not_missed(large: Path) -> None:
    loop = asyncio.get_running_loop()
    path = body_of(large)
    aside = path.with_suffix(".aside")
    path.rename(aside)

    async def consume() -> None:
        store = new_store(large)
        await store.open()
        await write(store, ack(1, 2))
        await store.close()

    def consumed(_seconds: float) -> None:
        if not aside.exists():
            return
        aside.unlink()
        asyncio.run_coroutine_threadsafe(consume(), loop).result()

    assert (await asyncio.to_thread(checked, large, consumed)).damages == []
