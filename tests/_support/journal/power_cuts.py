"""Lives of a store that each end in a power cut, and the states that it went through.

Two loads: one that consumes in order, and a *sparse* one that leaves a few messages in every data
file for long, so that files are compacted, used again and archived all the time.

The load is recorded as the list of states that the store went through; whatever is found after the
cut must be one of them, and not one from before the last confirmation.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from journal_kit import ANY_SIZE, checkpoint, opened, pending, with_maps, with_ring
from numbered import ack, add

from tidegate.spi import Durability, Operation, StoreError, WriteBatch
from tidegate.testing.faulty_storage import Faults, FaultyDisk
from tidegate_store_journal import JournalStore

#: Seeds of one job of ``make crash``.
BLOCK = 25
LISTS = (1, 2)
State = tuple[tuple[int, ...], ...]
#: Compaction as eager as it can be.
EAGER = {"journal_compact_min_files": 3, "journal_compact_percentage": 50}


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

    async def write(
        self, store: JournalStore, operations: list[Operation], chance: random.Random
    ) -> None:
        """One batch, which leads to what the lists and rows are now."""
        self.states.append(self.state())
        durability = chance.choice(list(Durability))
        await store.write(WriteBatch(operations, durability))
        if durability is Durability.SYNCED:
            self.confirmed = len(self.states) - 1


async def observed(store: JournalStore) -> History:
    """What is in the store, read through the contract."""
    lists = {list_id: await pending(store, list_id) for list_id in LISTS}
    first = store.log_statistics().first
    page = await store.acknowledged(first - 1, 1_000_000, ANY_SIZE)
    numbers = [row.ack_sequence for row in page.rows]
    assert numbers == list(range(first, first + len(numbers)))
    for row in page.rows:
        assert row.message.body.split()[0] == b"%d" % row.sequence
    return History([], released=first - 1, lists=lists, rows=[row.sequence for row in page.rows])


Load = Callable[[JournalStore, History, random.Random], Awaitable[None]]


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
        await history.write(store, operations, chance)
        if chance.random() < 0.1:
            await checkpoint(store, cleanup=True)
            history.confirmed = len(history.states) - 1


def is_after(found: History, history: History) -> bool:
    """*found* is a state of *history* that is not older than the last confirmation.

    Rows that were released before the cut may be there again or not.
    """
    if found.released > history.released:
        return False
    for lists_and_rows in history.states[history.confirmed :]:
        *lists, rows = lists_and_rows
        if [tuple(found.lists[list_id]) for list_id in LISTS] == lists and tuple(
            found.rows
        ) == rows[len(rows) - len(found.rows) :]:
            return True
    return False


async def sparse_load(store: JournalStore, history: History, chance: random.Random) -> None:
    """As :func:`load`, but one message in eight stays, and rows are released now and then."""
    staying: set[int] = set()
    for _ in range(150):
        operations: list[Operation] = []
        for _ in range(1 + chance.randrange(4)):
            history.sequence += 1
            lists = chance.choice([(1,), (1,), (2,), LISTS])
            size = chance.choice([5, 1500, 6000, 20_000])
            operations.append(add(history.sequence, *lists, size=size))
            if chance.random() < 0.125:
                staying.add(history.sequence)
            for list_id in lists:
                history.lists[list_id].append(history.sequence)
        for list_id in LISTS:
            taken = [item for item in history.lists[list_id] if item not in staying]
            taken = taken[: chance.randrange(9)]
            if taken:
                gone = set(taken)
                history.lists[list_id] = [i for i in history.lists[list_id] if i not in gone]
                history.rows += taken
                operations.append(ack(*taken, pending_list=list_id))
        if len(staying) > 40:
            staying -= set(chance.sample(sorted(staying), 20))
        await history.write(store, operations, chance)
        if chance.random() < 0.2:
            last = store.log_statistics().last
            history.released = max(history.released, last - chance.randrange(8))
            await store.release_acknowledged(history.released)


async def live_and_crash(
    directory: Path,
    seed: int,
    live: Load = load,
    syncs: int = 60,
    *,
    metadata: bool = False,
    **options: object,
) -> str:
    """Four lives that each end in a power cut. Returns: what was wrong, "" when nothing was."""
    chance = random.Random(seed)
    disk = FaultyDisk(seed, metadata_directory=directory / "metadata" if metadata else None)
    history = History([], lists={list_id: [] for list_id in LISTS})
    history.states.append(history.state())
    for _ in range(4):
        storage = with_ring(disk.start(Faults(cut_at_sync=chance.randrange(1, syncs))), seed)
        if options.get("journal_type") == "MAPPED":
            storage = with_maps(storage)
        store = None
        try:
            store, _ = await opened(directory, storage, keep=True, **options)
            await live(store, history, chance)
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
            found.released = middle
        found.states = [found.state()]
        history = found
        await store.close()
    return ""


def policy_of(seed: int) -> dict[str, object]:
    """Each seed puts dead files away in another way."""
    return {
        **EAGER,
        "archive_data_logs": seed % 4 == 3,
        "journal_pool_files": (-1, 3, 6, -1)[seed % 4],
    }
