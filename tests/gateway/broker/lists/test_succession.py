"""A subscription that is replaced by one of another kind, without missing a message."""

from __future__ import annotations

from broker_harness import Broker, Client


async def test_what_waits_in_the_old_list_comes_first_and_at_most_once() -> None:
    async with Broker() as broker:
        client, sender = await broker.client("mqtt", "c"), await broker.client()
        client.subscribe("topic://t", qos=0, acknowledge=False)
        client.connection.writable(False)
        for number in range(5):
            sender.send("topic://t", f"{number}", qos=1)
        await broker.settle()
        sender.send("topic://t", "5", qos=1)  # not durable yet, and routed to the old list
        client.subscribe("topic://t", qos=1)
        for number in range(6, 9):
            sender.send("topic://t", f"{number}", qos=1)
        await broker.settle()
        assert client.bodies() == []
        client.connection.writable(True)
        await broker.settle()
        assert client.bodies() == [b"%d" % number for number in range(9)]
        assert [m.message.qos for _, m in client.deliveries] == [0] * 6 + [1] * 3
        client.ack_all(token="acks")
        await broker.settle()
        assert client.confirmations == ["acks"]
        assert len(broker.contents.subscriptions) == 1


async def test_what_waits_in_the_new_list_follows_when_the_old_one_took_several_turns() -> None:
    """Though nothing else happens in the gateway then."""
    async with Broker(system_topics_interval=0) as broker:
        client, sender = await broker.client("mqtt", "c"), await broker.client()
        client.subscribe("topic://t", qos=0, acknowledge=False, prefetch_count=1)
        client.connection.writable(False)
        for number in range(3):
            sender.send("topic://t", f"{number}", qos=1)
        await broker.settle()
        client.subscribe("topic://t", qos=1)
        sender.send("topic://t", "3", qos=1)
        await broker.settle()
        client.connection.writable(True)
        await broker.settle()
        assert client.bodies() == [b"%d" % number for number in range(4)]


async def test_messages_of_one_turn_reach_the_old_list_before_it_ends() -> None:
    async with Broker() as broker:
        client, sender = await broker.client("mqtt", "c"), await broker.client()
        client.subscribe("topic://t", qos=0, acknowledge=False)
        await broker.settle()
        sender.send("topic://t", "0", qos=1)  # nothing waits: both parts of one turn
        client.subscribe("topic://t", qos=1)
        sender.send("topic://t", "1", qos=1)
        await broker.settle()
        assert client.bodies() == [b"0", b"1"]


async def test_a_lowered_subscription_stays_in_order_and_stores_nothing_once_its_client_is_away() -> (
    None
):
    async with Broker() as broker:
        client = await broker.client("mqtt", "c", session_expiry=60)
        sender = await broker.client()
        client.subscribe("topic://t", qos=1, durable_name="t")
        client.connection.writable(False)
        sender.send("topic://t", "0", qos=1)
        await broker.settle()
        client.subscribe("topic://t", qos=0, acknowledge=False, durable_name="t")
        sender.send("topic://t", "1", qos=1)
        await broker.settle()
        client.connection.writable(True)
        await broker.settle()
        sender.send("topic://t", "2", qos=1)
        await broker.settle()
        assert client.bodies() == [b"0", b"1", b"2"]
        client.connection.disconnect(graceful=True)
        sender.send("topic://t", "3", qos=1)
        await broker.settle()
        assert not any(broker.contents.lists.values())


async def raised_while_one_waits(broker: Broker) -> tuple[Client, Client]:
    """A client that takes nothing, whose subscription of QoS 0 has a message and is one of QoS 1 now; and the sender."""
    client, sender = await broker.client("mqtt", "c"), await broker.client()
    client.subscribe("topic://t", qos=0, acknowledge=False)
    client.connection.writable(False)
    sender.send("topic://t", "0", qos=1)
    await broker.settle()
    client.subscribe("topic://t", qos=1)
    return client, sender


async def test_messages_of_qos_0_stay_behind_what_waits() -> None:
    async with Broker() as broker:
        client, sender = await raised_while_one_waits(broker)
        sender.send("topic://t", "1", qos=0)
        await broker.settle()
        client.connection.writable(True)
        await broker.settle()
        assert client.bodies() == [b"0", b"1"]


async def test_an_unsubscription_in_between_ends_both_lists() -> None:
    async with Broker() as broker:
        client, sender = await raised_while_one_waits(broker)
        client.connection.unsubscribe("s")
        client.connection.writable(True)
        sender.send("topic://t", "1", qos=1)
        await broker.settle()
        assert client.bodies() == []
        assert broker.contents.subscriptions == {}
