"""Retained messages: what new subscriptions are given, and taking back what was not written."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from typing import Final

import pytest
from broker_harness import START_US, Broker, message
from hypothesis import given
from hypothesis import strategies as st

from tidegate.broker.route.retained import EXPIRE_COUNT_MAX, RetainedMessages
from tidegate.broker.route.topic_tree import BRANCH_BYTES
from tidegate.spi import (
    AddMessage,
    ClearRetained,
    FlowControlError,
    Message,
    RetainHandling,
    SetRetained,
    memory_bytes,
    names,
)

LIMIT: Final = 256 << 20


def bodies(retained: RetainedMessages, filter_name: str = ">") -> list[bytes]:
    found = [retained.at(number) for number in retained.numbers_matching(filter_name) or ()]
    return [message.body for message in found if message is not None]


def holding(messages: Iterable[Message], *, limit_bytes: int = LIMIT) -> RetainedMessages:
    retained = RetainedMessages(limit_bytes=limit_bytes)
    retained.recover(messages)
    return retained


async def test_the_last_message_of_a_topic_is_kept_and_an_empty_one_clears_it() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.send("topic://t", "1", retain=True)
        client.send("topic://t", "2", retain=True)
        client.send("topic://t", "not kept")
        client.send("topic://u", "u", retain=True)
        client.send("topic://u", b"", retain=True)
        client.send("topic://never-set", b"", retain=True)
        await broker.settle()
        assert [m.body for m in broker.contents.retained.values()] == [b"2"]
        assert len(broker.store.operations(ClearRetained)) == 1
        await broker.kill()
        assert bodies(broker.core.retained) == [b"2"]


async def test_a_queue_retains_nothing() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.send("queue://q", "m", retain=True)
        await broker.settle()
        assert broker.store.operations(SetRetained) == []
        (added,) = broker.store.operations(AddMessage)
        assert not added.message.retain


async def test_a_new_subscription_is_given_what_its_filter_covers_marked_as_retained() -> None:
    async with Broker() as broker:
        sender, client = await broker.client(), await broker.client("mqtt", "c")
        for name in ("a.b", "a.c", "b"):
            sender.send(f"topic://{name}", name, retain=True)
        sender.send("topic://a.d", "expired", retain=True, expires_at=START_US)
        await broker.settle()
        client.subscribe("topic://a.*", retain_handling=RetainHandling.SEND, token="suback")
        await broker.settle()
        sender.send("topic://a.b", "live", retain=True)
        await broker.settle()
        assert client.events[0] == "suback"
        got = [(m.message.body, m.message.retained) for _, m in client.deliveries]
        assert sorted(got) == [(b"a.b", True), (b"a.c", True), (b"live", False)]
        assert all(m.message.retain for _, m in client.deliveries)  # as it was published
        client.ack_all()


async def test_a_retained_message_is_stored_only_for_what_outlives_its_connection() -> None:
    async with Broker() as broker:
        sender = await broker.client()
        sender.send("topic://once", "0", retain=True, qos=0)
        sender.send("topic://more", "1", retain=True, qos=1)
        await broker.settle()
        client = await broker.client("mqtt", "c", session_expiry=100)
        for key, topic, qos in (("a", "once", 1), ("b", "more", 0), ("c", "more", 1)):
            client.subscribe(
                f"topic://{topic}",
                key,
                qos=qos,
                retain_handling=RetainHandling.SEND,
                durable_name=key,
            )
        clean = await broker.client("mqtt", "d")
        await broker.settle()
        clean.subscribe("topic://more", "d", qos=1, retain_handling=RetainHandling.SEND)
        await broker.settle()
        assert len(client.deliveries) == 3
        assert len(clean.deliveries) == 1
        (added,) = broker.store.operations(AddMessage)
        assert added.pending_lists == (client.connection.consumers["c"].first_list.id,)


@pytest.mark.parametrize(
    ("handling", "times"),
    [
        (RetainHandling.SEND, 2),
        (RetainHandling.SEND_IF_NEW, 1),
        (RetainHandling.DO_NOT_SEND, 0),
    ],
)
async def test_retain_handling_decides_what_a_repeated_subscription_is_given(
    handling: RetainHandling, times: int
) -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "c")
        client.send("topic://t", "m", retain=True)
        await broker.settle()
        for _ in range(2):
            client.subscribe("topic://t", retain_handling=handling)
            await broker.settle()
        assert client.bodies() == [b"m"] * times


async def test_a_client_that_retains_and_then_subscribes_in_one_turn_finds_its_message() -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "c")
        client.send("topic://t", "m", retain=True)
        client.subscribe("topic://t", retain_handling=RetainHandling.SEND)
        await broker.settle()
        assert client.bodies() == [b"m"]


async def test_a_retained_message_of_a_transaction_appears_with_its_commit() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.connection.begin("t")
        client.send("topic://t", "m", retain=True, transaction="t")
        await broker.settle()
        assert bodies(broker.core.retained) == []
        client.connection.commit("t")
        await broker.settle()
        assert bodies(broker.core.retained) == [b"m"]


# --- taking back ----------------------------------------------------------------------------------


def test_changes_are_taken_back_one_by_one_from_the_last() -> None:
    retained = holding([message("topic://t", "old")])
    undo = [retained.replace(message("topic://t", body))[1] for body in ("1", "2", "")]
    for expected in (b"2", b"1", b"old"):
        step = undo.pop()
        assert step is not None
        step()
        assert bodies(retained) == [expected]


def test_an_earlier_change_that_is_taken_back_does_not_return_with_a_later_one() -> None:
    """Turn 1 sets A, turn 2 sets B; both fail, turn 1 first: neither may be left."""
    retained = holding([message("topic://t", "old")])
    _, undo_a = retained.replace(message("topic://t", "A"))
    _, undo_b = retained.replace(message("topic://t", "B"))
    assert undo_a is not None
    assert undo_b is not None
    undo_a()
    assert bodies(retained) == [b"B"]  # B may still become durable
    undo_b()
    assert bodies(retained) == [b"old"]


def test_nothing_is_remembered_of_changes_that_are_durable() -> None:
    retained = RetainedMessages(limit_bytes=LIMIT)
    for number in range(100):
        retained.replace(message("topic://t", f"{number}"))  # who could undo it is gone
    gc.collect()
    assert len(retained._latest) == 0
    assert bodies(retained) == [b"99"]
    assert len(retained) == 1


# --- limits ---------------------------------------------------------------------------------------


async def test_retained_messages_are_limited_in_memory() -> None:
    async with Broker(retained_limit=5000) as broker:
        client = await broker.client()
        client.send("topic://a", "x" * 3000, retain=True)
        with pytest.raises(FlowControlError):
            client.send("topic://b", "x" * 3000, retain=True)
        client.send("topic://b", "x" * 3000)
        client.connection.begin("t")
        with pytest.raises(FlowControlError):
            client.send("topic://b", "x" * 3000, retain=True, transaction="t")
        client.send("topic://a", "y" * 3000, retain=True)  # instead of the one before
        client.send("topic://a", b"", retain=True)
        client.send("topic://b", "x" * 3000, retain=True)
        await broker.settle()
        assert [m.destination for m in broker.contents.retained.values()] == ["topic://b"]


def test_names_count_against_the_limit_and_so_do_the_levels_that_they_share() -> None:
    deep = ".".join(["x"] * 1000)
    retained = RetainedMessages(limit_bytes=LIMIT)
    retained.replace(message(f"topic://{deep}.y", "1"))
    one = retained.memory_bytes
    assert one > 2000
    retained.replace(message(f"topic://{deep}.z", "1"))
    assert retained.memory_bytes > 2 * one + 1000 * 200
    for end in ("y", "z"):
        retained.replace(message(f"topic://{deep}.{end}", b""))
    assert retained.memory_bytes == 0


def test_the_gateways_own_retained_messages_are_neither_stored_nor_counted() -> None:
    stored = message(
        "topic://$SYS.broker.uptime", "old"
    )  # by somebody, before it was the gateway's
    retained = holding([stored], limit_bytes=1)
    for value in ("1", "2"):
        retained.set_volatile(message("topic://$SYS.broker.uptime", value))
    assert bodies(retained, "$SYS.>") == [b"2"]
    assert bodies(retained, ">") == []  # [MQTT-4.7.2-1]
    assert (len(retained), retained.memory_bytes) == (0, 0)


# --- numbers --------------------------------------------------------------------------------------


def test_numbers_are_used_again_and_their_new_owners_are_announced() -> None:
    retained = RetainedMessages(limit_bytes=LIMIT)
    new: list[int] = []
    retained.on_new_number = new.append
    for name in ("a", "b", "c"):
        retained.replace(message(f"topic://{name}", name))
    assert list(retained.numbers_matching(">") or ()) == [0, 1, 2]
    retained.replace(message("topic://b", b""))
    assert retained.at(1) is None
    assert retained.number_of("topic://b") is None
    retained.replace(message("topic://d", "d"))
    retained.replace(message("topic://d", "e"))
    assert new == [0, 1, 2, 1]
    assert bodies(retained) == [b"a", b"e", b"c"]


NAMES = st.lists(st.sampled_from(["a", "b", "$x", ""]), min_size=1, max_size=3).map(".".join)


@given(st.lists(st.tuples(NAMES.filter(bool), st.sampled_from([b"", b"1", b"2"]))))
def test_retained_messages_are_the_last_of_each_topic(changes: list[tuple[str, bytes]]) -> None:
    retained = RetainedMessages(limit_bytes=LIMIT)
    expected: dict[str, bytes] = {}
    for name, body in changes:
        retained.replace(message(f"topic://{name}", body))
        expected.pop(name, None)
        if body:
            expected[name] = body
    for filter_name in (">", "*", "a.>", "$x.*", "*.b", "a"):
        wanted = [body for name, body in expected.items() if names.matches(filter_name, name)]
        assert sorted(bodies(retained, filter_name)) == sorted(wanted)
    assert len(retained) == len(expected)
    cost = sum(
        memory_bytes(found) + len(found.destination) for found in retained._messages if found
    )
    assert retained.memory_bytes == cost + retained._tree.branches * BRANCH_BYTES


# --- expiry ---------------------------------------------------------------------------------------


async def test_expired_messages_are_cleared_also_in_the_store() -> None:
    async with Broker() as broker:
        client = await broker.client()
        soon = START_US + 5_000_000
        client.send("topic://soon", "1", retain=True, expires_at=soon)
        client.send("topic://changed", "1", retain=True, expires_at=soon)
        client.send("topic://changed", "2", retain=True)
        client.send("topic://later", "3", retain=True, expires_at=START_US + 10**12)
        await broker.settle()
        await asyncio.sleep(7)
        await broker.settle()
        assert sorted(bodies(broker.core.retained)) == [b"2", b"3"]
        assert sorted(m.body for m in broker.contents.retained.values()) == [b"2", b"3"]
        cleared = broker.store.operations(ClearRetained)
        assert [operation.destination for operation in cleared] == ["topic://soon"]


def test_recovered_messages_expire_too() -> None:
    held = [message("topic://t", "1", expires_at=10), message("topic://u", "2")]
    retained = holding(held)
    assert retained.expire(9) == []
    assert retained.expire(10) == [ClearRetained("topic://t")]
    assert retained.expire(10) == []
    assert bodies(retained) == [b"2"]


def test_one_call_clears_a_bounded_number() -> None:
    count = EXPIRE_COUNT_MAX + 5
    held = [message(f"topic://t.{number}", "1", expires_at=1) for number in range(count)]
    retained = holding(held)
    assert len(retained.expire(2)) == EXPIRE_COUNT_MAX
    assert len(retained.expire(2)) == 5


def test_what_is_remembered_for_expiry_does_not_grow_with_publishes() -> None:
    retained = RetainedMessages(limit_bytes=LIMIT)
    for number in range(10_000):
        retained.replace(message("topic://t", "1", expires_at=number + 1))
    assert len(retained._expiry) < 2000
    assert retained.expire(9_999) == []
    assert retained.expire(10_000) == [ClearRetained("topic://t")]


def test_a_publish_that_is_taken_back_after_it_expired_brings_nothing_back() -> None:
    """The store is told to clear the topic: memory must not hold what the store does not."""
    retained = holding([message("topic://t", "old")])
    _, undo = retained.replace(message("topic://t", "short", expires_at=5))
    assert undo is not None
    assert retained.expire(6) == [ClearRetained("topic://t")]
    undo()
    assert bodies(retained) == []
