"""One batch a turn; confirmed means durable; what happens when the store cannot write."""

from __future__ import annotations

import asyncio
import logging

import pytest
from broker_harness import Broker, key_of, message

from tidegate.broker.turn import flow
from tidegate.broker.turn.turn import Turn
from tidegate.broker.turn.writer import FULL_BACK_OFF_S
from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddMessage,
    Durability,
    GatewayError,
    InflightDirection,
    InflightRecord,
    InflightState,
    Operation,
    PutSubscription,
    RecordDelivery,
    RemoveSubscription,
    RequestError,
    SetRetained,
    StoreFullError,
    StoreIOError,
    StoreLostError,
    Token,
    WriteBatch,
)


def has(batch: WriteBatch, *types: type) -> bool:
    return any(isinstance(operation, types) for operation in batch.operations)


@pytest.fixture
def read_only_is_logged(logged_errors: list[str]) -> None:
    logged_errors.append("store=read-only")


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
        client = await broker.client()
        client.subscribe("queue://q")
        client.send("queue://q", "1")
        client.send("queue://q", "2")
        await broker.settle()
        one, two = client.sequences()
        client.connection.acknowledge("s", [one])
        await broker.settle()
        assert broker.store.durabilities[-1] is Durability.WRITTEN
        client.connection.acknowledge("s", [two], "receipt")
        await broker.settle()
        assert broker.store.durabilities[-1] is Durability.SYNCED


async def test_synchronize_is_confirmed_only_when_earlier_acknowledgements_are_synced() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        client.send("queue://q", "1")
        await broker.settle()
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
        client = await broker.client()
        client.subscribe("queue://q")
        client.send("queue://q", "old")
        await broker.settle()
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


# --- no room --------------------------------------------------------------------------------------


async def test_a_full_store_refuses_the_publish_and_its_sender_hears_of_it() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        await broker.settle()
        broker.store.refuse(1)
        client.send("queue://q", "lost", "r1")
        await broker.settle()
        ((token, error),) = client.failures
        assert token == "r1"
        assert isinstance(error, StoreFullError)
        assert client.confirmations == []
        assert client.bodies() == []
        assert broker.store.pending("queue://q") == []


async def test_a_receipt_in_a_turn_that_was_dropped_waits_for_the_sync_of_what_came_before() -> (
    None
):
    """Nothing is left to write of the turn, but the acknowledgement before it was only WRITTEN."""

    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        client.send("queue://q", "1")
        await broker.settle()
        client.ack_all()
        await broker.settle()
        assert broker.store.durabilities[-1] is Durability.WRITTEN
        broker.store.refuse(1)
        client.send("queue://q", "too much", "dropped")
        client.connection.synchronize("receipt")
        await broker.settle()
        assert [token for token, _ in client.failures] == ["dropped"]
        assert client.confirmations == ["receipt"]
        assert broker.store.durabilities[-1] is Durability.SYNCED
        assert broker.store.batches[-1] == []


@pytest.mark.parametrize("fails", ["confirmed", "failed", "undo"])
async def test_one_that_fails_to_be_told_does_not_keep_the_others_from_it(
    fails: str, logged_errors: list[str]
) -> None:
    logged_errors += ["confirming a durable", "telling a failure", "taking back a dropped"]

    def bug() -> None:
        raise RuntimeError("a bug")

    class Bad:
        def confirmed(self, tokens: list[Token]) -> None:
            bug()

        def failed(self, token: Token, error: GatewayError) -> None:
            bug()

    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        await broker.settle()
        turn = broker.core.writer.turn
        if fails == "confirmed":
            turn.unit(len(turn.operations), Bad(), "token")
        client.send("queue://q", "1", "first")
        if fails != "confirmed":
            count = len(turn.operations)
            turn.unit(count - 1, Bad(), undo=[bug] if fails == "undo" else [])
            broker.store.refuse(1)
        client.send("queue://q", "2", "second")
        await broker.settle()
        if fails == "confirmed":
            assert client.confirmations == ["first", "second"]
            assert client.bodies() == [b"1", b"2"]
        else:
            assert [token for token, _ in client.failures] == ["first", "second"]


async def test_acknowledgements_are_written_again_until_there_is_room() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        client.send("queue://q", "m")
        await broker.settle()
        broker.store.refuse(5)
        client.ack_all(token="ack")
        await broker.settle()
        assert client.confirmations == []
        attempts = broker.store.attempts
        await broker.core.writer.drained()
        assert broker.store.attempts == attempts + 4
        assert client.confirmations == ["ack"]
        assert client.failures == []
        assert broker.store.pending("queue://q") == []


