"""What the reference store offers beyond the contract (the kit proves the contract itself)."""

from pathlib import Path

import pytest

from tidegate.spi import (
    AddDestination,
    AddMessage,
    Message,
    StoreContext,
    StoreFullError,
    StoreIOError,
    StoreLockedError,
    WriteBatch,
)
from tidegate.testing.memory_store import MemoryContents, MemoryStore, MemoryStoreFactory

BATCH = WriteBatch(
    [AddDestination("queue://q", 1), AddMessage(1, Message("queue://q", b"x"), (1,))]
)


def make(contents: MemoryContents | None = None, *, persistent: bool = True) -> MemoryStore:
    return MemoryStore(StoreContext(Path(), "test", persistent), contents)


async def test_the_contents_are_what_survives() -> None:
    first = make()
    await first.open()
    await first.write(BATCH)
    with pytest.raises(StoreLockedError):
        await make(first.contents).open()
    await first.close()
    state = await make(first.contents).open()
    assert (state.store_id, state.last_sequence) == (first.contents.store_id, 1)
    assert (await make().open()).store_id != state.store_id


async def test_without_persistence_nothing_survives() -> None:
    contents = MemoryContents()
    store = make(contents, persistent=False)
    await store.open()
    await store.write(BATCH)
    assert contents.lists == {}


async def test_a_full_store_changes_nothing_and_recovers() -> None:
    store = make()
    await store.open()
    store.write_error = StoreFullError("full")
    with pytest.raises(StoreFullError):
        await store.write(BATCH)
    assert store.statistics().writable
    assert store.contents.lists == {}
    store.write_error = None
    await store.write(BATCH)
    assert store.statistics().pending_messages == 1


async def test_an_io_error_makes_it_read_only() -> None:
    store = make()
    await store.open()
    store.write_error = StoreIOError("broken")
    for _ in range(2):
        with pytest.raises(StoreIOError):
            await store.write(BATCH)
        store.write_error = None
    assert not store.statistics().writable
    assert list(await store.page_in(1, 0, 1, 1)) == []


async def test_a_factory_keeps_one_contents_for_each_directory(tmp_path: Path) -> None:
    factory = MemoryStoreFactory()
    options = factory.options_type()
    identities = []
    for name in ("a", "a", "b"):
        store = factory.create(StoreContext(tmp_path / name, "test"), options)
        identities.append((await store.open()).store_id)
        await store.close()
    assert identities[0] == identities[1] != identities[2]
