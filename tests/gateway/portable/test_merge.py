"""Lists and log merged into one stream of messages, each once."""

import random
from pathlib import Path

from tidegate.portable._merge import Found, LogSorter, merged
from tidegate.spi import (
    AcknowledgedMessage,
    AddMessage,
    Discard,
    DiscardReason,
    Message,
    PutSubscription,
    RecordDelivery,
    StoreContext,
    Subscription,
    WriteBatch,
)
from tidegate.testing.memory_store import MemoryStore


def text(number: int) -> Message:
    return Message("topic://t", b"%d" % number)


async def test_random_lists_give_each_message_once_in_order_with_all_its_lists() -> None:
    chance = random.Random(7)

    store = MemoryStore(StoreContext(Path(), "test"))
    await store.open()
    lists = list(range(1, 13))
    batch = WriteBatch(
        [PutSubscription(Subscription(n, "c", str(n), "topic://t", True)) for n in lists]
    )
    held: dict[int, list[tuple[int, int]]] = {}
    for sequence in sorted(chance.sample(range(1, 10_000), 3000)):
        chosen = sorted(chance.sample(lists, chance.randint(1, 5)))
        batch.operations.append(AddMessage(sequence, text(sequence), tuple(chosen)))
        counts = {number: chance.choice((0, 0, 3)) for number in chosen}
        for number, count in counts.items():
            if count:
                batch.operations.append(RecordDelivery(number, (sequence,), (count,)))
        gone = chosen.pop() if chance.random() < 0.3 else 0
        if gone:
            batch.operations.append(Discard(gone, (sequence,), DiscardReason.DROPPED))
        if chosen:
            held[sequence] = [(number, counts[number]) for number in chosen]
    await store.write(batch)
    log = [Found(sequence, text(sequence), [], [9]) for sequence in sorted(held)[::10]]
    log.append(Found(10_001, text(10_001), [], [1]))
    log.insert(5, Found(log[4].sequence, log[4].message, [], [8]))
    found = [one async for one in merged(store, lists, iter(log))]
    assert {one.sequence: sorted(one.pending) for one in found if one.pending} == held
    assert [one.sequence for one in found] == sorted({*held, 10_001})
    assert all(one.message == text(one.sequence) for one in found)
    assert [one.acknowledged for one in found if one.acknowledged][4] == [9, 8]
    assert sum(len(one.acknowledged) for one in found) == len(log)


def row(number: int, sequence: int, pending_list: int = 1) -> AcknowledgedMessage:
    return AcknowledgedMessage(number, sequence, text(sequence), pending_list, 0, 0, "", "", "")


def test_the_sorter_gives_back_every_row_in_order_with_and_without_files(tmp_path: Path) -> None:
    chance = random.Random(3)
    sequences = [chance.randrange(500) for _ in range(2000)]
    for run_bytes, files in ((1 << 30, 0), (75_000, 12)):
        sorter = LogSorter(tmp_path, run_bytes=run_bytes)
        for number, sequence in enumerate(sequences):
            sorter.add(row(number, sequence, number))
        assert len(list(tmp_path.glob("sorting-*.tmp"))) >= files
        found = list(sorter.rows())
        assert [one.sequence for one in found] == sorted(sequences)
        assert sorted(one.acknowledged[0] for one in found) == list(range(2000))
        assert all(one.message == text(one.sequence) for one in found)
        sorter.remove()
        assert list(tmp_path.iterdir()) == []
