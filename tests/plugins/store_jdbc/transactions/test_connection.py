"""Whether the database can be reached: who waits, how long, and with which pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from tidegate.spi import StoreClosedError, StoreUnavailableError
from tidegate_store_jdbc import DatabaseUnavailableError
from tidegate_store_jdbc.transactions.reachability import BACK_OFF_FIRST, Reachability


class Asked:
    """A probe that answers as it is told."""

    def __init__(self, answers: Iterable[bool]) -> None:
        self.answers = list(answers)

    async def __call__(self) -> None:
        if not self.answers.pop(0):
            raise DatabaseUnavailableError("no route")


async def test_waiters_go_on_when_the_probe_succeeds() -> None:
    probe = Asked([False, False, True])
    reachability = Reachability(probe, 60)
    await reachability.until()
    reachability.lost("broken pipe")
    reachability.lost("again")
    assert not reachability.is_reachable
    await asyncio.gather(reachability.until(), reachability.until(in_doubt=True))
    assert probe.answers == []
    assert reachability.is_reachable
    reachability.close()
    await reachability.until(in_doubt=True)


async def test_pauses_grow_until_a_batch_is_written() -> None:
    reachability = Reachability(Asked([True] * 10), 60)

    async def lost() -> float:
        reachability.lost("refused")
        await reachability.until(in_doubt=True)
        return reachability._pause  # pyright: ignore[reportPrivateUsage]

    pauses = [await lost() for _ in range(3)]
    assert pauses == [BACK_OFF_FIRST * 2, BACK_OFF_FIRST * 4, BACK_OFF_FIRST * 8]
    reachability.worked()
    assert await lost() == BACK_OFF_FIRST * 2


async def test_a_batch_that_keeps_failing_is_refused_though_the_database_answers() -> None:
    reachability = Reachability(Asked([True]), 5)
    loop = asyncio.get_running_loop()
    await reachability.until(since=loop.time())
    with pytest.raises(StoreUnavailableError):
        await reachability.until(since=loop.time() - 6)
    await reachability.until(since=loop.time() - 6, in_doubt=True)


async def test_a_batch_in_doubt_is_never_refused() -> None:
    reachability = Reachability(Asked([False, True, False]), 0)
    reachability.lost("broken pipe")
    with pytest.raises(StoreUnavailableError, match="broken pipe"):
        await reachability.until()
    await reachability.until(in_doubt=True)
    reachability.lost("again")
    reachability.close()
    assert not reachability.is_reachable
    with pytest.raises(StoreClosedError):
        await reachability.until(in_doubt=True)
