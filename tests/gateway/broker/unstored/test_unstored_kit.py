"""A store with what is not stored before it is a store: the kit runs over both together."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import hypothesis
import pytest

from tidegate.broker.unstored import store as module
from tidegate.broker.unstored.spool import Share
from tidegate.broker.unstored.store import SpoolingStore
from tidegate.spi import (
    AddDestination,
    AddMessage,
    CursorMemory,
    Message,
    MessageStore,
    MessageStoreFactory,
    RecoveredState,
    StoreCapabilities,
    StoreContext,
    StoredMessage,
    StoreStatistics,
    TemporarySpace,
    WriteBatch,
)
from tidegate.testing._store_kit.lists import StoreLists
from tidegate.testing._store_kit.order import StoreOrder
from tidegate.testing._store_machine import STORE_MACHINE_SETTINGS
from tidegate.testing.memory_store import MemoryContents, MemoryStore, MemoryStoreFactory

A = "queue://a"


class Spooled:
    """The reference with a spool for every queue, which has no promise beyond the process."""

    def __init__(self, inner: MessageStore, directory: Path, memory_bytes: int) -> None:
        self.memory = CursorMemory()
        self.store = SpoolingStore(inner, directory, TemporarySpace())
        self._share = Share(self.memory, memory_bytes)
        self._begun: set[int] = set()

    @property
    def capabilities(self) -> StoreCapabilities:
        return dataclasses.replace(
            self.store.capabilities, durable=False, acknowledged_log=None, large_bodies=None
        )

    async def open(self) -> RecoveredState:
        return await self.store.open()

    async def write(self, batch: WriteBatch) -> None:
        for operation in batch.operations:
            if isinstance(operation, AddDestination):
                list_id = operation.pending_list
                if list_id and list_id not in self._begun:
                    self._begun.add(list_id)
                    self.store.begin(list_id, "queue", self._share, 1 << 30, _nobody)
        await self.store.write(batch)

    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        return await self.store.page_in(pending_list, after, limit, bytes_max)

    def statistics(self) -> StoreStatistics:
        return self.store.statistics()

    async def close(self) -> None:
        await self.store.close()
        assert self.memory.used == 0


def _nobody() -> None: ...


class Factory:
    """Args: memory_bytes: what each queue may have in memory."""

    options_type: type = MemoryStoreFactory().options_type

    def __init__(self, memory_bytes: int) -> None:
        self._inner = MemoryStoreFactory()
        self._memory_bytes = memory_bytes

    def create(self, context: StoreContext, options: object) -> MessageStore:
        return Spooled(
            self._inner.create(context, options), context.data_directory, self._memory_bytes
        )


@pytest.fixture(autouse=True)
def unstored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit's messages have no say about persistence: some of them are not stored."""
    monkeypatch.setattr(module, "is_unstored", lambda message: len(message.body) % 2 > 0)


class TestSpooled(StoreLists, StoreOrder):
    @pytest.fixture
    def store_factory(self) -> MessageStoreFactory:
        return Factory(2000)

    @pytest.fixture
    def machine_settings(self) -> hypothesis.settings:
        # Which thread is through first is not the seed's to say: what is found cannot be made smaller.
        return hypothesis.settings(
            STORE_MACHINE_SETTINGS, max_examples=10, phases=[hypothesis.Phase.generate]
        )


class TestInMemory(StoreLists):
    @pytest.fixture
    def store_factory(self) -> MessageStoreFactory:
        return Factory(1 << 20)


@pytest.mark.parametrize(
    "broken",
    [
        lambda stored, others, through, is_all: (*stored, *others),
        lambda stored, others, through, is_all: sorted(
            (*stored, *others), key=lambda item: item.sequence
        ),
    ],
    ids=["in no order", "with what came meanwhile"],
)
def test_the_kit_finds_pages_that_are_merged_wrongly(
    broken: Callable[..., Sequence[StoredMessage]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(module, "_merged", broken)
    with pytest.raises(AssertionError):
        asyncio.run(_read_in_small_pages(tmp_path))


def test_small_pages_are_in_order(tmp_path: Path) -> None:
    asyncio.run(_read_in_small_pages(tmp_path))


async def _page(
    spooled: Spooled, contents: MemoryStore, after: int, last: int, limit: int
) -> Sequence[StoredMessage]:
    """A page, in the middle of which two messages come: one that is not stored, and one that is."""
    read = contents.page_in

    async def page_in(
        pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        contents.page_in = read
        new = [Message(A, b"x" * (2 - number)) for number in (1, 2)]
        if last < 60:
            added = [AddMessage(last + 1, new[0], (1,)), AddMessage(last + 2, new[1], (1,))]
            await spooled.write(WriteBatch([*added]))
        return await read(pending_list, after, limit, bytes_max)

    contents.page_in = page_in
    return await spooled.page_in(1, after, limit, 1 << 20)


async def _read_in_small_pages(directory: Path) -> None:
    """Runs of messages that are stored and runs of those that are not, in pages that cut them."""
    contents = MemoryStore(StoreContext(directory, "test"), MemoryContents())
    spooled = Spooled(contents, directory, 2000)
    await spooled.open()
    try:
        await spooled.write(WriteBatch([AddDestination(A, 1)]))
        for number in range(1, 41):
            message = Message(A, bytes(number // 3 % 2))
            await spooled.write(WriteBatch([AddMessage(number, message, (1,))]))
        found: list[int] = []
        last = 40
        for limit in (4, 4, 50, 50, 50):
            page = await _page(spooled, contents, found[-1] if found else 0, last, limit)
            found += [item.sequence for item in page]
            last += 2
        assert found == list(range(1, 49)), "all that was there before each page, in order"
    finally:
        await spooled.close()
