"""The health of sinks: each change is reported once, however often the sink repeats it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import final

from tidegate.spi import SinkHealth
from tidegate.spi.events import Event, Tell
from tidegate.spi.sink import SinkState

_log = logging.getLogger("tidegate.broker.sink")


@final
class SinkWatch:
    """Call :meth:`look` every second. Args: health: of each sink, by name."""

    def __init__(self, health: Callable[[], Sequence[tuple[str, SinkHealth]]], tell: Tell) -> None:
        self._health = health
        self._tell = tell
        self._known: dict[str, SinkHealth] = {}

    def look(self) -> None:
        """A second has passed."""
        for name, now in self._health():
            before = self._known.get(name, SinkHealth(SinkState.STARTING, 0, 0))
            self._known[name] = now
            if now.problem != before.problem:
                if now.problem:
                    text = "sink=%s state=%s problem=%r"
                    self._tell(Event.SINK_FAILED, _log, text, name, now.state.value, now.problem)
                else:
                    text = "sink=%s state=%s: its problem is over"
                    self._tell(Event.SINK_RECOVERED, _log, text, name, now.state.value)
            elif now.state is not before.state and not now.problem:
                self._tell(Event.SINK_STATE, _log, "sink=%s state=%s", name, now.state.value)
            if now.is_late != before.is_late:
                event = Event.SINK_LATE if now.is_late else Event.SINK_CAUGHT_UP
                self._tell(event, _log, "sink=%s late=%d", name, now.is_late)
