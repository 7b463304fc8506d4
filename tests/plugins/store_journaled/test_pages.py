"""Pages of a list that begins in the database and ends in the journal."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from jdbc_kit import QUEUE, pending
from journaled_kit import checkpoint, opened, write
from numbered import ack, add

from tidegate.spi import CorruptRecordError, RecordDelivery


@pytest.mark.parametrize("quick", [False, True])
async def test_pages_go_over_the_border_with_limits(tmp_path: Path, quick: bool) -> None:
    store, _ = await opened(tmp_path, use_quick_journal=quick)
    await write(store, QUEUE, *[add(n) for n in range(1, 11)])
    await checkpoint(store)
    await write(store, *[add(n) for n in range(11, 21)], ack(2, 3, 12))
    expected = [n for n in range(1, 21) if n not in (2, 3, 12)]
    assert await pending(store) == expected
    for limit in (1, 3, 7):
        found: list[int] = []
        while page := await store.page_in(1, found[-1] if found else 0, limit, 1 << 30):
            assert len(page) <= limit
            found += [stored.sequence for stored in page]
            assert all(s.message.body == add(s.sequence).message.body for s in page)
        assert found == expected
    sizes = [len(await store.page_in(1, after, 100, 250)) for after in (0, 9, 12)]
    assert sizes == [1, 1, 2] or sizes == [2, 2, 2]
    assert len(await store.page_in(1, 0, 100, 0)) == 1
    await store.close()


async def test_a_page_is_empty_only_at_the_end(tmp_path: Path) -> None:
    """However much of the database was acknowledged since the last checkpoint."""

    store, _ = await opened(tmp_path)
    await write(store, QUEUE, *[add(n) for n in range(1, 501)])
    await checkpoint(store)
    await write(store, ack(*range(1, 500)))
    assert [s.sequence for s in await store.page_in(1, 0, 10, 1 << 30)] == [500]
    await write(store, ack(500))
    assert await store.page_in(1, 0, 10, 1 << 30) == []
    await store.close()


async def test_delivery_counts_of_the_journal_replace_those_of_the_database(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, add(1), add(2))
    await checkpoint(store)
    await write(store, add(3), RecordDelivery(1, (1, 3), (4, 5)))
    page = await store.page_in(1, 0, 10, 1 << 30)
    assert [stored.delivery_count for stored in page] == [4, 0, 5]
    await store.close()
    store, _ = await opened(tmp_path)
    page = await store.page_in(1, 0, 10, 1 << 30)
    assert [stored.delivery_count for stored in page] == [4, 0, 5]
    await store.close()


async def test_damaged_rows_of_the_log_say_what_is_whole_and_those_that_are_gone_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = await opened(tmp_path, keep=True, use_quick_journal=True)
    await write(store, QUEUE, *[add(n) for n in range(1, 4)])
    await checkpoint(store)
    await write(store, ack(1, 2, 3))
    await checkpoint(store)
    with contextlib.closing(sqlite3.connect(tmp_path / "tidegate.db")) as connection:
        connection.execute("DELETE FROM TIDEGATE_MSGS WHERE sequence = 3")
        connection.commit()
    page = await store.acknowledged(2, 1, 1 << 20)
    assert (page.rows, page.last) == ([], 3)

    async def none_of_them(numbers: Sequence[int]) -> dict[int, bytes]:
        assert numbers
        return {}

    monkeypatch.setattr(store._front, "bodies", none_of_them)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(CorruptRecordError, match="does not have its body") as caught:
        await store.acknowledged(0, 1, 1 << 20)
    known = caught.value.known
    assert known is not None
    assert (known.ack_sequence, known.message.destination) == (1, "queue://q")
    await store.close()
