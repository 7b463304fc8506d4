"""Whether others get their turn on the event loop while something takes its time there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Attributes: count: how often another task had its turn."""

    def __init__(self) -> None:
        self.count = 0


@asynccontextmanager
async def counting_turns() -> AsyncIterator[Turns]:
    """Count the turns of a task that does nothing else, from here to the end of the block."""
    turns = Turns()

    async def others() -> None:
        while True:
            await asyncio.sleep(0)
            turns.count += 1

    task = asyncio.create_task(others())
    try:
        yield turns
    finally:
        task.cancel()
