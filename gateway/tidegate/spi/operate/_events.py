"""What happened: events, from the oldest that is kept, and as they come."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from tidegate.spi.events import Event, EventKind, Severity
from tidegate.spi.operate._paging import Count, Limit

#: How long a request for events waits for one at most, in seconds.
EVENT_WAIT_MAX_S: Final = 20.0

_Wait: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=EVENT_WAIT_MAX_S)]


class ListEvents(msgspec.Struct, frozen=True, tag="list-events"):
    """What happened behind an event, oldest first, a page at a time.

    The gateway keeps the last ones of each kind, in memory.

    Attributes:
        after: sequence of the last event that is known, ``next`` of the page before; 0: from the oldest that is kept.
        since: only events from then on, microseconds since the epoch; 0: all.
        kinds: only these; none: all.
        severity: only these and what matters more.
        newest: the last ``limit`` of them, and not the first; for who begins to look.
        wait_s: when there is none, wait so long for one; 0: answer at once.
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
        sequence: each event has the next one; of a gateway that is started anew they are higher ones.
        at: microseconds since the epoch.
        event: its name; kind, severity: of all events of this name.
        text: as the log has it.
        about: the fields of the text by name: ``destination``, ``client``, ``principal``, ``peer``, ``listener``, ``sink`` …
        count: how many this stands for: of those that come too often, the ones of a second are one.
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
        next: what to ask for as ``after``, also when there were none.
        missed: events of these kinds behind ``after`` that are not kept any more, whatever their severity and age.
        is_restarted: ``after`` is of a gateway that ran before this one: what happened after it until that one ended is not known.
    """

    rows: tuple[EventRow, ...]
    next: int
    missed: int = 0
    is_restarted: bool = False
