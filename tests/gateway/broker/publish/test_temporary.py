"""Temporary destinations: one owner, any number of writers, nothing in the store."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from broker_harness import Broker

from tidegate.broker.publish.temporary import TEMPORARY_MAX
from tidegate.config import DestinationPolicy
from tidegate.spi import AccessError, Operation, RequestError, names


def make(client, destination: str = "queue://answers") -> str:
    return client.connection.make_temporary(destination)


def everything(broker: Broker) -> list[Operation]:
    return [operation for batch in broker.store.batches for operation in batch]


@pytest.mark.parametrize("kind", ["queue://", "topic://"])
async def test_an_answer_reaches_the_owner_and_the_store_never_hears_of_it(kind: str) -> None:
    async with Broker() as broker:
        asking, answering = await broker.client(), await broker.client()
        own = make(asking, f"{kind}answers")
        asking.subscribe(own, token="subscribed")
        answering.send(own, "1", "a")
        answering.send(own, "2", "b", qos=0)
        await broker.settle()
        assert asking.bodies() == [b"1", b"2"]
        assert answering.confirmations == ["a", "b"]
        asking.ack_all(token="acked")
        await broker.settle()
        assert asking.confirmations == ["subscribed", "acked"]
        assert everything(broker) == []


async def test_what_comes_before_the_owner_subscribes_waits_in_a_queue() -> None:
    async with Broker() as broker:
        asking, answering = await broker.client(), await broker.client()
        own = make(asking)
        for number in range(300):
            answering.send(own, str(number))
        await broker.settle()
        asking.subscribe(own, acknowledge=False)
        await broker.settle()
        assert asking.bodies() == [b"%d" % n for n in range(300)]


async def test_names_are_the_connections_own_and_cannot_be_guessed() -> None:
    async with Broker() as broker:
        first, second = await broker.client(), await broker.client()
        own, other = make(first), make(second)
        assert own == make(first)
        assert len({own, other, make(first, "topic://answers"), make(first, "queue://b")}) == 4
        token = own.split(".")[1]
        assert own == f"queue://$temporary.{token}.answers"
        assert len(token) == 32
        assert token not in other
        assert names.is_temporary(own)


@pytest.mark.parametrize("kind", ["queue://", "topic://"])
async def test_only_the_owner_may_subscribe(kind: str) -> None:
    async with Broker() as broker:
        owner, other = await broker.client(), await broker.client()
        own = make(owner, f"{kind}a")
        token = own.split(".")[1]
        for wanted in (own, f"{kind}$temporary.{token}.*", f"{kind}$temporary.>"):
            with pytest.raises(AccessError, match="only the connection that created"):
                other.subscribe(wanted)
        with pytest.raises(AccessError):
            owner.subscribe(f"{kind}$temporary.{token}.>")
        other.subscribe(f"{kind}>", "all", acknowledge=False)  # covers no name with a $
        other.subscribe(f"{kind}*.*.*", "three", acknowledge=False)
        owner.send(own, "secret")
        await broker.settle()
        assert other.bodies() == []


@pytest.mark.parametrize("kind", ["queue://", "topic://"])
@pytest.mark.parametrize("graceful", [True, False])
async def test_it_is_gone_with_its_owner(kind: str, graceful: bool) -> None:
    async with Broker() as broker:
        owner, other = await broker.client(), await broker.client()
        own = make(owner, f"{kind}a")
        owner.subscribe(own)
        other.send(own, "in flight")
        await broker.settle()
        other.send(own, "pending")
        owner.connection.disconnect(graceful=graceful)
        with pytest.raises(RequestError, match="has ended"):
            other.send(own, "too late")
        await broker.settle()
        core = broker.core
        assert own not in core.destinations.queues
        assert own not in core.destinations.routes
        assert not core.temporary._owners
        assert not core.temporary._owned
        assert everything(broker) == []
        with pytest.raises(RequestError, match="closed"):
            make(owner)


async def test_nothing_of_it_stays_in_memory() -> None:
    async with Broker() as broker:
        owner, other = await broker.client(), await broker.client()
        own = make(owner)
        made = weakref.ref(owner.connection)
        other.send(own, "never read")
        await broker.settle()
        owner.connection.disconnect(graceful=True)
        await broker.settle()
        del owner
        await asyncio.sleep(0)
        gc.collect()
        assert made() is None


async def test_another_connection_of_the_same_client_begins_anew() -> None:
    async with Broker() as broker:
        first = await broker.client(client_id="me")
        own = make(first)
        second = await broker.client(client_id="me")  # takes over
        assert make(second) != own
        with pytest.raises(RequestError, match="has ended"):
            second.send(own, "late")


async def test_a_name_that_never_was_is_refused() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for destination in ("queue://$temporary.x.a", "topic://$temporary.x.a"):
            with pytest.raises(RequestError, match="does not exist"):
                client.send(destination, "m")
        assert broker.core.destinations.queues == {}


async def test_a_transaction_whose_answer_came_too_late_does_nothing() -> None:
    async with Broker() as broker:
        owner, other = await broker.client(), await broker.client()
        own = make(owner)
        other.connection.begin("t")
        other.send("queue://log", "answered", transaction="t")
        other.send(own, "answer", transaction="t")
        owner.connection.disconnect(graceful=True)
        with pytest.raises(RequestError, match="has ended"):
            other.connection.commit("t", "committed")
        other.connection.abort("t", "aborted")
        await broker.settle()
        assert other.confirmations == ["aborted"]
        assert broker.store.pending("queue://log") == []


async def test_a_transaction_with_an_answer_is_one_step() -> None:
    async with Broker() as broker:
        owner, other = await broker.client(), await broker.client()
        own = make(owner)
        owner.subscribe(own)
        other.connection.begin("t")
        other.send(own, "answer", transaction="t")
        await broker.settle()
        assert owner.bodies() == []
        other.connection.commit("t", "committed")
        await broker.settle()
        assert owner.bodies() == [b"answer"]
        assert other.confirmations == ["committed"]


async def test_a_rejected_answer_comes_again_marked() -> None:
    async with Broker() as broker:
        client = await broker.client()
        own = make(client)
        client.subscribe(own)
        client.send(own, "m")
        await broker.settle()
        client.connection.reject("s", client.sequences())
        await broker.settle()
        assert client.counts() == [0, 1]
        assert everything(broker) == []


async def test_a_subscription_to_it_cannot_outlive_it() -> None:
    async with Broker() as broker:
        client = await broker.client(client_id="me")
        own = make(client, "topic://a")
        for how in ({"durable_name": "d"}, {"share_group": "g"}):
            with pytest.raises(RequestError, match="ends with its connection"):
                client.subscribe(own, **how)


async def test_it_keeps_no_retained_message() -> None:
    async with Broker() as broker:
        owner, other = await broker.client(), await broker.client("mqtt", "m")
        own = make(owner, "topic://a")
        owner.subscribe(own, acknowledge=False)
        other.send(own, "m", retain=True, qos=1)
        await broker.settle()
        assert owner.bodies() == [b"m"]
        assert everything(broker) == []


@pytest.mark.parametrize("name", ["queue://", "queue://a.*", "topic://>", "a", "queue://a\0"])
async def test_impossible_names_are_refused(name: str) -> None:
    async with Broker() as broker:
        client = await broker.client()
        with pytest.raises(RequestError):
            make(client, name)


async def test_a_connection_has_a_limit() -> None:
    async with Broker() as broker:
        client, other = await broker.client(), await broker.client()
        for number in range(TEMPORARY_MAX):
            make(client, f"topic://{number}")
        make(client, "topic://0")
        with pytest.raises(RequestError, match="which is the limit"):
            make(client, "topic://more")
        make(other)


async def test_a_producer_that_waits_for_room_in_it_goes_on_when_it_is_gone() -> None:
    policy = DestinationPolicy(
        match="queue://$temporary.>", subscriber_cursor="vm", memory_limit=2000
    )
    async with Broker(policy) as broker:
        owner, other = await broker.client(), await broker.client()
        own = make(owner)
        for _ in range(20):
            other.send(own, b"x" * 500)
            await broker.settle()
        was_paused = other.is_paused
        owner.connection.disconnect(graceful=True)
        await broker.settle()
        assert not other.is_paused
        assert was_paused
