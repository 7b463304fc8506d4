"""Prepared branches and duplicate ids in the journal: kills, power cuts, rebuilds, compaction."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from journal_kit import checkpoint, data_files, killed, opened, pending, write, write_only
from numbered import ack, add

from tidegate.spi import (
    AddDestination,
    AddDuplicateId,
    Branch,
    BranchId,
    Durability,
    ForgetDuplicateIds,
    LockedMessages,
    Operation,
    PutBranch,
    RecoveredState,
    RemoveBranch,
    StoreError,
    WriteBatch,
)
from tidegate.testing.faulty_storage import Faults, FaultyDisk
from tidegate_store_journal import JournalStore, describe, inspect, why
from tidegate_store_journal.index.index import Index

QUEUE = AddDestination("queue://q", 1)
ONE = Branch(BranchId(1, b"one"), 7, client_id="manager", locked=(LockedMessages(1, (1,)),))


async def ids_of(store: JournalStore, destination: str = "queue://q") -> list[tuple[int, str]]:
    return [
        (known.sequence, known.duplicate_id)
        for known in await store.recovered_duplicate_ids()
        if known.destination == destination
    ]


def new_id(sequence: int) -> AddDuplicateId:
    return AddDuplicateId("queue://q", f"id {sequence}", sequence)


def without_metadata(directory: Path) -> Path:
    shutil.rmtree(directory / "journal" / "metadata")
    return directory


async def cleanup(store: JournalStore) -> None:
    await checkpoint(store, cleanup=True)


async def compact(store: JournalStore) -> int:
    compactor = store._compactor  # pyright: ignore[reportPrivateUsage]
    return compactor.copied_messages


# ---------------------------------------------------------------------------- prepared branches


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("metadata", [False, True])
async def test_a_branch_survives_a_kill_with_and_without_checkpoint_and_metadata(
    tmp_path: Path, saved: bool, metadata: bool
) -> None:
    store, _ = await opened(tmp_path / "a")
    await write(store, QUEUE, add(1), PutBranch(ONE), add(2, 7), add(3, 7))
    if saved:
        await checkpoint(store)
    two = Branch(BranchId(2, b"two"), 8)
    await write(store, PutBranch(two), add(4, 8))
    await write(store, RemoveBranch(BranchId(2, b"two"), 8))
    copy = killed(tmp_path / "a", tmp_path / "b")
    await store.close()
    if not metadata and saved:
        without_metadata(copy)
    store, state = await opened(copy)
    assert await store.recovered_branches() == [ONE]
    assert state.last_pending_list == 8
    assert await pending(store, 7) == [2, 3]
    assert await pending(store, 8) == []
    assert store.statistics().pending_messages == 3
    await store.close()


async def test_a_file_that_a_branch_keeps_names_the_branch_and_is_compacted(tmp_path: Path) -> None:
    """The branch is in doubt for very long; everything else comes and goes."""
    options = {"journal_compact_min_files": 1, "journal_compact_percentage": 50}
    store, _ = await opened(tmp_path / "a", journal_compact_min_files=0)
    await write(store, QUEUE, add(1), PutBranch(ONE), add(2, 7), add(3, 7))
    await write(store, ack(1))
    for sequence in range(4, 16):
        await write(store, add(sequence, size=20_000), ack(sequence))
    await cleanup(store)
    first = data_files(tmp_path / "a")[0]
    assert first.name == "journal-0000000001.data"
    await store.close()
    report = why(tmp_path / "a" / "journal", first.name)
    (holder,) = report.holders
    assert (holder.kind, holder.client_id, holder.subscription) == (
        "prepared branch",
        "manager",
        "1:6f6e65:",
    )
    assert "prepared branch client manager name 1:6f6e65: (list 7): messages 2, 3" in describe(
        report
    )
    store, _ = await opened(tmp_path / "a", **options)
    for sequence in range(20, 60):
        await write(store, add(sequence, size=20_000), ack(sequence))
    assert await compact(store) >= 2
    copy = killed(tmp_path / "a", tmp_path / "b")
    assert "journal-0000000001.data" not in {path.name for path in data_files(copy)}
    await store.close()
    for directory in (copy, without_metadata(killed(copy, tmp_path / "c"))):
        store, _ = await opened(directory)
        assert await store.recovered_branches() == [ONE]
        assert await pending(store, 7) == [2, 3]
        # Committed: visible once; and nothing keeps the old messages any more.
        await write(store, add(100), add(101), RemoveBranch(ONE.branch_id, 7))
        assert await pending(store) == [100, 101]
        assert await pending(store, 7) == []
        await write(store, ack(100, 101))
        await store.close()
        reports = inspect(directory / "journal")
        assert sum(report.references for report in reports) == 0


async def test_a_list_that_was_dropped_does_not_come_back_after_two_rebuilds(
    tmp_path: Path,
) -> None:
    """What it held had been copied; the first rebuild forgot that the drop spoke of the copies."""

    async def fill(store: JournalStore, first: int) -> None:
        for sequence in range(first, first + 7):
            await write(store, add(sequence, size=20_000), ack(sequence))

    store, _ = await opened(tmp_path / "a", journal_compact_min_files=1)
    await write(store, QUEUE, add(1), PutBranch(ONE), add(2, 7), add(3, 7))
    for first in range(20, 60, 7):
        await fill(store, first)
    await cleanup(store)
    assert await compact(store) >= 3
    await store.close()
    store, _ = await opened(tmp_path / "a", journal_compact_min_files=0)
    await fill(store, 100)
    await write(store, RemoveBranch(ONE.branch_id, 7))
    copy = without_metadata(killed(tmp_path / "a", tmp_path / "b"))
    await store.close()
    store, _ = await opened(copy, journal_compact_min_files=0)
    before = data_files(copy)
    await fill(store, 200)
    await cleanup(store)
    assert set(data_files(copy)).isdisjoint(before[1:])
    again = without_metadata(killed(copy, tmp_path / "c"))
    await store.close()
    store, state = await opened(again)
    assert list(state.pending) == [1]
    assert await pending(store) == [1]
    assert await pending(store, 7) == []
    await store.close()


async def test_a_message_that_a_branch_locks_names_the_branch_besides_its_queue(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, add(1), add(2), PutBranch(ONE), add(3, 7))
    await store.close()
    report = why(tmp_path / "journal", "journal-0000000001.data")
    assert [
        (item.kind, item.destination, item.pending_list, list(item.sequences))
        for item in report.holders
    ] == [
        ("queue", "queue://q", 1, [1, 2]),
        ("prepared branch", "queue://q", 1, [1]),
        ("prepared branch", "", 7, [3]),
    ]
    assert "prepared branch queue://q client manager name 1:6f6e65: (list 1): messages 1 (1," in (
        describe(report)
    )


# --------------------------------------------------------------------------------- duplicate ids


async def test_ids_survive_their_data_files_also_without_metadata(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path / "a")
    sequence = 0
    for _ in range(4):
        for _ in range(10):
            sequence += 1
            await write(store, new_id(sequence), add(sequence, size=20_000), ack(sequence))
        await write(store, ForgetDuplicateIds("queue://q", sequence - 25))
        await cleanup(store)
    await write_only(store, new_id(sequence + 1))
    assert data_files(tmp_path / "a")[0].name > "journal-0000000008.data"
    expected = [(number, f"id {number}") for number in range(sequence - 24, sequence + 2)]
    copy = killed(tmp_path / "a", tmp_path / "b")
    await store.close()
    rebuilt = without_metadata(killed(copy, tmp_path / "c"))
    for directory in (copy, rebuilt):
        store, state = await opened(directory)
        assert await ids_of(store) == expected
        assert state.last_sequence == sequence + 1
        await store.close()
        store, state = await opened(directory)
        assert await ids_of(store) == expected
        await store.close()


async def test_a_rebuild_does_not_remember_what_was_forgotten(tmp_path: Path) -> None:
    """The file that forgot them is gone, an older one that has them is not."""
    store, _ = await opened(tmp_path / "a", journal_compact_min_files=0)
    await write(store, QUEUE, add(1), new_id(1), new_id(2))
    await write(store, *[add(number, size=9000) for number in range(10, 16)])
    await write(store, add(16, size=20_000))  # does not fit into the first file
    await write(store, ack(*range(10, 17)), ForgetDuplicateIds("queue://q", 2), new_id(20))
    for number in range(30, 40):
        await write(store, add(number, size=20_000), ack(number))
    await cleanup(store)
    copy = killed(tmp_path / "a", tmp_path / "b")
    await store.close()
    store, _ = await opened(copy)
    assert await ids_of(store) == [(20, "id 20")]
    await store.close()
    store, _ = await opened(without_metadata(copy))
    assert await ids_of(store) == [(20, "id 20")]
    await store.close()


def test_ids_that_come_and_go_between_two_checkpoints_are_not_carried() -> None:
    index = Index(keep_acknowledged=False)

    def do(*operations: Operation) -> None:
        for operation in operations:
            index.apply_small[type(operation)](operation, 50)

    do(new_id(1), new_id(2), new_id(3), ForgetDuplicateIds("queue://q", 2))
    assert new_id(3) in index.take_changes().small.values()
    do(new_id(4), ForgetDuplicateIds("queue://q", 3), ForgetDuplicateIds("queue://never", 9))
    assert list(index.take_changes().small.values()) == [
        new_id(4),
        ForgetDuplicateIds("queue://q", 3),
    ]
    assert not index.take_changes().small


# ------------------------------------------------------------------------------------ power cuts

#: Pending in list 1; branches with what they send; duplicate ids.
State = tuple[tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...], tuple[int, ...]]


@dataclass
class Model:
    """States after each batch; *confirmed*: the last one known to be durable."""

    pending: list[int] = field(default_factory=list[int])
    branches: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    ids: list[int] = field(default_factory=list[int])
    sequence: int = 0
    last_list: int = 1
    states: list[State] = field(default_factory=list[State])
    confirmed: int = 0

    def state(self) -> State:
        branches = tuple((number, tuple(sent)) for number, sent in sorted(self.branches.items()))
        return tuple(self.pending), branches, tuple(self.ids)

    def next(self) -> int:
        self.sequence += 1
        return self.sequence


def branch_id(number: int) -> BranchId:
    return BranchId(1, b"%d" % number)


def step(model: Model, chance: random.Random) -> list[Operation]:
    """One random thing that a broker does."""
    operations: list[Operation] = []
    what = chance.randrange(6)
    if what == 0:
        model.last_list += 1
        number = model.last_list
        locked = (LockedMessages(1, tuple(model.pending[:1])),) if model.pending else ()
        operations.append(PutBranch(Branch(branch_id(number), number, locked=locked)))
        model.branches[number] = [model.next() for _ in range(chance.randrange(1, 4))]
        operations += [add(sent, number, size=4000) for sent in model.branches[number]]
    elif what == 1 and model.branches:
        number = chance.choice(list(model.branches))
        count = len(model.branches.pop(number))
        if chance.random() < 0.7:
            sent = [model.next() for _ in range(count)]
            model.pending += sent
            operations += [add(item, size=4000) for item in sent]
        operations.append(RemoveBranch(branch_id(number), number))
    elif what == 2 and model.pending:
        operations.append(ack(*model.pending[:4]))
        del model.pending[:4]
    elif what == 3 and len(model.ids) > 5:
        gone = model.ids[chance.randrange(len(model.ids) - 1)]
        model.ids = [item for item in model.ids if item > gone]
        operations.append(ForgetDuplicateIds("queue://q", gone))
    else:
        sequence = model.next()
        operations += [new_id(sequence), add(sequence, size=chance.choice([5, 9000]))]
        model.ids.append(sequence)
        model.pending.append(sequence)
    return operations


async def live(store: JournalStore, model: Model, chance: random.Random) -> None:
    for _ in range(120):
        operations = step(model, chance)
        model.states.append(model.state())
        durability = chance.choice(list(Durability))
        await store.write(WriteBatch(operations, durability))
        if durability is Durability.SYNCED:
            model.confirmed = len(model.states) - 1
        if chance.random() < 0.1:
            await cleanup(store)
            model.confirmed = len(model.states) - 1


async def found_in(store: JournalStore, state: RecoveredState) -> Model:
    branches: dict[int, list[int]] = {}
    for branch in await store.recovered_branches():
        assert branch.branch_id == branch_id(branch.pending_list)
        branches[branch.pending_list] = await pending(store, branch.pending_list)
    assert set(state.pending) <= {1, *branches}
    ids = [sequence for sequence, _ in await ids_of(store)]
    last_list = max(1, state.last_pending_list)
    return Model(await pending(store), branches, ids, state.last_sequence, last_list)


def is_one_of(found: State, states: Sequence[State]) -> bool:
    """A rebuild may bring back ids that were forgotten, older than all that are left."""
    for state in states:
        ids = found[2][len(found[2]) - len(state[2]) :]
        if found[:2] == state[:2] and ids == state[2]:
            return True
    return False


@pytest.mark.parametrize("metadata", [False, True])
@pytest.mark.parametrize("seed", range(20))
async def test_after_a_power_cut_branches_and_ids_are_as_they_were_once(
    tmp_path: Path, seed: int, metadata: bool
) -> None:
    chance = random.Random(seed)
    disk = FaultyDisk(seed, metadata_directory=tmp_path / "metadata" if metadata else None)
    model = Model()
    model.states = [model.state()]
    options = {"journal_compact_min_files": 3, "journal_compact_percentage": 50}
    for _ in range(3):
        storage = disk.start(Faults(cut_at_sync=chance.randrange(1, 80)))
        store = None
        try:
            store, _ = await opened(tmp_path, storage, **options)
            await live(store, model, chance)
        except (StoreError, OSError):
            assert storage.is_off
        disk.cut_power()
        if store is not None:
            await store.close()
        store, state = await opened(tmp_path, disk.start())
        found = await found_in(store, state)
        await store.close()
        assert is_one_of(found.state(), model.states[model.confirmed :])
        found.states = [found.state()]
        model = found
