"""A checkpoint takes lists in parts, and what happens meanwhile is in the next one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbered import add

from tidegate.spi import (
    Acknowledge,
    Discard,
    DiscardReason,
    Operation,
    RecordDelivery,
    RemoveSubscription,
)
from tidegate_store_journal.index import index as index_module
from tidegate_store_journal.index.changes import PENDING, Changes
from tidegate_store_journal.index.effects import Effects
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.index.pieces import Piece
from tidegate_store_journal.log.format import location
from tidegate_store_journal.write.encode import encode_batch

LISTS = (1, 2, 3, 4, 5)

#: What happens: (what, to which lists, to which of their messages).
happens = st.tuples(
    st.sampled_from(("add", "acknowledge", "discard", "deliver", "remove", "copy")),
    st.lists(st.sampled_from(LISTS), min_size=1, max_size=3, unique=True),
    st.integers(0, 2),
)

keeps_lists = happens.filter(lambda happened: happened[0] != "remove")


class Twin:
    """An index that everything happens to that is drawn; the same each time."""

    def __init__(self, *, keep: bool, in_steps: bool = False) -> None:
        self.index = Index(keep_acknowledged=keep)
        if in_steps:
            self.index.on_dropped = lambda: None
        self.in_steps = in_steps
        self.meanwhile: Iterator[None] = iter(())
        self.offset, self.sequence, self.file_id = 4096, 0, 1

    def happen(self, what: str, lists: list[int], which: int) -> None:
        index = self.index
        pending = {one: [item for item, _ in index.list_of(one).entries()] for one in lists}
        if what == "add":
            self.sequence += 1
            self.write(add(self.sequence, *lists))
        elif what == "remove":
            self.write(*[RemoveSubscription(one) for one in lists[:1]])
        elif what == "copy":
            self.file_id += 1
            self.copy(lists[0], pending[lists[0]][which : which + 2])
        else:
            for one, sequences in pending.items():
                some = tuple(sequences[which : which + 2])
                if some:
                    self.write(operation(what, one, some))

    def write(self, *operations: Operation) -> None:
        encoded = encode_batch(list(operations), self.file_id, self.offset, self.index)
        self.offset += len(encoded.payload)
        encoded.effects.batch = self.index.batch + 1
        for _ in self.index.apply_in_steps(encoded.effects):
            if self.in_steps:
                next(self.meanwhile, None)
                self.index.give_up_dropped()

    def copy(self, of: int, sequences: list[int]) -> None:
        """Compaction copies messages."""
        effects = Effects(self.file_id)
        effects.batch, effects.last_sequence = self.index.batch + 1, self.sequence
        lists = {
            sequence: tuple(n for n in LISTS if sequence in self.index.list_of(n))
            for sequence in sequences
        }
        effects.copies = [
            (sequence, location(self.file_id, 4096 + 200 * number, 100, 9), lists[sequence])
            for number, sequence in enumerate(sequences)
        ]
        self.index.apply(effects)


def operation(what: str, pending_list: int, sequences: tuple[int, ...]) -> Operation:
    if what == "deliver":
        return RecordDelivery(pending_list, sequences, (3,) * len(sequences))
    if what == "discard":
        return Discard(pending_list, sequences, DiscardReason.EXPIRED)
    times = (1000,) * len(sequences)
    return Acknowledge(pending_list, sequences, times, 2000, "client", "subscription", "stomp")


def shown(changes: Changes) -> dict[str, Any]:
    """All that the metadata store is told."""

    def value(row: Any) -> Any:
        return [list(part) for part in row.arrays] if isinstance(row, Piece) else repr(row)

    return {
        **{
            table.name: {key: value(row) for key, row in rows.items()}
            for table, rows in changes.rows.items()
        },
        "dropped": changes.dropped_lists,
        "counts": (changes.added, changes.removed, changes.numbers),
    }


@pytest.mark.parametrize("keep", [False, True])
@given(
    st.lists(happens, max_size=20),
    st.lists(happens, max_size=10),
    st.lists(st.tuples(happens, st.integers(0, 2)), max_size=20),
)
def test_it_is_as_if_all_had_been_taken_at_once(
    keep: bool,
    first: list[tuple[str, list[int], int]],
    second: list[tuple[str, list[int], int]],
    meanwhile: list[tuple[tuple[str, list[int], int], int]],
) -> None:
    at_once, in_parts = Twin(keep=keep), Twin(keep=keep)
    for one in (at_once, in_parts):
        for what in first:
            one.happen(*what)
        one.index.take_changes()  # some of it is in pieces
        for what in second:
            one.happen(*what)
    whole = at_once.index.take_changes()
    began = in_parts.index.begin_changes()
    steps = in_parts.index.tell_lists()
    for what, told in meanwhile:
        for _ in range(told):
            next(steps, None)
        at_once.happen(*what)
        in_parts.happen(*what)
    for _ in steps:
        pass
    assert shown(began) == shown(whole)
    for one in (at_once, in_parts):
        for _ in one.index.pack():
            pass
    assert shown(in_parts.index.take_changes()) == shown(at_once.index.take_changes())


@pytest.mark.parametrize("keep", [False, True])
@given(st.lists(keeps_lists, max_size=20), st.lists(keeps_lists, max_size=20))
def test_batches_that_come_in_steps_meanwhile_have_the_same_effects(
    keep: bool, first: list[tuple[str, list[int], int]], second: list[tuple[str, list[int], int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "STEP_ENTRIES", 1)
        at_once, in_steps = Twin(keep=keep), Twin(keep=keep, in_steps=True)
        for one in (at_once, in_steps):
            for what in first:
                one.happen(*what)
        whole = at_once.index.take_changes()
        began = in_steps.index.begin_changes()
        in_steps.meanwhile = in_steps.index.tell_lists()
        for one in (at_once, in_steps):
            for what in second:
                one.happen(*what)
        for _ in in_steps.meanwhile:
            pass
    assert shown(began) == shown(whole)
    assert shown(in_steps.index.take_changes()) == shown(at_once.index.take_changes())
    uses = [
        {
            key: (use.references, use.live_bytes, use.speaks_of)
            for key, use in one.index.files.items()
        }
        for one in (at_once, in_steps)
    ]
    assert uses[0] == uses[1]
    assert at_once.index.pending_messages == in_steps.index.pending_messages


def test_what_a_dropped_list_gives_up_meanwhile_is_not_of_that_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file of the batch speaks of the files of what it acknowledges, and not the one that dropped the list."""
    monkeypatch.setattr(index_module, "STEP_ENTRIES", 1)
    monkeypatch.setattr(index_module, "PIECE_ENTRIES", 0)
    twin = Twin(keep=False, in_steps=True)
    twin.happen("add", [1], 0)
    twin.file_id = 2
    twin.happen("add", [2], 0)
    twin.happen("add", [3], 0)
    twin.file_id = 3
    twin.happen("remove", [1], 0)
    twin.file_id = 4
    twin.write(*[operation("discard", one, (one,)) for one in (2, 3)])
    assert [twin.index.file_use(file_id).speaks_of for file_id in (3, 4)] == [{1}, {2}]


