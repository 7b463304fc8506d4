"""What is pending although its bytes are gone is found, named and dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
from journal_kit import ANY_SIZE, data_files, opened, pending, write
from numbered import ack, add

from tidegate.spi import (
    AddDestination,
    CorruptRecordError,
    PutSubscription,
    Subscription,
)
from tidegate_store_journal import JournalStore

QUARANTINE = {"damaged_journal_policy": "quarantine"}


def break_message(store: JournalStore, pending_list: int, sequence: int) -> None:
    """Turn a bit in the middle of a stored message."""
    place = store._index.lists[pending_list].get(sequence)  # pyright: ignore[reportPrivateUsage]
    assert place is not None
    offset = (place >> 64 & (1 << 35) - 1) + 60
    handle = store._files.used()[0].handle  # pyright: ignore[reportPrivateUsage]
    assert handle is not None
    handle.pwritev([bytes([handle.pread(1, offset)[0] ^ 8])], offset)


async def test_with_refuse_a_list_goes_on_up_to_the_damaged_message(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, AddDestination("queue://q", 1), *[add(item) for item in range(1, 7)])
    break_message(store, 1, 4)
    page = await store.page_in(1, 0, 10, ANY_SIZE)
    assert [item.sequence for item in page] == [1, 2, 3]
    with pytest.raises(CorruptRecordError, match="message 4"):
        await store.page_in(1, 3, 10, ANY_SIZE)
    assert store.statistics().pending_messages == 6
    assert not list((tmp_path / "journal").glob("damage-*"))
    await store.close()


async def test_a_page_of_nothing_but_damaged_messages_does_not_end_the_list(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, **QUARANTINE)
    subscription = Subscription(2, "c", "s", "topic://t", True)
    await write(store, AddDestination("queue://q", 1), PutSubscription(subscription))
    await write(store, *[add(item, 1, 2) for item in range(1, 7)], add(7, 9))
    for sequence in (1, 2, 3, 7):
        break_message(store, 1 if sequence < 7 else 9, sequence)
    page = await store.page_in(1, 0, 3, ANY_SIZE)
    assert [item.sequence for item in page] == [4, 5, 6]
    assert await store.page_in(9, 0, 3, ANY_SIZE) == ()
    # Shared: the other list finds out by itself, and nothing is counted twice.
    assert await pending(store, 2) == [4, 5, 6]
    assert store.statistics().pending_messages == 3
    text = (tmp_path / "journal" / "damage-0001.report").read_text()
    assert text.count("message 2 of queue://q (list 1)") == 1
    assert "message 2 of topic://t of client 'c', subscription 's' of '' (list 2)" in text
    assert "message 7 of list 9, whose destination is not known" in text
    await store.close()
    store, _ = await opened(tmp_path)
    assert await pending(store) == [4, 5, 6]
    await store.close()


async def test_all_that_was_in_a_missing_file_is_dropped_and_rows_up_to_the_last_of_it(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await write(store, AddDestination("queue://q", 1), AddDestination("queue://r", 2))
    for sequence in range(1, 8):
        await write(store, add(sequence, 1, 2, size=20_000))
    await write(store, ack(4))
    await store.close()
    second = data_files(tmp_path)[1]
    second.unlink()
    store, state = await opened(tmp_path, keep=True, ignore_missing_journalfiles=True)
    assert await pending(store) == [1, 2, 3, 7]
    assert await pending(store, 2) == [1, 2, 3, 7]
    assert store.log_statistics().first == 2
    text = (tmp_path / "journal" / "damage-0001.report").read_text()
    assert "5 pending messages are lost because the data files are missing that held them" in text
    assert "  queue://q (list 1): 5-6\n  queue://r (list 2): 4-6" in text
    assert any("Rows 1 to 1 of the acknowledged log are lost" in n for n in state.report.notes)
    await store.close()
