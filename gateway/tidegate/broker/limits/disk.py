"""Publishes are refused before the store, or a disk that it writes to, is full.

A store on a full disk can do nothing, not even take acknowledgements, which would free room. So some
is kept for those: below ``broker.disk_free_limit``, or when the store takes ``broker.store_limit``,
nothing is added and everything else goes on. A shortage ends only when free space is a quarter above
the one limit, or a tenth of the other is free: otherwise each consumed message would let one in.

Dead letters, which the gateway itself moves, are not refused: a message that nobody wants must not be lost, and
moving it takes no more than its bytes. Below half of ``disk_free_limit`` they wait where they are, or a consumer
that rejects everything would use up what is kept for acknowledgements.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from tidegate.broker.turn.writer import TurnWriter
from tidegate.spi import (
    MessageStore,
    StoreError,
    StoreFullError,
    StoreLostError,
    StoreShortage,
    StoreStatistics,
    format_size,
    is_room_again,
    is_store_low_again,
    room_for,
)
from tidegate.spi.events import Event, Tell, log_only

_log = logging.getLogger("tidegate.broker")

#: Longest time between two looks at the file systems.
LOOK_EVERY_S: Final = 1.0

#: Shorter near a limit: as if disks wrote a gigabyte a second. With a second between two looks,
#: SQLite on a quick disk was 34 MB below a limit of 40 MB, and had no room for acknowledgements.
DISK_BYTES_A_SECOND: Final = 1 << 30
LOOK_EVERY_MIN_S: Final = 0.01


def least_free(directories: Iterable[Path]) -> int:
    """Bytes free on the fullest of their file systems. Blocks. Raises: OSError."""
    found = [os.statvfs(directory) for directory in directories]
    return min(status.f_bavail * status.f_frsize for status in found)


def _unheard(_: StoreShortage) -> None:
    """No plugin wants to know."""


class DiskWatch:
    """Watches what a store takes, and the disks it says it writes to, and tells the writer.

    Args: free_limit, store_limit: bytes, 0: it does not look.

    Attributes:
        free: bytes, at the last look; -1 before the first.
        used: bytes that the store takes, likewise.
        look: returns what is free on the fullest of these directories' file systems.
        announce: told when each limit is reached, and when that is over; must not raise. tell: of events.
    """

    def __init__(
        self, store: MessageStore, writer: TurnWriter, free_limit: int, store_limit: int = 0
    ) -> None:
        self.look: Callable[[Iterable[Path]], int] = least_free
        self.announce: Callable[[StoreShortage], None] = _unheard
        self.tell: Tell = log_only
        self._store = store
        self._writer = writer
        self._shortage = writer.shortage
        self._free_limit = free_limit
        self._store_limit = store_limit
        self._is_unknown = False
        self._refusals: dict[str, StoreFullError] = {}
        self.free = -1
        self.used = -1

    @property
    def is_short(self) -> bool:
        """Publishes are refused."""
        return bool(self._refusals)

    async def watch(self) -> None:
        """Look until cancelled. The store is open."""
        directories = self._store.capabilities.directories if self._free_limit else ()
        while directories or self._store_limit:
            try:
                # Before: what is written while the disk is asked is in one of the two.
                promised = self._promised(self._store.statistics())
                # In a thread: a network file system may take its time.
                free = await asyncio.to_thread(self.look, directories) if directories else -1
                self.looked(free, promised)
            except StoreLostError:  # already told, and the gateway ends
                return
            except (OSError, StoreError) as error:  # what is unknown is not short
                if not self._is_unknown:
                    self._is_unknown = True
                    _log.warning("disk_free=unknown error=%r", str(error))
            await asyncio.sleep(self.pause())

    def pause(self) -> float:
        """Seconds until the next look."""
        if self.is_short:
            return LOOK_EVERY_S
        left = LOOK_EVERY_S * DISK_BYTES_A_SECOND
        if self.free >= 0:
            left = min(left, self.free - self._free_limit)
        if self._store_limit and self.used >= 0:
            left = min(left, self._store_limit - self.used)
        return min(LOOK_EVERY_S, max(LOOK_EVERY_MIN_S, left / DISK_BYTES_A_SECOND))

    def _promised(self, statistics: StoreStatistics) -> int:
        """Bytes accepted or confirmed, but not on the disk yet."""
        return self._writer.unwritten_bytes + statistics.claimed_bytes

    def looked(self, free: int, promised: int = 0) -> None:
        """There are *free* bytes; -1: nobody looked. Raises: StoreError.

        Args: promised: bytes that were promised when the look began.
        """
        statistics = self._store.statistics()
        self.free = free
        self._is_unknown = False
        if free >= 0:
            promised = max(promised, self._promised(statistics))
            self._compare_free(free, promised, statistics.reusable_bytes)
        if self._store_limit:
            self._compare_used(statistics)

    def _compare_free(self, free: int, promised: int, reusable: int) -> None:
        limit = self._free_limit
        room = room_for(free - promised, reusable, limit)
        last_room = limit // 2
        if room < last_room or room >= last_room + last_room // 4:
            self._shortage.holds_last_room = room < last_room
        name = "disk_free_limit"
        if name not in self._refusals and room < limit:
            self.tell(
                Event.STORE_FULL,
                _log,
                "disk=short free_bytes=%d reusable_bytes=%d claimed_bytes=%d: "
                "publishes are refused until a quarter more than %s is free "
                "(broker.disk_free_limit); free disk space, or consume messages",
                free,
                reusable,
                promised,
                format_size(limit),
            )
            self._begin(name, limit, f"its disk has less than {_said(name, limit)} free")
        elif name in self._refusals and is_room_again(room, limit):
            text = (
                "disk=enough free_bytes=%d: there is enough disk space, and publishes are "
                "accepted again"
            )
            self.tell(Event.STORE_ROOM, _log, text, free)
            self._end(name, limit)

    def _compare_used(self, statistics: StoreStatistics) -> None:
        name, limit, used = "store_limit", self._store_limit, statistics.used_bytes
        self.used = used
        if name not in self._refusals and used + self._writer.unwritten_bytes >= limit:
            self.tell(
                Event.STORE_FULL,
                _log,
                "store=full used_bytes=%d disk_bytes=%d: publishes are refused until a "
                "tenth of %s (broker.store_limit) is free; consume messages, or raise "
                "the limit",
                used,
                statistics.disk_bytes,
                format_size(limit),
            )
            self._begin(name, limit, f"it has reached {_said(name, limit)}")
        elif name in self._refusals and is_store_low_again(used, limit):
            text = (
                "store=enough used_bytes=%d: the store has room, and publishes are accepted again"
            )
            self.tell(Event.STORE_ROOM, _log, text, used)
            self._end(name, limit)

    def _begin(self, name: str, limit: int, why: str) -> None:
        self._refusals[name] = StoreFullError(f"the message store is full; try again later ({why})")
        self._tell(name, limit, is_over=False)

    def _end(self, name: str, limit: int) -> None:
        del self._refusals[name]
        self._tell(name, limit, is_over=True)

    def _tell(self, name: str, limit: int, *, is_over: bool) -> None:
        self._shortage.refusal = next(iter(self._refusals.values()), None)
        self.announce(StoreShortage(name, limit, self.free, self.used, is_over))

    def snapshot(self) -> Mapping[str, int]:
        """By metric: ``disk.free.bytes``, ``store.used.bytes`` (-1: nobody looks), and whether publishes
        are refused because of each: ``disk.short``, ``store.full``."""
        return {
            "disk.free.bytes": self.free,
            "disk.short": int("disk_free_limit" in self._refusals),
            "store.used.bytes": self.used,
            "store.full": int("store_limit" in self._refusals),
        }


def _said(name: str, limit: int) -> str:
    return f"broker.{name} = {format_size(limit)}"
