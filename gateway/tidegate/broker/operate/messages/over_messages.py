"""Going over the messages of a queue, to purge, move or copy them, or to retry dead letters.

A page is read from the store, and what is wanted of it is *claimed* from the cursor, as for a consumer with
a selector: the claimer alone has the message, and what a consumer or a transaction holds cannot be
claimed. What happens to the claimed ones is one unit of the filling turn: after a crash each message is where it
was or where it goes, once; when the store has no room all of them go back to their places. The next page is read
only when that is durable, so that nobody waits for more than a page.

A page may be out of date: :meth:`tidegate.broker.turn.flow.Flow.left` tells what left the list while it was read.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, TypeAlias

import msgspec

from tidegate.broker.lists.leaving import leaving
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.lists.selector import Matcher, compile_selector
from tidegate.broker.publish.publisher import (
    Publisher,
    dead_letter_from,
    without_dead_letter_headers,
)
from tidegate.broker.turn.flow import Flow
from tidegate.spi import (
    FlowControlError,
    GatewayError,
    Message,
    Outcome,
    RequestError,
    StoredMessage,
    body_bytes,
    names,
)
from tidegate.spi.operate import WORK_S, Done, Lengthy

#: Read from the store, and handled in one batch: messages, and bytes of bodies.
PAGE_COUNT: Final = 256
PAGE_BYTES: Final = 1 << 20

#: Claimed at once: a cursor looks up this few one by one, but goes through all that it holds for more.
_CLAIM_COUNT: Final = 64

#: More bytes than any list holds.
_ANY: Final = 1 << 62

#: How long messages are matched with a selector before others get their turn.
_SLICE_S: Final = 0.002

#: How many messages it happens to, and a future for when it has.
_Happens: TypeAlias = tuple[int, asyncio.Future[None]] | None
#: Puts what is to happen to messages into the filling turn, and where they go.
_Act: TypeAlias = Callable[[PendingList, list[StoredMessage], PendingList | None], _Happens]
#: Messages, how far they were examined (None: all), and where they go (None: there are none).
_Sorted: TypeAlias = tuple[list[StoredMessage], int | None, PendingList | None]


def durable(
    flow: Flow,
    first: int | None = None,
    *,
    done: Callable[[], object] | None = None,
    undo: Sequence[Callable[[], None]] = (),
) -> asyncio.Future[None]:
    """Wait until everything requested so far is durable and has been handed out.

    Args: first: the operations of the filling turn from this number on stand or fall together;
        done: called when they are durable, even if nobody waits; undo: see `Turn.unit`.
    Raises, in the future: StoreError. Cancellation: safe; only the waiting ends.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def waited() -> None:
        if not future.done():
            future.set_result(None)

    def confirmed() -> None:
        if done is not None:
            done()
        loop.call_soon(waited)  # after handing out

    def failed(error: GatewayError) -> None:
        if not future.done():
            future.set_exception(error)

    turn = flow.writer.turn
    turn.when_durable(confirmed, failed, first=first, undo=undo)
    turn.synced = True
    flow.writer.schedule()
    return future