async def test_acknowledgements_free_room_although_new_destinations_do_not_fit() -> None:
    """A store that is short of room may refuse a batch that holds anything that grows: the new
    queue must not keep the acknowledgements, also those that come later, from being written."""

    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        client.send("queue://q", "1")
        client.send("queue://q", "2")
        await broker.settle()
        freed: list[int] = []

        def is_full(batch: WriteBatch) -> bool:
            if len(freed) < 2 and has(batch, AddMessage, AddDestination):
                return True
            freed.extend(
                s for op in batch.operations if isinstance(op, Acknowledge) for s in op.sequences
            )
            return False

        broker.store.is_full = is_full
        one, two = client.sequences()
        client.connection.acknowledge("s", [one], "r1")
        client.send("queue://new", "lost", "r2")
        await broker.settle()
        assert freed == [one]
        client.connection.acknowledge("s", [two], "r3")
        await broker.core.writer.drained()
        assert freed == [one, two]
        assert client.confirmations == ["r1", "r3"]
        assert [token for token, _ in client.failures] == ["r2"]
        assert "queue://new" in broker.contents.destinations


async def test_a_turn_takes_half_as_many_subscriptions_that_begin_as_that_end() -> None:
    """One that begins keeps the loop twice as long, and the turn before is written no sooner."""
    async with Broker() as broker:
        client = await broker.client()
        await broker.settle()
        broker.store.hold()
        begun = ended = 0
        while not client.is_paused:
            client.subscribe(f"topic://t{begun}", f"t{begun}")
            begun += 1
        broker.store.release()
        await broker.settle()
        assert not client.is_paused
        broker.store.hold()
        while not client.is_paused and ended < begun:
            client.connection.unsubscribe(f"t{ended}")
            ended += 1
        assert begun == 101
        assert not client.is_paused, "and as many again could end"
        broker.store.release()
        await broker.settle()


