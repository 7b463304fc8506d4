"""Lists whose owner was lost with a damaged batch: queues get theirs back, others are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from journal_kit import ANY_SIZE, damage_byte, killed, opened, pending, write
from numbered import add

from tidegate.spi import (
    AddDestination,
    AddMessage,
    Message,
    Operation,
    PutSubscription,
    RecoveredState,
    Subscription,
)
from tidegate_store_journal import JournalStore
from tidegate_store_journal.log.format import DATA_OFFSET

QUARANTINE = {"damaged_journal_policy": "quarantine"}
NAME = "journal-0000000001.data"


async def damaged_start(
    where: Path, first: list[Operation], *rest: Operation
) -> tuple[JournalStore, RecoveredState, str]:
    """A journal that was killed, the batch *first* damaged, and the next start's report."""
    store, _ = await opened(where / "a")
    await write(store, *first)
    for operation in rest:
        await write(store, operation)
    copy = killed(where / "a", where / "b")
    await store.close()
    damage_byte(copy / "journal" / NAME, DATA_OFFSET + 60)
    store, state = await opened(copy, **QUARANTINE)
    return store, state, (copy / "journal" / "damage-0001.report").read_text()


async def test_a_queue_gets_its_list_back_when_the_batch_that_made_it_was_damaged(
    tmp_path: Path,
) -> None:
    store, state, report = await damaged_start(
        tmp_path, [AddDestination("queue://q", 1), add(1)], add(2), add(3)
    )
    assert [(item.destination, item.pending_list) for item in state.destinations] == [
        ("queue://q", 1)
    ]
    assert await pending(store) == [2, 3]
    assert "queue://q has list 1" in report
    assert any("queue://q has list 1" in note for note in state.report.notes)
    await store.close()
    store, state = await opened(tmp_path / "b")
    assert [item.destination for item in state.destinations] == ["queue://q"]
    assert await pending(store) == [2, 3]
    await store.close()


@pytest.mark.parametrize("destination", ["topic://news", "queue://$temporary.1.x"])
async def test_a_list_that_no_queue_can_have_is_reported(tmp_path: Path, destination: str) -> None:
    subscription = Subscription(4, "c", "s", "topic://news", True)
    store, state, report = await damaged_start(
        tmp_path,
        [PutSubscription(subscription), AddDestination("queue://other", 9)],
        AddMessage(2, Message(destination, b"2 "), (4,)),
    )
    assert state.destinations == []
    assert "1 messages are pending in list 4" in report
    assert f"they were sent to {destination}" in report
    assert len(await store.page_in(4, 0, 10, ANY_SIZE)) == 1
    await store.close()


async def test_a_queue_that_has_a_list_keeps_it(tmp_path: Path) -> None:
    store, state, report = await damaged_start(
        tmp_path, [add(1)], add(2), AddDestination("queue://q", 5), add(3, 5)
    )
    assert [item.pending_list for item in state.destinations] == [5]
    assert "1 messages are pending in list 1" in report
    assert await pending(store, 5) == [3]
    await store.close()
