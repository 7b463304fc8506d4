"""What :mod:`interleaving_world` is made of: choices, steps that wait for their turn, and the kinds of lists."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from virtual_loop import VirtualLoop

from tidegate.spi import (
    RecoveredState,
    StoredMessage,
    WriteBatch,
)
from tidegate_store_journal.write.writer import Request, Writer

T = TypeVar("T")


class Choices:
    """What is chosen: the first always, but for some places; or drawn.

    Args: others: by place, what is chosen there; chance: draws whatever is not in *others*.
    Attributes: made: (chosen, of how many).
    """

    def __init__(
        self, others: dict[int, int] | None = None, chance: random.Random | None = None
    ) -> None:
        self.made: list[tuple[int, int]] = []
        self._others = others or {}
        self._chance = chance

    def of(self, count: int) -> int:
        place = len(self.made)
        chosen = 0
        if place in self._others:
            chosen = min(self._others[place], count - 1)
        elif self._chance is not None:
            chosen = self._chance.randrange(count)
        self.made.append((chosen, count))
        return chosen

    def neighbours(self) -> Iterator[dict[int, int]]:
        """Choices that differ in one place behind the last one in which these do."""
        first = max(self._others, default=-1) + 1
        for place, (chosen, count) in enumerate(self.made[first:], first):
            for other in range(count):
                if other != chosen:
                    yield self._others | {place: other}


class Steps:
    """Who waits to go on, the oldest first.

    Attributes:
        is_on: False: nobody waits.
        is_slow: the next write of a journal is not done at once.
        is_dead: the gateway is being killed: nothing is written any more.
    """

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.is_on = self.is_dead = False
        self.is_slow: Callable[[], int] = lambda: 1

    async def wait(self) -> None:
        if not self.is_on:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go_on() -> None:
            if not future.done():
                future.set_result(None)

        self.waiting.append(go_on)
        await future

    def end(self) -> None:
        """From now on nobody waits."""
        self.is_on = False
        while self.waiting:
            self.waiting.pop(0)()


class SteppedLoop(VirtualLoop):
    """What is done in a thread is two steps: it is done, and its result comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = Steps()

    def run_in_executor(  # type: ignore[override]  # narrower than the loop's own
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        if not self.steps.is_on:
            return super().run_in_executor(executor, func, *args)
        future: asyncio.Future[T] = self.create_future()

        def act() -> None:
            done = super(SteppedLoop, self).run_in_executor(executor, func, *args)

            def come_back() -> None:
                if future.done():
                    return
                if error := done.exception():
                    future.set_exception(error)
                else:
                    future.set_result(done.result())

            done.exception()
            self.steps.waiting.append(come_back)

        self.steps.waiting.append(act)
        return future


class SteppedWriter(Writer):
    """The journal's writer: what it does in its thread is two steps, too, each in its turn."""

    def start(self, synced_batch: int) -> None:
        super(Writer, self).start(synced_batch)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        self._steps = loop.steps
        self._given: list[Request] = []
        self._done: list[Request] = []
        self._waiting = 0

    def submit(self, request: Request) -> None:
        if not self._waiting and not (self._steps.is_on and self._steps.is_slow()):
            self._attempt(request)
            self._finish(request)
            return
        self._waiting += 1
        self._given.append(request)
        self._steps.waiting.append(self._carry_out_next)

    def _carry_out_next(self) -> None:
        if self._given and not self._steps.is_dead:
            request = self._given.pop(0)
            self._attempt(request)
            self._done.append(request)
            self._steps.waiting.append(self._answer_next)

    def _answer_next(self) -> None:
        if self._done:
            self._answered(self._done.pop(0))

    async def close(self) -> None:
        self._stop_timer()
        while self._given or self._done:
            self._carry_out_next()
            self._answer_next()


class SteppedStore:
    """A store that waits before and behind each write and page."""

    def __init__(self, inner: Any, steps: Steps, *, reads_late: bool) -> None:
        self.inner = inner
        self._steps = steps
        self._reads_late = reads_late

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def open(self) -> RecoveredState:
        return await self.inner.open()

    async def write(self, batch: WriteBatch) -> None:
        await self._steps.wait()
        await self.inner.write(batch)
        await self._steps.wait()

    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        if self._reads_late:
            await self._steps.wait()
        page = await self.inner.page_in(pending_list, after, limit, bytes_max)
        await self._steps.wait()
        return page


@dataclass(frozen=True)
class Setting:
    """A gateway and its clients.

    Attributes:
        kind: of the lists; see KINDS; is_journal: they are in the journal and not in memory.
        memory, messages, page, shared: limits of the cursor.
        prefetch: messages that a consumer may have in flight; prefetch_bytes: and bytes.
        keeps: there is a sink; kills: how often the gateway is killed on the way.
        acts: how many there are of each kind of act; stays: consumers never leave.
        refuses, rejects: consumers do that to every third, or seventh, message from within its delivery.
        bound: messages that a list takes before producers wait; 0: any number.
    """

    kind: str
    cursor: str = "store"
    is_journal: bool = False
    memory: int = 1 << 20
    messages: int = 0
    page: int = 200
    shared: int = 1 << 26
    prefetch: int = 100
    prefetch_bytes: int = 1 << 20
    keeps: bool = True
    reads_late: bool = False
    kills: int = 0
    acts: int = 2
    stays: bool = False
    refuses: bool = False
    rejects: bool = False
    bound: int = 0


@dataclass(frozen=True)
class Kind:
    """Which lists there are, and who consumes from them.

    Attributes:
        topics: where messages are published to.
        members: consumers, each with the fields of its subscription.
        protocol; is_named: they have client ids; is_session: their subscriptions come back with them.
        is_ordered: first deliveries of each destination are in order.
        is_restored: what is pending outlives the gateway.
    """

    topics: tuple[str, ...]
    members: tuple[dict[str, Any], ...]
    protocol: str = "stomp"
    is_named: bool = False
    is_session: bool = False
    is_ordered: bool = True
    is_restored: bool = True
    unstored: bool = False


_SESSION = {"destination": "topic://t.>", "durable_name": "t", "key": "t", "qos": 1}
_DURABLE = {"destination": "topic://t.>", "durable_name": "d", "key": "d"}
_RAISED = {"destination": "topic://t.>", "key": "t", "qos": 0}
_SHARED = {"destination": "topic://t.>", "durable_name": "g", "key": "g", "share_group": "g"}
_QUEUE = {"destination": "queue://q.1", "key": "q"}
_FILTER = {"destination": "queue://q.>", "key": "f"}
_TOPICS = ("topic://t.1", "topic://t.2")
_QUEUES = ("queue://q.1", "queue://q.2")

KINDS = {
    "session": Kind(_TOPICS, (_SESSION,), "mqtt", is_named=True, is_session=True),
    "durable": Kind(_TOPICS, (_DURABLE,), is_named=True),
    "temporary": Kind(_TOPICS, ({"destination": "topic://t.>", "key": "t"},), is_restored=False),
    "raised": Kind(_TOPICS, (_RAISED,), "mqtt", is_named=True, is_restored=False),
    "shared": Kind(_TOPICS, (_SHARED, _SHARED), "mqtt", is_named=True, is_session=True),
    "queue": Kind(_QUEUES[:1], (_QUEUE, _QUEUE)),
    "filter": Kind(_QUEUES, (_FILTER, _QUEUE)),
    "filters": Kind(_QUEUES, (_FILTER, _FILTER)),
    "selectors": Kind(_QUEUES[:1], (_QUEUE, _QUEUE | {"selector": "odd = 1"}), is_ordered=False),
    "spooled": Kind(_QUEUES[:1], (_QUEUE, _QUEUE), is_restored=False, unstored=True),
}
