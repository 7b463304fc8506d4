"""When the loop runs late, new connections are refused: existing ones come first.

What gives way when the machine cannot keep up, in this order: new connections (here); clients that
send more than a slice of work, which wait their turn (the front-ends); producers that are faster
than the store; messages without storage for subscribers that do not keep up. Never a message that
was confirmed, and never an acknowledgement.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tidegate.spi.events import Event, Tell, log_only

_log = logging.getLogger("tidegate.broker")

#: How often the clock is read: four timers a second cost nothing measurable.
LOOK_EVERY_S: Final = 0.25

#: Looks in a row that must be late before connections are refused: one long step (a garbage
#: collection, a suspended machine) is no overload.
LATE_LOOKS_MIN: Final = 3

#: It is over when this many looks in a row were late by less than half the limit: letting clients
#: in too soon brings it back.
CALM_LOOKS_MIN: Final = 8


class Overload:
    """How late the loop is, and whether that is too late to take more clients.

    Attributes:
        lag_max: seconds; 0: connections are never refused for this.
        is_on: new connections are refused.
        lag: seconds by which the last look was late.
        refused: connections since the start.
        tell: of events.
    """

    def __init__(self, lag_max: float) -> None:
        self.lag_max = lag_max
        self._late = self._calm = 0
        self.is_on = False
        self.lag = 0.0
        self.refused = 0
        self.tell: Tell = log_only

    async def watch(self) -> None:
        """Look at the clock until cancelled."""
        time = asyncio.get_running_loop().time
        while True:
            begun_at = time()
            await asyncio.sleep(LOOK_EVERY_S)
            self.looked(max(0.0, time() - begun_at - LOOK_EVERY_S))

    def looked(self, lag: float) -> None:
        """A look was *lag* seconds late."""
        self.lag = lag
        lag_max = self.lag_max
        self._late = self._late + 1 if lag > lag_max else 0
        self._calm = self._calm + 1 if lag < lag_max / 2 else 0
        if not self.is_on and lag_max and self._late >= LATE_LOOKS_MIN:
            self.is_on = True
            self.tell(
                Event.OVERLOAD_BEGUN,
                _log,
                "overloaded=1 loop_lag_ms=%d: new connections are closed at once until "
                "the delay is below %d ms (broker.overload_lag)",
                lag * 1000,
                lag_max * 500,
            )
        elif self.is_on and self._calm >= CALM_LOOKS_MIN:
            self.is_on = False
            text = "overloaded=0 refused=%d: new connections are accepted again"
            self.tell(Event.OVERLOAD_ENDED, _log, text, self.refused)

    def refuses(self) -> bool:
        """A new connection asks to be accepted. Returns: whether it is refused."""
        if self.is_on:
            self.refused += 1
        return self.is_on
