"""The demo's four clients, each a process of its own, none of them written by us.

    clients.py stomp-producer|stomp-consumer|mqtt-producer|mqtt-consumer PORT DATA_DIRECTORY

STOMP goes through stomp.py, MQTT through amqtt's client. Each one survives the gateway: when the
connection breaks it connects again, sends once more what was not confirmed, and goes on. Progress
leaves as JSON lines on standard output: ``{"done": distinct messages so far}``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Final

import flights
import stomp
from amqtt.client import MQTTClient
from stomp.exception import StompException
from stomp.utils import Frame

QUEUE: Final = "/queue/nyc.flights"
TOPIC: Final = "nyc/weather"
STOMP_BATCH: Final = 100  # one receipt for so many messages: it confirms all before it, too
STOMP_WINDOW: Final = 2_000  # messages sent and not yet confirmed
MQTT_BATCH: Final = 200
RETRY_S: Final = 0.25
STALLED_S: Final = 20.0


class Progress:
    """Prints at most ten lines a second, and the last one."""

    def __init__(self) -> None:
        self._last = 0.0

    def report(self, done: int, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._last > 0.1:
            self._last = now
            print(json.dumps({"done": done}), flush=True)


class Producer(stomp.ConnectionListener):
    """Counts confirmed messages; wakes the sender on every receipt and when the link breaks."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.confirmed = 0
        self.broken = False

    def on_receipt(self, frame: Frame) -> None:
        with self.changed:
            self.confirmed = max(self.confirmed, int(frame.headers["receipt-id"]))
            self.changed.notify_all()

    def on_disconnected(self) -> None:
        with self.changed:
            self.broken = True
            self.changed.notify_all()


def stomp_connect(port: int, listener: stomp.ConnectionListener) -> stomp.Connection12:
    """Connect, however long the gateway takes to come back."""
    while True:
        # stomp.py decodes bodies as text unless told not to.
        connection = stomp.Connection12(
            [("127.0.0.1", port)], auto_decode=False, reconnect_attempts_max=1
        )
        connection.set_listener("demo", listener)
        try:
            connection.connect(wait=True)
        except (StompException, OSError):
            time.sleep(RETRY_S)
            continue
        return connection


def stomp_producer(port: int, data: Path) -> None:
    bodies = [flights.encode(row) for row in flights.flights(data)]
    listener, progress = Producer(), Progress()
    while listener.confirmed < len(bodies):
        listener.broken = False
        connection = stomp_connect(port, listener)
        sent = listener.confirmed
        try:
            while not listener.broken and sent < len(bodies):
                with listener.changed:
                    while sent - listener.confirmed >= STOMP_WINDOW and not listener.broken:
                        listener.changed.wait()
                end = min(sent + STOMP_BATCH, len(bodies))
                for number in range(sent, end):
                    headers = {"row": str(number), "persistent": "true"}
                    if number == end - 1:
                        headers["receipt"] = str(end)
                    connection.send(QUEUE, bodies[number], "application/json", headers)
                sent = end
                progress.report(listener.confirmed)
            with listener.changed:
                while listener.confirmed < sent and not listener.broken:
                    listener.changed.wait()
        except (StompException, OSError):
            time.sleep(RETRY_S)
    progress.report(listener.confirmed, force=True)
    connection.disconnect()


class Consumer(stomp.ConnectionListener):
    """Acknowledges every message and remembers which rows it saw."""

    def __init__(self, progress: Progress) -> None:
        self.connection: stomp.Connection12 | None = None
        self.rows: set[int] = set()
        self.changed = threading.Condition()
        self.broken = False
        self.receipts: set[str] = set()
        self._progress = progress

    def on_message(self, frame: Frame) -> None:
        self.rows.add(int(frame.headers["row"]))
        connection = self.connection
        assert connection is not None
        try:
            connection.ack(frame.headers["ack"])
        except (StompException, OSError):
            return
        self._progress.report(len(self.rows))
        if len(self.rows) >= flights.FLIGHTS_COUNT:
            with self.changed:
                self.changed.notify_all()

    def on_receipt(self, frame: Frame) -> None:
        with self.changed:
            self.receipts.add(frame.headers["receipt-id"])
            self.changed.notify_all()

    def on_disconnected(self) -> None:
        with self.changed:
            self.broken = True
            self.changed.notify_all()


