"""One batch a turn, and confirmed means durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from broker_harness import Broker, has, message

from tidegate.broker.turn.turn import Turn
from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddMessage,
    Durability,
    Operation,
    PutSubscription,
    RecordDelivery,
    RemoveSubscription,
    StoredMessage,
)

# --- group commit and order -----------------------------------------------------------------------


async def test_nothing_is_confirmed_before_the_store_returned() -> None:
    async with Broker() as broker:
        client = await broker.client()
        broker.store.hold()
        client.send("queue://q", "m", "receipt")
        await broker.settle()
        assert broker.store.waiting
        assert client.confirmations == []
        broker.store.release()
        await broker.settle()
        assert client.confirmations == ["receipt"]
        assert broker.store.pending("queue://q") == [b"m"]


@pytest.mark.parametrize(("size", "batches"), [(10, 2), (5000, 1)])
async def test_a_turn_with_much_in_it_takes_along_what_the_loop_reads_next(
    size: int, batches: int
) -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.send("queue://q", "there is a queue")
        await broker.settle()
        broker.store.batches.clear()
        client.send("queue://q", "m" * size, "1")
        asyncio.get_running_loop().call_soon(client.send, "queue://q", "n", "2")
        await broker.settle()
        assert client.confirmations == ["1", "2"]
        assert len(broker.store.batches) == batches


async def test_what_handing_out_leaves_behind_takes_along_what_is_sent_upon_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Broker() as broker:
        consumer, producer = await broker.client(), await broker.client()
        consumer.subscribe("queue://q", acknowledge=False)  # handing out is acknowledging
        await broker.settle()
        broker.store.batches.clear()
        deliver = consumer.deliver

        def answered(key: str, messages: Sequence[StoredMessage]) -> None:
            deliver(key, messages)
            if consumer.bodies() == [b"1"]:
                asyncio.get_running_loop().call_soon(producer.send, "queue://q", "2")

        monkeypatch.setattr(consumer, "deliver", answered)
        producer.send("queue://q", "1")
        await broker.settle()
        kinds = [[type(operation) for operation in batch] for batch in broker.store.batches]
        assert kinds == [[AddMessage], [Acknowledge, AddMessage], [Acknowledge]]
        assert consumer.bodies() == [b"1", b"2"]


async def test_nothing_is_delivered_before_it_is_durable() -> None:
    async with Broker() as broker:
        consumer, producer = await broker.client(), await broker.client()
        consumer.subscribe("queue://q")
        await broker.settle()
        broker.store.hold()
        producer.send("queue://q", "m")
        await broker.settle()
        assert consumer.bodies() == []
        broker.store.release()
        await broker.settle()
        assert consumer.bodies() == [b"m"]


async def test_messages_that_are_not_stored_are_delivered_behind_what_was_accepted_before() -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "c")
        client.subscribe("topic://t", "t", qos=0)
        await broker.settle()
        broker.store.hold()
        client.send("queue://q", "stored", "stored")
        client.send("topic://t", "direct", "direct", qos=0)
        await broker.settle()
        assert client.events == []
        broker.store.release()
        await broker.settle()
        assert client.events == ["stored", "direct", ("delivered", b"direct")]


async def test_a_turn_is_one_batch_and_what_arrives_during_a_write_is_the_next_one() -> None:
    async with Broker() as broker:
        one, two = await broker.client(), await broker.client()
        one.send("queue://q", "first")
        await broker.settle()
        broker.store.batches.clear()
        broker.store.hold()
        for number in range(5):
            one.send("queue://q", f"a{number}", f"a{number}")
            two.send("queue://q", f"b{number}", f"b{number}")
        await broker.settle()
        for number in range(5, 10):  # the first batch is in flight: these wait for each other
            one.send("queue://q", f"a{number}", f"a{number}")
            await broker.settle()
        assert broker.store.attempts == 2
        broker.store.release()
        await broker.settle()
        assert [len(batch) for batch in broker.store.batches] == [10, 5]
        assert one.confirmations == [f"a{number}" for number in range(10)]
        assert two.confirmations == [f"b{number}" for number in range(5)]


async def test_operations_are_written_in_the_order_they_were_asked_for() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for number in range(20):
            client.send(f"queue://q{number % 3}", f"{number}")
        await broker.settle()
        added = broker.store.operations(AddMessage)
        assert [op.message.body for op in added] == [b"%d" % n for n in range(20)]
        assert [op.sequence for op in added] == list(range(1, 21))


async def test_acknowledgements_without_a_receipt_need_no_sync_and_with_one_they_do() -> None:
    async with Broker() as broker:
        client = await broker.consumer("queue://q", "1", "2")
        one, two = client.sequences()
        client.connection.acknowledge("s", [one])
        await broker.settle()
        assert broker.store.durabilities[-1] is Durability.WRITTEN
        client.connection.acknowledge("s", [two], "receipt")
        await broker.settle()
        assert broker.store.durabilities[-1] is Durability.SYNCED


async def test_synchronize_is_confirmed_only_when_earlier_acknowledgements_are_synced() -> None:
    async with Broker() as broker:
        client = await broker.consumer("queue://q", "1")
        client.ack_all()
        await broker.settle()
        writes = broker.store.attempts
        client.connection.synchronize("all")
        await broker.settle()
        assert broker.store.attempts == writes + 1
        assert broker.store.durabilities[-1] is Durability.SYNCED
        client.connection.synchronize("nothing new")
        await broker.settle()
        assert broker.store.attempts == writes + 1  # nothing is left to be synced
        assert client.confirmations == ["all", "nothing new"]


async def test_whoever_waits_for_a_confirmation_has_something_unconfirmed() -> None:
    async with Broker() as broker:
        client, other = await broker.client(), await broker.client()
        await broker.settle()
        assert not client.connection.has_unconfirmed
        client.send("queue://q", "nobody waits")
        assert not client.connection.has_unconfirmed
        client.send("queue://q", "1", "in the filling turn")
        assert client.connection.has_unconfirmed
        assert not other.connection.has_unconfirmed
        broker.store.hold()
        await broker.settle()
        other.send("queue://q", "2", "in the next turn")
        assert client.connection.has_unconfirmed
        assert other.connection.has_unconfirmed
        broker.store.release()
        await broker.settle()
        assert not client.connection.has_unconfirmed
        assert not other.connection.has_unconfirmed
        client.send("queue://q", "3", "never")
        client.connection.disconnect(graceful=False)
        assert not client.connection.has_unconfirmed


async def test_acknowledgements_of_one_list_are_one_operation_a_turn() -> None:
    async with Broker() as broker:
        client = await broker.client("stomp", "me")
        client.subscribe("queue://q")
        for number in range(10):
            client.send("queue://q", f"{number}")
        await broker.settle()
        sequences = client.sequences()
        for sequence in sequences:
            client.connection.acknowledge("s", [sequence])
        await broker.settle()
        (operation,) = broker.store.operations(Acknowledge)
        assert operation.sequences == tuple(sequences)
        assert len(operation.delivered_at) == 10
        assert (operation.client_id, operation.subscription) == ("me", "s")
        assert operation.protocol == "stomp"


# --- sealing --------------------------------------------------------------------------------------


def test_sealing_puts_delivery_counts_before_acknowledgements_before_the_rest() -> None:
    class List:
        id = 7

    turn = Turn()
    turn.operations.append(RemoveSubscription(7))
    turn.acknowledged[None, List()] = ([1], [5], {})  # type: ignore[index]  # only its id is used
    turn.returned[List()] = {1: 2}  # type: ignore[index]
    assert turn.seal(99).operations == [
        RecordDelivery(7, (1,), (2,)),
        Acknowledge(7, (1,), (5,), 99),
        RemoveSubscription(7),
    ]


async def test_units_still_point_to_their_operations_when_acknowledgements_went_in_front() -> None:
    """The store is full in a turn that also holds acknowledgements: exactly the additions go."""

    async with Broker() as broker:
        client = await broker.consumer("queue://q", "old")
        broker.store.batches.clear()
        broker.store.is_full = lambda batch: has(batch, AddMessage)
        client.send("queue://new", "lost 1", "r1")
        client.ack_all(token="r2")
        client.send("queue://q", "lost 2", "r3")
        client.subscribe("topic://t", "t", token="r4")
        await broker.settle()
        assert [type(op) for batch in broker.store.batches for op in batch] == [
            Acknowledge,
            AddDestination,
            PutSubscription,
        ]
        assert [token for token, _ in client.failures] == ["r1", "r3"]
        assert client.confirmations == ["r2", "r4"]


async def test_a_message_delivered_again_and_acknowledged_within_a_turn_is_counted_before_it_goes() -> (
    None
):
    """The reference store refuses to count what is gone; the order in the batch prevents it."""

    async with Broker() as broker:
        one, two = await broker.client(), await broker.client()
        one.subscribe("queue://q")
        one.send("queue://q", "m")
        await broker.settle()
        two.subscribe("queue://q", acknowledge=False)
        await broker.settle()
        broker.store.batches.clear()
        one.connection.writable(False)
        one.connection.reject("s", one.sequences())
        await broker.settle()
        assert two.bodies() == [b"m"]
        (batch,) = broker.store.batches
        assert [type(op) for op in batch] == [RecordDelivery, Acknowledge]
        assert broker.store.pending("queue://q") == []


# --- flow control by unwritten bytes --------------------------------------------------------------


async def test_a_producer_is_paused_above_the_limit_of_unwritten_bytes_and_resumed_below_it() -> (
    None
):
    async with Broker(pending_write_limit=100) as broker:
        fast, slow = await broker.client(), await broker.client()
        broker.store.hold()
        fast.send("queue://q", "x" * 60)
        assert not fast.is_paused
        fast.send("queue://q", "x" * 60)
        assert fast.is_paused
        assert not slow.is_paused  # it has not sent anything
        await broker.settle()
        assert fast.is_paused
        assert broker.core.writer.unwritten_bytes == 120
        broker.store.release()
        await broker.settle()
        assert not fast.is_paused
        assert broker.core.writer.unwritten_bytes == 0


async def test_a_failing_dispatch_does_not_stop_the_turns(
    bug: BaseException, logged_errors: list[str]
) -> None:
    logged_errors.append("dispatch failed")

    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://bad")
        client.subscribe("queue://good", "good")
        await broker.settle()

        def broken(_limit: int, _bytes_max: int) -> list[Operation]:
            raise bug

        bad = broker.queue("bad")
        bad.cursor = type("Broken", (), {"take": staticmethod(broken), "is_full": False})()
        broker.core.flow.mark_ready(bad)
        await broker.settle(looks=False)
        client.send("queue://good", "m", "r")
        await broker.settle(looks=False)
        assert client.confirmations == ["r"]
        assert client.bodies("good") == [b"m"]
        client.connection.unsubscribe("s")
        destinations = broker.core.destinations
        destinations._discharge(destinations.queues.pop("queue://bad"))


async def test_a_queue_keeps_a_qos_0_message_until_it_is_acknowledged() -> None:
    """Otherwise an MQTT consumer, which never acknowledges QoS 0, would hold it for ever."""
    assert message("queue://q", "m", qos=0).qos == 0

    async with Broker() as broker:
        client = await broker.client("mqtt", "c")
        client.subscribe("queue://q")
        client.send("queue://q", "m", qos=0)
        await broker.settle()
        ((_, delivered),) = client.deliveries
        assert delivered.message.qos == 1
        assert broker.store.pending("queue://q") == [b"m"]
        client.ack_all()
        await broker.settle()
        assert broker.store.pending("queue://q") == []
