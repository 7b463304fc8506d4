"""What happened: events, from the oldest kept to those still to come."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from tidegate.spi.events import Event, EventKind, Severity
from tidegate.spi.operate._paging import Count, Limit

#: Longest time a request for events waits for one, in seconds.
EVENT_WAIT_MAX_S: Final = 20.0

_Wait: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=EVENT_WAIT_MAX_S)]


class ListEvents(msgspec.Struct, frozen=True, tag="list-events"):
    """Events after a given one, oldest first, a page at a time.

    The gateway keeps the last events of each kind, in memory.

    Attributes:
        after: sequence of the last known event, ``next`` of the previous page; 0: from the oldest kept.
        since: only events from then on, microseconds since the epoch; 0: all.
        kinds: only these; empty: all.
        severity: only this and higher.
        newest: the last ``limit`` events instead of the first; for a first look.
        wait_s: if there is none, wait this long for one; 0: answer at once.
    """

    after: Count = 0
    since: Count = 0
    kinds: tuple[EventKind, ...] = ()
    severity: Severity = Severity.INFO
    newest: bool = False
    limit: Limit = 100
    wait_s: _Wait = 0


class EventRow(msgspec.Struct, frozen=True):
    """One event.

    Attributes:
        sequence: one higher for each event; continues above earlier values when the gateway restarts.
        at: microseconds since the epoch.
        event: its name; kind, severity: of all events of this name.
        text: as in the log.
        about: the fields of the text by name: ``destination``, ``client``, ``principal``, ``peer``, ``listener``,
            ``sink`` …
        count: how many events this row stands for: when they come too often, those of one second share a row.
    """

    sequence: int
    at: int
    event: Event
    kind: EventKind
    severity: Severity
    text: str
    about: dict[str, str | int | float]
    count: int = 1


class EventPage(msgspec.Struct, frozen=True, tag="event-page"):
    """Events.

    Attributes:
        next: ``after`` of the next request, also when there were no events.
        missed: events of these kinds after ``after`` that are no longer kept, whatever their severity and age.
        is_restarted: ``after`` is from an earlier run of the gateway: what happened from then until that run ended
            is unknown.
    """

    rows: tuple[EventRow, ...]
    next: int
    missed: int = 0
    is_restarted: bool = False
