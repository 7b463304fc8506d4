"""What real brokers do with a message that they refuse, played back: who is named, what is put aside, what they get twice."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from fake_broker import fake_broker, receipt_of
from two_gateways import produce, rule, take
from wire import Frame, frame

from tidegate.testing.embedded import EmbeddedGateway

from .test_connected import bridge, said
from .test_parking import until

OUT = rule("out", "out", "/queue/out", "queue://out")
BAD = b"bad"
BODIES = [
    *[b"%d" % number for number in range(20)],
    BAD,
    *[b"a%d" % number for number in range(20)],
]


async def test_a_broker_that_closes_without_a_word_gets_what_is_behind_a_few_times_and_not_for_ever() -> (
    None
):
    """RabbitMQ 3.10 with max-length and reject-publish: no ERROR and no receipt, and what came behind is in its queue."""
    taken: Counter[bytes] = Counter()
    refused = 0

    def answer(came: Frame) -> list[bytes] | None:
        nonlocal refused
        if came.command != "SEND":
            return []
        if came.body == BAD:
            refused += 1
            is_over.add(id(asyncio.current_task()))
        else:
            taken[came.body] += 1
        # It reads on for a moment, and says nothing any more.
        if id(asyncio.current_task()) not in is_over:
            return receipt_of(came)
        asyncio.get_running_loop().call_later(0.02, broker.connections[-1].close)
        return []

    is_over: set[int] = set()
    async with (
        fake_broker(answer, "RabbitMQ/3.10.8") as broker,
        EmbeddedGateway(bridge(broker.port, OUT, "window = 100")) as here,
    ):
        await until(here, lambda row: row.is_connected)
        await produce(here.stomp_port, "/queue/out", BODIES)
        row = await until(here, lambda row: row.refused_attempts > 10)
        assert (row.moved, row.on_the_way) == (20, 21)
        assert refused > 10
        assert max(taken.values()) <= 6  # 1, 2, 4, 8: until it is alone
        assert "closed the connection" in row.problem


async def test_what_it_closes_for_is_put_aside_when_one_behind_it_passes() -> None:
    def answer(came: Frame) -> list[bytes] | None:
        if came.command == "SEND" and came.body == BAD:
            return None
        return receipt_of(came)

    async with (
        fake_broker(answer, "RabbitMQ/3.10.8") as broker,
        EmbeddedGateway(bridge(broker.port, OUT, "park_after = 3")) as here,
    ):
        await produce(here.stomp_port, "/queue/out", BODIES)
        row = await until(here, lambda row: row.parked == 1 and row.moved == 40)
        assert row.on_the_way == 0
        (aside,) = await take(here.stomp_port, "/queue/parked.next.out", BAD)
        assert "closed the connection" in aside.headers["dead-letter-reason"]


@pytest.mark.parametrize("is_receipted", [True, False], ids=["named", "alone"])
async def test_the_words_of_artemis_are_told_once_and_without_the_message_in_them(
    is_receipted: bool,
) -> None:
    """Artemis 2.44: a full address (FAIL), or no right to send; another id in each."""
    number = 144

    def answer(came: Frame) -> list[bytes] | None:
        nonlocal number
        if came.command != "SEND" or came.body != BAD:
            return receipt_of(came)
        number += 1
        text = (
            f"AMQ339011 Error sending message CoreMessage[messageID={number}, durable=true, address=full.a, "
            "properties=TypedProperties[token=secret, content-length=3]]@1607078654"
        )
        more = {"receipt_id": came.headers["receipt"]} if is_receipted else {}
        broker.say(frame("ERROR", message=text, **more))
        return []

    async with (
        fake_broker(answer, "ActiveMQ-Artemis/2.44.0 ActiveMQ Artemis Messaging Engine") as broker,
        EmbeddedGateway(bridge(broker.port, OUT, "park_after = 3")) as here,
    ):
        await produce(here.stomp_port, "/queue/out", [BAD])
        row = await until(here, lambda row: row.refused_attempts > 3)
        assert "AMQ339011 Error sending message CoreMessage […]: its log says why" in row.problem
        assert "secret" not in row.problem
        assert row.failures > 3
        assert row.problem_at > 0
        assert await said(here) == ["bridge-connected", "bridge-lost", "bridge-connected"]
        await produce(here.stomp_port, "/queue/out", [b"good"])
        await until(here, lambda row: row.parked == 1)
        (aside,) = await take(here.stomp_port, "/queue/parked.next.out", BAD)
        assert "secret" not in aside.headers["dead-letter-reason"]
