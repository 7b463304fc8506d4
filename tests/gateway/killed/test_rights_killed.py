"""Rights over the wire: a gateway that is killed, rules that change while it is down and while it serves.

A model asks the rules about each message and name by itself. What comes behind a *fence* (the answer to
a PINGREQ, or the RECEIPT of a transaction's end, asked for when the change had been told) must be allowed by
the rules of now; before it, by those or the rules of before. And whoever may have a message has it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import mqtt_raw as raw
import pytest
from gateway_process import GatewayProcess

from tidegate.spi import names

WAIT_S: Final = 60

#: Who is who by client id; they are one principal, so that they share groups. Nobody refuses the boss.
BOSS: Final = "boss"
WHO: Final = ("m1", "m2", "s1", "s2")

LEVELS: Final = ("a", "b", "secret", "m1", "other")
TOPICS: Final = [f"{one}.{two}" for one in LEVELS[:4] for two in LEVELS[:3]]
QUEUES: Final = ("work.a", "work.secret", "work.b")
#: Enough to tell whether a filter of the test covers a name that is allowed.
NAMES: Final = [
    ".".join(item)
    for length in (1, 2, 3)
    for item in itertools.product((*LEVELS, "work"), repeat=length)
]
PATTERNS: Final = (
    "a.>", "*.b", "secret.>", "*.secret", "a.a", "{client_id}.>", "b.*", ">", "work.>", "work.secret",
)  # fmt: skip
FILTERS: Final = (">", "*.a", "a.*", "secret.*", "*.secret", "m1.>", "b.>")


@dataclass(frozen=True)
class Rule:
    """For everybody but the boss; the actions of taking."""

    allows: bool
    actions: tuple[str, ...]
    pattern: str
    client_id: str = ""

    def text(self) -> str:
        whose = f"client_ids = '{self.client_id}'\n" if self.client_id else ""
        return (
            f"[[rules]]\n{'allow' if self.allows else 'deny'} = {list(self.actions)}\n{whose}"
            f"destinations = '{self.pattern}'\n"
        )

    def fits(self, client_id: str, action: str, name: str) -> bool:
        pattern = self.pattern.replace("{client_id}", client_id)
        return (
            action in self.actions
            and self.client_id in ("", client_id)
            and names.matches(pattern, name)
        )


Rules = tuple[Rule, ...]


def text_of(rules: Rules) -> str:
    first = f"[[rules]]\nallow = 'all'\nclient_ids = '{BOSS}'\n[[rules]]\nallow = ['connect', 'create']\n"
    return first + "\n".join(rule.text() for rule in rules)


def may(rules: Rules, client_id: str, action: str, name: str) -> bool:
    fitting = (rule for rule in rules if rule.fits(client_id, action, name))
    return next((rule.allows for rule in fitting), False)


def may_some(rules: Rules, client_id: str, action: str, wanted: str) -> bool:
    covered = (name for name in {*NAMES, wanted} if names.matches(wanted, name))
    return any(may(rules, client_id, action, name) for name in covered if not names.is_filter(name))


def made_rules(chance: random.Random) -> Rules:
    found = [
        Rule(
            chance.random() < 0.5,
            chance.choice((("subscribe",), ("consume",), ("publish",), ("subscribe", "publish"))),
            chance.choice(PATTERNS),
            chance.choice(("", "", *WHO)),
        )
        for _ in range(6)
    ]
    if chance.random() < 0.8:
        found.append(Rule(True, ("subscribe", "consume", "publish"), ">"))
    return tuple(found)


@dataclass(frozen=True)
class Wanted:
    """A subscription. Attributes: group: that shares it; "" for none."""

    action: str
    filter: str
    group: str = ""

    @property
    def mqtt(self) -> str:
        name = names.swap_separators(self.filter)
        if self.action == "consume":
            return f"$queue/{name}"
        return f"$share/{self.group}/{name}" if self.group else name


class Peer:
    """One connection. Attributes: got: (kind, name, body) since the last fence; is_over: it was ended."""

    def __init__(
        self, client_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.client_id, self.reader, self.writer = client_id, reader, writer
        self.got: list[tuple[str, str]] = []
        self.bodies: set[str] = set()
        self.is_over = False
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while True:
                await self.take()
        except (OSError, EOFError, asyncio.IncompleteReadError):
            self.is_over = True
            self.answers.put_nowait(None)

    async def take(self) -> None:
        raise NotImplementedError

    def take_body(self, body: bytes) -> None:
        self.bodies.add(body.decode())
        action, name, _ = body.decode().split()
        self.got.append((action, name))

    async def answer(self) -> Any:
        """None: the connection has ended."""
        if self.is_over and self.answers.empty():
            return None
        async with asyncio.timeout(WAIT_S):
            return await self.answers.get()

    def write(self, data: bytes) -> None:
        if not self.writer.transport.is_closing():  # else reading says so
            self.writer.write(data)

    async def fence(self) -> bool:
        """Everything that was written before has come. Returns: False when the connection ended."""
        raise NotImplementedError

    def cut(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        self.cut()
        await asyncio.gather(self.task, self.writer.wait_closed(), return_exceptions=True)


class Mqtt(Peer):
    version = raw.V5

    async def take(self) -> None:
        head = await self.reader.readexactly(2)
        while head[-1] & 0x80:
            head += await self.reader.readexactly(1)
        size = sum((digit & 0x7F) << 7 * at for at, digit in enumerate(head[1:]))
        packet = raw.read_packet(head + await self.reader.readexactly(size), self.version)
        if packet.kind == raw.PUBLISH:
            if packet.qos:
                self.write(raw.ack(raw.PUBACK, packet.packet_id))
            self.take_body(packet.body)
        elif packet.kind != raw.DISCONNECT:
            self.answers.put_nowait(packet)

    async def begin(self, *, will: tuple[str, bytes] | None = None) -> int:
        """Returns: whether its session was there."""
        hello = raw.connect(
            self.client_id,
            version=self.version,
            clean=False,
            will=will,
            will_qos=1 if will else 0,
            session_expiry=1000,
        )
        self.writer.write(hello)
        answer = await self.answer()
        assert answer.code == 0, answer
        return answer.session_present

    async def subscribe(self, wanted: Wanted, qos: int = 1) -> bool:
        self.writer.write(raw.subscribe(7, (wanted.mqtt, qos), version=self.version))
        (code,) = (await self.answer()).codes
        assert code in (qos, 0x87), code
        return code == qos

    async def publish(self, action: str, name: str, body: bytes, *, retain: bool = False) -> None:
        topic = names.swap_separators(name)
        topic = f"$queue/{topic}" if action == "consume" else topic
        data = raw.publish(topic, body, version=self.version, qos=1, packet_id=9, retain=retain)
        self.writer.write(data)
        assert (await self.answer()).code in (0, 0x10)

    async def fence(self) -> bool:
        self.write(raw.PING)
        return await self.answer() is not None


class Stomp(Peer):
    _number = itertools.count()

    async def take(self) -> None:
        frame = (await self.reader.readuntil(b"\0"))[:-1].lstrip(b"\n")
        head, _, body = frame.partition(b"\n\n")
        command, *lines = head.decode().split("\n")
        headers = dict(line.split(":", 1) for line in reversed(lines))
        if command == "MESSAGE":
            self.take_body(body)
            if "ack" in headers:
                self.send("ACK", id=headers["ack"])
        elif command == "ERROR":
            raise EOFError
        else:
            self.answers.put_nowait(headers)

    def send(self, command: str, **headers: str) -> None:
        lines = "".join(f"{key.replace('_', '-')}:{text}\n" for key, text in headers.items())
        self.write(f"{command}\n{lines}\n\0".encode())

    async def begin(self) -> None:
        self.send("CONNECT", accept_version="1.2", host="h", client_id=self.client_id)
        assert await self.answer() is not None

    async def subscribe(self, wanted: Wanted, *, is_durable: bool) -> bool:
        more = {"durable_subscription_name": "d", "ack": "client-individual"} if is_durable else {}
        kind = "queue" if wanted.action == "consume" else "topic"
        self.send(
            "SUBSCRIBE",
            id="s",
            destination=f"/{kind}/{wanted.filter}",
            receipt="subscribed",
            **more,
        )
        return await self.answer() is not None

    async def fence(self) -> bool:
        number = f"f{next(self._number)}"
        self.send("BEGIN", transaction=number)
        self.send("ABORT", transaction=number, receipt=number)
        return await self.answer() is not None


@dataclass
class World:
    """The gateway, its clients and what they should have."""

    gateway: GatewayProcess
    directory: Path
    chance: random.Random
    rules: Rules
    peers: dict[str, Peer] = field(default_factory=dict[str, Peer])
    wanted: dict[str, list[Wanted]] = field(default_factory=dict[str, list[Wanted]])
    #: By client: bodies that its own subscriptions must bring it, and that came.
    due: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    came: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    numbers: Any = field(default_factory=itertools.count)

    def write_rules(self, rules: Rules) -> None:
        self.rules = rules
        aside = self.directory / "acl.new"
        aside.write_text(text_of(rules))
        aside.replace(self.directory / "acl.toml")

    async def dial(self, kind: Callable[..., Any], client_id: str) -> Any:
        port = self.gateway.mqtt_port if kind is Mqtt else self.gateway.stomp_port
        peer = kind(client_id, *await asyncio.open_connection("127.0.0.1", port))
        self.peers[client_id] = peer
        return peer

    def may(self, client_id: str, action: str, name: str) -> bool:
        return may(self.rules, client_id, action, name)

    def may_some(self, client_id: str, wanted: Wanted) -> bool:
        return may_some(self.rules, client_id, wanted.action, wanted.filter)

    # --- what happens ---------------------------------------------------------------------------

    async def publish(self, count: int, *, served: Iterable[str] = WHO) -> None:
        """The boss sends; *served*: who is to have of it what it may have by the rules of now."""
        boss = self.peers[BOSS]
        assert isinstance(boss, Mqtt)
        for _ in range(count):
            is_queue = self.chance.random() < 0.25
            action = "consume" if is_queue else "subscribe"
            name = self.chance.choice(QUEUES if is_queue else TOPICS)
            body = f"{action} {name} {next(self.numbers)}"
            retain = not is_queue and self.chance.random() < 0.2
            await boss.publish(action, name, body.encode(), retain=retain)
            if is_queue:
                continue
            for client_id in served:
                if client_id in self.peers and not self.may(client_id, action, name):
                    continue  # what is handed out by these rules is gone for the next ones
                if self.is_due(client_id, name):
                    self.due.setdefault(client_id, set()).add(body)

    def is_due(self, client_id: str, name: str) -> bool:
        """One of its own subscriptions brings it what is sent there."""
        return any(
            item.action == "subscribe" and not item.group and names.matches(item.filter, name)
            for item in self.wanted.get(client_id, ())
        )

    def judge(self, *allowed_by: Rules) -> None:
        """What came since the last time was allowed by one of these."""
        for client_id, peer in self.peers.items():
            if client_id != BOSS:
                for action, name in peer.got:
                    assert any(may(rules, client_id, action, name) for rules in allowed_by), (
                        client_id,
                        action,
                        name,
                    )
            peer.got.clear()
            self.came.setdefault(client_id, set()).update(peer.bodies)

    async def settle(self) -> None:
        """Everybody who is there has what they may have, and nothing else comes."""
        for client_id, peer in self.peers.items():
            wanted = {
                body
                for body in self.due.pop(client_id, ())
                if not peer.is_over and self.may(client_id, *body.split()[:2])
            }
            async with asyncio.timeout(WAIT_S):
                while not (peer.is_over or wanted <= peer.bodies):
                    await asyncio.sleep(0.005)
        for peer in self.peers.values():
            await peer.fence()
        self.judge(self.rules)

    async def hang_up(self, client_ids: Iterable[str]) -> None:
        for client_id in client_ids:
            peer = self.peers.pop(client_id, None)
            if peer is not None:
                await peer.close()
                self.came.setdefault(client_id, set()).update(peer.bodies)

    async def begin(self) -> None:
        """Everybody connects and asks for something; what the rules refuse is refused."""
        boss = await self.dial(Mqtt, BOSS)
        await boss.begin()
        assert await boss.subscribe(Wanted("subscribe", "will.>"))
        group = Wanted("subscribe", self.chance.choice(FILTERS), "g")
        for client_id in ("m1", "m2"):
            peer = await self.dial(Mqtt, client_id)
            topic = f"will/{client_id}"
            await peer.begin(
                will=(topic, f"subscribe will.{client_id} 0".encode())
                if self.may(client_id, "publish", f"will.{client_id}")
                else None
            )
            more = Wanted("consume", self.chance.choice((">", "work.*", "work.a")))
            for item in (Wanted("subscribe", self.chance.choice(FILTERS)), group, more):
                granted = await peer.subscribe(item)
                assert granted is self.may_some(client_id, item), item
                if granted:
                    self.wanted.setdefault(client_id, []).append(item)
        await self.stomp_begins()

    async def stomp_begins(self) -> None:
        for client_id, action in (("s1", "subscribe"), ("s2", "consume")):
            found = self.wanted.get(client_id)
            item = Wanted(
                action,
                self.chance.choice(FILTERS if action == "subscribe" else ("work.*", *QUEUES)),
            )
            item = found[0] if found else item
            peer = await self.dial(Stomp, client_id)
            await peer.begin()
            granted = await peer.subscribe(item, is_durable=action == "subscribe")
            assert granted is self.may_some(client_id, item), item
            if granted:
                self.wanted[client_id] = [item]

    async def come_back(self) -> None:
        """After a kill. What the rules refuse by now brings nothing."""
        boss = await self.dial(Mqtt, BOSS)
        assert await boss.begin()
        for client_id in ("m1", "m2"):
            peer = await self.dial(Mqtt, client_id)
            assert await peer.begin()
            found = self.wanted.get(client_id, [])
            self.wanted[client_id] = [item for item in found if self.may_some(client_id, item)]
        await self.stomp_begins()
        for client_id, bodies in self.due.items():
            found = {body for body in bodies if self.is_due(client_id, body.split()[1])}
            self.due[client_id] = found - self.came.get(client_id, set())

    async def change(self, rules: Rules) -> None:
        """While messages flow."""
        log = self.directory / "audit.log"
        told, before = changes_in(log), self.rules
        done = asyncio.Event()

        async def traffic() -> None:
            while not done.is_set():
                await self.publish(5, served=())

        going = asyncio.create_task(traffic())
        self.write_rules(rules)
        async with asyncio.timeout(WAIT_S):
            while changes_in(log) == told:
                await asyncio.sleep(0.01)
        for client_id, peer in self.peers.items():
            if client_id != BOSS:
                await peer.fence()
        self.judge(before, rules)
        await asyncio.sleep(0)
        done.set()
        await going
        for client_id, peer in list(self.peers.items()):
            await peer.fence()
            if client_id != BOSS and not peer.is_over:
                for item in self.wanted.get(client_id, ()):
                    assert self.may_some(client_id, item), (client_id, item)
        self.judge(rules)


def changes_in(log: Path) -> int:
    lines = log.read_text().splitlines() if log.exists() else []
    return sum(json.loads(line)["event"] == "rules-changed" for line in lines)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(6))
async def test_nobody_gets_what_they_may_not_whatever_is_killed_and_changed(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    extra = f"""
[[extensions]]
plugin = "acl"
rules = "acl.toml"
check_interval = "100ms"
audit_log = "{tmp_path}/audit.log"
audit_log_rate = 100000
"""
    with_first = made_rules(chance)
    gateway = GatewayProcess(tmp_path, extra=extra)
    world = World(gateway, tmp_path, chance, with_first)
    world.write_rules(with_first)
    with gateway:
        try:
            await world.begin()
            await world.publish(60)
            await world.settle()
            # They go without saying so; messages wait for them, and the will of one waits, too.
            has_will = world.may("m2", "publish", "will.m2")
            await world.hang_up(["m1", "s1", "s2"])
            await world.publish(60)
            gateway.kill()
            await world.hang_up([*WHO, BOSS])
            world.write_rules(made_rules(chance))
            gateway.start()
            await world.come_back()
            await world.settle()
            await world.publish(40)
            await world.settle()
            wills = {body for body in world.came[BOSS] if body == "subscribe will.m2 0"}
            assert bool(wills) is (has_will and world.may("m2", "publish", "will.m2"))
            for _ in range(3):
                await world.change(made_rules(chance))
        finally:
            await world.hang_up(list(world.peers))
