"""Transactions: one batch at COMMIT, nothing before it, everything back at ABORT or the end."""

from __future__ import annotations

import asyncio

import pytest
from broker_harness import Broker, Client

from tidegate.broker.limits.accounts import Account
from tidegate.broker.transactions.transactions import Published, Transaction
from tidegate.broker.turn.shortage import FULL_BACK_OFF_S
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddMessage,
    Durability,
    FlowControlError,
    Message,
    Move,
    RequestError,
    StoreFullError,
    StoreIOError,
    SyncedFor,
)


async def with_messages(broker: Broker, count: int = 3) -> Client:
    """A client that has *count* messages of queue://in in flight and transaction t open."""
    client = await broker.client()
    for number in range(count):
        client.send("queue://in", f"{number}")
    client.subscribe("queue://in")
    await broker.settle()
    assert len(client.sequences()) == count
    client.connection.begin("t")
    broker.store.batches.clear()
    client.events.clear()
    return client


def in_flight(client: Client) -> list[int]:
    return sorted(client.connection.consumers["s"].in_flight)


async def test_a_commit_is_one_batch_and_nothing_happens_before_it() -> None:
    async with Broker() as broker:
        client = await with_messages(broker)
        reader = await broker.consumer("queue://out")
        broker.store.batches.clear()
        client.connection.acknowledge("s", [1, 2], "held 1", "t")
        client.send("queue://out", "a", "held 2", transaction="t")
        await broker.settle()
        client.send("queue://other", "b", "held 3", transaction="t")
        client.send("topic://nobody", "c", transaction="t")
        await broker.settle()
        assert broker.store.operations(Acknowledge, AddMessage) == []
        assert reader.bodies() == []
        assert client.confirmations == ["held 1", "held 2", "held 3"]
        broker.store.batches.clear()
        client.connection.commit("t", "done")
        await broker.settle()
        (batch,) = broker.store.batches
        assert [type(op) for op in batch] == [Acknowledge, AddMessage, AddMessage]
        assert client.confirmations[-1] == "done"
        assert reader.bodies() == [b"a"]
        assert broker.store.pending("queue://in") == [b"2"]
        assert in_flight(client) == [3]


async def test_the_store_is_told_whether_a_transaction_or_something_else_wants_the_sync() -> None:
    async with Broker() as broker:
        client = await with_messages(broker)
        store = broker.store
        client.send("queue://out", "a", transaction="t")
        client.connection.acknowledge("s", [1], None, "t")
        await broker.settle()
        client.connection.commit("t", "alone")
        await broker.settle()
        assert store.synced_for[-1] is SyncedFor.TRANSACTION
        assert store.durabilities[-1] is Durability.SYNCED
        client.connection.begin("t")
        client.send("queue://out", "b", transaction="t")
        client.send("queue://out", "c")
        client.connection.commit("t", "together")
        await broker.settle()
        assert store.synced_for[-1] == SyncedFor.TRANSACTION | SyncedFor.SINGLE
        client.connection.begin("t")
        client.send("queue://out", "d", transaction="t")
        client.connection.commit("t", "together")
        client.send("queue://out", "e")
        await broker.settle()
        assert store.synced_for[-1] == SyncedFor.TRANSACTION | SyncedFor.SINGLE
        client.send("queue://out", "f")
        await broker.settle()
        assert store.synced_for[-1] is SyncedFor.SINGLE
        assert store.durabilities[-1] is Durability.SYNCED


async def test_a_crash_before_the_commit_is_durable_leaves_nothing_of_it() -> None:
    async with Broker() as broker:
        client = await with_messages(broker)
        client.connection.acknowledge("s", [1, 2], None, "t")
        client.send("queue://out", "a", transaction="t")
        broker.store.hold()
        client.connection.commit("t", "done")
        await broker.settle()
        assert client.confirmations == []
        await broker.kill()
        assert broker.store.pending("queue://in") == [b"0", b"1", b"2"]
        reader = await broker.consumer("queue://out")
        assert reader.bodies() == []


async def test_an_abort_puts_acknowledged_messages_back_in_flight_and_forgets_the_rest() -> None:
    async with Broker() as broker:
        client = await with_messages(broker)
        client.connection.acknowledge("s", [1], None, "t")
        client.connection.reject("s", [2], None, "t")
        client.send("queue://out", "a", transaction="t")
        assert in_flight(client) == [3]
        client.connection.abort("t", "aborted")
        await broker.settle()
        assert client.confirmations == ["aborted"]
        assert in_flight(client) == [1, 2, 3]
        assert client.connection.consumers["s"].in_flight_bytes == 3
        assert client.bodies() == [b"0", b"1", b"2"]  # nothing is delivered again
        assert broker.store.operations(Acknowledge, AddMessage) == []
        client.ack_all()
        await broker.settle()
        assert broker.store.pending("queue://in") == []


