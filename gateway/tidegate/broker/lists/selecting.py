"""Consumers of a queue that have a selector: they get what matches, wherever it waits.

A consumer without a selector takes what is next from the list's cursor. One with a selector has a
:class:`Scanner`, which reads the whole list past everything that does not match, page by page, so
that no match is ever hidden behind messages that nobody wants. What matches is *claimed* from the
cursor (:meth:`tidegate.spi.PendingCursor.claim`): the first to claim a message has it, and it is
never handed out twice. Once a scanner has seen everything, new messages are matched in memory as
they are offered.

One task at a time reads for all scanners of a list. Messages that came back or left while it read
must not be judged by the page it read; :attr:`Selecting._news` remembers them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, TypeAlias

from tidegate.broker.lists.handing_out import can_be_read, wait_after
from tidegate.broker.lists.pending_list import Consumer, PendingList, Surroundings
from tidegate.broker.lists.selector import Matcher
from tidegate.plugin_exit import FAILURES
from tidegate.spi import StoredMessage

_log = logging.getLogger("tidegate.broker.selecting")

#: Limits of a page, read from the store and held in memory: messages, and bytes of bodies.
PAGE_COUNT: Final = 200
PAGE_BYTES: Final = 1 << 20

#: Returned messages kept for a scanner that is past them. If there are more, it scans the list
#: again instead.
AGAIN_MAX: Final = 1000

#: How long messages are matched before others get their turn: a selector of full length over
#: long headers can take milliseconds per message.
SLICE_S: Final = 0.005

#: Limits of ``take`` that take everything in memory.
_ALL: Final = 1 << 62


#: By sequence: the message that came back, or None for one that left.
News: TypeAlias = dict[int, StoredMessage | None]


@dataclass(slots=True, eq=False)
class Scanner:
    """How far one consumer has looked through one list.

    Attributes:
        after: everything up to this sequence has been examined.
        caught_up: nothing is left after it; new messages are matched as they come.
        missed: new messages came since the page under way was requested.
        found: matches read and not yet handed out, by sequence; some may be gone.
        again: matches that came back from some consumer when this one was past them.
        turns: increases when ``after`` goes back, so that a page under way is discarded.
    """

    consumer: Consumer
    matches: Matcher
    after: int = 0
    caught_up: bool = False
    missed: bool = False
    found: dict[int, StoredMessage] = field(default_factory=dict[int, StoredMessage])
    again: dict[int, StoredMessage] = field(default_factory=dict[int, StoredMessage])
    turns: int = 0

    def rewind(self, after: int) -> None:
        """Examine everything after *after* again."""
        self.after = min(self.after, after)
        self.caught_up = False
        self.turns += 1
        self.found.clear()
        self.again.clear()

    def returned(self, message: StoredMessage) -> None:
        """A message is pending again."""
        sequence = message.sequence
        if sequence in self.found:
            self.found[sequence] = message
        elif sequence <= self.after and self.matches(message.message):
            self.again[sequence] = message
            if len(self.again) > AGAIN_MAX:
                self.rewind(min(self.again) - 1)

    def next(self, count: int, bytes_max: int) -> list[StoredMessage]:
        """The first matches: at most *count*, about *bytes_max* of bodies, at least one."""
        again, found = self.again, self.found
        if not again:
            source = found
        else:  # both are small: a page, and what came back
            source = dict(sorted((found | again).items()))
        taken: list[StoredMessage] = []
        size = 0
        for message in source.values():
            size += message.size
            if len(taken) >= count or (taken and size > bytes_max):
                break
            taken.append(message)
        for message in taken:
            found.pop(message.sequence, None)
            again.pop(message.sequence, None)
        return taken


class Selecting:
    """The scanners of one list. Made with the first one, dropped when no scanner and no claim is left."""

    def __init__(self, around: Surroundings, pending_list: PendingList) -> None:
        self._turns = around.writer
        self._around = around
        self._list = pending_list
        self._scanners: list[Scanner] = []
        self._claims: set[int] = set()
        self._next = 0
        #: Offered so far; what the store has beyond is not in the cursor yet.
        self._last_offered = 0
        self._is_started = False
        self._reading = False
        #: While a page is read: what came back, and None for what left.
        self._news: News = {}
        self._settled: list[tuple[int, StoredMessage | None]] = []

    # --- consumers -------------------------------------------------------------------------

    def attach(self, consumer: Consumer, matches: Matcher) -> None:
        self._scanners.append(Scanner(consumer, matches))
        if not self._is_started:
            # Everything published before is offered when this turn is durable.
            self._last_offered = max(self._last_offered, self._turns.next_sequence - 1)
            # Confirmations come before messages are handed out.
            loop = asyncio.get_running_loop()
            self._turns.when_durable(lambda: loop.call_soon(self.start))

    def detach(self, consumer: Consumer) -> bool:
        """Returns: whether *consumer* was served here."""
        kept = [scanner for scanner in self._scanners if scanner.consumer is not consumer]
        was_served = len(kept) < len(self._scanners)
        self._scanners = kept
        self._drop_when_unused()
        return was_served

    def consumers(self) -> list[Consumer]:
        """Those served here, in order of subscription."""
        return [scanner.consumer for scanner in self._scanners]

    def has_more_for(self, consumer: Consumer) -> bool:
        """Something it wants waits, or may: not everything has been examined."""
        return any(
            not scanner.caught_up or scanner.found or scanner.again
            for scanner in self._scanners
            if scanner.consumer is consumer
        )

    def start(self) -> None:
        """Everything that was published before the first consumer came has been offered."""
        self._is_started = True
        self._around.mark_ready(self._list)

    def _drop_when_unused(self) -> None:
        if not self._scanners and not self._claims and self._list.selecting is self:
            self._list.selecting = None

    # --- messages --------------------------------------------------------------------------

    def offer(self, messages: Sequence[StoredMessage]) -> None:
        """New messages, already offered to the cursor: scanners at the end examine them now."""
        if not messages:
            return
        self._last_offered = max(self._last_offered, messages[-1].sequence)
        current = [scanner for scanner in self._scanners if scanner.caught_up]
        for scanner in self._scanners:
            scanner.missed = True
        if not current:
            return
        rests = self._list.is_paused or self._list.returning
        rooms = {scanner: [0, 0] if rests else _room(scanner) for scanner in current}
        chosen: dict[Scanner, list[StoredMessage]] = {}
        for message in messages:
            taker = self._taker(message, current, rooms)
            if taker is not None:
                chosen.setdefault(taker, []).append(message)
        last = messages[-1].sequence
        for scanner in current:
            if scanner.caught_up:
                scanner.after = last
        for scanner, wanted in chosen.items():
            self._hand_out(scanner, wanted)
        if self._next_to_read() is not None:  # what it would get had expired, or came back
            self._around.mark_ready(self._list)

    def _taker(
        self, message: StoredMessage, current: list[Scanner], rooms: dict[Scanner, list[int]]
    ) -> Scanner | None:
        """Who gets *message*: those that want it take turns."""
        count = len(current)
        for step in range(count):
            scanner = current[(self._next + step) % count]
            if not scanner.caught_up or not scanner.matches(message.message):
                continue
            room = rooms[scanner]
            if room[0] <= 0 or room[1] <= 0:
                scanner.caught_up = False  # it will find it when it has room
                scanner.after = message.sequence - 1
                continue
            room[0] -= 1
            room[1] -= message.size
            self._next = (self._next + step + 1) % count
            return scanner
        return None

    def returned(self, messages: Sequence[StoredMessage]) -> None:
        """Messages of any consumer were put back into the cursor."""
        for message in messages:
            self._claims.discard(message.sequence)
            for scanner in self._scanners:
                scanner.returned(message)
        # Pages show the new delivery counts once this turn is durable.
        news: News = {message.sequence: message for message in messages}
        self._news.update(news)
        self._turns.when_durable(lambda: self._settle(news), synced=False)

    def leaving(self, sequences: list[int]) -> None:
        """The filling turn takes these messages off the list; *sequences* may still grow in it."""
        self._turns.when_durable(lambda: self._left(sequences), synced=False)

    def _left(self, sequences: list[int]) -> None:
        """The turn of :meth:`leaving` is stored."""
        gone = self._claims.intersection(sequences)
        for scanner in self._scanners:  # came back (the store was full), and is out again
            gone.difference_update(scanner.consumer.in_flight)
        self._claims -= gone
        if gone:
            self._around.left(self._list, sorted(gone))
        self.forget(gone)

    def forget(self, sequences: Iterable[int]) -> None:
        """These have left the list, and the store."""
        gone = list(sequences)
        for scanner in self._scanners:
            for sequence in gone:
                scanner.found.pop(sequence, None)
                scanner.again.pop(sequence, None)
        news: News = dict.fromkeys(gone)
        self._news.update(news)
        self._settle(news)

    def _settle(self, news: News) -> None:
        """Pages read from now on are no older than *news*."""
        self._settled += news.items()
        if not self._reading:
            self._forget_settled()
        self._drop_when_unused()

    def _forget_settled(self) -> None:
        for sequence, message in self._settled:
            if self._news.get(sequence, self) is message:
                del self._news[sequence]
        self._settled = []

    # --- handing out -----------------------------------------------------------------------

    def dispatch(self) -> None:
        """Hand out what was found while consumers have room, and have more read."""
        if not self._scanners or not self._is_started:
            return
        start = self._next = (self._next + 1) % len(self._scanners)
        for scanner in [*self._scanners[start:], *self._scanners[:start]]:
            while (scanner.found or scanner.again) and scanner.consumer.room() > 0:
                consumer = scanner.consumer
                self._hand_out(scanner, scanner.next(consumer.room(), consumer.room_bytes()))
                if self._list.has_returned:
                    break
        if not self._reading and self._next_to_read() is not None:
            self._reading = True
            self._around.spawn(self._read(), f"select {self._list.destination}")

    def _hand_out(self, scanner: Scanner, wanted: list[StoredMessage]) -> None:
        """Give *wanted* to the scanner's consumer, as far as nobody else has it."""
        pending_list = self._list
        if pending_list.is_removed:
            return
        if scanner not in self._scanners:
            # Unsubscribed from within deliver(). Nothing was claimed; others may be past them.
            for other in self._scanners:
                for message in wanted:
                    other.returned(message)
            self._around.mark_ready(pending_list)
            return
        claimed = set(pending_list.cursor.claim([message.sequence for message in wanted]))
        if not claimed:
            return
        self._claims |= claimed
        pending_list.changed()
        messages: Sequence[StoredMessage] = [m for m in wanted if m.sequence in claimed]
        now = self._turns.now()
        alive = self._around.without_expired(pending_list, messages, now)
        if len(alive) < len(messages):
            kept = {message.sequence for message in alive}
            self.leaving([m.sequence for m in messages if m.sequence not in kept])
        if alive:
            if not scanner.consumer.acknowledge:
                self.leaving([message.sequence for message in alive])
            pending_list.hand_over(scanner.consumer, alive, now)

    # --- reading ---------------------------------------------------------------------------

    def _next_to_read(self) -> Scanner | None:
        """The next scanner with room, nothing to fill it with, and more to examine."""
        count = len(self._scanners)
        # What its consumer has just returned does not fill it.
        is_filled_again = not self._list.has_returned
        for step in range(count):
            scanner = self._scanners[(self._next + step) % count]
            if (
                not scanner.caught_up
                and not scanner.found
                and not (scanner.again and is_filled_again)
                and scanner.consumer.room() > 0
            ):
                self._next = (self._next + step + 1) % count
                return scanner
        return None

    async def _read(self) -> None:
        pending_list = self._list
        try:
            while not pending_list.is_removed:
                scanner = self._next_to_read()
                if scanner is None:
                    break
                try:
                    await self._read_for(scanner)
                except FAILURES as error:  # whatever a store raises: consumers wait for it
                    await wait_after(self._around, error, pending_list, _log)
                else:
                    can_be_read(self._around, pending_list, _log)
                pending_list.dispatch()
                await asyncio.sleep(0)  # others get their turn, and sockets their flow control
        finally:
            self._reading = False
            self._around.unreadable.pop(pending_list, None)  # nobody reads now
            self._forget_settled()
        if not pending_list.is_removed:
            self._around.mark_ready(pending_list)  # room that came during the last page

    async def _read_for(self, scanner: Scanner) -> None:
        self._forget_settled()
        turns, after = scanner.turns, scanner.after
        scanner.missed = False
        page = await self._page(after)
        if scanner.turns != turns or scanner.after != after or scanner.caught_up:
            return
        if not page:
            scanner.caught_up = not scanner.missed
            return
        news, matches = self._news, scanner.matches
        until = perf_counter() + SLICE_S
        for stored in page:
            if stored.sequence > self._last_offered:
                # Durable, but not offered yet: it is examined in memory then.
                scanner.caught_up = True
                break
            scanner.after = stored.sequence
            message = news.get(stored.sequence, stored)
            if message is not None and matches(message.message):
                scanner.found[stored.sequence] = message
            if perf_counter() >= until:
                break  # the rest of the page is read again

    async def _page(self, after: int) -> Sequence[StoredMessage]:
        pending_list = self._list
        if pending_list.is_stored:
            store = self._around.store
            return await store.page_in(pending_list.id, after, PAGE_COUNT, PAGE_BYTES)
        # An unstored list exists only in its cursor: examine what is in memory.
        cursor = pending_list.cursor
        if cursor.needs_page:
            await cursor.page_in()
            pending_list.changed()
        everything = cursor.take(_ALL, _ALL)
        cursor.put_back(everything)
        return [stored for stored in everything if stored.sequence > after]


def _room(scanner: Scanner) -> list[int]:
    """Messages and bytes the consumer may be given now, after what was found before."""
    if scanner.found or scanner.again:
        return [0, 0]
    consumer = scanner.consumer
    count = consumer.room()
    return [count, consumer.room_bytes() if count > 0 else 0]
