"""Which destinations a sink takes: ``include`` and ``exclude``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

import msgspec

from tidegate.spi import AcknowledgedMessage, ConfigError, EncodedRows, names

#: Answers remembered; a gateway with more destinations computes some again.
REMEMBERED_MAX: Final = 10_000


class Selection:
    """Patterns are canonical (``queue://orders.>``), or names for queues and topics alike."""

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        """Args: include: empty: all. exclude: takes precedence over *include*. Raises: ConfigError."""
        _check(include, "include")
        _check(exclude, "exclude")
        if include and set(include) <= set(exclude):
            raise ConfigError(
                "excludes all that `include` names, so that the sink would take nothing",
                key="exclude",
            )
        self._include = tuple(include)
        self._exclude = tuple(exclude)
        self._known: dict[str, bool] = {}

    @property
    def takes_all(self) -> bool:
        """Whether no destination is left out."""
        return not self._include and not self._exclude

    def takes(self, destination: str) -> bool:
        """Tell whether rows of the canonical *destination* are this sink's."""
        known = self._known.get(destination)
        if known is None:
            known = (not self._include or covers(self._include, destination)) and not covers(
                self._exclude, destination
            )
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[destination] = known
        return known

    def of(self, rows: Sequence[AcknowledgedMessage]) -> Sequence[AcknowledgedMessage]:
        """Those of *rows* that the sink takes."""
        if self.takes_all:
            return rows
        return [row for row in rows if self.takes(row.message.destination)]

    def of_runs(self, runs: Iterable[EncodedRows]) -> list[EncodedRows]:
        """The rows of *runs* that the sink takes, and those whose destination is unknown."""
        if self.takes_all:
            return list(runs)
        return [part for run in runs for part in self._parts(run)]

    def _parts(self, run: EncodedRows) -> Iterator[EncodedRows]:
        taken = [name is None or self.takes(name) for name in map(_destination, run.messages)]
        if all(taken):
            yield run
            return
        begin = 0
        for is_taken, group in groupby(taken):
            end = begin + sum(1 for _ in group)
            if is_taken:
                yield msgspec.structs.replace(
                    run,
                    first=run.first + begin,
                    sequences=run.sequences[begin:end],
                    delivered_at=run.delivered_at[begin:end],
                    delivery_counts=run.delivery_counts[begin:end],
                    messages=run.messages[begin:end],
                )
            begin = end


class _Addressed(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The part of an encoded message that is read here."""

    destination: str


_decode: Final = msgspec.msgpack.Decoder(_Addressed).decode


def _destination(message: bytes) -> str | None:
    try:
        return _decode(message).destination
    except msgspec.DecodeError:
        return None


def covers(patterns: Iterable[str], destination: str) -> bool:
    """Tell whether one of *patterns* covers the canonical *destination*."""
    scheme, separator, name = destination.partition("://")
    for pattern in patterns:
        kind, _, wanted = pattern.rpartition("://")
        if kind in ("", scheme if separator else "") and names.matches(wanted, name):
            return True
    return False


def routed(routes: Mapping[str, str], destination: str) -> str:
    """The table whose pattern in *routes* covers the canonical *destination* first; "": none does."""
    return next((table for pattern, table in routes.items() if covers((pattern,), destination)), "")


def _check(patterns: Iterable[str], key: str) -> None:
    for pattern in patterns:
        check_pattern(pattern, key)


def check_pattern(pattern: str, key: str) -> None:
    """Raises: ConfigError for anything but a pattern of destinations."""
    kind, separator, name = pattern.rpartition("://")
    if separator and kind not in ("queue", "topic"):
        raise ConfigError(f"{pattern!r} begins neither with queue:// nor topic://", key=key)
    try:
        names.check_filter(name)
    except ValueError as exc:
        raise ConfigError(f"{pattern!r}: {exc}", key=key) from None
