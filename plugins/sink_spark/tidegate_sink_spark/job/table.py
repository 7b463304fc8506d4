"""What every table has, whatever its format: its columns, and the name of a log's mark in it.

Knows neither Spark nor a format: each format says which columns a table has and how one is added
(:class:`Columns`), and :func:`bring_up_to_date` does the rest, the same for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.staging.arrow import SCHEMA_VERSION, VERSION_PROPERTY

#: Column definitions; the same as ``arrow.SCHEMA``.
COLUMNS: Final = (
    ("ack_seq", "BIGINT"),
    ("gateway_id", "STRING"),
    ("epoch", "STRING"),
    ("message_id", "STRING"),
    ("destination", "STRING"),
    ("protocol", "STRING"),
    ("client_id", "STRING"),
    ("subscription", "STRING"),
    ("headers", "MAP<STRING,STRING>"),
    ("body", "BINARY"),
    ("content_type", "STRING"),
    ("received_at", "TIMESTAMP"),
    ("delivered_at", "TIMESTAMP"),
    ("acked_at", "TIMESTAMP"),
    ("ack_date", "DATE"),
    ("sequence", "BIGINT"),
    ("destination_kind", "STRING"),
    ("producer_protocol", "STRING"),
    ("producer_version", "STRING"),
    ("producer_client_id", "STRING"),
    ("producer_principal", "STRING"),
    ("consumer_principal", "STRING"),
    ("repeated_headers", "ARRAY<STRUCT<name:STRING,value:STRING>>"),
    ("correlation_id", "STRING"),
    ("reply_to", "STRING"),
    ("message_type", "STRING"),
    ("group_id", "STRING"),
    ("priority", "INT"),
    ("persistent", "BOOLEAN"),
    ("qos", "INT"),
    ("retain", "BOOLEAN"),
    ("expires_at", "TIMESTAMP"),
    ("stored_at", "TIMESTAMP"),
    ("delivery_count", "INT"),
    ("outcome", "STRING"),
    ("reason", "STRING"),
    ("payload_format", "INT"),
    ("destination_as_sent", "STRING"),
)


#: A table without it is not ours.
_OWN: Final = COLUMNS[0][0]


class Columns(Protocol):
    """A table's columns, as one format knows them."""

    def columns(self) -> Mapping[str, str]:
        """Spark's type by name. Raises: CommitError."""
        ...

    def add_columns(self, columns: Sequence[tuple[str, str]]) -> None:
        """Add (name, type) to the table in place; older rows have NULL. Raises: CommitError."""
        ...

    def schema_version(self) -> str | None:
        """What the table's property VERSION_PROPERTY says; None when it has none. Raises: CommitError."""
        ...

    def set_schema_version(self, version: int) -> None:
        """Set that property. Raises: CommitError."""
        ...


def application_id(gateway_name: str, store_id: str) -> str:
    """The name of a log's mark in the table. Documented: other tools read the mark by it."""
    return f"tidegate/{gateway_name}/{store_id}"


def dead_letters_of(table: str) -> str:
    """The dead-letter table of *table*: a path, URI or name like that. Documented."""
    return f"{table.rstrip('/')}_dlq"


#: The default columns of layout ``partitioned``.
PARTITIONED_BY: Final = ("ack_date",)

#: Name and SQL type of columns after COLUMNS: those that the configuration names.
FurtherColumns: TypeAlias = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a table is to have.

    Attributes:
        layout: of a new one: ``clustered``, ``partitioned`` or ``plain``.
        further: columns besides those that every table has; an existing one gets those it lacks.
        partition_by: columns, for a new one with layout ``partitioned``.
    """

    layout: str
    further: FurtherColumns = ()
    partition_by: tuple[str, ...] = PARTITIONED_BY

    @property
    def partitions(self) -> tuple[str, ...]:
        """The columns that a new table is partitioned by."""
        return self.partition_by if self.layout == "partitioned" else ()


def columns_of(further: FurtherColumns) -> tuple[tuple[str, str], ...]:
    """All columns of a table."""
    return (*COLUMNS, *further)


def schema_text(further: FurtherColumns = ()) -> str:
    """The columns as Spark's schema of rows. (Only the user's own names can be SQL keywords.)"""
    return ", ".join(
        [*(f"{name} {kind}" for name, kind in COLUMNS), *(f"`{n}` {kind}" for n, kind in further)]
    )


def bring_up_to_date(table: Columns, name: str, further: FurtherColumns = ()) -> None:
    """Make the table *name* fit our rows: columns that an older gateway's table lacks are added.

    Raises: CommitError for one that cannot hold them, with the columns and what to do; for one that a newer
    gateway has changed.
    """
    version = _version(table.schema_version(), name)
    there = table.columns()
    if _OWN not in there:
        raise CommitError(
            f"the table {name} was not made by this sink: it has no column {_OWN}; name another table"
        )
    missing: list[tuple[str, str]] = []
    # Spark's names are case-insensitive.
    names = {column.lower(): column for column in there}
    for column, kind in columns_of(further):
        found = names.get(column.lower())
        if found is None:
            missing.append((column, kind))
        elif found != column or _plain(there[found]) != _plain(kind):
            raise _conflict(name, (column, kind), (found, there[found]))
    if missing:
        table.add_columns(missing)
    if version < SCHEMA_VERSION:
        table.set_schema_version(SCHEMA_VERSION)


def _conflict(table: str, wanted: tuple[str, str], found: tuple[str, str]) -> CommitError:
    (name, kind), (found_name, found_kind) = wanted, found
    there = found_kind if found_name == name else f"{found_name} {found_kind}"
    rename = f"rename it there (ALTER TABLE … RENAME COLUMN {found_name} TO …)"
    remedy = f"{rename}, or name another table"
    if wanted not in COLUMNS:
        remedy = f"give it another name in [sinks.columns], or that name and type; or {rename}"
    return CommitError(
        f"the column {name} of the table {table} is {there}, and the sink writes {kind}; {remedy}"
    )


def _version(found: str | None, name: str) -> int:
    """The version that a table states; 0 when it states none. Raises: CommitError."""
    if found is None:
        return 0
    if not found.isascii() or not found.isdigit():
        raise CommitError(
            f"the property {VERSION_PROPERTY} of the table {name} is {found!r}, and should be a number; set it to "
            f"{SCHEMA_VERSION}, or name another table"
        )
    if int(found) > SCHEMA_VERSION:
        raise CommitError(
            f"the table {name} has schema version {found}, and this gateway knows them up to {SCHEMA_VERSION}: a "
            "newer one has written it; install that here, too, or name another table"
        )
    return int(found)


def _plain(kind: str) -> str:
    """Formats differ in case and spaces: ``map<string,string>``, ``MAP<STRING, STRING>``."""
    return kind.replace(" ", "").upper()
