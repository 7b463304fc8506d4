"""A file that others change: what is read of it, when, and what is told of one that is wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.spi import ConfigError
from tidegate.spi.watched_file import WatchedFile


class Reader:
    """Takes notes of what becomes of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reads = 0
        self.accepted: list[str] = []
        self.refused: list[str] = []
        self.error: Exception | None = None
        self.file = WatchedFile(path, self.read, self.accepted.append, self.refuse)

    def read(self) -> str:
        self.reads += 1
        if self.error is not None:
            raise self.error
        try:
            return self.path.read_text()
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}") from None

    def refuse(self, error: ConfigError) -> None:
        self.refused.append(error.problem)

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await asyncio.sleep(0.001)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    path = tmp_path / "file"
    path.write_text("first")
    return Reader(path)


async def test_it_is_read_when_it_has_changed_and_then_only(reader: Reader) -> None:
    await reader.file.refresh()
    assert reader.reads == 0
    reader.path.write_text("the second")
    await asyncio.gather(*(reader.file.refresh() for _ in range(5)))
    await reader.file.refresh()
    assert (reader.reads, reader.accepted) == (1, ["the second"])
    await reader.file.reload()
    assert reader.accepted == ["the second"] * 2


async def test_who_asks_for_it_hears_what_is_wrong_and_it_is_not_told_again(reader: Reader) -> None:
    reader.error = ConfigError("wrong")
    reader.path.write_text("the second")
    with pytest.raises(ConfigError, match="wrong"):
        await reader.file.reload()
    await reader.file.refresh()
    assert (reader.reads, reader.refused, reader.accepted) == (1, [], [])


async def test_a_change_of_its_mode_is_one(reader: Reader) -> None:
    reader.path.chmod(0o600)
    await reader.file.refresh()
    assert reader.accepted == ["first"]


async def test_what_is_wrong_is_told_once_and_so_is_that_it_is_gone(reader: Reader) -> None:
    reader.error = ConfigError("wrong")
    reader.path.write_text("the second")
    for _ in range(3):
        await reader.file.refresh()
    assert (reader.reads, reader.refused) == (1, ["wrong"])
    reader.error = None
    reader.path.unlink()
    for _ in range(3):
        await reader.file.refresh()
    assert reader.refused == ["wrong", "cannot be read: No such file or directory"]
    reader.path.write_text("the third")
    await reader.file.refresh()
    assert reader.accepted == ["the third"]


async def test_who_is_cancelled_leaves_the_reading_to_the_next(reader: Reader) -> None:
    reader.path.write_text("the second")
    cut = asyncio.create_task(reader.file.refresh())
    await asyncio.sleep(0)
    cut.cancel()
    await asyncio.wait((cut,))
    await reader.file.refresh()
    assert reader.accepted == ["the second"]


async def test_an_error_that_nobody_thought_of_does_not_end_the_watching(
    reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    reader.error = RuntimeError("can't start new thread")
    with caplog.at_level(logging.ERROR):
        watching = asyncio.create_task(reader.file.watch(0.001))
        reader.path.write_text("the second")
        await reader.until(lambda: reader.reads >= 3)
        assert not watching.done()
        reader.error = None
        await reader.until(lambda: bool(reader.accepted))
        watching.cancel()
        await asyncio.wait((watching,))
    assert reader.accepted == ["the second"]
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot check {reader.path} for changes; will try again"
    ], "once, not each time"
