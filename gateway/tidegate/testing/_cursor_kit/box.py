"""Cursors over a list of messages, with disk and memory under the kit's control."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidegate.spi import (
    CursorContext,
    CursorFactory,
    CursorMemory,
    PendingCursor,
    StoredMessage,
    TemporarySpace,
)
from tidegate.testing._cursor_kit.switch_over import (
    MEMORY_COUNT,
    PAGE_COUNT,
    SwitchOver,
)
from tidegate.testing._cursor_machine import (
    ListStore,
    message_of,
)

#: A disk that takes longer for a few megabytes hangs; in seconds.
SETTLE_TIMEOUT: Final = 60.0

#: A byte limit that no test reaches.
ANY_SIZE: Final = 1 << 40


class KitSpace(TemporarySpace):
    """A disk with some room, or with none when it *refuses*."""

    refuses = False

    def leaves_enough(self, descriptor: int, size: int) -> bool:
        """Tell whether files may grow."""
        return not self.refuses and super().leaves_enough(descriptor, size)


class CursorBox:
    """Makes cursors over the list of messages in *store*."""

    def __init__(self, factory: CursorFactory, directory: Path) -> None:
        self.factory = factory
        self.directory = directory
        self.store = ListStore()
        self.shared = CursorMemory()
        self.space = KitSpace()
        self.has_room = 0  # how often a cursor reported that it is no longer full
        self._made: list[PendingCursor] = []

    async def close(self) -> None:
        """Close everything made here, even when the test has failed."""
        for cursor in self._made:
            await cursor.close()

    def _has_room(self) -> None:
        self.has_room += 1

    def make(
        self,
        *,
        recovered: Sequence[StoredMessage] = (),
        stored: bool = True,
        memory_limit_bytes: int = 1 << 30,
        page_count: int = 10,
        temporary_limit_bytes: int = 1 << 30,
        **limits: int,
    ) -> PendingCursor:
        """A cursor; *recovered*: what was pending before. Args: limits: further fields of the context."""
        self.store.add(recovered)
        made = self.factory.create(
            CursorContext(
                destination="queue://q",
                read_page=self.store.read_page if stored else None,
                recovered_count=len(recovered),
                memory_limit_bytes=memory_limit_bytes,
                page_count=page_count,
                temporary_directory=self.directory,
                temporary_limit_bytes=temporary_limit_bytes,
                shared_memory=self.shared,
                temporary_space=self.space,
                has_room=self._has_room,
                **limits,  # type: ignore[arg-type] - numbers, all of them
            )
        )
        self._made.append(made)
        return made

    def offer(self, cursor: PendingCursor, messages: Sequence[StoredMessage]) -> None:
        """Messages became durable and are offered."""
        self.store.add(messages)
        assert list(cursor.offer(messages)) == []

    async def settle(self, cursor: PendingCursor, held_bytes: int) -> None:
        """Wait until messages on their way to a file have left memory, so that no more is held."""
        if not self.factory.spools:
            return
        async with asyncio.timeout(SETTLE_TIMEOUT):
            while cursor.memory_bytes > held_bytes:  # noqa: ASYNC110 - it has no event for that
                await asyncio.sleep(0.001)

    async def settle_disk(self, used_bytes: int) -> None:
        """Wait until all cursors together take no more of the disk than *used_bytes*."""
        async with asyncio.timeout(SETTLE_TIMEOUT):
            while self.space.used > used_bytes:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.001)

    async def drain(self, cursor: PendingCursor, limit: int = 1_000) -> list[int]:
        """Take everything, paging in as needed; returns the sequences."""
        found: list[int] = []
        while cursor.size:
            if cursor.needs_page:
                await cursor.page_in()
            taken = cursor.take(limit, ANY_SIZE)
            assert taken, "neither a message nor a page to read"
            found += [stored.sequence for stored in taken]
        return found


def messages_of(first: int, last: int, size: int | None = None) -> list[StoredMessage]:
    """Messages with the sequences *first* to *last*, with bodies of *size* bytes if given."""
    body = None if size is None else bytes(size)
    return [message_of(sequence, body) for sequence in range(first, last + 1)]


async def switch_over(
    factory: CursorFactory,
    directory: Path,
    recovered: int,
    offered: int,
    order: Sequence[str],
    memory_limit_bytes: int = 1 << 30,
) -> None:
    """One run of :class:`SwitchOver` over a cursor of *factory*."""
    box = CursorBox(factory, directory)
    before = messages_of(1, recovered)
    cursor = box.make(
        recovered=before,
        page_count=PAGE_COUNT,
        memory_limit_messages=MEMORY_COUNT,
        memory_limit_bytes=memory_limit_bytes,
    )
    try:
        await SwitchOver(cursor, box.store, before).run(offered, order)
    finally:
        await cursor.close()
