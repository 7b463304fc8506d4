"""The timed buffer: what gathers, when it is written, and who is told what."""

from __future__ import annotations

import asyncio

import pytest
from numbered import ack, add, message

from tidegate.spi import Operation, SetRetained, StoreClosedError, StoreFullError
from tidegate_store_journal.write.buffer import TimedBuffer, estimate

LONG = 3600.0


class Target:
    """Records the batches; raises for those in which an operation is in *refused*."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bool]] = []
        self.operations: list[Operation] = []
        self.refused: list[Operation] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def write(self, operations: list[Operation], synced: bool) -> None:
        await self.gate.wait()
        if any(operation in self.refused for operation in operations):
            raise StoreFullError("full")
        self.batches.append((len(operations), synced))
        self.operations += operations


async def started(
    buffer: TimedBuffer, *batches: tuple[list[Operation], bool]
) -> list[asyncio.Task[None]]:
    tasks = [asyncio.ensure_future(buffer.write(*batch)) for batch in batches]
    await asyncio.sleep(0)
    return tasks


async def test_what_arrives_within_the_time_is_one_batch_in_its_order() -> None:
    target = Target()
    buffer = TimedBuffer(target.write, timeout_seconds=0.01, bytes_max=1 << 20)
    operations: list[Operation] = [add(number) for number in range(1, 7)]
    tasks = await started(
        buffer, (operations[:2], False), (operations[2:3], True), (operations[3:], False)
    )
    assert target.batches == []
    await asyncio.gather(*tasks)
    assert target.batches == [(6, True)]
    assert target.operations == operations
    await buffer.write([ack(1)], False)
    assert target.batches[1:] == [(1, False)]
    await buffer.close()


async def test_a_full_buffer_does_not_wait_for_the_time() -> None:
    target = Target()
    buffer = TimedBuffer(target.write, timeout_seconds=LONG, bytes_max=1000)
    tasks = await started(buffer, ([add(1, size=400)], True), ([add(2, size=400)], True))
    assert not any(task.done() for task in tasks)
    # Too much together: what has gathered goes first, and this one is enough by itself.
    await buffer.write([add(3, size=1000)], True)
    assert target.batches == [(2, True), (1, True)]
    await asyncio.gather(*tasks)
    await buffer.close()


async def test_who_cannot_be_written_with_the_others_is_refused_alone() -> None:
    target = Target()
    buffer = TimedBuffer(target.write, timeout_seconds=0.001, bytes_max=1 << 20)
    operations: list[Operation] = [add(1), add(2), ack(7)]
    target.refused = operations[1:2]
    tasks = await started(buffer, *[([operation], True) for operation in operations])
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), StoreFullError, type(None)]
    assert target.operations == [operations[0], operations[2]]
    await buffer.close()


async def test_groups_are_written_one_after_the_other() -> None:
    target = Target()
    target.gate.clear()
    buffer = TimedBuffer(target.write, timeout_seconds=LONG, bytes_max=100)
    batches: list[tuple[list[Operation], bool]] = [
        ([add(number, size=200)], number == 2) for number in (1, 2, 3)
    ]
    tasks = await started(buffer, *batches)
    target.gate.set()
    await asyncio.gather(*tasks)
    assert target.batches == [(1, False), (1, True), (1, False)]
    await buffer.close()


async def test_a_wish_to_sync_alone_is_passed_on() -> None:
    target = Target()
    buffer = TimedBuffer(target.write, timeout_seconds=0.001, bytes_max=1 << 20)
    await buffer.write([], True)
    assert target.batches == [(0, True)]
    await buffer.close()


async def test_closing_writes_what_has_gathered_and_takes_nothing_more() -> None:
    target = Target()
    buffer = TimedBuffer(target.write, timeout_seconds=LONG, bytes_max=1 << 20)
    (task,) = await started(buffer, ([add(1)], True))
    await buffer.close()
    assert target.batches == [(1, True)]
    await task
    with pytest.raises(StoreClosedError):
        await buffer.write([add(2)], True)
    await buffer.close()


async def test_who_gave_up_does_not_disturb_the_others() -> None:
    target = Target()
    buffer = TimedBuffer(target.write, timeout_seconds=0.01, bytes_max=1 << 20)
    gone, staying = await started(buffer, ([add(1)], True), ([add(2)], True))
    gone.cancel()
    await staying
    assert target.batches == [(2, True)]
    await buffer.close()


def test_the_estimate_counts_bodies() -> None:
    assert estimate([]) == 0
    assert estimate([add(1, size=5000), SetRetained(message(2, size=300))]) == 5300 + 2 * 64
    assert estimate([ack(1, 2)]) == 64
