"""Selectors on queues and topics: who gets what, exactly once, however much is in between."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from broker_harness import Broker, Client

from tidegate.broker.lists.selecting import AGAIN_MAX, PAGE_COUNT
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    Acknowledge,
    AddMessage,
    Message,
    RequestError,
    RetainHandling,
    StoreIOError,
    content_bytes,
)

RED = "color = 'red'"
CURSOR_NAMES = ["store", "vm", "file"]


def send(client: Client, body: str, color: str, to: str = "queue://q", **more: Any) -> None:
    client.send(to, body, headers=(("color", color),), **more)


def policy(cursor: str, **more: Any) -> DestinationPolicy:
    return DestinationPolicy(match="queue://>", cursor=cursor, page_count=10, **more)


async def drained(broker: Broker, client: Client, key: str = "s") -> None:
    """Acknowledge until nothing comes any more."""
    while client.connection.consumers[key].in_flight:
        client.ack_all(key)
        await broker.settle()


async def test_only_what_matches_comes_and_the_rest_stays_for_others() -> None:
    async with Broker() as broker:
        client, other = await broker.client(), await broker.client()
        send(client, "1", "blue")
        send(client, "2", "red")
        await broker.settle()
        client.subscribe("queue://q", selector=RED)
        send(client, "3", "red")
        send(client, "4", "blue")
        await broker.settle()
        assert client.bodies() == [b"2", b"3"]
        client.ack_all()
        await broker.settle()
        assert broker.store.pending("queue://q") == [b"1", b"4"]
        other.subscribe("queue://q")
        await broker.settle()
        assert other.bodies() == [b"1", b"4"]
        assert not broker.queue("q").selecting._claims


@pytest.mark.parametrize("cursor", CURSOR_NAMES)
async def test_no_match_is_hidden_behind_messages_that_nobody_wants(cursor: str) -> None:
    async with Broker(policy(cursor, memory_limit=100_000)) as broker:
        client, taker = await broker.client(), await broker.client()
        for number in range(5_000):
            send(client, str(number), "blue")
            if number % 500 == 0:
                await broker.settle()
        send(client, "wanted", "red")
        await broker.settle()
        taker.subscribe("queue://q", selector=RED, prefetch_count=1)
        await broker.settle()
        assert taker.bodies() == [b"wanted"]
        scanner = broker.queue("q").selecting._scanners[0]
        assert (len(scanner.found), len(scanner.again)) == (0, 0)
        assert broker.queue("q").cursor.memory_bytes <= 150_000 or cursor == "vm"
        taker.ack_all()
        await broker.settle()
        assert scanner.caught_up
        assert broker.queue("q").cursor.size == 5_000


async def test_a_backlog_of_matches_is_held_by_the_page() -> None:
    async with Broker(policy("store")) as broker:
        client, taker = await broker.client(), await broker.client()
        wanted = [b"%d" % n for n in range(5 * PAGE_COUNT)]
        for body in wanted:
            send(client, body.decode(), "red")
        await broker.settle()
        taker.subscribe("queue://q", selector=RED, prefetch_count=7)
        await broker.settle()
        while taker.connection.consumers["s"].in_flight:
            assert len(broker.queue("q").selecting._scanners[0].found) <= PAGE_COUNT
            assert len(taker.connection.consumers["s"].in_flight) <= 7
            taker.ack_all()
            await broker.settle()
        assert taker.bodies() == wanted
        assert broker.store.pending("queue://q") == []


async def test_slow_selectors_leave_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.broker.lists.selecting.SLICE_S", 0.0)

    async with Broker() as broker:
        client = await broker.client()
        for number in range(50):
            send(client, str(number), "red" if number % 7 == 0 else "blue")
        await broker.settle()
        client.subscribe("queue://q", selector=RED, prefetch_count=3)
        await broker.settle()
        await drained(broker, client)
        assert client.bodies() == [b"%d" % n for n in range(0, 50, 7)]


@pytest.mark.parametrize("automatic", [False, True])
async def test_overlapping_selectors_and_plain_consumers_share_each_message_once(
    automatic: bool,
) -> None:
    async with Broker(policy("store", memory_limit=20_000)) as broker:
        producer = await broker.client()
        clients = [await broker.client() for _ in range(4)]
        selectors = [RED, "color IN ('red', 'green')", "n > 50", ""]
        for number in range(100):
            producer.send(
                "queue://q", str(number),
                headers=(("color", ("red", "green", "blue")[number % 3]), ("n", str(number))),
            )  # fmt: skip
        await broker.settle()
        for client, selector in zip(clients, selectors, strict=True):
            client.subscribe(
                "queue://q", selector=selector, prefetch_count=3, acknowledge=not automatic
            )
        for number in range(100, 200):
            producer.send("queue://q", str(number), headers=(("color", "red"),))
            if number % 9 == 0:
                await broker.settle()
                for client in clients:
                    if not automatic:
                        client.ack_all()
        await broker.settle()
        for _ in range(100):
            for client in clients:
                if not automatic:
                    client.ack_all()
            await broker.settle()
        bodies = sorted(int(body) for client in clients for body in client.bodies())
        assert bodies == list(range(200))
        assert broker.store.pending("queue://q") == []
        assert all(client.bodies() for client in clients)


async def test_consumers_of_one_selector_take_turns() -> None:
    async with Broker() as broker:
        clients = [await broker.client() for _ in range(3)]
        for client in clients:
            client.subscribe("queue://q", selector=RED)
        await broker.settle()
        for number in range(30):
            send(clients[0], str(number), "red")
        await broker.settle()
        assert [len(client.bodies()) for client in clients] == [10, 10, 10]


@pytest.mark.parametrize("cursor", CURSOR_NAMES)
async def test_what_was_rejected_comes_again_in_order_with_its_count(cursor: str) -> None:
    async with Broker(policy(cursor, memory_limit=3_000)) as broker:
        client = await broker.client()
        for number in range(60):
            send(client, str(number), "red" if number % 2 else "blue")
        await broker.settle()
        client.subscribe("queue://q", selector=RED, prefetch_count=10)
        await broker.settle()
        first = client.sequences()
        assert len(first) == 10
        client.connection.reject("s", first[3:6])
        await broker.settle()
        assert client.sequences()[10:] == first[3:6]
        assert client.counts()[10:] == [1, 1, 1]
        client.connection.unsubscribe("s")
        await broker.settle()
        plain = await broker.client()
        plain.subscribe("queue://q", prefetch_count=1000)
        await broker.settle()
        assert plain.bodies() == [b"%d" % n for n in range(60)]
        counts = dict(zip(plain.sequences(), plain.counts(), strict=True))
        assert [counts[sequence] for sequence in first] == [1, 1, 1, 2, 2, 2, 1, 1, 1, 1]


async def test_what_another_consumer_gives_back_is_found_though_it_was_passed() -> None:
    async with Broker() as broker:
        plain, picky = await broker.client(), await broker.client()
        for number in range(5):
            send(plain, str(number), "red")
        plain.subscribe("queue://q")
        await broker.settle()
        picky.subscribe("queue://q", selector=RED)
        await broker.settle()
        assert picky.bodies() == []
        plain.connection.disconnect(graceful=True)
        await broker.settle()
        assert picky.bodies() == [b"%d" % n for n in range(5)]
        assert picky.counts() == [1] * 5


async def test_more_than_is_kept_of_what_came_back_is_read_again() -> None:
    async with Broker() as broker:
        plain, picky = await broker.client(), await broker.client()
        count = AGAIN_MAX + 50
        for number in range(count):
            send(plain, str(number), "red")
        plain.subscribe("queue://q", prefetch_count=count)
        await broker.settle()
        picky.subscribe("queue://q", selector=RED, prefetch_count=1)
        await broker.settle()
        plain.connection.disconnect(graceful=True)
        await broker.settle()
        assert len(broker.queue("q").selecting._scanners[0].again) <= AGAIN_MAX
        await drained(broker, picky)
        assert picky.bodies() == [b"%d" % n for n in range(count)]


async def test_prefetch_in_messages_and_bytes_holds() -> None:
    async with Broker() as broker:
        client = await broker.client()
        one = content_bytes(Message("queue://q", b"x" * 40, (("color", "red"),)))
        client.subscribe("queue://q", selector=RED, prefetch_count=5, prefetch_bytes=5 * one // 2)
        await broker.settle()
        for _ in range(10):
            send(client, "x" * 40, "red")
        await broker.settle()
        assert len(client.bodies()) == 3
        client.ack_all()
        await broker.settle()
        assert len(client.bodies()) in (5, 6)


async def test_a_transaction_covers_what_a_selector_brought() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://q", selector=RED)
        for body in ("1", "2"):
            send(client, body, "red")
        await broker.settle()
        for end in (client.connection.abort, client.connection.commit):
            client.connection.begin("t")
            client.connection.acknowledge("s", client.sequences(), transaction="t")
            end("t")
            await broker.settle()
        assert broker.store.pending("queue://q") == []
        assert client.bodies() == [b"1", b"2"]
        assert not broker.queue("q").selecting._claims
        assert broker.queue("q").cursor.size == 0


async def test_the_delivery_limit_moves_it_to_the_dead_letters() -> None:
    async with Broker(policy("store", max_deliveries=2)) as broker:
        client = await broker.client()
        client.subscribe("queue://q", selector=RED)
        send(client, "bad", "red")
        await broker.settle()
        for _ in range(2):
            client.connection.reject("s", client.sequences()[-1:])
            await broker.settle()
        assert client.bodies() == [b"bad", b"bad"]
        assert broker.store.pending("queue://q") == []
        assert not broker.queue("q").selecting._claims


async def test_expired_matches_are_discarded_not_delivered() -> None:
    async with Broker() as broker:
        client = await broker.client()
        send(client, "old", "red", expires_at=broker.core.now() - 1)
        send(client, "new", "red")
        await broker.settle()
        client.subscribe("queue://q", selector=RED)
        await broker.settle()
        assert client.bodies() == [b"new"]
        assert broker.store.pending("queue://q") == [b"new"]


async def test_a_restart_keeps_what_was_not_acknowledged() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for number in range(300):
            send(client, str(number), "red" if number % 100 == 0 else "blue")
        client.subscribe("queue://q", selector=RED)
        await broker.settle()
        client.connection.acknowledge("s", client.sequences()[:1])
        await broker.settle()
        await broker.kill()
        again = await broker.client()
        again.subscribe("queue://q", selector=RED)
        await broker.settle()
        assert again.bodies() == [b"100", b"200"]


async def test_a_temporary_queue_can_be_asked_for_one_answer() -> None:
    async with Broker() as broker:
        asking, answering = await broker.client(), await broker.client()
        own = asking.connection.make_temporary("queue://answers")
        for number in range(50):
            answering.send(own, str(number), correlation_data=b"%d" % number)
        await broker.settle()
        asking.subscribe(own, "a", selector="JMSCorrelationID = '33'")
        asking.subscribe(own, "b", selector="JMSCorrelationID = '77'", acknowledge=False)
        await broker.settle()
        answering.send(own, "77", correlation_data=b"77")
        await broker.settle()
        assert (asking.bodies("a"), asking.bodies("b")) == ([b"33"], [b"77"])
        asking.ack_all("a")
        await broker.settle()
        asking.connection.unsubscribe("a")
        asking.subscribe(own, "rest")
        await broker.settle()
        assert asking.bodies("rest") == [b"%d" % n for n in range(50) if n != 33]


async def test_a_queue_filter_selects_from_each_queue() -> None:
    async with Broker() as broker:
        client = await broker.client()
        send(client, "a1", "red", "queue://x.a")
        await broker.settle()
        client.subscribe("queue://x.*", selector=RED)
        await broker.settle()
        send(client, "a2", "blue", "queue://x.a")
        send(client, "b1", "red", "queue://x.b")
        await broker.settle()
        assert client.bodies() == [b"a1", b"b1"]


async def test_browsing_shows_only_matches() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for body, color in (("1", "blue"), ("2", "red")):
            send(client, body, color)
        client.subscribe("queue://q", "b", acknowledge=False, browse=True, selector=RED)
        client.browsing.append("b")
        await client.browsed("b")
        assert client.bodies() == [b"2"]


async def test_a_page_that_cannot_be_read_is_tried_again(
    caplog: Any, logged_errors: list[str]
) -> None:
    logged_errors.append("tidegate.broker.selecting")

    async with Broker() as broker:
        client = await broker.client()
        send(client, "1", "red")
        await broker.settle()
        page_in, errors = broker.store.page_in, [StoreIOError("bad block")]

        async def failing(*arguments: Any) -> Any:
            if errors:
                raise errors.pop()
            return await page_in(*arguments)

        broker.store.page_in = failing  # type: ignore[method-assign]
        client.subscribe("queue://q", selector=RED)
        for _ in range(200):
            await asyncio.sleep(0.1)
            if client.deliveries:
                break
        assert client.bodies() == [b"1"]


async def test_unsubscribing_from_within_a_delivery_loses_nothing_for_others() -> None:
    async with Broker() as broker:
        one, two = await broker.client(), await broker.client()
        one.subscribe("queue://q", selector=RED)
        two.subscribe("queue://q", selector=RED)
        await broker.settle()

        def leave(_key: str, _messages: Any) -> None:
            for client in (one, two):
                client.on_deliver = None
            two.connection.unsubscribe("s")

        one.on_deliver = leave
        for number in range(6):
            send(one, str(number), "red")
        await broker.settle()
        assert sorted(one.bodies()) == [b"%d" % n for n in range(6)]


async def test_a_topic_subscription_stores_only_what_it_selects() -> None:
    async with Broker() as broker:
        client = await broker.client(client_id="me")
        client.subscribe("topic://t", "d", durable_name="d", selector=RED)
        client.subscribe("topic://t", "direct", acknowledge=False, selector="n = 1")
        await broker.settle()
        send(client, "1", "red", "topic://t")
        send(client, "2", "blue", "topic://t")
        client.send("topic://t", "3", headers=(("n", "1"),))
        await broker.settle()
        assert (client.bodies("d"), client.bodies("direct")) == ([b"1"], [b"3"])
        assert len(broker.store.operations(AddMessage)) == 1


async def test_a_durable_subscription_keeps_its_selector_over_a_restart() -> None:
    async with Broker() as broker:
        client = await broker.client(client_id="me")
        client.subscribe("topic://t", "d", durable_name="d", selector=RED)
        await broker.settle()
        await broker.kill()
        producer = await broker.client()
        send(producer, "1", "blue", "topic://t")
        send(producer, "2", "red", "topic://t")
        await broker.settle()
        again = await broker.client(client_id="me")
        assert again.subscribe("topic://t", "d", durable_name="d", selector=RED)
        await broker.settle()
        assert again.bodies() == [b"2"]


async def test_another_selector_is_another_durable_subscription() -> None:
    async with Broker() as broker:
        client = await broker.client(client_id="me")
        client.subscribe("topic://t", "d", durable_name="d", selector=RED)
        await broker.settle()
        client.connection.unsubscribe("d")
        send(client, "1", "red", "topic://t")
        await broker.settle()
        assert not client.subscribe("topic://t", "d", durable_name="d", selector="n = 1")
        send(client, "2", "red", "topic://t")
        client.send("topic://t", "3", headers=(("n", "1"),))
        await broker.settle()
        assert client.bodies() == [b"3"]


async def test_retained_messages_and_wills_are_selected_too() -> None:
    async with Broker() as broker:
        client = await broker.client()
        will = Message("topic://w", b"gone", (("color", "red"),))
        dying = await broker.client("mqtt", "dying", will=will)
        client.subscribe("topic://w", "yes", selector=RED)
        client.subscribe("topic://w", "no", selector="color = 'blue'")
        await broker.settle()
        dying.connection.disconnect(graceful=False)
        await broker.settle()
        assert (client.bodies("yes"), client.bodies("no")) == ([b"gone"], [])
        client.deliveries.clear()
        send(client, "kept", "red", "topic://a", retain=True)
        send(client, "other", "blue", "topic://b", retain=True)
        await broker.settle()
        client.subscribe(
            "topic://>", selector=RED, acknowledge=False, retain_handling=RetainHandling.SEND
        )
        await broker.settle()
        assert client.bodies() == [b"kept"]


async def test_a_bad_selector_is_refused_and_changes_nothing() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for destination in ("queue://q", "topic://t"):
            with pytest.raises(RequestError, match="column 8"):
                client.subscribe(destination, selector="color == ")
        assert client.connection.consumers == {}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("cursor", CURSOR_NAMES)
async def test_whatever_happens_each_message_is_consumed_exactly_once(
    cursor: str, seed: int
) -> None:
    """A random run: publishes, rejects, acknowledgements, consumers that come and go."""
    pick = random.Random(seed)
    selectors = ["", RED, "color <> 'red'", "n > 100", "color LIKE '%e%'"]

    async with Broker(
        policy(cursor, memory_limit=8_000, temporary_limit=6_000, max_deliveries=0)
    ) as broker:
        producer = await broker.client()
        clients: list[Client] = []
        done: list[int] = []
        count = 0
        for _ in range(150):
            act = pick.random()
            if act < 0.35:
                for _ in range(pick.randrange(1, 8)):
                    color = pick.choice(["red", "green", "x"])
                    producer.send(
                        "queue://q", str(count), headers=(("color", color), ("n", str(count)))
                    )
                    count += 1
            elif act < 0.5 and len(clients) < 4:
                client = await broker.client()
                client.subscribe(
                    "queue://q", selector=pick.choice(selectors),
                    prefetch_count=pick.choice([1, 3, 10]),
                )  # fmt: skip
                clients.append(client)
            elif act < 0.6 and clients:
                clients.pop(pick.randrange(len(clients))).connection.disconnect(graceful=True)
            elif clients:
                client = pick.choice(clients)
                out = list(client.connection.consumers["s"].in_flight)
                some = pick.sample(out, pick.randint(0, len(out)))
                if some and act < 0.7:
                    client.connection.reject("s", some)
                elif some:
                    client.connection.acknowledge("s", some)
                    done += some
            if pick.random() < 0.5:
                await broker.settle()
            else:
                await asyncio.sleep(0)
        client = await broker.client()
        client.subscribe("queue://q", selector="color IN ('red', 'green', 'x') AND n >= 0")
        clients.append(client)
        await broker.settle()
        for _ in range(50):
            for client in clients:
                done += list(client.connection.consumers["s"].in_flight)
                client.ack_all()
            await broker.settle()
        assert len(done) == count
        assert len(set(done)) == count
        assert broker.store.pending("queue://q") == []
        rows = [s for op in broker.store.operations(Acknowledge) for s in op.sequences]
        assert sorted(rows) == sorted(done)
        queue = broker.queue("q")
        assert (queue.cursor.size, queue.cursor.memory_bytes) == (0, 0)
        assert queue.selecting is None or not queue.selecting._claims
