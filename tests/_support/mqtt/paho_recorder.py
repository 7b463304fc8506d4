"""paho-mqtt with callbacks that put everything it hears into queues."""

from __future__ import annotations

import queue
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

WAIT_S = 60.0


def properties(packet: str, **values: Any) -> Properties:
    """Properties of a packet, by paho's names: ``properties("PUBLISH", TopicAlias=1)``."""
    made = Properties(getattr(PacketTypes, packet))
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Paho:
    """One client of 127.0.0.1:*port*. *connect*: further arguments of paho's ``connect``.

    With *clean* off the session is kept, in 5.0 for an hour where *connect* says nothing else.
    """

    def __init__(
        self,
        port: int,
        client_id: str = "",
        *,
        version: Any = paho.MQTTv311,
        clean: bool = True,
        transport: Any = "tcp",
        cafile: str | None = None,
        **connect: Any,
    ) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.subscribed: queue.Queue[Any] = queue.Queue()
        self.published: queue.Queue[Any] = queue.Queue()
        self.connected: queue.Queue[Any] = queue.Queue()
        self.lost: queue.Queue[Any] = queue.Queue()
        self._is_5 = version == paho.MQTTv5
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if self._is_5 else clean,
            protocol=version,
            transport=transport,
            reconnect_on_failure=False,
        )
        if cafile is not None:
            self.client.tls_set(cafile)
        self.client.connect_timeout = WAIT_S
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_subscribe = lambda _c, _u, _m, codes, more: self.subscribed.put(
            (codes, more)
        )
        self.client.on_publish = lambda _c, _u, mid, code, more: self.published.put(
            (mid, code, more)
        )
        self.client.on_connect = lambda _c, _u, flags, code, more: self.connected.put(
            (flags, code, more)
        )
        self.client.on_disconnect = lambda _c, _u, flags, code, more: self.lost.put(
            (flags, code, more)
        )
        self._port = port
        if self._is_5:
            connect["clean_start"] = clean
            if not clean:
                connect.setdefault("properties", properties("CONNECT", SessionExpiryInterval=3600))
        self._connect = connect

    def __enter__(self) -> Paho:
        code = self.connect()
        assert not code.is_failure, code
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def connect(self) -> Any:
        """Connect; returns the reason code. ``flags`` and ``connack`` are what came with it."""
        self.client.connect("127.0.0.1", self._port, **self._connect)
        self.client.loop_start()
        self.flags, code, self.connack = self.connected.get(timeout=WAIT_S)
        return code

    def subscribe(self, topic: Any, qos: int = 0, **more: Any) -> Any:
        """Subscribe and wait; returns the reason code of the (last) filter."""
        self.client.subscribe(topic, qos, **more)
        return self.subscribed.get(timeout=WAIT_S)[0][-1]

    def publish(self, topic: str, body: bytes, qos: int, **more: Any) -> Any:
        """Publish and wait for the end of its exchange; returns the reason code."""
        mid = self.client.publish(topic, body, qos, **more).mid
        done, code, self.puback = self.published.get(timeout=WAIT_S)
        assert done == mid
        return code

    def next(self) -> Any:
        return self.messages.get(timeout=WAIT_S)

    def vanish(self) -> None:
        """End the connection without DISCONNECT."""
        link: Any = self.client.socket()
        link.shutdown(2)
