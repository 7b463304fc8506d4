"""Slices of time: no client's input keeps the others waiting.

One read of a socket can hold a hundred thousand packets, and one packet a thousand requests. So a
session handles its input in small steps, and its :class:`Share` decides how long it may continue: a
first step at once, as nearly every session has no more than that to do, then until its slice is
over. A connection with more to do waits: it is not read (its input piles up at the client, not
here), and it resumes through the loop, in turn with all others that wait. Together they get one
slice of each turn of the loop, however many they are, less what the first of them has just had;
sessions with little to do pass them by.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final, final
from weakref import WeakKeyDictionary

from tidegate_protocols.transport._link import Link

logger = logging.getLogger("tidegate.transport")

#: Most packets or frames that a session handles in one step, before the clock is checked. Most take
#: 2 to 10 microseconds each, so such a step takes less than a millisecond; checking the clock once
#: per step costs nothing measurable.
STEP_PACKETS: Final = 64

#: What a step should take. A connection whose packets cost more gets shorter steps, down to one
#: packet, until they cost less again.
STEP_S: Final = 0.001

#: How long a connection may continue when it has more, its first step included, and how long all
#: that wait may continue in one turn of the loop. A QoS 1 round trip takes five to ten turns, as the
#: store's thread has to acquire the interpreter between them: so it stays below 15 ms of this, beside
#: any number of connections that never run dry. Shorter slices make smaller batches out of the input
#: of fast producers. With 2 ms, and 2 more for a newcomer, a saturated STOMP queue carried 5 (one
#: producer) to 10 % (four) more, and the loop came back 5 to 10 ms late (p99) instead of 3.4 to 5.
SLICE_S: Final = 0.001


def _nothing(_: int) -> bool:
    return False


def nobody(*_: object) -> None:
    """Replaces a callback when nobody is to be called any more."""


@final
class Share:
    """One connection's share of the loop.

    Args:
        link: aborted when *work* fails unexpectedly.
        work: does one step, of at most the given number of packets. Returns: True when there may be
            more to do. After returning False it is not called again until :meth:`run`.
        changed: called when :attr:`is_waiting` changes.

    Attributes:
        is_waiting: there is more to do, in a later turn of the loop; nothing should be read.
        is_held: nothing is done until :meth:`release`.
    """

    __slots__ = ("_changed", "_link", "_step", "_work", "is_held", "is_waiting")

    def __init__(
        self, link: Link, work: Callable[[int], bool], changed: Callable[[], None]
    ) -> None:
        self._link = link
        self._work = work
        self._changed = changed
        self._step = STEP_PACKETS
        self.is_waiting = False
        self.is_held = False

    def run(self) -> None:
        """There may be something to do: begin, unless a turn is being waited for anyway."""
        if self.is_waiting or self.is_held:
            return
        begun_at = perf_counter()
        has_more = self._work(self._step)
        # Even for the last step: a whole read may be one of few, costly packets.
        took_s = perf_counter() - begun_at
        if took_s > STEP_S or self._step < STEP_PACKETS:
            self._fit(took_s)
        if not has_more or self.is_held:
            return
        try:
            waiting = _waiting_of(asyncio.get_running_loop())
        except RuntimeError:  # without a loop there is nobody to keep waiting
            while self._work(STEP_PACKETS):
                pass
            return
        # A newcomer goes before those that have had a slice, but only for one step.
        if waiting or self._has_more(begun_at + SLICE_S):
            self.is_waiting = True
            waiting.add(self, perf_counter() - begun_at)
            self._changed()

    def hold(self) -> None:
        """Do nothing more after this step, which *work* should cut short."""
        self.is_held = self._work is not _nothing

    def release(self) -> None:
        """Continue, in its turn. Does nothing when it is not held."""
        if self.is_held:
            self.is_held = False
            if not self.is_waiting:
                self.is_waiting = True
                _waiting_of(asyncio.get_running_loop()).add(self)
                self._changed()

    def stop(self) -> None:
        """Drop the remaining work, and call nobody any more."""
        self.is_waiting = self.is_held = False
        self._work, self._changed = _nothing, nobody

    def go_on(self, ends_at: float) -> bool:
        """Its turn has come: for one step, and further ones until *ends_at* (of `perf_counter`).

        Returns: False when it no longer waits.
        """
        if not self.is_waiting:
            return False
        try:
            if self._has_more(ends_at):
                return self.is_waiting
            if self.is_waiting:
                self.is_waiting = False
                self._changed()
        except Exception:
            self.is_waiting = False
            logger.exception("handler failed, connection aborted peer=%s", self._link.peer)
            self._link.abort()
            self._changed()
        return False

    def _has_more(self, ends_at: float) -> bool:
        now = perf_counter()
        while not self.is_held and self._work(self._step):
            begun_at, now = now, perf_counter()
            took_s = now - begun_at
            if took_s > STEP_S or self._step < STEP_PACKETS:
                self._fit(took_s)
            if now >= ends_at:
                return True
        return False

    def _fit(self, took_s: float) -> None:
        """The last step took *took_s* seconds: make the next one shorter or longer."""
        if took_s > STEP_S:
            self._step = max(1, int(self._step * STEP_S / took_s))
        elif took_s < STEP_S / 4:
            self._step = min(2 * self._step, STEP_PACKETS)


@final
class _Waiting:
    """The connections of one loop that wait for their next slice."""

    __slots__ = ("__weakref__", "_call_soon", "_shares", "_taken_s")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._shares: deque[Share] = deque()
        self._taken_s = 0.0  # of the next turn's slice, by the first that waits for it

    def __bool__(self) -> bool:
        return bool(self._shares)

    def add(self, share: Share, taken_s: float = 0.0) -> None:
        """*share* waits. Args: taken_s: what it has had in this turn of the loop."""
        if not self._shares:
            self._taken_s = taken_s
            self._call_soon(self._turn)
        self._shares.append(share)

    def _turn(self) -> None:
        shares = self._shares
        ends_at = perf_counter() + SLICE_S - self._taken_s
        self._taken_s = 0.0
        try:
            for _ in range(len(shares)):
                share = shares[0]
                try:
                    has_more = share.go_on(ends_at)
                finally:
                    shares.popleft()
                if has_more:
                    shares.append(share)
                if perf_counter() >= ends_at:
                    break
        finally:
            if shares:
                self._call_soon(self._turn)


_loops: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting]] = WeakKeyDictionary()


def _waiting_of(loop: asyncio.AbstractEventLoop) -> _Waiting:
    """The queue of a loop: all listeners of a process share it, whatever their protocol."""
    found = _loops.get(loop)
    if found is None:
        found = _loops[loop] = _Waiting(loop.call_soon)
    return found
