"""Slow consumers over real sockets: found, told, cut short and disconnected in the words of their protocol, while a quick
one beside them goes on.

The clock that counts is the test's: it says when so much time is over, so nothing here waits or is a race.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import mqtt_raw as raw
import pytest
from wire import Frame, StompClient

from tidegate.broker.connection.slow_consumers import LOOK_EVERY
from tidegate.spi import SlowConsumer, hookimpl
from tidegate.testing.embedded import EmbeddedGateway

PREFETCH: Final = 5
ACTS: Final = ("tell", "cut_prefetch", "disconnect")

#: Each queue is named by the option and the act.
CONFIG: Final = f"""
[[listeners]]
protocol = "stomp"
bind = "127.0.0.1:0"

[[listeners]]
protocol = "mqtt"
bind = "127.0.0.1:0"
inflight_max = {PREFETCH}
""" + "".join(
    f"""
[[destinations]]
match = "queue://{option}.{act}"
slow_consumer_{option} = {value}
slow_consumer_act = "{act}"
prefetch_count = {PREFETCH}
"""
    for option, value in (("age", '"60s"'), ("rate", "1.0"))
    for act in ACTS
)


class Hooks:
    """A plugin that hears of slow consumers."""

    def __init__(self) -> None:
        self.told: list[SlowConsumer] = []

    @hookimpl
    def consumer_slowed(self, consumer: SlowConsumer) -> None:
        self.told.append(consumer)


class Running:
    """A gateway whose clock the test sets."""

    def __init__(self, gateway: EmbeddedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gateway = gateway
        self.core: Any = gateway.gateway._broker
        self.hooks = Hooks()
        gateway.gateway._plugins._manager.register(self.hooks)
        self._now = self.core.writer.elapsed()
        monkeypatch.setattr(self.core.writer, "elapsed", lambda: self._now)
        self._look = self.core.slow_consumers.look
        monkeypatch.setattr(self.core.slow_consumers, "look", lambda elapsed: None)

    def pass_time(self, seconds: float) -> None:
        """So much time is over, and all consumers are looked at."""
        self._now += int(seconds * 1_000_000)
        for _ in range(LOOK_EVERY):
            self._look(self._now)

    def counts(self) -> tuple[int, int]:
        counts = self.core.client_counts()
        return counts["consumers.slow"], counts["consumers.slowed"]


class StompConsumer:
    """A client that takes from one queue, PREFETCH at a time. When `acknowledge` returns the gateway knows."""

    def __init__(self, client: StompClient) -> None:
        self._client = client
        self._early: list[Frame] = []
        self._taken: list[str] = []

    @classmethod
    async def connect(cls, gateway: EmbeddedGateway, queue: str) -> StompConsumer:
        client = await StompClient.connect(gateway.stomp_port)
        headers = {"id": "s", "ack": "client-individual", "receipt": "r"}
        client.send("SUBSCRIBE", destination=f"/queue/{queue}", **headers)
        made = cls(client)
        await made._confirmed()
        return made

    async def _confirmed(self) -> None:
        while (frame := await self._client.receive()).command != "RECEIPT":
            assert frame.command == "MESSAGE", frame
            self._early.append(frame)

    async def take(self, count: int) -> list[bytes]:
        frames: list[Frame] = []
        while len(frames) < count:
            frames.append(self._early.pop(0) if self._early else await self._client.receive())
        assert {frame.command for frame in frames} == {"MESSAGE"}, frames
        self._taken += [frame.headers["ack"] for frame in frames]
        return [frame.body for frame in frames]

    async def acknowledge(self, count: int) -> None:
        acks, self._taken = self._taken[:count], self._taken[count:]
        for ack in acks:
            last = {"receipt": "a"} if ack is acks[-1] else {}
            self._client.send("ACK", id=ack, **last)
        await self._confirmed()

    async def check_quiet(self) -> None:
        self._client.send("SEND", destination="/queue/other", receipt="quiet")
        await self._confirmed()
        assert self._early == []

    async def check_ended(self) -> None:
        frame = await self._client.receive()
        assert frame.command == "ERROR"
        assert "too slow" in frame.headers["message"] + frame.body.decode()
        assert await self._client.reader.read() == b""

    async def close(self) -> None:
        await self._client.aclose()


class MqttConsumer:
    version = raw.V311

    def __init__(self, client: raw.Client) -> None:
        self._client = client
        self._early: list[raw.Packet] = []
        self._taken: list[int] = []

    @classmethod
    async def connect(cls, gateway: EmbeddedGateway, queue: str) -> MqttConsumer:
        def connected() -> raw.Client:
            client = raw.Client(gateway.mqtt_port, cls.version)
            client.connect("")
            assert client.subscribe(f"$queue/{queue.replace('.', '/')}", 1) == 1
            return client

        return cls(await asyncio.to_thread(connected))

    async def take(self, count: int) -> list[bytes]:
        packets: list[raw.Packet] = []
        while len(packets) < count:
            packets.append(
                self._early.pop(0)
                if self._early
                else await asyncio.to_thread(self._client.receive, raw.PUBLISH)
            )
        self._taken += [packet.packet_id for packet in packets]
        return [packet.body for packet in packets]

    async def acknowledge(self, count: int) -> None:
        ids, self._taken = self._taken[:count], self._taken[count:]
        self._client.send(*[raw.ack(raw.PUBACK, packet_id) for packet_id in ids], raw.PING)
        await self._answered()

    async def _answered(self) -> None:
        while (found := await asyncio.to_thread(self._client.receive)).kind != raw.PINGRESP:
            assert found.kind == raw.PUBLISH, found
            self._early.append(found)

    async def check_quiet(self) -> None:
        self._client.send(raw.PING)
        await self._answered()
        assert self._early == []

    async def check_ended(self) -> None:
        if self.version == raw.V5:
            found = await asyncio.to_thread(self._client.receive, raw.DISCONNECT)
            assert found.code == 0x97  # quota exceeded
        assert await asyncio.to_thread(self._client.is_closed)

    async def close(self) -> None:
        self._client.close()


class Mqtt5Consumer(MqttConsumer):
    version = raw.V5


async def send(gateway: EmbeddedGateway, queue: str, bodies: list[bytes]) -> None:
    client = await StompClient.connect(gateway.stomp_port)
    for number, body in enumerate(bodies):
        last = {"receipt": "r"} if number == len(bodies) - 1 else {}
        client.send("SEND", body, destination=f"/queue/{queue}", **last)
    await client.receipt("r")
    await client.aclose()


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        *((StompConsumer, act) for act in ACTS),
        (MqttConsumer, "disconnect"),
        (Mqtt5Consumer, "cut_prefetch"),
        (Mqtt5Consumer, "disconnect"),
    ],
)
async def test_who_acknowledges_nothing_is_found_by_age_and_a_quick_one_beside_it_is_not(
    kind: type[StompConsumer | MqttConsumer],
    act: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = f"age.{act}"
    caplog.set_level(logging.INFO, "tidegate.broker.slow")
    async with EmbeddedGateway(CONFIG) as gateway:
        running = Running(gateway, monkeypatch)
        slow = await kind.connect(gateway, queue)
        await send(gateway, queue, numbers(0, PREFETCH))
        assert await slow.take(PREFETCH) == numbers(0, PREFETCH)
        quick = await kind.connect(gateway, queue)
        running.pass_time(0)
        for _ in range(2):
            running.pass_time(25)
            await send(gateway, queue, [b"quick"])
            assert await quick.take(1) == [b"quick"]
            await quick.acknowledge(1)
            assert running.counts() == (0, 0)
        running.pass_time(25)
        assert running.counts() == (1, 1)
        (told,) = running.hooks.told
        assert (told.destination, told.act, told.found_by) == (
            f"queue://{queue}",
            act,
            "slow_consumer_age",
        )
        (line,) = [r for r in caplog.records if r.name == "tidegate.broker.slow"]
        assert line.levelno == logging.WARNING
        assert f"destination=queue://{queue} " in line.getMessage()
        if act == "disconnect":
            await slow.check_ended()
            assert sorted(await quick.take(PREFETCH)) == numbers(0, PREFETCH)
            running.pass_time(10)
        else:
            await slow.check_quiet()
            await slow.acknowledge(PREFETCH - 1)  # cut short it still gets nothing
            if act == "cut_prefetch":
                await send(gateway, queue, numbers(10, 16))
                assert await quick.take(PREFETCH) == numbers(10, 15)
                await quick.acknowledge(PREFETCH)
                assert await quick.take(1) == numbers(15, 16)
                await slow.check_quiet()
                await quick.acknowledge(1)
            else:
                await send(gateway, queue, numbers(10, 10 + 2 * PREFETCH - 1))
                got = await slow.take(PREFETCH - 1) + await quick.take(PREFETCH)
                assert sorted(got) == numbers(10, 10 + 2 * PREFETCH - 1)
                await quick.acknowledge(PREFETCH)
                await slow.acknowledge(PREFETCH - 1)
            await slow.acknowledge(1)
            running.pass_time(10)
            await send(gateway, queue, numbers(20, 20 + 2 * PREFETCH))
            got = await slow.take(PREFETCH) + await quick.take(PREFETCH)  # it is as before
            assert sorted(got) == numbers(20, 20 + 2 * PREFETCH)
        assert running.counts() == (0, 1)
        assert [item.is_over for item in running.hooks.told] == [False, True]
        await quick.check_quiet()
        await slow.close()
        await quick.close()


@pytest.mark.parametrize(
    ("kind", "act"),
    [(Mqtt5Consumer, "tell"), (StompConsumer, "cut_prefetch"), (MqttConsumer, "disconnect")],
)
async def test_who_acknowledges_too_little_is_found_by_rate_and_a_quick_one_beside_it_is_not(
    kind: type[StompConsumer | MqttConsumer], act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = f"rate.{act}"
    async with EmbeddedGateway(CONFIG) as gateway:
        running = Running(gateway, monkeypatch)
        await send(gateway, queue, numbers(0, 100))
        slow, quick = await kind.connect(gateway, queue), await kind.connect(gateway, queue)
        await slow.take(PREFETCH)
        await quick.take(PREFETCH)
        for is_last in (False, True):
            running.pass_time(10)
            assert running.counts() == (0, 0)
            for _ in range(3):  # 1.5 a second, with more before it all the time
                await quick.acknowledge(PREFETCH)
                await quick.take(PREFETCH)
            count = 2 * PREFETCH if not is_last else PREFETCH - 1  # 1 a second, and less
            for _ in range(count):
                await slow.acknowledge(1)
                await slow.take(1)
        running.pass_time(10)
        assert running.counts() == (1, 1)
        (told,) = running.hooks.told
        assert (told.act, told.found_by, told.in_flight) == (act, "slow_consumer_rate", PREFETCH)
        for _ in range(2):
            await quick.acknowledge(PREFETCH)
            await quick.take(PREFETCH)
        if act == "disconnect":
            await slow.check_ended()
            running.pass_time(10)
        else:
            await slow.check_quiet()
            await slow.acknowledge(PREFETCH)
            if act == "cut_prefetch":
                await slow.take(1)
                await slow.check_quiet()
                await slow.acknowledge(1)
                await slow.take(1)
            else:
                await slow.take(PREFETCH)
        assert [item.is_over for item in running.hooks.told] == [False] + [True] * (
            act == "disconnect"
        )
        await quick.check_quiet()
        await slow.close()
        await quick.close()


async def test_system_topics_tell_how_many_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = '[broker]\nsystem_topics_interval = "1s"\n'
    async with EmbeddedGateway(broker + CONFIG) as gateway:
        running = Running(gateway, monkeypatch)
        slow = await StompConsumer.connect(gateway, "age.tell")
        await send(gateway, "age.tell", [b"0"])
        await slow.take(1)
        running.pass_time(0)
        running.pass_time(70)

        def heard() -> None:
            client = raw.Client(gateway.mqtt_port, raw.V5)
            client.connect("watcher")
            found: dict[str, bytes] = {}
            for name in ("slow", "slowed"):
                client.subscribe(f"$SYS/broker/consumers/{name}", 0)
            while found != {"slow": b"1", "slowed": b"1"}:
                message = client.message()
                found[message.topic.rpartition("/")[2]] = message.body
            client.close()

        await asyncio.to_thread(heard)
        await slow.close()
