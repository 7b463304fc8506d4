"""What an export leaves, and that it leaves nothing when it fails."""

import asyncio
import errno
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from tidegate.portable import _out as outgoing
from tidegate.portable import carry_out
from tidegate.spi import ConfigError, RecoveredState, StoreContext, StoreFullError, WriteBatch
from tidegate.testing._portable_contents import everything
from tidegate.testing.memory_store import MemoryStore


def filled() -> MemoryStore:
    store = MemoryStore(StoreContext(Path(), "test", keep_acknowledged=True))

    async def fill() -> None:
        await store.open()
        await store.write(WriteBatch(everything()))
        await store.close()

    asyncio.run(fill())
    return store


async def carried(target: Path) -> None:
    store = filled_store
    await carry_out(store, await store.open(), target)


filled_store = filled()


@pytest.fixture(autouse=True)
async def closed() -> Any:
    yield
    await filled_store.close()


async def test_a_table_for_each_kind_of_thing_and_a_manifest(tmp_path: Path) -> None:
    await carried(tmp_path / "deep" / "out")
    assert sorted(path.name for path in (tmp_path / "deep" / "out").iterdir()) == [
        "acknowledged.parquet",
        "branches.parquet",
        "destinations.parquet",
        "duplicate_ids.parquet",
        "inflight.parquet",
        "manifest.json",
        "messages.parquet",
        "retained.parquet",
        "sessions.parquet",
        "subscriptions.parquet",
    ]


async def test_an_empty_directory_may_be_there_already(tmp_path: Path) -> None:
    await carried(tmp_path)
    await filled_store.close()
    with pytest.raises(ConfigError, match="already exists"):
        await carried(tmp_path)


async def test_a_full_disk_is_said_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(outgoing, "write_manifest", full)
    with pytest.raises(StoreFullError, match="cannot write the export"):
        await carried(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


async def test_what_the_format_has_no_place_for_is_refused_and_not_lost(tmp_path: Path) -> None:
    @dataclass(frozen=True, slots=True)
    class NewerState(RecoveredState):
        half_done_things: tuple[str, ...] = ()

    state = await filled_store.open()
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    with pytest.raises(ConfigError, match="the store holds half done things"):
        await carry_out(filled_store, NewerState(**values, half_done_things=("x",)), tmp_path)
    await carry_out(filled_store, NewerState(**values), tmp_path)
