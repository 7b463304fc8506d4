"""Ways around the access rules: names, wildcards, groups, aliases, options, other protocols' spellings.

The gateway runs in this process; what the attacker hears is all that it may have, and without the rules it
hears the rest, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import mqtt_raw as raw
import pytest

from tidegate.testing.embedded import EmbeddedGateway

WAIT_S: Final = 60

RULES: Final = """
[[rules]]
allow = "all"
client_ids = "boss"

[[rules]]
allow = "connect"

[[rules]]
deny = ["publish", "subscribe", "consume", "browse", "retain", "create"]
destinations = ["secret.>", "*.secret", "queue://DLQ.>"]

[[rules]]
allow = ["publish", "subscribe", "consume", "browse", "create"]
destinations = ["open.>", "*.plan"]
"""
NO_RULES: Final = '[[rules]]\nallow = "all"\n'

#: (filter, whether it is granted): what is granted brings what is allowed, and nothing else.
FILTERS: Final = [
    ("#", True),
    ("+/plan", True),
    ("+/+", True),
    ("$share/g/#", True),
    ("$share/g/+/plan", True),
    ("$queue/#", True),
    ("$queue/+/plan", True),
    ("Secret/plan", True),  # another topic, as are those that only look the same
    ("\uff53ecret/plan", True),
    ("secret\u200b/plan", True),
    ("open/../secret/plan", True),
    ("secret/plan", False),
    ("secret/#", False),
    ("secret", False),
    ("secret//plan", False),
    ("secret/plan/", False),
    ("/secret", False),
    ("//secret", False),
    ("+/secret", False),
    ("open/secret", False),
    ("$SYS/#", False),
    ("$share/g/$SYS/#", False),
    ("$share/g/secret/plan", False),
    ("$share/g/$queue/secret/x", False),
    ("$share/g/$share/h/secret/plan", False),
    ("$queue/secret/x", False),
    ("$queue/DLQ/#", False),
    ("$temporary/#", False),
    ("$temporary/+/answers", False),
    ("$queue/$temporary/#", False),
]

#: (topic, whether a publish is let through).
SENT: Final = [
    ("open/x", True),
    ("x/plan", True),
    ("$queue/open/q", True),
    ("secret/plan", False),
    ("secret", False),
    ("a/secret", False),
    ("open/secret", False),
    ("$queue/secret/x", False),
    ("$queue/DLQ/open/q", False),
    ("$SYS/broker/x", False),
    ("$share/g/open/x", False),
    ("$temporary/00/answers", False),
]

#: (STOMP destination, whether it may be subscribed to).
DESTINATIONS: Final = [
    ("/topic/*.plan", True),
    ("/topic/>", True),
    ("/queue/>", True),
    ("/queue/open.q?consumer.exclusive=true", True),  # a name like any other
    ("/queue/open.q,/queue/secret.x", True),  # there are no composite destinations
    ("/topic/secret.plan", False),
    ("topic://secret.plan", False),
    ("/topic/secret.>", False),
    ("/topic/secret\\cplan", False),
    ("/topic/$SYS.>", False),
    ("/topic/$queue.secret.x", False),
    ("/topic/$share.g.secret", False),
    ("/queue/secret.x", False),
    ("/queue/secret.x?consumer.prefetch=1", False),
    ("/queue/DLQ.open.q", False),
    ("/queue/$temporary.00.answers", False),
    ("/exchange/secret.plan", False),
]


class Wire:
    """A socket to the gateway, and what came for it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.bodies: set[str] = set()

    async def packet(self) -> raw.Packet:
        """The next MQTT packet that is no message; those are taken note of."""
        while True:
            async with asyncio.timeout(WAIT_S):
                head = await self.reader.readexactly(2)
                while head[-1] & 0x80:
                    head += await self.reader.readexactly(1)
                size = sum((digit & 0x7F) << 7 * at for at, digit in enumerate(head[1:]))
                found = raw.read_packet(head + await self.reader.readexactly(size), raw.V5)
            if found.kind != raw.PUBLISH:
                return found
            self.bodies.add(found.body.decode())
            if found.qos:
                self.writer.write(raw.ack(raw.PUBACK, found.packet_id))

    async def ask(self, data: bytes) -> raw.Packet:
        self.writer.write(data)
        return await self.packet()

    async def publish(self, topic: str, **more: Any) -> int:
        """Returns: the reason code."""
        packet = raw.publish(topic, topic.encode(), version=raw.V5, qos=1, packet_id=9, **more)
        return (await self.ask(packet)).code

    async def frame(self) -> str:
        async with asyncio.timeout(WAIT_S):
            return (await self.reader.readuntil(b"\0")).decode().strip("\n\0")


@asynccontextmanager
async def gateway(tmp_path: Path, rules: str, more: str = "") -> AsyncIterator[EmbeddedGateway]:
    (tmp_path / "acl.toml").write_text(rules)
    text = f'[[extensions]]\nplugin = "acl"\nrules = "{tmp_path}/acl.toml"\n{more}'
    async with EmbeddedGateway(text, data_directory=tmp_path / "data") as running:
        yield running


