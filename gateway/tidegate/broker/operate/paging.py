"""A page of a sorted list, of thousands of things that come and go meanwhile."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import islice
from operator import itemgetter
from time import perf_counter
from typing import Final, TypeAlias, TypeVar

from tidegate.broker.turn.walks import SLICE_S
from tidegate.spi import RequestError

#: What is looked at before others have their turn, at most.
STEP: Final = 1000
#: And before the clock is.
_LOOKED_AT_ONCE: Final = 4

#: What a row comes by: minus the number that is sorted by, then a name that no other one has.
Key: TypeAlias = tuple[int, str]

T = TypeVar("T")
U = TypeVar("U")


async def page(
    everything: Sequence[T], key: Callable[[T], Key | None], after: str, limit: int
) -> tuple[list[T], str]:
    """The first *limit* of *everything* that come after *after*, and the ``after`` of the next page.

    Nobody waits for more than a step. What is sorted by name comes once however the others change; what is sorted
    by a number that changes may come twice, or not.

    Args: key: None: it is not wanted. Raises: RequestError for an *after* that is none.
    """

    def keyed(item: T) -> Iterable[tuple[Key, T]]:
        its = key(item)
        return () if its is None else ((its, item),)

    return await page_of_rows(everything, keyed, after, limit)


async def page_of_rows(
    everything: Sequence[T],
    rows_of: Callable[[T], Iterable[tuple[Key, U]]],
    after: str,
    limit: int,
) -> tuple[list[U], str]:
    """The same of rows, where each of *everything* has several, or none."""
    begin = _parsed(after)
    best: list[tuple[Key, U]] = []  # in order, one more than wanted at most
    async for some in _slices(everything):
        for item in some:
            for row in rows_of(item):
                is_behind = begin is None or row[0] > begin
                if is_behind and (len(best) <= limit or row[0] < best[-1][0]):
                    insort(best, row, key=itemgetter(0))
                    del best[limit + 1 :]
    shown = best[:limit]
    has_more = len(best) > limit
    return [item for _, item in shown], f"{-shown[-1][0][0]} {shown[-1][0][1]}" if has_more else ""


async def in_steps(items: Iterable[T], made: Callable[[T], U | None]) -> list[U]:
    """What *made* makes of each, without those that are gone by now."""
    rows: list[U] = []
    async for some in _slices(items):
        rows += [row for row in map(made, some) if row is not None]
    return rows


async def first(items: Sequence[T], is_it: Callable[[T], bool]) -> T | None:
    """The one that is wanted, looked at just now; None: there is none. *is_it* is quick."""
    for begin in range(0, len(items), STEP):
        if begin:
            await asyncio.sleep(0)
        for item in items[begin : begin + STEP]:
            if is_it(item):
                return item
    return None


async def _slices(items: Iterable[T]) -> AsyncIterator[Sequence[T]]:
    """All of *items*, a few at once; others have their turn after so many, or after a slice of time."""
    ends_at, left, looked = perf_counter() + SLICE_S, iter(items), 0
    while some := tuple(islice(left, _LOOKED_AT_ONCE)):
        if looked and (not looked % STEP or perf_counter() >= ends_at):
            await asyncio.sleep(0)
            ends_at = perf_counter() + SLICE_S
        yield some
        looked += len(some)
    if looked > _LOOKED_AT_ONCE:  # what comes next begins a slice of its own
        await asyncio.sleep(0)


def _parsed(after: str) -> Key | None:
    if not after:
        return None
    number, _, name = after.partition(" ")
    if not number.removeprefix("-").isdecimal():
        raise RequestError("`after` must be what the page before said")
    return -int(number), name
