"""Messages that stay behind: the orders in which store, publisher and subscriber can go on.

A gateway was killed with messages in flight. Its subscriber comes back with the same SUBSCRIBE in
the moment in which a publisher's first burst arrives. The store makes a batch durable and returns
from it, reads a page and returns it, when the test says so: each such step, and each of what the
clients do, is a choice, and so is how long the loop turns in between. Whatever is chosen: what was
confirmed is delivered to the connected subscriber, in order, and nothing is left in its list.

Choices are enumerated depth first from each beginning as far as the bound allows, then drawn.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mqtt_raw as raw
import pytest
from broker_harness import CURSORS, Core
from virtual_loop import run

from tidegate.config import BrokerConfig, DestinationPolicy
from tidegate.spi import RecoveredState, StoreContext, StoredMessage, WriteBatch
from tidegate.testing.memory_store import MemoryContents, MemoryStore
from tidegate_protocols.mqtt._front_end import LoopRuntime
from tidegate_protocols.mqtt._options import MqttOptions
from tidegate_protocols.mqtt.session.context import SessionContext
from tidegate_protocols.mqtt.session.session import Session

#: How many orders are tried of each scenario: from the first on, and drawn.
ENUMERATED, DRAWN = 30, 30

#: Packet id of messages that are only to be retained.
RETAINED_ID = 60_000

#: Idle turns of the loop after which nothing more will happen.
QUIET_TURNS = 40


class Choices:
    """Makes those of *prefix*, then the first each time, or draws."""

    def __init__(self, prefix: Sequence[int] = (), chance: random.Random | None = None) -> None:
        self.made: list[tuple[int, int]] = []  # (chosen, of how many)
        self._prefix = prefix
        self._chance = chance

    def of(self, count: int) -> int:
        at = len(self.made)
        chosen = 0
        if at < len(self._prefix):
            chosen = self._prefix[at]
        elif self._chance is not None:
            chosen = self._chance.randrange(count)
        self.made.append((chosen, count))
        return chosen

    def next_prefix(self) -> list[int] | None:
        """The choices of the next order, depth first; None after the last."""
        made = list(self.made)
        while made:
            chosen, count = made.pop()
            if chosen + 1 < count:
                return [*[number for number, _ in made], chosen + 1]
        return None


class SteppedStore:
    """A memory store that waits before and behind each write and page.

    Attributes: steps: who waits, the oldest first.
    """

    def __init__(self, contents: MemoryContents, *, keeps: bool, reads_late: bool) -> None:
        context = StoreContext(Path("/nowhere"), "test", keep_acknowledged=keeps)
        self.inner: Any = MemoryStore(context, contents)
        self.steps: list[asyncio.Future[None]] = []
        self.is_stepped = False
        self._reads_late = reads_late

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def _step(self) -> None:
        if not self.is_stepped:
            await asyncio.sleep(0)
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.steps.append(waiting)
        await waiting

    def go_on(self, number: int) -> None:
        self.steps.pop(number).set_result(None)

    async def open(self) -> RecoveredState:
        return await self.inner.open()

    async def write(self, batch: WriteBatch) -> None:
        await self._step()
        await self.inner.write(batch)
        await self._step()

    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        if self._reads_late:
            await self._step()
        page = await self.inner.page_in(pending_list, after, limit, bytes_max)
        await self._step()
        return page


class Link:
    """The socket of a client that reads all it is sent; ``packets`` it did not look at yet."""

    subprotocol = tls_subject = ""
    tls_principal = None
    unsent_bytes = 0

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.is_closing = False
        self.packets: list[raw.Packet] = []
        self.unanswered: list[int] = []
        self._data = b""

    def send(self, data: bytes) -> None:
        if self.is_closing:
            return
        self._data += data
        while len(self._data) >= 2:
            end = next((at for at in range(1, len(self._data)) if self._data[at] < 0x80), 0)
            size = sum((self._data[at] & 0x7F) << 7 * (at - 1) for at in range(1, end + 1))
            if not end or len(self._data) < end + 1 + size:
                return
            self.packets.append(raw.read_packet(self._data[: end + 1 + size], raw.V311))
            self._data = self._data[end + 1 + size :]

    def send_piece(self, data: bytes, *, last: bool) -> None:
        self.send(data)

    def close(self) -> None:
        self.is_closing = True

    abort = close

    def flush(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


@dataclass(frozen=True)
class Scenario:
    """Where it begins: messages in flight when the gateway was killed, and what memory holds.

    Attributes: window: of the subscriber; again: it comes a second time, and takes over.
    """

    old: int
    acknowledged: int
    bursts: tuple[int, ...]
    cursor: str = "store"
    memory: int = 1 << 20
    shared: int = 1 << 26
    page_count: int = 200
    window: int = 100
    filter: str = "a/b"
    keeps: bool = True
    reads_late: bool = False
    again: bool = False
    retained: int = 0


@dataclass
class World:
    """A gateway that was killed, and its clients."""

    scenario: Scenario
    choices: Choices
    directory: Path
    contents: MemoryContents = field(default_factory=MemoryContents)
    confirmed: list[int] = field(default_factory=list[int])
    delivered: list[int] = field(default_factory=list[int])
    count: int = 0
    links: list[tuple[Link, Session]] = field(default_factory=list[tuple[Link, Session]])

    async def start(self) -> None:
        scenario = self.scenario
        self.contents.owner = None
        self.store = SteppedStore(
            self.contents, keeps=scenario.keeps, reads_late=scenario.reads_late
        )
        policy = DestinationPolicy(
            match=">",
            cursor=scenario.cursor,
            memory_limit=scenario.memory,
            page_count=scenario.page_count,
        )
        self.core = Core(
            BrokerConfig(cursor_memory_limit=scenario.shared, system_topics_interval=0),
            self.store,  # type: ignore[arg-type]  # the rest is the inner one's
            cursors=CURSORS,
            policies=(policy,),
            temporary_directory=self.directory,
            version="0",
        )
        await self.core.start()
        if scenario.keeps:
            self.core.acknowledged_log.reader("sink")
        options = MqttOptions(inflight_max=scenario.window)
        runtime = LoopRuntime(asyncio.get_running_loop())
        self.context = SessionContext(self.core, options, runtime, allow_anonymous=True)

    async def kill(self) -> None:
        tasks = [*self.core.tasks.running, *self.core.tasks.closers, self.core.writer._task]
        for task in filter(None, tasks):
            task.cancel()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)
        for pending_list in self.core.destinations.all_lists():
            await pending_list.cursor.close()
        for link, _ in self.links:
            link.is_closing = True
        self.links.clear()

    def connect(self, name: str, more: bytes = b"") -> Callable[[bytes], None]:
        link = Link(name)
        session = Session(self.context, link)
        self.links.append((link, session))

        def feed(data: bytes) -> None:
            if not link.is_closing:
                session.data_received(data)

        feed(raw.connect(name, version=raw.V311, clean=False) + more)
        return feed

    def publish(self, feed: Callable[[bytes], None], count: int) -> None:
        data = b""
        for _ in range(count):
            self.count += 1
            body = b"%d" % self.count
            data += raw.publish("a/b", body, qos=1, packet_id=self.count, version=raw.V311)
        feed(data)

    def look(self, count: int = 1 << 30) -> bool:
        """Take what came; the subscriber acknowledges *count* at most. False: nothing came."""
        came = False
        for link, session in self.links:
            packets, link.packets = link.packets, []
            came = came or bool(packets)
            for packet in packets:
                if packet.kind == raw.PUBACK and packet.packet_id != RETAINED_ID:
                    self.confirmed.append(packet.packet_id)
                elif packet.kind == raw.PUBLISH:
                    link.unanswered.append(packet.packet_id)
                    if packet.topic == "a/b":
                        self.delivered.append(int(packet.body))
            answered, link.unanswered = link.unanswered[:count], link.unanswered[count:]
            if answered and not link.is_closing:
                came = True
                session.data_received(b"".join([raw.ack(raw.PUBACK, one) for one in answered]))
        return came

    async def settle(self) -> None:
        quiet = 0
        while quiet < QUIET_TURNS:
            await asyncio.sleep(0)
            quiet = 0 if self.look() else quiet + 1

    async def before_the_kill(self) -> None:
        subscribe = raw.subscribe(1, (self.scenario.filter, 1), version=raw.V311)
        self.connect("subscriber", subscribe)
        feed = self.connect("publisher")
        await self.settle()
        for number in range(self.scenario.retained):
            feed(
                raw.publish(
                    f"r/{number}", b"r", qos=1, packet_id=RETAINED_ID, retain=True, version=raw.V311
                )
            )
        self.publish(feed, self.scenario.old)
        for _ in range(QUIET_TURNS):
            await asyncio.sleep(0)
        self.look(self.scenario.acknowledged)
        for _ in range(QUIET_TURNS):
            await asyncio.sleep(0)
        await self.kill()

    async def play(self) -> None:
        await self.before_the_kill()
        await self.start()
        scenario, store, choices = self.scenario, self.store, self.choices
        store.is_stepped = True
        subscribe = raw.subscribe(1, (scenario.filter, 1), version=raw.V311)
        comes: list[Callable[[], object]] = [lambda: self.connect("subscriber", subscribe)]
        comes += [lambda: self.look(2)] * 2
        if scenario.again:
            comes.append(lambda: self.connect("subscriber", subscribe))
        publisher: list[Callable[[bytes], None]] = []
        publishes: list[Callable[[], object]] = [
            lambda: publisher.append(self.connect("publisher")),
            *[lambda size=size: self.publish(publisher[0], size) for size in scenario.bursts],
        ]
        while comes or publishes or store.steps:
            acts: list[Callable[[], object]] = [
                lambda number=number: store.go_on(number) for number in range(len(store.steps))
            ]
            acts += [
                lambda script=script: script.pop(0)() for script in (comes, publishes) if script
            ]
            acts[choices.of(len(acts))]()
            for _ in range(1 + 2 * choices.of(3)):
                await asyncio.sleep(0)
        store.is_stepped = False
        await self.settle()
        first = list(dict.fromkeys(self.delivered))
        assert set(self.confirmed) <= set(first), sorted(set(self.confirmed) - set(first))
        assert first == sorted(first)
        assert not any(self.contents.lists.values())
        for link, session in self.links:
            link.is_closing = True
            session.link_closed(None)
        await self.core.stop()


def play(scenario: Scenario, choices: Choices) -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="tidegate-test-") as directory:
            world = World(scenario, choices, Path(directory))
            await world.start()
            await world.play()

    try:
        run(main())
    except BaseException as error:
        error.add_note(f"choices: {[chosen for chosen, _ in choices.made]}")
        raise


SCENARIOS = {
    "nothing waits": Scenario(0, 0, (5, 1)),
    "all is in flight": Scenario(3, 0, (5, 1)),
    "a part was acknowledged": Scenario(4, 2, (3, 3)),
    "pages of one": Scenario(3, 1, (4, 2), page_count=1, reads_late=True),
    "no memory": Scenario(2, 0, (3, 2), memory=1, page_count=2),
    "memory is shared and full": Scenario(3, 1, (3, 2), shared=1, page_count=2),
    "a small window": Scenario(3, 0, (4, 1), window=2),
    "it comes twice": Scenario(3, 1, (3, 2), again=True, reads_late=True),
    "it comes twice and pages": Scenario(3, 0, (3, 2), again=True, memory=1, page_count=2),
    "retained messages, too": Scenario(2, 1, (3, 2), filter="#", retained=3),
    "all in memory": Scenario(3, 1, (3, 2), cursor="vm", reads_late=True),
    "spooled": Scenario(3, 1, (3, 2), cursor="file", memory=1, page_count=2),
    "no sink": Scenario(3, 1, (3, 2), keeps=False, page_count=1),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_was_confirmed_is_delivered_in_order_whatever_comes_first(name: str) -> None:
    prefix: list[int] | None = []
    for _ in range(ENUMERATED):
        choices = Choices(prefix)
        play(SCENARIOS[name], choices)
        prefix = choices.next_prefix()
        if prefix is None:
            break
    for seed in range(DRAWN):
        play(SCENARIOS[name], Choices(chance=random.Random(seed)))


def test_the_explorer_finds_messages_that_stay_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a tail that believes a page to be all that it counted."""
    from tidegate_cursors._stored_tail import StoredTail

    read = StoredTail.read

    async def forgetful(self: StoredTail, limit: int, bytes_max: int) -> list[StoredMessage]:
        page = await read(self, limit, bytes_max)
        self.count = 0
        return page

    monkeypatch.setattr(StoredTail, "read", forgetful)
    with pytest.raises(AssertionError):
        test_what_was_confirmed_is_delivered_in_order_whatever_comes_first("all is in flight")
