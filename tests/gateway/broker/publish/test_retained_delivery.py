"""Many retained messages reach a new subscription in chunks, each before what is live."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from broker_harness import START_US, Broker, Client, message
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.broker.publish import retained_delivery
from tidegate.broker.route import retained as retained_messages
from tidegate.config import DestinationPolicy
from tidegate.spi import AddMessage, Durability, RetainHandling, StoredMessage, StoreIOError

SEND = RetainHandling.SEND


@pytest.fixture(params=[False, True], ids=["few topics", "many topics"])
def chunks_of_three(request: pytest.FixtureRequest) -> Iterator[None]:
    """Also as if there were so many topics that it would take long to find those that are covered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retained_delivery, "CHUNK_COUNT_MAX", 3)
        if request.param:
            patch.setattr(retained_messages, "LOOKED_AT_MAX", -1)
        yield


async def retain(broker: Broker, count: int, **more: object) -> Client:
    """Topics t.0 … t.count-1 have a retained message each. Returns: their publisher."""
    sender = await broker.client()
    for number in range(count):
        sender.send(f"topic://t.{number}", f"{number}", retain=True, **more)
    await broker.settle()
    return sender


def kinds(client: Client, key: str | None = None) -> list[tuple[str, str, bool]]:
    """(topic, body, retained) of what was delivered, in order."""
    return [
        (m.message.destination[8:], m.message.body.decode(), m.message.retained)
        for found, m in client.deliveries
        if key in (None, found)
    ]


def all_of(count: int) -> list[tuple[str, str, bool]]:
    return [(f"t.{number}", f"{number}", True) for number in range(count)]


def check_nothing_is_under_way(broker: Broker) -> None:
    assert broker.core.deliveries.active == {}
    assert broker.core.publisher.detours == set()
    assert broker.core.retained.on_new_number is None


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("durable_name", ["", "s"])
async def test_all_are_delivered_each_once_and_no_turn_holds_more_than_a_chunk(
    qos: int, durable_name: str
) -> None:
    """Only what has to outlive the connection is stored once more."""
    is_stored = qos == 1 and bool(durable_name)

    async with Broker() as broker:
        await retain(broker, 2500, qos=1)
        client = await broker.client("mqtt", "c", session_expiry=100 if durable_name else 0)
        largest = 0

        def deliver(_key: str, messages: Sequence[StoredMessage]) -> None:
            nonlocal largest
            largest = max(largest, len(messages))
            if qos:
                client.ack_all()

        client.on_deliver = deliver
        written = len(broker.store.batches)
        client.subscribe(
            "topic://>",
            qos=qos,
            retain_handling=SEND,
            token="suback",
            durable_name=durable_name,
            prefetch_count=3000,
        )
        await broker.settle()
        assert client.events[0] == "suback"
        assert kinds(client) == all_of(2500)
        added = [
            sum(isinstance(operation, AddMessage) for operation in batch)
            for batch in broker.store.batches[written:]
        ]
        assert [n for n in added if n] == ([1000, 1000, 500] if is_stored else [])
        assert largest == 1000
        check_nothing_is_under_way(broker)


async def test_a_client_that_reads_slowly_is_given_no_more_than_it_takes() -> None:
    async with Broker() as broker:
        await retain(broker, 10_000)
        client = await broker.client("mqtt", "c")
        client.on_deliver = lambda _key, _messages: client.connection.writable(False)
        client.subscribe("topic://>", qos=0, retain_handling=SEND)
        pending_list = client.connection.consumers["s"].first_list
        for turn in range(1, 11):
            await broker.settle()
            assert len(client.deliveries) == 1000 * turn
            assert pending_list.cursor.size <= 1000
            client.connection.writable(True)
        await broker.settle()
        assert kinds(client) == all_of(10_000)
        check_nothing_is_under_way(broker)


async def test_messages_of_quality_0_wait_for_the_client_of_a_stored_subscription() -> None:
    """They are not stored for it, so what does not fit into the socket would be lost."""

    async with Broker() as broker:
        await retain(broker, 2500, qos=0)
        client = await broker.client("mqtt", "c")
        client.on_deliver = lambda _key, _messages: client.connection.writable(False)
        client.subscribe("topic://>", qos=1, retain_handling=SEND)
        for _ in range(3):
            await broker.settle()
            client.connection.writable(True)
        await broker.settle()
        assert kinds(client) == all_of(2500)
        assert broker.core.flow.dropped == 0
        assert broker.store.operations(AddMessage) == []
        check_nothing_is_under_way(broker)


