"""Publishes that somebody wants to see take a detour; the others do not notice."""

from __future__ import annotations

from typing import Any

import pytest
from broker_harness import Broker, key_of, message

from tidegate.broker.owner import Origin
from tidegate.config import DestinationPolicy
from tidegate.spi import FlowControlError, RequestError, RetainHandling

NOBODY = Origin("", "")
LIMITED = DestinationPolicy(match=">", subscription_messages_max=2, subscription_overflow="refuse")


async def fill(broker: Broker, **more: Any) -> None:
    away = await broker.client("mqtt", "away", session_expiry=1000)
    away.subscribe("topic://t", durable_name="s", qos=1, **more)
    away.connection.disconnect(graceful=True)
    sender = await broker.client()
    sender.send("topic://t", "1")
    sender.send("topic://t", "2")
    await broker.settle()


async def test_nobody_takes_a_detour_when_nothing_is_special() -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt", "c", session_expiry=1000)
        client.subscribe("topic://t", retain_handling=RetainHandling.SEND, durable_name="s")
        client.send("topic://t", "1", retain=True)
        await broker.settle()
        assert not broker.core.publisher.detours


async def test_a_route_that_nobody_limits_stays_what_it_is() -> None:
    async with Broker(LIMITED) as broker:
        await fill(broker)
        core = broker.core
        route = core.publisher.resolve("topic://u")
        assert core.publisher.route(message("topic://u", "x"), Origin("", "")) is route
        with pytest.raises(FlowControlError):
            core.publisher.route(message("topic://t", "x"), Origin("", ""))


async def test_checking_counts_what_goes_to_the_same_subscription_together() -> None:
    async with Broker(
        DestinationPolicy(match=">", subscription_messages_max=4, subscription_overflow="refuse")
    ) as broker:
        await fill(broker)
        core = broker.core
        two = [message("topic://t", "x")] * 2
        core.publisher.check_together(NOBODY, two)
        core.publisher.check_together(NOBODY, two)  # nothing was counted
        elsewhere = [message("topic://u", "x"), message("topic://t", "x", qos=0)]
        core.publisher.check_together(NOBODY, [*two, *elsewhere])
        with pytest.raises(FlowControlError):
            core.publisher.check_together(NOBODY, [*two, message("topic://t", "x")])


async def test_a_client_is_not_limited_by_a_subscription_that_does_not_want_its_messages() -> None:
    async with Broker(LIMITED) as broker:
        await fill(broker, no_local=True)
        core = broker.core
        core.publisher.check_together(
            Origin("anonymous", key_of("away")), [message("topic://t", "x")] * 9
        )
        client = await broker.client("mqtt", "away", session_expiry=1000, clean_start=False)
        client.connection.writable(False)
        client.send("topic://t", "own")
        with pytest.raises(FlowControlError):
            core.publisher.check_together(
                Origin("anonymous", "other"), [message("topic://t", "x")] * 9
            )


async def test_a_destination_that_is_gone_is_found_out() -> None:
    async with Broker() as broker:
        with pytest.raises(RequestError):
            broker.core.publisher.check_together(NOBODY, [message("queue://$temporary.gone", "x")])


async def test_a_queue_that_is_made_for_messages_together_is_their_senders() -> None:
    """As at the commit of a branch whose queue has gone meanwhile."""
    async with Broker() as broker:
        broker.core.publisher.check_together(Origin("ann", "k"), [message("queue://q", "x")])
        await broker.settle()
        assert broker.contents.destinations["queue://q"].owner == "ann"
