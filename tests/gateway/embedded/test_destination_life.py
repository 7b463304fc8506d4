"""What clients hear when an operator pauses or deletes a queue, and of queues that they may not make."""

from __future__ import annotations

import asyncio
from pathlib import Path

import mqtt_raw as raw
import pytest
from wire import StompClient

from tidegate.operator_socket import OperatorClient
from tidegate.spi.operate import (
    CreateDestination,
    DeleteDestination,
    DestinationPage,
    Done,
    ListDestinations,
    PauseDestination,
    Request,
    Side,
)
from tidegate.testing.embedded import EmbeddedGateway

CONFIG = """
[[destinations]]
match = "queue://closed.>"
auto_create = false

[[destinations]]
match = "queue://closed.made"
auto_create = false
"""


async def ask(directory: Path, request: Request) -> None:
    def asked() -> None:
        with OperatorClient(directory) as client:
            assert isinstance(client.ask(request).answer, Done)

    await asyncio.to_thread(asked)


def story(port: int, directory: Path) -> None:
    """Clients of MQTT 5.0 and of 3.1.1; runs in a thread."""
    five = raw.Client(port, raw.V5)
    five.connect("five")
    assert five.publishes("$queue/closed/made", b"0").code == 0
    assert five.publishes("$queue/closed/none", b"0").code == 0x90
    assert five.subscribe("$queue/closed/none", 1) == 0x83
    assert five.publishes("$queue/paused", b"0").code == 0x97
    assert five.subscribe("$queue/deleted", 1) == 1
    older = raw.Client(port)
    older.connect("older")
    assert older.subscribe("$queue/closed/none", 1) == 0x80
    assert older.subscribe("$queue/deleted", 1) == 1
    for number, topic in enumerate(("$queue/closed/none", "$queue/paused"), 1):
        refused = raw.Client(port)
        refused.connect(f"refused {number}")
        refused.publish(topic, b"0", qos=1, packet_id=1)
        assert refused.is_closed()
        refused.close()
    with OperatorClient(directory) as client:
        request = DeleteDestination("queue://deleted", with_consumers=True)
        assert isinstance(client.ask(request).answer, Done)
    assert five.receive(raw.DISCONNECT).code == 0x98
    assert five.is_closed()
    assert older.is_closed()
    five.close()
    older.close()


@pytest.mark.parametrize("store", ["journal", "jdbc"])
async def test_clients_are_told_in_the_words_of_their_protocol(tmp_path: Path, store: str) -> None:
    config = f'[store]\nplugin = "{store}"\n{CONFIG}'
    async with EmbeddedGateway(config, data_directory=tmp_path) as gateway:
        await ask(tmp_path, CreateDestination("queue://paused"))
        await ask(tmp_path, PauseDestination("queue://paused", (Side.PRODUCERS,)))
        await ask(tmp_path, CreateDestination("queue://deleted"))
        await asyncio.to_thread(story, gateway.mqtt_port, tmp_path)
        for frame, text in (
            (("SEND", "/queue/closed.none"), "clients must not create it"),
            (("SUBSCRIBE", "/queue/closed.none"), "clients must not create it"),
            (("SEND", "/queue/paused"), "paused its producers"),
        ):
            client = await StompClient.connect(gateway.stomp_port)
            client.send(frame[0], b"", destination=frame[1], id="1")
            error = await client.receive()
            assert error.command == "ERROR"
            assert text in error.headers["message"] + error.body.decode()
            await client.aclose()
        await gateway.restart()
        with OperatorClient(tmp_path) as client:
            answer = await asyncio.to_thread(client.ask, ListDestinations())
        assert isinstance(answer.answer, DestinationPage)
        rows = answer.answer.rows
        assert [(row.destination, row.producers_paused) for row in rows] == [
            ("queue://closed.made", False),
            ("queue://paused", True),
        ]