async def test_a_client_that_acknowledges_everything_gets_as_many_as_it_may_hold() -> None:
    async with Broker() as broker:
        await retain(broker, 25, qos=0)
        client = await broker.client()
        client.subscribe("topic://>", prefetch_count=10, retain_handling=SEND)
        for expected in (10, 20, 25):
            await broker.settle()
            assert len(client.deliveries) == expected
            client.ack_all()
        await broker.settle()
        assert kinds(client) == all_of(25)
        assert broker.core.flow.dropped == 0
        check_nothing_is_under_way(broker)


# --- beside live messages -------------------------------------------------------------------------


@pytest.mark.usefixtures("chunks_of_three")
@pytest.mark.parametrize("qos", [0, 1])
async def test_what_a_topic_retains_goes_out_before_what_is_published_to_it_now(qos: int) -> None:
    async with Broker() as broker:
        sender = await retain(broker, 10, qos=qos)
        client = await broker.client("mqtt", "c")
        client.on_deliver = lambda key, _: client.ack_all(key)
        client.subscribe("topic://t.*", qos=1, retain_handling=SEND)
        sender.send("topic://t.9", "live", qos=1)  # its turn has not come
        sender.send("topic://t.8", "new", qos=1, retain=True)
        sender.send("topic://t.8", "newer", qos=1, retain=True)
        sender.send("topic://t.7", b"", qos=1, retain=True)  # clears
        sender.send("topic://t.0", "live", qos=1)  # was handed over
        sender.send("topic://t.10", "first", qos=1, retain=True)
        await broker.settle()
        got = kinds(client)
        by_topic = {name: [item[1:] for item in got if item[0] == name] for name, _, _ in got}
        assert by_topic == {
            **{f"t.{number}": [(f"{number}", True)] for number in range(1, 7)},
            "t.0": [("0", True), ("live", False)],
            "t.7": [("7", True), ("", False)],
            "t.8": [("8", True), ("new", False), ("newer", False)],
            "t.9": [("9", True), ("live", False)],
            "t.10": [("first", False)],
        }
        check_nothing_is_under_way(broker)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["send", "retain", "clear", "commit"]), st.integers(0, 11)),
        st.tuples(st.just("turn"), st.integers(1, 6)),
        st.tuples(st.sampled_from(["pause", "go"]), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=examples(150), deadline=None)
@given(
    steps=STEPS,
    qos=st.sampled_from([0, 1]),
    durable_name=st.sampled_from(["", "s"]),
    turns_before=st.integers(0, 12),
    are_many=st.booleans(),
)
async def test_each_topic_arrives_in_the_order_in_which_it_was_published(
    steps: list[tuple[str, int]], qos: int, durable_name: str, turns_before: int, are_many: bool
) -> None:
    """Whatever is published, committed and cleared meanwhile, and however the client reads."""
    count = 10
    expected = {f"t.{number}": [(f"{number}", True)] for number in range(count)}

    async def main() -> None:
        async with Broker() as broker:
            sender = await retain(broker, count, qos=1)
            client = await broker.client("mqtt", "c", session_expiry=100 if qos else 0)
            if qos:
                client.on_deliver = lambda key, _: client.ack_all(key)
            client.subscribe(
                "topic://t.*",
                qos=qos,
                retain_handling=SEND,
                prefetch_count=4,
                durable_name=durable_name if qos else "",
            )
            for _ in range(turns_before):
                await asyncio.sleep(0)
            for position, (what, number) in enumerate(steps):
                if what == "turn":
                    for _ in range(number):
                        await asyncio.sleep(0)
                elif what in ("pause", "go"):
                    client.connection.writable(what == "go")
                else:
                    body = "" if what == "clear" else f"live {position}"
                    expected.setdefault(f"t.{number}", []).append((body, False))
                    transaction = "t" if what == "commit" else None
                    if transaction:
                        sender.connection.begin(transaction)
                    sender.send(
                        f"topic://t.{number}",
                        body,
                        qos=1,
                        retain=what != "send",
                        transaction=transaction,
                    )
                    if transaction:
                        sender.connection.commit(transaction)
            client.connection.writable(True)
            await broker.settle()
            got: dict[str, list[tuple[str, bool]]] = {}
            for name, body, retained in kinds(client):
                got.setdefault(name, []).append((body, retained))
            assert got == expected
            live = [m.sequence for _, m in client.deliveries if not m.message.retained]
            assert live == sorted(live)  # also of different topics
            check_nothing_is_under_way(broker)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retained_delivery, "CHUNK_COUNT_MAX", 3)
        if are_many:
            patch.setattr(retained_messages, "LOOKED_AT_MAX", -1)
        await main()


