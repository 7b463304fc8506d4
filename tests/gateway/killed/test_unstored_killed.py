"""Non-persistent messages over real sockets and real stores: the disk has nothing of them, and a
gateway that is killed has lost them and nothing else."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Final

import pytest
from gateway_process import GatewayProcess
from wire import (
    PUBACK,
    PUBLISH,
    SUBSCRIBE,
    MqttClient,
    StompClient,
    packet,
    parse_publish,
    text,
)

COUNT: Final = 200
#: A packet id that no message has.
BEHIND: Final = 60_000
#: Bodies of this kind are looked for in all files.
MARK: Final = b"need not be stored: "
STORED: Final = b"must be stored: "

TABLE: Final = """
[[destinations]]
match = "queue://spooled.>"
non_persistent = "spool"
memory_limit = "32kb"
"""


def in_mqtt(queue: str) -> str:
    return f"$queue/{queue.replace('.', '/')}"


def found_in(data: Path, mark: bytes) -> bool:
    """Whether any file has it. The largest are some megabytes."""
    return any(mark in path.read_bytes() for path in data.rglob("*") if path.is_file())


async def leave(client: MqttClient) -> None:
    """Close it, when all that it said was taken."""
    client.publish("behind/all/others", b"", qos=1, packet_id=BEHIND)
    while (answer := await client.receive()).kind != PUBACK or answer.packet_id != BEHIND:
        pass
    client.disconnect()
    await asyncio.gather(client.writer.wait_closed(), return_exceptions=True)


async def fill(gateway: GatewayProcess, queue: str) -> None:
    """Two producers, one with each protocol: every third message is persistent."""
    stomp = await StompClient.connect(gateway.stomp_port)
    for number in range(COUNT):
        mark, wish = (STORED, "true") if number % 3 == 0 else (MARK, "false")
        last = {"receipt": "r"} if number == COUNT - 1 else {}
        body = b"%s%d" % (mark, number)
        stomp.send("SEND", body, destination=f"/queue/{queue}", persistent=wish, **last)
    await stomp.receipt("r")
    await stomp.aclose()
    mqtt = await MqttClient.connect(gateway.mqtt_port, "producer")
    for number in range(COUNT, 2 * COUNT):
        is_stored = number % 3 == 0
        body = b"%s%d" % (STORED if is_stored else MARK, number)
        mqtt.publish(in_mqtt(queue), body, qos=int(is_stored), packet_id=number)
    await leave(mqtt)


async def take_with_stomp(gateway: GatewayProcess, queue: str, count: int) -> list[int]:
    client = await StompClient.connect(gateway.stomp_port)
    client.send("SUBSCRIBE", id="s", destination=f"/queue/{queue}", ack="client-individual")
    found: list[int] = []
    while len(found) < count:
        frame = await client.receive()
        found.append(int(frame.body.split()[-1]))
        last = {"receipt": "r"} if len(found) == count else {}
        client.send("ACK", id=frame.headers["ack"], **last)
    while (frame := await client.receive()).command == "MESSAGE":
        pass
    assert frame.command == "RECEIPT"
    await client.aclose()
    return found


async def take_with_mqtt(gateway: GatewayProcess, queue: str, count: int) -> list[int]:
    client = await MqttClient.connect(gateway.mqtt_port, "consumer")
    request = struct.pack(">H", 1) + text(in_mqtt(queue)) + b"\1"
    client.writer.write(packet(SUBSCRIBE, request, 2))
    found: list[int] = []
    while len(found) < count:
        received = await client.receive()
        if received.kind == PUBLISH:
            publish = parse_publish(received)
            assert publish.qos == 1, "a queue's messages are acknowledged, whoever sent them"
            found.append(int(publish.payload.split()[-1]))
            client.acknowledge(PUBACK, publish.packet_id)
    await leave(client)
    return found


@pytest.mark.long
@pytest.mark.parametrize("store", ["journal", "jdbc", "journaled"])
async def test_the_disk_has_nothing_of_them_and_a_kill_loses_nothing_else(
    tmp_path: Path, store: str
) -> None:
    extra = f'[store]\nplugin = "{store}"\n{TABLE}'
    everything = list(range(2 * COUNT))
    with GatewayProcess(tmp_path, extra=extra) as gateway:
        await fill(gateway, "spooled.a")
        assert not found_in(tmp_path / "data", MARK)
        assert found_in(tmp_path / "data", STORED)  # so it would have been seen
        assert await take_with_stomp(gateway, "spooled.a", 50) == everything[:50]
        taken = await take_with_mqtt(gateway, "spooled.a", 250)
        assert taken == everything[50:300]
        gateway.kill()
        gateway.start()
        kept = [number for number in everything[300:] if number % 3 == 0]
        assert await take_with_stomp(gateway, "spooled.a", len(kept)) == kept
        assert not found_in(tmp_path / "data", MARK)
        # Without the policy they are as safe as others.
        await fill(gateway, "b")
        assert found_in(tmp_path / "data", MARK)
        gateway.kill()
        gateway.start()
        assert await take_with_stomp(gateway, "b", 2 * COUNT) == everything
