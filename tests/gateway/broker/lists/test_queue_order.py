"""What a queue hands out is the first that it has: beside what the store has of it, whatever happens to it.

Consumers with a selector and without, who acknowledge, reject, stall and are lost, several at a time, and what they
had comes back bit by bit while others come and go; messages of all sizes, some of which expire; an operator who browses, purges, moves and pauses; restarts and kills. Faults of the
disk, and transactions, are in ``test_queue_model.py``, other orders of events in ``interleavings/``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from broker_harness import Broker, Client
from examples import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from operated import ask
from virtual_loop import VirtualLoop

from tidegate.broker.lists.pending_list import InFlight, PendingList
from tidegate.broker.lists.selecting import Scanner
from tidegate.broker.turn import coming_back, flow, walks
from tidegate.broker.turn.coming_back import ComingBack
from tidegate.config import DestinationPolicy
from tidegate.spi import StoredMessage
from tidegate.spi.operate import (
    BrowsedMessage,
    BrowseMessages,
    Done,
    MessagePage,
    MoveMessages,
    PauseDestination,
    PurgeDestination,
    ResumeDestination,
    Side,
)
from tidegate_cursors._ordered_memory import OrderedMemory

QUEUE, OTHER = "queue://q", "queue://other"
CURSORS = ("store", "vm", "file")
#: Of a message's header g, and what consumers and operators want of it.
GROUPS = ("a", "b")
SELECTORS = ("", "", "g = 'a'", "g = 'b'")
CONSUMERS_MAX = 4
LIFE_US = 2_000_000

_sizes = st.lists(st.sampled_from([0, 20, 200, 2_000]), min_size=1, max_size=15)
#: Of the loop, until the next rule; None: all comes to rest.
_turns = st.sampled_from([None, None, None, None, 0, 1, 3])


@dataclass(eq=False)
class Member:
    """A consumer and what it wants."""

    client: Client
    prefetch: int
    group: str
    is_stalled: bool = False

    def wants(self, stored: StoredMessage) -> bool:
        return not self.group or ("g", self.group) in stored.message.headers


class QueueOrder(RuleBasedStateMachine):
    """The model is the store, *out* and *settled*.

    Attributes:
        out: who has a message, by sequence; settled: acknowledged, and perhaps in the store still.
        counts: how often a message came back, as it was last handed out.
        given: the last that somebody was given since all was at rest; passed: what waited in front of something
            that was handed out: consumers with a selector share what comes at once, so others may have that.
        walks: an operator's request is under way, which takes messages for itself.
    """

    broker: Broker
    producer: Client

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[object] = []
        self.runner = asyncio.Runner(loop_factory=self._make_loop)
        self.members: list[Member] = []
        self.out: dict[int, Member] = {}
        self.settled: set[int] = set()
        self.counts: dict[int, int] = {}
        self.given: dict[Member, int] = {}
        self.passed: set[int] = set()
        self.walks = False
        self.is_paused = False

    def _make_loop(self) -> asyncio.AbstractEventLoop:
        loop = VirtualLoop()
        loop.set_exception_handler(lambda _loop, context: self.problems.append(context))
        return loop

    def do(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.runner.run(coroutine)
        assert not self.problems, self.problems

    def act(self, act: Callable[[], object], turns: int | None = None) -> None:
        """Do it, and see what comes of it. Args: turns: of the loop, before something else happens; None: rest."""

        async def acted() -> None:
            act()
            await self.rest(turns)

        self.do(acted())

    async def rest(self, turns: int | None = None) -> None:
        """Let all happen that is under way, and look at it; or only some *turns* of the loop."""
        if turns is not None:
            for _ in range(turns):
                await asyncio.sleep(0)
            return
        while self.broker.core.flow.coming_back.is_under_way:
            await asyncio.sleep(0)
        await self.broker.settle()
        self.check_at_rest()

    # --- what there is

    def stored(self, queue: str = QUEUE) -> dict[int, StoredMessage]:
        """What the store has of a queue, in order."""
        contents = self.broker.contents
        known = contents.destinations.get(queue)
        return contents.lists.get(known.pending_list, {}) if known is not None else {}

    def waiting(self) -> list[StoredMessage]:
        """What could be handed out now, in order."""
        return [
            stored
            for sequence, stored in sorted(self.stored().items())
            if sequence not in self.out
            and sequence not in self.settled
            and not self._is_over(stored)
        ]

    def _is_over(self, stored: StoredMessage) -> bool:
        return 0 < stored.message.expires_at <= self.broker.core.now()

    def _note(self, member: Member, messages: Sequence[StoredMessage]) -> None:
        try:
            self._check_delivery(member, messages)
        except AssertionError as error:  # the broker would only log it
            self.problems.append(str(error))

    def _check_delivery(self, member: Member, messages: Sequence[StoredMessage]) -> None:
        waiting = {stored.sequence: stored for stored in self.waiting()}
        for message in messages:
            sequence = message.sequence
            assert sequence not in self.out, f"{sequence} is out already"
            assert sequence in waiting, f"{sequence} has left the queue, or has expired"
            assert message.message == waiting[sequence].message
            assert member.wants(message), f"{sequence} is not selected"
            assert sequence > self.given.get(member, 0), f"{sequence} behind {self.given[member]}"
            self.given[member] = sequence
            lower = [
                item for item, other in waiting.items() if item < sequence and member.wants(other)
            ]
            if not self.walks:
                self.passed.update(lower)
            count = self.counts.get(sequence, 0)
            assert message.delivery_count >= count, f"{sequence}: a delivery was forgotten"
            self.counts[sequence] = message.delivery_count
            self.out[sequence] = member
            del waiting[sequence]

    def check_at_rest(self) -> None:
        broker, stored = self.broker, self.stored()
        assert not self.passed & {item.sequence for item in self.waiting()}, "passed over"
        self.passed.clear()
        self.given.clear()
        assert not self.settled & stored.keys(), "acknowledged, and there"
        assert self.out.keys() <= stored.keys(), "in flight, and gone"
        if "q" not in {name.partition("://")[2] for name in broker.core.destinations.queues}:
            assert not stored
            return
        cursor = broker.queue("q").cursor
        assert cursor.size == len(stored) - len(self.out)
        waiting = self.waiting()
        for member in self.members:
            held = [sequence for sequence, holder in self.out.items() if holder is member]
            assert set(member.client.connection.consumers["s"].in_flight) == set(held)
            if len(held) < member.prefetch and not member.is_stalled and not self.is_paused:
                assert not any(map(member.wants, waiting)), "a consumer with room waits"

    # --- the world

    @initialize(
        cursor=st.sampled_from(CURSORS),
        room=st.integers(1, 20),
        page_count=st.integers(1, 5),
        step=st.sampled_from([2, 256]),
    )
    def begin(self, cursor: str, room: int, page_count: int, step: int) -> None:
        coming_back.STEP_MESSAGES = step  # type: ignore[misc]  # the fixture puts it back
        policies = [
            DestinationPolicy(
                match=name,
                cursor=cursor,
                memory_limit=room * 700,
                page_count=page_count,
                max_deliveries=0,
            )
            for name, cursor in (("q", cursor), ("other", "store"))
        ]
        self.broker = Broker(*policies)

        async def start() -> None:
            await self.broker.start()
            self.producer = await self.broker.client()

        self.do(start())

    @rule(
        sizes=_sizes,
        every=st.integers(1, 4),
        expiring=st.booleans(),
        to_other=st.booleans(),
        turns=_turns,
    )
    def publish(
        self, sizes: list[int], every: int, expiring: bool, to_other: bool, turns: int | None
    ) -> None:
        def send() -> None:
            expires_at = self.broker.core.now() + LIFE_US if expiring else 0
            for number, size in enumerate(sizes):
                self.producer.send(
                    OTHER if to_other and not number % 2 else QUEUE,
                    bytes(size),
                    headers=(("g", GROUPS[number % every > 0]),),
                    expires_at=expires_at if not number % 3 else 0,
                )

        self.act(send, turns)

    async def _new_member(self, prefetch: int, selector: str) -> None:
        client = await self.broker.client()
        member = Member(client, prefetch, selector[-2:-1])
        client.on_deliver = lambda _key, messages: self._note(member, messages)
        self.members.append(member)
        client.subscribe(QUEUE, prefetch_count=prefetch, selector=selector)

    @precondition(lambda self: len(self.members) < CONSUMERS_MAX)
    @rule(prefetch=st.integers(1, 12), selector=st.sampled_from(SELECTORS), turns=_turns)
    def consume(self, prefetch: int, selector: str, turns: int | None) -> None:
        async def consume() -> None:
            await self._new_member(prefetch, selector)
            await self.rest(turns)

        self.do(consume())

    # --- what consumers do

    def _some(self, data: st.DataObject) -> dict[Member, list[int]]:
        """Some of what is out, by who has it."""
        every = data.draw(st.integers(1, 3), "every")
        first = data.draw(st.integers(0, max(0, len(self.out) - 1)), "first")
        found: dict[Member, list[int]] = {}
        for sequence in list(self.out)[first::every]:
            found.setdefault(self.out[sequence], []).append(sequence)
        return found

    @precondition(lambda self: self.out)
    @rule(data=st.data(), rejected=st.booleans(), backwards=st.booleans(), turns=_turns)
    def answer(
        self, data: st.DataObject, rejected: bool, backwards: bool, turns: int | None
    ) -> None:
        """Acknowledge or reject some of it, in one turn."""
        some = self._some(data)

        def answer() -> None:
            for member, sequences in some.items():
                if backwards:
                    sequences.reverse()
                for sequence in sequences:
                    del self.out[sequence]
                if rejected:
                    self.given.clear()
                    member.client.connection.reject("s", sequences)
                else:
                    self.settled.update(sequences)
                    member.client.connection.acknowledge("s", sequences)

        self.act(answer, turns)

    def _lose(self, member: Member, graceful: bool) -> None:
        self.members.remove(member)
        self.given.clear()
        self.out = {item: holder for item, holder in self.out.items() if holder is not member}
        if graceful:
            member.client.connection.unsubscribe("s")
        member.client.connection.disconnect(graceful=graceful)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), graceful=st.booleans(), turns=_turns)
    def leave(self, data: st.DataObject, graceful: bool, turns: int | None) -> None:
        """Some of them at a time, in any order."""
        some = data.draw(st.permutations(self.members), "order")
        count = data.draw(st.integers(1, len(some)), "count")
        self.act(lambda: [self._lose(member, graceful) for member in some[:count]], turns)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), is_stalled=st.booleans(), turns=_turns)
    def stall(self, data: st.DataObject, is_stalled: bool, turns: int | None) -> None:
        member = data.draw(st.sampled_from(self.members))
        member.is_stalled = is_stalled
        self.act(lambda: member.client.connection.writable(not is_stalled), turns)

    # --- what operators do

    def _wanted(self, group: str, queue: str = QUEUE) -> list[StoredMessage]:
        """What an operator gets who asks for it: all that nobody has."""
        return [
            stored
            for sequence, stored in sorted(self.stored(queue).items())
            if not (queue == QUEUE and sequence in self.out)
            and (not group or ("g", group) in stored.message.headers)
        ]

    async def _walk(self, request: Any) -> Done:
        self.walks = True
        done = await ask(self.broker, request)
        self.walks = False
        assert isinstance(done, Done)
        return done

    @rule(selector=st.sampled_from(SELECTORS), count_max=st.sampled_from([0, 0, 1, 3]))
    def purge(self, selector: str, count_max: int) -> None:
        async def purge() -> None:
            await self.rest()
            if QUEUE not in self.broker.core.destinations.queues:
                return
            wanted = self._wanted(selector[-2:-1])[: count_max or None]
            before = set(self.stored())
            done = await self._walk(PurgeDestination(QUEUE, selector=selector, count_max=count_max))
            assert done.count == len(wanted)
            assert before - self.stored().keys() == {item.sequence for item in wanted}
            self.check_at_rest()

        self.do(purge())

    @rule(
        selector=st.sampled_from(SELECTORS),
        count_max=st.sampled_from([0, 0, 1, 3]),
        is_back=st.booleans(),
    )
    def move(self, selector: str, count_max: int, is_back: bool) -> None:
        async def move() -> None:
            await self.rest()
            source, target = (OTHER, QUEUE) if is_back else (QUEUE, OTHER)
            core = self.broker.core
            if not {source, target} <= core.destinations.queues.keys():
                return
            if core.destinations.queues[target] in core.flow.full_lists:
                return
            wanted = self._wanted(selector[-2:-1], source)[: count_max or None]
            before = set(self.stored(target))
            done = await self._walk(
                MoveMessages(source, target, selector=selector, count_max=count_max)
            )
            assert done.count == len(wanted)
            assert not {item.sequence for item in wanted} & self.stored(source).keys()
            came = [item for n, item in self.stored(target).items() if n not in before]
            if not is_back:  # nobody consumes there
                assert [item.message.body for item in came] == [m.message.body for m in wanted]
            assert sorted(self.stored(target)) == list(self.stored(target))
            self.check_at_rest()

        self.do(move())

    @rule(limit=st.integers(1, 20))
    def browse(self, limit: int) -> None:
        async def browse() -> None:
            await self.rest()
            if QUEUE not in self.broker.core.destinations.queues:
                return
            rows: list[BrowsedMessage] = []
            after = 0
            while True:
                page = await ask(self.broker, BrowseMessages(QUEUE, after=after, limit=limit))
                assert isinstance(page, MessagePage)
                rows += page.rows
                after = page.next
                if not after:
                    break
            alive = {number for number, item in self.stored().items() if not self._is_over(item)}
            assert [row.sequence for row in rows] == sorted(alive)
            assert {row.sequence for row in rows if row.is_in_flight} == self.out.keys() & alive
            self.check_at_rest()

        self.do(browse())

    @rule(is_paused=st.booleans())
    def pause(self, is_paused: bool) -> None:
        async def pause() -> None:
            await self.rest()
            if QUEUE not in self.broker.core.destinations.queues:
                return
            kind = PauseDestination if is_paused else ResumeDestination
            self.is_paused = is_paused
            await ask(self.broker, kind(QUEUE, (Side.CONSUMERS,)))
            self.check_at_rest()

        self.do(pause())

    # --- what happens

    @rule(seconds=st.sampled_from([0.5, 1.5, 3.0]))
    def wait(self, seconds: float) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            await self.rest()

        self.do(wait())

    @rule(cleanly=st.booleans(), prefetch=st.integers(1, 12), selector=st.sampled_from(SELECTORS))
    def restart(self, cleanly: bool, prefetch: int, selector: str) -> None:
        async def restart() -> None:
            for member in self.members:
                member.client.on_deliver = None
            if cleanly:
                await self.broker.core.stop()
                await self.broker.start()
            else:
                await self.broker.kill()
            self.members.clear()
            self.out.clear()
            self.settled.clear()  # and some of them, perhaps, are there again
            self.passed.clear()
            self.counts.clear()
            self.given.clear()
            self.producer = await self.broker.client()
            await self._new_member(prefetch, selector)
            await self.rest()

        self.do(restart())

    def teardown(self) -> None:
        try:
            if hasattr(self, "broker"):
                for member in self.members:
                    member.client.on_deliver = None
                self.do(self.broker.__aexit__())
        finally:
            self.runner.close()


SETTINGS = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.fixture(autouse=True)
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock finds that the slice is over, so what comes back in steps does so in turns."""
    monkeypatch.setattr(coming_back, "STEP_MESSAGES", coming_back.STEP_MESSAGES)
    now = itertools.count()
    for module in (walks, flow):
        monkeypatch.setattr(module, "perf_counter", lambda: next(now))


