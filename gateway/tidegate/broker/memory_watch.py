"""Clients are refused because too much memory is held: reported when that begins, and when it is over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

from tidegate.spi.events import Event, Tell

_log = logging.getLogger("tidegate.broker.limit")

#: Looks, one a second, without a refusal until it is over.
QUIET_LOOKS: Final = 10


@final
class MemoryWatch:
    """Call :meth:`look` every second. Args: refused: how often somebody was refused, since the start."""

    def __init__(self, refused: Callable[[], int], tell: Tell) -> None:
        self._refused = refused
        self._tell = tell
        self._before = self._at_begin = 0
        self._quiet = QUIET_LOOKS

    def look(self) -> None:
        """A second has passed."""
        now = self._refused()
        count, self._before = now - self._before, now
        if count and self._quiet >= QUIET_LOOKS:
            self._at_begin = now - count
            text = (
                "memory=refused count=%d: too much memory is held for clients; `tidegate "
                "limit list` shows whose"
            )
            self._tell(Event.MEMORY_REFUSED, _log, text, count)
        elif not count and self._quiet == QUIET_LOOKS - 1:
            text = "memory=accepted count=%d refused before, none for %d s"
            self._tell(Event.MEMORY_ACCEPTED, _log, text, now - self._at_begin, QUIET_LOOKS)
        self._quiet = 0 if count else min(QUIET_LOOKS, self._quiet + 1)
