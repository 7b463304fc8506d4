"""The mark of a journal in front of the database."""

from __future__ import annotations

from pathlib import Path

import pytest
from jdbc_kit import QUEUE, new_store, opened, pending, write
from numbered import add

from tidegate.spi import StoreIOError
from tidegate_store_jdbc import Mark, Plan
from tidegate_store_jdbc.transactions.recovery import lost_journal, read_mark


async def test_a_mark_is_written_with_what_it_speaks_of(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    assert await store.acquire() is None
    plan = Plan(store.ack_last)
    store.extend(plan, [QUEUE, add(1)])
    mark = Mark("abc", "here:/journal", 17, True)
    await store.carry_out(plan, mark)
    await store.recover()
    assert await pending(store) == [1]
    assert await read_mark(store._adapter) == mark  # pyright: ignore[reportPrivateUsage]
    await store.carry_out(Plan(store.ack_last), Mark("abc", "here:/journal", 18, False))
    await store.close()
    store = new_store(tmp_path)
    assert await store.acquire() == Mark("abc", "here:/journal", 18, False)
    await store.close()


async def test_an_open_mark_names_the_place_and_the_way_out(tmp_path: Path) -> None:
    mark = Mark("abc", "here:/journal", 17, True)
    store = new_store(tmp_path)
    await store.acquire()
    await store.carry_out(Plan(), mark)
    await store.close()
    with pytest.raises(StoreIOError) as caught:
        await opened(tmp_path)
    for part in ("here:/journal", "plugin = 'journaled'", "journal_lost_policy"):
        assert part in str(caught.value)
        assert part in str(lost_journal(mark))


async def test_which_messages_are_kept_or_shared_is_told(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, add(1), add(2, 1, 2), add(3, 1, 2, 3))
    assert await store.kept([1, 2, 9]) == {1, 2}
    assert await store.shared() == {2: 2, 3: 3}
    assert store.is_owner_for_sure
    await store.confirm_ownership()
    await store.close()
