"""Tells when a sink's oldest row gets older than ``lag_goal``, and when that is over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tidegate.spi import SinkLag

log = logging.getLogger(__name__)

#: The goal counts as met again when nothing was older for this long, or for the goal itself if that is
#: longer: a sink that is late with every second commit is late.
CALM_MIN: Final = 10.0


class LagWatch:
    """Watches one sink. Times are the event loop's, in seconds."""

    def __init__(self, name: str, goal: float, announce: Callable[[SinkLag], None]) -> None:
        """Args: goal: 0: there is none. announce: called once when it is missed, and once when it is met again."""
        self._name = name
        self._goal = goal
        self._announce = announce
        self._missed_at = 0.0
        #: The goal is missed.
        self.is_late = False

    def look(self, oldest: float | None, now: float, cause: Callable[[], str]) -> float | None:
        """Look once.

        Args: oldest: since when the oldest row waits; None: none does. cause: says why, in a few words.
        Returns: seconds after which to look again; None: when something has changed.
        """
        if not self._goal:
            return None
        age = 0.0 if oldest is None else now - oldest
        calm = max(CALM_MIN, self._goal)
        if age > self._goal:
            self._missed_at = now
            if not self.is_late:
                self.is_late = True
                self._tell(SinkLag(self._name, self._goal, age, cause(), False))
        elif self.is_late and now - self._missed_at >= calm:
            self.is_late = False
            self._tell(SinkLag(self._name, self._goal, age, "", True))
        if age > self._goal:
            return 1.0
        waits = [self._missed_at + calm - now] if self.is_late else []
        if oldest is not None:
            waits.append(oldest + self._goal - now + 0.001)
        return min(waits, default=None)

    def _tell(self, lag: SinkLag) -> None:
        if lag.is_over:
            log.info("lag=ok sink=%s goal=%gs", lag.name, lag.goal_seconds)
        else:
            log.warning(
                "lag=late sink=%s oldest=%.1fs goal=%gs: %s",
                lag.name,
                lag.lag_seconds,
                lag.goal_seconds,
                lag.cause,
            )
        self._announce(lag)
