"""Reading batches back: only what is newer, and not in silence."""

from __future__ import annotations

from pathlib import Path

from journal_kit import checkpoint, killed, opened, options, pending, write
from numbered import ack, add

from tidegate.spi import (
    StoreContext,
)
from tidegate_store_journal import JournalStore


async def test_a_kill_replays_only_what_is_newer_than_the_checkpoint(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path / "a")
    await write(store, *[add(sequence) for sequence in range(1, 101)])
    await checkpoint(store)
    await write(store, add(101), ack(5))
    await write(store, add(102))
    copy = killed(tmp_path / "a", tmp_path / "b")
    await store.close()
    store, state = await opened(copy)
    assert state.report.counts["replayed"] == 3
    assert not state.report.clean
    assert state.report.notes == ()
    assert await pending(store) == [*range(1, 5), *range(6, 103)]
    await store.close()
    store, state = await opened(copy)
    assert state.report.clean
    assert state.report.counts["replayed"] == 0
    await store.close()


async def test_progress_is_reported_while_replaying(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path / "a")
    for sequence in range(1, 4):
        await write(store, add(sequence))
    copy = killed(tmp_path / "a", tmp_path / "b")
    await store.close()
    told: list[tuple[str, int, int]] = []
    context = StoreContext(copy, "test", progress=lambda *item: told.append(item))
    store = JournalStore(context, options())
    await store.open()
    assert [what for what, _, _ in told if "replaying" in what]
    assert all(0 <= done <= total for _, done, total in told)
    await store.close()
