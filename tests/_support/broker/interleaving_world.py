"""A gateway whose every step waits for the test: stores, threads and clients go on in a chosen order.

What waits is a *step*: a batch before and behind the store, a page before and behind it, what a spool
does in a thread. What clients do are *acts*. One after the other is chosen, and how often the loop turns
in between. Whenever the gateway comes to rest (:meth:`World.rest`):

* what the store has of a list is what its cursor counts and what is in flight: a message that only the
  store knows of would stay behind;
* no consumer with room waits for a message of its list;
* first deliveries are in order, and at the end everything that was confirmed was delivered.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from broker_harness import CURSORS, Client, Core, connect_request, message
from interleaving_steps import (
    KINDS,
    Choices,
    Setting,
    SteppedLoop,
    SteppedStore,
)

from tidegate.broker.lists.pending_list import Consumer, PendingList
from tidegate.config import BrokerConfig, DestinationPolicy
from tidegate.spi import (
    StoreContext,
    StoredMessage,
    SubscribeRequest,
    names,
)
from tidegate.testing.faulty_storage import FaultyDisk
from tidegate.testing.memory_store import MemoryContents, MemoryStore
from tidegate_store_journal import JournalOptions, JournalStore

T = TypeVar("T")

#: Idle turns of the loop after which nothing more will happen.
QUIET_TURNS = 25
TURNS_MAX = 5000
#: What every fifth message has.
EXPIRY_US = 1_000_000
CHECKPOINT_S = 5.0
DEAD_LETTERS = "queue://DLQ"
#: Its checkpoints are due when time passes.
JOURNAL = JournalOptions(
    journal_max_file_length=64 << 10,
    checkpoint_interval=CHECKPOINT_S,
    cleanup_interval=CHECKPOINT_S,
    large_message_min_size=0,
)
ALL = 1 << 40


class Peer(Client):
    """A client that notes what is delivered, and what is wrong with it."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.hand: list[tuple[str, int]] = []
        self.on_deliver = self._take
        self.is_writable = True
        self.is_subscribed = False
        self._world = world

    def _take(self, key: str, messages: Sequence[StoredMessage]) -> None:
        world = self._world
        for stored in messages:
            world.note(stored)
            number, sequence = int(stored.message.body), stored.sequence
            if not (self.connection.consumers[key].acknowledge and stored.message.qos):
                continue
            if world.setting.refuses and not number % 3:
                self.connection.refuse(key, (sequence,), "too large")
            elif world.setting.rejects and not number % 7:
                self.connection.reject(key, (sequence,))
            else:
                self.hand.append((key, sequence))


@dataclass
class Member:
    """A consumer, also while it is away."""

    number: int
    request: dict[str, Any]
    peer: Peer | None = None
    connecting: asyncio.Task[None] | None = None

    @property
    def is_there(self) -> bool:
        return self.peer is not None and self.peer.ended is None


