"""What happens when the store has no room, or is broken."""

from __future__ import annotations

import asyncio
import logging

import pytest
from broker_harness import Broker, has, key_of

from tidegate.broker.turn import flow
from tidegate.broker.turn.shortage import FULL_BACK_OFF_S
from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddMessage,
    Durability,
    GatewayError,
    InflightDirection,
    InflightRecord,
    InflightState,
    RequestError,
    SetRetained,
    StoreFullError,
    StoreIOError,
    StoreLostError,
    Token,
    WriteBatch,
)


@pytest.fixture
def read_only_is_logged(logged_errors: list[str]) -> None:
    logged_errors.append("store=read-only")


# --- no room --------------------------------------------------------------------------------------


async def test_a_full_store_refuses_the_publish_and_its_sender_hears_of_it() -> None:
    async with Broker() as broker:
        client = await broker.consumer()
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
        client = await broker.consumer("queue://q", "1")
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
        client = await broker.consumer()
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
        client = await broker.consumer("queue://q", "m")
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
        client = await broker.consumer("queue://q", "1", "2")
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
        client = await broker.consumer()
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
        assert loop_time() < broker.core.writer.shortage.until
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
        reader = await broker.consumer("queue://new")
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
        client = await broker.consumer("queue://q", "m")
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
        client = await broker.consumer("queue://q", "m")

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


async def test_a_commit_that_only_acknowledges_is_kept_when_the_store_is_full() -> None:
    async with Broker() as broker:
        client = await broker.consumer("queue://q", "m")
        broker.store.refuse(1)
        client.connection.begin("t")
        client.connection.acknowledge("s", client.sequences(), None, "t")
        client.connection.commit("t", "done")
        await broker.core.writer.drained()
        assert client.confirmations == ["done"]
        assert broker.store.pending("queue://q") == []
        with pytest.raises(RequestError):
            client.connection.acknowledge("s", client.sequences())
