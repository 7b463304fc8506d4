"""The data of one scrape, and how series are built from it."""

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

#: Most characters of a label's value: destinations with longer names count among the others.
LABEL_MAX: Final = 200
#: Label of destinations without series of their own. No real one has it: names begin with a kind.
OTHER: Final = "other"


#: Bridge rules with series of their own, the first by name; all others share one.
BRIDGE_RULES_MAX: Final = 100


class Part(enum.Enum):
    """The parts of a scrape, each asked for by its own request."""

    OVERVIEW = "overview"
    DESTINATIONS = "destinations"
    SINKS = "sinks"
    BRIDGES = "bridges"


@dataclass(frozen=True, slots=True)
class Seen:
    """The answers to one scrape; only *readiness* while the gateway does not run.

    Attributes: missing: parts that got no answer.
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
        """The name for queries."""
        return f"{self.name}_total" if self.is_counter else self.name


def of_readiness(value: Callable[[Readiness], float | None]) -> Samples:
    """One series, even while the gateway does not run."""

    def samples(seen: Seen) -> Iterable[Sample]:
        return _one(value(seen.readiness))

    return samples


def of_overview(value: Callable[[Overview], float | None]) -> Samples:
    """One series."""

    def samples(seen: Seen) -> Iterable[Sample]:
        return () if seen.overview is None else _one(value(seen.overview))

    return samples


def of_count(name: str) -> Samples:
    """One series of the gateway's counter *name*; none where it has none."""
    return of_overview(lambda found: found.counts.get(name))


def of_kinds(first: str, last: str) -> Samples:
    """A series for each counter with a name of three words, of which these are first and last."""

    def samples(seen: Seen) -> Iterable[Sample]:
        if seen.overview is None:
            return
        for name, value in seen.overview.counts.items():
            words = name.split(".")
            if len(words) == 3 and (words[0], words[2]) == (first, last):
                yield (words[1],), value

    return samples


def of_enum(kind: type[enum.Enum], value: Callable[[Seen], enum.Enum | None]) -> Samples:
    """A series for each member of *kind*: 1 for the current one, else 0."""

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

    Args: total: the sum over all; None: the others have no series.
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
            # Rows are read after the totals: clip, so that later arrivals leave no negative rest.
            yield (OTHER, OTHER), max(0.0, total(page.totals) - shown)

    return samples


def of_sinks(value: Callable[[SinkStatus], float | None]) -> Samples:
    """A series for each sink that has a value."""

    def samples(seen: Seen) -> Iterable[Sample]:
        for sink in () if seen.sinks is None else seen.sinks.rows:
            for _, found in _one(value(sink)):
                yield (sink.name,), found

    return samples


def of_bridges(value: Callable[[BridgeRow], float], *, is_summed: bool = True) -> Samples:
    """A series for each of the first rules, and, if *is_summed*, one for the others together."""

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
