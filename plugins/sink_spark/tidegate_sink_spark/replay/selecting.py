"""Which rows of a table a replay takes, in which order, and how far: SQL, the same for every table reader.

A row is *selected* by the user's SQL and times. Selected rows from which no message can be made are left
out. The row alone decides that, so the result is the same each time:

* the body is missing (``large-body-omitted``, or it was never known);
* without another destination: its own was temporary, and is gone, or the gateway's own (``$SYS``).

A message that several subscriptions acknowledged has one row for each: the first selected one is taken.
"""

from __future__ import annotations

import bisect
import datetime
import importlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from tidegate.spi import RequestError

pa: Final[Any] = importlib.import_module("pyarrow")
pc: Final[Any] = importlib.import_module("pyarrow.compute")

#: The table's name in SQL.
ROWS: Final = "tidegate_rows"

#: Columns that a message is made from; a table of an older gateway lacks some.
COLUMNS: Final = (
    "ack_seq",
    "message_id",
    "destination",
    "headers",
    "body",
    "content_type",
    "received_at",
    "producer_protocol",
    "repeated_headers",
    "correlation_id",
    "reply_to",
    "priority",
    "persistent",
    "qos",
    "expires_at",
    "destination_as_sent",
    "payload_format",
)
#: Without these no message can be made.
_NEEDED: Final = ("ack_seq", "gateway_id", "epoch", "destination", "headers", "body", "acked_at")

#: Rows and bytes of one window, and its greatest width: the fewer rows are selected, the wider it is.
_WINDOW_ROWS: Final = 50_000
_WINDOW_BYTES: Final = 64 << 20
_WIDTH_MAX: Final = 1 << 40
#: Bytes that a window may have when one row is much larger than the others.
_BYTES_MAX: Final = 256 << 20

#: Most logs (a gateway's name and the store's id) that one table has rows of.
LOGS_MAX: Final = 100

_GONE: Final = ("queue://$temporary.%", "topic://$temporary.%", "topic://$SYS", "topic://$SYS.%")


class Table(Protocol):
    """A table that answers SQL, in which it is :data:`ROWS`."""

    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def body_size(self) -> str:
        """SQL for the bytes of ``body``."""
        ...

    def query(self, sql: str) -> Any:
        """A ``pyarrow.Table``. Raises: RequestError for SQL that is wrong; ClientError."""
        ...

    def text(self, value: str) -> str:
        """A string as an SQL literal."""
        ...

    def time(self, microseconds: int) -> str:
        """A time as an SQL literal."""
        ...

    def close(self) -> None: ...


