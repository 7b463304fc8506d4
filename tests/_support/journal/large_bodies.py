"""Large bodies in a journal: uploads, downloads, and the files that are there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from journal_kit import ANY_SIZE, KB, checkpoint, options, write
from numbered import ack

from tidegate.spi import AddMessage, LargeBody, Message, StoreContext, StoredMessage
from tidegate_store_journal import JournalStore
from tidegate_store_journal.log.storage import DirectoryStorage

SIZE = 300 * KB


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


class ShortDirectory(DirectoryStorage):
    """One on a disk that has as much room as the test says. Attributes: free: in bytes."""

    free = 1 << 40

    def free_bytes(self) -> int:
        return self.free


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


# ----------------------------------------------------------------------------- files used again


async def use_up(store: JournalStore, sequence: int, size: int = SIZE) -> None:
    """A message comes, goes, and is gone at the next checkpoint."""
    body = await upload(store, sequence, size)
    await write(store, AddMessage(sequence, message_with(body), (1,)))
    del body
    await write(store, ack(sequence))
    await checkpoint(store)
