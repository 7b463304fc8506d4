"""Whose password is checked next: a bounded number at a time, addresses in turn.

A check costs memory and a core for a while, on purpose, and anybody may ask for one. So checks wait
here, by address and within an address by user (:class:`_Line`), and addresses take turns.
A client that leaves meanwhile is forgotten before it costs anything. Where an address has failed for
a user, that line gets one check at a time, with the pauses that
:class:`~tidegate.broker.sessions.failed_logins.FailedLogins` asks for, and its newest comes first:
guesses come in great number, and the right user must not stand behind all of them. For the same
reason an address that fails for many users gets its newest line served in every other turn.
Known clients have their own lines and come before strangers, three times out of four.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tidegate.broker.sessions.failed_logins import Attempt, FailedLogins
from tidegate.spi import FlowControlError

T = TypeVar("T")

#: Bytes a waiting check takes besides what its client sent: its task, its timer and its place here.
WAITER_BYTES: Final = 2048

#: Every this many turns strangers come first, so that known clients cannot keep them out.
_STRANGERS_EVERY: Final = 4

#: How far below the limit the waiting checks are cut when another address is far above its share:
#: one look at all addresses then makes room for many.
_ROOM_PART: Final = 10


class _Waiter:
    __slots__ = ("future", "line", "size_bytes")

    def __init__(self, line: _Line, size_bytes: int) -> None:
        self.line = line
        self.size_bytes = size_bytes
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Turn:
    """What has turns.

    Attributes: running: its checks under way; is_pausing: until a time; is_blocked: until its
    running check has ended.
    """

    __slots__ = ("is_blocked", "is_pausing", "running")

    def __init__(self) -> None:
        self.running = 0
        self.is_pausing = False
        self.is_blocked = False


class _Line(_Turn):
    """Attempts from one address to be one user; or one known client."""

    __slots__ = ("attempt", "key", "lane", "waiting")

    def __init__(self, lane: _Lane, key: tuple[str, str], attempt: Attempt) -> None:
        super().__init__()
        self.lane = lane
        self.key = key
        self.attempt = attempt
        self.waiting: OrderedDict[_Waiter, None] = OrderedDict()


class _Lane(_Turn):
    """All lines of one address, with known clients apart.

    Attributes: ready: lines that may have a turn; takes_newest: if many failed, the newest is next.
    """

    __slots__ = ("address", "is_known", "lines", "ready", "size_bytes", "takes_newest", "waiting")

    def __init__(self, address: str, *, is_known: bool) -> None:
        super().__init__()
        self.address = address
        self.is_known = is_known
        self.takes_newest = False
        self.lines: dict[tuple[str, str], _Line] = {}
        self.ready: OrderedDict[_Line, None] = OrderedDict()
        self.waiting: OrderedDict[_Waiter, None] = OrderedDict()  # of all lines, oldest first
        self.size_bytes = 0


class Checks:
    """See the module. All on one event loop.

    Args:
        failed_logins: who must pause.
        running_max: checks at a time, 1 or more.
        waiting_bytes_max: what waiting checks may take; beyond it the longest-waiting one of the
            address that has most is refused.

    Attributes: delayed: checks that had to wait; dropped: refused because too many waited;
        abandoned: whose client left before their turn. All since the start.
    """

    def __init__(
        self, failed_logins: FailedLogins, *, running_max: int, waiting_bytes_max: int
    ) -> None:
        self._failed = failed_logins
        self._running_max = running_max
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting_bytes = 0
        self._running = 0
        self._lanes: dict[tuple[bool, str], _Lane] = {}
        # Lanes that may have a turn, with known clients apart.
        self._queues: dict[bool, OrderedDict[_Lane, None]] = {
            True: OrderedDict(),
            False: OrderedDict(),
        }
        self._pausing: list[tuple[float, int, _Line | _Lane]] = []
        self._numbers = itertools.count()
        self._turns = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        # Kept here, since the timer cannot always tell: uvloop's forgets it once it is due.
        self._timer_due = 0.0
        self.delayed = self.dropped = self.abandoned = 0

    @property
    def waiting_count(self) -> int:
        """How many checks wait."""
        return sum(len(lane.waiting) for lane in self._lanes.values())

    @property
    def running_count(self) -> int:
        """Checks under way."""
        return self._running

    async def run(self, attempt: Attempt, size_bytes: int, check: Callable[[], Awaitable[T]]) -> T:
        """Await ``check()`` when its turn comes.

        Args: size_bytes: of what the client sent, kept meanwhile.
        Raises: FlowControlError when too many wait; what *check* raises.
        Cancellation: safe; one that still waits costs nothing.
        """
        waiter = self._join(attempt, WAITER_BYTES + size_bytes)
        self.delayed += not waiter.future.done()
        try:
            await waiter.future
        except BaseException as error:
            self.abandoned += isinstance(error, asyncio.CancelledError)
            future = waiter.future
            if future.done() and not future.cancelled() and future.exception() is None:
                self._ended(waiter)  # its turn had just come
            else:
                self._leave(waiter)
            raise
        try:
            return await check()
        finally:
            self._ended(waiter)

    # ------------------------------------------------------------------------------ coming, going

    def _join(self, attempt: Attempt, size_bytes: int) -> _Waiter:
        is_known = self._failed.is_known(attempt)
        lane = self._lanes.get((is_known, attempt.address))
        if lane is None:
            lane = _Lane(attempt.address, is_known=is_known)
            self._lanes[is_known, attempt.address] = lane
        key = (attempt.username, attempt.client_id if is_known else "")
        line = lane.lines.get(key)
        if line is None:
            line = lane.lines[key] = _Line(lane, key, attempt)
        waiter = _Waiter(line, size_bytes)
        line.waiting[waiter] = lane.waiting[waiter] = None
        lane.size_bytes += size_bytes
        self._waiting_bytes += size_bytes
        if self._waiting_bytes > self._waiting_bytes_max:
            self._make_room(lane)
        if line.waiting:
            self._ready(line)
            self._serve()
        return waiter

    def _leave(self, waiter: _Waiter) -> None:
        """It no longer waits. Idempotent."""
        if waiter in waiter.line.waiting:
            self._taken(waiter)
            self._tidy(waiter.line)

    def _taken(self, waiter: _Waiter) -> None:
        line = waiter.line
        del line.waiting[waiter], line.lane.waiting[waiter]
        line.lane.size_bytes -= waiter.size_bytes
        self._waiting_bytes -= waiter.size_bytes

    def _tidy(self, line: _Line) -> None:
        """Forget what nobody needs. A pausing line is forgotten afterwards."""
        lane = line.lane
        if line.waiting:
            return
        lane.ready.pop(line, None)
        if not (line.running or line.is_pausing):
            lane.lines.pop(line.key, None)
        self._tidy_lane(lane)

    def _tidy_lane(self, lane: _Lane) -> None:
        if lane.ready:
            return
        self._queues[lane.is_known].pop(lane, None)
        if not (lane.lines or lane.is_pausing):
            self._lanes.pop((lane.is_known, lane.address), None)

    def _make_room(self, lane: _Lane) -> None:
        """Refuse some of the new check's address, unless another address has far more than its share."""
        share = self._waiting_bytes / len(self._lanes)
        enough = self._waiting_bytes_max
        if lane.size_bytes < share:
            lane = max(self._lanes.values(), key=lambda other: other.size_bytes)
            enough -= enough // _ROOM_PART
        while self._waiting_bytes > enough and lane.waiting:
            waiter = next(iter(lane.waiting))
            self._leave(waiter)
            if not waiter.future.done():
                self.dropped += 1
                waiter.future.set_exception(
                    FlowControlError("too many logins are waiting to be checked; try again later")
                )
            if lane.size_bytes < share and self._waiting_bytes <= self._waiting_bytes_max:
                break

    def _ended(self, waiter: _Waiter) -> None:
        line = waiter.line
        lane = line.lane
        self._running -= 1
        line.running -= 1
        lane.running -= 1
        line.is_blocked = lane.is_blocked = False
        if line.waiting:
            self._ready(line)
        elif lane.ready:
            self._queue(lane)
        self._tidy(line)
        self._serve()

    # -------------------------------------------------------------------------------------- turns

    def _ready(self, line: _Line) -> None:
        """*line* may have a turn."""
        if not (line.is_pausing or line.is_blocked):
            line.lane.ready[line] = None
            self._queue(line.lane)

    def _queue(self, lane: _Lane) -> None:
        if not (lane.is_pausing or lane.is_blocked):
            self._queues[lane.is_known][lane] = None

    def _serve(self) -> None:
        """Give turns while there are any to give."""
        now = asyncio.get_running_loop().time()
        pausing = self._pausing
        while pausing and pausing[0][0] <= now:
            self._wake(heapq.heappop(pausing)[2])
        while self._running < self._running_max:
            waiter = self._next(now)
            if waiter is None:
                break
            self._running += 1
            waiter.line.running += 1
            waiter.line.lane.running += 1
            waiter.future.set_result(None)
        self._wind()

    def _wake(self, turn: _Line | _Lane) -> None:
        """Its pause is over."""
        turn.is_pausing = False
        if isinstance(turn, _Lane):
            if turn.ready:
                self._queue(turn)
            else:
                self._tidy_lane(turn)
        elif turn.waiting:
            self._ready(turn)
        else:
            self._tidy(turn)

    def _next(self, now: float) -> _Waiter | None:
        is_known = bool(next(self._turns) % _STRANGERS_EVERY)
        return self._of_queue(now, is_known) or self._of_queue(now, not is_known)

    def _of_queue(self, now: float, is_known: bool) -> _Waiter | None:
        queue = self._queues[is_known]
        while queue:
            lane, _ = queue.popitem(last=False)
            pause_s = None if is_known else self._failed.address_pause_s(lane.address, now)
            if self._has_to_wait(lane, pause_s, now):
                continue
            lane.takes_newest = pause_s is not None and not lane.takes_newest
            waiter = self._of_lane(lane, now)
            if lane.ready:
                self._queue(lane)
            if waiter is not None:
                return waiter
        return None

    def _of_lane(self, lane: _Lane, now: float) -> _Waiter | None:
        while lane.ready:
            line, _ = lane.ready.popitem(last=lane.takes_newest)
            pause_s = self._failed.pause_s(line.attempt, now)
            if self._has_to_wait(line, pause_s, now):
                continue
            waiter = next(iter(line.waiting) if pause_s is None else reversed(line.waiting))
            self._taken(waiter)
            if line.waiting:
                self._ready(line)
            if not waiter.future.done():  # otherwise it is leaving
                return waiter
            self._tidy(line)
        return None

    def _has_to_wait(self, turn: _Line | _Lane, pause_s: float | None, now: float) -> bool:
        if pause_s is None:
            return False
        if turn.running:
            turn.is_blocked = True
            return True
        if pause_s > 0:
            turn.is_pausing = True
            heapq.heappush(self._pausing, (now + pause_s, next(self._numbers), turn))
            return True
        return False

    def _wind(self) -> None:
        """Come back when the next pause is over."""
        due = self._pausing[0][0] if self._pausing and self._running < self._running_max else None
        if self._timer is not None:
            if self._timer_due == due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._rung)
            self._timer_due = due

    def _rung(self) -> None:
        self._timer = None
        self._serve()
