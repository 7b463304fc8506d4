"""A page of a sorted list of thousands of things that come and go meanwhile."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import islice
from operator import itemgetter
from time import perf_counter
from typing import Final, Generic, TypeVar

from tidegate.broker.tally.order import Key
from tidegate.broker.turn.walks import in_slices
from tidegate.spi import RequestError

#: Slice of work that only an operator waits for, and how long others then have the loop, in seconds. Without a rest
#: there would be a slice in each of the five to ten turns that a client's message takes, and anything else that wants
#: the processor would wait for the system's next tick.
SLICE_S: Final = 0.0002
REST_S: Final = 0.001
#: Most items examined before others get their turn.
STEP: Final = 1000
#: And between looks at the clock.
_LOOKED_AT_ONCE: Final = 4

T = TypeVar("T")
U = TypeVar("U")


class Shortlist(Generic[T]):
    """The first *limit* rows after *after*, of all that are offered, in any order. Raises: RequestError for an invalid
    *after*."""

    def __init__(self, after: str, limit: int) -> None:
        self._begin = key_after(after)
        self._limit = limit
        self._best: list[tuple[Key, T]] = []  # in order, at most one more than wanted
        self._worst: Key | None = None  # of those, when it is full

    def offer(self, key: Key, row: T) -> None:
        """Offer one more row."""
        if not self.takes(key):
            return
        best = self._best
        insort(best, (key, row), key=itemgetter(0))
        del best[self._limit + 1 :]
        if len(best) > self._limit:
            self._worst = best[-1][0]

    def is_full_before(self, number: int) -> bool:
        """No row with *number* is wanted now."""
        return self._worst is not None and number > self._worst[0]

    def takes(self, key: Key) -> bool:
        """A row with *key* is still wanted; if not, the caller need not make it."""
        return (self._worst is None or key < self._worst) and (
            self._begin is None or key > self._begin
        )

    def page(self) -> tuple[list[T], str]:
        """The rows, and the ``after`` of the next page."""
        shown = self._best[: self._limit]
        has_more = len(self._best) > self._limit
        after = f"{-shown[-1][0][0]} {shown[-1][0][1]}" if has_more else ""
        return [row for _, row in shown], after


async def page(
    everything: Iterable[T], key: Callable[[T], Key | None], after: str, limit: int
) -> tuple[list[T], str]:
    """The first *limit* of *everything* that come after *after*, and the ``after`` of the next page.

    Nobody waits for more than a step. Sorted by name, each row comes once however others change; sorted by a number
    that changes, a row may come twice, or not at all.

    Args: key: None: not wanted. Raises: RequestError for an invalid *after*.
    """
    shortlist = Shortlist[T](after, limit)
    async for some in _slices(everything):
        for item in some:
            its = key(item)
            if its is not None:
                shortlist.offer(its, item)
    return shortlist.page()


async def each(everything: Iterable[T], do: Callable[[T], object]) -> None:
    """Call *do* with each of *everything*, in slices: it may offer several rows to a shortlist, or none."""
    async for some in _slices(everything):
        for item in some:
            do(item)


async def in_steps(items: Iterable[T], made: Callable[[T], U | None]) -> list[U]:
    """What *made* makes of each, without those that are gone."""
    rows: list[U] = []
    async for some in _slices(items):
        rows += [row for row in map(made, some) if row is not None]
    return rows


async def look_through(steps: Iterable[object]) -> None:
    """Run *steps* at the pace of operators' requests: see SLICE_S and REST_S."""
    await in_slices(steps, SLICE_S, REST_S)


async def first(items: Sequence[T], is_it: Callable[[T], bool]) -> T | None:
    """The first item for which *is_it*, which is quick, holds; None: there is none."""
    for begin in range(0, len(items), STEP):
        if begin:
            await asyncio.sleep(0)
        for item in items[begin : begin + STEP]:
            if is_it(item):
                return item
    return None


async def _slices(items: Iterable[T]) -> AsyncIterator[Sequence[T]]:
    """All of *items*, a few at a time; others get their turn after a number of them, or a slice of time."""
    ends_at, left, looked = perf_counter() + SLICE_S, iter(items), 0
    while some := tuple(islice(left, _LOOKED_AT_ONCE)):
        if looked and (not looked % STEP or perf_counter() >= ends_at):
            await asyncio.sleep(REST_S)
            ends_at = perf_counter() + SLICE_S
        yield some
        looked += len(some)
    if looked > _LOOKED_AT_ONCE:  # what comes next begins its own slice
        await asyncio.sleep(0)


def key_after(after: str) -> Key | None:
    """Key of the previous page's last row; None: there is none. Raises: RequestError for an invalid *after*."""
    if not after:
        return None
    number, _, name = after.partition(" ")
    if not number.removeprefix("-").isdecimal():
        raise RequestError("`after` must be the `next` of the previous page")
    return -int(number), name
