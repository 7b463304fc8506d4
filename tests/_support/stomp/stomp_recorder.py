"""stomp.py with a listener that puts everything it hears into queues."""

from __future__ import annotations

import queue
import threading
from typing import Any

import stomp
from gateway_process import GatewayProcess


class Recorder(stomp.ConnectionListener):
    """What one connection heard."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.errors: queue.Queue[Any] = queue.Queue()
        self.receipts: queue.Queue[str] = queue.Queue()
        self.disconnected = threading.Event()

    def on_message(self, frame: Any) -> None:
        self.messages.put(frame)

    def on_error(self, frame: Any) -> None:
        self.errors.put(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.put(frame.headers["receipt-id"])

    def on_disconnected(self) -> None:
        self.disconnected.set()


def stomp_connect(
    gateway: GatewayProcess, version: Any = stomp.Connection12, **arguments: Any
) -> tuple[Any, Recorder]:
    """Connect with stomp.py; bodies stay bytes."""
    connection = version([("127.0.0.1", gateway.stomp_port)], auto_decode=False, **arguments)
    recorder = Recorder()
    connection.set_listener("recorder", recorder)
    connection.connect(wait=True)
    return connection, recorder