@pytest.mark.usefixtures("chunks_of_three")
async def test_a_topic_that_takes_the_place_of_a_cleared_one_is_not_handed_over() -> None:
    async with Broker() as broker:
        sender = await retain(broker, 8)
        client = await broker.client("mqtt", "c")
        client.subscribe("topic://t.*", qos=0, retain_handling=SEND)
        sender.send("topic://t.7", b"", retain=True)
        sender.send("topic://other", "elsewhere", retain=True)
        sender.send("topic://t.6", b"", retain=True)
        sender.send("topic://t.new", "live", retain=True)
        assert broker.core.retained.number_of("topic://other") == 7
        await broker.settle()
        assert sorted(kinds(client)) == sorted(
            [*all_of(8), ("t.7", "", False), ("t.6", "", False), ("t.new", "live", False)]
        )


@pytest.mark.usefixtures("chunks_of_three")
@pytest.mark.parametrize("is_dropped", [False, True], ids=["to come", "to come again"])
async def test_a_topic_that_takes_the_place_of_an_expired_one_is_not_handed_over(
    *, is_dropped: bool
) -> None:
    """Nobody published to the expired one, so nobody said that its turn is over."""
    expired = 0 if is_dropped else 7

    async with Broker() as broker:
        sender = await retain(broker, 8, qos=1)
        sender.send(f"topic://t.{expired}", "x", retain=True, qos=1, expires_at=START_US + 100_000)
        await broker.settle()
        client = await broker.client("mqtt", "c", session_expiry=100)
        client.on_deliver = lambda key, _: client.ack_all(key)
        client.subscribe("topic://t.*", qos=1, retain_handling=SEND, durable_name="s")
        if is_dropped:
            broker.store.refuse(1)
            await broker.core.writer.drained()
        assert broker.core.retained.expire(START_US + 100_000)
        core = broker.core
        core.retained.replace(message("topic://other", "elsewhere", qos=1))
        assert core.retained.number_of("topic://other") == expired
        await asyncio.sleep(10)
        await broker.settle()
        wanted = [item for item in all_of(8) if item[0] != f"t.{expired}"]
        assert sorted(kinds(client)) == wanted


@pytest.mark.usefixtures("chunks_of_three")
async def test_what_is_to_come_again_goes_out_before_what_is_published_now_too() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retained_delivery, "RETRY_S", 5.0)
        async with Broker() as broker:
            sender = await retain(broker, 5, qos=1)
            client = await broker.client("mqtt", "c", session_expiry=100)
            client.on_deliver = lambda key, _: client.ack_all(key)
            client.subscribe("topic://t.*", qos=1, retain_handling=SEND, durable_name="s")
            broker.store.refuse(1)
            await broker.core.writer.drained()
            await asyncio.sleep(2)  # the store accepts messages again, but the delivery still waits
            assert client.deliveries == []
            sender.send("topic://t.1", "live", qos=1)
            await broker.settle()
            assert kinds(client) == [("t.1", "1", True), ("t.1", "live", False)]
            await asyncio.sleep(10)
            await broker.settle()
            assert sorted(kinds(client)) == sorted([*all_of(5), ("t.1", "live", False)])
            check_nothing_is_under_way(broker)


