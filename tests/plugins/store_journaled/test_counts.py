"""Counts of what is pending, over a journal and a database."""

from __future__ import annotations

from numbered import ack, add

from tidegate.spi import Discard, DiscardReason, Message, Move, PendingCount, RemoveDestination
from tidegate_store_jdbc import Plan
from tidegate_store_journaled._counts import _REMOVING, Counts


def counts() -> Counts:
    found = Counts()
    found.start({1: PendingCount(3, 30), 2: PendingCount(1, 10)}, {3: 2})
    return found


def test_a_message_of_two_lists_counts_once_until_both_let_go() -> None:
    found = counts()
    assert found.messages == 3
    found.apply([ack(3)])
    assert found.messages == 3
    found.apply([ack(3, pending_list=2)])
    assert found.messages == 2
    found.apply([add(9, 1, 2), Discard(1, (9,), DiscardReason.PURGED)])
    assert found.messages == 3


def test_a_moved_message_is_one_less_and_one_more() -> None:
    found = counts()
    found.apply([Move(1, 1, 2, 8, Message("queue://q", b""))])
    assert found.messages == 3
    found.apply([ack(8, pending_list=2)])
    assert found.messages == 2


def test_a_removed_list_makes_counts_stale_only_when_messages_are_shared() -> None:
    found = Counts()
    found.start({1: PendingCount(2, 2)}, {})
    found.apply([RemoveDestination("queue://q", 1)])
    assert (found.messages, found.is_stale, found.gone) == (0, False, {1})
    found = counts()
    found.apply([RemoveDestination("queue://q", 1)])
    assert found.is_stale
    found.know_shared({3: 1})
    assert (found.messages, found.is_stale) == (1, False)


def test_every_operation_that_ends_a_list_is_known() -> None:
    names = {kind.__name__ for kind in _REMOVING}
    assert names >= {"RemoveDestination", "RemoveSubscription"}
    assert not names & {"RemoveSession", "RemoveInflight"}


def test_what_the_database_has_follows_what_was_carried_over() -> None:
    found = counts()
    plan = Plan()
    plan.pending = {(1, 5): 0, (4, 6): 0}
    plan.removed = {(2, 3): None, (1, 1): None}
    found.carried_over(plan)
    assert found.in_database == {1: 3, 4: 1}
