"""A line of the log for what strangers bring about: they decide how often there would be one."""

from __future__ import annotations

import logging
from typing import Final

#: A line at most so often.
LOG_EVERY_S: Final = 10.0


class Seldom:
    """A warning that is written now and then, with how often there was a reason since the last.

    Args: logger: where; text: with a place for each value.
    """

    __slots__ = ("_count", "_logger", "_next_at", "_text")

    def __init__(self, logger: logging.Logger, text: str) -> None:
        self._logger = logger
        self._text = text
        self._count = 0
        self._next_at = 0.0

    def say(self, now: float, *values: object) -> None:
        """There is a reason. now: monotonic seconds."""
        self._count += 1
        if now >= self._next_at:
            self._logger.warning(f"{self._text} count=%d", *values, self._count)  # noqa: G004 - a constant
            self._next_at = now + LOG_EVERY_S
            self._count = 0
