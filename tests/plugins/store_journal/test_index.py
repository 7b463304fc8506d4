"""The live index: what it counts must be what counting anew gives."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from journal_kit import ack, add, message

from tidegate.spi import (
    AddDestination,
    ClearRetained,
    Discard,
    DiscardReason,
    InflightDirection,
    InflightRecord,
    InflightState,
    Message,
    Move,
    Operation,
    PutInflight,
    PutSession,
    PutSubscription,
    RecordDelivery,
    RemoveDestination,
    RemoveInflight,
    RemoveSession,
    RemoveSubscription,
    Session,
    SetRetained,
    Subscription,
)
from tidegate_store_journal._encode import encode_batch
from tidegate_store_journal._index import FileUse, Index
from tidegate_store_journal._pending import SEAL_ENTRIES


class Loaded:
    """An index with its own batch counter; every batch goes into the file it names."""

    def __init__(self, *, keep: bool) -> None:
        self.index = Index(keep_acknowledged=keep)
        self.offset = 4096

    def write(self, *operations: Operation, file_id: int = 1) -> None:
        encoded = encode_batch(list(operations), file_id, self.offset, self.index)
        self.offset += len(encoded.payload)
        encoded.effects.batch = self.index.batch + 1
        self.index.apply(encoded.effects)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "add", "share", "ack", "ack", "discard", "move", "drop", "release"]
        ),
        st.integers(0, 10),
        st.integers(1, 4),
    ),
    max_size=60,
)


def apply_step(loaded: Loaded, step: str, number: int, file_id: int) -> None:
    index = loaded.index
    next_sequence = index.last_sequence + 1
    list_id = number % 3 + 1
    known = [sequence for sequence, _ in index.list_of(list_id).entries()]
    if step == "add":
        loaded.write(add(next_sequence, list_id, size=10 + number), file_id=file_id)
    elif step == "share":
        loaded.write(add(next_sequence, 1, 2, 3, size=10 + number), file_id=file_id)
    elif step == "release":
        index.release(index.log.released + number)
    elif step == "drop":
        loaded.write(RemoveSubscription(list_id), file_id=file_id)
    elif known:
        chosen = known[: number + 1]
        if step == "ack":
            loaded.write(ack(*chosen, pending_list=list_id), file_id=file_id)
        elif step == "discard":
            loaded.write(Discard(list_id, tuple(chosen), DiscardReason.EXPIRED), file_id=file_id)
        else:
            target = Move(list_id, chosen[0], 4, next_sequence, message(next_sequence))
            loaded.write(target, file_id=file_id)


def numbers(index: Index) -> tuple[int, int, dict[int, tuple[int, int]]]:
    files = {
        file_id: (use.references, use.live_bytes)
        for file_id, use in index.files.items()
        if use.references or use.live_bytes
    }
    return index.pending_messages, index.acknowledged_bytes, files


@settings(deadline=None)
@given(STEPS, st.booleans())
def test_counting_along_gives_what_counting_anew_gives(
    steps: list[tuple[str, int, int]], keep: bool
) -> None:
    loaded = Loaded(keep=keep)
    index = loaded.index
    for step, number, file_id in steps:
        apply_step(loaded, step, number, file_id)
    counted = numbers(index)
    assert index.recount(list(index.log.blocks()), index.log.last, index.log.released) == 0
    assert numbers(index) == counted


@settings(deadline=None)
@given(STEPS)
def test_every_live_message_is_between_the_first_and_last_sequence_of_its_file(
    steps: list[tuple[str, int, int]],
) -> None:
    loaded = Loaded(keep=False)
    index = loaded.index
    for step, number, file_id in steps:
        apply_step(loaded, step, number, file_id)
    for file_id in index.files:
        found = {
            (list_id, sequence)
            for list_id, sequences in index.living_in(file_id)
            for sequence in sequences
        }
        assert found == {
            (list_id, sequence)
            for list_id, pending in index.lists.items()
            for sequence, place in pending.entries()
            if place >> 100 == file_id
        }


def test_a_message_that_came_and_went_between_checkpoints_is_in_no_change() -> None:
    loaded = Loaded(keep=True)
    index = loaded.index
    index.take_changes()
    loaded.write(add(1), add(2), RecordDelivery(1, (1,), (1,)))
    loaded.write(ack(1, 2))
    index.release(2)
    changes = index.take_changes()
    assert [item for item in changes.added if any(item[2])] == []
    assert (changes.removed, changes.deliveries) == ({}, {})
    assert (changes.acknowledged, changes.acknowledged_gone) == ([], [])
    assert (changes.last_sequence, changes.ack_last, changes.ack_released) == (2, 2, 2)


def test_a_message_of_the_last_checkpoint_that_went_is_removed_by_the_next() -> None:
    loaded = Loaded(keep=False)
    index = loaded.index
    loaded.write(add(1), add(2), RecordDelivery(1, (1, 2), (1, 3)))
    first = index.take_changes()
    assert [(list_id, list(sequences)) for list_id, sequences, _ in first.added] == [(1, [1, 2])]
    assert first.deliveries == {(1, 1): 1, (1, 2): 3}
    loaded.write(ack(1))
    second = index.take_changes()
    assert second.removed == {1: [1]}
    assert second.deliveries == {(1, 1): 0}
    assert second.added == []


def test_a_dropped_list_is_named_once_and_its_messages_are_gone() -> None:
    loaded = Loaded(keep=False)
    index = loaded.index
    loaded.write(
        AddDestination("queue://q", 1),
        PutSubscription(Subscription(2, "c", "n", "topic://t", True)),
        add(1, 1, 2),
        add(2, 2),
    )
    index.take_changes()
    loaded.write(ack(2, pending_list=2), RemoveSubscription(2), RemoveDestination("queue://q", 1))
    changes = index.take_changes()
    assert sorted(changes.dropped_lists) == [1, 2]
    assert not changes.removed
    assert changes.destinations == {"queue://q": None}
    assert changes.subscriptions == {2: None}
    assert index.pending_messages == 0
    assert index.files[1].references == 0
    assert index.files[1].live_bytes == 0


def test_small_state_changes_are_taken_once() -> None:
    loaded = Loaded(keep=False)
    index = loaded.index
    record = InflightRecord("c", InflightDirection.IN, 7, InflightState.RECEIVED)
    session = Session("c", 60)
    retained = Message("topic://t", b"r")
    loaded.write(PutSession(session), PutInflight(record), SetRetained(retained))
    changes = index.take_changes()
    assert changes.small_state_changed
    assert changes.sessions == {"c": session}
    assert changes.inflight == {("c", (InflightDirection.IN, 7)): record}
    assert changes.retained == {"topic://t": retained}
    assert not index.take_changes().small_state_changed
    loaded.write(
        RemoveInflight("c", InflightDirection.IN, 8),  # not there
        RemoveInflight("c", InflightDirection.IN, 7),
        RemoveSession("c"),
        ClearRetained("topic://t"),
        ClearRetained("topic://other"),
    )
    changes = index.take_changes()
    assert changes.sessions == {"c": None}
    assert changes.inflight == {("c", (InflightDirection.IN, 7)): None}
    assert changes.retained == {"topic://t": None}
    assert (index.sessions, index.inflight, index.retained) == ({}, {}, {})


def test_a_list_that_falls_behind_is_sealed_on_the_way() -> None:
    loaded = Loaded(keep=False)
    sequence = 0
    for _ in range(12):
        batch = [add(sequence + number + 1, size=1) for number in range(1000)]
        sequence += 1000
        loaded.write(*batch)
        assert len(loaded.index.lists[1].fresh) <= SEAL_ENTRIES
    assert [item for item, _ in loaded.index.lists[1].entries()] == list(range(1, sequence + 1))
    loaded.write(ack(1, 9000, 12_000))
    assert loaded.index.pending_messages == sequence - 3


def test_removing_a_session_removes_its_packet_ids() -> None:
    loaded = Loaded(keep=False)
    record = InflightRecord("c", InflightDirection.IN, 7, InflightState.RECEIVED)
    loaded.write(PutSession(Session("c", 60)), PutInflight(record))
    loaded.write(RemoveSession("c"))
    assert list(loaded.index.inflight_records()) == []


def test_a_file_knows_which_files_its_acknowledgements_speak_of() -> None:
    loaded = Loaded(keep=False)
    index = loaded.index
    loaded.write(add(1), add(2), file_id=1)
    loaded.write(add(3), file_id=2)
    loaded.write(add(4), ack(4), file_id=3)
    assert index.files.get(3, FileUse()).speaks_of == set()
    loaded.write(ack(1, 3), file_id=3)
    assert index.files[3].speaks_of == {1, 2}
    changes = index.take_changes()
    assert changes.speaks_of == {3: [1, 2]}
    assert index.take_changes().speaks_of == {}


def test_bytes_count_for_the_log_only_when_no_list_holds_the_message() -> None:
    loaded = Loaded(keep=True)
    index = loaded.index
    loaded.write(add(1, 1, 2, size=100))
    loaded.write(ack(1, pending_list=1))
    assert (index.pending_messages, index.acknowledged_bytes) == (1, 0)
    loaded.write(ack(1, pending_list=2))
    assert (index.pending_messages, index.acknowledged_bytes) == (0, 100)
    index.release(1)
    assert index.acknowledged_bytes == 100
    index.release(2)
    assert index.acknowledged_bytes == 0
    assert index.files[1].references == 0


def test_after_marking_everything_changed_the_changes_are_everything() -> None:
    loaded = Loaded(keep=True)
    index = loaded.index
    record = InflightRecord("c", InflightDirection.IN, 7, InflightState.RECEIVED)
    loaded.write(
        AddDestination("queue://q", 1),
        add(1),
        add(2),
        PutSession(Session("c", 1)),
        PutInflight(record),
        RecordDelivery(1, (2,), (4,)),
        SetRetained(Message("topic://t", b"")),
        PutSubscription(Subscription(2, "c", "n", "topic://t", True)),
    )
    index.take_changes()
    index.mark_everything_changed()
    changes = index.take_changes()
    assert [(list_id, list(found)) for list_id, found, _ in changes.added] == [(1, [1, 2])]
    assert changes.destinations == {"queue://q": 1}
    assert list(changes.subscriptions) == [2]
    assert list(changes.sessions) == ["c"]
    assert list(changes.retained) == ["topic://t"]
    assert changes.inflight == {("c", (InflightDirection.IN, 7)): record}
    assert changes.deliveries == {(1, 2): 4}
