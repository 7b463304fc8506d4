"""Who may go on and who must wait: lists whose consumers have room, producers who have none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from time import perf_counter
from typing import Final, cast

from tidegate.broker.lists import handing_out
from tidegate.broker.lists.pending_list import Choosing, Client, Consumer, PendingList
from tidegate.broker.lists.selecting import Selecting
from tidegate.broker.route.router import Route
from tidegate.broker.turn.coming_back import ComingBack
from tidegate.broker.turn.deferred import Deferred
from tidegate.broker.turn.turn import Turn, Waiting
from tidegate.broker.turn.walks import SLICE_S, STEP_LISTS, Walk, Walks
from tidegate.broker.turn.writer import TurnWriter
from tidegate.plugin_exit import FAILURES
from tidegate.spi import (
    MessageStore,
    PendingCursor,
    RequestError,
    StoredMessage,
    Subscription,
)
from tidegate.spi.events import Tell, log_only

_log = logging.getLogger("tidegate.broker")

#: Lists that hand out their messages between looks at the clock.
DISPATCHED_AT_ONCE: Final = 16

#: Work that one turn may do in one go, when it is written or when it is durable; a client that asks
#: for more goes on in the next turn. The unit is a message given to one of the subscriptions of a
#: route that fans out: 1 to 3 microseconds.
TURN_WORK_MAX: Final = 10_000

#: What ending a subscription, or retaining a message, costs in that unit: the store encodes it and
#: keeps it on the loop, and a turn grows for as long as the one before it is being written.
STATE_WORK: Final = 50
#: The same for a new subscription: its list, its cursor and its place among the routes take some
#: 100 microseconds. Meanwhile the loop hardly releases the GIL, and the thread that writes the
#: previous turn waits for it: a turn takes as long as the next one takes to fill.
SUBSCRIPTION_WORK: Final = 2 * STATE_WORK
#: The same for a packet id that a session keeps.
INFLIGHT_WORK: Final = 5

#: Operations of one turn: a client that adds messages beyond this goes on in the next one. The
#: store takes 2 to 5 microseconds of the loop for each.
TURN_OPERATIONS_MAX: Final = 1000

#: Throttle reason: bodies accepted but not yet durable are over the limit.
UNWRITTEN: Final = "unwritten"


def _go_on() -> None:
    """Nothing to do: :meth:`Flow._written` tells those that wait."""


class Tasks:
    """Runs the broker's own tasks, logs those that fail, and ends them.

    Attributes: closers: tasks that are never cancelled.
    """

    def __init__(self) -> None:
        self.running: set[asyncio.Task[None]] = set()
        self.closers: set[asyncio.Task[None]] = set()

    def spawn(
        self, work: Coroutine[object, object, None], name: str, *, is_closer: bool = False
    ) -> asyncio.Task[None]:
        """Run *work*; its failure is logged. Args: is_closer: it must run to its end."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        (self.closers if is_closer else self.running).add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        self.closers.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("task=%r failed", task.get_name(), exc_info=task.exception())

    async def stop(self) -> None:
        """End them all."""
        for task in list(self.running):
            task.cancel()
        await asyncio.gather(*self.running, *self.closers, return_exceptions=True)


