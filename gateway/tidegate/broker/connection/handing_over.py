"""The queues of a drained gateway go to another broker, one after another.

An extension (:class:`tidegate.spi.TakesQueues`) takes them as a client like any other, so a message is acknowledged
here when the other broker has confirmed it, and stays here until then. This says which queue is next, and what is
left: a queue is taken when nothing of the previous one waits, so that what is on the way is bounded however many
there are. Nothing is recorded: after a kill the rest is in its queues, and clients are let in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Final, final

from tidegate.broker.connection.connection import Connection
from tidegate.broker.connection.draining import LOOK_EVERY_S, Draining
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.parts import Parts
from tidegate.broker.purged import origin_of
from tidegate.broker.turn.walks import STEP_LISTS, Walk, in_slices
from tidegate.plugin_exit import FAILURES
from tidegate.spi import DrainStage, GatewayError, QueueTaker, TakesQueues, names
from tidegate.spi.events import Event
from tidegate.spi.operate import LEFT_MAX, BridgeRow, HandOver, HandOverPhase, LeftHere, LeftKind

_log = logging.getLogger("tidegate.broker")

#: How often progress is reported, and what was refused is tried again, in seconds.
TELL_EVERY_S: Final = 10.0

_PAUSED: Final = "its consumers are paused; resume it to hand it over"
_PURGED: Final = "it was purged, and is kept until the purge can no longer be undone"
_SUBSCRIPTION: Final = (
    "its messages belong to this subscription only; let its client receive them here first"
)
_EMPTY: Final = "clients create them again at the other broker"
_SESSIONS: Final = "clients start a new session at the other broker"
_RETAINED: Final = "publish them at the other broker, or bridge their topics first"
_WILLS: Final = (
    "they are published here when they are due; what queues receive from them is handed over"
)
_BRANCHES: Final = "end these transactions (XA) here: what they hold is in doubt"


class _FailedError(Exception):
    """The taker of the queues has ended."""


@dataclass(slots=True)
class Found:
    """What one look at everything finds.

    Attributes: todo: queues with something that can go; messages: in them; left_more: beyond LEFT_MAX.
    """

    todo: list[str] = field(default_factory=list[str])
    messages: int = 0
    left: list[LeftHere] = field(default_factory=list[LeftHere])
    left_more: int = 0

    def leave(self, kind: LeftKind, name: str, count: int, why: str) -> None:
        if not count:
            return
        if len(self.left) < LEFT_MAX:
            self.left.append(LeftHere(kind, name, count, why))
        else:
            self.left_more += 1


@final
class HandingOver:
    """See the module. Args: clients: those that must go first; until_durable: waits for all requests so far."""

    def __init__(
        self,
        parts: Parts,
        clients: Callable[[], Collection[Connection]],
        until_durable: Callable[[], Awaitable[None]],
        draining: Draining,
    ) -> None:
        self._parts = parts
        self._draining = draining
        self._until_durable = until_durable
        self._clients = clients
        self._taker: QueueTaker | None = None
        self._name = ""
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._found = Found()
        self._phase = HandOverPhase.WAITING
        self._told = (0, 0.0)
        self._done: tuple[int, tuple[LeftHere, ...]] | None = None
        self._has_begun = False

    @property
    def bridge(self) -> str:
        """The bridge it goes over; "": none."""
        return self._name

    @property
    def has_failed(self) -> bool:
        """It goes on only when requested again."""
        return self._phase is HandOverPhase.FAILED

    def begin(self, through: TakesQueues) -> None:
        """Begin when the clients have gone. Raises: RequestError."""
        self._taker, self._name = through.begin_taking(self._wake.set), through.name
        self._found, self._phase, self._has_begun = Found(), HandOverPhase.WAITING, False
        self._done = None
        self._task = self._parts.tasks.spawn(self._run(self._taker), "hand-over")

    async def end(self) -> None:
        """What was sent is confirmed, or not in time; the rest is in its queues. Idempotent."""
        task, taker, name = self._task, self._taker, self._name
        self._task, self._taker, self._name = None, None, ""
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if taker is None:
            return
        await taker.end()
        await self._end_stage()
        if self._has_begun and not self.has_failed:
            text = "handing_over=0 bridge=%s moved=%d"
            self._parts.events.tell(Event.HAND_OVER_ENDED, _log, text, name, taker.row().moved)

    async def _end_stage(self) -> None:
        """Residents again send by themselves what waits in queues."""
        if self._draining.stage is DrainStage.HANDING_OVER:
            await self._draining.reach(DrainStage.DRAINING)

    def state(self) -> HandOver | None:
        """How far it is; None: there is none."""
        if self._taker is None:
            return None
        row, found = self._taker.row(), self._found
        queues = self._parts.destinations.queues
        waiting = [queues[name].cursor.size for name in found.todo[:LEFT_MAX] if name in queues]
        messages = sum(waiting) if len(found.todo) <= LEFT_MAX else found.messages
        problem, remedy = self._taker.failure or (row.problem, row.remedy)
        return HandOver(
            self._name,
            self._phase,
            row.server,
            row.moved,
            row.moved_bytes,
            len(found.todo),
            messages + row.on_the_way,
            problem,
            remedy,
            tuple(found.left),
            found.left_more,
            row.problem_at,
        )

    async def _run(self, taker: QueueTaker) -> None:
        try:
            await self._hand_over(taker)
        except _FailedError:
            with contextlib.suppress(GatewayError):
                await self._until_durable()  # of what was acknowledged last
            await self._look(taker, is_again=True)
            self._phase = HandOverPhase.FAILED
            why, remedy = taker.failure or ("", "")
            text = "handing_over=failed bridge=%s moved=%d queues=%d problem=%r remedy=%r"
            values = (self._name, taker.row().moved, len(self._found.todo), why, remedy)
            self._parts.events.tell(Event.HAND_OVER_FAILED, _log, text, *values)
            await self._end_stage()

    async def _hand_over(self, taker: QueueTaker) -> None:
        """Raises: _FailedError."""
        while self._clients():
            await self._changed(taker)
        # First, what others took from queues must be at its target or back in its queue, or order would be lost.
        await self._draining.reach(DrainStage.HANDING_OVER)
        self._has_begun, self._phase = True, HandOverPhase.MOVING
        tell, loop = self._parts.events.tell, asyncio.get_running_loop()
        tell(Event.HAND_OVER_BEGUN, _log, "handing_over=1 bridge=%s", self._name)
        self._told = 0, loop.time()
        again_at = 0.0
        while True:
            is_again = loop.time() >= again_at
            try:
                found = await self._look(taker, is_again=is_again)
                if is_again:
                    again_at = loop.time() + TELL_EVERY_S
                if found.todo or taker.row().on_the_way:
                    await self._take_all(taker, found)
                elif not self._parts.flow.coming_back.is_under_way:
                    await self._set_done(taker)
            except _FailedError:
                raise
            except FAILURES:  # or it would stop, and nobody would know
                _log.exception("handing over failed, and goes on")
            await self._changed(taker)

    async def _take_all(self, taker: QueueTaker, found: Found) -> None:
        for name in tuple(found.todo):
            while not taker.has_room:
                await self._changed(taker)
            taker.take(name)
            while self._goes_on(taker, name):
                await self._changed(taker)
            taker.leave(name)
            found.todo.remove(name)

    def _goes_on(self, taker: QueueTaker, name: str) -> bool:
        queue = self._parts.destinations.queues.get(name)
        if queue is None or queue.is_paused or name in taker.refused:
            return False
        return queue.cursor.size > 0

    async def _changed(self, taker: QueueTaker) -> None:
        """Wait until something was confirmed, or for a moment. Raises: _FailedError."""
        self._wake.clear()
        moment = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            moment.cancel()
        if taker.failure is not None:
            raise _FailedError
        row = taker.row()
        if row.on_the_way:
            self._phase = HandOverPhase.MOVING
        self._tell_progress(row)

    async def _set_done(self, taker: QueueTaker) -> None:
        done = taker.row().moved, tuple(self._found.left)
        if self._done == done:
            self._phase = HandOverPhase.DONE
            return
        with contextlib.suppress(GatewayError):
            await self._until_durable()  # or the last ones would go again after a kill
        found = await self._look(
            taker, is_again=False
        )  # what was on its way into a queue has arrived
        row, left = taker.row(), found.left
        if found.todo or row.on_the_way:
            return
        done = row.moved, tuple(left)
        self._phase, self._done = HandOverPhase.DONE, done
        self._parts.events.tell(
            Event.HAND_OVER_DONE,
            _log,
            "handing_over=done bridge=%s moved=%d left=%s",
            self._name,
            row.moved,
            ", ".join(f"{one.kind.value} {one.name}={one.count}" for one in left) or "nothing",
        )

    def _tell_progress(self, row: BridgeRow) -> None:
        now, (moved, at) = asyncio.get_running_loop().time(), self._told
        if row.moved == moved or now - at < TELL_EVERY_S:
            return
        self._told = row.moved, now
        text = "handing_over=1 bridge=%s moved=%d queues=%d"
        values = (self._name, row.moved, len(self._found.todo))
        self._parts.events.tell(Event.HAND_OVER_GOES_ON, _log, text, *values)

    async def _look(self, taker: QueueTaker, *, is_again: bool) -> Found:
        """Look at all lists. Args: is_again: try refused queues again."""
        found = Found()
        await in_slices(self._looking(found, {} if is_again else dict(taker.refused)))
        parts = self._parts
        found.leave(LeftKind.SESSIONS, "", len(parts.sessions), _SESSIONS)
        found.leave(LeftKind.RETAINED, "", len(parts.retained), _RETAINED)
        found.leave(LeftKind.WILLS, "", len(parts.wills), _WILLS)
        found.leave(LeftKind.BRANCHES, "", len(parts.branches), _BRANCHES)
        self._found = found
        return found

    def _looking(self, found: Found, refused: dict[str, str]) -> Walk:
        empty = 0
        for count, pending_list in enumerate(list(self._parts.destinations.all_lists()), 1):
            if pending_list.is_queue:
                self._look_at(pending_list, found, refused)
            elif pending_list.cursor.size:
                name = _name_of(pending_list)
                found.leave(LeftKind.SUBSCRIPTION, name, pending_list.cursor.size, _SUBSCRIPTION)
            else:
                empty += 1
            if not count % STEP_LISTS:
                yield
        found.leave(LeftKind.EMPTY_SUBSCRIPTIONS, "", empty, _EMPTY)

    @staticmethod
    def _look_at(queue: PendingList, found: Found, refused: dict[str, str]) -> None:
        destination, size = queue.destination, queue.cursor.size
        if not size or names.is_temporary(destination):
            return
        if origin_of(destination) is not None:
            found.leave(LeftKind.QUEUE, destination, size, _PURGED)
        elif queue.is_paused:
            found.leave(LeftKind.QUEUE, destination, size, _PAUSED)
        elif destination in refused:
            found.leave(LeftKind.QUEUE, destination, size, refused[destination])
        else:
            found.todo.append(destination)
            found.messages += size


def _name_of(pending_list: PendingList) -> str:
    subscription = pending_list.subscription
    if subscription is None:
        return pending_list.destination
    who = subscription.client_id or subscription.share_group
    return f"{who} {subscription.name or subscription.filter}".strip()