async def test_a_client_that_waits_for_a_turn_goes_on_when_that_waits_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its acknowledgement may be what makes room."""
    monkeypatch.setattr(flow, "TURN_WORK_MAX", 2 * flow.STATE_WORK)
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        await broker.settle()
        client.send("queue://q", "1")
        await broker.settle()
        is_acknowledged = False

        def is_full(batch: WriteBatch) -> bool:
            nonlocal is_acknowledged
            is_acknowledged = is_acknowledged or has(batch, Acknowledge)
            return not is_acknowledged

        broker.store.is_full = is_full
        broker.store.hold()
        client.send("queue://new", "lost", "r1")
        await broker.settle()
        for number in range(3):
            client.subscribe(f"topic://t{number}", f"t{number}")
        assert client.is_paused
        broker.store.release()
        await broker.settle()
        assert not client.is_paused
        client.ack_all(token="r2")
        await broker.core.writer.drained()
        assert client.confirmations == ["r2"]
        assert [token for token, _ in client.failures] == ["r1"]


async def test_publishes_are_refused_during_the_back_off_and_accepted_after_it() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.send("queue://q", "first")
        await broker.settle()
        broker.store.refuse(1)
        client.send("queue://q", "lost", "r1")
        await broker.settle()
        loop_time = broker.core.writer._loop.time
        assert loop_time() < broker.core.writer.full_until
        with pytest.raises(StoreFullError):
            client.send("queue://q", "too early", "r2")
        await asyncio.sleep(FULL_BACK_OFF_S)
        client.send("queue://q", "accepted", "r3")
        await broker.settle()
        assert client.confirmations == ["r3"]
        assert broker.store.pending("queue://q") == [b"first", b"accepted"]


async def test_a_new_queue_survives_a_publish_that_was_dropped() -> None:
    async with Broker() as broker:
        client = await broker.client()
        broker.store.is_full = lambda batch: has(batch, AddMessage)
        client.send("queue://new", "lost", "r1")
        await broker.core.writer.drained()
        broker.store.is_full = lambda _batch: False
        assert "queue://new" in broker.contents.destinations
        await asyncio.sleep(FULL_BACK_OFF_S)
        client.send("queue://new", "kept", "r2")
        await broker.settle()
        await broker.kill()
        reader = await broker.client()
        reader.subscribe("queue://new")
        await broker.settle()
        assert reader.bodies() == [b"kept"]


async def test_the_packet_id_of_a_dropped_qos_2_publish_is_forgotten() -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "c", clean_start=False, session_expiry=100)
        await broker.settle()
        record = InflightRecord(key_of("c"), InflightDirection.IN, 5, InflightState.RECEIVED)
        broker.store.refuse(1)
        client.send("queue://q", "lost", "rec", inflight=record)
        await broker.settle()
        assert [token for token, _ in client.failures] == ["rec"]
        assert client.connection.session is not None
        assert client.connection.session.inflight == {}
        await broker.core.writer.drained()
        assert broker.contents.inflight == {}
        client.connection.disconnect(graceful=True)
        again = await broker.client("mqtt", "c", clean_start=False, session_expiry=100)
        assert again.result.inflight == []


async def test_a_retained_message_of_a_dropped_publish_is_taken_back() -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "c")
        client.send("topic://t", "old", retain=True)
        await broker.settle()
        broker.store.is_full = lambda batch: has(batch, SetRetained)
        client.send("topic://t", "lost 1", "r1", retain=True)
        client.send("topic://t", "lost 2", "r2", retain=True)
        await broker.core.writer.drained()
        assert [token for token, _ in client.failures] == ["r1", "r2"]
        kept = broker.core.retained.get("topic://t")
        assert kept is not None
        assert kept.body == b"old"


@pytest.mark.usefixtures("read_only_is_logged")
async def test_a_full_store_does_not_keep_the_gateway_from_stopping() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        client.send("queue://q", "m")
        await broker.settle()
        broker.store.refuse(10**9)
        client.ack_all(token="never")
        await broker.core.stop()
        assert broker.store.is_closed
        assert client.confirmations == []
        assert client.ended is not None


# --- broken store ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("read_only_is_logged")
@pytest.mark.parametrize(
    "error",
    [StoreIOError("broken"), OSError(5, "disk"), RuntimeError("bug"), SystemExit(4)],
    ids=lambda error: type(error).__name__,
)
async def test_after_any_other_error_nobody_is_confirmed_and_the_store_is_read_only(
    error: BaseException,
) -> None:
    async with Broker() as broker:
        client, other = await broker.client(), await broker.client()
        client.subscribe("queue://q")
        await broker.settle()
        broker.store.error = error
        client.send("queue://q", "lost", "r1")
        other.connection.synchronize("r2")
        await broker.settle()
        assert [token for token, _ in client.failures] == ["r1"]
        assert [token for token, _ in other.failures] == ["r2"]
        assert client.bodies() == []
        with pytest.raises(StoreIOError):
            client.send("queue://q", "refused")
        with pytest.raises(StoreIOError):
            client.subscribe("queue://q2", "s2")
        with pytest.raises(StoreIOError):
            await broker.client()
        client.connection.synchronize("r3")
        await broker.settle()
        assert [token for token, _ in client.failures] == ["r1", "r3"]
        assert client.confirmations == other.confirmations == []
        assert broker.store.attempts == 2  # it is not asked again


async def test_a_store_that_is_another_gateways_by_now_is_told_once_and_not_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with Broker() as broker:
        client = await broker.client()
        broker.store.error = StoreLostError("the lock is lost")
        client.send("queue://q", "lost", "r1")
        await broker.settle()
        assert [(token, type(error)) for token, error in client.failures] == [
            ("r1", StoreLostError)
        ]
        with pytest.raises(StoreLostError):
            client.send("queue://q", "refused")
    assert not caplog.records


@pytest.mark.usefixtures("read_only_is_logged")
async def test_a_store_that_breaks_while_it_is_full_is_read_only_and_those_who_wait_are_told() -> (
    None
):
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        client.send("queue://q", "m")
        await broker.settle()

        def is_full(_batch: WriteBatch) -> bool:
            broker.store.error = StoreIOError("broken")  # from the second attempt on
            return True

        broker.store.is_full = is_full
        client.send("queue://q", "lost", "r1")
        client.ack_all(token="r2")
        await broker.core.writer.drained()
        assert [token for token, _ in client.failures] == ["r1", "r2"]
        assert client.confirmations == []
        with pytest.raises(StoreIOError):
            client.send("queue://q", "refused")


@pytest.mark.usefixtures("read_only_is_logged")
async def test_producers_that_wait_for_the_store_are_woken_when_it_breaks() -> None:
    async with Broker(pending_write_limit=10) as broker:
        client = await broker.client()
        broker.store.hold()
        client.send("queue://q", "x" * 11, "r1")
        assert client.is_paused
        broker.store.error = StoreIOError("broken")
        broker.store.release()
        await broker.settle()
        assert not client.is_paused


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
        await broker.settle()
        client.send("queue://good", "m", "r")
        await broker.settle()
        assert client.confirmations == ["r"]
        assert client.bodies("good") == [b"m"]
        client.connection.unsubscribe("s")
        destinations = broker.core.destinations
        destinations._discharge(destinations.queues.pop("queue://bad"))


async def test_a_commit_that_only_acknowledges_is_kept_when_the_store_is_full() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        client.send("queue://q", "m")
        await broker.settle()
        broker.store.refuse(1)
        client.connection.begin("t")
        client.connection.acknowledge("s", client.sequences(), None, "t")
        client.connection.commit("t", "done")
        await broker.core.writer.drained()
        assert client.confirmations == ["done"]
        assert broker.store.pending("queue://q") == []
        with pytest.raises(RequestError):
            client.connection.acknowledge("s", client.sequences())


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
