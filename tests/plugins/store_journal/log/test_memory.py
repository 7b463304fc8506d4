"""``persistent = false``: the same engine in memory, with a limit that behaves like a full disk."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from journal_kit import KB, checkpoint, new_store, opened, options, pending, write
from numbered import ack, add

from tidegate.spi import (
    ConfigError,
    MessageStore,
    MessageStoreFactory,
    StoreContext,
    StoreFullError,
    StoreLockedError,
)
from tidegate.testing.store_kit import StoreConformance
from tidegate_store_journal import JournalOptions, JournalStore, Storage
from tidegate_store_journal.log.memory import MemoryStorage

LIMIT = 8 * 64 * KB


class Kept(MemoryStorage):
    """Memory that outlives the store, so that the kit can open it again."""

    owner = ""

    @property
    def durable(self) -> bool:
        return True

    def lock(self, owner: str) -> None:
        if self.owner:
            raise StoreLockedError("it is in use", owner=self.owner)
        self.owner = owner

    def unlock(self) -> None:
        self.owner = ""


class SameMemory:
    """Makes stores that find again what an earlier one of the same directory had in memory."""

    options_type = JournalOptions

    def __init__(self) -> None:
        self._storages: dict[Path, Storage] = {}

    def create(self, context: StoreContext, options: object) -> MessageStore:
        assert isinstance(options, JournalOptions)
        if not context.persistent:
            return JournalStore(context, options)
        storage = self._storages.setdefault(context.data_directory, Kept(1 << 30))
        return JournalStore(replace(context, persistent=False), options, storage)


class TestConformanceInMemory(StoreConformance):
    """The same kit as on disk."""

    @pytest.fixture
    def store_factory(self) -> MessageStoreFactory:
        return SameMemory()

    @pytest.fixture
    def store_options(self) -> object:
        return options(memory_limit=1 << 30)


async def fill(store: JournalStore) -> tuple[list[int], str]:
    """Add messages until one is refused. Returns the sequences of the others, and the reason."""
    stored: list[int] = []
    while len(stored) < 1000:
        sequence = store._index.last_sequence + 1  # pyright: ignore[reportPrivateUsage]
        try:
            await write(store, add(sequence, size=10_000))
        except StoreFullError as error:
            return stored, str(error)
        stored.append(sequence)
    raise AssertionError("never full")


async def test_at_the_limit_messages_are_refused_and_consuming_makes_room_again(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path, persistent=False, memory_limit=LIMIT)
    for _ in range(3):
        stored, reason = await fill(store)
        assert "memory_limit = 512kb" in reason
        assert await pending(store) == stored
        assert len(stored) * 10_000 > LIMIT // 2
        assert store.statistics().disk_bytes <= LIMIT
        await write(store, ack(*stored))  # has its place at the limit, too
        await checkpoint(store, cleanup=True)
    await store.close()
    assert list(tmp_path.iterdir()) == []


async def test_the_start_says_that_nothing_survives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tidegate.store.journal"):
        store, _ = await opened(tmp_path, persistent=False, memory_limit=LIMIT)
        await store.close()
    assert "persistent=false: nothing survives" in caplog.text
    assert "memory_limit=512kb" in caplog.text


def test_a_limit_that_cannot_hold_four_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="4 times journal_max_file_length") as caught:
        new_store(tmp_path, persistent=False, memory_limit=255 * KB)
    assert caught.value.key == "memory_limit"
    new_store(tmp_path, persistent=False, memory_limit=256 * KB)
    new_store(tmp_path, memory_limit=255 * KB)  # on disk the factory refuses it, see test_idle


def test_files_count_with_their_whole_length_until_they_are_gone() -> None:
    storage = MemoryStorage(1000)
    storage.open("a", create=True).preallocate(600)
    assert storage.free_bytes() == 400
    with pytest.raises(OSError, match="memory_limit") as caught:
        storage.open("b", create=True).preallocate(401)
    assert caught.value.errno == errno.ENOSPC
    storage.open("b").preallocate(400)
    storage.open("a").pwritev([b"x" * 700], 0)  # a small file of another kind would do the same
    assert storage.free_bytes() == 0
    storage.unlink("a")
    assert storage.free_bytes() == 600
