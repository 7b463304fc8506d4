"""Takes long ways through the index a bit at a time, leaving the event loop to others in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from time import perf_counter
from typing import Final, TypeVar

T = TypeVar("T")

#: How long one goes on before others get a turn.
SLICE_S: Final = 0.001


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Each of *items*, which may change between two."""
    ends_at = perf_counter() + SLICE_S
    for item in items:
        yield item
        if perf_counter() >= ends_at:
            await asyncio.sleep(0)
            ends_at = perf_counter() + SLICE_S


def at_once(steps: Generator[None, None, T]) -> T:
    """Take all of *steps*. Returns: what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


async def finished(steps: Generator[None, None, T]) -> T:
    """The same, in slices. Cancellation: it ends between two slices."""
    ends_at = perf_counter() + SLICE_S
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        if perf_counter() >= ends_at:
            await asyncio.sleep(0)
            ends_at = perf_counter() + SLICE_S


def has_more(steps: Iterator[None]) -> bool:
    """Take *steps* for one slice, to the end if there is time. Returns: whether there is more."""
    ends_at = perf_counter() + SLICE_S
    for _ in steps:  # noqa: SIM110  # a batch passes here
        if perf_counter() >= ends_at:
            return True
    return False
