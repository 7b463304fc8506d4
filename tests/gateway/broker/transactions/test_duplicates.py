"""Duplicate ids: the second message under an id is confirmed and discarded, and nothing is lost."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from broker_harness import Broker, Client, key_of

from tidegate.broker.transactions.duplicates import FULL_RINGS_MAX, ID_BYTES, ID_CHARACTERS_MAX
from tidegate.broker.turn.shortage import FULL_BACK_OFF_S
from tidegate.spi import (
    AddDuplicateId,
    AddMessage,
    ForgetDuplicateIds,
    InflightDirection,
    InflightRecord,
    InflightState,
    PutInflight,
    RemoveInflight,
    RequestError,
    StoreCapabilities,
    StoreFullError,
    text_bytes,
)
from tidegate.testing.memory_store import MemoryContents, MemoryStore


async def sent(broker: Broker, client: Client, *ids: str, to: str = "queue://q") -> None:
    """Send a message with each id; its body is the id."""
    for number in ids:
        client.send(to, number, duplicate_id=number)
    await broker.settle()


async def test_a_repetition_is_confirmed_and_discarded(caplog: pytest.LogCaptureFixture) -> None:
    async with Broker() as broker:
        caplog.set_level(logging.DEBUG, "tidegate.broker.duplicates")
        client, other = await broker.client(), await broker.client("mqtt", "m")
        client.send("queue://q", "first", "1", duplicate_id="a")
        await broker.settle()
        other.send("queue://q", "second", "2", duplicate_id="a")  # whoever sends it
        client.send("queue://q", "third", "3", duplicate_id="b")
        await broker.settle()
        assert client.confirmations == ["1", "3"]
        assert other.confirmations == ["2"]
        assert broker.store.pending("queue://q") == [b"first", b"third"]
        assert broker.core.duplicates.discarded == 1
        assert "duplicate_id='a' discarded" in caplog.text


async def test_an_id_counts_for_its_destination_only() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for destination in ("queue://q", "queue://r", "topic://q"):
            await sent(broker, client, "a", "a", to=destination)
        assert broker.store.pending("queue://q") == [b"a"]
        assert broker.store.pending("queue://r") == [b"a"]
        assert broker.core.duplicates.discarded == 3


async def test_an_id_is_durable_with_its_message_and_survives_a_kill() -> None:
    async with Broker() as broker:
        client = await broker.client()
        await sent(broker, client, "a")
        (batch,) = [b for b in broker.store.batches if any(type(o) is AddMessage for o in b)]
        assert AddDuplicateId("queue://q", "a", 1) in batch
        await broker.kill()
        client = await broker.client()
        await sent(broker, client, "a", "b")
        assert broker.store.pending("queue://q") == [b"a", b"b"]


async def test_a_repetition_of_what_is_being_written_is_not_confirmed_before_it() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.send("queue://q", "x")  # makes the queue
        await broker.settle()
        broker.store.hold()
        client.send("queue://q", "a", "first", duplicate_id="a")
        client.send("queue://q", "a", "same turn", duplicate_id="a")
        await broker.settle()
        client.send("queue://q", "a", "next turn", duplicate_id="a")
        await broker.settle()
        assert client.confirmations == []
        broker.store.release()
        await broker.settle()
        assert client.confirmations == ["first", "same turn", "next turn"]
        assert broker.store.pending("queue://q") == [b"x", b"a"]


async def test_when_the_original_is_dropped_its_repetitions_fail_with_it_and_may_be_tried_again() -> (
    None
):
    """Otherwise the message would be confirmed by its repetition and be nowhere."""

    async with Broker() as broker:
        client = await broker.client("mqtt", "m", session_expiry=100)
        client.send("queue://q", "x")
        await broker.settle()
        broker.store.hold()
        broker.store.refuse(1)
        client.send("queue://q", "a", "first", duplicate_id="a")
        client.send("queue://q", "a", "same turn", duplicate_id="a")
        client.send("queue://q", "a", "again", duplicate_id="a")
        await broker.settle()
        record = InflightRecord(key_of("m"), InflightDirection.IN, 7, InflightState.RECEIVED)
        client.send("queue://q", "a", "next turn", duplicate_id="a", inflight=record)
        client.send("queue://q", "b", "other")
        broker.store.release()
        await broker.settle()
        assert {token for token, _ in client.failures} == {
            "first",
            "same turn",
            "again",
            "next turn",
        }
        assert all(isinstance(error, StoreFullError) for _, error in client.failures)
        assert client.confirmations == ["other"]
        assert broker.core.duplicates.discarded == 3
        # The packet id of the one that failed means nothing, now and after a restart.
        assert not client.connection.session.inflight  # type: ignore[union-attr]
        assert broker.store.operations(PutInflight, RemoveInflight) == [
            PutInflight(record),
            RemoveInflight(key_of("m"), InflightDirection.IN, 7),
        ]
        await asyncio.sleep(FULL_BACK_OFF_S + 0.01)
        client.send("queue://q", "a", "once more", duplicate_id="a")
        await broker.settle()
        assert client.confirmations == ["other", "once more"]
        assert broker.store.pending("queue://q") == [b"x", b"b", b"a"]
        client.connection.disconnect(graceful=True, session_expiry=0)
        await broker.settle()


async def test_a_repetition_takes_its_packet_id() -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "m", session_expiry=100)
        record = InflightRecord(key_of("m"), InflightDirection.IN, 7, InflightState.RECEIVED)
        await sent(broker, client, "a")
        client.send("queue://q", "a", "t", duplicate_id="a", inflight=record)
        await broker.settle()
        assert client.confirmations == ["t"]
        assert broker.store.operations(PutInflight) == [PutInflight(record)]
        client.connection.disconnect(graceful=True, session_expiry=0)
        await broker.settle()


# --- transactions ---------------------------------------------------------------------------------


async def test_a_duplicate_in_a_transaction_rolls_all_of_it_back() -> None:
    async with Broker() as broker:
        client = await broker.client()
        await sent(broker, client, "a")
        client.subscribe("queue://q")
        await broker.settle()
        client.connection.begin("t")
        client.connection.acknowledge("s", [1], None, "t")
        client.send("queue://r", "new", transaction="t", duplicate_id="n")
        client.send("queue://q", "a", transaction="t", duplicate_id="a")
        with pytest.raises(RequestError, match=r"rolled back.*'a'"):
            client.connection.commit("t", "done")
        with pytest.raises(RequestError, match="no open transaction"):
            client.connection.abort("t")
        await broker.settle()
        assert client.confirmations == []
        assert broker.store.pending("queue://q") == [b"a"]
        assert broker.store.pending("queue://r") == []
        assert list(client.connection.consumers["s"].in_flight) == [1]
        await sent(broker, client, "n", to="queue://r")  # it never happened
        assert broker.store.pending("queue://r") == [b"n"]


async def test_an_id_twice_in_one_transaction_is_a_duplicate() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.connection.begin("t")
        for _ in range(2):
            client.send("queue://q", "a", transaction="t", duplicate_id="a")
        with pytest.raises(RequestError, match="rolled back"):
            client.connection.commit("t")


async def test_a_committed_id_is_known_and_an_aborted_one_is_not() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for outcome in ("abort", "commit"):
            client.connection.begin("t")
            client.send("queue://q", outcome, transaction="t", duplicate_id="a")
            getattr(client.connection, outcome)("t", outcome)
            await broker.settle()
        await sent(broker, client, "a")
        await broker.kill()
        client = await broker.client()
        await sent(broker, client, "a")
        assert broker.store.pending("queue://q") == [b"commit"]


# --- bounds and options ---------------------------------------------------------------------------


async def test_a_full_ring_forgets_the_oldest_id_in_memory_and_in_the_store() -> None:
    async with Broker(id_cache_size=3) as broker:
        client = await broker.client()
        await sent(broker, client, "a", "b", "c", "a", "d")
        assert broker.store.operations(ForgetDuplicateIds) == [ForgetDuplicateIds("queue://q", 1)]
        await sent(broker, client, "b", "c", "d")
        assert broker.store.pending("queue://q") == [b"a", b"b", b"c", b"d"]
        await broker.kill()
        client = await broker.client()
        await sent(broker, client, "b", "c", "d", "a")
        assert broker.store.pending("queue://q") == [b"a", b"b", b"c", b"d", b"a"]
        assert list(broker.contents.duplicate_ids["queue://q"].values()) == ["c", "d", "a"]


async def test_a_large_ring_forgets_a_hundredth_at_a_time() -> None:
    async with Broker(id_cache_size=500) as broker:
        client = await broker.client()
        await sent(broker, client, *[str(number) for number in range(511)])
        found = broker.store.operations(ForgetDuplicateIds)
        assert [operation.through for operation in found] == [6]
        assert len(broker.core.duplicates) == 505


async def test_all_rings_together_are_bounded_and_the_one_not_used_for_longest_shrinks() -> None:
    async with Broker(id_cache_size=2) as broker:
        client = await broker.client()
        for number in range(FULL_RINGS_MAX):
            await sent(broker, client, "a", "b", to=f"queue://{number}")
        await sent(broker, client, "c", to="queue://0")  # full, and used last now
        assert len(broker.core.duplicates) == 2 * FULL_RINGS_MAX
        await sent(broker, client, "a", to="queue://new")
        assert len(broker.core.duplicates) == 2 * FULL_RINGS_MAX
        await sent(broker, client, "c", to="queue://0")
        assert broker.store.pending("queue://0") == [b"a", b"b", b"c"]
        await sent(broker, client, "a", to="queue://1")
        assert broker.store.pending("queue://1") == [b"a", b"b", b"a"]


async def test_a_smaller_cache_keeps_the_newest_after_a_restart() -> None:
    contents = MemoryContents()
    async with Broker(contents=contents) as broker:
        await sent(broker, await broker.client(), "a", "b", "c")
    async with Broker(contents=contents, id_cache_size=2) as broker:
        await broker.settle()
        assert list(contents.duplicate_ids["queue://q"].values()) == ["b", "c"]
        await sent(broker, await broker.client(), "b", "c")
        assert broker.core.duplicates.discarded == 2


@pytest.mark.parametrize("config", [{"id_cache_size": 0}, {"persist_id_cache": False}])
async def test_what_is_switched_off_is_forgotten_in_the_store(config: dict[str, Any]) -> None:
    contents = MemoryContents()
    async with Broker(contents=contents) as broker:
        await sent(broker, await broker.client(), "a")
    async with Broker(contents=contents, **config) as broker:
        await broker.settle()
        assert contents.duplicate_ids["queue://q"] == {}
        await sent(broker, await broker.client(), "a", "b", "b")
        assert broker.store.operations(AddDuplicateId) == []
        expected = [b"a", b"a", b"b"] if "persist_id_cache" in config else [b"a"] * 2 + [b"b"] * 2
        assert broker.store.pending("queue://q") == expected


async def test_a_store_that_cannot_keep_ids_is_named_and_they_are_remembered_until_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "capabilities", StoreCapabilities(durable=True))

    async with Broker() as broker:
        await sent(broker, await broker.client(), "a", "a")
        assert broker.store.pending("queue://q") == [b"a"]
        assert broker.store.operations(AddDuplicateId) == []
    assert "duplicate_ids=volatile" in caplog.text


async def test_a_long_id_is_remembered_by_its_hash() -> None:
    async with Broker() as broker:
        client = await broker.client()
        long = "\ud7ff" * (ID_CHARACTERS_MAX + 1)
        await sent(broker, client, long, long, long + "x")
        assert len(broker.store.pending("queue://q")) == 2
        (first, _) = broker.store.operations(AddDuplicateId)
        assert len(first.duplicate_id) < 80


async def test_ids_to_temporary_destinations_are_not_looked_at() -> None:
    """Nothing about them is ever stored."""

    async with Broker() as broker:
        client = await broker.client()
        destination = client.connection.make_temporary("queue://answers")
        client.subscribe(destination)
        await sent(broker, client, "a", "a", to=destination)
        assert client.bodies() == [b"a", b"a"]
        client.connection.disconnect(graceful=True)
        await broker.settle()


async def test_ids_of_all_destinations_together_have_a_limit_in_bytes() -> None:
    limit = 1 << 16
    async with Broker(id_cache_limit=limit) as broker:
        client = await broker.client()
        for round_ in range(5):
            await sent(broker, client, *[f"{round_}-{number}-" + "i" * 100 for number in range(60)])
            assert 0 < broker.core.held()["held.duplicate_ids.bytes"] <= limit
        one = ID_BYTES + text_bytes("0-00-" + "i" * 100)
        assert limit // one - 5 <= len(broker.core.duplicates) <= limit // one
        await sent(broker, client, "4-59-" + "i" * 100)
        assert broker.core.duplicates.discarded == 1, "the newest are known"
