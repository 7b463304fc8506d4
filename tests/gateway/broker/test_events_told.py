"""Which events a broker tells: their names, what each is about, and that each is told once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from acknowledged import Log, ToySink
from broker_harness import Broker

from tidegate.broker.events import Events
from tidegate.broker.memory_watch import QUIET_LOOKS, MemoryWatch
from tidegate.broker.operate.operations import Operations
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    MESSAGE_OVERHEAD_BYTES,
    AccessError,
    Action,
    ConnectionEndedError,
    FlowControlError,
    GatewayError,
    Identity,
    StoreIOError,
    Verdict,
)
from tidegate.spi.events import Event, EventKind
from tidegate.spi.operate import (
    CreateDestination,
    DeleteDestination,
    Drain,
    EventPage,
    EventRow,
    ListEvents,
    PauseDestination,
    ResumeDestination,
    Side,
    Undrain,
    perform,
)
from tidegate.spi.sink import SinkState

ME = Identity("local:me", frozenset(), "", "", "operator")
A = "queue://a"


class Told:
    """What a broker has told since the last look."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._after = 0

    def rows(self, *kinds: EventKind) -> list[EventRow]:
        page = self._broker.core.events.page(ListEvents(self._after, kinds=kinds, limit=1000))
        self._after = page.next
        return list(page.rows)

    def names(self, *kinds: EventKind) -> list[Event]:
        return [row.event for row in self.rows(*kinds)]


async def test_a_client_comes_and_goes() -> None:
    async with Broker() as broker:
        told = Told(broker)
        client = await broker.client("mqtt", "c1")
        (row,) = told.rows()
        assert row.event is Event.CLIENT_CONNECTED
        number = client.connection.number
        assert row.about["client"] == "c1"
        assert (row.about["connection"], row.about["protocol"]) == (number, "mqtt")
        client.connection.disconnect(graceful=True)
        (row,) = told.rows()
        assert row.event is Event.CLIENT_DISCONNECTED
        assert row.about["connection"] == number
        assert row.text.endswith("disconnected: the client disconnected")
        for reason, why in (
            ("", "the connection was lost"),
            ("it sent rubbish", "it sent rubbish"),
        ):
            client = await broker.client()
            client.connection.disconnect(graceful=False, reason=reason)
            assert told.rows()[-1].text.endswith(f"disconnected: {why}")
        client = await broker.client()
        client.connection.end(ConnectionEndedError("administrative", "an operator said so"))
        assert told.rows()[-1].text.endswith("disconnected: an operator said so")


async def test_a_client_that_is_not_let_in_is_told_of_once() -> None:
    async with Broker(connections_max=1) as broker:
        told = Told(broker)
        client = await broker.client()
        told.rows()
        with pytest.raises(FlowControlError):
            await broker.client("mqtt", "c2")
        (row,) = told.rows()
        assert (row.event, row.about["client"]) == (Event.CLIENT_REFUSED, "c2")
        assert "connections_max" in row.text
        client.connection.disconnect(graceful=True)


class Nobody:
    """An authorizer that lets everybody in, and do nothing."""

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        if action is Action.CONNECT and identity.client_id == "evil":
            return Verdict.DENY
        return Verdict.ALLOW if action in (Action.CONNECT, Action.ADMIN) else Verdict.DENY


async def test_what_access_control_refuses_is_told() -> None:
    async with Broker(extensions=[Nobody()]) as broker:
        told = Told(broker)
        with pytest.raises(AccessError):
            await broker.client("mqtt", "evil")
        (row,) = told.rows()
        assert (row.event, row.about["client"], row.about["action"]) == (
            Event.REFUSED,
            "evil",
            "connect",
        )
        with pytest.raises(AccessError):
            await perform(Operations(broker.core), ME, CreateDestination(A))
        (row,) = told.rows(EventKind.ACCESS)
        assert (row.about["principal"], row.about["destination"]) == ("local:me", A)