@pytest.mark.parametrize("parts", [True, False])
def test_a_copied_message_is_told_where_it_is(parts: bool) -> None:
    """Where it was, while its list waits to be told; where it is now, in the next."""
    twin, other = Twin(keep=False), Twin(keep=False)
    for one in (twin, other):
        one.happen("add", [1], 0)
    before = other.index.take_changes()
    began = twin.index.begin_changes()
    if not parts:
        assert len(list(twin.index.tell_lists())) == 1
    for one in (twin, other):
        one.happen("copy", [1], 0)
    assert list(twin.index.tell_lists()) == []
    assert shown(began) == shown(before)
    after = twin.index.take_changes()
    assert shown(after) == shown(other.index.take_changes())
    assert after.rows[PENDING]


def test_what_comes_into_a_list_at_the_start_is_told() -> None:
    twin = Twin(keep=False)
    twin.happen("add", [1], 0)
    twin.index.take_changes()
    twin.index.restore_loose(1, {7: location(1, 8192, 100, 9)})
    twin.index.settle()
    ((_, piece),) = twin.index.take_changes().rows[PENDING].items()
    assert list(piece.arrays[0]) == [1, 7]


def test_only_lists_that_changed_are_gone_through() -> None:
    twin = Twin(keep=False)
    for number in range(1, 6):
        twin.happen("add", [number], 0)
    twin.index.take_changes()
    twin.happen("acknowledge", [2], 0)
    twin.happen("add", [4], 0)
    twin.index.begin_changes()
    assert len(list(twin.index.tell_lists())) == 2
    twin.index.begin_changes()
    assert list(twin.index.tell_lists()) == []


def test_what_was_not_told_to_the_end_is_whole_when_the_next_begins() -> None:
    """Who told it was cancelled: its changes are written with those of the next checkpoint."""
    twin, other = Twin(keep=False), Twin(keep=False)
    for one in (twin, other):
        one.happen("add", [1, 2, 3], 0)
    began = twin.index.begin_changes()
    next(twin.index.tell_lists())
    after = twin.index.begin_changes()
    assert shown(began) == shown(other.index.take_changes())
    assert not any(after.rows.values())