@dataclass
class World:
    """A gateway and its clients."""

    setting: Setting
    choices: Choices
    directory: Path
    contents: MemoryContents = field(default_factory=MemoryContents)
    sent: int = 0
    confirmed: set[int] = field(default_factory=set[int])
    expiring: set[int] = field(default_factory=set[int])
    step_us: int = 0
    delivered: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    problems: list[str] = field(default_factory=list[str])
    log: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.kind = KINDS[self.setting.kind]
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        self.steps = loop.steps
        self.steps.is_slow = lambda: self.choices.of(2)
        self.disk = FaultyDisk()
        self.members = [Member(number, request) for number, request in enumerate(self.kind.members)]

    # --- the gateway ---------------------------------------------------------------------------

    async def start(self) -> None:
        setting = self.setting
        self.contents.owner = None
        self.steps.is_on = False
        context = StoreContext(Path("/nowhere"), "test", keep_acknowledged=setting.keeps)
        inner: Any = MemoryStore(context, self.contents)
        if setting.is_journal:
            inner = JournalStore(context, JOURNAL, self.disk.start())
        store: Any = SteppedStore(inner, self.steps, reads_late=setting.reads_late)
        policy = DestinationPolicy(
            match=">",
            cursor=setting.cursor,
            memory_limit=setting.memory,
            memory_messages=setting.messages,
            page_count=setting.page,
            max_deliveries=3 if setting.rejects else 0,
            messages_max=setting.bound,
            overflow="slow",
            subscription_messages_max=setting.bound,
            subscription_overflow="slow",
            non_persistent="spool" if self.kind.unstored else "store",
        )
        self.core = Core(
            BrokerConfig(cursor_memory_limit=setting.shared, system_topics_interval=0),
            store,
            cursors=CURSORS,
            policies=(policy,),
            temporary_directory=self.directory,
            version="0",
            keeps_log=setting.keeps,
        )
        self.core.step_us = self.step_us
        await self.core.start()
        if setting.keeps:
            self.core.acknowledged_log.reader("sink")
        self.publisher = await self._connected(Peer(self), "publisher")

    async def kill(self) -> None:
        """It is gone, with all that is not durable."""
        self.log.append("kill")
        self._learn()
        steps, core = self.steps, self.core
        was_on, steps.is_on = steps.is_on, False
        tasks = [*core.tasks.running, *core.tasks.closers, core.writer._task]
        tasks += [member.connecting for member in self.members]
        if self.setting.is_journal:  # its own, too
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in filter(None, tasks):
            task.cancel()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)
        steps.is_dead = True
        steps.end()  # only what threads were at goes on: nobody else waits
        steps.is_dead = False
        self.disk.kill()
        for member in self.members:
            member.peer = member.connecting = None
        for pending_list in self._lists():
            await pending_list.cursor.close()
        await self.start()
        steps.is_on = was_on

    def _lists(self) -> list[PendingList]:
        found = dict.fromkeys(self.core.destinations.all_lists())
        for _, consumer in self._consumers():
            for pending_list in consumer.lists:
                found[pending_list] = None
                if pending_list.succession is not None:
                    found[pending_list.succession.old] = None  # type: ignore[index]  # it is one
        return list(found)

    def _consumers(self) -> Iterator[tuple[Any, Consumer]]:
        for connection in self.core.connections:
            for consumer in connection.consumers.values():
                if isinstance(consumer, Consumer):
                    yield connection, consumer

    # --- clients -------------------------------------------------------------------------------

    async def _connected(self, peer: Peer, client_id: str, **more: Any) -> Peer:
        request = connect_request(self.kind.protocol, client_id, **more)
        peer.result = await self.core.connect(request, peer)
        peer.connection = peer.result.connection  # type: ignore[assignment]  # it is one
        peer.connection.resume()
        return peer

    def connect(self, member: Member) -> None:
        """It comes, or takes its session over, and subscribes."""
        self.log.append(f"connect {member.number}")
        if member.is_there and not self.kind.is_named:
            self.leave(member, graceful=False)
        more = {"session_expiry": 1000} if self.kind.is_session else {}
        name = f"m{member.number}" if self.kind.is_named else ""
        peer = Peer(self)

        async def come() -> None:
            try:
                await self._connected(peer, name, clean_start=False, **more)
                member.peer = peer
                self.subscribe(member)
            finally:
                member.connecting = None

        member.connecting = asyncio.get_running_loop().create_task(come())

    def subscribe(self, member: Member) -> None:
        """Of a session perhaps once more."""
        self.log.append(f"subscribe {member.number}")
        assert member.peer is not None
        setting, request = self.setting, dict(member.request)
        if request.get("qos"):
            request["qos"] += self.choices.of(2)
        elif "qos" in request:
            request["qos"] = int(member.peer.is_subscribed)
        member.peer.is_subscribed = True
        member.peer.connection.subscribe(
            SubscribeRequest(
                acknowledge=request.get("qos") != 0,
                prefetch_count=setting.prefetch,
                prefetch_bytes=setting.prefetch_bytes,
                **request,
            )
        )

    def leave(self, member: Member, *, graceful: bool) -> None:
        self.log.append(f"leave {member.number}")
        assert member.peer is not None
        member.peer.connection.disconnect(graceful=graceful)
        member.peer = None

    def publish(self, count: int) -> None:
        self.log.append(f"publish {count}")
        for _ in range(count):
            self.sent += 1
            number = self.sent
            topics = self.kind.topics
            topic = topics[self.choices.of(len(topics))]
            persistent = not self.kind.unstored or bool(self.choices.of(2))
            headers = (("odd", str(number % 2)),)
            body = message(topic, str(number), qos=1, persistent=persistent, headers=headers)
            if not number % 5:
                body = msgspec.structs.replace(body, expires_at=self.core.now() + EXPIRY_US)
                self.expiring.add(number)
            self.publisher.connection.publish(body, number)

    def acknowledge(self, member: Member, count: int) -> None:
        assert member.peer is not None
        hand = member.peer.hand
        first = self.choices.of(2) * (len(hand) > count)
        some, hand[first : first + count] = hand[first : first + count], []
        self.log.append(f"acknowledge {member.number} {[s for _, s in some]}")
        for key in dict.fromkeys(key for key, _ in some):
            found = [sequence for owner, sequence in some if owner == key]
            member.peer.connection.acknowledge(key, found)

    def reject(self, member: Member) -> None:
        assert member.peer is not None
        key, sequence = member.peer.hand.pop(0)
        self.log.append(f"reject {member.number} {sequence}")
        member.peer.connection.reject(key, (sequence,))

    def block(self, member: Member) -> None:
        """Its socket takes nothing, or something again."""
        assert member.peer is not None
        peer = member.peer
        peer.is_writable = not peer.is_writable
        self.log.append(f"writable {member.number} {peer.is_writable}")
        peer.connection.writable(peer.is_writable)

    async def pass_time(self) -> None:
        """What could expire has expired, and a journal begins to write a checkpoint."""
        self.log.append("time")
        self.step_us += 2 * EXPIRY_US
        self.core.step_us = self.step_us
        if self.setting.is_journal:
            await asyncio.sleep(CHECKPOINT_S)

    # --- what is chosen ------------------------------------------------------------------------

    async def play(self) -> None:
        setting, choices = self.setting, self.choices
        await self._begin()
        self.steps.is_on = True
        kinds = ["publish", "connect", "leave", "subscribe", "block", "reject", "rest"]
        left = dict.fromkeys(kinds, setting.acts)
        left["acknowledge"] = 3 * setting.acts
        left["kill"] = setting.kills
        left["time"] = 1 + setting.is_journal
        while True:
            acts: list[Callable[[], Any]] = list(self._steps_to_go())
            acts += self._acts(left)
            if not acts:
                break
            done = acts[choices.of(len(acts))]()
            if asyncio.iscoroutine(done):
                await done
            for _ in range(1 + 2 * choices.of(3)):
                await asyncio.sleep(0)
        await self._end()

    def _steps_to_go(self) -> Iterator[Callable[[], None]]:
        waiting = self.steps.waiting
        for number in range(len(waiting)):
            yield lambda number=number: waiting.pop(number)()

    def _acts(self, left: dict[str, int]) -> list[Callable[[], Any]]:
        """Of each kind that is left."""
        found: list[tuple[str, Callable[[], Any]]] = []
        if not self.publisher.is_paused:
            found.append(("publish", lambda: self.publish(1 + 2 * self.choices.of(3))))
        for member in self.members:
            peer = member.peer
            if member.connecting is None and (not member.is_there or not self.setting.stays):
                found.append(("connect", lambda m=member: self.connect(m)))
            if peer is None or peer.ended is not None or member.connecting is not None:
                continue
            if peer.hand:
                found.append(
                    (
                        "acknowledge",
                        lambda m=member: self.acknowledge(m, 1 + 3 * self.choices.of(3)),
                    )
                )
                if not self.kind.is_session:
                    found.append(("reject", lambda m=member: self.reject(m)))
            if "qos" in member.request:
                found.append(("subscribe", lambda m=member: self.subscribe(m)))
            found.append(("block", lambda m=member: self.block(m)))
            if not self.setting.stays:
                found.append(("leave", lambda m=member: self.leave(m, graceful=False)))
        found += [("rest", self.rest), ("kill", self.kill), ("time", self.pass_time)]
        acts: list[Callable[[], Any]] = []
        for name, act in found:
            if left[name] > 0:

                def take(name: str = name, act: Callable[[], Any] = act) -> Any:
                    left[name] -= 1
                    return act()

                acts.append(take)
        return acts

    async def _begin(self) -> None:
        """Some messages are in flight, and some wait, when the gateway is killed."""
        await self.start()
        for member in self.members:
            self.connect(member)
        await self.quiet()
        for topic in self.kind.topics:
            if names.is_queue(topic):
                self.core.destinations.queue_list(topic, "anonymous")
        self.publish(self.choices.of(6))
        await self.quiet()
        for member in self.members:
            assert member.peer is not None
            if member.peer.hand:
                self.acknowledge(member, self.choices.of(3))
        await self.quiet()
        if self.kind.is_restored:
            await self.kill()

    # --- what must be so -----------------------------------------------------------------------

    def note(self, stored: StoredMessage) -> None:
        """It was delivered."""
        found = self.delivered.setdefault(stored.message.destination, [])
        number = int(stored.message.body)
        if number in found:
            return
        if self.kind.is_ordered and found and number < found[-1]:
            self.problems.append(f"{number} behind {found[-1]}")
        found.append(number)

    def _learn(self) -> None:
        self.confirmed.update(self.publisher.confirmations)  # type: ignore[arg-type]  # numbers

    async def quiet(self) -> None:
        """Until nothing happens any more."""
        quiet = 0
        for _ in range(TURNS_MAX):
            if quiet == QUIET_TURNS:
                self._learn()
                return
            await asyncio.sleep(0)
            writer, tasks = self.core.writer, self.core.tasks
            is_busy = writer._in_flight is not None or writer.scheduled or self.steps.waiting
            is_reading = any(
                task.get_name().startswith(("page-in", "select")) for task in tasks.running
            )
            quiet = 0 if is_busy or is_reading or tasks.closers else quiet + 1
        raise AssertionError("the gateway does not come to rest")

    async def rest(self) -> None:
        """Let everything happen that can, without the clients, and look at what is there then."""
        self.log.append("rest")
        was_on = self.steps.is_on
        self.steps.end()
        await self.quiet()
        await self.check()
        self.steps.is_on = was_on

    async def check(self) -> None:
        assert not self.problems, self.problems
        in_flight: dict[PendingList, set[int]] = {}
        for _, consumer in self._consumers():
            for sequence, (_, pending_list, _) in consumer.in_flight.items():
                in_flight.setdefault(pending_list, set()).add(sequence)
        for pending_list in self._lists():
            if pending_list.is_removed:
                continue
            if not pending_list.is_stored:
                is_served = any(consumer.room() > 0 for consumer in pending_list.consumers)
                assert not (is_served and pending_list.cursor.size), pending_list.destination
                continue
            page = await self.core.store.page_in(pending_list.id, 0, ALL, ALL)
            stored = {item.sequence: item for item in page}
            out = in_flight.get(pending_list, set())
            assert out <= stored.keys(), "in flight, and not in the store"
            waiting = [item for item in page if item.sequence not in out]
            assert pending_list.cursor.size == len(waiting), (
                f"{pending_list.destination}: the store has {len(waiting)} messages that nobody was"
                f" given, the cursor {pending_list.cursor.size}"
            )
            for consumer in pending_list.all_consumers():
                matches = consumer.matches
                wanted = [item for item in waiting if matches is None or matches(item.message)]
                assert not wanted or consumer.room() <= 0, (
                    f"{pending_list.destination}: {len(wanted)} messages wait for {consumer.client}"
                )
        assert not self.publisher.is_paused or any(pl.is_full for pl in self._lists())

    async def _end(self) -> None:
        self.steps.end()
        await self.rest()
        self.log.append("end")
        for member in self.members:
            if not member.is_there:
                self.connect(member)
                await self.quiet()
            assert member.peer is not None
            if not member.peer.is_writable:
                self.block(member)
        await self.quiet()
        while any(member.peer is not None and member.peer.hand for member in self.members):
            for member in self.members:
                if member.peer is not None and member.peer.hand:
                    self.acknowledge(member, len(member.peer.hand))
            await self.quiet()
        await self.rest()
        delivered = {number for found in self.delivered.values() for number in found}
        if self.kind.is_restored:
            missing = self.confirmed - self.expiring - delivered
            assert not missing, f"confirmed and not delivered: {sorted(missing)}"
        for pending_list in self._lists():
            if not pending_list.destination.startswith(DEAD_LETTERS):
                assert not pending_list.cursor.size, pending_list.destination
                if pending_list.is_stored:
                    assert not await self.core.store.page_in(pending_list.id, 0, 1, 1)
        for peer in [self.publisher, *(m.peer for m in self.members if m.peer is not None)]:
            if peer.ended is None:
                peer.connection.disconnect(graceful=True)
        await self.core.stop()


