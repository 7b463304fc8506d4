"""Few topics that were found, or all of them one by one: the same are handed over, in the same order."""

from __future__ import annotations

import asyncio

import pytest
from broker_harness import Broker, message
from hypothesis import given
from hypothesis import strategies as st

from tidegate.broker.publish import retained_topics
from tidegate.broker.publish.retained_topics import FewTopics, ManyTopics, Topics
from tidegate.broker.route import retained as retained_messages
from tidegate.broker.route import topic_tree
from tidegate.broker.route.retained import RetainedMessages
from tidegate.broker.turn import walks
from tidegate.spi import Message, RetainHandling

NAMES = st.sampled_from(["a", "b", "a.b", "a.c", "b.c", "$SYS.a", "a.b.c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), NAMES),
        st.tuples(st.just("clear"), NAMES),
        st.tuples(st.just("expire"), NAMES),
        st.tuples(st.just("next"), st.just("")),
    ),
    max_size=30,
)


def taken(topics: Topics, retained: RetainedMessages) -> str:
    """The next one that is handed over; "": there is none."""
    while (number := topics.next()) is not None:
        found = retained.at(number)
        topics.advance()
        if found is not None and topics.covers(found.destination):
            return found.destination
    return ""


@given(
    st.lists(NAMES, unique=True), st.sampled_from([">", "*", "a.>", "*.c", "$SYS.>", "a"]), STEPS
)
def test_both_hand_over_the_same(
    before: list[str], filter_name: str, steps: list[tuple[str, str]]
) -> None:
    retained = RetainedMessages(limit_bytes=1 << 20)
    for name in before:
        retained.replace(message(f"topic://{name}", "x"))
    numbers = retained.numbers_matching(filter_name)
    assert numbers is not None
    both: list[Topics] = [FewTopics(numbers), ManyTopics(retained, filter_name)]

    def leave_out(number: int) -> None:
        for topics in both:
            topics.leave_out(number)

    retained.on_new_number = leave_out
    for what, name in steps:
        if what == "next":
            first, second = (taken(topics, retained) for topics in both)
            assert first == second
            continue
        destination = f"topic://{name}"
        number = retained.number_of(destination)
        if number is not None and what != "expire":  # a publish: it goes out before
            first, second = (topics.is_to_come(number) for topics in both)
            assert first == second
            leave_out(number)
        retained.replace(Message(destination, b"x" if what == "set" else b""))
    while first := taken(both[0], retained):
        assert first == taken(both[1], retained)
    assert not taken(both[1], retained)
    assert [topics.has_more() for topics in both] == [False, False]


@pytest.mark.parametrize("is_sliced", [True, False])
async def test_a_subscription_looks_at_few_topics_at_once(
    is_sliced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does SUBSCRIBE wait until all that it covers were found."""
    if not is_sliced:
        monkeypatch.setattr(retained_messages, "LOOKED_AT_MAX", 1 << 30)
    looked_at = 0
    is_covered, covered = ManyTopics.covers, topic_tree._covered  # pyright: ignore[reportPrivateUsage]

    def count(self: ManyTopics, destination: str) -> bool:
        nonlocal looked_at
        looked_at += 1
        return is_covered(self, destination)

    def count_leaves(leaves: list[str], *more: object) -> list[str]:
        nonlocal looked_at
        looked_at += len(leaves)
        return covered(leaves, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(retained_topics.ManyTopics, "covers", count)
    monkeypatch.setattr(topic_tree, "_covered", count_leaves)
    async with Broker() as broker:
        for number in range(9000):
            broker.core.retained.replace(message(f"topic://t{number}.x", "x"))
        broker.core.retained.replace(message("topic://last.y", "y"))
        client = await broker.client("mqtt", "c")
        looked_at = 0
        client.subscribe("topic://*.y", qos=0, retain_handling=RetainHandling.SEND)
        most, before = looked_at, looked_at
        while not client.deliveries:
            await asyncio.sleep(0)
            most, before = max(most, looked_at - before), looked_at
        assert most <= 4000 if is_sliced else most >= 9000
        assert client.bodies() == [b"y"]


@pytest.mark.parametrize("filter_name", [">", "*.b", "a.>"])
async def test_of_very_many_queues_a_filter_gets_those_that_it_covers(
    filter_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[list[str]] = []
    for looked_at_max in (1 << 30, -1):
        monkeypatch.setattr("tidegate.broker.queues.LOOKED_AT_MAX", looked_at_max)
        async with Broker() as broker:
            sender = await broker.client()
            names = [f"{first}.{second}" for first in "abc" for second in "abc"]
            for name in names:
                sender.send(f"queue://{name}", name)
            temporary = sender.connection.make_temporary("queue://temp-queue.t")
            sender.send(temporary, "not this one")
            client = await broker.client()
            client.subscribe(f"queue://{filter_name}")
            await broker.settle()
            wanted.append(sorted(body.decode() for body in client.bodies()))
            client.ack_all()
    assert wanted[0] == wanted[1] != []


@pytest.mark.parametrize("is_sliced", [True, False])
async def test_a_filter_looks_at_few_queues_at_once(
    is_sliced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "SLICE_S", 0)
    if not is_sliced:
        monkeypatch.setattr("tidegate.broker.queues.STEP_LISTS", 1 << 30)
    looked_at = 0
    monkeypatch.setattr("tidegate.broker.queues.LOOKED_AT_MAX", 10)

    def is_covered(filter_name: str, queue: str) -> bool:
        nonlocal looked_at
        looked_at += 1
        return False

    monkeypatch.setattr("tidegate.broker.queues._is_covered", is_covered)
    async with Broker() as broker:
        sender = await broker.client()
        for number in range(500):
            sender.send(f"queue://{number}", "x")
        await broker.settle()
        client = await broker.client()
        client.subscribe("queue://*")
        assert looked_at == (64 if is_sliced else 500)
        await broker.settle()
        while looked_at < 500:
            await asyncio.sleep(0)
