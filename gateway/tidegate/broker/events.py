"""Events are kept in memory for operators, and never too many of them.

One owner per gateway. Each kind has its own room (``KEPT_MAX`` events, ``KEPT_BYTES_MAX`` bytes), so that ten
thousand clients that come at once push out no word about a disk. Between two looks, one a second, ``BURST`` events
of one name are told; the others are counted, and told as one.

Sequences begin with the time of the start in microseconds, so that a restarted gateway gives out none again, and
grow by one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import dropwhile, islice
from operator import attrgetter
from typing import Final, final

from tidegate._logging import fields_of, text_of
from tidegate.spi import text_bytes
from tidegate.spi.events import EVENTS, Event, EventKind, Severity
from tidegate.spi.operate import EventPage, EventRow, ListEvents
from tidegate.spi.printable import printable

_log = logging.getLogger("tidegate.events")

#: Events kept of each kind, and their bytes.
KEPT_MAX: Final = 1000
KEPT_BYTES_MAX: Final = 1 << 20
#: Events of one name between two looks: what an onlooker can read.
BURST: Final = 20
#: Characters of an event's text, and of one value in it: names of topics have up to 64 KiB.
TEXT_MAX: Final = 1000
VALUE_MAX: Final = 200
#: Kinds remembered of earlier events, no longer kept: for these it is known exactly how many a reader has missed.
HISTORY_MAX: Final = 1 << 18
#: Destinations whose dead letters are counted separately between two looks; the others are counted together.
_COUNTED_MAX: Final = 50
#: Bytes of an event besides its text and its fields, and of a field: measured, rounded up.
_ROW_BYTES: Final = 400
_FIELD_BYTES: Final = 120
#: Least time between two wake-ups of those that wait.
GATHER_S: Final = 0.1

_KINDS: Final = tuple(EventKind)
_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS)}
_SEVERITIES: Final = {severity: number for number, severity in enumerate(Severity)}
_sequence: Final = attrgetter("sequence")


@dataclass(slots=True, eq=False)
class _Kept:
    """Events of one kind. Attributes: size: bytes; gone: sequence of the last one pushed out."""

    rows: deque[tuple[EventRow, int]] = field(default_factory=deque[tuple[EventRow, int]])
    size: int = 0
    gone: int = 0

    def add(self, row: EventRow, size: int) -> None:
        self.rows.append((row, size))
        self.size += size
        while len(self.rows) > KEPT_MAX or (self.size > KEPT_BYTES_MAX and len(self.rows) > 1):
            old, size = self.rows.popleft()
            self.size -= size
            self.gone = old.sequence

    def behind(self, after: int) -> Iterator[EventRow]:
        return dropwhile(lambda row: row.sequence <= after, (row for row, _ in self.rows))


@final
class Events:
    """See the module. On the event loop.

    Args: now: microseconds since the epoch.

    Attributes: last: sequence of the last event; before the first event, of none.
    """

    def __init__(self, now: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._now = now
        self._first = self.last = now()
        self._kept = {kind: _Kept() for kind in _KINDS}
        self._history = bytearray()  # kinds, from the event after _history_after on
        self._history_after = self.last
        self._counts: Counter[Event] = Counter()
        self._burst: dict[Event, int] = {}  # since the last look
        self._counted: Counter[tuple[str, str]] = Counter()
        self._waiting: set[asyncio.Future[None]] = set()
        self._waking: asyncio.TimerHandle | None = None

    # --- what happens ------------------------------------------------------------------------

    def tell(
        self,
        event: Event,
        log: logging.Logger,
        text: str,
        *values: object,
        error: BaseException | None = None,
    ) -> None:
        """See :class:`tidegate.spi.events.Tell`."""
        burst = self._burst.get(event, 0) + 1
        self._burst[event] = burst
        if burst <= BURST:
            self._record(event, log, 1, text, values, error)

    def dead_lettered(self, destination: str, target: str, count: int = 1) -> None:
        """*count* messages of *destination* go to the dead-letter queue *target*."""
        self._counts[Event.MESSAGES_DEAD_LETTERED] += count
        key = (destination, target)
        if key not in self._counted and len(self._counted) >= _COUNTED_MAX:
            key = ("", "")
        self._counted[key] += count

    def look(self) -> None:
        """A second has passed: tell what was only counted."""
        for event, count in self._burst.items():
            self._counts[event] += count
            if count > BURST:
                more = count - BURST
                self._record(event, _log, more, "count=%d more in about a second", (more,))
        self._burst.clear()
        for (destination, target), count in self._counted.items():
            text = "destination=%s dead_letter_queue=%s count=%d moved there"
            values = (destination or "others", target or "others", count)
            self._record(Event.MESSAGES_DEAD_LETTERED, _log, count, text, values)
        self._counted.clear()

    def _record(
        self,
        event: Event,
        log: logging.Logger,
        count: int,
        text: str,
        values: tuple[object, ...],
        error: BaseException | None = None,
    ) -> None:
        meaning = EVENTS[event]
        level = meaning.severity.level
        trace = None if error is None else (type(error), error, error.__traceback__)
        record = log.makeRecord(
            log.name, level, "", 0, text, values, trace, extra={"event": event.value}
        )
        if log.isEnabledFor(level):
            log.handle(record)
        self.last += 1
        about = {key: _short(value) for key, value in fields_of(record) if value is not None}
        row = EventRow(
            self.last,
            self._now(),
            event,
            meaning.kind,
            meaning.severity,
            text_of(record)[:TEXT_MAX],
            about,
            count,
        )
        size = _ROW_BYTES + text_bytes(row.text)
        size += sum(
            _FIELD_BYTES + (text_bytes(value) if isinstance(value, str) else 0)
            for value in about.values()
        )
        self._kept[meaning.kind].add(row, size)
        self._remember(_NUMBERS[meaning.kind])
        if self._waiting and self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(GATHER_S, self._wake)

    def _remember(self, number: int) -> None:
        self._history.append(number)
        if len(self._history) >= 2 * HISTORY_MAX:
            del self._history[:HISTORY_MAX]
            self._history_after += HISTORY_MAX

    # --- what is known -----------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Bytes of the events kept."""
        return sum(kept.size for kept in self._kept.values())

    def snapshot(self) -> dict[str, int]:
        """How many events there were since the start, by metric: ``events.NAME.count``."""
        return {
            f"events.{event.value}.count": self._counts[event] + self._burst.get(event, 0)
            for event in Event
        }

    def page(self, request: ListEvents) -> EventPage:
        """The wanted events that are kept."""
        kinds = request.kinds or _KINDS
        after = request.after
        is_restarted = after != 0 and not self._first <= after <= self.last
        if is_restarted:
            after = 0
        least = _SEVERITIES[request.severity]
        rows = merge(*(self._kept[kind].behind(after) for kind in set(kinds)), key=_sequence)
        wanted = (
            row for row in rows if row.at >= request.since and _SEVERITIES[row.severity] >= least
        )
        if request.newest:
            return EventPage(tuple(deque(wanted, request.limit)), self.last)
        found = tuple(islice(wanted, request.limit + 1))
        has_more = len(found) > request.limit
        found = found[: request.limit]
        through = found[-1].sequence if has_more else self.last
        missed = self._missed(after, through, kinds) if after else 0
        return EventPage(found, through, missed, is_restarted)

    def _missed(self, after: int, through: int, kinds: Collection[EventKind]) -> int:
        """Events of *kinds* after *after*, up to *through*, that were pushed out."""
        pushed_out = [kind for kind in set(kinds) if self._kept[kind].gone > after]
        if not pushed_out:
            return 0
        begin, end = max(0, after - self._history_after), max(0, through - self._history_after)
        # Of any kind: it is no longer known which.
        missed = max(0, min(self._history_after, through) - after)
        for kind in pushed_out:
            there = self._kept[kind].behind(max(after, self._history_after))
            missed += self._history.count(_NUMBERS[kind], begin, end)
            missed -= sum(1 for row in there if row.sequence <= through)
        return missed

    async def wanted(self, request: ListEvents) -> EventPage:
        """A page; if it is empty, the first that is not, within ``wait_s``. Cancellation: safe."""
        found = self.page(request)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + request.wait_s
        while not (found.rows or found.missed or found.is_restarted):
            left = ends_at - loop.time()
            if left <= 0:
                break
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.add(future)
            try:
                await asyncio.wait((future,), timeout=left)
            finally:
                self._waiting.discard(future)
            found = self.page(request)
        return found

    def _wake(self) -> None:
        self._waking = None
        for future in self._waiting:
            if not future.done():
                future.set_result(None)


def _short(value: str | int | float) -> str | int | float:
    return printable(value[:VALUE_MAX]) if isinstance(value, str) else value
