"""A store goes out to files and into another store, and nothing is different but its identity."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tidegate.portable import _in as incoming
from tidegate.portable import _merge as merging
from tidegate.portable import carry_in, carry_out, export_store, import_store
from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddMessage,
    ConfigError,
    ConfiguredStore,
    MessageStore,
    Operation,
    PutSubscription,
    RecoveredState,
    StoreCapabilities,
    StoreContext,
    StoreIOError,
    StoreLockedError,
    Subscription,
    WriteBatch,
)
from tidegate.testing._portable_contents import contents, everything
from tidegate.testing._portable_contents import small as text
from tidegate.testing.memory_store import (
    MemoryStore,
    MemoryStoreFactory,
    MemoryStoreOptions,
)

EVERYTHING = everything()
BIG = 2**53 + 1


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def silent(_what: str, _done: int, _total: int) -> None: ...


def memory() -> MemoryStore:
    return MemoryStore(StoreContext(Path(), "test", keep_acknowledged=True))


async def through(
    operations: list[Operation],
    directory: Path,
    first: Callable[[], MessageStore],
    second: Callable[[], MessageStore],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a store that *first* makes holds, and what one of *second* holds after the journey."""
    store = first()
    await store.open()
    await store.write(WriteBatch(operations))
    await store.close()
    store = first()
    state = await store.open()
    before = await contents(store, state)
    await carry_out(store, state, directory, silent)
    await store.close()
    other = second()
    await carry_in(other, await other.open(), directory, silent)
    await other.close()
    other = second()
    after = await contents(other, await other.open())
    await other.close()
    return before, after


class Kept:
    """Makes memory stores that share their contents."""

    def __init__(self) -> None:
        self.factory = MemoryStoreFactory()

    def __call__(self) -> MessageStore:
        context = StoreContext(Path("kept"), "test", keep_acknowledged=True)
        return self.factory.create(context, MemoryStoreOptions())


async def test_everything_is_carried(tmp_path: Path) -> None:
    before, after = await through(EVERYTHING, tmp_path / "out", Kept(), Kept())
    assert after == before
    assert before["acknowledged"][0][0] == 13  # there was something to compare
    assert before["pending"][3][0].delivery_count == 70_000


async def test_an_empty_store_is_carried_too(tmp_path: Path) -> None:
    before, after = await through([], tmp_path / "out", Kept(), Kept())
    assert after == before


async def test_the_highest_sequence_is_not_used_again_when_it_is_pending_no_more(
    tmp_path: Path,
) -> None:
    operations: list[Operation] = [
        AddDestination("queue://q", 1),
        AddMessage(1, text(1), (1,)),
        AddMessage(99, text(99), (1,)),
        Acknowledge(1, (99,)),
    ]

    source = Kept()
    store = source()
    await store.open()
    await store.write(WriteBatch(operations))
    log = store.capabilities.acknowledged_log
    assert log is not None
    await log.release_acknowledged(1)
    await store.close()
    store = source()
    await carry_out(store, await store.open(), tmp_path / "out", silent)
    target = Kept()
    other = target()
    await carry_in(other, await other.open(), tmp_path / "out", silent)
    await other.close()
    state = await target().open()
    assert state.last_sequence == 99
    assert state.last_pending_list >= 1
    assert [item.destination for item in state.destinations] == ["queue://q"]


async def test_a_message_is_in_the_file_once_however_many_lists_hold_it(tmp_path: Path) -> None:
    from tidegate.portable._tables import MESSAGES, SCHEMAS, read_table, table_path

    await through(EVERYTHING, tmp_path / "out", Kept(), Kept())
    rows = list(read_table(table_path(tmp_path / "out", MESSAGES), SCHEMAS[MESSAGES]))
    assert [row["sequence"] for row in rows] == [10, 11, 12, 13, 14, BIG, BIG + 1, BIG + 5]
    assert rows[0]["pending"] == [{"pending_list": 2, "delivery_count": 0}]
    assert rows[0]["acknowledged"] == [1, 3]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["tables"]["messages"]["rows"] == 8
    assert manifest["version"] == 1


async def test_a_log_that_does_not_fit_in_memory_is_sorted_in_files_and_these_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging.LogSorter.__init__, "__kwdefaults__", {"run_bytes": 5_000})
    order = [(number * 37) % 101 for number in range(1, 101)]  # every number once, in no order
    operations: list[Operation] = [AddDestination("queue://q", 1)]
    operations += [AddMessage(number, text(number), (1,)) for number in range(1, 101)]
    operations += [Acknowledge(1, (number,), (1,), number) for number in order]
    before, after = await through(operations, tmp_path / "out", Kept(), Kept())
    assert after == before
    assert [row[0] for row in after["acknowledged"]] == order
    assert not list((tmp_path / "out").glob("*.tmp"))


async def test_what_is_read_ahead_does_not_grow_with_the_store(tmp_path: Path) -> None:
    limits: list[tuple[int, int]] = []

    store = memory()
    await store.open()
    subscriptions = [
        PutSubscription(Subscription(n, "c", str(n), "topic://t", True)) for n in range(1, 401)
    ]
    adds = [AddMessage(n, text(n), tuple(range(1, 401))) for n in range(1, 30)]
    await store.write(WriteBatch([*subscriptions, *adds]))
    original = store.page_in

    async def watched(number: int, after: int, limit: int, bytes_max: int) -> Any:
        limits.append((limit, bytes_max))
        return await original(number, after, limit, bytes_max)

    store.page_in = watched  # type: ignore[method-assign]
    await store.close()
    store.contents.owner = None
    state = await store.open()
    counts = await carry_out(store, state, tmp_path / "out", silent)
    assert counts["messages"] == 29
    assert counts["pending_references"] == 29 * 400
    assert {limit * 400 for limit, _ in limits} == {20_000}
    assert all(size * 400 <= 32 << 20 for _, size in limits)