async def test_what_waits_for_a_client_without_a_session_is_in_front_when_it_asks_again() -> None:
    """Nothing goes past messages that are on their way to the subscription already."""

    async with Broker() as broker:
        sender = await retain(broker, 2, qos=1)
        client = await broker.client("mqtt", "c")
        client.subscribe("topic://t.*", qos=1, prefetch_count=1)
        await broker.settle()
        for body in ("1st", "2nd", "3rd"):
            sender.send("topic://t.0", body, qos=1, retain=True)
        await asyncio.sleep(0)  # accepted, and not durable yet
        client.subscribe("topic://t.*", qos=1, prefetch_count=1, retain_handling=SEND)
        for _ in range(8):
            await broker.settle()
            client.ack_all()
        assert [item[1:] for item in kinds(client) if item[0] == "t.0"] == [
            ("1st", False),
            ("2nd", False),
            ("3rd", False),
            ("3rd", True),
        ]
        check_nothing_is_under_way(broker)


async def test_what_a_client_without_a_session_was_lent_counts_until_it_is_acknowledged() -> None:
    async with Broker() as broker:
        await retain(broker, 10, qos=1)
        client = await broker.client("mqtt", "c")
        client.subscribe("topic://t.*", qos=1, prefetch_count=4, retain_handling=SEND)
        await broker.settle()
        assert kinds(client) == all_of(10)[:4]
        client.ack_all()
        await broker.settle()
        assert kinds(client) == all_of(10)[:8]
        client.connection.disconnect(graceful=False)
        await broker.settle()
        assert broker.store.operations(AddMessage) == []
        check_nothing_is_under_way(broker)


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
async def test_it_ends_with_the_subscription(qos: int) -> None:
    async with Broker() as broker:
        await retain(broker, 5000, qos=1)
        client = await broker.client("mqtt", "c")
        client.subscribe("topic://>", qos=qos, retain_handling=SEND)
        client.connection.unsubscribe("s")
        await broker.settle()
        assert client.deliveries == []
        assert broker.store.operations(AddMessage) == []
        check_nothing_is_under_way(broker)


async def back_after_a_kill(broker: Broker) -> Client:
    """The client of a stored session, with all that it was given."""
    await broker.kill()
    client = await broker.client("mqtt", "c", session_expiry=100, clean_start=False, resume=False)
    client.on_deliver = lambda key, _: client.ack_all(key)
    client.connection.resume()
    await broker.settle()
    return client


async def test_a_stored_session_gets_all_of_them_also_when_its_client_leaves_at_once() -> None:
    async with Broker() as broker:
        await retain(broker, 2500, qos=1)
        client = await broker.client("mqtt", "c", session_expiry=100)
        client.subscribe("topic://>", qos=1, retain_handling=SEND, durable_name="s")
        client.connection.disconnect(graceful=True)
        await broker.settle()
        check_nothing_is_under_way(broker)
        again = await back_after_a_kill(broker)
        assert kinds(again) == all_of(2500)


@pytest.mark.usefixtures("chunks_of_three")
@pytest.mark.parametrize("is_cleared", [False, True])
async def test_a_stored_session_is_given_them_again_when_the_gateway_was_killed_meanwhile(
    *, is_cleared: bool
) -> None:
    """Its SUBSCRIBE was confirmed, and it will not subscribe again."""

    async with Broker() as broker:
        sender = await retain(broker, 10, qos=1)
        client = await broker.client("mqtt", "c", session_expiry=100)
        options = {"id": "7"}
        client.subscribe(
            "topic://>", "s", "suback", qos=1, retain_handling=SEND, durable_name="s",
            options=options,
        )  # fmt: skip
        while "suback" not in client.confirmations:
            await asyncio.sleep(0)
        client.on_deliver = None
        stored = list(broker.contents.subscriptions.values())
        assert [found.options["id"] for found in stored] == ["7"]
        if is_cleared:
            broker.contents.retained.clear()
        added = len(broker.store.operations(AddMessage))
        assert 0 < added < 10
        del sender
        again = await back_after_a_kill(broker)
        assert kinds(again) == [*all_of(added), *([] if is_cleared else all_of(10))]
        (subscription,) = broker.contents.subscriptions.values()
        assert subscription.options == options
        check_nothing_is_under_way(broker)
        await broker.kill()
        assert broker.core.deliveries.active == {}  # once is enough


