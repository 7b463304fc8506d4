"""Long walks in steps: what one request does to thousands of lists keeps nobody waiting."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Final, TypeAlias

from tidegate.plugin_exit import FAILURES

_log = logging.getLogger("tidegate.broker")

#: Lists visited between looks at the clock: each takes from 50 nanoseconds to some microseconds.
STEP_LISTS: Final = 64

#: How long one walk may take at once, and all walks in one turn of the loop. A round trip takes
#: five to ten turns, besides the slices of the connections (2 ms of each turn).
SLICE_S: Final = 0.001


#: Yields after each step: true when the turn is full and must be written first.
Walk: TypeAlias = Iterator[bool | None]


async def in_slices(
    steps: Iterable[object], slice_s: float | None = None, rest_s: float = 0.0
) -> None:
    """Go through *steps*, and yield the loop for *rest_s* after each slice. Args: slice_s: None: SLICE_S."""
    slice_s = SLICE_S if slice_s is None else slice_s
    ends_at = perf_counter() + slice_s
    for _ in steps:
        if perf_counter() >= ends_at:
            await asyncio.sleep(rest_s)
            ends_at = perf_counter() + slice_s


class Walks:
    """The walks of one broker that are under way, in turn."""

    def __init__(self) -> None:
        self._waiting: deque[Walk] = deque()
        self._behind: list[Walk] = []  # wait for the filling turn
        self._has_begun = False  # a walk has, in this turn of the loop
        self._ends_at = 0.0

    def begin(self, walk: Walk, *, is_urgent: bool = True) -> None:
        """Do a first slice of *walk* at once, and the rest in later turns of the loop.

        After each step the walk must check again whatever may have changed. All urgent walks that
        begin in one turn of the loop share one slice, and each gets at least a step.
        """
        if not is_urgent:
            self._wait(walk)
            return
        if not self._has_begun:
            self._has_begun = True
            self._ends_at = perf_counter() + SLICE_S
            asyncio.get_running_loop().call_soon(self._turn_over)
        if self._has_more(walk, self._ends_at):
            self._wait(walk)

    def _turn_over(self) -> None:
        self._has_begun = False

    async def finished(self, walk: Walk) -> None:
        """Begin *walk* and wait for its end. Raises: what it raises."""
        ended = asyncio.Event()
        failures: list[BaseException] = []

        def steps() -> Walk:
            try:
                yield from walk
            except FAILURES as error:
                failures.append(error)
            ended.set()

        self.begin(steps())
        await ended.wait()
        if failures:
            raise failures[0]

    def turn_written(self) -> None:
        """A turn is durable, or has failed: walks that waited for it go on."""
        if self._behind:
            behind, self._behind = self._behind, []
            for walk in behind:
                self._wait(walk)

    def finish(self) -> None:
        """Do all that is left at once: the gateway stops."""
        behind, self._behind = self._behind, []
        for walk in [*self._waiting, *behind]:
            for _ in walk:
                pass

    def _wait(self, walk: Walk) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
        self._waiting.append(walk)

    def _turn(self) -> None:
        waiting = self._waiting
        ends_at = perf_counter() + SLICE_S
        for _ in range(len(waiting)):
            walk = waiting[0]  # it stays, so that nobody schedules another turn meanwhile
            try:
                has_more = self._has_more(walk, ends_at)
            except FAILURES:  # one that fails must not stop the others
                _log.exception("a walk over many lists failed")
                has_more = False
            waiting.popleft()
            if has_more:
                waiting.append(walk)
                break
        if waiting:
            asyncio.get_running_loop().call_soon(self._turn)

    def _has_more(self, walk: Walk, ends_at: float) -> bool:
        """Returns: False also when it must wait for the turn."""
        for is_behind in walk:
            if is_behind:
                self._behind.append(walk)
                return False
            if perf_counter() >= ends_at:
                return True
        return False
