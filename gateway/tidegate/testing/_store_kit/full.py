"""What a store does when it runs out of room, and when there is room again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import pytest

from tidegate.spi import Acknowledge, MessageStoreFactory, Operation, StoreFullError
from tidegate.testing._store_kit.box import QUEUE, StoreBox, StoreFixtures, add

#: A store that still refuses messages this long after getting room again stays full; in seconds.
ROOM_TIMEOUT: Final = 10.0
#: Room of a store that is to become full, in bytes.
SMALL_ROOM: Final = 500_000


class StoreFullConformance(StoreFixtures):
    """What a store does when it runs out of room, and when there is room again.

    Subclass it and override ``store_factory`` and ``limit_room``. Only whatever provides the room (a limit
    in the options, a simulated disk …) can do this, so the kit does not run it for ``--store``.
    """

    @pytest.fixture
    def limit_room(self, store_factory: MessageStoreFactory) -> Callable[[int | None], None]:
        """Called with a number, leave the open store about this many bytes; with None, plenty."""
        raise pytest.UsageError(f"{type(self).__name__} does not override limit_room")

    async def test_a_full_store_loses_nothing_and_goes_on_when_there_is_room(
        self, box: StoreBox, limit_room: Callable[[int | None], None]
    ) -> None:
        limit_room(None)
        await box.open(QUEUE)
        held: list[int] = []
        sequence = 1
        for _ in range(2):
            limit_room(SMALL_ROOM)
            refused = await _fill(box, sequence, held)
            assert await box.sequences() == held
            try:
                await box.write(Acknowledge(1, tuple(held[:1])))
                del held[0]
            except StoreFullError:  # even this may need room that has run out
                pass
            assert await box.sequences() == held
            limit_room(None)
            await _write_when_there_is_room(box, refused)
            held += [refused, refused + 1]
            await box.write(Acknowledge(1, tuple(held[:1])))
            del held[0]
            sequence = refused + 2
            assert await box.sequences() == held
            assert box.store.statistics().writable
        if box.store.capabilities.durable:
            await box.restart()
            assert await box.sequences() == held


def _two(sequence: int) -> list[Operation]:
    return [add(number, body=bytes(10_000)) for number in (sequence, sequence + 1)]


async def _fill(box: StoreBox, sequence: int, held: list[int]) -> int:
    """Write from *sequence* on, two per batch, into *held*. Returns the first one refused."""
    for first in range(sequence, sequence + 1000, 2):
        try:
            await box.write(*_two(first))
        except StoreFullError:
            return first
        held += [first, first + 1]
    raise AssertionError("limit_room() did not make the store full")


async def _write_when_there_is_room(box: StoreBox, sequence: int) -> None:
    """Repeat a refused batch, as the broker does. Raises: TimeoutError."""
    async with asyncio.timeout(ROOM_TIMEOUT):
        while True:
            try:
                return await box.write(*_two(sequence))
            except StoreFullError:
                await asyncio.sleep(0.01)