@pytest.mark.usefixtures("chunks_of_three")
async def test_a_repeated_subscription_is_given_all_of_them_again() -> None:
    async with Broker() as broker:
        await retain(broker, 8)
        client = await broker.client("mqtt", "c")
        for _ in range(2):
            client.subscribe("topic://t.*", qos=0, retain_handling=SEND)
        await broker.settle()
        assert kinds(client) == [*all_of(3), *all_of(8)]  # [MQTT-3.8.4-4]
        check_nothing_is_under_way(broker)


# --- what is not handed over ----------------------------------------------------------------------


async def test_expired_ones_and_the_clients_own_where_it_does_not_want_them_are_left_out() -> None:
    async with Broker() as broker:
        sender = await broker.client()
        own = await broker.client("mqtt", "c")
        sender.send("topic://t.0", "0", retain=True, client_id="other")
        own.send("topic://t.1", "1", retain=True, client_id="c", protocol="mqtt")
        sender.send("topic://t.2", "2", retain=True, expires_at=START_US)
        await broker.settle()
        client = await broker.client("mqtt", "c")
        client.subscribe("topic://t.*", qos=0, no_local=True, retain_handling=SEND)
        await broker.settle()
        assert kinds(client) == all_of(1)  # [MQTT-3.8.3-3] of 5.0
        check_nothing_is_under_way(broker)


async def test_a_long_row_of_expired_ones_is_passed_over_in_several_turns() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retained_delivery, "CHUNK_LOOKED_AT_MAX", 7)
        async with Broker() as broker:
            sender = await retain(broker, 100, expires_at=START_US)
            sender.send("topic://t.0", "0", retain=True, expires_at=0)
            sender.send("topic://t.last", "last", retain=True)
            await broker.settle()
            client = await broker.client("mqtt", "c")
            client.subscribe("topic://t.*", qos=0, retain_handling=SEND)
            await broker.settle()
            assert kinds(client) == [*all_of(1), ("t.last", "last", True)]
            check_nothing_is_under_way(broker)


# --- trouble --------------------------------------------------------------------------------------


async def test_a_chunk_that_found_no_room_in_the_store_comes_later() -> None:
    async with Broker() as broker:
        sender = await retain(broker, 2500, qos=1)
        client = await broker.client("mqtt", "c")
        client.on_deliver = lambda key, _: client.ack_all(key)
        client.subscribe("topic://>", qos=1, retain_handling=SEND)
        broker.store.refuse(2)
        sender.send("topic://t.2400", "live", "lost", qos=1)
        await broker.core.writer.drained()
        assert [token for token, _ in sender.failures] == ["lost"]
        await asyncio.sleep(10)
        await broker.settle()
        assert sorted(kinds(client)) == sorted(all_of(2500))
        check_nothing_is_under_way(broker)


async def test_it_ends_when_the_store_is_broken(logged_errors: list[str]) -> None:
    logged_errors.append("store=read-only")

    async with Broker() as broker:
        await retain(broker, 2500, qos=1)
        client = await broker.client("mqtt", "c")
        broker.store.error = StoreIOError("damaged")
        client.subscribe("topic://>", qos=1, retain_handling=SEND)
        await asyncio.sleep(10)
        check_nothing_is_under_way(broker)
        assert client.deliveries == []


async def test_a_delivery_waits_while_its_subscription_is_at_its_limit() -> None:
    policy = DestinationPolicy(
        match=">", subscription_messages_max=5, subscription_overflow="refuse"
    )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retained_delivery, "CHUNK_COUNT_MAX", 3)
        async with Broker(policy) as broker:
            await retain(broker, 12, qos=1)
            client = await broker.client("mqtt", "c", session_expiry=100)
            client.subscribe(
                "topic://>", qos=1, retain_handling=SEND, durable_name="s", prefetch_count=1
            )
            await broker.settle()
            assert len(broker.store.operations(AddMessage)) == 6  # one of them is in flight
            client.on_deliver = lambda key, _: client.ack_all(key)
            client.ack_all()
            await broker.settle()
            assert kinds(client) == all_of(12)


async def test_nothing_is_written_for_chunks_that_are_not_stored() -> None:
    async with Broker() as broker:
        await retain(broker, 1500)
        client = await broker.client("mqtt", "c")
        written = len(broker.store.batches)
        client.subscribe("topic://>", qos=0, retain_handling=SEND)
        await broker.settle()
        assert len(client.deliveries) == 1500
        assert Durability.SYNCED not in broker.store.durabilities[written:]
