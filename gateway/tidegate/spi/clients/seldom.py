"""Rate-limited log lines for events that strangers can cause as often as they like."""

from __future__ import annotations

import logging
from typing import Final

#: At most one line in this many seconds.
LOG_EVERY_S: Final = 10.0


class Seldom:
    """A warning logged now and then, with the number of occurrences since the last line.

    Args: logger: where; text: format string with a place for each value.
    """

    __slots__ = ("_count", "_logger", "_next_at", "_text")

    def __init__(self, logger: logging.Logger, text: str) -> None:
        self._logger = logger
        self._text = text
        self._count = 0
        self._next_at = 0.0

    def say(self, now: float, *values: object) -> None:
        """Report one occurrence. now: monotonic seconds."""
        self._count += 1
        if now >= self._next_at:
            self._logger.warning(f"{self._text} count=%d", *values, self._count)  # noqa: G004 - a constant
            self._next_at = now + LOG_EVERY_S
            self._count = 0
