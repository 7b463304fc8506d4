"""What the tests of the per-destination layout share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from journal_kit import opened

from tidegate.spi import AddMessage, Message
from tidegate_store_journal import JournalStore
from tidegate_store_journal.split.recordfolder import RecordFolder
from tidegate_store_journal.split.split import Split
from tidegate_store_journal.split.splittidy import Tidy

ALL = ("queue://>", "topic://>")


def message(number: int, size: int = 100, *, queue: str = "q") -> Message:
    """As ``journal_kit.message``, for any queue."""
    return Message(f"queue://{queue}", (b"%d " % number).ljust(size, b"."), (("n", "x"),), 5)


def add(sequence: int, *lists: int, size: int = 100, queue: str = "q") -> AddMessage:
    """Add :func:`message`."""
    return AddMessage(sequence, message(sequence, size, queue=queue), lists or (1,))


async def split_store(where: Path, storage: Any = None, /, **changes: Any) -> JournalStore:
    """An open store with a directory for each destination."""
    store, _ = await opened(where, storage, **{"per_destination": ALL, **changes})
    return store


def split_of(store: JournalStore) -> Split:
    """The layout inside of a store."""
    return store._split  # pyright: ignore[reportPrivateUsage]


def tidy_of(store: JournalStore) -> Tidy:
    """What compacts."""
    return store._layout.tidy  # pyright: ignore[reportPrivateUsage]


def folder_of(store: JournalStore, queue: str = "q") -> RecordFolder:
    """The directory of a queue."""
    folder = split_of(store).folder_of(f"queue://{queue}")
    assert folder is not None
    return folder


async def checkpoint(store: JournalStore) -> None:
    """Everything released is released on disk, too."""
    await store._checkpointer.run(force=True)  # pyright: ignore[reportPrivateUsage]


def vrfile(where: Path, queue: str = "q") -> Path:
    """The record file of a queue."""
    return where / "journal" / "message" / f"queue#{queue}" / "vrfile"
