"""Starting again: after a kill, a power cut, a torn tail, damage, and without the metadata store."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from journal_kit import (
    ANY_SIZE,
    CrashStorage,
    ack,
    add,
    data_files,
    killed,
    message,
    opened,
    options,
    pending,
    run,
    write,
    write_only,
)

from tidegate.spi import (
    AddDestination,
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
    PutInflight,
    PutSession,
    PutSubscription,
    RecoveredState,
    RemoveSubscription,
    Session,
    SetRetained,
    StoreContext,
    Subscription,
    WriteBatch,
)
from tidegate_store_journal import JournalStore
from tidegate_store_journal._format import DATA_OFFSET

NAME = "journal-0000000001.data"


async def tail_of(store: JournalStore) -> int:
    """Offset behind the last batch."""
    return store._tail.offset  # pyright: ignore[reportPrivateUsage]


# ------------------------------------------------------------------------------------- torn tail


def test_a_tail_torn_at_any_byte_is_cut_off_and_the_rest_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store, _ = await opened(tmp_path, storage)
        await write(store, AddDestination("queue://q", 1), add(1, size=20))
        begin = await tail_of(store)
        await write(store, add(2, size=5))
        end = await tail_of(store)
        whole = bytes(storage.open(NAME).pread(1 << 20, 0))
        await store.close()
        for cut in range(begin, end + 1):
            torn = storage.crash()
            file = torn.open(NAME)
            file.pwritev([whole[:cut], bytes(len(whole) - cut)], 0)
            torn.unlink("bindings.snapshot")
            store, state = await opened(tmp_path, torn)
            # What was cut off may have been zeros anyway.
            complete = whole[:cut] + bytes(len(whole) - cut) == whole
            assert await pending(store) == ([1, 2] if complete else [1])
            # Bytes that happen to be zero at the cut are not missed.
            lost = whole[begin:cut].rstrip(b"\0")
            assert state.report.repaired_bytes == (0 if complete else len(lost))
            copies = [name for name in torn.list() if name.endswith(".torn")]
            if lost and not complete:
                assert copies == [f"{NAME}.{begin}.torn"]
                assert torn.open(copies[0]).pread(1 << 20, 0) == lost
            else:
                assert copies == []
            await write(store, add(3))
            await store.close()
            store, state = await opened(tmp_path, torn)
            assert await pending(store) == ([1, 2, 3] if complete else [1, 3])
            assert state.report.repaired_bytes == 0
            await store.close()

    run(scenario())


def test_a_file_that_is_shorter_than_it_should_be_is_torn_and_made_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, _ = await opened(tmp_path / "a")
        await write(store, add(1))
        await write(store, add(2))
        copy = killed(tmp_path / "a", tmp_path / "b")
        end = await tail_of(store)
        await store.close()
        path = data_files(copy)[0]
        length = path.stat().st_size
        path.write_bytes(path.read_bytes()[: end - 3])
        store, state = await opened(copy)
        assert await pending(store) == [1]
        assert state.report.repaired_bytes > 0
        assert not state.report.clean
        assert path.stat().st_size == length
        await write(store, add(3))
        await store.close()

    run(scenario())


@pytest.mark.parametrize("seed", range(25))
def test_a_power_cut_leaves_a_beginning_with_everything_that_was_synced(
    tmp_path: Path, seed: int
) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        storage = CrashStorage(tmp_path / "metadata" if seed % 2 else None)
        store, _ = await opened(tmp_path, storage, keep=True)
        sequence = 0
        for number_of_cut in range(3):
            # States after each batch; what was synced may not be lost.
            alive: list[int] = await pending(store)
            states = [list(alive)]
            synced = 0
            for number in range(1, chance.randrange(2, 25)):
                operations: list[Operation] = []
                for _ in range(chance.randrange(1, 4)):
                    sequence += 1
                    operations.append(add(sequence, size=chance.choice([10, 3000, 30_000])))
                    alive.append(sequence)
                if chance.random() < 0.5:
                    taken = alive[: chance.randrange(1, 4)]
                    del alive[: len(taken)]
                    operations.append(ack(*taken))
                durability = chance.choice([Durability.SYNCED, Durability.WRITTEN])
                await store.write(WriteBatch(operations, durability))
                if chance.random() < 0.2:
                    await store._checkpointer.run(cleanup=True)  # pyright: ignore[reportPrivateUsage]
                    synced = number
                states.append(list(alive))
                if durability is Durability.SYNCED:
                    synced = number
            after = storage.crash(seed)
            if after.metadata_directory is not None:
                # LMDB keeps what it has committed; closing the store must not reach this copy.
                kept = tmp_path / f"metadata-{number_of_cut}"
                shutil.copytree(after.metadata_directory, kept)
                after.metadata_directory = kept
            await store.close()
            storage = after
            store, state = await opened(tmp_path, storage, keep=True)
            found = await pending(store)
            assert found in states[synced:], (found, states, synced)
            assert state.last_sequence <= sequence
            sequence = max(sequence, state.last_sequence)
            page = await store.acknowledged(0, 10_000, ANY_SIZE)
            assert [row.ack_sequence for row in page.rows] == list(range(1, page.last + 1))
            gone = [row.sequence for row in page.rows]
            assert len(set(gone)) == len(gone)
            assert not set(gone) & set(found)
        await store.close()

    run(scenario())


def test_unsynced_batches_after_a_lost_one_are_cut_off_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store, _ = await opened(tmp_path, storage, journal_disk_sync_strategy="never")
        await write(store, add(1))
        begin = await tail_of(store)
        await write(store, add(2))
        await write(store, add(3))
        storage.flip(NAME, begin + 70)
        torn = storage.crash()
        await store.close()
        store, state = await opened(tmp_path, torn)
        assert await pending(store) == [1]
        assert state.report.repaired_bytes > 300
        assert "torn tail" in state.report.notes[0]
        await store.close()

    run(scenario())


# ---------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("where", [4, 40, 52, 63, 64, 90, 100, 150])
def test_damage_in_the_middle_stops_the_start_and_changes_nothing(
    tmp_path: Path, where: int
) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store, _ = await opened(tmp_path, storage)
        await write(store, add(1))
        begin = await tail_of(store)
        await write(store, add(2))
        await write(store, add(3))
        await store.close()
        storage.flip(NAME, begin + where)
        before = bytes(storage.open(NAME).pread(1 << 20, 0))
        with pytest.raises(CorruptRecordError) as caught:
            await opened(tmp_path, storage)
        assert caught.value.location == f"crash:{NAME} at offset {begin}"
        assert "damaged" in caught.value.problem
        assert storage.open(NAME).pread(1 << 20, 0) == before
        assert not [name for name in storage.list() if name.endswith(".torn")]

    run(scenario())


@pytest.mark.parametrize("rebuilding", [True, False])
def test_damage_at_the_beginning_of_a_file_is_not_taken_for_a_spare(
    tmp_path: Path, rebuilding: bool
) -> None:
    async def scenario() -> None:
        metadata = None if rebuilding else tmp_path / "metadata"
        storage = CrashStorage(metadata)
        store, _ = await opened(tmp_path, storage)
        for sequence in range(1, 8):
            await write(store, add(sequence, size=20_000))
        await store.close()
        for name in sorted(name for name in storage.list() if name.endswith(".data"))[:2]:
            broken = storage.crash()
            if metadata is not None:
                broken.metadata_directory = tmp_path / name
                shutil.copytree(metadata, tmp_path / name)
            broken.flip(name, DATA_OFFSET + 10)
            with pytest.raises(CorruptRecordError) as caught:
                await opened(tmp_path, broken)
            assert name in caught.value.location

    run(scenario())


def test_every_flipped_bit_is_noticed_or_harmless(tmp_path: Path) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store, _ = await opened(tmp_path, storage)
        await write(store, AddDestination("queue://q", 1), add(1, size=10))
        await write(store, add(2, size=10))
        await write(store, ack(1), add(3, size=10))
        end = await tail_of(store)
        last = end
        await store.close()
        step = 3  # every third byte: the same fields of several records, in a second or two
        for at in [*range(0, 64, step), *range(DATA_OFFSET, last, step), last + 1000]:
            broken = storage.crash()
            broken.unlink("bindings.snapshot")
            broken.flip(NAME, at)
            try:
                store, state = await opened(tmp_path, broken)
            except CorruptRecordError:
                continue
            found = await pending(store)
            assert found == [2, 3] or (found == [1, 2] and state.report.repaired_bytes), at
            await store.close()

    run(scenario())


def test_a_damaged_file_header_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store, _ = await opened(tmp_path, storage)
        await write(store, add(1))
        await store.close()
        storage.flip(NAME, 20)
        with pytest.raises(CorruptRecordError, match="file header") as caught:
            await opened(tmp_path, storage)
        assert NAME in caught.value.location

    run(scenario())


def test_a_file_of_another_store_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        for name in ("a", "b"):
            store, _ = await opened(tmp_path / name)
            await write(store, add(1))
            await store.close()
        foreign = data_files(tmp_path / "b")[1]
        shutil.copy(foreign, tmp_path / "a" / "journal" / "journal-0000000009.data")
        with pytest.raises(CorruptRecordError, match="move it away"):
            await opened(tmp_path / "a")

    run(scenario())


@pytest.mark.parametrize("number", [0, -1])
def test_a_missing_data_file_with_pending_messages_is_refused(tmp_path: Path, number: int) -> None:
    async def scenario() -> None:
        store, _ = await opened(tmp_path)
        for sequence in range(1, 8):
            await write(store, add(sequence, size=20_000))
        used = [file.name for file in store._files.used()]  # pyright: ignore[reportPrivateUsage]
        await store.close()
        (tmp_path / "journal" / used[number]).unlink()
        with pytest.raises(CorruptRecordError, match="missing") as caught:
            await opened(tmp_path)
        assert used[number] in caught.value.location

    run(scenario())


def test_leftovers_of_unfinished_work_are_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, _ = await opened(tmp_path)
        await write(store, add(1))
        await store.close()
        journal = tmp_path / "journal"
        leftovers = [
            journal / "journal-0000000077.data.tmp",
            journal / "bindings.snapshot.tmp",
            journal / "journal-0000000055.live",
        ]
        for path in leftovers:
            path.write_bytes(b"x")
        (journal / "notes.txt").write_text("mine")
        store, _ = await opened(tmp_path)
        assert not any(path.exists() for path in leftovers)
        assert (journal / "notes.txt").exists()
        assert await pending(store) == [1]
        await store.close()

    run(scenario())


def test_spares_of_another_length_are_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, _ = await opened(tmp_path)
        await write(store, add(1))
        await store.close()
        store, _ = await opened(tmp_path, journal_max_file_length=128 << 10)
        for sequence in range(2, 10):
            await write(store, add(sequence, size=30_000))
        assert await pending(store) == list(range(1, 10))
        await store.close()
        assert {path.stat().st_size for path in data_files(tmp_path)} == {64 << 10, 128 << 10}
        store, _ = await opened(tmp_path)
        assert await pending(store) == list(range(1, 10))
        await store.close()

    run(scenario())


# -------------------------------------------------------------------------------------- restarts


def test_a_kill_replays_only_what_is_newer_than_the_checkpoint(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, _ = await opened(tmp_path / "a")
        await write(store, *[add(sequence) for sequence in range(1, 101)])
        await store._checkpointer.run()  # pyright: ignore[reportPrivateUsage]
        await write(store, add(101), ack(5))
        await write(store, add(102))
        copy = killed(tmp_path / "a", tmp_path / "b")
        await store.close()
        store, state = await opened(copy)
        assert state.report.replayed == 3
        assert not state.report.clean
        assert state.report.notes == ()
        assert await pending(store) == [*range(1, 5), *range(6, 103)]
        await store.close()
        store, state = await opened(copy)
        assert state.report.clean
        assert state.report.replayed == 0
        await store.close()

    run(scenario())


def test_progress_is_reported_while_replaying(tmp_path: Path) -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_subscriptions_that_are_not_durable_are_gone_for_good_after_a_kill(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, _ = await opened(tmp_path / "a")
        durable = Subscription(1, "c", "d", "topic://t", True)
        await write(
            store,
            PutSubscription(durable),
            PutSubscription(Subscription(2, "c", "e", "topic://t", False)),
            add(1, 1, 2),
        )
        copy = killed(tmp_path / "a", tmp_path / "b")
        await store.close()
        for _ in range(2):
            store, state = await opened(copy)
            assert list(state.subscriptions) == [durable]
            assert state.last_pending_list == 2
            assert set(state.pending) == {1}
            assert await pending(store, 2) == []
            await store.close()

    run(scenario())


def same(left: RecoveredState, right: RecoveredState) -> bool:
    """Everything but the report is equal."""

    def key(state: RecoveredState) -> tuple[Any, ...]:
        return (
            state.store_id,
            state.last_sequence,
            state.last_pending_list,
            sorted((item.destination, item.pending_list) for item in state.destinations),
            sorted(state.subscriptions, key=lambda item: item.pending_list),
            sorted(state.sessions, key=lambda item: item.client_id),
            sorted(state.inflight, key=lambda item: (item.client_id, item.packet_id)),
            sorted(state.retained, key=lambda item: item.destination),
            dict(state.pending),
        )

    return key(left) == key(right)


async def rows_of(store: JournalStore) -> list[tuple[int, ...]]:
    first = store.statistics().acknowledged_first
    page = await store.acknowledged(first - 1, 100_000, ANY_SIZE)
    return [
        (row.ack_sequence, row.sequence, row.pending_list, row.delivered_at, row.acked_at)
        for row in page.rows
    ]


def last_file_id(store: JournalStore) -> int:
    return store._files.used()[-1].file_id  # pyright: ignore[reportPrivateUsage]


async def random_load(store: JournalStore, chance: random.Random, first: int, model: Any) -> int:
    """Messages, acknowledgements and small state; *model* is {list: [sequence …]}."""
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
def test_deleting_the_metadata_store_changes_nothing(tmp_path: Path, seed: int) -> None:
    """Also when files with acknowledgements are long deleted: that is what live lists are for."""

    async def scenario() -> None:
        chance = random.Random(seed)
        directory = tmp_path / "a"
        store, _ = await opened(directory, keep=True)
        checkpointer = store._checkpointer  # pyright: ignore[reportPrivateUsage]
        subscription = Subscription(3, "c", "n", "topic://t", True)
        await write(
            store,
            AddDestination("queue://one", 1),
            AddDestination("queue://two", 2),
            AddDestination("queue://four", 4),
            PutSubscription(subscription),
            PutSubscription(Subscription(5, "c", "gone", "topic://t", True)),
            add(1, 5),
        )
        model: dict[int, list[int]] = {1: [], 2: [], 3: [], 4: []}
        sequence = 1
        for turn in range(4):
            sequence = await random_load(store, chance, sequence, model)
            for list_id, sequences in model.items():
                # Nearly everything is consumed, so that files die; the rest lives on in old ones.
                taken = sequences[1:-1]
                del sequences[1:-1]
                await write(store, ack(*taken, pending_list=list_id))
            if turn == 1:
                await write(store, RemoveSubscription(5))
            first = store.statistics().acknowledged_first
            last = store.statistics().acknowledged_last
            await store.release_acknowledged(chance.randrange((first + last) // 2, last + 1))
            await checkpointer.run(cleanup=chance.random() < 0.8)
        sequence = await random_load(store, chance, sequence, model)
        await store._sync()  # pyright: ignore[reportPrivateUsage]
        assert len(data_files(directory)) < last_file_id(store) - 5  # several were deleted
        with_metadata = killed(directory, tmp_path / "b")
        without = killed(directory, tmp_path / "c")
        rows = await rows_of(store)
        released = store.statistics().acknowledged_first
        statistics = store.statistics()
        await store.close()
        shutil.rmtree(without / "journal" / "metadata")

        one, state_one = await opened(with_metadata, keep=True)
        two, state_two = await opened(without, keep=True)
        assert state_one.report.notes == ()
        assert "rebuilt" in state_two.report.notes[0]
        assert same(state_one, state_two)
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
            assert again.acknowledged_bytes == statistics.acknowledged_bytes
            assert again.acknowledged_first == statistics.acknowledged_first
            assert again.acknowledged_last == statistics.acknowledged_last
            await reopened.close()
        # And the rebuilt metadata store is as good as the old one.
        two, state = await opened(without, keep=True)
        assert state.report.clean
        assert same(state_one, state)
        assert await rows_of(two) == rows
        await two.close()

    run(scenario())


def test_without_bindings_and_metadata_the_messages_are_still_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store, _ = await opened(tmp_path, storage)
        await write(store, AddDestination("queue://q", 1), add(1), add(2))
        await store.close()
        for damage in (False, True):
            other = storage.crash()
            if damage:
                other.flip("bindings.snapshot", 30)
            else:
                other.unlink("bindings.snapshot")
            store, state = await opened(tmp_path, other)
            assert await pending(store) == [1, 2]
            assert [item.destination for item in state.destinations] == ["queue://q"]
            assert state.last_sequence == 2
            assert any("bindings" in note for note in state.report.notes) == damage
            await store.close()

    run(scenario())


def test_a_damaged_metadata_store_is_rebuilt_with_a_note(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, _ = await opened(tmp_path)
        await write(store, AddDestination("queue://q", 1), *[add(item) for item in range(1, 50)])
        await store.close()
        path = tmp_path / "journal" / "metadata" / "data.mdb"
        path.write_bytes(path.read_bytes()[:5000])
        store, state = await opened(tmp_path)
        assert "rebuilt" in state.report.notes[0]
        assert await pending(store) == list(range(1, 50))
        await store.close()

    run(scenario())


def test_metadata_of_another_store_is_not_used(tmp_path: Path) -> None:
    async def scenario() -> None:
        for name in ("a", "b"):
            store, _ = await opened(tmp_path / name)
            await write(store, add(1 if name == "a" else 7))
            await store.close()
        shutil.rmtree(tmp_path / "a" / "journal" / "metadata")
        shutil.copytree(
            tmp_path / "b" / "journal" / "metadata", tmp_path / "a" / "journal" / "metadata"
        )
        store, state = await opened(tmp_path / "a")
        assert "another store" in state.report.notes[0]
        assert await pending(store) == [1]
        await store.close()

    run(scenario())


def test_sequences_are_not_used_again_when_everything_they_named_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store, _ = await opened(tmp_path, storage, keep=True)
        for sequence in range(1, 10):
            await write(store, add(sequence, size=30_000))
            await write(store, ack(sequence))
        await store.release_acknowledged(9)
        await write_only(store, PutSession(Session("c", 1)))
        await store.close()
        names = [name for name in storage.list() if name.endswith(".data")]
        assert len(names) <= 3
        store, state = await opened(tmp_path, storage, keep=True)
        assert state.last_sequence == 9
        assert store.statistics().acknowledged_last == 9
        await write(store, add(10), ack(10))
        page = await store.acknowledged(9, 10, ANY_SIZE)
        assert [row.ack_sequence for row in page.rows] == [10]
        await store.close()

    run(scenario())


def test_rows_are_forgotten_when_no_sink_is_configured_any_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, _ = await opened(tmp_path, keep=True)
        await write(store, add(1), add(2), ack(1))
        await store.close()
        store, _ = await opened(tmp_path, keep=False)
        statistics = store.statistics()
        assert (statistics.acknowledged_first, statistics.acknowledged_last) == (2, 1)
        await write(store, ack(2))
        await store.close()
        store, _ = await opened(tmp_path, keep=True)
        await write(store, add(3), ack(3))
        page = await store.acknowledged(1, 10, ANY_SIZE)
        assert [(row.ack_sequence, row.sequence) for row in page.rows] == [(2, 3)]
        await store.close()

    run(scenario())