class Log(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one acknowledged log, up to ack sequence *last*."""

    gateway_id: str
    epoch: str
    last: int


@dataclass(frozen=True, slots=True)
class Selection:
    """What the user wants.

    Attributes: where: SQL, "" for all; since, until: microseconds, of ``acked_at``, inclusive and exclusive, None:
        no limit; keeps_destination: each row goes to its own.
    """

    where: str = ""
    since: int | None = None
    until: int | None = None
    keeps_destination: bool = True


@dataclass(slots=True)
class Plan:
    """What the selection comes to.

    Attributes: logs: in replay order, oldest first; destinations: rows and
        bytes of bodies by the rows' own destination; repeated: rows whose messages are already taken;
        left_out: rows from which no message can be made.
    """

    logs: tuple[Log, ...]
    destinations: dict[str, tuple[int, int]]
    left_out: int = 0
    repeated: int = 0
    largest: int = 0

    @property
    def rows(self) -> int:
        """Messages to publish."""
        return sum(count for count, _ in self.destinations.values())

    @property
    def size(self) -> int:
        """Bytes of their bodies."""
        return sum(size for _, size in self.destinations.values())


@dataclass(slots=True)
class Window:
    """Rows in order, as Arrow. Attributes: log: its number; through: there are no more up to here."""

    log: int
    through: int
    rows: Any


@dataclass(slots=True)
class Reader:
    """Reads what a selection takes from a table.

    Attributes: window_rows: most rows of a window.
    """

    table: Table
    selection: Selection
    window_rows: int = _WINDOW_ROWS
    _repeats: dict[tuple[str, str], array[int]] = field(default_factory=dict[Any, Any])

    def __post_init__(self) -> None:
        missing = [name for name in _NEEDED if name not in self.table.columns]
        if missing:
            raise RequestError(
                f"the table has no column {missing[0]}: it is none that a sink of a gateway has made"
            )

    # --- the plan --------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Plan the whole selection. Raises: RequestError, ClientError."""
        size = self.table.body_size
        found = self.table.query(
            f"SELECT gateway_id, epoch, destination, COUNT(*) AS selected,"
            f" SUM(CASE WHEN {self._fit()} THEN 1 ELSE 0 END) AS fit,"
            f" SUM(CASE WHEN {self._fit()} THEN {size} ELSE 0 END) AS size,"
            f" MAX(CASE WHEN {self._fit()} THEN {size} ELSE 0 END) AS largest,"
            f" MAX(ack_seq) AS last, MIN(acked_at) AS oldest"
            f" FROM {ROWS} WHERE {self._selected()} GROUP BY gateway_id, epoch, destination"
        ).to_pylist()
        last: dict[tuple[str, str], int] = {}
        oldest: dict[tuple[str, str], Any] = {}
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        left_out = 0
        for row in found:
            log = (row["gateway_id"], row["epoch"])
            last[log] = max(last.get(log, 0), row["last"])
            oldest[log] = min(oldest.get(log, row["oldest"]), row["oldest"])
            left_out += row["selected"] - int(row["fit"])
            if row["fit"]:
                counts[row["destination"]] += int(row["fit"])
                sizes[row["destination"]] += int(row["size"] or 0)
        if len(last) > LOGS_MAX:
            raise RequestError(
                f"the rows are of {len(last)} stores; select those of at most {LOGS_MAX} with --where"
                " (gateway_id, epoch)"
            )
        order = sorted(last, key=lambda log: (oldest[log], log))
        plan = Plan(
            tuple(Log(*log, last[log]) for log in order),
            {},
            left_out,
            largest=max((int(row["largest"] or 0) for row in found), default=0),
        )
        if any(name.startswith("topic://") for name in counts):
            for destination, (count, bytes_) in self.find_repeats().items():
                plan.repeated += count
                counts[destination] -= count
                sizes[destination] -= bytes_
        plan.destinations = {name: (counts[name], sizes[name]) for name in sorted(counts)}
        return plan

    def find_repeats(self) -> Mapping[str, tuple[int, int]]:
        """Find the rows whose message is in an earlier row, and leave them out from now on.

        Takes eight bytes of memory for each. Returns: rows and bytes of bodies by destination.
        """
        found = self.table.query(
            "SELECT gateway_id, epoch, ack_seq, destination, size FROM ("
            f"SELECT gateway_id, epoch, ack_seq, destination, {self.table.body_size} AS size,"
            " MIN(ack_seq) OVER (PARTITION BY gateway_id, epoch, message_id) AS first_seq"
            f" FROM {ROWS} WHERE {self._selected()} AND {self._fit()}"
            " AND destination LIKE 'topic://%') AS of_topics"
            " WHERE ack_seq > first_seq ORDER BY gateway_id, epoch, ack_seq"
        )
        self._repeats = {}
        for batch in found.to_batches():
            keys = zip(batch["gateway_id"].to_pylist(), batch["epoch"].to_pylist(), strict=True)
            for key, number in zip(keys, batch["ack_seq"].to_pylist(), strict=True):
                self._repeats.setdefault(key, array("q")).append(number)
        totals = found.group_by("destination").aggregate([("size", "sum"), ("size", "count")])
        return {
            row["destination"]: (row["size_count"], int(row["size_sum"]))
            for row in totals.to_pylist()
        }

    # --- the rows --------------------------------------------------------------------------------

    def windows(
        self, logs: Sequence[Log], log: int, after: int, largest: int = 0
    ) -> Iterator[Window]:
        """All rows after ack sequence *after* of log number *log*, and those of later logs.

        Args: largest: bytes of the largest body. Raises: RequestError, ClientError.
        """
        for number in range(log, len(logs)):
            yield from self._of_log(number, logs[number], after, largest)
            after = 0

    def _of_log(self, number: int, log: Log, after: int, largest: int) -> Iterator[Window]:
        limit, width = self.window_rows, self.window_rows
        mine = (
            f"{self._selected()} AND {self._fit()} AND gateway_id = {self.table.text(log.gateway_id)}"
            f" AND epoch = {self.table.text(log.epoch)}"
        )
        names = ", ".join(name for name in COLUMNS if name in self.table.columns)
        while after < log.last:
            through = min(after + width, log.last)
            rows = f"{mine} AND ack_seq > {after} AND ack_seq <= {through}"
            end = " ORDER BY ack_seq"
            if through - after > limit:
                end += f" LIMIT {limit}"
            if limit * largest > _BYTES_MAX:
                through = self._cut(rows, end, after, through)
                rows = f"{mine} AND ack_seq > {after} AND ack_seq <= {through}"
            found = self.table.query(f"SELECT {names} FROM {ROWS} WHERE {rows}{end}")
            count = found.num_rows
            last = found["ack_seq"][count - 1].as_py() if count else after
            if count == limit and last < through:
                through, width = last, max(width // 2, limit)
            elif count < limit // 2:
                width = min(width * 2, _WIDTH_MAX)
            if count:
                yield Window(number, through, self._once(log, found, after, through))
            after = through

    def _cut(self, rows: str, end: str, after: int, through: int) -> int:
        """The end of a window that begins after *after*: one row, or at most ``_WINDOW_BYTES``."""
        sizes = self.table.query(
            f"SELECT ack_seq, {self.table.body_size} AS size FROM {ROWS} WHERE {rows}{end}"
        )
        total = 0
        for row in sizes.to_pylist():
            total += int(row["size"])
            if total > _WINDOW_BYTES and row["ack_seq"] > after + 1:
                return max(after + 1, row["ack_seq"] - 1)
        return through

    def _once(self, log: Log, rows: Any, after: int, through: int) -> Any:
        repeats = self._repeats.get((log.gateway_id, log.epoch))
        if repeats is None:
            return rows
        first = bisect.bisect_right(repeats, after)
        here = repeats[first : bisect.bisect_right(repeats, through)]
        if not here:
            return rows
        known = pc.is_in(rows["ack_seq"], value_set=pa.array(here, pa.int64()))
        return rows.filter(pc.invert(known))

    # --- conditions ------------------------------------------------------------------------------

    def _selected(self) -> str:
        selection, table = self.selection, self.table
        parts = [f"(\n{selection.where}\n)"] if selection.where.strip() else []
        # The day, too: tables are partitioned by it.
        if selection.since is not None:
            parts.append(f"acked_at >= {table.time(selection.since)}")
            parts.append(f"ack_date >= DATE '{_day(selection.since)}'")
        if selection.until is not None:
            parts.append(f"acked_at < {table.time(selection.until)}")
            parts.append(f"ack_date <= DATE '{_day(selection.until)}'")
        return " AND ".join(parts) or "1 = 1"

    def _fit(self) -> str:
        parts = [
            "body IS NOT NULL",
            "destination IS NOT NULL",
            "headers['large-body-omitted'] IS NULL",
        ]
        if self.selection.keeps_destination:
            parts += [f"destination NOT LIKE '{pattern}'" for pattern in _GONE]
        return "(" + " AND ".join(parts) + ")"


def _day(microseconds: int) -> str:
    return (datetime.date(1970, 1, 1) + datetime.timedelta(microseconds=microseconds)).isoformat()