async def test_a_lost_connection_rolls_its_transactions_back() -> None:
    async with Broker() as broker:
        client = await with_messages(broker)
        client.connection.acknowledge("s", [1, 2], None, "t")
        client.send("queue://in", "never", transaction="t")
        client.connection.disconnect(graceful=True)
        other = await broker.consumer("queue://in")
        assert other.bodies() == [b"0", b"1", b"2"]
        assert other.counts() == [1, 1, 1]


async def test_what_a_transaction_holds_of_an_ended_subscription_is_committed_or_returned() -> None:
    async with Broker() as broker:
        client = await with_messages(broker)
        client.connection.begin("u")
        client.connection.acknowledge("s", [1], None, "t")
        client.connection.acknowledge("s", [2], None, "u")
        client.connection.unsubscribe("s")
        client.connection.commit("t")
        client.connection.abort("u")
        other = await broker.consumer("queue://in")
        assert other.bodies() == [b"1", b"2"]
        assert broker.store.pending("queue://in") == [b"1", b"2"]


async def test_a_transaction_that_acknowledges_a_subscription_that_is_gone_commits_the_rest() -> (
    None
):
    async with Broker() as broker:
        client = await broker.consumer("topic://t", "m")
        client.connection.begin("t")
        client.connection.acknowledge("s", [1], None, "t")
        client.send("queue://out", "a", transaction="t")
        client.connection.unsubscribe("s")
        await broker.settle()
        client.connection.commit("t", "done")
        await broker.settle()
        assert client.confirmations == ["done"]
        assert broker.store.pending("queue://out") == [b"a"]


async def test_rejected_messages_of_a_transaction_are_redelivered_or_die_at_the_commit() -> None:
    async with Broker(DestinationPolicy(match=">", max_deliveries=2)) as broker:
        client = await with_messages(broker, 2)
        client.connection.reject("s", [1])
        await broker.settle()
        assert client.counts() == [0, 0, 1]
        client.connection.reject("s", [1, 2], None, "t")
        await broker.settle()
        assert client.counts() == [0, 0, 1]
        client.connection.commit("t", "done")
        await broker.settle()
        assert client.counts() == [0, 0, 1, 1]
        assert client.sequences() == [1, 2, 1, 2]
        assert broker.store.pending("queue://DLQ.in") == [b"0"]
        assert broker.store.pending("queue://in") == [b"1"]


async def test_a_commit_that_finds_no_room_is_undone_as_a_whole() -> None:
    async with Broker(DestinationPolicy(match=">", max_deliveries=1)) as broker:
        client = await with_messages(broker, 4)
        direct = await broker.client("mqtt", "direct")
        direct.subscribe("topic://t", qos=0)
        await broker.settle()
        client.connection.acknowledge("s", [1, 2], None, "t")
        client.connection.reject("s", [3], None, "t")
        client.send("queue://out", "stored", transaction="t")
        client.send("topic://t", "not stored", transaction="t")
        client.send("topic://t", "retained", transaction="t", retain=True)
        broker.store.refuse(1)
        client.connection.commit("t", "never")
        await broker.core.writer.drained()
        await broker.settle()
        ((token, error),) = client.failures
        assert token == "never"
        assert isinstance(error, StoreFullError)
        assert client.confirmations == []
        # Nothing of it happened, not even what needed no room.
        assert direct.bodies() == []
        assert len(broker.core.retained) == 0
        assert broker.store.operations(Acknowledge, AddMessage, Move) == []
        # Acknowledged messages are in flight again, once; the rejected one was redelivered.
        assert in_flight(client) == [1, 2, 3, 4]
        assert client.sequences() == [1, 2, 3, 4, 3]
        assert client.connection.consumers["s"].in_flight_bytes == 4
        await asyncio.sleep(FULL_BACK_OFF_S)
        client.connection.begin("t")
        client.connection.acknowledge("s", [1, 2, 3, 4], None, "t")
        client.send("queue://out", "stored", transaction="t")
        client.connection.commit("t", "done")
        await broker.settle()
        assert client.confirmations == ["done"]
        assert broker.store.pending("queue://in") == []
        assert broker.store.pending("queue://out") == [b"stored"]


async def test_a_commit_that_failed_after_its_client_left_returns_the_messages_to_the_queue() -> (
    None
):
    async with Broker() as broker:
        client = await with_messages(broker)
        other = await broker.client()
        client.connection.acknowledge("s", [1, 2], None, "t")
        client.send("queue://out", "m", transaction="t")
        broker.store.refuse(1)
        broker.store.hold()
        client.connection.commit("t", "never")
        await broker.settle()
        client.connection.disconnect(graceful=False)
        other.subscribe("queue://in")
        await broker.settle()
        broker.store.release()
        await broker.core.writer.drained()
        await broker.settle()
        assert sorted(other.bodies()) == [b"0", b"1", b"2"]
        other.ack_all()
        await broker.settle()
        assert broker.store.pending("queue://in") == []