def stomp_consumer(port: int, _data: Path) -> None:
    progress = Progress()
    listener = Consumer(progress)
    while "goodbye" not in listener.receipts:
        listener.broken = False
        connection = listener.connection = stomp_connect(port, listener)
        try:
            connection.subscribe(QUEUE, id="flights", ack="client-individual")
            with listener.changed:
                while len(listener.rows) < flights.FLIGHTS_COUNT and not listener.broken:
                    listener.changed.wait()
            if not listener.broken:
                # The receipt says that every acknowledgement before it is on disk.
                connection.disconnect(receipt="goodbye")
                with listener.changed:
                    while "goodbye" not in listener.receipts and not listener.broken:
                        listener.changed.wait()
        except (StompException, OSError):
            time.sleep(RETRY_S)
    progress.report(len(listener.rows), force=True)


async def mqtt_connect(port: int, client_id: str, *, clean: bool) -> MQTTClient:
    while True:
        client = MQTTClient(client_id=client_id, config={"auto_reconnect": False})
        try:
            await client.connect(f"mqtt://127.0.0.1:{port}/", cleansession=clean)
        except Exception:  # amqtt raises several unrelated types when nobody listens
            await asyncio.sleep(RETRY_S)
            continue
        return client


async def mqtt_producer(port: int, data: Path) -> None:
    rows = [(f"{TOPIC}/{row['origin']}", flights.encode(row)) for row in flights.weather(data)]
    progress, confirmed = Progress(), 0
    client = await mqtt_connect(port, "demo-weather-producer", clean=True)
    while confirmed < len(rows):
        batch = rows[confirmed : confirmed + MQTT_BATCH]
        try:
            async with asyncio.timeout(STALLED_S):
                await asyncio.gather(*(client.publish(t, body, qos=1) for t, body in batch))
        except Exception:  # the whole batch goes out again; its rows are numbered
            await abandon(client)
            client = await mqtt_connect(port, "demo-weather-producer", clean=True)
            continue
        confirmed += len(batch)
        progress.report(confirmed)
    progress.report(confirmed, force=True)
    await client.disconnect()


async def mqtt_consumer(port: int, _data: Path) -> None:
    progress = Progress()
    rows: set[int] = set()
    client = await mqtt_connect(port, "demo-weather-consumer", clean=False)
    await client.subscribe([(f"{TOPIC}/#", 1)])
    progress.report(0, force=True)
    while len(rows) < flights.WEATHER_COUNT:
        try:
            message = await client.deliver_message(timeout_duration=STALLED_S)
        except Exception:  # connection lost, or nothing came for a long time: take up the session
            await abandon(client)
            client = await mqtt_connect(port, "demo-weather-consumer", clean=False)
            await client.subscribe([(f"{TOPIC}/#", 1)])
            continue
        if message is not None and message.data is not None:
            rows.add(int(json.loads(bytes(message.data))["row"]))
            progress.report(len(rows))
    progress.report(len(rows), force=True)
    await client.disconnect()


async def abandon(client: MQTTClient) -> None:
    try:
        async with asyncio.timeout(2):
            await client.disconnect()
    except Exception:
        return


def main() -> None:
    role, port, data = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    logging.disable(logging.CRITICAL)  # both libraries log every lost connection with a traceback
    if role == "stomp-producer":
        stomp_producer(port, data)
    elif role == "stomp-consumer":
        stomp_consumer(port, data)
    elif role == "mqtt-producer":
        asyncio.run(mqtt_producer(port, data))
    elif role == "mqtt-consumer":
        asyncio.run(mqtt_consumer(port, data))
    else:
        sys.exit(f"unknown role {role!r}")


if __name__ == "__main__":
    main()