@asynccontextmanager
async def dialled(port: int) -> AsyncIterator[Wire]:
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield wire
    finally:
        wire.writer.close()
        await asyncio.gather(wire.writer.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def client(running: EmbeddedGateway, client_id: str) -> AsyncIterator[Wire]:
    async with dialled(running.mqtt_port) as wire:
        assert (await wire.ask(raw.connect(client_id, version=raw.V5))).code == 0
        yield wire


async def tell_everything(boss: Wire) -> None:
    for topic in (
        "secret/plan",
        "secret",
        "a/secret",
        "open/secret",
        "x/plan",
        "open/a",
        "/secret",
    ):
        for retain in (True, False):
            await boss.publish(topic, retain=retain)
    for name in ("secret/x", "secret/plan", "open/q", "x/plan"):
        await boss.publish(f"$queue/{name}")


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_no_filter_leads_around_the_rules(tmp_path: Path, is_guarded: bool) -> None:
    async with (
        gateway(tmp_path, RULES if is_guarded else NO_RULES) as running,
        client(running, "boss") as boss,
        client(running, "eve") as eve,
    ):
        await tell_everything(boss)  # what is retained, and what waits in queues
        for number, (wanted, is_granted) in enumerate(FILTERS, 1):
            answer = await eve.ask(raw.subscribe(number, (wanted, 1), version=raw.V5))
            if is_guarded:
                assert answer.codes == ((1,) if is_granted else (0x87,)), wanted
        await tell_everything(boss)
        wanted = {"x/plan", "open/a", "$queue/open/q", "$queue/x/plan"}
        if not is_guarded:
            wanted |= {"secret/plan", "secret", "a/secret", "open/secret", "/secret"}
            wanted |= {"$queue/secret/x", "$queue/secret/plan"}
        async with asyncio.timeout(WAIT_S):
            while not wanted <= eve.bodies:
                await eve.ask(raw.PING)
        for _ in range(3):
            await eve.ask(raw.PING)
        if is_guarded:
            assert eve.bodies == wanted  # without the rules $SYS comes besides


async def test_no_publish_leads_around_the_rules(tmp_path: Path) -> None:
    async with gateway(tmp_path, RULES) as running, client(running, "eve") as eve:
        for topic, is_allowed in SENT:
            code = await eve.publish(topic)
            assert (code in (0, 0x10)) is is_allowed, (topic, code)
            # A queue keeps what it is sent anyway, and no rule lets it retain anything.
            retained = await eve.publish(topic, retain=True)
            may_retain = is_allowed and topic.startswith("$queue/")
            assert (retained in (0, 0x10)) is may_retain, (topic, retained)
        # An alias is no other name: nor is one that was refused with its topic.
        assert await eve.publish("open/x", topic_alias=1) in (0, 0x10)
        assert await eve.publish("secret/plan", topic_alias=1) == 0x87
        assert await eve.publish("", topic_alias=1) == 0x87
        async with dialled(running.mqtt_port) as other:
            hello = raw.connect("eve2", version=raw.V5, will=("secret/plan", b"w"))
            assert (await other.ask(hello)).code == 0x87
        assert not len(running.gateway.broker.retained)


async def test_no_spelling_of_stomp_leads_around_the_rules(tmp_path: Path) -> None:
    async with gateway(tmp_path, RULES) as running, client(running, "boss") as boss:
        await tell_everything(boss)
        for destination, is_granted in DESTINATIONS:
            async with dialled(running.stomp_port) as eve:
                eve.writer.write(
                    b"CONNECT\naccept-version:1.2\nhost:h\nclient-id:eve\n\n\0"
                    + f"SUBSCRIBE\nid:s\ndestination:{destination}\nreceipt:r\n\n\0".encode()
                )
                assert (await eve.frame()).startswith("CONNECTED")
                heard = await eve.frame()
                while heard.startswith("MESSAGE"):
                    assert "secret" not in heard.rpartition("\n")[2], destination
                    heard = await eve.frame()
                assert heard.startswith("RECEIPT" if is_granted else "ERROR"), (destination, heard)


async def test_who_rejects_a_message_does_not_read_where_it_goes(tmp_path: Path) -> None:
    more = '[[destinations]]\nmatch = ">"\nmax_deliveries = 1\n'
    async with gateway(tmp_path, RULES, more) as running, client(running, "boss") as boss:
        await boss.publish("$queue/open/q")
        async with dialled(running.stomp_port) as eve:
            eve.writer.write(
                b"CONNECT\naccept-version:1.2\nhost:h\nclient-id:eve\n\n\0"
                b"SUBSCRIBE\nid:all\ndestination:/queue/>\nack:client-individual\n\n\0"
            )
            assert (await eve.frame()).startswith("CONNECTED")
            message = await eve.frame()
            (ack,) = [line[4:] for line in message.splitlines() if line.startswith("ack:")]
            eve.writer.write(f"NACK\nid:{ack}\nreceipt:n\n\n\0".encode())
            assert (await eve.frame()).startswith("RECEIPT")
            assert "queue://DLQ.open.q" in running.gateway.broker.destinations.queues
            eve.writer.write(b"BEGIN\ntransaction:t\nreceipt:t\n\n\0")
            assert (await eve.frame()).startswith("RECEIPT")  # and nothing before it
        answer = await boss.ask(raw.subscribe(1, ("$queue/DLQ/open/q", 0), version=raw.V5))
        assert answer.codes == (0,)
        async with asyncio.timeout(WAIT_S):
            while not boss.bodies:
                await boss.ask(raw.PING)