async def test_queues_subscriptions_and_what_operators_do() -> None:
    async with Broker() as broker:
        told, operations = Told(broker), Operations(broker.core)
        requests = (
            (CreateDestination(A), Event.DESTINATION_MADE),
            (PauseDestination(A, (Side.CONSUMERS,)), Event.DESTINATION_PAUSED),
            (ResumeDestination(A), Event.DESTINATION_RESUMED),
            (DeleteDestination(A), Event.DESTINATION_DELETED),
            (Drain("other:1"), Event.DRAIN_BEGUN),
            (Undrain(), Event.DRAIN_ENDED),
        )
        for request, event in requests:
            await perform(operations, ME, request)
            await broker.settle()
            rows = [row for row in told.rows() if row.event is not Event.DRAIN_DONE]
            assert [row.event for row in rows] == [event, Event.OPERATED]
            if "destination" in event.value:
                assert all(row.about["destination"] == A for row in rows)
            assert rows[1].about["principal"] == "local:me"
        client = await broker.client("stomp", "c")
        told.rows()
        client.subscribe("topic://t", durable_name="d")
        client.subscribe("topic://t", key="other")  # which ends with its connection
        client.connection.make_temporary("queue://temp")
        await broker.settle()
        (row,) = told.rows()
        assert (row.event, row.about["subscription"], row.about["client"]) == (
            Event.SUBSCRIPTION_MADE,
            "d",
            "c",
        )
        client.connection.unsubscribe("s", forget=True)
        client.connection.disconnect(graceful=True)
        await broker.settle()
        (row,) = told.rows(EventKind.SUBSCRIPTION)
        assert (row.event, row.about["filter"]) == (Event.SUBSCRIPTION_ENDED, "topic://t")


async def test_dead_letters_are_told_as_one() -> None:
    policy = DestinationPolicy(match="queue://>", max_deliveries=1)
    async with Broker(policy) as broker:
        sender, client, told = await broker.client(), await broker.client(), Told(broker)
        for number in range(20):
            sender.send(A, str(number))
        client.subscribe(A, prefetch_count=100)
        await broker.settle()
        told.rows()
        client.connection.reject("s", client.sequences())
        await broker.settle()
        assert not told.rows(EventKind.MESSAGE)
        await asyncio.sleep(1.5)
        (row,) = told.rows(EventKind.MESSAGE)
        assert (row.event, row.count, row.about["destination"]) == (
            Event.MESSAGES_DEAD_LETTERED,
            20,
            A,
        )
        for one in (sender, client):
            one.connection.disconnect(graceful=True)


async def test_a_limit_is_told_when_it_begins_and_when_it_is_over() -> None:
    policy = DestinationPolicy(match="queue://>", messages_max=2, overflow="refuse")
    async with Broker(policy) as broker:
        sender, client, told = await broker.client(), await broker.client(), Told(broker)
        told.rows()
        for number in range(5):
            with suppress(FlowControlError):
                sender.send(A, str(number))
            await broker.settle()
        rows = told.rows(EventKind.LIMIT)
        assert [row.event for row in rows] == [Event.LIMIT_REACHED]
        assert (rows[0].about["destination"], rows[0].about["overflow"]) == (A, "refuse")
        client.acknowledge_at_once()
        client.subscribe(A)
        await broker.settle()
        await asyncio.sleep(3)
        assert told.names(EventKind.LIMIT) == [Event.LIMIT_LEFT]
        for one in (sender, client):
            one.connection.disconnect(graceful=True)


async def test_a_full_store_is_told_once_and_so_is_room() -> None:
    async with Broker() as broker:
        sender, told = await broker.client(), Told(broker)
        told.rows()
        broker.store.refuse(3)
        for number in range(3):
            sender.send(A, str(number))
            await broker.settle()
            await asyncio.sleep(5)
        sender.send(A, "4")
        await broker.settle()
        await asyncio.sleep(5)
        sender.send(A, "5")
        await broker.settle()
        assert told.names(EventKind.STORE) == [Event.STORE_SHORT, Event.STORE_ROOM]
        sender.connection.disconnect(graceful=True)


