"""What the broker minds of large messages: retained ones, and bodies for sinks."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from large_fakes import FakeBodies

from tidegate.broker.limits.acknowledged import OMITTED, AcknowledgedLog, whole
from tidegate.broker.publish.access import check_large
from tidegate.config import BrokerConfig
from tidegate.spi import (
    AcknowledgedMessage,
    AcknowledgedPage,
    CorruptRecordError,
    LargeBody,
    Message,
    RequestError,
    StoreCapabilities,
)

LARGE = LargeBody("k0", 10)


@pytest.mark.parametrize(
    "message",
    [
        Message("topic://t", b"", large=LARGE, retain=True),
        Message("topic://t", b"x", large=LARGE),
    ],
)
def test_what_would_lose_a_body_is_refused(message):
    with pytest.raises(RequestError):
        check_large(message)


@pytest.mark.parametrize(
    "message",
    [
        Message("topic://t", b"", large=LARGE),
        Message("topic://t", b"x", retain=True),
        Message("topic://t", b"", retain=True),
    ],
)
def test_everything_else_passes(message):
    check_large(message)


async def test_a_sink_gets_the_body_in_memory():
    bodies = FakeBodies()
    bodies.piece = 3
    message = Message("queue://q", b"", (("a", "b"),), large=bodies.holding(b"0123456789"))
    found = await whole(message, bodies, 10)
    assert found == Message("queue://q", b"0123456789", (("a", "b"),))
    assert bodies.readers[0].is_closed


async def test_a_page_of_the_log_has_its_bodies_one_after_the_other():
    bodies = FakeBodies()
    config = BrokerConfig(acknowledged_body_max=10)
    store = SimpleNamespace(capabilities=StoreCapabilities(True, large_bodies=bodies))
    log = AcknowledgedLog(cast(Any, store), config)
    messages = [
        Message("queue://q", b"", large=bodies.holding(b"0123456789")),
        Message("queue://q", b"small"),
        Message("queue://q", b"", large=bodies.holding(b"01234567890")),
    ]
    rows = [
        AcknowledgedMessage(number, number, message, 1, 0, 0, "", "", "")
        for number, message in enumerate(messages, 1)
    ]
    page = await log.with_bodies(AcknowledgedPage(rows, 3))
    assert [row.message.body for row in page.rows] == [b"0123456789", b"small", b""]
    assert page.rows[2].message.headers == ((OMITTED, "11"),)
    assert ([row.ack_sequence for row in page.rows], page.last) == ([1, 2, 3], 3)
    ordinary = AcknowledgedPage(rows[1:2], 3)
    assert await log.with_bodies(ordinary) is ordinary


async def test_a_body_above_the_limit_is_left_out_and_said_so(caplog):
    bodies = FakeBodies()
    message = Message("queue://q", b"", (("a", "b"),), large=bodies.holding(b"0123456789"))
    with caplog.at_level(logging.WARNING):
        found = await whole(message, bodies, 9)
    assert found == Message("queue://q", b"", (("a", "b"), (OMITTED, "10")))
    assert bodies.readers == []
    assert "acknowledged_body_max" in caplog.text


async def test_a_damaged_body_is_an_error_and_the_file_is_let_go():
    bodies = FakeBodies()
    bodies.piece, bodies.fails_at = 3, 3
    message = Message("queue://q", b"", large=bodies.holding(b"0123456789"))
    with pytest.raises(CorruptRecordError):
        await whole(message, bodies, 10)
    assert bodies.readers[0].is_closed
