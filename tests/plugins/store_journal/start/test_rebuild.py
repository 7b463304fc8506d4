"""Without the metadata store: everything comes back from the data files."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from journal_kit import (
    ANY_SIZE,
    CrashStorage,
    checkpoint,
    data_files,
    killed,
    opened,
    pending,
    unlink_bindings,
    write,
    write_only,
)
from numbered import ack, add, message

from tidegate.spi import (
    AddDestination,
    AddDuplicateId,
    Branch,
    BranchId,
    CorruptRecordError,
    Discard,
    DiscardReason,
    Durability,
    InflightDirection,
    InflightRecord,
    InflightState,
    Message,
    Move,
    Operation,
    PutBranch,
    PutInflight,
    PutSession,
    PutSubscription,
    RecoveredState,
    RemoveBranch,
    RemoveSubscription,
    Session,
    SetRetained,
    Subscription,
    WriteBatch,
)
from tidegate_store_journal import JournalStore
from tidegate_store_journal.index.acklog import AckBlock
from tidegate_store_journal.log.format import DATA_NAME, location
from tidegate_store_journal.start.rebuild import latest_rows


async def told(store: JournalStore, state: RecoveredState) -> tuple[Any, ...]:
    """Everything but the report."""
    return (
        state.store_id,
        state.last_sequence,
        state.last_pending_list,
        sorted((item.destination, item.pending_list, item.owner) for item in state.destinations),
        sorted(state.subscriptions, key=lambda item: item.pending_list),
        sorted(state.sessions, key=lambda item: item.key),
        sorted(state.inflight, key=lambda item: (item.session, item.packet_id)),
        sorted(state.retained, key=lambda item: item.destination),
        dict(state.pending),
        sorted(await store.recovered_branches(), key=lambda item: str(item.branch_id)),
        sorted(
            (i.destination, i.sequence, i.duplicate_id)
            for i in await store.recovered_duplicate_ids()
        ),
    )


async def rows_of(store: JournalStore) -> list[tuple[int, ...]]:
    first = store.log_statistics().first
    page = await store.acknowledged(first - 1, 100_000, ANY_SIZE)
    return [
        (row.ack_sequence, row.sequence, row.pending_list, row.delivered_at, row.acked_at)
        for row in page.rows
    ]


def last_file_id(store: JournalStore) -> int:
    return store._files.used()[-1].file_id  # pyright: ignore[reportPrivateUsage]


async def random_load(
    store: JournalStore,
    chance: random.Random,
    first: int,
    model: Any,
    branches: dict[BranchId, int],
) -> int:
    """Messages, acknowledgements and small state; *model* is {list: [sequence …]}.

    Args: branches: the list of each prepared branch.
    """
    sequence = first
    for _ in range(40):
        operations: list[Operation] = []
        for _ in range(chance.randrange(1, 5)):
            sequence += 1
            lists = chance.choice([(1,), (1,), (2,), (1, 2, 3)])
            operations.append(add(sequence, *lists, size=chance.choice([10, 500, 9000])))
            for list_id in lists:
                model[list_id].append(sequence)
        list_id = chance.choice([1, 2, 3])
        taken = model[list_id][: chance.randrange(0, 5)]
        if chance.random() < 0.9 and taken:
            # Now and then one stays behind for ever: it must not keep what came after it.
            del model[list_id][: len(taken)]
            operations.append(ack(*taken, pending_list=list_id))
        elif len(model[list_id]) > 3:
            gone = model[list_id].pop(2)
            if chance.random() < 0.5:
                operations.append(Discard(list_id, (gone,), DiscardReason.EXPIRED))
            else:
                sequence += 1
                operations.append(Move(list_id, gone, 4, sequence, message(sequence)))
                model[4].append(sequence)
        client = f"client-{chance.randrange(4)}"
        operations.append(AddDuplicateId(f"queue://{client}", f"id {sequence}", sequence))
        if chance.random() < 0.2:
            # Its list is new each time, so that what is left of old ones would be seen.
            branch_id = BranchId(1, client.encode())
            operations.append(RemoveBranch(branch_id, branches.get(branch_id, 0)))
            sequence += 1
            branches[branch_id] = 100 + sequence
            operations.append(PutBranch(Branch(branch_id, 100 + sequence)))
            operations.append(add(sequence, 100 + sequence, size=100))
        operations.append(PutSession(Session(client, chance.randrange(100))))
        operations.append(
            PutInflight(
                InflightRecord(
                    client, InflightDirection.IN, chance.randrange(9), InflightState.RECEIVED
                )
            )
        )
        operations.append(SetRetained(Message(f"topic://{client}", b"%d" % sequence)))
        await store.write(WriteBatch(operations, chance.choice(list(Durability))))
    return sequence


@pytest.mark.parametrize("seed", range(12))
async def test_deleting_the_metadata_store_changes_nothing(tmp_path: Path, seed: int) -> None:
    """Also when files with acknowledgements are long deleted: that is what live lists are for."""
    chance = random.Random(seed)
    directory = tmp_path / "a"
    store, _ = await opened(directory, keep=True)
    subscription = Subscription(3, "c", "n", "topic://t", True)
    await write(
        store,
        AddDestination("queue://one", 1, "ann"),
        AddDestination("queue://two", 2, "bob"),
        AddDestination("queue://four", 4),
        PutSubscription(subscription),
        PutSubscription(Subscription(5, "c", "gone", "topic://t", True)),
        add(1, 5),
    )
    model: dict[int, list[int]] = {1: [], 2: [], 3: [], 4: []}
    branches: dict[BranchId, int] = {}
    sequence = 1
    for turn in range(4):
        sequence = await random_load(store, chance, sequence, model, branches)
        for list_id, sequences in model.items():
            # Nearly everything is consumed, so that files die; the rest lives on in old ones.
            taken = sequences[1:-1]
            del sequences[1:-1]
            await write(store, ack(*taken, pending_list=list_id))
        if turn == 1:
            await write(store, RemoveSubscription(5))
        first = store.log_statistics().first
        last = store.log_statistics().last
        await store.release_acknowledged(chance.randrange((first + last) // 2, last + 1))
        await checkpoint(store, cleanup=chance.random() < 0.8)
    sequence = await random_load(store, chance, sequence, model, branches)
    await store._appender.sync()  # pyright: ignore[reportPrivateUsage]
    assert len(data_files(directory)) < last_file_id(store) - 5  # several were deleted
    with_metadata = killed(directory, tmp_path / "b")
    without = killed(directory, tmp_path / "c")
    rows = await rows_of(store)
    released = store.log_statistics().first
    statistics, log = store.statistics(), store.log_statistics()
    await store.close()
    shutil.rmtree(without / "journal" / "metadata")

    one, state_one = await opened(with_metadata, keep=True)
    two, state_two = await opened(without, keep=True)
    assert state_one.report.notes == ()
    assert "rebuilt" in state_two.report.notes[0]
    told_by_one = await told(one, state_one)
    assert told_by_one == await told(two, state_two)
    for reopened in (one, two):
        for list_id, expected in model.items():
            assert await pending(reopened, list_id) == expected
        assert await pending(reopened, 5) == []
        # What was released since the last checkpoint may come back: it is released again.
        found = await rows_of(reopened)
        assert found[len(found) - len(rows) :] == rows
        await reopened.release_acknowledged(released - 1)
        again = reopened.statistics()
        assert again.pending_messages == statistics.pending_messages
        again_log = reopened.log_statistics()
        assert (again_log.first, again_log.last) == (log.first, log.last)
        assert again_log.held_bytes == log.held_bytes
        await reopened.close()
    # And the rebuilt metadata store is as good as the old one.
    two, state = await opened(without, keep=True)
    assert state.report.clean
    assert told_by_one == await told(two, state)
    assert await rows_of(two) == rows
    await two.close()


async def test_without_bindings_and_metadata_the_messages_are_still_there(tmp_path: Path) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage)
    await write(store, AddDestination("queue://q", 1), add(1), add(2))
    await store.close()
    for damage in (False, True):
        other = storage.crash()
        if damage:
            (name,) = [name for name in other.list() if re.match(r"bindings.*\.data", name)]
            other.flip(name, 30)
            other.flip(name, 2048 + 30)  # it is there twice
            with pytest.raises(CorruptRecordError, match="CRC of its file header"):
                await opened(tmp_path, other)
        else:
            unlink_bindings(other)
        changes = {"damaged_journal_policy": "quarantine"} if damage else {}
        store, state = await opened(tmp_path, other, **changes)
        assert await pending(store) == [1, 2]
        assert [item.destination for item in state.destinations] == ["queue://q"]
        assert state.last_sequence == 2
        assert any("bindings" in note for note in state.report.notes) == damage
        await store.close()


async def test_sequences_are_not_used_again_when_everything_they_named_is_gone(
    tmp_path: Path,
) -> None:
    storage = CrashStorage()
    store, _ = await opened(tmp_path, storage, keep=True)
    for sequence in range(1, 10):
        await write(store, add(sequence, size=30_000))
        await write(store, ack(sequence))
    await store.release_acknowledged(9)
    await write_only(store, PutSession(Session("c", 1)))
    await store.close()
    names = [name for name in storage.list() if DATA_NAME.fullmatch(name)]
    assert len(names) <= 3
    store, state = await opened(tmp_path, storage, keep=True)
    assert state.last_sequence == 9
    assert store.log_statistics().last == 9
    await write(store, add(10), ack(10))
    page = await store.acknowledged(9, 10, ANY_SIZE)
    assert [row.ack_sequence for row in page.rows] == [10]
    await store.close()


def rows(first: int, count: int, file_id: int) -> AckBlock:
    numbers = range(first, first + count)
    places = [location(file_id, 5000 + row, 9, 1) for row in numbers]
    return AckBlock(first, 1, 0, "", "", "", tuple(numbers), places, (0,) * count)


def test_of_a_row_that_was_copied_the_last_place_counts() -> None:
    found = latest_rows([rows(1, 3, 1), rows(4, 2, 1), rows(2, 1, 5), rows(2, 1, 6), rows(5, 1, 6)])
    places = {
        block.first + number: place >> 100
        for block in found
        for number, place in enumerate(block.locations)
    }
    assert places == {1: 1, 2: 6, 3: 1, 4: 1, 5: 6}
    assert sum(block.count for block in found) == 5
