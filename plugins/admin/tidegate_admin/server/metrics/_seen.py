"""What one scrape has, and how series are made of it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tidegate.spi.clients.operators import Readiness
from tidegate.spi.operate import (
    BridgeRow,
    Destination,
    DestinationPage,
    DestinationTotals,
    Overview,
    Room,
    SinkList,
    SinkStatus,
)

#: Characters of a label's value at most: a destination whose name is longer is among the others.
LABEL_MAX: Final = 200
#: Of the destinations that have no series of their own. No destination is called so: theirs begin with their kind.
OTHER: Final = "other"


#: Rules of bridges that have series of their own, the first by name; all others are one more together.
BRIDGE_RULES_MAX: Final = 100


class Part(enum.Enum):
    """What a scrape asks for, each by a request of its own."""

    OVERVIEW = "overview"
    DESTINATIONS = "destinations"
    SINKS = "sinks"
    BRIDGES = "bridges"


@dataclass(frozen=True, slots=True)
class Seen:
    """What one scrape has been told; but for *readiness* nothing while the gateway does not run.

    Attributes: missing: what it asked for and was not told.
    """

    readiness: Readiness
    overview: Overview | None = None
    page: DestinationPage | None = None
    sinks: SinkList | None = None
    bridges: tuple[BridgeRow, ...] | None = None
    missing: frozenset[Part] = field(default_factory=frozenset[Part])


#: Values of labels, and the value of the series.
Sample: TypeAlias = tuple[tuple[str, ...], float]
Samples: TypeAlias = Callable[[Seen], Iterable[Sample]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes: name: without the suffix of a counter; help: a sentence; labels: their names; samples: its series.
    """

    name: str
    help: str
    samples: Samples
    labels: tuple[str, ...] = ()
    is_counter: bool = False

    @property
    def exposed_name(self) -> str:
        """As queries name it."""
        return f"{self.name}_total" if self.is_counter else self.name


def of_readiness(value: Callable[[Readiness], float | None]) -> Samples:
    """One series, also while the gateway does not run."""

    def samples(seen: Seen) -> Iterable[Sample]:
        return _one(value(seen.readiness))

    return samples


def of_overview(value: Callable[[Overview], float | None]) -> Samples:
    """One series."""

    def samples(seen: Seen) -> Iterable[Sample]:
        return () if seen.overview is None else _one(value(seen.overview))

    return samples


def of_count(name: str) -> Samples:
    """One series of what the gateway counts by *name*; none where it does not."""
    return of_overview(lambda found: found.counts.get(name))


def of_kinds(first: str, last: str) -> Samples:
    """A series for each of what the gateway counts by a name of three words, of which these are two."""

    def samples(seen: Seen) -> Iterable[Sample]:
        if seen.overview is None:
            return
        for name, value in seen.overview.counts.items():
            words = name.split(".")
            if len(words) == 3 and (words[0], words[2]) == (first, last):
                yield (words[1],), value

    return samples


def of_enum(kind: type[enum.Enum], value: Callable[[Seen], enum.Enum | None]) -> Samples:
    """A series for each of *kind*: 1 for the one that it is now, else 0."""

    def samples(seen: Seen) -> Iterable[Sample]:
        now = value(seen)
        return () if now is None else [((item.value,), float(item is now)) for item in kind]

    return samples


def of_rooms(
    rooms: Callable[[Overview], Mapping[str, Room]], value: Callable[[Room], float]
) -> Samples:
    """A series for each of several rooms."""

    def samples(seen: Seen) -> Iterable[Sample]:
        if seen.overview is None:
            return ()
        return [((name,), value(room)) for name, room in rooms(seen.overview).items()]

    return samples


def of_totals(value: Callable[[DestinationTotals], float]) -> Samples:
    """One series of all destinations together."""

    def samples(seen: Seen) -> Iterable[Sample]:
        totals = None if seen.page is None else seen.page.totals
        return () if totals is None else _one(value(totals))

    return samples


def of_destinations(
    value: Callable[[Destination], float], total: Callable[[DestinationTotals], float] | None = None
) -> Samples:
    """A series for each destination of the page, and one for the others together.

    Args: total: what all have together; None: the others have no series.
    """

    def samples(seen: Seen) -> Iterable[Sample]:
        page = seen.page
        if page is None:
            return
        shown = 0.0
        for row in page.rows:
            if len(row.destination) <= LABEL_MAX:
                found = float(value(row))
                shown += found
                yield (row.destination, row.kind.value), found
        if total is not None and page.totals is not None:
            # The rows are read after the totals: what came meanwhile makes no negative rest.
            yield (OTHER, OTHER), max(0.0, total(page.totals) - shown)

    return samples


def of_sinks(value: Callable[[SinkStatus], float | None]) -> Samples:
    """A series for each sink that knows it."""

    def samples(seen: Seen) -> Iterable[Sample]:
        for sink in () if seen.sinks is None else seen.sinks.rows:
            for _, found in _one(value(sink)):
                yield (sink.name,), found

    return samples


def of_bridges(value: Callable[[BridgeRow], float], *, is_summed: bool = True) -> Samples:
    """A series for each of the first rules, and one for the others together. Args: is_summed: False: those have none."""

    def samples(seen: Seen) -> Iterable[Sample]:
        rows = seen.bridges or ()
        for row in rows[:BRIDGE_RULES_MAX]:
            yield (row.bridge, row.rule), float(value(row))
        rest = rows[BRIDGE_RULES_MAX:]
        if rest and is_summed:
            yield (OTHER, OTHER), float(sum(map(value, rest)))

    return samples


def _one(value: float | None) -> Iterable[Sample]:
    return () if value is None else (((), float(value)),)
