"""Subscriptions of one connection: refused, repeated, durable, shared, and how they end."""

from __future__ import annotations

import pytest
from broker_harness import Broker

from tidegate.spi import (
    AccessError,
    Acknowledge,
    Action,
    AddMessage,
    Identity,
    PutSubscription,
    RemoveSubscription,
    RequestError,
    SubscribeRequest,
    Verdict,
)

DURABLE = {"clean_start": False, "session_expiry": 1000}


@pytest.mark.parametrize("destination", ["nonsense", "queue://", "topic://a.b*", "topic://>.a"])
async def test_a_subscription_to_a_bad_name_is_refused(destination: str) -> None:
    async with Broker() as broker:
        client = await broker.client()
        with pytest.raises(RequestError):
            client.subscribe(destination)


async def test_a_subscription_id_that_is_in_use_is_refused_for_stomp() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        for destination in ("queue://q", "queue://r"):
            with pytest.raises(RequestError):
                client.subscribe(destination)
        client.send("queue://q", "m")
        await broker.settle()
        assert client.bodies() == [b"m"]


@pytest.mark.parametrize("is_durable", [True, False])
async def test_a_repeated_mqtt_subscription_keeps_what_is_pending_and_what_is_in_flight(
    is_durable: bool,
) -> None:
    """[MQTT-3.8.4-3]: the flow of publications must not be interrupted."""

    async with Broker() as broker:
        client = await broker.client("mqtt", "c", **(DURABLE if is_durable else {}))
        name = "t" if is_durable else ""
        for number in range(3):
            client.subscribe("topic://t", prefetch_count=2, qos=1, durable_name=name)
            await broker.settle()
            client.send("topic://t", f"{number}")
            await broker.settle()
        assert client.bodies() == [b"0", b"1"]
        client.subscribe("topic://t", prefetch_count=3, qos=2, durable_name=name)
        await broker.settle()
        assert client.bodies() == [b"0", b"1", b"2"]
        client.ack_all()
        await broker.settle()
        assert client.bodies() == [b"0", b"1", b"2"]
        assert client.counts() == [0, 0, 0]
        assert broker.store.operations(RemoveSubscription) == []
        (acknowledged,) = broker.store.operations(Acknowledge)
        assert acknowledged.sequences == (1, 2, 3)


async def test_a_repeated_subscription_to_a_queue_filter_keeps_its_queues() -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "c")
        for number in range(3):
            client.subscribe("queue://q.*", prefetch_count=number + 1)
            client.send(f"queue://q.{number}", f"{number}")
            await broker.settle()
        assert client.bodies() == [b"0", b"1", b"2"]
        assert client.counts() == [0, 0, 0]


async def test_a_repeated_subscription_changes_its_qos() -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "c", **DURABLE)
        for qos in (2, 0, 1):
            client.subscribe("topic://t", qos=qos, durable_name="t")
            client.send("topic://t", f"{qos}")
            await broker.settle()
        assert client.bodies() == [b"2", b"0", b"1"]
        (subscription,) = broker.contents.subscriptions.values()
        assert subscription.qos == 1
        # What was granted at QoS 0 is not in flight.
        assert len(client.connection.consumers["s"].in_flight) == 2


async def test_a_clean_subscription_that_asks_for_more_qos_begins_to_be_stored() -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "c")
        client.subscribe("topic://t", qos=0)
        client.send("topic://t", "0")
        await broker.settle()
        client.subscribe("topic://t", qos=1)
        client.send("topic://t", "1")
        await broker.settle()
        assert client.bodies() == [b"0", b"1"]
        (added,) = broker.store.operations(AddMessage)
        assert added.message.body == b"1"


async def test_unsubscribing_what_is_not_there_is_confirmed_all_the_same() -> None:
    async with Broker() as broker:
        client = await broker.client()
        assert client.connection.unsubscribe("s", "r") is False
        client.subscribe("queue://q")
        assert client.connection.unsubscribe("s", "r2") is True
        await broker.settle()
        assert client.confirmations == ["r", "r2"]


async def test_a_subscription_that_is_not_durable_ends_with_its_connection() -> None:
    async with Broker() as broker:
        client = await broker.client("stomp", "c")
        client.subscribe("topic://t")
        client.subscribe("topic://u", "u")
        await broker.settle()
        assert len(broker.contents.subscriptions) == 2
        client.connection.unsubscribe("u")
        await broker.settle()
        assert len(broker.contents.subscriptions) == 1
        client.connection.disconnect(graceful=False)
        await broker.settle()
        assert broker.contents.subscriptions == {}
        assert broker.contents.lists == {}


