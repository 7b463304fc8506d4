"""Retained messages: what new subscriptions are given, and taking back what was not written."""

from __future__ import annotations

import gc

import pytest
from broker_harness import START_US, Broker, message, run

from tidegate.broker import _retained
from tidegate.broker._retained import RetainedMessages
from tidegate.spi import (
    AddMessage,
    ClearRetained,
    FlowControlError,
    RetainHandling,
    SetRetained,
)


def bodies(retained: RetainedMessages, filter_name: str = ">") -> list[bytes]:
    return [found.body for found in retained.matching(filter_name)]


def test_the_last_message_of_a_topic_is_kept_and_an_empty_one_clears_it() -> None:
    async def main() -> None:
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

    run(main())


def test_a_queue_retains_nothing() -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client()
            client.send("queue://q", "m", retain=True)
            await broker.settle()
            assert broker.store.operations(SetRetained) == []
            (added,) = broker.store.operations(AddMessage)
            assert not added.message.retain

    run(main())


def test_a_new_subscription_is_given_what_its_filter_covers_marked_as_retained() -> None:
    async def main() -> None:
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
            got = [(m.message.body, m.message.retain) for _, m in client.deliveries]
            assert sorted(got) == [(b"a.b", True), (b"a.c", True), (b"live", False)]
            client.ack_all()

    run(main())


def test_a_retained_message_is_stored_for_a_subscription_unless_it_is_delivered_at_most_once() -> (
    None
):
    async def main() -> None:
        async with Broker() as broker:
            sender = await broker.client()
            sender.send("topic://once", "0", retain=True, qos=0)
            sender.send("topic://more", "1", retain=True, qos=1)
            await broker.settle()
            client = await broker.client("mqtt", "c")
            for key, topic, qos in (("a", "once", 1), ("b", "more", 0), ("c", "more", 1)):
                client.subscribe(
                    f"topic://{topic}", key, qos=qos, retain_handling=RetainHandling.SEND
                )
            await broker.settle()
            assert len(client.deliveries) == 3
            (added,) = broker.store.operations(AddMessage)
            assert added.pending_lists == (client.connection._consumers["c"].lists[0].id,)

    run(main())


@pytest.mark.parametrize(
    ("handling", "times"),
    [
        (RetainHandling.SEND, 2),
        (RetainHandling.SEND_IF_NEW, 1),
        (RetainHandling.DO_NOT_SEND, 0),
    ],
)
def test_retain_handling_decides_what_a_repeated_subscription_is_given(
    handling: RetainHandling, times: int
) -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client("mqtt", "c")
            client.send("topic://t", "m", retain=True)
            await broker.settle()
            for _ in range(2):
                client.subscribe("topic://t", retain_handling=handling)
                await broker.settle()
            assert client.bodies() == [b"m"] * times

    run(main())


def test_a_client_that_retains_and_then_subscribes_in_one_turn_finds_its_message() -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client("mqtt", "c")
            client.send("topic://t", "m", retain=True)
            client.subscribe("topic://t", retain_handling=RetainHandling.SEND)
            await broker.settle()
            assert client.bodies() == [b"m"]

    run(main())


def test_a_retained_message_of_a_transaction_appears_with_its_commit() -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client()
            client.connection.begin("t")
            client.send("topic://t", "m", retain=True, transaction="t")
            await broker.settle()
            assert bodies(broker.core.retained) == []
            client.connection.commit("t")
            await broker.settle()
            assert bodies(broker.core.retained) == [b"m"]

    run(main())


# --- taking back ----------------------------------------------------------------------------------


def test_changes_are_taken_back_one_by_one_from_the_last() -> None:
    retained = RetainedMessages([message("topic://t", "old")])
    undo = [retained.replace(message("topic://t", body))[1] for body in ("1", "2", "")]
    for expected in (b"2", b"1", b"old"):
        step = undo.pop()
        assert step is not None
        step()
        assert bodies(retained) == [expected]


def test_an_earlier_change_that_is_taken_back_does_not_return_with_a_later_one() -> None:
    """Turn 1 sets A, turn 2 sets B; both fail, turn 1 first: neither may be left."""
    retained = RetainedMessages([message("topic://t", "old")])
    _, undo_a = retained.replace(message("topic://t", "A"))
    _, undo_b = retained.replace(message("topic://t", "B"))
    assert undo_a is not None
    assert undo_b is not None
    undo_a()
    assert bodies(retained) == [b"B"]  # B may still become durable
    undo_b()
    assert bodies(retained) == [b"old"]


def test_nothing_is_remembered_of_changes_that_are_durable() -> None:
    retained = RetainedMessages()
    for number in range(100):
        retained.replace(message("topic://t", f"{number}"))  # who could undo it is gone
    gc.collect()
    assert len(retained._latest) == 0
    assert bodies(retained) == [b"99"]
    assert len(retained) == 1


def test_retained_messages_are_limited_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_retained, "RETAINED_BYTES_MAX", 5000)

    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client()
            client.send("topic://a", "x" * 3000, retain=True)
            with pytest.raises(FlowControlError):
                client.send("topic://b", "x" * 3000, retain=True)
            client.send("topic://b", "x" * 3000)
            client.connection.begin("t")
            with pytest.raises(FlowControlError):
                client.send("topic://b", "x" * 3000, retain=True, transaction="t")
            client.send("topic://a", b"", retain=True)
            client.send("topic://b", "x" * 3000, retain=True)
            await broker.settle()
            assert [m.destination for m in broker.contents.retained.values()] == ["topic://b"]

    run(main())
