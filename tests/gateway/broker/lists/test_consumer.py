"""How much one consumer is given: prefetch by count and bytes, the socket, rest between turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from broker_harness import Broker

from tidegate.broker.connection.subscribing import AUTOMATIC_TURN_COUNT
from tidegate.broker.lists import handing_out
from tidegate.broker.lists.handing_out import RETURN_RETRY_S, RETURNS_MAX
from tidegate.broker.turn.walks import STEP_LISTS
from tidegate.config import DestinationPolicy
from tidegate.spi import Acknowledge, RequestError, StoredMessage


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_no_more_messages_are_out_than_the_prefetch_count() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q", prefetch_count=3)
        for number in range(10):
            client.send("queue://q", f"{number}")
        await broker.settle()
        assert client.bodies() == numbers(3)
        client.connection.acknowledge("s", [2])  # any one makes room
        await broker.settle()
        assert client.bodies() == numbers(4)
        client.ack_all()
        await broker.settle()
        assert client.bodies() == numbers(7)


async def test_deliveries_stop_when_the_prefetch_bytes_are_out_and_one_message_may_cross_the_limit() -> (
    None
):
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q", prefetch_bytes=100)
        for size in (40, 60, 10, 500, 1):
            client.send("queue://q", "x" * size)
        await broker.settle()
        assert [len(body) for body in client.bodies()] == [40, 60]
        client.connection.acknowledge("s", [1])
        await broker.settle()
        assert [len(body) for body in client.bodies()] == [40, 60, 10, 500]
        client.connection.acknowledge("s", [2, 3])
        await broker.settle()
        assert [len(body) for body in client.bodies()] == [40, 60, 10, 500]
        client.ack_all()
        await broker.settle()
        assert [len(body) for body in client.bodies()] == [40, 60, 10, 500, 1]
        assert client.connection.consumers["s"].in_flight_bytes == 1


async def test_a_consumer_that_asks_for_nothing_has_the_limits_of_the_policy() -> None:
    policies = (
        DestinationPolicy(match="a", prefetch_count=2),
        DestinationPolicy(match="b", prefetch_bytes=30),
    )
    async with Broker(*policies) as broker:
        client = await broker.client()
        for name in ("a", "b", "c"):
            client.subscribe(f"queue://{name}", name)
            for _ in range(10):
                client.send(f"queue://{name}", "x" * 10)
        await broker.settle()
        assert [len(client.bodies(name)) for name in ("a", "b", "c")] == [2, 3, 10]


async def test_acknowledgements_make_room_in_every_turn_while_one_write_is_under_way() -> None:
    """The turn that fills during a slow write lasts for many rounds of the loop; an
    acknowledgement in a later round of it must make the queue go on, too."""

    async with Broker() as broker:
        client = await broker.client()
        for number in range(5):
            client.send("queue://q", f"{number}")
        await broker.settle()
        client.subscribe("queue://q", prefetch_count=1)
        await broker.settle()
        broker.store.hold()
        client.send("queue://other", "occupies the writer")
        await broker.settle()
        for count in range(1, 6):
            assert client.bodies() == numbers(count)
            client.ack_all()
            await broker.settle()
        broker.store.release()
        await broker.settle()
        assert broker.store.pending("queue://q") == []


async def test_nothing_is_delivered_before_the_handshake_is_finished_or_while_the_socket_is_full() -> (
    None
):
    async with Broker() as broker:
        client = await broker.client(resume=False)
        client.subscribe("queue://q", prefetch_count=2)
        client.send("queue://q", "0")
        client.send("queue://q", "1")
        client.send("queue://q", "2")
        await broker.settle()
        assert client.bodies() == []
        client.connection.writable(True)  # the socket says so, but nobody answered CONNECT
        await broker.settle()
        assert client.bodies() == []
        client.connection.resume()
        await broker.settle()
        assert client.bodies() == numbers(2)
        client.connection.writable(False)
        client.ack_all()
        await broker.settle()
        assert client.bodies() == numbers(2)
        client.connection.writable(True)
        await broker.settle()
        assert client.bodies() == numbers(3)


async def test_an_automatic_consumer_rests_between_turns_so_that_its_socket_can_say_stop() -> None:
    async with Broker() as broker:
        client = await broker.client()
        count = 3 * AUTOMATIC_TURN_COUNT
        for number in range(count):
            client.send("queue://q", f"{number}")
        await broker.settle()
        deliveries: list[int] = []

        def full_after_the_second(_key: str, messages: Sequence[StoredMessage]) -> None:
            deliveries.append(len(messages))
            if len(deliveries) == 2:
                client.connection.writable(False)

        client.on_deliver = full_after_the_second
        client.subscribe("queue://q", acknowledge=False)
        await broker.settle()
        assert deliveries == [AUTOMATIC_TURN_COUNT] * 2
        assert len(broker.store.pending("queue://q")) == AUTOMATIC_TURN_COUNT
        client.connection.writable(True)
        await broker.settle()
        assert client.bodies() == numbers(count)
        assert broker.store.pending("queue://q") == []


async def test_what_is_handed_out_without_acknowledgement_is_acknowledged_at_once() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q", acknowledge=False)
        client.send("queue://q", "0")
        client.send("queue://q", "1")
        await broker.settle()
        (operation,) = broker.store.operations(Acknowledge)
        assert operation.sequences == (1, 2)
        with pytest.raises(RequestError):
            client.connection.acknowledge("s", [1])
        client.connection.disconnect(graceful=False)
        await broker.settle()
        assert broker.store.pending("queue://q") == []


async def test_a_subscription_that_is_not_stored_gets_messages_without_a_trace_in_the_store() -> (
    None
):
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("topic://t", acknowledge=False)
        broker.store.batches.clear()
        client.send("topic://t", "m", "receipt")
        await broker.settle()
        assert client.bodies() == [b"m"]
        assert client.confirmations == ["receipt"]
        assert broker.store.batches == []


async def test_a_queue_filter_consumes_from_queues_that_exist_and_that_come_later() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.send("queue://a.1", "old")
        client.send("queue://b", "not mine")
        await broker.settle()
        client.subscribe("queue://a.*", prefetch_count=3)
        await broker.settle()
        client.send("queue://a.2", "new")
        client.send("queue://a.3", "newer")
        client.send("queue://a.1", "one more than the prefetch")
        client.send("queue://c", "not mine")
        await broker.settle()
        assert sorted(client.bodies()) == [b"new", b"newer", b"old"]
        client.ack_all()
        await broker.settle()
        assert client.bodies()[-1] == b"one more than the prefetch"
        client.connection.unsubscribe("s")
        client.send("queue://a.4", "after the end")
        await broker.settle()
        assert len(client.bodies()) == 4
        assert broker.store.pending("queue://a.1") == [b"one more than the prefetch"]


async def test_room_made_in_one_queue_of_a_filter_serves_the_others() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for name in ("a", "b", "c"):
            client.send(f"queue://q.{name}", name)
        await broker.settle()
        client.subscribe("queue://q.*", prefetch_count=1)
        for count in (1, 2, 3):
            await broker.settle()
            assert len(client.bodies()) == count
            client.ack_all()
        assert sorted(client.bodies()) == [b"a", b"b", b"c"]


async def test_what_a_transaction_holds_makes_room_for_more() -> None:
    """Otherwise a client could never put more messages into one transaction than it may hold."""

    async with Broker() as broker:
        client = await broker.client()
        for number in range(3):
            client.send("queue://q", f"{number}")
        client.subscribe("queue://q", prefetch_count=1)
        client.connection.begin("t")
        for count in (1, 2, 3):
            await broker.settle()
            assert client.bodies() == numbers(count)
            client.connection.acknowledge("s", client.sequences()[-1:], None, "t")
        client.connection.commit("t")
        await broker.settle()
        assert broker.store.pending("queue://q") == []


async def test_a_client_that_acknowledges_everything_may_acknowledge_what_was_not_stored() -> None:
    """MQTT publishes with QoS 0, a STOMP client with acknowledgement subscribes: to it the message
    looks like any other. It is delivered at most once all the same."""

    async with Broker() as broker:
        sender, client = await broker.client("mqtt", "m"), await broker.client()
        client.subscribe("topic://t", prefetch_count=4)
        for number in range(3):
            sender.send("topic://t", f"{number}", qos=number % 2)
        await broker.settle()
        assert sorted(client.bodies()) == numbers(3)
        client.connection.acknowledge("s", [1, 2], "r")
        client.connection.reject("s", [3], "r2")
        await broker.settle()
        assert client.confirmations == ["r", "r2"]
        assert sorted(client.bodies()) == numbers(3)
        with pytest.raises(RequestError):
            client.connection.acknowledge("s", [1])
        (operation,) = broker.store.operations(Acknowledge)
        assert operation.sequences == (2,)
        client.connection.begin("t")
        sender.send("topic://t", "in a transaction", qos=0)
        await broker.settle()
        client.connection.acknowledge("s", client.sequences()[-1:], None, "t")
        client.connection.commit("t", "r3")
        await broker.settle()
        assert client.confirmations[-1] == "r3"
        sender.send("topic://t", "in flight at the end", qos=0)
        await broker.settle()
        client.connection.disconnect(graceful=True)


async def test_what_was_not_stored_keeps_to_the_prefetch_and_makes_room_when_acknowledged() -> None:
    async with Broker() as broker:
        sender, client = await broker.client("mqtt", "m"), await broker.client()
        client.subscribe("topic://t", prefetch_count=2)
        for body in ("0", "1", "dropped"):
            sender.send("topic://t", body, qos=0)
        sender.send("topic://t", "2", qos=1)
        await broker.settle()
        assert broker.core.flow.dropped == 1
        assert client.bodies() == [
            b"0",
            b"1",
        ]  # in the order in which they came; what is stored waits
        sender.send("topic://t", "3", qos=1)
        await broker.settle()
        client.connection.acknowledge("s", client.sequences()[1:])
        await broker.settle()
        assert client.bodies() == [b"0", b"1", b"2"]
        client.ack_all()
        await broker.settle()
        assert client.bodies() == [b"0", b"1", b"2", b"3"]


async def test_an_mqtt_client_does_not_hold_what_it_never_acknowledges() -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "m")
        client.subscribe("topic://t", qos=2, prefetch_count=1)
        for number in range(5):
            client.send("topic://t", f"{number}", qos=0)
        await broker.settle()
        assert client.bodies() == numbers(5)
        assert not client.connection._transacting.has_in_flight()


async def test_an_automatic_queue_filter_is_served_from_all_its_queues() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for number in range(30):
            client.send(f"queue://q.{number % 3}", f"{number}")
        await broker.settle()
        client.subscribe("queue://q.>", acknowledge=False, prefetch_count=4)
        await broker.settle()
        assert sorted(client.bodies()) == sorted(numbers(30))


@pytest.mark.parametrize("destination", ["queue://q", "queue://q.>"])
@pytest.mark.parametrize("selector", ["", "n IS NULL"])
@pytest.mark.parametrize("window", [{"prefetch_count": 1}, {"prefetch_bytes": 3}], ids=str)
async def test_what_a_front_end_cannot_send_waits_too_when_it_fills_the_window(
    destination: str, selector: str, window: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it gives back is no room that anything waited for: it was tried again in each turn."""
    monkeypatch.setattr(handing_out, "RETURN_RETRY_S", 3600.0)
    rules = DestinationPolicy(match=destination, max_deliveries=0)
    queue = destination.replace(">", "a")
    async with Broker(rules) as broker:
        client, sender = await broker.client(), await broker.client()

        def reject(key: str, messages: Sequence[StoredMessage]) -> None:
            client.connection.reject(key, [item.sequence for item in messages])

        client.on_deliver = reject
        if destination != queue:
            for number in range(STEP_LISTS + 1):  # they are looked through in steps
                broker.core.destinations.queue_list(f"queue://q.{number}")
        sender.send(queue, "large")
        await broker.settle()
        client.subscribe(destination, selector=selector, **window)
        await broker.settle()  # nothing goes on for ever
        assert RETURNS_MAX < len(client.bodies()) < RETURNS_MAX + 3


