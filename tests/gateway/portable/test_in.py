"""What an import refuses, and what a store without an acknowledged log gets."""

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.portable import _in as incoming
from tidegate.portable import carry_in, carry_out
from tidegate.spi import (
    ConfigError,
    Durability,
    StoreCapabilities,
    StoreContext,
    StoreIOError,
    WriteBatch,
)
from tidegate.testing._portable_contents import contents, everything
from tidegate.testing.memory_store import MemoryStore


def memory() -> MemoryStore:
    return MemoryStore(StoreContext(Path(), "test", keep_acknowledged=True))


@pytest.fixture
async def exported(tmp_path: Path) -> Path:
    store = memory()
    await store.open()
    await store.write(WriteBatch(everything()))
    await store.close()
    await carry_out(store, await store.open(), tmp_path / "out")
    return tmp_path / "out"


async def imported(source: Path, store: Any) -> Any:
    return await carry_in(store, await store.open(), source)


async def test_batches_are_small_ordered_and_made_durable_on_the_way(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "BATCH_OPERATIONS", 3)
    monkeypatch.setattr(incoming, "_SYNC_EVERY", 2)
    store = memory()
    batches: list[tuple[int, Durability]] = []
    original = store.write

    async def write(batch: WriteBatch) -> None:
        batches.append((len(batch), batch.durability))
        await original(batch)

    store.write = write  # type: ignore[method-assign]
    await imported(exported, store)
    assert max(size for size, _ in batches) == 3
    assert batches[-1][1] is Durability.SYNCED
    kinds = [durability for _, durability in batches[1:-1]]
    assert kinds[:4] == [Durability.WRITTEN, Durability.SYNCED] * 2


async def test_no_helper_of_the_import_is_left(exported: Path) -> None:
    store = memory()
    await imported(exported, store)
    await store.close()
    state = await store.open()
    assert {item.destination for item in state.destinations} == {"queue://q", "topic://t"}


async def test_a_store_without_an_acknowledged_log_gets_what_is_pending(exported: Path) -> None:
    class Forgetful:
        def __init__(self) -> None:
            self.inner = MemoryStore(StoreContext(Path(), "test", keep_acknowledged=False))
            self.capabilities = StoreCapabilities(durable=True, branches=self.inner)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    store = Forgetful()
    counts = await imported(exported, store)
    assert (counts["acknowledged"], counts["duplicate_ids"]) == (0, 0)
    await store.close()
    held = await contents(store, await store.open())  # type: ignore[arg-type]  # passes all on
    whole = memory()
    await imported(exported, whole)
    await whole.close()
    assert held["pending"] == (await contents(whole, await whole.open()))["pending"]


@pytest.mark.parametrize(("table", "said"), [("messages", "messages"), ("sessions", "sessions")])
async def test_a_table_that_is_missing_is_named_before_anything_is_written(
    exported: Path, table: str, said: str
) -> None:
    (exported / f"{table}.parquet").unlink()
    store = memory()
    with pytest.raises(ConfigError, match=f"incomplete: {said}"):
        await imported(exported, store)
    assert store.contents.destinations == {}


async def test_a_table_of_a_newer_program_is_refused(exported: Path) -> None:
    path = exported / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["tables"]["colours"] = {"rows": 0}
    path.write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=r"tables that this version does not know.*colours"):
        await imported(exported, memory())


async def test_rows_that_are_missing_are_noticed(exported: Path) -> None:
    path = exported / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["tables"]["messages"]["rows"] += 1
    path.write_text(json.dumps(manifest))
    with pytest.raises(StoreIOError, match="it has 8 rows, but the manifest says 9"):
        await imported(exported, memory())


async def test_a_store_that_lost_something_on_the_way_is_noticed(exported: Path) -> None:
    store = memory()
    original = store.write

    async def lossy(batch: WriteBatch) -> None:
        batch.operations[:] = [
            item for item in batch.operations if getattr(item, "sequence", 0) != 14
        ]
        await original(batch)

    store.write = lossy  # type: ignore[method-assign]
    with pytest.raises(StoreIOError, match="the store holds 5 of 6 messages"):
        await imported(exported, store)


async def test_a_bit_flipped_anywhere_in_any_file_is_noticed_before_anything_is_written(
    exported: Path,
) -> None:
    store = memory()

    state = await store.open()
    for path in sorted(exported.glob("*.parquet")):
        whole = path.read_bytes()
        for offset in range(0, len(whole), 61):
            damaged = bytearray(whole)
            damaged[offset] ^= 1 << offset % 8
            path.write_bytes(damaged)
            with pytest.raises(StoreIOError, match=f"{path.name}: the export is damaged"):
                await carry_in(store, state, exported)
        path.write_bytes(whole)
    assert store.contents.destinations == {}
    assert (await carry_in(store, state, exported))["messages"] == 8


async def test_branches_need_a_store_that_can_hold_them(exported: Path) -> None:
    class Plain:
        def __init__(self) -> None:
            self.inner = memory()
            self.capabilities = StoreCapabilities(durable=True, acknowledged_log=self.inner)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    store = Plain()
    with pytest.raises(ConfigError, match="1 branches of distributed transactions"):
        await imported(exported, store)
    assert store.inner.contents.destinations == {}