# ---------------------------------------------------------------------------------- refusals


async def test_a_store_that_holds_something_is_refused_and_not_changed(tmp_path: Path) -> None:
    source = memory()
    await carry_out(source, await source.open(), tmp_path / "out", silent)
    kept = Kept()
    store = kept()
    await store.open()
    await store.write(WriteBatch(EVERYTHING))
    await store.close()
    store = kept()
    state = await store.open()
    before = await contents(store, state)
    with pytest.raises(ConfigError, match=r"not empty \(2 destinations, 3 subscriptions"):
        await carry_in(store, state, tmp_path / "out", silent)
    assert await contents(store, state) == before


async def test_an_import_that_broke_off_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = memory()
    await source.open()
    await source.write(WriteBatch(EVERYTHING))
    await source.close()
    state = await source.open()
    await carry_out(source, state, tmp_path / "out", silent)
    monkeypatch.setattr(incoming, "BATCH_OPERATIONS", 5)
    kept = Kept()
    store = kept()
    state = await store.open()
    manifest = tmp_path / "out" / "manifest.json"
    whole = manifest.read_text()
    manifest.write_text(whole.replace('"rows": 4', '"rows": 5'))
    with pytest.raises(StoreIOError, match="it has 4 rows, but the manifest says 5"):
        await carry_in(store, state, tmp_path / "out", silent)
    await store.close()
    store = kept()
    with pytest.raises(ConfigError, match="part of an unfinished import"):
        await carry_in(store, await store.open(), tmp_path / "out", silent)


async def test_an_export_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    store = memory()
    await store.open()
    await store.write(WriteBatch(EVERYTHING))

    async def broken(*_: object) -> Any:
        raise StoreIOError("the disk is gone")

    store.page_in = broken  # type: ignore[method-assign]
    await store.close()
    state = await store.open()
    with pytest.raises(StoreIOError, match="the disk is gone"):
        await carry_out(store, state, tmp_path / "out", silent)
    assert not (tmp_path / "out").exists()


def test_an_existing_directory_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(ConfigError, match="already exists"):
        export_store(configured(tmp_path), tmp_path, silent)
    assert (tmp_path / "precious").read_text() == "mine"


def configured(directory: Path, *, persistent: bool = True) -> ConfiguredStore:
    return ConfiguredStore(
        "memory", MemoryStoreFactory(), MemoryStoreOptions(), directory, persistent=persistent
    )


def test_the_whole_way_by_configuration(tmp_path: Path) -> None:
    source = configured(tmp_path / "a")
    store = source.create()

    async def fill() -> None:
        await store.open()
        await store.write(WriteBatch(EVERYTHING))

    run(fill())
    with pytest.raises(StoreLockedError):
        export_store(source, tmp_path / "out", silent)
    run(store.close())
    told: list[tuple[str, int, int]] = []
    counts = export_store(source, tmp_path / "out", lambda *one: told.append(one))
    assert counts == {
        "destinations": 2,
        "subscriptions": 3,
        "sessions": 1,
        "inflight": 2,
        "retained": 1,
        "acknowledged": 4,
        "branches": 1,
        "duplicate_ids": 2,
        "messages": 8,
        "pending_references": 7,
    }
    assert told[-1] == ("messages", 6, 6)
    target = configured(tmp_path / "b")
    assert import_store(target, tmp_path / "out", silent) == counts
    with pytest.raises(ConfigError, match="not empty"):
        import_store(target, tmp_path / "out", silent)


def test_a_store_that_is_not_persistent_has_nothing_to_carry(tmp_path: Path) -> None:
    store = configured(tmp_path, persistent=False)
    with pytest.raises(ConfigError, match=r"broker\.persistent"):
        export_store(store, tmp_path / "out", silent)
    with pytest.raises(ConfigError, match=r"broker\.persistent"):
        import_store(store, tmp_path / "out", silent)


class OnDisk:
    """A reference store that says where it writes; the directory is there when it is opened."""

    def __init__(self, store: MessageStore, directory: Path) -> None:
        self._store = store
        self._directory = directory

    @property
    def capabilities(self) -> StoreCapabilities:
        return dataclasses.replace(self._store.capabilities, directories=(self._directory,))

    async def open(self) -> RecoveredState:
        (self._directory / "lock").touch()
        return await self._store.open()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class WritesIntoADirectory(MemoryStoreFactory):
    def create(self, context: StoreContext, options: object) -> MessageStore:
        store: Any = OnDisk(super().create(context, options), context.data_directory)
        return store


def test_what_was_never_made_is_not_exported_and_an_import_makes_it(tmp_path: Path) -> None:
    factory = WritesIntoADirectory()
    store = ConfiguredStore("disk", factory, MemoryStoreOptions(), tmp_path / "new" / "data")
    with pytest.raises(ConfigError, match="new/data: the directory does not exist") as caught:
        export_store(store, tmp_path / "out", silent)
    assert caught.value.key == "broker.data_directory"
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "out").exists()
    export_store(configured(tmp_path / "a"), tmp_path / "out", silent)
    import_store(store, tmp_path / "out", silent)
    assert store.data_directory.stat().st_mode & 0o777 == 0o700
    export_store(store, tmp_path / "again", silent)


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"pip install 'tidegate\[portable\]'"):
        export_store(configured(tmp_path), tmp_path / "out", silent)
