"""A session of MQTT that receives large messages, with fakes on both sides."""

import asyncio

import pytest
from large_fakes import FakeBodies, settled

from tidegate_protocols.mqtt import Puback, Pubrec, encode

SIZE_MIN = 100
BIG = b"0123456789" * 30
LEVELS = (3, 4, 5)
ANSWERS = {1: Puback, 2: Pubrec}


by_level = pytest.mark.parametrize("level", LEVELS)


def wired(level, *packets):
    return b"".join(encode(packet, level) for packet in packets)


class Case:
    """A connected client of a gateway whose store streams; its tasks run on the loop."""

    def __init__(self, make_client, level=5, **options):
        self.bodies = FakeBodies()
        self.bodies.size_min = SIZE_MIN
        self.client = make_client(**options)
        self.broker = self.client.broker
        self.connection = self.client.connection
        self.link = self.client.link
        self.broker.large_bodies = self.bodies
        self.level = level

    def connects(self, **values):
        self.client.connects(level=self.level, **values)
        self.connection.calls.clear()
        self.tasks = []
        self.client.runtime.spawn = self.spawn
        return self

    def spawn(self, coroutine):
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))
        return self.tasks[-1]

    async def sends(self, *packets):
        self.client.sends(*packets)
        await settled()

    async def feed(self, data, step):
        for at in range(0, len(data), step):
            for _ in range(100):
                if self.link.is_reading:
                    break
                await settled()
            self.client.session.data_received(data[at : at + step])
        await settled()

    def published(self):
        """Destination, body and QoS of each message."""
        return [
            (message.destination, self.body(message), message.qos)
            for message, _ in self.connection.take("publish")
        ]

    def body(self, message):
        return message.body if message.large is None else self.bodies.contents[message.large.id]

    def answers(self):
        self.client.durable()
        return self.client.gets()

    def state(self):
        return self.client.session.state