class Flow:
    """See the module. The surroundings of pending lists.

    Attributes:
        lower, half_sent, ended: see :class:`tidegate.broker.lists.pending_list.Surroundings`; set
            once the parts that do it exist.
        ready: lists that may have something to hand out at the end of this turn.
        walks: over many lists; deferred: transactions that wait for their turn.
        coming_back: what departed consumers had in flight.
        full_lists: lists that take no more; their producers wait.
        unreadable: lists whose next page cannot be read, and why.
        unseen: lists that may have changed since operators last looked, including all new ones.
        nowhere: stands in for the list of in-flight messages that no list holds.
        sent: messages handed to front-ends; dropped: those that no consumer got.
        losing: how many messages lists without a limit lost; reading it empties it.
        checks_publish: publishes must be checked for now.
        turn_bytes_max, turn_operations_max: a client that adds messages beyond them waits for the turn.
    """

    def __init__(
        self,
        store: MessageStore,
        tasks: Tasks,
        pending_write_limit: int,
        *,
        clock: Callable[[], int],
        on_write: Callable[[], None],
    ) -> None:
        self.store = store
        self.lower: Callable[[PendingList, bool], None]
        self.half_sent: Callable[[Subscription, Sequence[StoredMessage]], set[int]]
        self.ended: Callable[[PendingList], None]
        self.spawn = tasks.spawn
        self.writer = TurnWriter(store, clock, self._end_of_turn, self._written)
        self.walks = Walks()
        self.coming_back = ComingBack(self)
        self.deferred = Deferred(self)
        self.ready: dict[PendingList, None] = {}
        self.tell: Tell = log_only
        self.full_lists: set[PendingList] = set()
        self.unreadable: dict[PendingList, str] = {}
        self.unseen: set[PendingList] = set()
        # Nobody uses the cursor of a removed list.
        self.nowhere = PendingList(self, 0, "", cast("PendingCursor", None), is_removed=True)
        self.sent = 0
        self.dropped = 0
        self.losing: dict[PendingList, int] = {}
        self.checks_publish = False
        self.turn_bytes_max = pending_write_limit
        self.turn_operations_max = TURN_OPERATIONS_MAX
        self._on_write = on_write
        self._resting: list[Consumer] = []
        # Consumers whose many lists are being looked through; True: do it once more.
        self._looked_through: dict[Consumer, bool] = {}
        self._throttled: set[Client] = set()
        self._read: dict[PendingList, set[int]] = {}  # lists whose pages are being read

    def choosing(self, pending_list: PendingList) -> Choosing:
        """For a list that has just got its first consumer with a selector."""
        return Selecting(self, pending_list)

    # --- what is handed out, see tidegate.broker.lists.handing_out -----------------------------------

    async def page_in(self, pending_list: PendingList) -> None:
        await handing_out.page_in(self, pending_list)

    def permitted(
        self,
        pending_list: PendingList,
        consumer: Consumer,
        messages: Sequence[StoredMessage],
        now: int,
    ) -> Sequence[StoredMessage] | None:
        return handing_out.permitted(self, pending_list, consumer, messages, now)

    def without_expired(
        self, pending_list: PendingList, messages: Sequence[StoredMessage], now: int
    ) -> Sequence[StoredMessage]:
        return handing_out.without_expired(self, pending_list, messages, now)

    def returned(self, pending_list: PendingList, messages: Sequence[StoredMessage]) -> None:
        handing_out.returned(self, pending_list, messages)

    def now_or_never(
        self, pending_list: PendingList, consumer: Consumer, messages: Sequence[StoredMessage]
    ) -> None:
        handing_out.now_or_never(self, pending_list, consumer, messages)

    # --- consumers -----------------------------------------------------------------------------

    def mark_ready(self, pending_list: PendingList) -> None:
        """The list may have something to hand out at the end of this turn."""
        self.ready[pending_list] = None
        self.writer.schedule()

    def mark_if_pending(self, pending_list: PendingList) -> None:
        """Like :meth:`mark_ready`, for a queue of a consumer that has just got room."""
        if pending_list.cursor.size:
            self.mark_ready(pending_list)

    def mark_lists(self, consumer: Consumer) -> None:
        """The consumer has room: any of its lists may have waited for that."""
        lists = consumer.lists
        if len(lists) <= STEP_LISTS:
            for pending_list in lists:
                self.mark_ready(pending_list)
        elif consumer in self._looked_through:
            self._looked_through[consumer] = True
        else:
            self._looked_through[consumer] = False
            self.walks.begin(self._look_through(consumer), is_urgent=False)

    def _look_through(self, consumer: Consumer) -> Walk:
        is_again = True
        while is_again and not consumer.is_over:
            self._looked_through[consumer] = False
            for count, pending_list in enumerate(list(consumer.lists), 1):
                self.mark_if_pending(pending_list)
                if not count % STEP_LISTS:
                    yield
            is_again = self._looked_through[consumer]  # it got room again meanwhile
        del self._looked_through[consumer]

    def _end_of_turn(self) -> None:
        ready = self.ready
        if not ready:
            return
        ends_at = perf_counter() + SLICE_S
        self.ready = {}
        for count, pending_list in enumerate(ready, 1):
            try:
                pending_list.dispatch()
            except FAILURES:  # one cursor that fails must not stop the other lists
                _log.exception("destination=%s: dispatch failed", pending_list.destination)
            if not count % DISPATCHED_AT_ONCE and perf_counter() >= ends_at:
                left = dict.fromkeys(islice(ready, count, None))
                self.ready = left | self.ready
                break
        if self.ready:  # left over, or marked meanwhile, when scheduling a turn has no effect
            asyncio.get_running_loop().call_soon(self.writer.schedule)

    def rest(self, consumer: Consumer) -> None:
        """Serve *consumer* again once the sockets have been written."""
        if not self._resting:
            asyncio.get_running_loop().call_soon(self._wake_resting)
        self._resting.append(consumer)

    def _wake_resting(self) -> None:
        resting, self._resting = self._resting, []
        for consumer in resting:
            consumer.resting = False
            if len(consumer.lists) > STEP_LISTS:
                self.mark_lists(consumer)
                continue
            for pending_list in consumer.lists:
                self.mark_if_pending(pending_list)

    def count_dropped(self, pending_list: PendingList, count: int) -> None:
        """Unstored messages were dropped because a subscriber does not keep up."""
        self.dropped += count
        self.losing[pending_list] = self.losing.get(pending_list, 0) + count

    # --- producers -----------------------------------------------------------------------------

    def throttle_if_large(self, client: Client) -> None:
        """If the filling turn is large enough this producer waits until it is written."""
        turn = self.writer.turn
        if len(turn.operations) > self.turn_operations_max:
            self._throttle(client, at_once=True)
        elif turn.body_bytes > self.turn_bytes_max:
            self._throttle(client)

    @property
    def turn(self) -> Turn:
        """The one that is being filled."""
        return self.writer.turn

    def takes(self, turn: Turn, operations: int) -> bool:
        """Tell whether *turn* takes *operations* more."""
        size = len(turn.operations) + operations
        return size <= self.turn_operations_max and turn.work <= TURN_WORK_MAX

    def wait(self, client: Waiting) -> None:
        """*client* goes on when the turn is written, even if there is nothing to write."""
        self._throttle(cast("Client", client), at_once=True)
        self.writer.when_durable(_go_on, synced=False)

    def _throttle(self, client: Client, *, at_once: bool = False) -> None:
        self._throttled.add(client)
        client.throttle(UNWRITTEN, at_once=at_once)

    def add_work(self, client: Client, work: int) -> None:
        """*client* asked for *work* that is done with the whole turn: see `TURN_WORK_MAX`."""
        # Nobody waits for a full store: acknowledgements free room.
        if self.add_own_work(work) and not self.writer.shortage.until:
            self._throttle(client, at_once=True)

    def add_own_work(self, work: int) -> bool:
        """*work* of the gateway's own is added to the turn. Returns: it should be written first,
        see :data:`tidegate.broker.turn.walks.Walk`."""
        turn = self.writer.turn
        turn.work += work
        is_large = turn.work > TURN_WORK_MAX
        if is_large:  # even with nothing to write: the caller waits for the next turn
            self.writer.when_durable(_go_on, synced=False)
        return is_large

    def _written(self, unwritten_bytes: int) -> None:
        self._on_write()
        self.walks.turn_written()
        deferred = self.deferred
        if deferred.clients:
            deferred.turn_written()
        if self._throttled and unwritten_bytes <= self.turn_bytes_max // 2:
            throttled = {item for item in self._throttled if item not in deferred.clients}
            self._throttled -= throttled
            for client in throttled:
                client.unthrottle(UNWRITTEN)

    def throttle_full(self, client: Client, route: Route) -> None:
        """A list of *route* may be full: its producer waits until consumers make room."""
        for pending_list in (*route.stored, *route.direct):
            if pending_list in self.full_lists:
                pending_list.blocked.add(client)
                client.throttle(pending_list)

    def has_room(self, list_id: int) -> None:
        """A list is no longer full, though nobody took anything from it."""
        for pending_list in self.full_lists:
            if pending_list.id == list_id:
                self.mark_ready(pending_list)

    def release_consumer(self, client: Client) -> None:
        """A client that waits for room in a list was handed messages: its acknowledgements must
        be read, or two clients that consume what the other produces would wait for ever."""
        for pending_list in self.full_lists:
            if client in pending_list.blocked:
                pending_list.blocked.discard(client)
                client.unthrottle(pending_list)

    def release_producers(self, pending_list: PendingList) -> None:
        """The list takes messages again, or it is gone: its producers go on."""
        self.full_lists.discard(pending_list)
        blocked, pending_list.blocked = pending_list.blocked, set()
        for client in blocked:
            client.unthrottle(pending_list)

    # --- what leaves a list otherwise than from its front ------------------------------------------

    def left(self, pending_list: PendingList, sequences: Sequence[int]) -> None:
        """Claimed messages have left the list and the store."""
        if not pending_list.is_removed:
            pending_list.changed()
            pending_list.cursor.remove(sequences)
            read = self._read.get(pending_list)
            if read is not None:
                read.update(sequences)

    def begin_reading(self, pending_list: PendingList) -> set[int]:
        """Begin to read pages of the list and to claim what is in them.

        Returns: a set that collects what leaves the list by claims, until :meth:`end_reading`: a page
            read before may still have it.
        Raises: RequestError when the list is being read already.
        """
        if pending_list in self._read:
            raise RequestError(
                f"another operation on {pending_list.destination} is in progress; wait "
                "until it ends"
            )
        read = self._read[pending_list] = set[int]()
        return read

    def end_reading(self, pending_list: PendingList) -> None:
        """No more pages are read."""
        del self._read[pending_list]

    # --- the end -------------------------------------------------------------------------------

    def forget_list(self, pending_list: PendingList) -> None:
        """It takes and hands out nothing more; its producers go on."""
        self.ready.pop(pending_list, None)
        self.release_producers(pending_list)

    def forget_client(self, client: Client) -> None:
        """The connection ended."""
        self._throttled.discard(client)
        for pending_list in self.full_lists:
            pending_list.blocked.discard(client)
