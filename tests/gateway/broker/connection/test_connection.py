"""One connection: publish, acknowledge, reject, take-over, the end, the will."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from broker_harness import Broker, Client, message

from tidegate.spi import (
    ConnectionEndedError,
    GatewayError,
    RequestError,
    RetainHandling,
)

DURABLE = {"clean_start": False, "session_expiry": 1000}


# --- publish --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "destination", ["nonsense", "queue://", "queue://a.*", "topic://a.>", "topic://\0"]
)
async def test_a_publish_to_a_bad_name_is_refused_at_once(destination: str) -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.connection.begin("t")
        for transaction in (None, "t"):
            with pytest.raises(RequestError):
                client.send(destination, "m", transaction=transaction)
        await broker.settle()
        assert broker.store.batches == []


async def test_a_closed_connection_takes_nothing_and_hears_nothing() -> None:
    async with Broker() as broker:
        client = await broker.consumer()
        broker.store.hold()
        client.send("queue://q", "accepted", "r1")
        client.connection.disconnect(graceful=True)
        client.connection.disconnect(graceful=True)  # once more changes nothing
        with pytest.raises(RequestError):
            client.send("queue://q", "refused", "r2")
        with pytest.raises(RequestError):
            client.subscribe("queue://q", "s2")
        with pytest.raises(RequestError):
            client.connection.acknowledge("s", [1])
        with pytest.raises(RequestError):
            client.connection.begin("t")
        broker.store.release()
        await broker.settle()
        assert client.events == []
        assert broker.store.pending("queue://q") == [b"accepted"]


# --- acknowledge and reject -----------------------------------------------------------------------


async def test_acknowledging_what_is_not_in_flight_names_it_and_does_nothing() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        for body in ("1", "2", "3"):
            client.send("queue://q", body)
        await broker.settle()
        for call in (client.connection.acknowledge, client.connection.reject):
            with pytest.raises(RequestError, match="message 99 "):
                call("s", [1, 2, 99])
            with pytest.raises(RequestError, match="message 1 "):
                call("s", [1, 1])
            with pytest.raises(RequestError):
                call("unknown", [1])
        consumer = client.connection.consumers["s"]
        assert sorted(consumer.in_flight) == [1, 2, 3]
        assert consumer.in_flight_bytes == 3
        client.ack_all("s", "r")
        await broker.settle()
        assert client.confirmations == ["r"]
        assert broker.store.pending("queue://q") == []


async def test_what_was_in_flight_on_another_connection_cannot_be_acknowledged() -> None:
    async with Broker() as broker:
        one, two = await broker.client(), await broker.client()
        one.subscribe("queue://q")
        one.send("queue://q", "m")
        await broker.settle()
        two.subscribe("queue://q")
        with pytest.raises(RequestError):
            two.connection.acknowledge("s", [1])


async def test_acknowledging_from_within_deliver_is_allowed() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q", prefetch_count=1)
        client.acknowledge_at_once()
        for number in range(10):
            client.send("queue://q", f"{number}")
        await broker.settle()
        assert client.bodies() == [b"%d" % number for number in range(10)]
        assert broker.store.pending("queue://q") == []


async def test_unsubscribing_and_publishing_from_within_deliver_is_allowed() -> None:
    async with Broker() as broker:
        client, other = await broker.client(), await broker.client()

        def once(_key: str, _messages: object) -> None:
            client.connection.unsubscribe("s")
            client.send("queue://answers", "answer")

        client.on_deliver = once
        client.subscribe("queue://q", prefetch_count=1)
        client.send("queue://q", "1")
        client.send("queue://q", "2")
        await broker.settle()
        assert client.bodies() == [b"1"]
        other.subscribe("queue://q")
        await broker.settle()
        assert other.bodies() == [b"1", b"2"]
        assert other.counts() == [1, 0]
        assert broker.store.pending("queue://answers") == [b"answer"]


# --- front-ends that break the contract -----------------------------------------------------------


@pytest.mark.parametrize("what", ["deliver", "confirmed", "failed"])
async def test_a_front_end_that_raises_loses_its_connection_and_nobody_else_does(
    what: str, bug: BaseException, logged_errors: list[str]
) -> None:
    logged_errors.append("front-end failed to")

    async with Broker() as broker:
        bad, good = await broker.client(), await broker.client()

        def broken(*_args: object) -> None:
            raise bug

        setattr(bad, what, broken)
        bad.subscribe("queue://bad", token="b0")
        good.subscribe("queue://good", token="g0")
        await broker.settle()
        if what == "failed":
            broker.store.refuse(1)
        for client, name in ((bad, "bad"), (good, "good")):
            if not client.connection.is_closed:
                client.send(f"queue://{name}", name, f"{name} 1")
        await broker.settle()
        assert isinstance(bad.ended, ConnectionEndedError)
        assert bad.ended.reason == "internal-error"
        assert good.ended is None
        assert len(broker.core.connections) == 1
        if what == "failed":
            assert [token for token, _ in good.failures] == ["good 1"]
        else:
            assert good.confirmations == ["g0", "good 1"]
            assert good.bodies() == [b"good"]
        if what == "deliver":
            assert broker.store.pending("queue://bad") == [b"bad"]


# --- the will -------------------------------------------------------------------------------------


WILL = message("topic://wills", "gone", qos=1)


@pytest.mark.parametrize(
    ("end", "is_published"),
    [
        (lambda c: c.connection.disconnect(graceful=True), False),
        (lambda c: c.connection.disconnect(graceful=True, publish_will=True), True),
        (lambda c: c.connection.disconnect(graceful=False), True),
        (lambda c: c.connection.end(ConnectionEndedError("test", "the broker ends it")), True),
    ],
)
async def test_the_will_is_published_unless_the_client_said_goodbye(
    end, is_published: bool
) -> None:  # type: ignore[no-untyped-def]
    async with Broker() as broker:
        watcher = await broker.client("mqtt", "w")
        watcher.subscribe("topic://wills", qos=1)
        client = await broker.client("mqtt", "c", will=WILL)
        await broker.settle()
        end(client)
        client.connection.disconnect(graceful=False)  # too late to matter
        await broker.settle()
        assert watcher.bodies() == ([b"gone"] if is_published else [])
        if is_published:
            assert watcher.deliveries[0][1].message.received_at > 0


async def test_a_retained_will_is_retained() -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "c", will=message("topic://w", "x", retain=True))
        client.connection.disconnect(graceful=False)
        late = await broker.client("mqtt", "late")
        late.subscribe("topic://w", retain_handling=RetainHandling.SEND)
        await broker.settle()
        assert late.bodies() == [b"x"]
        assert [m.body for m in broker.contents.retained.values()] == [b"x"]


async def test_a_will_that_cannot_be_published_is_lost_and_the_connection_ends_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "c", will=message("topic://a.*", "bad name"))
        client.connection.disconnect(graceful=False)
        assert broker.core.connections == set()
    assert "will=lost" in caplog.text


# --- the broker ends a connection -----------------------------------------------------------------


async def test_a_client_id_is_taken_over_by_the_newer_connection_of_the_same_protocol() -> None:
    async with Broker() as broker:
        old = await broker.client("mqtt", "c")
        other = await broker.client("stomp", "c")
        nameless = [await broker.client("mqtt", ""), await broker.client("mqtt", "")]
        old.subscribe("queue://q")
        old.send("queue://q", "m")
        await broker.settle()
        new = await broker.client("mqtt", "c")
        assert isinstance(old.ended, ConnectionEndedError)
        assert old.ended.reason == "taken-over"
        assert [client.ended for client in (other, new, *nameless)] == [None] * 4
        new.subscribe("queue://q")
        await broker.settle()
        assert (new.bodies(), new.counts()) == ([b"m"], [1])
        old.connection.disconnect(graceful=False)  # the front-end notices late
        newest = await broker.client("mqtt", "c")
        assert new.ended is not None
        assert newest.ended is None


async def test_a_front_end_can_still_say_what_was_acknowledged_when_its_connection_is_ended() -> (
    None
):
    async with Broker() as broker:
        old = await broker.client("mqtt", "c")
        old.subscribe("queue://q")
        old.send("queue://q", "done")
        old.send("queue://q", "in flight")
        await broker.settle()

        def last_words() -> None:
            old.connection.acknowledge("s", [1])
            old.connection.disconnect(graceful=False)

        old.on_closed = last_words
        await broker.client("mqtt", "c")
        await broker.settle()
        assert broker.store.pending("queue://q") == [b"in flight"]


async def test_nothing_keeps_a_connection_alive_that_has_ended() -> None:
    """Per-connection state must not pile up: of every client that came and went nothing is left."""

    async with Broker(pending_write_limit=10) as broker:

        async def visit() -> weakref.ref[object]:
            client = await broker.client("mqtt", "c", will=WILL, **DURABLE)
            client.subscribe("queue://q")
            client.subscribe("queue://q.*", "wild")
            client.subscribe("topic://t", "t", durable_name="t")
            client.subscribe("topic://u", "u", qos=0)
            client.subscribe("topic://v", "v", share_group="g")
            client.connection.begin("tx")
            client.send("queue://q", "in a transaction", transaction="tx")
            client.send("queue://q", "larger than the limit", "receipt")
            await broker.settle()
            client.connection.disconnect(graceful=False)
            await broker.settle()
            return weakref.ref(client.connection)

        gone = [await visit() for _ in range(3)]
        await asyncio.sleep(5)
        gc.collect()
        assert [reference() for reference in gone] == [None] * 3
        core = broker.core
        assert core.destinations._queue_watchers == {}
        assert core._by_client == {}
        assert core.flow._throttled == set()
        assert core.destinations.shared == {}
        assert len(core.destinations.durable) == 1
        assert len(broker.contents.subscriptions) == 1


async def test_the_error_of_a_failed_operation_is_a_gateway_error() -> None:
    async with Broker() as broker:
        client: Client = await broker.client()
        broker.store.refuse(1)
        client.send("queue://q", "m", "r")
        await broker.settle()
        assert all(isinstance(error, GatewayError) for _, error in client.failures)
        assert len(client.failures) == 1
