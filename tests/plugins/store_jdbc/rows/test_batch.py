"""A batch is carried out on itself before the database hears of it."""

from __future__ import annotations

import pytest
from numbered import ack, add, message

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
    PluginContractError,
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
from tidegate_store_jdbc.database.sqlite import DIALECT
from tidegate_store_jdbc.rows.batch import Plan, Written, plan, steps
from tidegate_store_jdbc.rows.codec import Columns

COLUMNS = Columns({**DIALECT.types, "msg_id": "TEXT"})
OUT = InflightDirection.OUT


def planned(*operations: Operation, keep: bool = True, ack_last: int = 0) -> tuple[Plan, Written]:
    made = plan(operations, COLUMNS, Plan(ack_last), keep_acknowledged=keep)
    return made, steps(made, COLUMNS, keep_acknowledged=keep)


def names(written: Written) -> list[str]:
    return [step.statement.removesuffix("_statement") for step in written.steps]


def rows(written: Written, statement: str) -> list[tuple[object, ...]]:
    return [
        tuple(row)
        for step in written.steps
        if step.statement == f"{statement}_statement"
        for row in step.rows
    ]


def test_messages_and_references_are_two_statements_for_any_number() -> None:
    made, written = planned(add(1), add(2, 1, 2), add(3))
    assert names(written) == ["add_message", "add_pending"]
    assert [(row[0], row[11], row[12]) for row in rows(written, "add_message")] == [
        (1, 1, 100),
        (2, 2, 100),
        (3, 1, 100),
    ]
    assert rows(written, "add_pending") == [
        (1, 1, 0, 100, 0),
        (1, 2, 0, 100, 1),
        (2, 2, 0, 100, 1),
        (1, 3, 0, 100, 0),
    ]
    assert (written.added, made.last_sequence) == (3, 3)


def test_a_message_that_is_added_and_acknowledged_in_one_batch_is_not_written() -> None:
    _, written = planned(add(1), ack(1), keep=False)
    assert names(written) == []
    assert written.added == 0


def test_for_the_log_it_is_written_without_a_reference() -> None:
    made, written = planned(add(1), add(2), ack(1), ack_last=7)
    assert rows(written, "add_pending") == [(1, 2, 0, 100, 0)]
    assert len(rows(written, "add_message")) == 2
    assert rows(written, "add_acknowledged") == [
        (8, 1, 1, 1001, 2000, "client", "subscription", "stomp", "", 1, 0, "")
    ]
    assert made.removed == {}
    # It is in no list, so nobody need be asked what the database held before.
    assert (written.added, written.log_bytes, written.counted_at) == (1, 100, -1)


def test_acknowledgements_without_times_have_zeros() -> None:
    from tidegate.spi import Acknowledge

    _, written = planned(Acknowledge(1, (5, 4)))
    assert [row[:4] for row in rows(written, "add_acknowledged")] == [(1, 5, 1, 0), (2, 4, 1, 0)]


def test_only_discarded_messages_are_deleted_while_the_log_needs_the_others() -> None:
    _, written = planned(ack(1, 2), Discard(1, (3,), DiscardReason.EXPIRED))
    assert rows(written, "remove_pending") == [(1, 1), (1, 2), (1, 3)]
    assert rows(written, "count_old_messages") == [(1,), (2,), (3,)]
    assert rows(written, "delete_old_messages") == [(3,)]


def test_without_a_log_all_of_them_are_deleted() -> None:
    _, written = planned(ack(1, 2), Discard(1, (3,), DiscardReason.EXPIRED), keep=False)
    assert names(written) == ["remove_pending", "remove_message"]
    assert written.removed_at == 1


def test_a_moved_message_is_a_new_one() -> None:
    made, written = planned(Move(1, 5, 2, 9, message(9)))
    assert rows(written, "remove_pending") == [(1, 5)]
    assert rows(written, "add_pending") == [(2, 9, 0, 100, 0)]
    assert made.last_sequence == 9


def test_delivery_counts_go_into_new_references_and_update_old_ones() -> None:
    _, written = planned(add(5), RecordDelivery(1, (4, 5), (2, 3)), RecordDelivery(1, (4,), (6,)))
    assert rows(written, "add_pending") == [(1, 5, 3, 100, 0)]
    assert rows(written, "update_message") == [(6, 1, 4)]


def test_of_several_values_for_one_key_the_last_counts() -> None:
    def retained(body: bytes) -> SetRetained:
        return SetRetained(Message("topic://t", body))

    def packet(packet_id: int, state: InflightState) -> PutInflight:
        return PutInflight(InflightRecord("c", OUT, packet_id, state))

    _, written = planned(
        retained(b"1"),
        ClearRetained("topic://t"),
        retained(b"2"),
        SetRetained(Message("topic://u", b"")),
        ClearRetained("topic://u"),
        packet(1, InflightState.PUBLISHED),
        packet(1, InflightState.RELEASED),
        packet(2, InflightState.PUBLISHED),
        RemoveInflight("c", OUT, 2),
        PutSession(Session("c", 1)),
        PutSession(Session("c", 2)),
    )
    assert [row[3] for row in rows(written, "add_retained")] == [b"2"]
    assert len(rows(written, "remove_retained")) == 1
    assert [row[2:5:2] for row in rows(written, "add_inflight")] == [(1, InflightState.RELEASED)]
    assert [row[2] for row in rows(written, "remove_inflight")] == [2]
    assert [row[4] for row in rows(written, "add_session")] == [2]


def test_a_removed_session_takes_its_packet_ids_along_and_not_those_after_it() -> None:
    before = PutInflight(InflightRecord("c", OUT, 1, InflightState.PUBLISHED))
    after = PutInflight(InflightRecord("c", OUT, 2, InflightState.PUBLISHED))
    _, written = planned(before, RemoveSession("c"), after, PutSession(Session("c", 5)))
    order = names(written)
    assert order.index("remove_all_inflight") < order.index("add_inflight")
    assert [row[2] for row in rows(written, "add_inflight")] == [2]
    assert len(rows(written, "add_session")) == 1


def test_a_destination_may_go_and_come_back_with_another_list() -> None:
    made, written = planned(
        AddDestination("queue://q", 3),
        RemoveDestination("queue://q", 3),
        AddDestination("queue://q", 4),
        AddDestination("topic://t", 0),
        RemoveDestination("topic://t", 0),
    )
    assert [row[2] for row in rows(written, "add_destination")] == [4]
    assert made.removed_lists == [3]
    assert made.last_list == 4
    assert rows(written, "add_removed") == [(3,)]


def test_subscriptions_are_kept_by_their_list() -> None:
    made, written = planned(
        PutSubscription(Subscription(1, "c", "n", "topic://t", True)),
        PutSubscription(Subscription(1, "c", "n", "topic://t", True, qos=1)),
        RemoveSubscription(2),
        PutSubscription(Subscription(3, "c", "x", "topic://t", False)),
        RemoveSubscription(3),
    )
    assert [(row[0], row[5]) for row in rows(written, "create_durable_sub")] == [(1, 1)]
    assert rows(written, "delete_subscription") == [(2,), (3,)]
    assert (made.removed_lists, made.last_list) == ([2, 3], 3)


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(PluginContractError, match="unknown operation"):
        planned(object())  # type: ignore[arg-type]