@dataclass(slots=True)
class OverMessages:
    """See the module."""

    _flow: Flow
    _publisher: Publisher

    async def purge(self, pending_list: PendingList, request: Lengthy) -> Done:
        """Discard them. Raises: RequestError, StoreError."""
        return await self._go_over(pending_list, request, self._discard)

    async def move(self, pending_list: PendingList, target: PendingList, request: Lengthy) -> Done:
        """Move them to the end of *target*. Raises: RequestError, FlowControlError, StoreError."""
        return await self._go_over(pending_list, request, self._move, target)

    async def copy(self, pending_list: PendingList, target: PendingList, request: Lengthy) -> Done:
        """Append copies of them to *target*. Raises: RequestError, FlowControlError, StoreError."""
        return await self._go_over(pending_list, request, self._copy, target)

    async def retry(
        self,
        pending_list: PendingList,
        request: Lengthy,
        home_of: Callable[[str], PendingList],
    ) -> Done:
        """Move dead letters back to the queues that they come from.

        Args: home_of: returns the list of a queue by its name; an error of it ends the request there.
        Raises: AccessError, RequestError, FlowControlError, StoreError.
        """
        stays = 0

        def sort(wanted: list[StoredMessage]) -> _Sorted:
            """The first of them that go to one queue, and whether later ones are for the next step."""
            nonlocal stays
            found: list[StoredMessage] = []
            target: PendingList | None = None
            for number, item in enumerate(wanted):
                origin = dead_letter_from(item.message)
                if not names.is_queue(origin):
                    stays += 1
                elif target is None:
                    found, target = [item], home_of(origin)
                elif origin == target.destination:
                    found.append(item)
                else:
                    return found, wanted[number - 1].sequence, target
            return found, None, target

        done = await self._go_over(pending_list, request, self._retry, sort=sort)
        if not stays:
            return done
        note = f"{stays} messages did not come from a queue and stay here; move them yourself."
        return msgspec.structs.replace(done, note=note)

    async def _go_over(
        self,
        pending_list: PendingList,
        request: Lengthy,
        act: _Act,
        target: PendingList | None = None,
        *,
        sort: Callable[[list[StoredMessage]], _Sorted] | None = None,
    ) -> Done:
        """Args: target: where they go, None: nowhere; sort: decides that instead, step by step."""
        flow = self._flow
        loop = asyncio.get_running_loop()
        matches = compile_selector(request.selector)
        left = flow.begin_reading(pending_list)
        try:
            last = flow.writer.next_sequence - 1
            through = min(request.through or last, last)
            chosen: list[int] = []
            if request.sequences is not None:
                chosen = sorted({n for n in request.sequences if request.after < n <= through})
                through = chosen[-1] if chosen else request.after
            ends_at = loop.time() + WORK_S
            await durable(flow)  # what was published before has arrived and been offered
            after, count = request.after, 0
            is_complete = request.sequences is not None and not chosen
            while not is_complete and loop.time() < ends_at:
                try:
                    left.clear()
                    after, until = _run(chosen, after) if chosen else (after, through)
                    size = min(until - after, PAGE_COUNT) if chosen else PAGE_COUNT
                    page = await flow.store.page_in(pending_list.id, after, size, PAGE_BYTES)
                    most = request.count_max - count if request.count_max else PAGE_COUNT
                    wanted, looked_at = _chosen(page, after, until, matches, left, most)
                    if sort is not None:
                        wanted, sorted_to, target = sort(wanted)
                        looked_at = looked_at if sorted_to is None else sorted_to
                    room, room_bytes = self._room(pending_list, target)
                    fitting = _fitting(wanted, room, room_bytes)
                    if target is not None and len(fitting) < len(wanted):
                        if not fitting:
                            raise is_full(target)
                        wanted, looked_at = fitting, fitting[-1].sequence
                    happens = act(pending_list, wanted, target)
                    if happens is not None:
                        await happens[1]
                        count += happens[0]
                except GatewayError:
                    if not count:
                        raise
                    break  # the answer says how far it got; a later request would hear of this
                after = looked_at
                is_complete = not page or after >= through or 0 < request.count_max <= count
                await asyncio.sleep(0)
            return Done(count, is_complete=is_complete, after=after, through=through)
        finally:
            flow.end_reading(pending_list)

    def _room(self, pending_list: PendingList, target: PendingList | None) -> tuple[int, int]:
        """How many messages and bytes of bodies *target* accepts now.

        Raises: RequestError, FlowControlError, StoreError.
        """
        for item in (pending_list, target):
            if item is not None and item.is_removed:
                raise RequestError(f"{item.destination} was deleted in the meantime")
        self._flow.writer.check_writable(adds=target is not None)
        limit = None if target is None else target.limit
        room, room_bytes = (PAGE_COUNT, _ANY) if limit is None else limit.spare()
        if target is not None and (min(room, room_bytes) <= 0 or target in self._flow.full_lists):
            raise is_full(target)
        return min(room, PAGE_COUNT), room_bytes

    # --- what happens to them ------------------------------------------------------------------

    def _discard(
        self, pending_list: PendingList, wanted: list[StoredMessage], _: PendingList | None
    ) -> _Happens:
        taken = _claim(pending_list, wanted)
        first = len(self._flow.writer.turn.operations)
        if taken:
            writer = self._flow.writer
            writer.turn.operations.append(leaving(writer, pending_list.id, taken, Outcome.PURGED))
        return self._leave(pending_list, taken, first)

    def _move(
        self, pending_list: PendingList, wanted: list[StoredMessage], target: PendingList | None
    ) -> _Happens:
        return self._carry(pending_list, wanted, target, _accepted)

    def _retry(
        self, pending_list: PendingList, wanted: list[StoredMessage], target: PendingList | None
    ) -> _Happens:
        return self._carry(pending_list, wanted, target, _revived)

    def _carry(
        self,
        pending_list: PendingList,
        wanted: list[StoredMessage],
        target: PendingList | None,
        made: Callable[[StoredMessage, PendingList], Message],
    ) -> _Happens:
        """Args: made: what a message is in *target*."""
        if target is None:
            return None
        taken = _claim(pending_list, wanted)
        writer, route = self._flow.writer, self._publisher.resolve(target.destination)
        first = len(writer.turn.operations)
        for item in taken:
            writer.add_move(pending_list, item.sequence, route, made(item, target))
        return self._leave(pending_list, taken, first)

    def _copy(
        self, _: PendingList, wanted: list[StoredMessage], target: PendingList | None
    ) -> _Happens:
        if not wanted or target is None:
            return None
        writer, route = self._flow.writer, self._publisher.resolve(target.destination)
        first = len(writer.turn.operations)
        for item in wanted:
            writer.add_message(_accepted(item, target), route)
        writer.own_sequences += len(wanted)
        return len(wanted), durable(self._flow, first)

    def _leave(self, pending_list: PendingList, taken: list[StoredMessage], first: int) -> _Happens:
        """The filling turn takes them off the list, with its operations from number *first* on."""
        flow = self._flow
        sequences = [item.sequence for item in taken]
        if not taken:
            return None
        pending_list.leaving(taken)

        def done() -> None:
            flow.left(pending_list, sequences)
            if pending_list.selecting is not None:
                pending_list.selecting.forget(sequences)
            flow.mark_ready(pending_list)  # its producers may have waited for room

        def undo() -> None:
            pending_list.put_back(taken)

        return len(taken), durable(flow, first, done=done, undo=(undo,))


