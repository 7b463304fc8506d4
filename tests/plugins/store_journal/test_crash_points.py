"""Power cuts at every kind of sync, on a disk that loses, tears and garbles what was not synced.

The load is recorded as the list of states that the store went through; whatever is found after the
cut must be one of them, and not one from before the last confirmation.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from journal_kit import ANY_SIZE, ack, add, opened, pending, run

from tidegate.spi import Durability, Operation, StoreError, WriteBatch
from tidegate.testing.faulty_storage import Faults, FaultyDisk
from tidegate_store_journal import JournalStore

LISTS = (1, 2)
State = tuple[tuple[int, ...], ...]


@dataclass
class History:
    """States after each batch; *confirmed* is the index of the last one known to be durable."""

    states: list[State]
    confirmed: int = 0
    sequence: int = 0
    released: int = 0
    lists: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    rows: list[int] = field(default_factory=list[int])

    def state(self) -> State:
        return (*(tuple(self.lists[list_id]) for list_id in LISTS), tuple(self.rows))


async def observed(store: JournalStore) -> History:
    """What is in the store, read through the contract."""
    lists = {list_id: await pending(store, list_id) for list_id in LISTS}
    first = store.statistics().acknowledged_first
    page = await store.acknowledged(first - 1, 1_000_000, ANY_SIZE)
    numbers = [row.ack_sequence for row in page.rows]
    assert numbers == list(range(first, first + len(numbers)))
    return History([], released=first - 1, lists=lists, rows=[row.sequence for row in page.rows])


async def load(store: JournalStore, history: History, chance: random.Random) -> None:
    """Random batches until the power goes (or a hundred)."""
    for _ in range(100):
        operations: list[Operation] = []
        for _ in range(chance.randrange(3)):
            history.sequence += 1
            lists = chance.choice([(1,), (2,), LISTS])
            size = chance.choice([5, 800, 20_000])
            operations.append(add(history.sequence, *lists, size=size))
            for list_id in lists:
                history.lists[list_id].append(history.sequence)
        list_id = chance.choice(LISTS)
        taken = history.lists[list_id][: chance.randrange(6)]
        if taken:
            del history.lists[list_id][: len(taken)]
            history.rows += taken
            operations.append(ack(*taken, pending_list=list_id))
        if not operations:
            continue
        history.states.append(history.state())
        durability = chance.choice(list(Durability))
        await store.write(WriteBatch(operations, durability))
        if durability is Durability.SYNCED:
            history.confirmed = len(history.states) - 1
        if chance.random() < 0.1:
            await store._checkpointer.run(cleanup=True)  # pyright: ignore[reportPrivateUsage]
            history.confirmed = len(history.states) - 1


def is_after(found: History, history: History) -> bool:
    """*found* is a state of *history* that is not older than the last confirmation.

    Rows that were released before the cut may be there again or not.
    """
    for lists_and_rows in history.states[history.confirmed :]:
        *lists, rows = lists_and_rows
        if [tuple(found.lists[list_id]) for list_id in LISTS] == lists and tuple(
            found.rows
        ) == rows[len(rows) - len(found.rows) :]:
            return True
    return False


async def live_and_crash(directory: Path, seed: int, **options: object) -> str:
    """Four lives that each end in a power cut. Returns: what was wrong, "" when nothing was."""
    chance = random.Random(seed)
    disk = FaultyDisk(seed)
    history = History([], lists={list_id: [] for list_id in LISTS})
    history.states.append(history.state())
    for _ in range(4):
        storage = disk.start(Faults(cut_at_sync=chance.randrange(1, 60)))
        store = None
        try:
            store, _ = await opened(directory, storage, keep=True, **options)
            await load(store, history, chance)
        except (StoreError, OSError):
            assert storage.is_off
        disk.cut_power()
        if store is not None:
            await store.close()
        storage = disk.start()
        store, state = await opened(directory, storage, keep=True)
        found = await observed(store)
        if not is_after(found, history):
            await store.close()
            return f"{found} is none of {history.states[history.confirmed :]}"
        # And it works as before: the next life begins here.
        found.sequence = max(state.last_sequence, *found.rows, 0)
        if found.rows:
            middle = found.released + chance.randrange(len(found.rows) + 1)
            await store.release_acknowledged(middle)
            found.rows = found.rows[middle - found.released :]
        found.states = [found.state()]
        history = found
        await store.close()
    return ""


@pytest.mark.parametrize("seed", range(40))
def test_after_a_power_cut_the_store_is_in_a_state_that_it_went_through(
    tmp_path: Path, seed: int
) -> None:
    assert run(live_and_crash(tmp_path, seed)) == ""


def test_without_syncs_the_same_check_finds_losses(tmp_path: Path) -> None:
    """The negative control: a check that cannot fail proves nothing."""
    problems = [
        run(live_and_crash(tmp_path, seed, journal_disk_sync_strategy="never"))
        for seed in range(10)
    ]
    assert any(problems)
