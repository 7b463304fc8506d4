"""Long ways through the index a bit at a time: others have the event loop in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from time import perf_counter
from typing import Final, TypeVar

T = TypeVar("T")

#: How long one goes on before others have their turn.
SLICE_S: Final = 0.001


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Each of *items*, which may change between two of them."""
    ends_at = perf_counter() + SLICE_S
    for item in items:
        yield item
        if perf_counter() >= ends_at:
            await asyncio.sleep(0)
            ends_at = perf_counter() + SLICE_S
