"""How much may wait in one list, of a queue or a durable subscription, and what happens beyond that.

:mod:`tidegate.broker.limits.ledger` says what is counted.

The count is exact near the limit and costs next to nothing far from it: only publishes to a list
within its margin make the detour in which they are counted. A list that is filled from far below
its margin to the limit within the one or two turns that are not yet durable
(``broker.pending_write_limit``) can therefore end up that much above it.

With ``drop_oldest`` the new message is stored first, in one batch with all others, and then the
oldest ones leave; those that are only in the store are read first, page by page. A list is
therefore above its limit by what came meanwhile; beyond the margin the new ones are dropped. What
is in flight is not dropped, nor, for a subscription, what was in flight and came back: the client
may have received it. Age is checked by the clock
(:meth:`tidegate.broker.limits.list_limits.ListLimits.look`) and removes messages whatever the act is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tidegate.broker.limits.ledger import ANY, DISCONNECT, DROP_OLDEST, REFUSE, SLOW, Bounds, Ledger
from tidegate.broker.limits.overflow import Overflow, Overflows
from tidegate.broker.lists.leaving import leaving
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.turn.writer import TurnWriter
from tidegate.spi import (
    FlowControlError,
    Message,
    Outcome,
    PendingCount,
    StoredMessage,
    body_bytes,
    format_size,
)

#: Bytes of bodies, and individually weighed messages, that leave a list at once.
_DROP_BYTES: Final = 16 << 20
_DROP_COUNT: Final = 200
#: Moves to a dead-letter queue in one turn: the store takes some microseconds of the loop for each.
_MOVES_MAX: Final = 500

#: Microseconds until age is checked again when only messages that must stay are left.
_AGE_RETRY_US: Final = 10_000_000

_FULL: Final = "dropped: the list was full"
_OLD: Final = "dropped: older than age_max"


class DisconnectError(FlowControlError):
    """A publish does not go through, and its client is disconnected for it."""


class Around(Protocol):
    """What a limit needs of its surroundings (:class:`tidegate.broker.limits.list_limits.ListLimits`)."""

    overflows: Overflows

    @property
    def writer(self) -> TurnWriter: ...
    def watch(self, limit: ListLimit, /) -> None: ...
    def ignore(self, limit: ListLimit, /) -> None: ...
    def forget(self, limit: ListLimit, /) -> None: ...
    def look_at(self, limit: ListLimit, due: int, /) -> None: ...
    def hold(self, pending_list: PendingList, /) -> None: ...
    def mark_ready(self, pending_list: PendingList, /) -> None: ...
    def count_dropped(self, count: int, /) -> None: ...
    def bury(
        self,
        pending_list: PendingList,
        messages: Sequence[StoredMessage],
        reason: str,
        undo: Callable[[], None],
        /,
    ) -> Sequence[StoredMessage]: ...
    def bury_new(self, pending_list: PendingList, message: Message, reason: str, /) -> bool: ...


class ListLimit(Ledger):
    """The limit of one pending list.

    Args: pending: what the store has for it. Attributes: is_near: its publishes are counted.
    """

    __slots__ = (
        "_around",
        "_horizon",
        "_is_aging",
        "_is_held",
        "_is_scheduled",
        "_is_shedding",
        "_is_watchful",
        "_kept_count",
        "_near_bytes",
        "_near_count",
        "_overflow",
        "_refuses_at",
        "_timer",
        "is_near",
        "pending_list",
    )

    def __init__(
        self, around: Around, pending_list: PendingList, bounds: Bounds, pending: PendingCount
    ) -> None:
        super().__init__(around.writer, bounds, pending)
        self._around = around
        self.pending_list = pending_list
        self.is_near = False
        self._look_from()
        self._overflow = Overflow(around.overflows, pending_list, bounds.overflow)
        self._is_shedding = self._is_held = False
        self._is_aging = False  # the last look by the clock removed some
        self._kept_count = -1
        self._horizon = 0  # older messages must go, and there may be more of them
        self._is_scheduled = False
        self._refuses_at = 0.0  # until then producers are slowed; 0: there is room
        self._timer: asyncio.TimerHandle | None = None

    def _look_from(self) -> None:
        bounds = self.bounds
        self._near_count = bounds.messages_max - self._margin if bounds.messages_max else ANY
        self._near_bytes = bounds.bytes_max - self._margin_bytes if bounds.bytes_max else ANY
        self._is_watchful = bool(bounds.age_us or bounds.bytes_max)  # also far from the limit

    def change(self, bounds: Bounds) -> None:
        """Use another limit from now on; what is in the list stays counted.

        Args: bounds: in bytes only where it :attr:`weighs`, or nothing is in the list.
        """
        is_other_act = bounds.overflow != self.bounds.overflow
        self._bind(bounds)
        if not self.weighs:
            self._sizes.clear()
            self.bytes = 0
        self._look_from()
        self._end_wait()
        if is_other_act:
            self._overflow.end()
            self._overflow = Overflow(self._around.overflows, self.pending_list, bounds.overflow)
        self._kept_count = -1
        self._horizon = 0
        self._is_scheduled = False  # the next look may be due sooner
        is_near = self.count >= self._near_count or self.bytes >= self._near_bytes
        self._react(is_near, is_dispatched=False)
        self._around.mark_ready(self.pending_list)  # waiting producers may have room now

    # --- what comes and goes -------------------------------------------------------------------

    def offered(self, messages: Sequence[StoredMessage]) -> None:
        """*messages* are new and durable."""
        self.enter(messages)
        self.update()

    def left(self, sequences: Sequence[int]) -> None:
        """An operation that takes these messages off the list is durable."""
        self.take_out(sequences)
        self.update()

    def update(self, *, is_dispatched: bool = False) -> None:
        """Messages came or went. Args: is_dispatched: the list has just handed out what it could."""
        is_near = self.count >= self._near_count or self.bytes >= self._near_bytes
        if is_near or self._is_watchful or self.is_near:
            self._react(is_near, is_dispatched)

    def _react(self, is_near: bool, is_dispatched: bool) -> None:
        bounds = self.bounds
        if self.pending_list.is_removed:
            return
        if is_near is not self.is_near:
            self.is_near = is_near
            (self._around.watch if is_near else self._around.ignore)(self)
        if self._horizon or (is_near and max(self._excess()) > 0):
            self._shed()
        if self._refuses_at and self.fits(1, 1):
            self._end_wait()
        if is_near and bounds.overflow == SLOW:
            self.hold_if_full()
        is_over = self._is_held and not self.is_full
        # Each dispatch continues with retained messages, and must not thereby ask for the next one.
        may_retain = self.weighs and self.pending_list.retained is not None and not is_dispatched
        if is_over or may_retain:
            self._is_held = self._is_held and not is_over
            self._around.mark_ready(self.pending_list)  # lets those that wait for room go on
        if self._overflow.is_on and self._is_low():
            self._overflow.end()
        if bounds.age_us and not self._is_scheduled and self.pending_list.cursor.size:
            self._is_scheduled = True
            self._around.look_at(self, 0)

    def end(self) -> None:
        """The list is gone."""
        self._end_wait()
        self._overflow.end()
        self._around.forget(self)
        self.pending_list.limit = None

    # --- room ----------------------------------------------------------------------------------

    def room(self) -> int:
        """How many more messages it takes, not counting those in flight; 0 or less: none."""
        bounds = self.bounds
        if self.spare()[1] <= 0:
            return 0
        return bounds.messages_max - self.pending_list.cursor.size if bounds.messages_max else ANY

    def _is_low(self) -> bool:
        """It is far enough below its limit for a new overflow to be news."""
        bounds = self.bounds
        if self._is_aging and self.count:
            return False
        return not (
            0 < bounds.messages_max <= self.count + max(1, bounds.messages_max // 10)
            or 0 < bounds.bytes_max <= self.bytes + bounds.bytes_max // 10
        )

    @property
    def is_full(self) -> bool:
        """Its producers must wait."""
        if self.bounds.overflow == SLOW or self._is_waiting():
            return not self.fits(1, 1)
        return False

    # --- publishing ----------------------------------------------------------------------------

    def admits(self, count: int, size: int) -> bool:
        """Tell whether *count* messages may be published to it together, even if they are dropped.
        If not, nobody gets them."""
        if self.fits(count, size):
            return True
        overflow = self.bounds.overflow
        if overflow == REFUSE:
            return self._slows_first(count, size)
        return overflow != DISCONNECT or not self.pending_list.is_queue

    def excludes(self, size: int) -> bool:
        """Tell whether an admitted new message bypasses this list."""
        overflow = self.bounds.overflow
        if overflow in (SLOW, REFUSE) or self.fits(1, size):
            return False
        return overflow != DROP_OLDEST or self._is_beyond(1, size)

    def refusal(self) -> FlowControlError:
        """Log, and make the error for a publish that does not go through."""
        self._overflow.refused(self._limit(), "refused")
        limit = self._option()
        if self.pending_list.is_queue:
            weight = f" with {self.bytes} bytes" if self.weighs else ""
            problem = (
                f"{self.pending_list.destination} has {self.count} pending "
                f"messages{weight}, which is its limit ({limit}); try again when some "
                "have been consumed"
            )
        else:  # the publisher must not learn whose it is
            problem = (
                f"a subscription to this destination has {self.count} pending messages, "
                f"which is its limit ({limit}; see the gateway's log); try again when "
                "its client has received some"
            )
        return (DisconnectError if self.bounds.overflow == DISCONNECT else FlowControlError)(
            problem
        )

    def pass_by(self, message: Message) -> None:
        """A new message does not get here."""
        bounds, around = self.bounds, self._around
        is_news = not self._overflow.is_on
        if bounds.is_dead_lettered and around.bury_new(self.pending_list, message, _FULL):
            self._overflow.dead_lettered(1, self._limit())
        else:
            self._overflow.dropped(1, self._limit())
            around.count_dropped(1)
        if is_news and bounds.overflow == DISCONNECT:
            error = FlowControlError(
                "too many messages are waiting for this client; it must receive them faster"
            )
            loop = asyncio.get_running_loop()
            for consumer in self.pending_list.consumers:  # not now: others are publishing
                loop.call_soon(consumer.client.end, error)

    # --- slowing producers ---------------------------------------------------------------------

    def _hold(self, what: str) -> None:
        self._is_held = True
        self._overflow.begin(self._limit(), what)
        self._around.hold(self.pending_list)

    def hold_if_full(self) -> None:
        """A message was accepted."""
        if self.is_full:
            self._hold("held back with their producers")

    def _slows_first(self, count: int, size: int) -> bool:
        """With ``overflow_wait``: producers wait that long before they are refused."""
        bounds = self.bounds
        is_hopeless = 0 < bounds.bytes_max < size or self._is_beyond(count, size)
        if not bounds.wait_s or is_hopeless:
            return False
        if not self._refuses_at:
            loop = asyncio.get_running_loop()
            self._refuses_at = loop.time() + bounds.wait_s
            self._timer = loop.call_at(self._refuses_at, self._waited)
            self._hold("held back with their producers, and then refused,")
        return self._is_waiting()

    def _is_waiting(self) -> bool:
        return self._timer is not None

    def _waited(self) -> None:
        """There is still no room: producers go on, and are refused."""
        self._timer = None
        self._around.mark_ready(self.pending_list)

    def _end_wait(self) -> None:
        self._refuses_at = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- letting the oldest go -----------------------------------------------------------------

    def let_go_before(self, horizon: int) -> None:
        """By the clock: messages taken in before *horizon* go."""
        self._is_scheduled = self._is_aging = False
        self._horizon = horizon
        self._shed()
        self.update()

    def _shed(self) -> None:
        """Remove the oldest that are too many or too old; more are read where needed."""
        around, cursor = self._around, self.pending_list.cursor
        if self._is_shedding or (self.bounds.is_dead_lettered and around.writer.shortage.is_near):
            return
        self._is_shedding = True
        kept: list[StoredMessage] = []
        rest: Sequence[StoredMessage] = ()
        moves = gone_count = 0
        try:
            while not rest and moves < _MOVES_MAX:
                excess, excess_bytes = self._excess()
                if max(excess, excess_bytes) <= 0 and not self._horizon:
                    break
                few = self._horizon or excess_bytes > 0 or self.bounds.is_dead_lettered
                messages = cursor.take(_DROP_COUNT if few else excess, _DROP_BYTES)
                if not messages:
                    break
                gone, old, rest = self._choose(messages, excess, excess_bytes, kept)
                gone_count += len(gone) + len(old)
                moves += (len(gone) + len(old)) * self.bounds.is_dead_lettered
                self._let_go(gone, _FULL)
                self._is_aging = self._is_aging or bool(old)
                self._let_go(old, _OLD)
        finally:
            self._is_shedding = False
            self.pending_list.changed()
            if kept or rest:
                cursor.put_back([*kept, *rest])
        if rest:  # what is left is neither too much nor too old
            self._settle(rest[0].message.received_at)
        elif moves >= _MOVES_MAX:
            around.writer.when_durable(self.update, synced=False)
        else:
            self._read_more(kept, gone_count)

    def _choose(
        self,
        messages: Sequence[StoredMessage],
        excess: int,
        excess_bytes: int,
        kept: list[StoredMessage],
    ) -> tuple[list[StoredMessage], list[StoredMessage], Sequence[StoredMessage]]:
        """Returns: those in excess, those too old, and the rest from the first one that need not go.
        What must stay is added to *kept*."""
        gone: list[StoredMessage] = []
        old: list[StoredMessage] = []
        for index, item in enumerate(messages):
            is_over = excess > 0 or excess_bytes > 0
            is_old = self._horizon > 0 and item.message.received_at <= self._horizon
            if not (is_over or is_old):
                return gone, old, messages[index:]
            # What was sent already has its packet id, and the client may have received it.
            if item.delivery_count and not self.pending_list.is_queue:
                kept.append(item)
                continue
            (gone if is_over else old).append(item)
            excess -= 1
            excess_bytes -= body_bytes(item.message) if self.weighs else 0
        return gone, old, ()

    def _settle(self, oldest: int, *, is_empty: bool = False) -> None:
        """Nothing has to go for now; the oldest was taken in at *oldest*."""
        self._kept_count = -1
        self._horizon = 0
        if self.bounds.age_us and not self._is_scheduled and not is_empty:
            self._is_scheduled = True
            self._around.look_at(self, oldest + self.bounds.age_us)

    def _read_more(self, kept: list[StoredMessage], gone_count: int) -> None:
        """Nothing more is in memory: have a page read if there may be more that has to go."""
        around, pending_list = self._around, self.pending_list
        has_more = pending_list.cursor.size > len(kept)
        is_wanted = self._horizon or max(self._excess()) > 0
        is_hopeful = gone_count or not kept or len(kept) > self._kept_count
        if is_wanted and has_more and is_hopeful:
            # The page leads to a dispatch, and that to an update, which continues here. What is kept
            # may be all that memory has room for; then the page brings nothing and this ends. With
            # nothing kept, a consumer took what the last page brought.
            self._kept_count = len(kept)
            pending_list.request_page(anyway=True)
        else:
            now = around.writer.now()
            is_empty = not kept and not has_more  # the next message is checked when it comes
            self._settle(now + _AGE_RETRY_US - self.bounds.age_us, is_empty=is_empty)

    def _let_go(self, messages: list[StoredMessage], reason: str) -> None:
        if not messages:
            return
        around, pending_list = self._around, self.pending_list
        if self.weighs:
            self.weigh(messages)
        left: Sequence[StoredMessage] = messages
        if self.bounds.is_dead_lettered:
            left = around.bury(pending_list, messages, reason, lambda: self._back(messages))
            if not left:  # all or nothing
                for item in messages:
                    self._leaves([item])
                self._overflow.dead_lettered(len(messages), self._limit())
        if left:
            self._leaves(left)
            self._overflow.dropped(len(left), self._limit())
            around.count_dropped(len(left))
            operation = leaving(around.writer, pending_list.id, left, Outcome.DROPPED, reason)
            around.writer.add_operation(operation, synced=False)

    def _back(self, messages: Sequence[StoredMessage]) -> None:
        """The store had no room to move them."""
        for item in messages:
            self._has_left(item.sequence)
        self._overflow.dead_lettered(-len(messages), self._limit())
        self.pending_list.put_back(messages)

    # --- telling -------------------------------------------------------------------------------

    def _is_heavy(self) -> bool:
        """The excess is in bytes."""
        bounds = self.bounds
        return bool(bounds.bytes_max) and not (
            bounds.messages_max and bounds.messages_max <= self.count
        )

    def _option(self) -> str:
        return self.bounds.prefix + ("bytes_max" if self._is_heavy() else "messages_max")

    def _limit(self) -> str:
        """The limit that was reached, for the log."""
        bounds = self.bounds
        if self._horizon:
            return f"{bounds.age_us / 1_000_000:g}s"
        return format_size(bounds.bytes_max) if self._is_heavy() else str(bounds.messages_max)
