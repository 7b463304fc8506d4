"""A cursor's switch from memory to pages and back, at every point of a small scenario.

The scenario: some messages wait in the store from before, and others are offered, more than memory may
hold. Then each of :data:`STEPS` happens once, in the order given, and what is left is drained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import Final

from tidegate.spi import PendingCursor, StoredMessage
from tidegate.testing._cursor_machine import ListStore, message_of

#: A page begins and ends in two steps, so that every other step also happens while it is read.
STEPS: Final = ("offer", "take", "begin", "end", "put_back", "claim", "remove")

#: Most messages in memory, and in a page.
MEMORY_COUNT: Final = 2
PAGE_COUNT: Final = 3
#: Messages before the steps: none, some or most of them do not fit into memory.
BEFORE_MAX: Final = 7

_ANY_SIZE: Final = 1 << 40


def orders() -> Iterator[tuple[str, ...]]:
    """All orders of the steps in which a page begins before it ends: 2520."""
    for order in permutations(STEPS):
        if order.index("begin") < order.index("end"):
            yield order


class SwitchOver:
    """One run over one cursor. Assertion failures name the order.

    Args: store: that the cursor reads; recovered: what waited there before.
    """

    def __init__(
        self, cursor: PendingCursor, store: ListStore, recovered: Sequence[StoredMessage]
    ) -> None:
        self._cursor = cursor
        self._store = store
        self._untaken = [stored.sequence for stored in recovered]
        self._taken: list[StoredMessage] = []
        self._last = max(self._untaken, default=0)
        self._page: asyncio.Task[None] | None = None

    async def run(self, offered: int, order: Sequence[str]) -> None:
        """Offer this many messages one by one, then do the steps in *order*."""
        told = f"{len(self._untaken)} recovered, {offered} offered, then {' '.join(order)}"
        for _ in range(offered):
            self._offer(1)
        acts: dict[str, Callable[[], None]] = {
            "offer": lambda: self._offer(2),
            "take": self._take,
            "put_back": self._put_back,
            "claim": self._claim,
            "remove": self._remove,
        }
        try:
            for step in order:
                if step == "begin":
                    await self._begin()
                elif step == "end":
                    await self._end()
                else:
                    acts[step]()
                assert self._cursor.size == len(self._untaken), f"size after {step}: {told}"
            self._put_back()
            assert await self._drain() == self._untaken, told
            assert (self._cursor.size, self._cursor.memory_bytes) == (0, 0), told
            await self._is_fed_from_memory_again(told)
        finally:
            await self._end()

    def _offer(self, count: int) -> None:
        messages = [message_of(self._last + number) for number in range(1, count + 1)]
        self._last += count
        self._store.add(messages)
        assert list(self._cursor.offer(messages)) == [], "a stored message was dropped"
        self._untaken += [stored.sequence for stored in messages]

    def _take(self) -> None:
        found = list(self._cursor.take(1, _ANY_SIZE))
        assert [stored.sequence for stored in found] == self._untaken[: len(found)]
        del self._untaken[: len(found)]
        self._taken += found

    def _put_back(self) -> None:
        self._untaken = sorted([*self._untaken, *(stored.sequence for stored in self._taken)])
        back, self._taken = self._taken, []
        self._cursor.put_back(back)

    def _claim(self) -> None:
        """Claim one message that is pages away, and one in front."""
        wanted = sorted({*self._untaken[:1], *self._untaken[-2:-1]})
        assert list(self._cursor.claim(wanted)) == wanted
        self._untaken = [sequence for sequence in self._untaken if sequence not in wanted]
        self._taken += [self._store.messages[sequence] for sequence in wanted]

    def _remove(self) -> None:
        gone = self._untaken[1:2] + self._untaken[-1:]
        gone = sorted(set(gone))
        for sequence in gone:
            del self._store.messages[sequence]
        assert self._cursor.remove(gone) == len(gone)
        self._untaken = [sequence for sequence in self._untaken if sequence not in gone]

    async def _begin(self) -> None:
        self._store.gate = asyncio.Event()
        self._page = asyncio.create_task(self._cursor.page_in())
        await asyncio.sleep(0)

    async def _end(self) -> None:
        if self._page is not None and self._store.gate is not None:
            self._store.gate.set()
            page, self._page, self._store.gate = self._page, None, None
            await page

    async def _drain(self) -> list[int]:
        found: list[int] = []
        for _ in range(4 * len(self._untaken) + 4):
            if self._cursor.needs_page:
                await self._cursor.page_in()
            found += [stored.sequence for stored in self._cursor.take(2, _ANY_SIZE)]
            if not self._cursor.size:
                break
        return found

    async def _is_fed_from_memory_again(self, told: str) -> None:
        """A cursor that has caught up reads nothing more from the store."""
        pages = len(self._store.pages)
        self._offer(1)
        found = [stored.sequence for stored in self._cursor.take(9, _ANY_SIZE)]
        assert found == [self._last], f"not from memory: {told}"
        assert len(self._store.pages) == pages, told
