"""What the journal holds and the database does not."""

from __future__ import annotations

import tempfile
from pathlib import Path

from numbered import ack, add

from tidegate.spi import Message, Move, Operation, StoreContext
from tidegate_store_jdbc import JdbcOptions, JdbcStore
from tidegate_store_journaled._overlay import Overlay


def overlay(*operations: Operation, keep: bool = False) -> Overlay:
    context = StoreContext(Path(tempfile.gettempdir()), "test", keep_acknowledged=keep)
    found = Overlay(0, keeps_log=keep)
    JdbcStore(context, JdbcOptions()).extend(found.plan, operations)
    found.note(operations)
    found.add_record(1, 100)
    return found


def sequences(found: Overlay, number: int = 1, after: int = 0) -> list[int]:
    return [sequence for sequence, _, _ in found.page(number, after)]


def test_pages_are_in_order_without_what_was_acknowledged() -> None:
    found = overlay(*[add(n) for n in range(1, 9)], ack(1, 2, 5))
    assert sequences(found) == [3, 4, 6, 7, 8]
    assert sequences(found, after=4) == [6, 7, 8]
    assert sequences(found, number=2) == []


def test_a_consumed_message_is_forgotten_at_once() -> None:
    found = overlay(add(1), add(2, 1, 2), ack(1, 2))
    assert list(found.plan.messages) == [2]
    assert sequences(found, 2) == [2]
    assert found.plan.left == set()


def test_a_moved_message_is_at_the_end_of_its_new_list() -> None:
    found = overlay(add(1), add(2, 2), Move(1, 1, 2, 3, Message("queue://r", b"moved")))
    assert sequences(found) == []
    assert [(n, m.body) for n, m, _ in found.page(2, 2)] == [(3, b"moved")]


def test_released_rows_take_their_messages_with_them() -> None:
    found = overlay(add(1), add(2), ack(1, 2), keep=True)
    assert found.log_bytes == 200
    found.release(1)
    assert list(found.plan.messages) == [2]
    assert [row[0] for row in found.plan.log] == [2]
    assert found.log_bytes == 100


def test_a_released_message_of_the_database_is_deleted_there() -> None:
    found = overlay(ack(7), keep=True)
    found.release(1)
    assert found.plan.discarded == {7}
    assert found.plan.ack_last == 1


def test_records_are_counted() -> None:
    found = overlay(add(1))
    found.add_record(5, 50)
    assert (found.records, found.position, found.size_bytes) == ([1, 5], 5, 150)
