"""A rule-based state machine that drives a pending cursor beside a plain list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidegate.spi import (
    CursorContext,
    CursorFactory,
    CursorFeed,
    CursorMemory,
    Message,
    PendingCursor,
    StoredMessage,
    memory_bytes,
)

CURSOR_MACHINE_SETTINGS: Final = settings(
    max_examples=settings().max_examples * 6 // 10,  # 60, unless a profile says so
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
    database=None,  # leaves no directory where the kit is run
)

_ANY_SIZE: Final = 1 << 40

#: Most steps of the loop that a call in a thread takes.
_THREAD_STEPS: Final = 6
_T = TypeVar("_T")

_sizes: Final = st.lists(
    st.integers(0, 200) | st.sampled_from([1_000, 5_000]), min_size=1, max_size=12
)


def message_of(sequence: int, body: bytes | None = None, delivery_count: int = 0) -> StoredMessage:
    """A message whose body says its sequence, unless another *body* is given."""
    content = b"message %d" % sequence if body is None else body
    return StoredMessage.of(sequence, Message("queue://q", content), delivery_count)


class ListStore:
    """The message store as a cursor sees it: one list, read by pages.

    Attributes:
        messages: what is pending in the store, including taken ones, by sequence.
        pages: (after, limit, bytes_max) of every page that was read.
        gate: when set, a page waits for it after reading, or before when ``gate_before``.
        error: when set, the next page raises it.
    """

    def __init__(self) -> None:
        self.messages: dict[int, StoredMessage] = {}
        self.pages: list[tuple[int, int, int]] = []
        self.gate: asyncio.Event | None = None
        self.gate_before = False
        self.error: Exception | None = None

    def add(self, messages: Sequence[StoredMessage]) -> None:
        """Make *messages* durable."""
        self.messages.update((stored.sequence, stored) for stored in messages)

    async def read_page(self, after: int, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
        """As :meth:`tidegate.spi.MessageStore.page_in` for this list."""
        assert limit >= 1
        assert bytes_max >= 1
        self.pages.append((after, limit, bytes_max))
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if self.gate is not None and self.gate_before:
            await self.gate.wait()
        page: list[StoredMessage] = []
        size = 0
        for sequence in sorted(known for known in self.messages if known > after):
            stored = self.messages[sequence]
            size += len(stored.message.body)
            if len(page) == limit or (page and size > bytes_max):
                break
            page.append(stored)
        if self.gate is not None and not self.gate_before:
            await self.gate.wait()
        else:
            await asyncio.sleep(0)
        return page


class _SteppedLoop(asyncio.SelectorEventLoop):
    """Work meant for threads is done some steps of the loop later, so that every run is the same.

    A rule takes a step or two: what is under way stays so while the next rules run.
    """

    def run_in_executor(  # type: ignore[override] - narrower than the loop's own
        self, executor: object, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        """Run *func*, but not at once."""
        done: asyncio.Future[_T] = self.create_future()

        def step(left: int) -> None:
            if left:
                self.call_soon(step, left - 1)
                return
            try:
                result = func(*args)
            except Exception as error:
                if not done.cancelled():
                    done.set_exception(error)
            else:
                if not done.cancelled():
                    done.set_result(result)

        self.call_soon(step, _THREAD_STEPS)
        return done


class CursorMachine(RuleBasedStateMachine):
    """The model is ``untaken``: what the cursor must deliver, in this order.

    Attributes:
        memory_limits, spool_limits: the values of ``memory_limit_bytes`` and ``temporary_limit_bytes``
            to draw from; a subclass may narrow them.
    """

    memory_limits: Sequence[int] = (1, 2_000, 5_000, 20_000, 1 << 30)
    spool_limits: Sequence[int] = (0, 500, 5_000, 50_000, 1 << 30)

    def __init__(self, factory: CursorFactory, directory: Path) -> None:
        super().__init__()
        self.factory = factory
        self.directory = directory
        self.runner = asyncio.Runner(loop_factory=_SteppedLoop)
        self.store = ListStore()
        self.shared = CursorMemory()
        self.untaken: list[StoredMessage] = []
        self.taken: list[StoredMessage] = []
        self.claimed: set[int] = set()  # those of the taken ones that were claimed
        self.last_sequence = 0
        self.memory_limit = 0
        self.is_stored = True
        self.context: CursorContext
        self.cursor: PendingCursor

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        async def bounded() -> _T:
            async with asyncio.timeout(30):
                return await coroutine

        return self.runner.run(bounded())

    def _call(self, act: Callable[[], None]) -> None:
        """Do *act* where cursors are called: on the event loop."""

        async def on_the_loop() -> None:
            act()

        self._run(on_the_loop())

    def _make(self, sizes: Sequence[int]) -> list[StoredMessage]:
        made: list[StoredMessage] = []
        for size in sizes:
            self.last_sequence += 1 + size % 3
            made.append(message_of(self.last_sequence, bytes(size)))
        return made

    @initialize(
        recovered=st.just([]) | st.lists(st.integers(0, 300), max_size=30),
        page_count=st.integers(1, 8),
        data=st.data(),
    )
    def start(
        self,
        recovered: list[int],
        page_count: int,
        data: st.DataObject,
    ) -> None:
        memory_limit = data.draw(st.sampled_from(self.memory_limits), "memory limit")
        spool_limit = data.draw(st.sampled_from(self.spool_limits), "spool limit")
        self.is_stored = self.factory.needs_store or data.draw(st.booleans(), "stored")
        self.memory_limit = memory_limit
        if self.is_stored:
            self.untaken = self._make(recovered)
            self.store.add(self.untaken)
        self.context = CursorContext(
            destination="queue://q",
            read_page=self.store.read_page if self.is_stored else None,
            recovered_count=len(self.untaken),
            memory_limit_bytes=memory_limit,
            page_count=page_count,
            temporary_directory=self.directory,
            temporary_limit_bytes=spool_limit,
            shared_memory=self.shared,
        )
        self.cursor = self.factory.create(self.context)

    # ------------------------------------------------------------------------------ what happens

    def _offer(self, sizes: Sequence[int]) -> None:
        messages = self._make(sizes)
        if self.is_stored:
            self.store.add(messages)
        self._hand_in(messages)

    def _hand_in(self, messages: Sequence[StoredMessage]) -> None:
        dropped = self.cursor.offer(messages)
        self.untaken += messages
        assert not (dropped and self.is_stored), "a stored message must never be dropped"
        for stored in dropped:
            self.untaken.remove(stored)

    def _take(self, limit: int, bytes_max: int) -> None:
        found = self.cursor.take(limit, bytes_max)
        assert len(found) <= limit
        assert list(found) == self.untaken[: len(found)]
        size = sum(len(stored.message.body) for stored in found)
        assert size <= bytes_max or len(found) == 1
        del self.untaken[: len(found)]
        self.taken += found

    def _claim(self, first: int, count: int) -> None:
        """Every third untaken message from some place on; a taken one cannot be claimed again."""
        first %= len(self.untaken) + 1
        wanted = self.untaken[first::3][:count]
        extra = [stored.sequence for stored in self.taken[:2]]
        found = self.cursor.claim([*extra, *(stored.sequence for stored in wanted)])
        assert list(found) == [stored.sequence for stored in wanted]
        self.untaken = [stored for stored in self.untaken if stored not in wanted]
        self.claimed |= set(found)
        self.taken += wanted

    def _put_back(self, count: int) -> None:
        """Return every second taken message or all of them, each with one more delivery, last one first."""
        self._return(self.taken[-count:] if count % 2 else self.taken[::2])

    def _return(self, returned: Sequence[StoredMessage]) -> None:
        self.taken = [stored for stored in self.taken if stored not in returned]
        counted = [
            StoredMessage.of(stored.sequence, stored.message, stored.delivery_count + 1)
            for stored in reversed(returned)
        ]
        self.untaken = sorted([*self.untaken, *counted], key=lambda stored: stored.sequence)
        self.claimed -= {stored.sequence for stored in counted}
        self.cursor.put_back(counted)

    def _remove(self, first: int, count: int) -> None:
        """Purge untaken messages, together with a taken one and one that never existed."""
        first %= len(self.untaken) + 1
        gone = self.untaken[first : first + count]
        for stored in gone:
            self.store.messages.pop(stored.sequence, None)
        self.untaken = [stored for stored in self.untaken if stored not in gone]
        extra = [
            stored.sequence for stored in self.taken[:1] if stored.sequence not in self.claimed
        ]
        assert self.cursor.remove([*(stored.sequence for stored in gone), *extra]) == len(gone)

    def _acknowledge(self, count: int) -> None:
        gone = [stored.sequence for stored in self.taken[:count]]
        for sequence in gone:
            self.store.messages.pop(sequence, None)
        del self.taken[:count]
        claimed = [sequence for sequence in gone if sequence in self.claimed]
        self.claimed -= set(claimed)
        if claimed:
            assert self.cursor.remove(claimed) == 0

    # ------------------------------------------------------------------------------------ rules

    @rule(sizes=_sizes)
    def offer(self, sizes: list[int]) -> None:
        self._call(lambda: self._offer(sizes))

    @rule(limit=st.integers(0, 40), bytes_max=st.sampled_from([1, 150, 2_000, _ANY_SIZE]))
    def take(self, limit: int, bytes_max: int) -> None:
        could = bool(self.untaken) and not self.cursor.needs_page
        before = len(self.untaken)
        self._take(limit, bytes_max)
        if limit and could:
            assert len(self.untaken) < before, "nothing taken though no page is needed"

    @precondition(lambda self: self.taken)
    @rule(count=st.integers(1, 20))
    def put_back(self, count: int) -> None:
        self._call(lambda: self._put_back(count))

    @precondition(lambda self: self.taken)
    @rule(consumers=st.integers(2, 5), data=st.data())
    def lose_all_consumers(self, consumers: int, data: st.DataObject) -> None:
        """Each returns what it has, one after the other, before anybody looks; *data*: in which order."""
        parts = [self.taken[first::consumers] for first in range(consumers)]
        order = data.draw(st.permutations(range(consumers)), "order")

        def bring_back() -> None:
            for number in order:
                self._return(parts[number])

        self._call(bring_back)

    @rule()
    def start_again(self) -> None:
        """Stored messages are there again, as the store knows them; all others are gone."""
        self._run(self.cursor.close())
        assert self.cursor.memory_bytes == self.shared.used == 0
        self.untaken = [self.store.messages[sequence] for sequence in sorted(self.store.messages)]
        self.taken, self.claimed = [], set()
        again = replace(self.context, recovered_count=len(self.untaken), feed=CursorFeed())

        def make() -> None:
            self.cursor = self.factory.create(again)

        self._call(make)

    @rule(first=st.integers(0, 60), count=st.integers(1, 20))
    def claim(self, first: int, count: int) -> None:
        self._call(lambda: self._claim(first, count))

    @rule(first=st.integers(0, 60), count=st.integers(1, 40))
    def remove(self, first: int, count: int) -> None:
        self._call(lambda: self._remove(first, count))

    @precondition(lambda self: self.taken)
    @rule(count=st.integers(1, 20))
    def acknowledge(self, count: int) -> None:
        self._call(lambda: self._acknowledge(count))

    @rule()
    def page_in(self) -> None:
        needed = self.cursor.needs_page
        self._run(self.cursor.page_in())
        if needed:
            assert self.cursor.take(0, 1) == ()
            assert not self.cursor.needs_page

    @rule(
        sizes=_sizes,
        late=st.lists(st.integers(0, 100), max_size=3),
        steps=st.lists(
            st.sampled_from(
                ["offer", "take", "claim", "put_back", "remove", "acknowledge", "none"]
            ),
            max_size=4,
        ),
        count=st.integers(1, 20),
        gate_before=st.booleans(),
    )
    def page_in_while_the_gateway_goes_on(
        self, sizes: list[int], late: list[int], steps: list[str], count: int, gate_before: bool
    ) -> None:
        """A page is being read; *late* messages become durable before it ends and are offered after it."""
        self._run(self._page_in_beside(sizes, late, steps, count, gate_before))

    async def _page_in_beside(
        self, sizes: list[int], late: list[int], steps: list[str], count: int, gate_before: bool
    ) -> None:
        self.store.gate, self.store.gate_before = asyncio.Event(), gate_before
        acts: dict[str, Callable[[], None]] = {
            "offer": lambda: self._offer(sizes),
            "take": lambda: self._take(count, _ANY_SIZE),
            "claim": lambda: self._claim(0 if count % 2 else len(self.untaken) // 2, count),
            "put_back": lambda: self._put_back(count) if self.taken else None,
            "acknowledge": lambda: self._acknowledge(count),
            "remove": lambda: self._remove(0 if count % 2 else len(self.untaken) // 2, count),
            "none": lambda: None,
        }
        task = asyncio.create_task(self.cursor.page_in())
        try:
            await asyncio.sleep(0)
            for step in steps:
                acts[step]()
            written = self._make(late)
            if self.is_stored:
                self.store.add(written)
            self.store.gate.set()
            await task
        finally:
            self.store.gate = None
        if written:
            self._hand_in(written)

    @rule()
    def cancel_a_page(self) -> None:
        async def cancel() -> None:
            self.store.gate = asyncio.Event()
            task = asyncio.create_task(self.cursor.page_in())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.store.gate = None

        self._run(cancel())

    @rule()
    def drain(self) -> None:
        """Everything can be taken, in order."""
        for _ in range(10 * len(self.untaken) + 10):
            if self.cursor.needs_page:
                self._run(self.cursor.page_in())
            self._take(7, _ANY_SIZE)
            if not self.untaken:
                break
        assert self.untaken == []
        assert not self.cursor.needs_page
        assert self.cursor.take(1, 1) == ()
        assert self.cursor.memory_bytes == 0

    # ------------------------------------------------------------------------------- invariants

    @invariant()
    def counts_agree(self) -> None:
        cursor = self.cursor
        assert cursor.size == len(self.untaken)
        assert cursor.memory_bytes >= 0
        assert self.shared.used == cursor.memory_bytes
        if cursor.needs_page:
            assert cursor.take(1, 1) == ()
            assert cursor.feed.is_paging
        if not cursor.size:
            assert not cursor.feed.is_paging
        if cursor.is_full:
            assert cursor.memory_bytes >= self.memory_limit

    @invariant()
    def memory_is_bounded_or_producers_are_slowed(self) -> None:
        """Allows half as much again for buffers, one message of any size, and what was put back."""
        returned = sum(
            memory_bytes(stored.message) for stored in self.untaken if stored.delivery_count
        )
        largest = max((memory_bytes(stored.message) for stored in self.untaken), default=0)
        bound = self.memory_limit * 3 // 2 + largest + returned
        assert self.cursor.is_full or self.cursor.memory_bytes <= bound

    def teardown(self) -> None:
        if hasattr(self, "cursor"):
            self._run(self.cursor.close())
            self._run(self.cursor.close())
            assert self.cursor.memory_bytes == self.shared.used == 0
        self.runner.close()
        assert list(self.directory.iterdir()) == [], "left behind in the temporary directory"
