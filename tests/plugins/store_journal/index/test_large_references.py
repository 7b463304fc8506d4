"""Counting which messages refer to which large body."""

from __future__ import annotations

import pytest

from tidegate.spi import LargeBody, Message
from tidegate_store_journal.index.largereferences import LargeReferences
from tidegate_store_journal.log.format import MASK_32
from tidegate_store_journal.log.records import body_bytes

ONE, TWO = LargeBody("one", 10), LargeBody("two", 20)


def test_a_body_is_loose_when_the_last_message_is_gone() -> None:
    references = LargeReferences()
    references.add(1, ONE)
    references.add(2, ONE)
    references.add(2, ONE)
    references.remove(1)
    assert ("one" in references, references.loose) == (True, set())
    references.remove(2)
    references.remove(2)
    assert ("one" in references, references.loose) == (False, {"one"})
    references.add(3, ONE)
    assert references.loose == set()


def test_bytes_of_loose_bodies_are_told_once_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate_store_journal.index.largereferences.LOOSE_BYTES_MAX", 40)
    told: list[int] = []
    references = LargeReferences()
    references.on_loose = lambda: told.append(len(references.loose))
    for sequence in range(1, 10):  # made and taken by a message: not loose any more
        body = LargeBody(f"taken {sequence}", 30)
        references.add_loose(body)
        references.add(sequence, body)
    assert told == []
    references.add_loose(TWO)  # nobody takes it
    references.add_loose(ONE)
    references.remove(1)
    assert told == [3]


def test_a_body_that_no_message_needs_is_told_at_once() -> None:
    references, gone = LargeReferences(), list[str]()
    references.on_gone = gone.append
    references.add(1, ONE)
    references.add(2, ONE)
    references.remove(1)
    assert gone == []
    references.remove(2)
    references.remove(2)
    assert gone == ["one"]


def test_what_a_checkpoint_may_remove_was_loose_ever_since_it_began() -> None:
    references = LargeReferences()
    references.loose |= {"one", "two"}
    leaving = references.take_loose()
    references.add(1, ONE)
    references.remove(1)
    assert (leaving, references.loose) == ({"two"}, {"one", "two"})
    assert references.take_loose() == {"one", "two"}


def test_the_index_does_not_keep_the_handle_that_a_client_holds() -> None:
    references = LargeReferences()
    references.add(1, ONE)
    assert references.bodies[1] == ONE
    assert references.bodies[1] is not ONE


def test_changes_are_what_a_checkpoint_does_not_have() -> None:
    references = LargeReferences()
    references.add(1, ONE)
    references.add(2, TWO)
    references.remove(2)  # it never was in a checkpoint
    assert references.take_changes() == {1: ONE}
    assert references.take_changes() == {}
    references.remove(1)
    assert references.take_changes() == {1: None}
    references.add(3, TWO)
    references.take_changes()
    references.mark_everything_changed()
    references.remove(3)
    assert references.take_changes() == {}


def test_what_a_checkpoint_knew_is_no_change() -> None:
    references = LargeReferences()
    assert not references
    references.restore({1: ONE, 2: TWO})
    assert references
    assert references.take_changes() == {}
    references.keep_only({1})
    assert references.bodies == {1: ONE}
    assert references.take_changes() == {2: None}


def test_sizes_beyond_32_bits_are_cut_in_records_only() -> None:
    assert body_bytes(Message("queue://q", b"", large=ONE)) == 10
    assert body_bytes(Message("queue://q", b"", large=LargeBody("x", 1 << 40))) == MASK_32
