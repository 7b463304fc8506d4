"""From a destination to its lists: filters, overlap, order over several routes."""

from __future__ import annotations

import pytest
from broker_harness import Broker
from hypothesis import given
from hypothesis import strategies as st

from tidegate.broker.route.router import ROUTE_BYTES, ROUTES_CACHED_BYTES, FilterTree
from tidegate.spi import AddMessage, names, text_bytes


class FakeList:
    """Stands for a pending list: the tree only keeps it."""

    def __init__(self, name: str) -> None:
        self.name = name


LEVELS = st.sampled_from(["a", "b", "$SYS", ""])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map(".".join).filter(bool)
FILTERS = st.builds(
    lambda levels, last: ".".join([*levels, *last]),
    st.lists(st.sampled_from(["a", "b", "*", "$SYS", ""]), max_size=3),
    st.sampled_from([(">",), ("*",), ("a",), ()]),
).filter(bool)


@given(st.lists(FILTERS, max_size=12), st.lists(NAMES, min_size=1, max_size=8))
def test_the_tree_finds_exactly_the_filters_that_match_each_once(
    filters: list[str], found_names: list[str]
) -> None:
    tree = FilterTree()
    lists = [FakeList(text) for text in filters]
    for item in lists:
        tree.add(item.name, item)  # type: ignore[arg-type]  # a stand-in
    for name in found_names:
        got = sorted(id(item) for item in tree.match(name))
        wanted = sorted(id(item) for item in lists if names.matches(item.name, name))
        assert got == wanted


@given(st.lists(FILTERS, min_size=1, max_size=12), st.randoms())
def test_removed_filters_are_not_found_and_leave_nothing_behind(filters: list[str], random) -> None:  # type: ignore[no-untyped-def]
    tree = FilterTree()
    lists = [FakeList(text) for text in filters]
    for item in lists:
        tree.add(item.name, item)  # type: ignore[arg-type]
    random.shuffle(lists)
    while lists:
        gone = lists.pop()
        tree.remove(gone.name, gone)  # type: ignore[arg-type]
        tree.remove(gone.name, gone)  # type: ignore[arg-type]  # once more changes nothing
        for item in lists:
            assert item in list(tree.match(item.name.replace("*", "a").replace(">", "b"))) or (
                "$" in item.name
            )
    assert not tree._root.children


def test_a_first_level_wildcard_does_not_see_names_that_start_with_a_dollar() -> None:
    tree = FilterTree()
    everything = FakeList(">")
    tree.add(">", everything)  # type: ignore[arg-type]
    assert list(tree.match("a.b")) == [everything]
    assert list(tree.match("$SYS.a")) == []


async def test_a_queue_and_a_topic_of_the_same_name_are_two_destinations() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("queue://x", "q")
        client.subscribe("topic://x", "t")
        client.send("queue://x", "to the queue")
        client.send("topic://x", "to the topic")
        await broker.settle()
        assert client.bodies("q") == [b"to the queue"]
        assert client.bodies("t") == [b"to the topic"]


async def test_a_topic_message_reaches_every_subscription_and_is_stored_once() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("topic://a.b", "exact")
        client.subscribe("topic://a.*", "one")
        client.subscribe("topic://>", "all")
        client.subscribe("topic://a.c", "other")
        client.send("topic://a.b", "m")
        await broker.settle()
        assert {key: client.bodies(key) for key in ("exact", "one", "all", "other")} == {
            "exact": [b"m"],
            "one": [b"m"],
            "all": [b"m"],
            "other": [],
        }
        (added,) = broker.store.operations(AddMessage)
        assert len(added.pending_lists) == 3


async def test_a_topic_message_is_kept_for_nobody_who_subscribes_later() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.send("topic://t", "early", "r")
        client.subscribe("topic://t")
        client.send("topic://t", "late")
        await broker.settle()
        assert client.confirmations == ["r"]
        assert client.bodies() == [b"late"]


async def test_subscribing_and_unsubscribing_changes_known_routes_at_once() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.send("topic://a.b", "0")
        client.subscribe("topic://a.b", "exact")
        client.send("topic://a.b", "1")
        client.subscribe("topic://a.*", "wild")
        client.send("topic://a.b", "2")
        await broker.settle()
        client.connection.unsubscribe("exact")
        client.send("topic://a.b", "3")
        await broker.settle()
        client.connection.unsubscribe("wild")
        client.send("topic://a.b", "4")
        await broker.settle()
        assert client.bodies("wild") == [b"2", b"3"]
        assert client.bodies("exact") == [b"1", b"2"]


