"""A drained gateway: nobody is let in, those that are there end their work and are told where to go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import mqtt_raw
import pytest

from tidegate.cli import main
from tidegate.operator_desk import Desk
from tidegate.spi import Identity
from tidegate.spi.clients.operators import Phase
from tidegate.spi.operate import (
    Drain,
    DrainState,
    GatewayState,
    ShowDrain,
    ShowOverview,
    Undrain,
    perform,
)
from tidegate.testing.embedded import EmbeddedGateway

ME = Identity("local:me", frozenset(), "", "", "operator")
REFERENCE = "b.example:1883"


class Stomp:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, command: str, *headers: str, body: str = "") -> None:
        self._writer.write("\n".join([command, *headers, "", body]).encode() + b"\0")

    async def frame(self) -> str:
        """ "" when it has ended."""
        async with asyncio.timeout(60):
            try:
                return (await self._reader.readuntil(b"\0"))[:-1].decode().lstrip("\n")
            except asyncio.IncompleteReadError:
                return ""

    def close(self) -> None:
        self._writer.close()


class World:
    def __init__(self, running: EmbeddedGateway) -> None:
        self.running = running
        self.open: list[Stomp] = []

    @property
    def core(self) -> Any:
        return self.running.gateway.broker

    async def ask(self, request: Drain | Undrain | ShowDrain | ShowOverview) -> Any:
        return await perform(self.running.gateway._desk.operator, ME, request)

    async def stomp(self, *, is_let_in: bool = True) -> Stomp:
        made = Stomp(*await asyncio.open_connection("127.0.0.1", self.running.stomp_port))
        self.open.append(made)
        made.send("CONNECT", "accept-version:1.2", "host:x")
        if is_let_in:
            assert (await made.frame()).startswith("CONNECTED\n")
        return made

    async def publish(self, *bodies: str) -> None:
        client = await self.stomp()
        for body in bodies:
            client.send("SEND", "destination:/queue/jobs", "receipt:r", body=body)
            assert (await client.frame()).startswith("RECEIPT\n")
        client.send("DISCONNECT", "receipt:bye")
        assert (await client.frame()).startswith("RECEIPT\n")
        assert await client.frame() == ""


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with EmbeddedGateway() as running:
        made = World(running)
        yield made
        for client in made.open:
            client.close()


@pytest.mark.parametrize(("is_moved", "reason"), [(False, 0x9C), (True, 0x9D)])
async def test_clients_of_mqtt_5_are_told_where_to_go(
    world: World, is_moved: bool, reason: int
) -> None:
    def connect(version: int) -> tuple[mqtt_raw.Client, mqtt_raw.Packet]:
        client = mqtt_raw.Client(world.running.mqtt_port, version)
        return client, client.connect(f"c{version}")

    there, _ = await asyncio.to_thread(connect, mqtt_raw.V5)
    old, _ = await asyncio.to_thread(connect, mqtt_raw.V311)
    await world.ask(Drain(REFERENCE, is_moved))
    told = await asyncio.to_thread(there.receive, mqtt_raw.DISCONNECT)
    assert told.code == reason
    assert (told.props or {})["server_reference"] == REFERENCE
    assert await asyncio.to_thread(old.is_closed)
    coming, connack = await asyncio.to_thread(connect, mqtt_raw.V5)
    assert connack.code == reason
    assert (connack.props or {})["server_reference"] == REFERENCE
    older, connack = await asyncio.to_thread(connect, mqtt_raw.V311)
    assert connack.code == 3  # "server unavailable"
    for client in (there, old, coming, older):
        client.close()


async def test_a_consumer_ends_its_work_and_is_given_nothing_more(world: World) -> None:
    consumer = await world.stomp()
    consumer.send(
        "SUBSCRIBE", "destination:/queue/jobs", "id:1", "ack:client-individual", "prefetch-count:1"
    )
    await world.publish("a", "b")
    message = await consumer.frame()
    assert message.endswith("\n\na")
    state = await world.ask(Drain(REFERENCE, timeout_s=3600))
    assert state.is_draining
    ack = next(line for line in message.splitlines() if line.startswith("ack:"))[4:]
    consumer.send("BEGIN", "transaction:t")
    consumer.send("ACK", f"id:{ack}", "transaction:t", "receipt:held")
    assert "receipt-id:held" in await consumer.frame()  # it is not ended: its transaction is open
    shown = await world.ask(ShowDrain())
    assert shown.connections == 1
    (stays,) = shown.still_here
    (connection,) = world.core.connections
    assert (stays.connection, stays.address) == (connection.number, connection.address)
    assert (stays.in_flight, stays.transactions) == (0, 1)
    consumer.send("COMMIT", "transaction:t", "receipt:done")
    assert "receipt-id:done" in await consumer.frame()
    told = await consumer.frame()
    assert told.startswith("ERROR\n")
    assert f"use {REFERENCE}" in told
    assert await consumer.frame() == ""
    while (await world.ask(ShowDrain())).connections:
        await asyncio.sleep(0.01)
    assert world.core.destinations.queues["queue://jobs"].cursor.size == 1  # b


async def test_nobody_is_let_in_and_it_is_not_ready(world: World) -> None:
    desk = world.running.gateway._desk
    assert isinstance(desk, Desk)
    assert desk.readiness().is_ready
    before = world.core.now()
    drained = await world.ask(Drain(timeout_s=60))
    assert before <= drained.since <= world.core.now()
    assert drained.ends_at == drained.since + 60_000_000
    assert drained == DrainState(True, 0, 0, since=drained.since, ends_at=drained.ends_at)
    again = await world.ask(Drain(REFERENCE, timeout_s=3600))  # it goes on, and has begun then
    assert again.since == drained.since
    assert again.ends_at > drained.ends_at
    assert desk.readiness().phase is Phase.DRAINING
    assert not desk.readiness().is_ready
    world.core.overload.is_on = True  # what else is wrong is said all the same
    (problem,) = desk.readiness().problems
    assert "overloaded" in problem
    world.core.overload.is_on = False
    overview = await world.ask(ShowOverview())
    assert overview.state is GatewayState.DRAINING
    refused = await (await world.stomp(is_let_in=False)).frame()
    assert refused.startswith("ERROR\n")
    assert "accepts no more clients" in refused
    assert await world.ask(Undrain()) == DrainState(False, 0, 0)
    assert desk.readiness().is_ready
    await world.publish("a")


async def test_when_the_time_is_over_all_go_and_what_they_had_stays(world: World) -> None:
    consumer = await world.stomp()
    consumer.send("SUBSCRIBE", "destination:/queue/jobs", "id:1", "ack:client")
    await world.publish("a", "b")
    assert (await consumer.frame()).endswith("\n\na")
    assert (await consumer.frame()).endswith("\n\nb")
    assert (await world.ask(Drain(timeout_s=0))).in_flight == 2
    assert (await consumer.frame()).startswith("ERROR\n")
    assert await consumer.frame() == ""
    await world.ask(Undrain())
    other = await world.stomp()
    other.send("SUBSCRIBE", "destination:/queue/jobs", "id:1", "ack:auto")
    assert [(await other.frame())[-1] for _ in "ab"] == ["a", "b"]


async def test_who_has_not_gone_is_served_again_when_it_is_over(world: World) -> None:
    consumer = await world.stomp()
    consumer.send(
        "SUBSCRIBE", "destination:/queue/jobs", "id:1", "ack:client-individual", "prefetch-count:2"
    )
    await world.publish("a")
    assert (await consumer.frame()).endswith("\n\na")
    await world.ask(Drain(timeout_s=3600))
    (connection,) = world.core.connections
    while connection.is_writable:
        await asyncio.sleep(0.01)
    queue = world.core.destinations.queues["queue://jobs"]
    world.core.draining.is_on = False  # so that somebody can publish
    await world.publish("b")
    world.core.draining.is_on = True
    assert queue.cursor.size == 1
    await world.ask(Undrain())
    assert (await consumer.frame()).endswith("\n\nb")


async def test_what_makes_no_sense_is_refused(world: World) -> None:
    from tidegate.spi import RequestError

    with pytest.raises(RequestError, match="`moved` needs a server_reference"):
        await world.ask(Drain(is_moved=True))
    with pytest.raises(RequestError, match="printable"):
        await world.ask(Drain("a\nb"))
    assert not (await world.ask(ShowDrain())).is_draining


async def test_it_is_a_command(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    config = world.running.data_directory / "gw.toml"
    config.write_text(f'[broker]\ndata_directory = "{world.running.data_directory}"\n')
    client = await world.stomp()
    arguments = ["--config", str(config)]
    drain = ["drain", "--server-reference", REFERENCE, "--timeout", "1min", *arguments]
    assert await asyncio.to_thread(main, drain) == 0
    assert (
        capsys.readouterr().out == "drained: no clients are connected, and new ones are refused\n"
    )
    assert REFERENCE in await client.frame()
    assert await asyncio.to_thread(main, ["undrain", *arguments]) == 0
    assert capsys.readouterr().out == "new clients are accepted again; 0 are connected\n"
    assert await asyncio.to_thread(main, ["drain", "--timeout", "soon", *arguments]) == 2