async def test_a_subscription_that_is_not_durable_is_gone_after_a_crash() -> None:
    async with Broker() as broker:
        await broker.consumer("topic://t", "m")
        await broker.kill()
        await broker.settle()
        assert broker.contents.subscriptions == {}
        assert broker.contents.lists == {}
        assert list(broker.core.destinations.all_lists()) == []
        assert broker.contents.lists == {}


async def test_a_durable_subscription_collects_messages_while_its_client_is_away() -> None:
    async with Broker() as broker:
        client, sender = await broker.client("stomp", "c"), await broker.client()
        assert client.subscribe("topic://t", durable_name="d") is False
        client.connection.disconnect(graceful=True)
        sender.send("topic://t", "1")
        await broker.settle()
        await broker.kill()
        sender = await broker.client()
        sender.send("topic://t", "2")
        await broker.settle()
        client = await broker.client("stomp", "c")
        assert client.subscribe("topic://t", "other-key", durable_name="d") is True
        await broker.settle()
        assert client.bodies() == [b"1", b"2"]
        client.connection.unsubscribe("other-key", forget=True)
        await broker.settle()
        assert broker.contents.subscriptions == {}
        assert client.subscribe("topic://t", durable_name="d") is False


async def test_unsubscribing_without_forgetting_keeps_a_durable_subscription() -> None:
    async with Broker() as broker:
        client = await broker.client("stomp", "c")
        client.subscribe("topic://t", durable_name="d")
        client.connection.unsubscribe("s")
        client.send("topic://t", "m")
        await broker.settle()
        assert client.subscribe("topic://t", durable_name="d") is True
        await broker.settle()
        assert client.bodies() == [b"m"]


async def test_a_durable_subscription_in_use_is_refused_and_one_with_another_filter_starts_anew() -> (
    None
):
    async with Broker() as broker:
        client = await broker.client("stomp", "c")
        client.subscribe("topic://t", durable_name="d")
        with pytest.raises(RequestError):
            client.subscribe("topic://t", "again", durable_name="d")
        client.connection.unsubscribe("s")
        client.send("topic://t", "old")
        assert client.subscribe("topic://u", durable_name="d") is False
        client.send("topic://u", "new")
        await broker.settle()
        assert client.bodies() == [b"new"]
        assert len(broker.contents.subscriptions) == 1


async def test_the_same_durable_name_of_another_client_is_another_subscription() -> None:
    async with Broker() as broker:
        one, two = await broker.client("stomp", "one"), await broker.client("stomp", "two")
        for client in (one, two):
            client.subscribe("topic://t", durable_name="d")
        one.send("topic://t", "m")
        await broker.settle()
        assert one.bodies() == two.bodies() == [b"m"]


async def test_a_share_group_shares_one_list_also_when_its_members_differ_in_acknowledgement() -> (
    None
):
    async with Broker() as broker:
        first, second, sender = [await broker.client("mqtt", name) for name in "abc"]
        first.subscribe("topic://t", share_group="g", qos=0, acknowledge=False)
        second.subscribe("topic://t", share_group="g", qos=1)
        for number in range(20):
            sender.send("topic://t", f"{number}")
            await broker.settle()
        assert sorted(first.sequences() + second.sequences()) == list(range(1, 21))
        assert len(first.bodies()) == len(second.bodies()) == 10
        second.ack_all(token="r")
        await broker.settle()
        assert second.confirmations == ["r"]
        acknowledged = broker.store.operations(Acknowledge)
        assert sorted(s for o in acknowledged for s in o.sequences) == list(range(1, 21))
        first.connection.disconnect(graceful=True)
        second.connection.disconnect(graceful=True)
        await broker.settle()
        assert broker.core.destinations.shared == {}


async def test_a_subscription_is_confirmed_when_it_is_durable() -> None:
    async with Broker() as broker:
        client = await broker.client("stomp", "c")
        broker.store.hold()
        client.subscribe("topic://t", durable_name="d", token="r")
        await broker.settle()
        assert client.confirmations == []
        broker.store.release()
        await broker.settle()
        assert client.confirmations == ["r"]
        (put,) = broker.store.operations(PutSubscription)
        assert put.subscription.name == "d"
        assert put.subscription.client_id == "c"


async def test_a_connection_cannot_be_used_to_subscribe_where_it_may_not() -> None:
    class Nowhere:
        def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
            return Verdict.ALLOW if action is Action.CONNECT else Verdict.DENY

    async with Broker(extensions=[Nowhere()]) as broker:
        client = await broker.client()
        with pytest.raises(AccessError):
            client.connection.subscribe(SubscribeRequest(key="s", destination="queue://q"))
        assert broker.core.destinations.queues == {}