@pytest.mark.parametrize("acknowledge", [True, False])
async def test_a_filter_gets_the_messages_of_several_topics_in_the_order_they_were_sent(
    acknowledge: bool,
) -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("topic://t.*", acknowledge=acknowledge, prefetch_count=7)
        for number in range(60):
            client.send(f"topic://t.{number % 3}", f"{number}")
            if number == 20:
                await broker.settle()
        if acknowledge:
            client.acknowledge_at_once()
            await broker.settle()
            client.ack_all()
        await broker.settle()
        assert client.bodies() == [b"%d" % number for number in range(60)]


async def test_messages_of_both_kinds_of_qos_come_in_order() -> None:
    async with Broker() as broker:
        direct = await broker.client("mqtt", "direct")
        stored = await broker.client("mqtt", "stored")
        direct.subscribe("topic://t", qos=0)
        stored.subscribe("topic://t", qos=1)
        for number in range(10):
            direct.send("topic://t", f"{number}", qos=number % 2)
        await broker.settle()
        assert direct.bodies() == [b"%d" % number for number in range(10)]
        assert stored.bodies() == direct.bodies()


async def test_a_qos_0_message_goes_to_a_stored_subscription_directly_or_not_at_all() -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "c", clean_start=False, session_expiry=1000)
        client.subscribe("topic://t", "t", qos=1, durable_name="t")
        sender = await broker.client("mqtt", "s")
        sender.send("topic://t", "online", qos=0)
        await broker.settle()
        assert client.bodies() == [b"online"]
        assert broker.store.operations(AddMessage) == []
        assert not client.connection._transacting.has_in_flight()
        client.connection.disconnect(graceful=True)
        sender.send("topic://t", "offline, at most once", qos=0)
        sender.send("topic://t", "offline, at least once", qos=1)
        await broker.settle()
        again = await broker.client("mqtt", "c", clean_start=False, session_expiry=1000)
        await broker.settle()
        assert again.bodies() == [b"offline, at least once"]


async def test_overlapping_subscriptions_of_one_mqtt_session_deliver_once_at_the_highest_qos() -> (
    None
):
    async with Broker() as broker:
        client, other = await broker.client("mqtt", "c"), await broker.client("mqtt", "d")
        client.subscribe("topic://a.*", "low", qos=0)
        client.subscribe("topic://a.b", "high", qos=2)
        client.subscribe("topic://>", "middle", qos=1)
        other.subscribe("topic://>", "theirs", qos=0)
        client.send("topic://a.b", "m")
        client.send("topic://a.c", "n")
        await broker.settle()
        assert [(key, m.message.body) for key, m in client.deliveries] == [
            ("high", b"m"),
            ("middle", b"n"),
        ]
        assert other.bodies() == [b"m", b"n"]


async def test_overlapping_subscriptions_of_one_stomp_connection_are_separate() -> None:
    async with Broker() as broker:
        client = await broker.client("stomp", "c")
        client.subscribe("topic://a.*", "1")
        client.subscribe("topic://a.b", "2")
        client.send("topic://a.b", "m")
        await broker.settle()
        assert sorted(key for key, _ in client.deliveries) == ["1", "2"]


async def test_no_local_keeps_a_clients_own_messages_from_it() -> None:
    async with Broker() as broker:
        one, two = await broker.client("stomp", "one"), await broker.client("stomp", "two")
        one.subscribe("topic://t", no_local=True)
        two.subscribe("topic://t")
        for number in range(3):
            one.send("topic://t", f"from one {number}")
            two.send("topic://t", f"from two {number}")
        await broker.settle()
        assert one.bodies() == [b"from two %d" % number for number in range(3)]
        assert len(two.bodies()) == 6
        assert two.sequences() == sorted(two.sequences())


async def test_one_list_that_fails_does_not_keep_messages_from_the_others(
    bug: BaseException, logged_errors: list[str]
) -> None:
    logged_errors.append("handing out failed")

    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("topic://t", "bad")
        client.subscribe("topic://t", "good")
        await broker.settle()

        def broken(_messages: object) -> None:
            raise bug

        bad = client.connection.consumers["bad"].first_list
        bad_cursor = type("Broken", (), {"offer": staticmethod(broken), "is_full": False})()
        kept = bad.cursor
        bad.cursor = bad_cursor  # type: ignore[assignment]  # only what is called
        client.send("topic://t", "m", "r")
        client.send("queue://q", "n", "r2")
        await broker.settle(looks=False)
        assert client.bodies("good") == [b"m"]
        assert client.confirmations == ["r", "r2"]
        bad.cursor = kept


async def test_routes_of_topics_without_subscribers_do_not_pile_up_for_ever() -> None:
    async with Broker() as broker:
        for number in range(ROUTES_CACHED_BYTES // ROUTE_BYTES + 10):
            broker.core.publisher.resolve(f"topic://t{number}")
        routes = broker.core.destinations.routes
        assert 0 < sum(ROUTE_BYTES + text_bytes(name) for name in routes) <= ROUTES_CACHED_BYTES