def test_the_first_that_waits_is_handed_out() -> None:
    run_state_machine_as_test(QueueOrder, settings=SETTINGS)


# --- what the model is to find ---------------------------------------------------------------------


def mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes back stays where it was put."""
    monkeypatch.setattr(OrderedMemory, "in_order", lambda self: self.messages)


def short_sighted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer with a selector does not hear of what came back behind it."""
    monkeypatch.setattr(Scanner, "returned", lambda _self, _message: None)


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue hands out while what others had is on its way back."""
    begin = ComingBack.begin

    def hurry(
        self: ComingBack, found: Sequence[tuple[dict[int, InFlight], PendingList | None]]
    ) -> None:
        lists = {entry[1] for in_flight, _ in found for entry in in_flight.values()}
        begin(self, found)
        for pending_list in lists:
            pending_list.returning = 0

    def release(self: ComingBack, lists: Iterable[PendingList]) -> None:
        for pending_list in lists:
            self._around.mark_ready(pending_list)

    monkeypatch.setattr(ComingBack, "begin", hurry)
    monkeypatch.setattr(ComingBack, "_release", release)


@pytest.mark.parametrize("fault", [mixed, short_sighted, hurried])
def test_the_model_finds(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave() -> None:
        machine = QueueOrder()
        try:
            machine.begin(
                cursor="store", room=20, page_count=5, step=2 if fault is hurried else 256
            )
            selector = "g = 'a'" if fault is short_sighted else ""
            for prefetch in (4, 4):
                machine.consume(prefetch, selector, None)
            machine.publish([0] * 8, 1, expiring=False, to_other=False, turns=None)
            machine.consume(3, selector, None)
            gone = machine.members[:2]
            machine.act(lambda: [machine._lose(member, False) for member in gone])
        finally:
            machine.teardown()

    leave()
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        leave()