def play(setting: Setting, choices: Choices) -> Choices:
    """Play one order. Raises: AssertionError; its notes say what was done, and what was chosen."""
    problems: list[dict[str, Any]] = []
    world: list[World] = []

    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="tidegate-test-") as directory:
            world.append(World(setting, choices, Path(directory)))
            await world[0].play()

    try:
        with asyncio.Runner(loop_factory=SteppedLoop) as runner:
            runner.get_loop().set_exception_handler(lambda _loop, found: problems.append(found))
            runner.run(main())
        assert not problems, problems
    except BaseException as error:
        error.add_note(f"{setting}")
        error.add_note(f"chosen: {[chosen for chosen, _ in choices.made]}")
        error.add_note(" | ".join(world[0].log))
        raise
    return choices


def drawn(kind: str, seed: int, *, is_journal: bool = False) -> None:
    """Play an order and a setting that *seed* says."""
    chance = random.Random(f"{kind} {seed}")
    setting = Setting(
        kind,
        cursor=chance.choice(("store", "store", "vm", "file")),
        is_journal=is_journal,
        memory=chance.choice((1, 700, 2000, 1 << 20)),
        messages=chance.choice((0, 0, 1, 3)),
        page=chance.choice((1, 2, 200)),
        shared=chance.choice((1, 1500, 1 << 26)),
        prefetch=chance.choice((1, 2, 5, 100)),
        prefetch_bytes=chance.choice((1, 1 << 20)),
        keeps=chance.random() < 0.5,
        reads_late=chance.random() < 0.7,
        kills=chance.choice((0, 0, 1)) if KINDS[kind].is_restored else 0,
        acts=chance.choice((1, 2, 4, 6)),
        stays=chance.random() < 0.3,
        refuses=chance.random() < 0.3,
        rejects=chance.random() < 0.3,
        bound=chance.choice((0, 0, 0, 2, 4)),
    )
    play(setting, Choices(chance=chance))
