"""What the gateway says about itself under ``$SYS`` is true, and only the gateway says it."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from typing import Any

import pytest
from broker_harness import Broker, Client

from tidegate.broker.publish.system_topics import SystemTopics, is_system
from tidegate.config import DestinationPolicy
from tidegate.spi import AccessError, AddMessage, Message, RetainHandling, SetRetained, names
from tidegate.spi.operate import BridgeRow

EVERYTHING = "topic://$SYS.>"
INTERVAL_S = 10


async def watcher(broker: Broker, filter_name: str = EVERYTHING, **more: Any) -> Client:
    client = await broker.client("mqtt", "watcher")
    client.subscribe(filter_name, "sys", qos=0, retain_handling=RetainHandling.SEND, **more)
    await broker.settle()
    return client


async def next_values(broker: Broker, client: Client) -> dict[str, str]:
    """What is published at the end of the interval."""
    client.deliveries.clear()
    await asyncio.sleep(INTERVAL_S)
    await broker.settle()
    return values(client)


def values(client: Client) -> dict[str, str]:
    found: dict[str, str] = {}
    for _, stored in client.deliveries:
        name = stored.message.destination.removeprefix("topic://$SYS.broker.")
        assert name not in found, "published twice"
        found[name] = stored.message.body.decode()
    return found


async def test_a_new_subscriber_is_given_all_values_at_once() -> None:
    async with Broker() as broker:
        await broker.settle()
        client = await watcher(broker)
        got = values(client)
        assert got.pop("version") == "tidegate version 0"
        assert got.pop("uptime") == "0 seconds"
        assert got.pop("store.writable") == "1"
        assert got.pop("waiting.largest.destination") == "none"
        assert got.pop("overflow.last") == "none"
        assert got.pop("overflow.worst") == "none"
        assert got.pop("store.used.bytes") == "-1"
        assert got.pop("disk.free.bytes") == "-1"
        assert set(got) == {
            *("clients.connected", "clients.disconnected", "clients.total"),
            *("clients.active", "clients.inactive", "messages.stored"),
            *("clients.maximum", "clients.expired", "subscriptions.expired"),
            *("consumers.slow", "consumers.slowed", "lists.unreadable"),
            *(f"publish.messages.{what}" for what in ("received", "sent", "dropped")),
            *("publish.messages.duplicates", "retained messages.count", "store.messages.count"),
            *("subscriptions.count", "shared_subscriptions.count"),
            *broker.core.held(),
            *("waiting.maximum", "waiting.largest.bytes"),
            *(f"logins.{what}" for what in ("refused", "checking", "waiting", "delayed")),
            *("logins.dropped", "logins.abandoned", "logins.failures.bytes"),
            *("cursors.paging", "cursors.turns"),
            *("cursors.paged.messages", "cursors.paged.bytes"),
            *("overload.active", "overload.refused", "disk.short", "store.full"),
            *(f"overflow.{what}" for what in ("lists", "dropped", "dead_lettered", "refused")),
        }
        assert set(got.values()) == {"0"}
        for _, stored in client.deliveries:
            assert stored.message.retained
            assert stored.message.retain
            assert stored.message.qos == 0


async def test_only_what_changed_is_published() -> None:
    async with Broker() as broker:
        await broker.settle()
        client = await watcher(broker)
        first = await next_values(broker, client)
        assert first["uptime"] == "10 seconds"
        assert first["clients.connected"] == "1"
        assert not any(m.message.retained for _, m in client.deliveries)
        second = await next_values(broker, client)
        assert {key for key in second if not key.startswith("load.")} == {
            "uptime",
            "publish.messages.sent",  # the values themselves
        }


async def test_clients_are_counted() -> None:
    async with Broker() as broker:
        client = await watcher(broker)
        others = [
            await broker.client("mqtt", f"{number}", session_expiry=15) for number in range(3)
        ]
        for other in others[1:]:
            other.connection.disconnect(graceful=True)
        got = await next_values(broker, client)
        assert got["clients.connected"] == "2"
        assert got["clients.disconnected"] == "2"
        assert got["clients.total"] == "4"
        assert (got["clients.active"], got["clients.inactive"]) == ("2", "2")
        assert got["clients.maximum"] == "4"
        assert "clients.expired" not in got  # 0, as before
        got = await next_values(broker, client)
        assert got["clients.expired"] == "2"
        assert got["clients.disconnected"] == "0"
        assert "clients.maximum" not in got


async def test_messages_are_counted_and_what_the_gateway_numbers_itself_is_not() -> None:
    policy = DestinationPolicy(match=">", max_deliveries=1)
    async with Broker(policy) as broker:
        client = await watcher(broker, "topic://$SYS.broker.publish.messages.*")
        sender, one, two = [await broker.client() for _ in range(3)]
        one.subscribe("topic://t.*")
        two.subscribe("topic://t.*", acknowledge=False, qos=0)
        for number in range(5):
            sender.send(f"topic://t.{number}", "x", retain=True, qos=number % 3)
        sender.send("queue://q", "y")
        await broker.settle()
        two.subscribe("topic://t.*", "again", retain_handling=RetainHandling.SEND)
        one.subscribe("queue://q", "q")
        await broker.settle()
        one.connection.reject("q", one.sequences("q"))  # becomes a dead letter
        await broker.settle()
        sent = sum(len(each.deliveries) for each in (one, two, client))
        got = await next_values(broker, client)
        assert got == {
            "publish.messages.received": "6",
            "publish.messages.sent": str(sent),
        }
        assert sent == 4 + 5 + 5 + 1 + 5


async def test_discarded_duplicates_are_counted() -> None:
    async with Broker() as broker:
        client = await watcher(broker, "topic://$SYS.broker.publish.messages.duplicates")
        for _ in range(3):
            client.send("queue://q", "a", duplicate_id="a")
        assert await next_values(broker, client) == {"publish.messages.duplicates": "2"}


async def test_dropped_messages_are_counted() -> None:
    policy = DestinationPolicy(
        match="t.>", subscription_messages_max=2, subscription_overflow="drop_newest"
    )
    async with Broker(policy) as broker:
        client = await watcher(broker, "topic://$SYS.broker.publish.messages.dropped")
        away = await broker.client("mqtt", "away", session_expiry=1000)
        away.subscribe("topic://t.*", durable_name="s", qos=1)
        away.connection.disconnect(graceful=True)
        for _ in range(7):
            client.send("topic://t.x", "x")
        assert await next_values(broker, client) == {"publish.messages.dropped": "5"}


async def test_subscriptions_and_stored_messages_are_counted() -> None:
    async with Broker() as broker:
        client = await watcher(broker)
        for number in range(2):
            member = await broker.client("mqtt", f"member {number}")
            member.subscribe("topic://shared", share_group="g", qos=1)
        away = await broker.client("mqtt", "away", session_expiry=1000)
        for name in ("a", "b"):
            away.subscribe(f"topic://{name}", name, durable_name=name, qos=1)
        client.send("topic://a", "1")
        client.send("queue://q", "2")
        client.send("topic://b", "3", retain=True)
        for state in ("connected", "away"):
            got = await next_values(broker, client)
            if state == "connected":
                assert got["subscriptions.count"] == "5"
                assert got["shared_subscriptions.count"] == "2"
                assert got["store.messages.count"] == "4"
                assert got["retained messages.count"] == "1"
                away.connection.disconnect(graceful=True)
            else:
                assert "subscriptions.count" not in got


async def test_loads_are_averages_per_minute() -> None:
    async with Broker() as broker:
        client = await watcher(broker, "topic://$SYS.broker.load.>")
        await next_values(broker, client)
        for _ in range(100):
            client.send("topic://t", "x")
        got = await next_values(broker, client)
        # 600 a minute in this interval: 600 * (1 - exp(-10 / 60 / minutes))
        assert got["load.publish.received.1min"] == "92.11"
        assert got["load.publish.received.5min"] == "19.67"
        assert got["load.publish.received.15min"] == "6.63"
        got = await next_values(broker, client)
        assert got["load.publish.received.1min"] == "77.97"  # it fades


async def test_connections_and_sockets_are_averages_per_minute_too() -> None:
    async with Broker() as broker:
        client = await watcher(broker, "topic://$SYS.broker.load.*.1min")
        await next_values(broker, client)
        before = await next_values(broker, client)
        for number in range(5):
            await broker.client("mqtt", f"c{number}")
            assert broker.core.socket_opened(1)
        broker.core.socket_closed(1)
        got = await next_values(broker, client)
        # 30 a minute, averaged as above, and one client before.
        share = 1 - math.exp(-10 / 60)
        fading = float(before["load.connections.1min"]) * (1 - share)
        assert float(got["load.connections.1min"]) == pytest.approx(30 * share + fading, abs=0.02)
        assert float(got["load.sockets.1min"]) == pytest.approx(30 * share, abs=0.02)
        for _ in range(4):
            broker.core.socket_closed(1)


async def test_events_that_happened_are_counted() -> None:
    async with Broker() as broker:
        client = await watcher(broker, "topic://$SYS.broker.events.>")
        for number in range(3):
            other = await broker.client("mqtt", f"{number}")
            other.connection.disconnect(graceful=True)
        assert await next_values(broker, client) == {
            "events.client-connected.count": "4",
            "events.client-disconnected.count": "3",
        }
        assert await next_values(broker, client) == {}


async def test_a_bridge_is_connected_when_all_of_its_rules_are() -> None:
    def row(bridge: str, server: str) -> BridgeRow:
        where = ("rule", "out", "mqtt://far", "queue://q", "q", server)
        return BridgeRow(bridge, *where, 0, 0, 0, 0, 0, 0, "", "")

    async with Broker() as broker:
        rows = [row("far", "m"), row("far", ""), row("near", "m")]
        broker.core.bridges = lambda: rows
        client = await watcher(broker, "topic://$SYS.broker.connection.>")
        assert values(client) == {"connection.far.state": "0", "connection.near.state": "1"}
        rows[1] = row("far", "m")
        assert await next_values(broker, client) == {"connection.far.state": "1"}


async def test_nothing_of_it_is_stored_or_found_by_wildcards_at_the_first_level() -> None:
    async with Broker(retained_limit=1) as broker:
        client = await broker.client("mqtt", "c")
        for filter_name in (">", "*.broker.>"):
            client.subscribe(
                f"topic://{filter_name}", filter_name, retain_handling=RetainHandling.SEND
            )
        client.subscribe(EVERYTHING, "sys", qos=2)
        await asyncio.sleep(3 * INTERVAL_S)
        await broker.settle()
        assert {key for key, _ in client.deliveries} == {"sys"}
        assert broker.store.operations(SetRetained, AddMessage) == []
        assert len(broker.core.retained) == 0


@pytest.mark.parametrize(
    "destination", ["topic://$SYS.broker.uptime", "topic://$SYS", "topic://$SYS.x"]
)
async def test_clients_cannot_publish_there(destination: str) -> None:
    async with Broker() as broker:
        client = await watcher(broker)
        await next_values(broker, client)  # the gateway has published there
        client.connection.begin("t")
        will = Message(destination, b"will")
        other = await broker.client("mqtt", "other", will=will)
        for more in ({}, {"retain": True}, {"transaction": "t"}, {"qos": 0}):
            with pytest.raises(AccessError):
                client.send(destination, "forged", **more)
        other.connection.disconnect(graceful=False)
        await broker.settle()
        assert not any(m.message.body in (b"forged", b"will") for _, m in client.deliveries)
        uptime = broker.core.retained.get("topic://$SYS.broker.uptime")
        assert uptime is not None
        assert uptime.body == b"10 seconds"


def test_only_names_whose_first_level_is_the_gateways_are_its_own() -> None:
    assert is_system("topic://$SYS.a")
    assert is_system("topic://$SYS")
    others = ("$SYSTEM.a", "a.$SYS", "$sys.a", "$SYS/a")
    for destination in (*map(names.topic, others), "queue://$SYS.a"):
        assert not is_system(destination)


async def test_a_subscription_with_a_selector_is_given_what_it_selects() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for key, selector in (("all", "colour IS NULL"), ("none", "colour = 'red'")):
            client.subscribe(EVERYTHING, key, selector=selector, acknowledge=False)
        await asyncio.sleep(INTERVAL_S)
        await broker.settle()
        assert {key for key, _ in client.deliveries} == {"all"}


async def test_an_interval_of_zero_turns_them_off() -> None:
    async with Broker(system_topics_interval=0) as broker:
        client = await watcher(broker)
        await asyncio.sleep(5 * INTERVAL_S)
        await broker.settle()
        assert client.deliveries == []


async def test_a_client_that_is_just_being_given_the_values_sees_the_old_one_before_the_new() -> (
    None
):
    async with Broker(system_topics_interval=0) as broker:
        system = SystemTopics(
            broker.core.flow,
            broker.core.destinations,
            broker.core.deliveries,
            1,
            broker.core.client_counts,
            broker.core.traffic,
            dict,
        )
        system.publish(broker.core.writer.elapsed())
        client = await broker.client("mqtt", "c")
        client.connection.writable(False)
        client.subscribe(EVERYTHING, qos=0, retain_handling=RetainHandling.SEND)
        await broker.settle()
        system.publish(broker.core.writer.elapsed() + 5_000_000)
        client.connection.writable(True)
        await broker.settle()
        uptimes = [
            (m.message.body, m.message.retained)
            for _, m in client.deliveries
            if m.message.destination.endswith("uptime")
        ]
        assert uptimes == [(b"0 seconds", True), (b"5 seconds", False)]


async def test_a_store_that_takes_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker() as broker:
        client = await watcher(broker, "topic://$SYS.broker.store.writable")
        assert values(client) == {"store.writable": "1"}
        healthy = broker.store.statistics
        monkeypatch.setattr(
            broker.store, "statistics", lambda: dataclasses.replace(healthy(), writable=False)
        )
        assert await next_values(broker, client) == {"store.writable": "0"}
        monkeypatch.undo()
        assert await next_values(broker, client) == {"store.writable": "1"}
