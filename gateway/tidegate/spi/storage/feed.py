"""Where a list's consumers are fed from, and what came which way: reported by cursors, shown to operators."""

from __future__ import annotations

import enum
from collections.abc import Callable


class FeedReason(enum.Enum):
    """Why a list is fed from where it is."""

    START = "start"  # it was created, or waited in the store when the gateway started
    LIMIT = "limit"  # its cursor has reached its own limit
    SHARED_LIMIT = "shared limit"  # all cursors together have reached their limit
    DRAINED = "drained"  # everything that waited elsewhere is in memory


class FeedTotals:
    """Totals over the lists of a gateway.

    Attributes:
        paging: lists that are fed from pages now.
        turns: changes from memory to pages, and back.
        paged_count, paged_bytes: messages read from pages, and their bytes (bodies and headers).
    """

    __slots__ = ("paged_bytes", "paged_count", "paging", "turns")

    def __init__(self) -> None:
        self.paging = self.turns = self.paged_count = self.paged_bytes = 0


def _no_clock() -> int:
    return 0


def _nobody() -> None:
    """Does nothing: nobody wants to know."""


class CursorFeed:
    """The feed of one list; its cursor updates it. All calls on the event loop.

    Args: clock: microseconds since the epoch; totals: to add to; None: to none.

    Attributes:
        is_paging: messages wait in store or spool, so new messages wait there as well.
        since: when that last changed; reason: why.
        turns: how often that changed.
        direct_count, direct_bytes: messages, and their bytes (bodies and headers), that went straight to memory; the
            cursor adds to them.
        paged_count, paged_bytes: those read from store or spool.
        on_change: what :meth:`changed` calls; the broker sets it.
    """

    __slots__ = (
        "_clock",
        "_totals",
        "direct_bytes",
        "direct_count",
        "is_paging",
        "on_change",
        "paged_bytes",
        "paged_count",
        "reason",
        "since",
        "turns",
    )

    def __init__(
        self, clock: Callable[[], int] = _no_clock, totals: FeedTotals | None = None
    ) -> None:
        self._clock = clock
        self._totals = totals or FeedTotals()
        self.on_change = _nobody
        self.is_paging = False
        self.since = clock()
        self.reason = FeedReason.START
        self.turns = self.direct_count = self.direct_bytes = 0
        self.paged_count = self.paged_bytes = 0

    def start_paging(self) -> None:
        """Messages from before wait in the store."""
        self.is_paging = True
        self._totals.paging += 1

    def turn(self, reason: FeedReason) -> None:
        """Switch from memory to pages, or back."""
        self.is_paging = not self.is_paging
        self.since = self._clock()
        self.reason = reason
        self.turns += 1
        self._totals.turns += 1
        self._totals.paging += 1 if self.is_paging else -1

    def paged(self, count: int, size: int) -> None:
        """*count* messages with *size* bytes were read from store or spool."""
        self.paged_count += count
        self.paged_bytes += size
        self._totals.paged_count += count
        self._totals.paged_bytes += size

    def changed(self) -> None:
        """The cursor's ``memory_bytes`` has changed, and not through a call of the broker's."""
        self.on_change()

    def end(self) -> None:
        """The cursor is closed. Idempotent."""
        self.on_change = _nobody
        if self.is_paging:
            self.is_paging = False
            self._totals.paging -= 1