@pytest.mark.parametrize("selector", ["", "n IS NULL"])
async def test_what_a_front_end_cannot_send_does_not_circle_within_a_turn(selector: str) -> None:
    """It rejects from within its delivery, and nothing limits how often: the loop used to hang."""
    rules = DestinationPolicy(match="q", max_deliveries=0)
    async with Broker(rules) as broker:
        client, sender = await broker.client(), await broker.client()

        def reject(key: str, messages: Sequence[StoredMessage]) -> None:
            large = [item.sequence for item in messages if item.message.body == b"large"]
            client.connection.reject(key, large)

        client.on_deliver = reject
        client.subscribe("queue://q", selector=selector)
        sender.send("queue://q", "large")
        sender.send("queue://q", "small", "sent")
        await broker.settle()
        assert sender.confirmations == ["sent"]
        tries = client.bodies().count(b"large")
        assert client.bodies().count(b"small") == 1
        assert RETURNS_MAX < tries < RETURNS_MAX + 3
        await asyncio.sleep(2.5 * RETURN_RETRY_S)
        assert client.bodies().count(b"large") == tries + 2
        for _ in range(3):  # each time it may be tried, too, and not more often for that later
            sender.send("queue://q", "small")
            await asyncio.sleep(0.1 * RETURN_RETRY_S)
        await asyncio.sleep(RETURN_RETRY_S)
        assert client.bodies().count(b"small") == 4
        tries = client.bodies().count(b"large")
        await asyncio.sleep(2 * RETURN_RETRY_S)
        assert client.bodies().count(b"large") == tries + 2
        other = await broker.client()
        client.connection.unsubscribe("s")
        other.subscribe("queue://q")
        await broker.settle()
        assert sorted(other.bodies()) == [b"large", *[b"small"] * 4]
