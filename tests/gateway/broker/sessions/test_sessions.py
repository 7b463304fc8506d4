"""Sessions that outlive their connections: resume, clean start, expiry, packet-id states."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker_harness import START_US, Broker, Client, key_of
from msgspec.structs import replace

from tidegate.broker.sessions.state import ID_BYTES
from tidegate.spi import (
    SESSION_NEVER_EXPIRES,
    Acknowledge,
    AddDestination,
    Durability,
    FlowControlError,
    InflightDirection,
    InflightRecord,
    InflightState,
    Message,
    PutInflight,
    PutSubscription,
    RemoveInflight,
    RemoveSubscription,
    Subscription,
)

OUT, IN = InflightDirection.OUT, InflightDirection.IN


async def resume(broker: Broker, expiry: int = 100, **more: Any) -> Client:
    return await broker.client("mqtt", "c", clean_start=False, session_expiry=expiry, **more)


def record(packet_id: int, sequence: int = 0, direction: InflightDirection = OUT) -> InflightRecord:
    name = "t" if direction is OUT else ""
    state = InflightState.PUBLISHED if direction is OUT else InflightState.RECEIVED
    return InflightRecord(key_of("c"), direction, packet_id, state, name, sequence)


async def test_a_session_is_taken_up_with_its_subscriptions_and_what_came_meanwhile() -> None:
    async with Broker() as broker:
        first = await resume(broker)
        assert not first.result.session_present
        assert list(first.result.subscriptions) == []
        first.subscribe("topic://t", "t", durable_name="t", qos=1)
        first.send("topic://t", "unacknowledged")
        await broker.settle()
        first.connection.disconnect(graceful=True)
        sender = await broker.client()
        sender.send("topic://t", "meanwhile")
        await broker.settle()
        second = await resume(broker, resume=False)
        assert second.result.session_present
        assert [item.name for item in second.result.subscriptions] == ["t"]
        await broker.settle()
        assert second.deliveries == []  # CONNACK is not written yet
        second.connection.resume()
        await broker.settle()
        assert second.bodies("t") == [b"unacknowledged", b"meanwhile"]
        assert second.counts("t") == [1, 0]
        second.ack_all("t")
        await broker.settle()
        (operation,) = broker.store.operations(Acknowledge)
        assert (operation.client_id, operation.subscription) == ("c", "t")
        assert operation.protocol == "mqtt"


async def test_a_session_survives_a_restart() -> None:
    async with Broker() as broker:
        first = await resume(broker)
        first.subscribe("topic://t", "t", durable_name="t", qos=1)
        first.connection.record_inflight(put=[record(7, 1), record(8, direction=IN)])
        await broker.settle()
        await broker.kill()
        second = await resume(broker)
        assert second.result.session_present
        assert [item.name for item in second.result.subscriptions] == ["t"]
        assert {(r.direction, r.packet_id) for r in second.result.inflight} == {
            (OUT, 7),
            (IN, 8),
        }


async def test_a_restored_subscription_that_is_subscribed_again_delivers_nothing_twice() -> None:
    """Clients subscribe again after each connect; [MQTT-3.8.4-3] must hold there, too."""

    async with Broker() as broker:
        first = await resume(broker)
        first.subscribe("topic://t", "t", durable_name="t", qos=1)
        for number in range(3):
            first.send("topic://t", f"{number}")
        await broker.settle()
        first.connection.disconnect(graceful=False)
        second = await resume(broker, prefetch_count=2)
        await broker.settle()
        assert second.bodies("t") == [b"0", b"1"]
        second.subscribe("topic://t", "t", durable_name="t", qos=1, prefetch_count=5)
        await broker.settle()
        assert second.bodies("t") == [b"0", b"1", b"2"]
        second.ack_all("t")
        await broker.settle()
        assert second.bodies("t") == [b"0", b"1", b"2"]
        assert len(broker.contents.subscriptions) == 1


async def test_a_clean_start_removes_the_session_with_everything_in_it() -> None:
    async with Broker() as broker:
        first = await resume(broker)
        first.subscribe("topic://t", "t", durable_name="t", qos=1)
        first.send("topic://t", "m")
        first.connection.record_inflight(put=[record(7, 1)])
        await broker.settle()
        second = await broker.client("mqtt", "c", clean_start=True)
        assert not second.result.session_present
        assert first.ended is not None
        await broker.settle()
        assert second.deliveries == []
        assert broker.contents.sessions == {}
        assert broker.contents.subscriptions == {}
        assert broker.contents.inflight == {}
        assert broker.contents.lists == {}
        assert len(broker.core.sessions) == 0


async def test_a_clean_start_with_an_expiry_begins_a_new_session() -> None:
    async with Broker() as broker:
        first = await resume(broker)
        first.subscribe("topic://old", "old", durable_name="old", qos=1)
        await broker.settle()
        second = await broker.client("mqtt", "c", clean_start=True, session_expiry=50)
        assert not second.result.session_present
        second.subscribe("topic://new", "new", durable_name="new", qos=1)
        second.connection.disconnect(graceful=True)
        await broker.settle()
        assert [item.name for item in broker.contents.subscriptions.values()] == ["new"]
        third = await resume(broker)
        assert third.result.session_present
        assert [item.name for item in third.result.subscriptions] == ["new"]


async def test_a_session_taken_up_without_an_expiry_ends_with_its_connection() -> None:
    async with Broker() as broker:
        first = await resume(broker)
        first.subscribe("topic://t", "t", durable_name="t", qos=1)
        first.connection.disconnect(graceful=True)
        second = await resume(broker, expiry=0)
        assert second.result.session_present
        second.connection.disconnect(graceful=True)
        await broker.settle()
        assert broker.contents.sessions == {}
        assert broker.contents.subscriptions == {}
        third = await resume(broker)
        assert not third.result.session_present


async def test_a_session_expires_when_its_time_is_over_and_not_before() -> None:
    async with Broker() as broker:
        first = await resume(broker, expiry=100)
        first.subscribe("topic://t", "t", durable_name="t", qos=1)
        await asyncio.sleep(500)  # its connection is open: the interval has not begun
        assert len(broker.core.sessions) == 1
        first.connection.disconnect(graceful=True)
        await asyncio.sleep(95)
        await broker.settle()
        assert list(broker.contents.sessions) == [key_of("c")]
        await asyncio.sleep(10)
        await broker.settle()
        assert broker.contents.sessions == {}
        assert broker.contents.subscriptions == {}
        assert len(broker.core.sessions) == 0


async def test_a_session_whose_time_is_over_is_not_taken_up_although_nobody_removed_it_yet() -> (
    None
):
    async with Broker() as broker:
        first = await resume(broker, expiry=1)
        await asyncio.sleep(0.9)  # the maintenance looks once a second, from the start on
        first.connection.disconnect(graceful=True)
        await asyncio.sleep(1.05)
        assert len(broker.core.sessions) == 1
        second = await resume(broker, expiry=1)
        assert not second.result.session_present


async def test_a_session_that_was_connected_when_the_gateway_died_expires_from_the_restart_on() -> (
    None
):
    async with Broker() as broker:
        await resume(broker, expiry=100)
        await broker.settle()
        await asyncio.sleep(1000)
        await broker.kill()
        await asyncio.sleep(90)
        assert len(broker.core.sessions) == 1
        await asyncio.sleep(20)
        assert len(broker.core.sessions) == 0


@pytest.mark.parametrize("step_s", [-5_000, 5_000])
async def test_a_step_of_the_wall_clock_expires_no_session_and_keeps_none(step_s: int) -> None:
    async with Broker() as broker:
        first = await resume(broker, expiry=100)
        first.connection.disconnect(graceful=True)
        broker.core.step_us = step_s * 1_000_000
        await asyncio.sleep(95)
        assert len(broker.core.sessions) == 1
        await asyncio.sleep(10)
        assert len(broker.core.sessions) == 0


@pytest.mark.parametrize("left_at", [5_000_000, START_US + 10**15])
async def test_after_a_restart_a_session_lives_as_long_as_it_may_whatever_the_clock_said_before(
    left_at: int,
) -> None:
    """Left before the clock was set, or in the future: it counts as left at the start."""

    async with Broker() as broker:
        first = await resume(broker, expiry=100)
        first.connection.disconnect(graceful=True)
        await broker.settle()
        stored = broker.contents.sessions[key_of("c")]
        broker.contents.sessions[key_of("c")] = replace(stored, disconnected_at=left_at)
        await broker.kill()
        await asyncio.sleep(95)
        assert len(broker.core.sessions) == 1
        await asyncio.sleep(10)
        assert len(broker.core.sessions) == 0


async def test_a_session_that_never_expires_does_not() -> None:
    async with Broker() as broker:
        first = await resume(broker, expiry=SESSION_NEVER_EXPIRES)
        first.connection.disconnect(graceful=False)
        await asyncio.sleep(5_000)
        assert (await resume(broker)).result.session_present


async def test_packet_ids_of_unacknowledged_messages_return_to_the_next_connection() -> None:
    async with Broker() as broker:
        first = await resume(broker)
        first.subscribe("topic://t", "t", durable_name="t", qos=1)
        first.send("topic://t", "m")
        first.on_deliver = lambda _key, messages: first.connection.record_inflight(
            put=[record(7, messages[0].sequence)]
        )
        await broker.settle()
        second = await resume(broker)  # takes over
        assert first.ended is not None
        assert second.result.inflight == [record(7, 1)]
        await broker.settle()
        assert second.sequences("t") == [1]
        await broker.kill()
        third = await resume(broker)
        assert third.result.inflight == [record(7, 1)]


async def test_a_packet_id_state_without_a_token_waits_for_no_sync_and_is_removed_once() -> None:
    async with Broker() as broker:
        first = await resume(broker)
        await broker.settle()
        batches = len(broker.store.durabilities)
        first.connection.record_inflight(put=[record(7, 1)])
        await broker.settle()
        assert broker.store.durabilities[batches:] == [Durability.WRITTEN]
        first.connection.record_inflight(put=[record(8, direction=IN)], token="r")
        await broker.settle()
        assert first.confirmations == ["r"]
        assert broker.store.durabilities[batches + 1 :] == [Durability.SYNCED]
        first.connection.record_inflight(remove=[(OUT, 7), (OUT, 7), (IN, 8)])
        await broker.settle()
        assert len(broker.store.operations(RemoveInflight)) == 2
        assert broker.contents.inflight == {}


# --- queues and shared subscriptions ---------------------------------------------------------------


async def test_a_session_takes_up_its_queues_and_shared_subscriptions_again_also_after_a_restart() -> (
    None
):
    async with Broker() as broker:
        first = await resume(broker)
        options = {"identifier": "7"}
        first.subscribe("queue://q", "q", durable_name="q", qos=1, options=options)
        first.subscribe("topic://t", "s", durable_name="s", qos=1, share_group="g")
        await broker.settle()
        await broker.kill()
        sender = await broker.client()
        sender.send("queue://q", "queued")
        sender.send("topic://t", "shared")
        await broker.settle()
        second = await resume(broker)
        found = {item.name: item for item in second.result.subscriptions}
        assert sorted(found) == ["q", "s"]
        assert found["q"].options == options
        assert found["s"].share_group == "g"
        await broker.settle()
        assert second.bodies("q") == [b"queued"]
        assert second.bodies("s") == [b"shared"]


async def test_each_subscription_of_a_session_is_one_record_however_many_it_has() -> None:
    async with Broker() as broker:
        client = await resume(broker)
        await broker.settle()
        for number in range(20):
            before = len(broker.store.batches)
            name = str(number)
            client.subscribe(f"queue://{name}", name, durable_name=name, qos=number % 2)
            await broker.settle()
            written = [one for batch in broker.store.batches[before:] for one in batch]
            kept = [one for one in written if not isinstance(one, AddDestination)]
            assert [type(one) for one in kept] == [PutSubscription]
        for name, again in (("7", {"qos": 1}), ("8", {"qos": 1}), ("9", None)):
            before = len(broker.store.batches)
            if again is None:
                client.connection.unsubscribe(name, forget=True)
            else:
                client.subscribe(f"queue://{name}", name, durable_name=name, **again)
            await broker.settle()
            written = [one for batch in broker.store.batches[before:] for one in batch]
            expected = {"7": [], "8": [PutSubscription], "9": [RemoveSubscription]}[name]
            assert [type(one) for one in written] == expected
        await broker.kill()
        found = (await resume(broker)).result.subscriptions
        assert {item.name: item.qos for item in found} == {
            str(number): 1 if number == 8 else number % 2 for number in range(20) if number != 9
        }


async def test_what_belongs_to_a_session_that_is_not_there_is_removed_at_the_start() -> None:
    """No gateway writes that. Nobody could unsubscribe from it, and nothing of it may be served."""
    async with Broker() as broker:
        stray = Subscription(
            9, "c", "q", "queue://q", True, 1, protocol="mqtt", session="nobody's key"
        )
        broker.contents.subscriptions[9] = stray
        broker.contents.lists[9] = {}
        await broker.kill()
        client = await resume(broker)
        await broker.settle()
        assert not client.result.subscriptions
        assert not broker.contents.subscriptions


async def group_of_two(broker: Broker) -> tuple[Client, Client]:
    """One whose session is stored, and one that only passes."""
    stored, passing = await resume(broker), await broker.client("mqtt", "p")
    stored.subscribe("topic://t", "s", durable_name="s", qos=1, share_group="g")
    passing.subscribe("topic://t", "s", qos=1, share_group="g")
    return stored, passing


async def test_a_group_keeps_messages_as_long_as_a_session_belongs_to_it() -> None:
    async with Broker() as broker:
        stored, passing = await group_of_two(broker)
        stored.connection.disconnect(graceful=True)
        passing.connection.disconnect(graceful=True)
        sender = await broker.client()
        sender.send("topic://t", "meanwhile")
        await broker.settle()
        again = await resume(broker)
        await broker.settle()
        assert again.bodies("s") == [b"meanwhile"]
        again.connection.unsubscribe("s", forget=True)
        await broker.settle()
        assert broker.core.destinations.shared == {}
        assert broker.contents.subscriptions == {}


async def test_a_group_that_only_connected_clients_are_left_in_ends_with_them() -> None:
    async with Broker() as broker:
        stored, passing = await group_of_two(broker)
        stored.connection.unsubscribe("s", forget=True)
        await broker.settle()
        (subscription,) = broker.contents.subscriptions.values()
        assert not subscription.durable  # a restart would remove it
        passing.send("topic://t", "m")
        await broker.settle()
        assert passing.bodies("s") == [b"m"]
        passing.connection.disconnect(graceful=True)
        await broker.settle()
        assert broker.contents.subscriptions == {}


async def test_a_session_that_expires_leaves_its_groups() -> None:
    async with Broker() as broker:
        stored = await resume(broker, expiry=10)
        stored.subscribe("topic://t", "s", durable_name="s", qos=1, share_group="g")
        stored.connection.disconnect(graceful=True)
        await asyncio.sleep(20)
        await broker.settle()
        assert broker.core.destinations.shared == {}
        assert broker.contents.subscriptions == {}
        assert broker.contents.sessions == {}


async def test_overlapping_subscriptions_deliver_once_but_no_local_stands_for_itself_only() -> None:
    async with Broker() as broker:
        client = await resume(broker)
        client.subscribe("topic://a.*", "one", durable_name="one", qos=1, no_local=True)
        client.subscribe("topic://a.b", "two", durable_name="two", qos=0)
        client.send("topic://a.b", "own", qos=1)
        await broker.settle()
        assert (client.bodies("one"), client.bodies("two")) == ([], [b"own"])
        client.subscribe("topic://a.*", "one", durable_name="one", qos=1)
        client.send("topic://a.b", "again", qos=1)
        await broker.settle()
        assert (client.bodies("one"), client.bodies("two")) == ([b"again"], [b"own"])


async def test_the_end_of_a_connection_can_change_when_its_session_expires() -> None:
    async with Broker() as broker:
        client = await resume(broker, expiry=1000)
        client.connection.disconnect(graceful=True, session_expiry=5)
        await asyncio.sleep(10)
        assert len(broker.core.sessions) == 0
        client = await resume(broker, expiry=1000)
        client.connection.disconnect(graceful=True, session_expiry=0)
        await broker.settle()
        assert broker.contents.sessions == {}


async def test_an_inbound_qos_2_packet_id_is_in_the_batch_of_its_message() -> None:
    async with Broker() as broker:
        client = await resume(broker)
        client.send("queue://q", "m", "rec", inflight=record(5, direction=IN))
        await broker.settle()
        (batch,) = [b for b in broker.store.batches if any(type(o) is PutInflight for o in b)]
        assert [type(op).__name__ for op in batch][-2:] == ["AddMessage", "PutInflight"]
        assert client.confirmations == ["rec"]


async def test_an_acknowledgement_and_its_packet_id_state_are_one_batch() -> None:
    async with Broker() as broker:
        client = await resume(broker)
        client.subscribe("topic://t", "t", durable_name="t", qos=2)
        client.send("topic://t", "m")
        await broker.settle()
        released = InflightRecord(key_of("c"), OUT, 5, InflightState.RELEASED)
        client.connection.acknowledge("t", client.sequences("t"), "pubrel", inflight=released)
        await broker.settle()
        assert [type(op) for op in broker.store.batches[-1]] == [Acknowledge, PutInflight]
        assert client.confirmations == ["pubrel"]


async def test_packet_ids_of_a_connection_without_a_session_are_not_stored() -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "c")
        client.connection.record_inflight(put=[record(7, 1)], token="r")
        client.send("queue://q", "m", "s", inflight=record(5, direction=IN))
        await broker.settle()
        assert client.confirmations == ["r", "s"]
        assert broker.store.operations(PutInflight) == []


async def test_unsubscribing_in_a_session_removes_the_subscription_for_good() -> None:
    async with Broker() as broker:
        first = await resume(broker)
        first.subscribe("topic://t", "t", durable_name="t", qos=1)
        first.connection.unsubscribe("t")
        first.connection.disconnect(graceful=True)
        await broker.settle()
        second = await resume(broker)
        assert second.result.subscriptions == []
        assert broker.contents.subscriptions == {}


async def test_packet_ids_that_a_session_keeps_count_also_after_a_restart() -> None:
    async with Broker(held_limit=1 << 20) as broker:
        client = await resume(broker)

        def publish(number: int) -> None:
            inflight = record(number, direction=IN)
            client.connection.publish(Message("topic://t", b"m", qos=2), None, None, inflight)

        published = 0

        async def fill() -> None:
            nonlocal published
            for published in range(1, 1 << 16):
                publish(published)
                if not published % 50:
                    await broker.settle()

        with pytest.raises(FlowControlError, match=r"broker\.held_limit"):
            await fill()
        assert 3000 < published < 3500
        await broker.settle()
        counted = broker.core.held()["held.packet_ids.bytes"]
        await broker.kill()
        assert 0 <= counted - broker.core.held()["held.packet_ids.bytes"] < 20 * ID_BYTES
        client = await resume(broker)
        for number in range(1, published):
            client.connection.record_inflight(remove=[(IN, number)])
            if not number % 50:
                await broker.settle()
        assert broker.core.held()["held.packet_ids.bytes"] < 40 * ID_BYTES
