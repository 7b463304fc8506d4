"""A rule says that it is connected when messages flow: subscribed at the other broker, and here."""

from __future__ import annotations

import asyncio

from fake_broker import fake_broker, receipt_of
from two_gateways import rule, take
from wire import Frame, frame

from tidegate.spi.operate import BridgeRow, ListBridges, ListEvents
from tidegate.testing.embedded import EmbeddedGateway

from .test_handing_over import ask
from .test_parking import until

IN = rule("in", "in", "/queue/in", "queue://in")


def bridge(port: int, rules: str, more: str = "") -> str:
    """TOML of a bridge to *port*."""
    return (
        f'[[extensions]]\nplugin = "bridge"\nname = "next"\nreconnect_min = "10ms"\nreconnect_max = "10ms"\n'
        f'remote = "stomp://127.0.0.1:{port}"\n{more}\n{rules}'
    )


async def said(gateway: EmbeddedGateway) -> list[str]:
    """The events of its bridges."""
    rows = (await ask(gateway, ListEvents())).rows
    return [row.event.value for row in rows if row.event.value.startswith("bridge")]


async def test_a_rule_in_is_connected_when_its_subscription_is_confirmed_there() -> None:
    async with (
        fake_broker(lambda came: []) as old,
        EmbeddedGateway(bridge(old.port, IN)) as here,
    ):
        subscribe = await old.until("SUBSCRIBE")
        (row,) = (await ask(here, ListBridges())).rows
        assert (row.server, row.problem) == ("", "")
        assert await said(here) == []
        old.say(*receipt_of(subscribe))
        row = await until(here, lambda row: row.is_connected)
        assert row.server == old.server
        assert await said(here) == ["bridge-connected"]


async def test_a_message_that_comes_before_the_receipt_is_one_that_flows() -> None:
    """And with a full window nothing is read, so the receipt may come late."""

    def answer(came: Frame) -> list[bytes]:
        headers = {"subscription": "bridge", "message_id": "m", "ack": "m", "timestamp": "1"}
        message = frame("MESSAGE", b"hi", destination="/queue/in", **headers)
        return [message] if came.command == "SUBSCRIBE" else []

    async with (
        fake_broker(answer) as old,
        EmbeddedGateway(bridge(old.port, IN, 'connect_timeout = "200ms"')) as here,
    ):
        await until(here, lambda row: row.is_connected)
        assert len(await take(here.stomp_port, "/queue/in", b"hi")) == 1
        assert (await old.until("ACK")).headers["id"] == "m"


async def test_a_subscription_that_is_refused_is_said_once_and_was_never_connected() -> None:
    def answer(came: Frame) -> list[bytes] | None:
        if came.command != "SUBSCRIBE":
            return []
        asyncio.get_running_loop().call_soon(
            old.say,
            frame("ERROR", receipt_id=came.headers["receipt"], message="not authorized to read"),
        )
        return []

    async with fake_broker(answer) as old, EmbeddedGateway(bridge(old.port, IN)) as here:
        row: BridgeRow = await until(here, lambda row: row.failures > 3)
        assert "refuses to subscribe to '/queue/in': not authorized to read" in row.problem
        assert "give the bridge's user the right" in row.remedy
        assert await said(here) == ["bridge-lost"]
