"""The live index: what it counts must be what counting anew gives."""

from __future__ import annotations

import pytest
from numbered import ack, add

from tidegate.spi import (
    AddDestination,
    Operation,
    PutSubscription,
    RecordDelivery,
    RemoveDestination,
    RemoveSubscription,
    Subscription,
)
from tidegate_store_journal.index.changes import DELIVERIES, PENDING, Changes
from tidegate_store_journal.index.effects import Effects
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.index.pending import SEAL_ENTRIES
from tidegate_store_journal.index.pieces import places_in
from tidegate_store_journal.log.format import location
from tidegate_store_journal.write.encode import encode_batch


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


def told(changes: Changes) -> dict[int, list[int]]:
    """The sequences in the pieces that the metadata store is told, by list."""
    found: dict[int, list[int]] = {}
    for (list_id, _), piece in changes.rows[PENDING].items():
        found.setdefault(list_id, []).extend(piece.arrays[0])
    return found


def test_what_lives_in_a_file_is_named_by_list() -> None:
    loaded = Loaded(keep=False)
    loaded.write(add(1, 1, 2), add(2, 2), file_id=1)
    loaded.write(add(3), add(4, 2), file_id=2)
    assert loaded.index.living_in(1) == [(1, [1]), (2, [1, 2])]
    loaded.index.take_changes()  # seals
    loaded.write(add(5), ack(1), file_id=3)
    assert loaded.index.living_in(1) == [(2, [1, 2])]
    assert loaded.index.living_in(2) == [(1, [3]), (2, [4])]
    assert loaded.index.living_in(3) == [(1, [5])]
    assert loaded.index.living_in(4) == []


def test_copies_of_what_is_gone_are_put_into_their_list_at_the_end() -> None:
    """While replaying without metadata; an acknowledgement on the way finds them, too."""
    loaded = Loaded(keep=False)
    index = loaded.index
    index.loose_blocks = []
    loaded.write(add(10), add(20, 1, 2), file_id=4)
    effects = Effects(5)
    effects.batch, effects.last_sequence = index.batch + 1, 20
    places = {item: location(5, 4096 + 100 * item, 100, 9) for item in (3, 15, 16)}
    effects.copies = [(3, places[3], (1,)), (15, places[15], (1, 2)), (16, places[16], (1,))]
    index.apply(effects)
    loaded.write(RecordDelivery(1, (15,), (4,)), ack(16), file_id=6)
    index.loose_blocks = None
    index.settle()
    assert [item for item, _ in index.lists[1].entries()] == [3, 10, 15, 20]
    assert [item for item, _ in index.lists[2].entries()] == [15, 20]
    assert index.lists[1].get(15) == places[15]
    assert index.lists[1].deliveries == {15: 4}


def test_a_copy_of_what_is_not_there_is_our_own_bug_once_everything_was_replayed() -> None:
    index = Index(keep_acknowledged=False)
    index.settle()
    effects = Effects(5)
    effects.copies = [(3, location(5, 4096, 100, 9), (1,))]
    with pytest.raises(AssertionError):
        index.apply(effects)


def test_a_copied_message_of_the_last_checkpoint_is_moved_in_the_next() -> None:
    loaded = Loaded(keep=False)
    index = loaded.index
    loaded.write(add(1), add(2), add(3), file_id=1)
    index.take_changes()
    loaded.write(add(4), file_id=2)
    index.settle()
    places = {item: location(3, 4096 + 200 * item, 100, 9) for item in (1, 2, 4)}
    effects = Effects(3)
    effects.batch, effects.last_sequence = index.batch + 1, 4
    effects.copies = [(item, place, (1,)) for item, place in places.items()]
    index.apply(effects)
    loaded.write(ack(2), file_id=3)
    changes = index.take_changes()
    ((key, piece),) = changes.rows[PENDING].items()
    sequences, words = piece.arrays
    assert (key, list(sequences)) == ((1, 1), [1, 3, 4])
    assert places_in(words)[::2] == [places[1], places[4]]
    assert (changes.removed, changes.added) == (1, 1)
    assert index.take_changes().rows[PENDING] == {}


def test_a_message_that_came_and_went_between_checkpoints_is_in_no_change() -> None:
    loaded = Loaded(keep=True)
    index = loaded.index
    index.take_changes()
    loaded.write(add(1), add(2), RecordDelivery(1, (1,), (1,)))
    loaded.write(ack(1, 2))
    index.release(2)
    changes = index.take_changes()
    assert not any(changes.rows.values())
    assert (changes.added, changes.removed) == (0, 0)
    assert (changes.numbers.last_sequence, changes.numbers.ack_released) == (2, 2)
    assert changes.numbers.ack_last == 2


def test_a_message_of_the_last_checkpoint_that_went_is_removed_by_the_next() -> None:
    loaded = Loaded(keep=False)
    index = loaded.index
    loaded.write(add(1), add(2), RecordDelivery(1, (1, 2), (1, 3)))
    first = index.take_changes()
    assert told(first) == {1: [1, 2]}
    assert first.rows[DELIVERIES] == {(1, 1): 1, (1, 2): 3}
    loaded.write(ack(1))
    second = index.take_changes()
    assert second.removed == 1
    assert second.rows[DELIVERIES] == {(1, 1): None}
    assert told(second) == {1: [2]}


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
    assert changes.removed == 3
    assert set(changes.small.values()) == {RemoveDestination("queue://q", 0), RemoveSubscription(2)}
    assert index.pending_messages == 0
    assert index.files[1].references == 0
    assert index.files[1].live_bytes == 0


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


def test_after_marking_everything_changed_the_changes_are_everything() -> None:
    loaded = Loaded(keep=True)
    index = loaded.index
    loaded.write(add(1), add(2), RecordDelivery(1, (2,), (4,)))
    index.take_changes()
    index.mark_everything_changed()
    changes = index.take_changes()
    assert told(changes) == {1: [1, 2]}
    assert changes.rows[DELIVERIES] == {(1, 2): 4}