def _run(chosen: Sequence[int], after: int) -> tuple[int, int]:
    """The next of *chosen* that follow each other: those after the first number up to the second.

    Args: chosen: ascending, the last one after *after*.
    """
    index = bisect_right(chosen, after)
    first = last = chosen[index]
    for sequence in chosen[index + 1 :]:
        if sequence != last + 1:
            break
        last = sequence
    return first - 1, last


def _chosen(
    page: Sequence[StoredMessage],
    after: int,
    through: int,
    matches: Matcher | None,
    left: set[int],
    count: int,
) -> tuple[list[StoredMessage], int]:
    """What is wanted of a page, and up to which sequence it was examined."""
    wanted: list[StoredMessage] = []
    until = perf_counter() + _SLICE_S
    for item in page:
        if item.sequence > through:
            return wanted, through
        after = item.sequence
        if item.sequence not in left and (matches is None or matches(item.message)):
            wanted.append(item)
        if len(wanted) >= count or perf_counter() >= until:
            break
    return wanted, after


def _accepted(item: StoredMessage, target: PendingList) -> Message:
    """*item* as it is in *target*, which counts it from now on."""
    message = msgspec.structs.replace(
        item.message, destination=target.destination, original_name=""
    )
    if target.limit is not None:
        target.limit.accept(body_bytes(message))
    return message


def _revived(item: StoredMessage, target: PendingList) -> Message:
    """A dead letter as it is back where it comes from."""
    message = _accepted(item, target)
    return msgspec.structs.replace(message, headers=without_dead_letter_headers(message))


def _fitting(wanted: list[StoredMessage], room: int, room_bytes: int) -> list[StoredMessage]:
    """The first of *wanted*, as many as fit together."""
    wanted = wanted[:room]
    for index, item in enumerate(wanted):
        room_bytes -= body_bytes(item.message)
        if room_bytes < 0:
            return wanted[:index]
    return wanted


def is_full(target: PendingList) -> FlowControlError:
    """The error for adding to a queue that is full."""
    return FlowControlError(
        f"{target.destination} is full: wait until its consumers have made room"
    )


def _claim(pending_list: PendingList, wanted: list[StoredMessage]) -> list[StoredMessage]:
    """Those of *wanted* that nobody else has."""
    claimed: set[int] = set()
    for first in range(0, len(wanted), _CLAIM_COUNT):
        part = wanted[first : first + _CLAIM_COUNT]
        claimed.update(pending_list.cursor.claim([item.sequence for item in part]))
    pending_list.changed()
    return [item for item in wanted if item.sequence in claimed]