async def test_a_commit_during_the_back_off_is_refused_and_may_be_tried_again() -> None:
    async with Broker() as broker:
        client = await with_messages(broker)
        broker.store.refuse(1)
        client.send("queue://out", "lost")
        await broker.settle()
        client.send("queue://out", "kept", transaction="t")
        with pytest.raises(StoreFullError):
            client.connection.commit("t")
        await asyncio.sleep(FULL_BACK_OFF_S)
        client.connection.commit("t", "done")
        await broker.settle()
        assert client.confirmations == ["done"]
        assert broker.store.pending("queue://out") == [b"kept"]


async def test_a_commit_on_a_broken_store_is_not_confirmed(logged_errors: list[str]) -> None:
    logged_errors.append("store=read-only")

    async with Broker() as broker:
        client = await with_messages(broker)
        client.connection.acknowledge("s", [1], None, "t")
        client.connection.begin("u")
        broker.store.error = StoreIOError("broken")
        client.connection.commit("t", "never")
        await broker.settle()
        assert client.confirmations == []
        assert [token for token, _ in client.failures] == ["never"]
        with pytest.raises(StoreIOError):
            client.connection.commit("u")


async def test_a_new_queue_of_a_transaction_exists_before_its_commit() -> None:
    async with Broker() as broker:
        client = await with_messages(broker)
        client.send("queue://new", "m", transaction="t")
        await broker.settle()
        assert [op.destination for op in broker.store.operations(AddDestination)] == ["queue://new"]


async def test_a_large_commit_pauses_its_producer_like_any_other_publish() -> None:
    async with Broker(pending_write_limit=100) as broker:
        client = await with_messages(broker)
        for _ in range(3):
            client.send("queue://out", "x" * 50, transaction="t")
        assert not client.is_paused
        client.connection.commit("t")
        assert client.is_paused
        await broker.settle()
        assert not client.is_paused


# --- limits and misuse ----------------------------------------------------------------------------


async def test_open_transactions_are_limited() -> None:
    async with Broker(transactions_open_max=2) as broker:
        client = await broker.client()
        client.connection.begin("a")
        client.connection.begin("b")
        with pytest.raises(RequestError, match="transactions_open_max"):
            client.connection.begin("c")
        client.connection.abort("a")
        client.connection.begin("c")


async def test_operations_of_a_transaction_are_limited_and_what_was_refused_is_in_flight() -> None:
    async with Broker(transaction_operations_max=3) as broker:
        client = await with_messages(broker, 4)
        client.connection.acknowledge("s", [1, 2], None, "t")
        with pytest.raises(FlowControlError, match="transaction_operations_max"):
            client.connection.acknowledge("s", [3, 4], None, "t")
        assert in_flight(client) == [3, 4]
        client.send("queue://out", "third", transaction="t")
        with pytest.raises(FlowControlError):
            client.send("queue://out", "fourth", transaction="t")
        client.connection.commit("t", "done")
        await broker.settle()
        assert client.confirmations == ["done"]
        assert broker.store.pending("queue://out") == [b"third"]


async def test_a_transaction_that_is_not_open_is_refused_and_nothing_is_lost() -> None:
    async with Broker() as broker:
        client = await with_messages(broker)
        with pytest.raises(RequestError):
            client.connection.begin("t")
        with pytest.raises(RequestError):
            client.connection.commit("u")
        with pytest.raises(RequestError):
            client.connection.abort("u")
        with pytest.raises(RequestError):
            client.connection.acknowledge("s", [1], None, "u")
        with pytest.raises(RequestError):
            client.connection.reject("s", [1], None, "u")
        with pytest.raises(RequestError):
            client.send("queue://out", "m", transaction="u")
        assert in_flight(client) == [1, 2, 3]


async def test_a_message_held_by_a_transaction_cannot_be_acknowledged_again() -> None:
    async with Broker() as broker:
        client = await with_messages(broker)
        client.connection.acknowledge("s", [1], None, "t")
        with pytest.raises(RequestError):
            client.connection.acknowledge("s", [1])
        client.connection.commit("t")
        await broker.settle()
        (operation,) = broker.store.operations(Acknowledge)
        assert operation.sequences == (1,)


async def test_an_empty_transaction_commits() -> None:
    async with Broker() as broker:
        client = await with_messages(broker)
        client.connection.commit("t", "done")
        await broker.settle()
        assert client.confirmations == ["done"]


def test_steps_are_counted_by_their_operations() -> None:
    account = Account("somebody", None, 0, "")
    transaction = Transaction(3, account)
    step = Published(Message("queue://a", b""), None)
    transaction.check_room(3)
    for _ in range(3):
        transaction.publish(step)
    with pytest.raises(FlowControlError):
        transaction.check_room(1)
    assert transaction.settled == []