@pytest.mark.parametrize("selector", ["", "color = 'red'"])
async def test_messages_that_cannot_be_read_are_told_once_and_that_they_can_be_again(
    selector: str,
) -> None:
    policy = DestinationPolicy(
        match=">", cursor="store", memory_limit=4 * MESSAGE_OVERHEAD_BYTES, page_count=4
    )
    async with Broker(policy) as broker:
        told = Told(broker)
        client = await broker.client()
        for number in range(20):
            client.send(A, f"{number}", headers=(("color", "red"),))
        await broker.settle()
        good = broker.store.page_in
        failures = [StoreIOError(text) for text in ("bad block", "worse", "worse", "worse")]

        async def page_in(*args: Any) -> Any:
            if failures:
                raise failures.pop()
            return await good(*args)

        broker.store.page_in = page_in  # type: ignore[method-assign]
        told.rows()
        client.subscribe(A, prefetch_count=100, selector=selector)
        await asyncio.sleep(60)
        assert client.bodies() == [b"%d" % number for number in range(20)]
        rows = told.rows(EventKind.DESTINATION)
        assert [row.event for row in rows] == [
            Event.DESTINATION_UNREADABLE,
            Event.DESTINATION_UNREADABLE,
            Event.DESTINATION_READABLE,
        ]
        assert [row.about["destination"] for row in rows] == [A] * 3
        assert ("worse" in rows[0].text, "bad block" in rows[1].text) == (True, True)
        assert not broker.core.flow.unreadable


async def test_a_sink_tells_its_changes_and_nothing_twice() -> None:
    async with Log() as broker:
        told, sink = Told(broker), ToySink()
        broker.core.acknowledged_log.reader("lake").sink = sink
        await asyncio.sleep(3)
        assert told.names(EventKind.SINK) == [Event.SINK_STATE]
        sink.says = replace(sink.says, state=SinkState.FAILING, problem="no table")
        await asyncio.sleep(3)
        (row,) = told.rows(EventKind.SINK)
        assert (row.event, row.about["sink"], row.about["problem"]) == (
            Event.SINK_FAILED,
            "lake",
            "no table",
        )
        sink.says = replace(sink.says, state=SinkState.RUNNING, problem="", is_late=True)
        await asyncio.sleep(3)
        assert told.names(EventKind.SINK) == [Event.SINK_RECOVERED, Event.SINK_LATE]
        sink.says = replace(sink.says, is_late=False)
        await asyncio.sleep(3)
        assert told.names(EventKind.SINK) == [Event.SINK_CAUGHT_UP]


def test_refusals_for_memory_are_told_when_they_begin_and_when_they_are_over() -> None:
    events, refused = Events(), [0, 5, 9, 9, *[10] * (3 * QUIET_LOOKS)]
    now = iter(refused)
    watch = MemoryWatch(lambda: next(now), events.tell)
    for _ in refused:
        watch.look()
    rows = events.page(ListEvents()).rows
    assert [row.event for row in rows] == [Event.MEMORY_REFUSED, Event.MEMORY_ACCEPTED]
    assert [row.about["count"] for row in rows] == [5, 10]


async def test_who_loses_the_right_while_it_waits_is_told_nothing() -> None:
    class Some:
        is_in = True

        def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
            allowed = self.is_in or identity.principal != "local:me"
            return Verdict.ALLOW if allowed else Verdict.DENY

    rules = Some()
    async with Broker(extensions=[rules]) as broker:
        operations = Operations(broker.core)
        after = broker.core.events.last
        waiting = asyncio.create_task(
            perform(operations, ME, ListEvents(after, wait_s=10, kinds=(EventKind.CLIENT,)))
        )
        await asyncio.sleep(1)
        rules.is_in = False
        client = await broker.client()
        with pytest.raises(GatewayError, match="admin"):
            await waiting
        rules.is_in = True
        found = await perform(operations, ME, ListEvents(after, kinds=(EventKind.CLIENT,)))
        assert isinstance(found, EventPage)
        assert len(found.rows) == 1
        client.connection.disconnect(graceful=True)
