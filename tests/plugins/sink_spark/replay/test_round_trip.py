"""From clients through the sink's table and back: consumers of both protocols are given what they were given first."""

from __future__ import annotations

import asyncio
import importlib
import time
from pathlib import Path
from typing import Any

from mqtt_raw import V5, Client
from wire import Frame, StompClient

from tidegate.operator_socket import OperatorClient
from tidegate.testing.embedded import EmbeddedGateway
from tidegate_sink_spark import SparkSinkOptions
from tidegate_sink_spark.replay import Maker, Reader, Replayer, Selection, open_table

QUEUES = ("a", "b")


def publish(mqtt: Client, queue: str) -> None:
    """All that MQTT 5.0 can say."""
    properties: dict[str, Any] = {
        "payload_format": 1,
        "content_type": "text/plain",
        "correlation_data": b"\xff\x00",
        "response_topic": "$queue/answers",
        "user_property": [("k", "1"), ("other", "\u00e9"), ("k", "2")],
    }
    mqtt.publishes(f"$queue/{queue}", b"from mqtt", 1, **properties)


async def send(stomp: StompClient, queue: str) -> None:
    """All that STOMP has a word for."""
    headers = {
        "content-type": "text/x",
        "correlation-id": "base64:x",
        "reply-to": "/queue/answers",
        "priority": "7",
        "persistent": "true",
        "type": "Order",
        "mine": "yes",
    }
    stomp.send("SEND", b"from\0stomp", destination=f"/queue/{queue}", receipt="r", **headers)
    await stomp.receipt("r")


def plain_packet(packet: Any) -> tuple[Any, ...]:
    properties = dict(packet.props or {})
    users = properties.pop("user_property", [])
    kept = [pair for pair in users if not pair[0].startswith("replayed-")]
    return packet.topic, packet.body, packet.qos, packet.retain, properties, kept


def plain_frame(frame: Frame) -> tuple[Any, ...]:
    own = ("message-id", "ack", "subscription", "timestamp")  # the gateway takes it now
    headers = {
        name: value
        for name, value in frame.headers.items()
        if name not in own and not name.startswith("replayed-")
    }
    return headers, frame.body


def wait_for_rows(table: Path, count: int) -> None:
    deltalake: Any = importlib.import_module("deltalake")
    give_up_at = time.monotonic() + 120
    while time.monotonic() < give_up_at:
        if deltalake.DeltaTable.is_deltatable(str(table)):
            rows = deltalake.DeltaTable(str(table)).to_pyarrow_table(columns=["ack_seq"])
            if rows.num_rows >= count:
                return
        time.sleep(0.05)
    raise AssertionError("the sink has not written the rows")


async def test_consumers_of_both_protocols_see_what_they_saw_first(tmp_path: Path) -> None:
    table = tmp_path / "lake"
    sink = (
        '[[sinks]]\nplugin = "spark"\nengine = "deltalake"\nlayout = "plain"\n'
        f'table = "{table}"\ncommit_interval = "100ms"\nsegment_interval = "10ms"\n'
    )
    async with EmbeddedGateway(sink, data_directory=tmp_path / "gateway") as gateway:
        stomp = await StompClient.connect(gateway.stomp_port)
        mqtt = Client(gateway.mqtt_port, V5)
        try:
            await asyncio.to_thread(mqtt.connect, "m")
            for queue in QUEUES:
                await asyncio.to_thread(publish, mqtt, queue)
                await send(stomp, queue)
            stomp.send("SUBSCRIBE", id="b", destination="/queue/b", ack="client-individual")
            await asyncio.to_thread(mqtt.subscribe, "$queue/a", 1)

            async def taken() -> tuple[list[Any], list[Any]]:
                packets = [plain_packet(await asyncio.to_thread(mqtt.takes)) for _ in range(2)]
                frames: list[Any] = []
                for _ in range(2):
                    frame = await stomp.receive()
                    stomp.send("ACK", id=frame.headers["ack"])
                    frames.append(plain_frame(frame))
                return packets, frames

            first = await taken()
            await asyncio.to_thread(wait_for_rows, table, 4)

            def replay() -> int:
                options = SparkSinkOptions(table=str(table), engine="deltalake")
                with OperatorClient(tmp_path / "gateway") as operator:
                    reader = Reader(open_table(options, table), Selection())
                    return Replayer(operator, reader, Maker("lake", "r"), "all").run().count

            assert await asyncio.to_thread(replay) == 4
            packets, frames = await taken()
            assert sorted(packets, key=str) == sorted(first[0], key=str)
            assert sorted(frames, key=str) == sorted(first[1], key=str)
        finally:
            mqtt.drop()
            stomp.close()
