"""The acknowledged log as sinks see it: one reader each, and limits on what they may leave behind."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tidegate import spi
from tidegate.broker.sink_status import health_of, metrics_of, status_of
from tidegate.config import BrokerConfig
from tidegate.spi import (
    AcknowledgedMessage,
    AcknowledgedPage,
    AcknowledgedReader,
    CommittingSink,
    CorruptRecordError,
    EncodedPage,
    LargeBodies,
    LogFilling,
    LogStatistics,
    Message,
    MessageStore,
    RequestError,
    Sink,
    SinkHealth,
    SinkProgress,
    StoreError,
    encode_rows,
    format_size,
)
from tidegate.spi.events import Event, Tell, log_only
from tidegate.spi.operate import SinkStatus

_log = logging.getLogger("tidegate.broker.acknowledged")

#: Rows, and bytes of bodies, that one look for the oldest rows to discard covers.
DISCARD_COUNT: Final = 10_000
DISCARD_BYTES: Final = 8 << 20

#: From this part of its limit on the log counts as filling, until it is below the other.
FILLING: Final = 0.8
NOT_FILLING: Final = 0.7

#: A message whose body is too large for the sinks has this header instead: the body's size.
OMITTED: Final = "large-body-omitted"

_PIECE_BYTES: Final = 1 << 20

#: A larger difference within about a second means the wall clock was set; a smaller one is slewing.
STEP_US: Final = 500_000
#: Older ones are forgotten.
STEPS_MAX: Final = 100


@dataclass(eq=False)
class Reader(AcknowledgedReader):
    """One sink's view. See :class:`AcknowledgedReader`.

    Attributes:
        sink: who reads; None until it is made.
        is_mute: a line in the log has said that it cannot tell its health.
    """

    _log: AcknowledgedLog
    name: str
    _released: int
    sink: Sink | None = None
    is_mute: bool = False
    _oldest: tuple[int, int | None] = (0, 0)  # (row, when it was acknowledged)

    @property
    def store_id(self) -> str:
        return self._log.store_id

    @property
    def released(self) -> int:
        return self._released

    @property
    def first(self) -> int:
        return self._log.rows.log_statistics().first

    @property
    def last(self) -> int:
        return self._log.last

    async def read(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        page = await self._log.rows.acknowledged(after, limit, bytes_max)
        return await self._log.with_bodies(page)

    async def read_encoded(self, after: int, limit: int, bytes_max: int) -> EncodedPage:
        encoded = self._log.store.capabilities.encoded_log
        if encoded is not None:
            try:
                found = await encoded.acknowledged_encoded(after, limit, bytes_max)
            except CorruptRecordError:
                pass  # reading it as a message says more about it
            else:
                if found.runs or found.last <= after:
                    return found
        page = await self.read(after, limit, bytes_max)
        return EncodedPage(encode_rows(page.rows), page.last)

    async def wait_beyond(self, after: int) -> None:
        await self._log.wait_beyond(after)

    async def release(self, through: int) -> None:
        if through > self._released:
            self._released = through
            self._log.look_at_progress()
            await self._log.release_common()

    @property
    def oldest_at(self) -> int | None:
        """See :class:`tidegate.broker.sink_status.Watched`."""
        row, acked_at = self._oldest
        return acked_at + self._log.shift(row) if acked_at else acked_at

    async def look(self) -> None:
        """Find out :attr:`oldest_at`. Raises: StoreError."""
        row = max(self._released, health_of(self).mark) + 1
        if row > self.last:
            self._oldest = (0, 0)
        elif self._oldest[0] != row or not self._oldest[1]:
            try:
                self._oldest = (row, await self._log.acked_at(row))
            except (RequestError, CorruptRecordError):
                # Discarded meanwhile, or a row of those that become dead letters.
                self._oldest = (row, None)

    def skip(self, through: int) -> None:
        """Rows up to *through* were discarded: the sink will find them gone."""
        self._released = max(self._released, through)


class _ClockSteps:
    """When the operator set the wall clock, and by how much.

    The age of a row is measured by that clock: without this a step forwards would make the whole
    log too old, and discard it.
    """

    def __init__(self) -> None:
        self._offset: int | None = None
        self._steps: list[tuple[int, int]] = []  # (last row before it, microseconds)

    def look(self, offset: int, last: int) -> None:
        """*offset*: from a monotonic clock to the wall clock; *last*: the newest row."""
        if self._offset is not None and abs(offset - self._offset) > STEP_US:
            self._steps = [*self._steps, (last, offset - self._offset)][-STEPS_MAX:]
        self._offset = offset

    def shift(self, row: int) -> int:
        """How much later *row* was acknowledged, by the clock as it is now."""
        return sum([step for last, step in self._steps if row <= last])


def _unheard(_: LogFilling) -> None:
    """Nobody is told."""


class AcknowledgedLog:
    """Shares the store's log between sinks and enforces the limits of ``[broker]``.

    Attributes:
        refusing: publishes must be refused: the log is over its limit and the policy says so.
        is_filling: it is near its limit.
        announce: told when it fills, and when that is over.
        announce_progress: told how far the sinks that report commits are, when one has progressed; None: nobody
            wants to know.
    """

    def __init__(self, store: MessageStore, config: BrokerConfig) -> None:
        self.store = store
        self.store_id = ""  # until the store is open
        self.refusing = False
        self.is_filling = False
        self.announce: Callable[[LogFilling], None] = _unheard
        self.announce_progress: Callable[[Sequence[SinkProgress]], None] | None = None
        self.tell: Tell = log_only
        self._progress: list[tuple[str, int, int]] = []
        self._config = config
        self._readers: list[Reader] = []
        self._steps = _ClockSteps()
        self._news = asyncio.Event()

    @property
    def rows(self) -> spi.AcknowledgedLog:
        """Where the store keeps them; used only if there is a sink, and so a log."""
        rows = self.store.capabilities.acknowledged_log
        assert rows is not None, "the host lets no sink run on a store without a log"
        return rows

    @property
    def last(self) -> int:
        return self.rows.log_statistics().last

    @property
    def is_read(self) -> bool:
        """Some sink wants the acknowledged messages."""
        return bool(self._readers)

    def reader(self, name: str) -> Reader:
        """A reader for the sink *name*; it begins with what the store still holds."""
        reader = Reader(self, name, self.rows.log_statistics().first - 1)
        self._readers.append(reader)
        return reader

    def notify(self) -> None:
        """Something may have been acknowledged."""
        if self._readers and not self._news.is_set():
            self._news.set()

    async def wait_beyond(self, after: int) -> None:
        while self.last <= after:
            self._news.clear()
            await self._news.wait()

    async def with_bodies(
        self, page: AcknowledgedPage, *, bytes_max: int | None = None
    ) -> AcknowledgedPage:
        """*page* with the bodies that are in separate files, one after another.

        Args: bytes_max: a row with a larger body keeps its handle; None: whatever sinks take.
        Raises: CorruptRecordError, StoreError. Cancellation: safe.
        """
        bodies = self.store.capabilities.large_bodies
        if bodies is None or all(row.message.large is None for row in page.rows):
            return page
        limit = self._config.acknowledged_body_max
        rows: list[AcknowledgedMessage] = []
        for row in page.rows:
            try:
                message = row.message
                if message.large is not None and not _stays(message.large.size, bytes_max, limit):
                    message = await whole(message, bodies, limit)
                    row = msgspec.structs.replace(row, message=message)
            except StoreError as error:
                if len(page.rows) == 1:
                    error.known = row
                raise
            rows.append(row)
        return AcknowledgedPage(rows, page.last)

    async def release_common(self) -> None:
        await self.rows.release_acknowledged(min(reader.released for reader in self._readers))

    async def acked_at(self, row: int) -> int:
        """When *row*, which must be there, was acknowledged. Raises: RequestError, StoreError."""
        statistics = self.rows.log_statistics()
        if row <= statistics.first:
            return statistics.oldest_at
        page = await self.rows.acknowledged(row - 1, 1, 1)
        return page.rows[0].acked_at if page.rows else 0

    def shift(self, row: int) -> int:
        """What to add to the time *row* was acknowledged, because the clock was set since."""
        return self._steps.shift(row)

    async def look(self) -> None:
        """Find out how old the rows are that no target has; called every second. Raises: StoreError."""
        for reader in self._readers:
            await reader.look()

    def health(self) -> list[tuple[str, SinkHealth]]:
        """What each sink says of itself, by name."""
        return [(reader.name, health_of(reader)) for reader in self._readers]

    def last_committed(self) -> int:
        """Ack sequence of the last row, if a sink reports its commits; else 0."""
        return self.last if any(_commits(type(reader.sink)) for reader in self._readers) else 0

    def look_at_progress(self) -> None:
        """Report sinks that have progressed: once after each commit, since that is released, and every second."""
        if self.announce_progress is None:
            return
        found = [
            SinkProgress(reader.name, health_of(reader), reader.released, reader.sink.target_of)
            for reader in self._readers
            if isinstance(reader.sink, CommittingSink)
        ]
        progress = [(item.name, item.health.mark, item.released) for item in found]
        if progress != self._progress:
            self._progress = progress
            self.announce_progress(found)

    async def statuses(self, now: int) -> list[SinkStatus]:
        """The state of all sinks, in configured order. Raises: StoreError."""
        await self.look()
        return self._seen(now)

    def compact(self, name: str) -> int:
        """Have the sink *name* maintain its target. Returns: the turn's number.

        Raises: RequestError when there is no such sink, or it does no maintenance.
        """
        found = next((reader for reader in self._readers if reader.name == name), None)
        if found is None:
            known = ", ".join(reader.name for reader in self._readers) or "none"
            raise RequestError(f"there is no sink {name!r}; there are: {known}")
        if found.sink is None:
            raise RequestError(f"the sink {name!r} is not running yet; try again in a moment")
        if not isinstance(found.sink, spi.CompactingSink):
            raise RequestError(f"the sink {name!r} cannot be compacted")
        return found.sink.compact()

    def _seen(self, now: int) -> list[SinkStatus]:
        """What is known of all sinks without looking."""
        if not self._readers:
            return []
        statistics, limit = self.rows.log_statistics(), self._config.acknowledged_limit
        return [status_of(reader, statistics, limit, now) for reader in self._readers]

    def change(self, config: BrokerConfig) -> None:
        """Use these limits from now on."""
        self._config = config

    async def enforce_limits(self, now: int, elapsed: int, stopping: Callable[[], bool]) -> None:
        """Act on a log that is too large or too old; called every second.

        *now*: microseconds since the epoch; *elapsed*: by a monotonic clock.
        """
        if not self._readers:
            return
        self._steps.look(now - elapsed, self.last)
        while not stopping():
            statistics = self.rows.log_statistics()
            limit = self._config.acknowledged_limit
            age_us = self._config.acknowledged_age * 1_000_000
            over = statistics.held_bytes > limit
            oldest = statistics.oldest_at
            shift = self._steps.shift(statistics.first)
            old = bool(age_us and oldest and now - oldest - shift > age_us)
            discard = self._config.acknowledged_overflow == "discard_oldest"
            self._tell_filling(statistics)
            refusing = (over or old) and not discard
            if refusing != self.refusing:
                self.refusing = refusing
                self.tell(
                    Event.ACKNOWLEDGED_LOG_FULL if refusing else Event.ACKNOWLEDGED_LOG_ROOM,
                    _log,
                    "acknowledged_log=%s bytes=%d limit=%s: %s",
                    "full" if refusing else "ok",
                    statistics.held_bytes,
                    format_size(limit),
                    "the sinks are not keeping up; publishes are refused until they do"
                    if refusing
                    else "publishes are accepted again",
                )
            if not discard or not (over or old):
                return
            first = statistics.first
            through = await self._last_to_discard(statistics, now - age_us if old else 0)
            if through < first:
                return
            self.tell(
                Event.ACKNOWLEDGED_LOG_DISCARDED,
                _log,
                "acknowledged_log=discard rows=%d..%d bytes=%d: the sinks did not keep up",
                first,
                through,
                statistics.held_bytes,
            )
            for reader in self._readers:
                reader.skip(through)
            await self.rows.release_acknowledged(through)

    def _tell_filling(self, statistics: LogStatistics) -> None:
        """Warn when the log comes near its limit, and tell when it no longer is."""
        held, limit = statistics.held_bytes, self._config.acknowledged_limit
        is_filling = held >= limit * (FILLING if not self.is_filling else NOT_FILLING)
        if is_filling == self.is_filling:
            return
        self.is_filling = is_filling
        is_discarding = self._config.acknowledged_overflow == "discard_oldest"
        rows_behind = {reader.name: statistics.last - reader.released for reader in self._readers}
        self.announce(LogFilling(held, limit, rows_behind, is_discarding, not is_filling))
        if not is_filling:
            text = "acknowledged_log=ok bytes=%d limit=%s"
            self.tell(Event.ACKNOWLEDGED_LOG_ROOM, _log, text, held, format_size(limit))
            return
        behind = ", ".join(f"{name} {rows} rows behind" for name, rows in rows_behind.items())
        self.tell(
            Event.ACKNOWLEDGED_LOG_FILLING,
            _log,
            "acknowledged_log=filling bytes=%d limit=%s: the sinks are not keeping up "
            "(%s); at the limit %s; look for the sinks' problems in this log, or raise "
            "broker.acknowledged_limit",
            held,
            format_size(limit),
            behind,
            "its oldest rows are discarded" if is_discarding else "publishes are refused",
        )

    @property
    def has_room(self) -> bool:
        """It is not near its limit, or has none because nobody reads it."""
        if not self._readers:
            return True
        return self.rows.log_statistics().held_bytes < self._config.acknowledged_limit * FILLING

    def snapshot(self, now: int) -> dict[str, int | str]:
        """What system topics say about it; nothing without sinks. *now*: as in :meth:`enforce_limits`."""
        if not self._readers:
            return {}
        statistics, limit = self.rows.log_statistics(), self._config.acknowledged_limit
        found: dict[str, int | str] = {
            "acknowledged_log.bytes": statistics.held_bytes,
            "acknowledged_log.limit": limit,
            "acknowledged_log.rows": statistics.last - statistics.first + 1,
            "acknowledged_log.filling": int(self.is_filling),
            "acknowledged_log.refusing": int(self.refusing),
        }
        for status in self._seen(now):
            found |= metrics_of(status)
        return found

    async def _last_to_discard(self, statistics: LogStatistics, old_before: float) -> int:
        """The last of the oldest rows that must go now; below the first row when none must.

        No more than needed: enough rows of average size for the excess, or those acknowledged
        before *old_before* (microseconds since the epoch, 0: none is too old).
        """
        first, last = statistics.first, statistics.last
        through = first - 1
        excess = statistics.held_bytes - self._config.acknowledged_limit
        if excess > 0:
            share = -(-(last - through) * excess // statistics.held_bytes)  # rounded up
            through += min(share, DISCARD_COUNT)
        if old_before and through < last:
            page = await self.rows.acknowledged(through, DISCARD_COUNT, DISCARD_BYTES)
            for row in page.rows:
                if row.acked_at + self._steps.shift(row.ack_sequence) >= old_before:
                    break
                through = row.ack_sequence
        return through


@functools.cache
def _commits(kind: type) -> bool:
    return issubclass(kind, CommittingSink)


def _stays(size: int, bytes_max: int | None, limit: int) -> bool:
    """Whether sinks take a body of that size, and this caller does not."""
    return bytes_max is not None and bytes_max < size <= limit


async def whole(message: Message, bodies: LargeBodies, limit: int) -> Message:
    """A large *message* as an ordinary one, for sinks, which take bodies in memory.

    Args: limit: bytes a body may have; a larger one is left out, and a header says so.
    Raises: CorruptRecordError, StoreError. Cancellation: safe.
    """
    large = message.large
    assert large is not None, "only a large message has its body elsewhere"
    if large.size > limit:
        _log.warning(
            "body_bytes=%d destination=%s: too large for the sinks; its row has no "
            "body (broker.acknowledged_body_max)",
            large.size,
            message.destination,
        )
        headers = (*message.headers, (OMITTED, str(large.size)))
        return msgspec.structs.replace(message, headers=headers, large=None)
    reader = bodies.open(large)
    pieces: list[bytes] = []
    try:
        while data := await reader.read(_PIECE_BYTES):
            pieces.append(data)
    except CorruptRecordError as error:
        error.raw = b"".join(pieces)
        raise
    finally:
        reader.close()
    # Copied once, and in a thread: it may be hundreds of megabytes, and the loop must go on.
    body = await asyncio.to_thread(b"".join, pieces)
    return msgspec.structs.replace(message, body=body, large=None)
