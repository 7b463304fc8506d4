"""Lists that are gone, and what they still held: each of these messages gets a row in the log.

A queue that is deleted, a subscription or session that ends or expires may hold millions. They leave step by step:

1. The list ends at once, and for good. A turn records that in the store: from then on the list belongs to a
   subscription that has *ended* (one that is not durable needs no such mark). Nobody gets anything from it, and a
   new queue or subscription of that name has its own list.
2. When that is durable its messages are read and leave it, a page in a batch, each batch with their rows.
3. When none is left the list leaves the store.

A gateway that is killed meanwhile continues with 2 at the next start: what has left the list has its row, and the
rest is still in it. Where such messages get no rows (``acknowledged_outcomes``), and without sinks, the list leaves
the store at once, with all that is in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, final

import msgspec

from tidegate.broker.lists.leaving import NOBODY, Who, leaving
from tidegate.broker.turn.flow import Tasks
from tidegate.broker.turn.shortage import FULL_BACK_OFF_S
from tidegate.broker.turn.writer import TurnWriter
from tidegate.spi import (
    GatewayError,
    MessageStore,
    Outcome,
    PutSubscription,
    RemoveDestination,
    RemoveSubscription,
    StoreError,
    Subscription,
)

_log = logging.getLogger("tidegate.broker")

#: Messages that leave in one batch, and bytes of bodies read for them (one message may have more): a
#: millisecond of the loop.
STEP_COUNT: Final = 250
STEP_BYTES: Final = 1 << 20

#: Time between tries when the log has no room, which the sinks free, or the store cannot be reached.
WAIT_S: Final = 1.0

#: Why a list ended if nothing else is known: its gateway was killed, or stopped.
_WITH_GATEWAY: Final = "its connection ended with the gateway"


class _Ended(NamedTuple):
    """A list. Attributes: after: everything up to there has left it; rows: how many were made so far."""

    list_id: int
    who: Who
    why: str
    after: int = 0
    rows: int = 0


@final
class EndedLists:
    """See the module.

    Args: is_held_up: rows of what ended would fill the log so that clients are refused: they wait.

    Attributes: waiting: lists that may still hold messages.
    """

    def __init__(
        self, store: MessageStore, writer: TurnWriter, tasks: Tasks, is_held_up: Callable[[], bool]
    ) -> None:
        self._store = store
        self._writer = writer
        self._tasks = tasks
        self._is_held_up = is_held_up
        self.waiting: deque[_Ended] = deque()
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    def end_queue(self, destination: str, list_id: int, why: str) -> None:
        """A stored queue ends with the filling turn. Its list no longer belongs to the broker."""
        writer = self._writer
        if not self._has_rows:
            writer.add_operation(RemoveDestination(destination, list_id))
            return
        ended = Subscription(list_id, "", "", destination, durable=False, ended=why)
        writer.add_operation(PutSubscription(ended))
        writer.add_operation(RemoveDestination(destination, 0))
        self._begin(_Ended(list_id, NOBODY, why))

    def end_subscription(self, subscription: Subscription, why: str, messages: int) -> None:
        """A stored subscription with its own list ends, likewise.

        Args: messages: how many its list holds. Without rows the store drops them in one go with the
            turn: each is as much work as one that is handed out.
        """
        if not self._has_rows:
            self._writer.turn.work += messages
            self._writer.add_operation(RemoveSubscription(subscription.pending_list))
            return
        if subscription.durable:
            ended = msgspec.structs.replace(subscription, durable=False, ended=why)
            self._writer.add_operation(PutSubscription(ended))
        self._begin(_Ended(subscription.pending_list, _whose(subscription), why))

    def recover(self, subscription: Subscription, messages: int) -> None:
        """A subscription that is not durable is left over from before the start.

        Args: messages: how many its list holds.
        """
        if not messages or not self._has_rows:
            self._writer.add_operation(RemoveSubscription(subscription.pending_list))
            return
        why = subscription.ended or _WITH_GATEWAY
        self._begin(_Ended(subscription.pending_list, _whose(subscription), why))

    def close(self) -> None:
        """The gateway stops: what is left continues at the next start."""
        self._is_closed = True

    @property
    def _has_rows(self) -> bool:
        return Outcome.PURGED in self._writer.logged

    def _begin(self, ended: _Ended) -> None:
        """Wait first: messages may be on their way to the list in this turn, and the one before."""

        def is_durable() -> None:
            self.waiting.append(ended)
            if self._task is None and not self._is_closed:
                self._task = self._tasks.spawn(self._empty(), "ended lists")

        self._writer.when_durable(is_durable, synced=False)

    async def _empty(self) -> None:
        """Take each list, in turn, one page further."""
        try:
            while self.waiting:
                if self._is_held_up():
                    await asyncio.sleep(WAIT_S)
                    continue
                further = await self._step(self.waiting[0])
                self.waiting.popleft()
                if further is not None:
                    self.waiting.append(further)
                else:
                    await asyncio.sleep(0)  # thousands may be empty, so that nothing was awaited
        finally:
            self._task = None

    async def _step(self, ended: _Ended) -> _Ended | None:
        """Returns: how far it is now; None: nothing is left."""
        writer = self._writer
        while True:
            try:
                page = await self._store.page_in(ended.list_id, ended.after, STEP_COUNT, STEP_BYTES)
                break
            except StoreError as error:
                if not error.retryable:
                    _log.error(
                        "list=%d the rest of it has no rows before the next start: %s",
                        ended.list_id,
                        error,
                    )
                    return None
                await asyncio.sleep(FULL_BACK_OFF_S)
        if not page:
            writer.add_operation(RemoveSubscription(ended.list_id))
            if ended.rows:
                _log.info("list=%d rows=%d: %s", ended.list_id, ended.rows, ended.why)
            return None
        writer.add_operation(
            leaving(writer, ended.list_id, page, Outcome.PURGED, ended.why, ended.who)
        )
        if not await self._durable():
            return None
        return ended._replace(after=page[-1].sequence, rows=ended.rows + len(page))

    async def _durable(self) -> bool:
        """Returns: False: the store is read-only; the next start goes on."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(error: GatewayError | None = None) -> None:
            if not future.done():
                future.set_result(error is None)

        self._writer.when_durable(done, done)
        return await future


def _whose(subscription: Subscription) -> Who:
    return Who(
        subscription.client_id,
        subscription.share_group or subscription.name,
        subscription.protocol,
        subscription.owner,
    )
