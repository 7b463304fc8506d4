"""What the tests of directories of destinations share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import journal_kit
from journal_kit import opened

from tidegate.spi import AddMessage, Message
from tidegate_store_journal import JournalStore
from tidegate_store_journal.space.tidy import Tidy

ALL = ("queue://>", "topic://>")


def message(number: int, size: int = 100, *, queue: str = "q") -> Message:
    """As ``numbered.message``, for any queue."""
    return Message(f"queue://{queue}", (b"%d " % number).ljust(size, b"."), (("n", "x"),), 5)


def add(sequence: int, *lists: int, size: int = 100, queue: str = "q") -> AddMessage:
    """Add :func:`message`."""
    return AddMessage(sequence, message(sequence, size, queue=queue), lists or (1,))


async def series_store(where: Path, storage: Any = None, /, **changes: Any) -> JournalStore:
    """An open store with a directory for each destination."""
    store, _ = await opened(where, storage, **{"per_destination": ALL, **changes})
    return store


def tidy_of(store: JournalStore) -> Tidy:
    """What the cleanup interval calls."""
    return store._tidy  # pyright: ignore[reportPrivateUsage]


async def checkpoint(store: JournalStore) -> None:
    """Everything released is released on disk, too, and dead files are put away."""
    await journal_kit.checkpoint(store, force=True, cleanup=True)


def directory_of(where: Path, queue: str = "q") -> Path:
    """The directory of a queue."""
    return where / "journal" / "message" / f"queue#{queue}"


def files_of(where: Path, queue: str = "q", suffix: str = "data") -> list[Path]:
    """Its data files, by id."""
    return sorted(directory_of(where, queue).glob(f"*.{suffix}"))


def size_of(where: Path, queue: str = "q") -> int:
    """Bytes of its files."""
    return sum(path.stat().st_size for path in directory_of(where, queue).iterdir())
