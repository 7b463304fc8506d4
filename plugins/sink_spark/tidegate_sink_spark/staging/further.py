"""The columns besides those that every table has: key columns, and the body as text.

Values are read once for a whole batch. A value that does not fit its column's type is NULL, or makes its row a dead
letter (``on_bad_value``). A missing header, a path that leads nowhere, JSON's null and an empty body are not values,
and always NULL.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, Final
from urllib.parse import quote

import msgspec

from tidegate.spi import AcknowledgedMessage, EncodedRows, Message
from tidegate_sink_spark.staging.arrow import SCHEMA, strings
from tidegate_sink_spark.staging.columns import BODY_COLUMNS, KeyColumn, find_columns
from tidegate_sink_spark.staging.values import NO_VALUE

pa: Final[Any] = importlib.import_module("pyarrow")

#: What the decoder raises for a body that is not JSON; a deep one ends at the interpreter's own limit.
_NO_JSON: Final = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError)
#: Most bytes of a destination as a directory, whose name is at most 255 on most file systems: "destination="
#: comes first, and each special character takes three.
DIRECTORY_BYTES_MAX: Final = 240
#: The types of JSON's objects and arrays here; they say nothing about their contents.
_Object: Final[Any] = dict
_Array: Final[Any] = list
_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


class FurtherSetup(msgspec.Struct, frozen=True):
    """Input of :class:`Further`, for another process. Attributes: columns: as the configuration has them."""

    columns: dict[str, str] = {}
    body: str = "binary"
    stops: bool = False
    names_directories: bool = False

    def make(self) -> Further:
        """Raises: ConfigError."""
        return Further(
            find_columns(self.columns),
            self.body,
            stops=self.stops,
            names_directories=self.names_directories,
        )


class Further:
    """The further columns of one sink.

    Attributes:
        fields: those of staged files, after ``SCHEMA``'s.
        sql: (name, type) of all of them in the table.
    """

    def __init__(
        self,
        columns: Sequence[KeyColumn] = (),
        body: str = "binary",
        *,
        stops: bool = False,
        names_directories: bool = False,
    ) -> None:
        """Args:
        body: as in the option of that name.
        names_directories: the table is partitioned by destination.
        """
        self._columns = tuple(columns)
        self._body = body
        self._stops = stops
        self._names_directories = names_directories
        self.sql: tuple[tuple[str, str], ...] = tuple((c.name, c.sql) for c in columns)
        fields = [pa.field(column.name, column.arrow) for column in columns]
        if body in BODY_COLUMNS:
            self.sql += (BODY_COLUMNS[body],)
        if body in ("text", "json"):
            fields.append(pa.field(BODY_COLUMNS[body][0], pa.string()))
        self.fields: tuple[Any, ...] = tuple(fields)
        self._schema = pa.schema([*SCHEMA, *fields])
        self._needs_headers = any(not column.is_json for column in columns)
        self._needs_documents = any(column.is_json for column in columns)
        literal = Decimal if any(column.needs_literals for column in columns) else None
        self._decode = msgspec.json.Decoder(float_hook=literal).decode

    def read(self, messages: Sequence[Message]) -> Values:
        """The values of the rows of *messages*."""
        found = Values(len(messages), self._schema)
        if self.sql:
            self._read(messages, found)
            if not self._stops:
                found.bad = {}
        if self._names_directories:
            destinations = [message.destination for message in messages]
            too_long = {name for name in set(destinations) if is_too_long(name)}
            for number, name in enumerate(destinations if too_long else ()):
                if name in too_long:
                    found.is_bad(number, "its destination is too long for the name of a directory")
        return found

    def read_encoded(self, runs: Sequence[EncodedRows], batch: Any) -> Values:
        """The same for the rows of *runs*. Args: batch: what they became. Raises: msgspec.DecodeError."""
        needs_messages = bool(self.sql)
        if self._names_directories and not needs_messages:
            needs_messages = any(map(is_too_long, batch["destination"].unique().to_pylist()))
        if not needs_messages:
            return Values(batch.num_rows, self._schema)
        return self.read(list(chain.from_iterable([run.decode_messages() for run in runs])))

    def _read(self, messages: Sequence[Message], found: Values) -> None:
        named: list[dict[str, str]] = []
        if self._needs_headers:
            # The first of a repeated name counts, as in the column `headers`.
            named = [dict(message.headers[::-1]) for message in messages]
        bodies = [bytes(message.body) for message in messages]
        documents: list[Any] = []
        if self._needs_documents:
            documents = [self._document(body, n, found) for n, body in enumerate(bodies)]
        for column in self._columns:
            if column.is_json:
                raw = [_at(document, column.path) for document in documents]
            else:
                raw = [headers.get(column.header) for headers in named]
            found.columns.append(_converted(column, raw, found))
        if self._body == "text":
            found.columns.append([_text(body, n, found) for n, body in enumerate(bodies)])
        elif self._body != "binary":
            texts = [_json_text(body, n, found) for n, body in enumerate(bodies)]
            if self._body == "json":
                found.columns.append(texts)

    def of_dead(self, row: AcknowledgedMessage | None) -> Values:
        """A dead letter's values of these columns; *row*: as far as it is known."""
        found = self.read([row.message]) if row is not None else Values(1, self._schema)
        found.bad = {}
        keys = found.columns[: len(self._columns)]
        found.columns = keys + [[None]] * (len(self.fields) - len(keys))
        return found

    def _document(self, body: bytes, number: int, found: Values) -> Any:
        if not body:
            return None
        try:
            return self._decode(body)
        except _NO_JSON:
            found.is_bad(number, "the body is no JSON")
            return None


class Values:
    """Values of a batch, column by column. Attributes: columns; bad: what is wrong, by row number."""

    def __init__(self, count: int, schema: Any) -> None:
        self.columns: list[list[Any]] = []
        self.bad: dict[int, str] = {}
        self._count = count
        self._schema = schema

    def is_bad(self, number: int, reason: str) -> None:
        """Row *number* has a value that its column cannot hold; only the first reason is kept."""
        self.bad.setdefault(number, reason)

    def without_bad(self) -> Values:
        """The values of all other rows."""
        good = [number for number in range(self._count) if number not in self.bad]
        found = Values(len(good), self._schema)
        found.columns = [[values[number] for number in good] for values in self.columns]
        return found

    def behind(self, batch: Any) -> Any:
        """*batch* of :data:`SCHEMA`, followed by these columns."""
        if not self.columns:
            return batch
        fields = list(self._schema)[len(SCHEMA) :]
        arrays = [
            strings(values) if field.type == pa.string() else pa.array(values, field.type)
            for values, field in zip(self.columns, fields, strict=True)
        ]
        return pa.RecordBatch.from_arrays([*batch.columns, *arrays], schema=self._schema)


def is_too_long(destination: str) -> bool:
    """Tell whether *destination* cannot name a directory, even when escaped."""
    escaped = quote(destination, safe="", errors="surrogatepass")
    return len(escaped) > DIRECTORY_BYTES_MAX


def _at(document: Any, path: Sequence[str | int]) -> Any:
    """The value that *path* leads to; None where it leads nowhere."""
    for step in path:
        if isinstance(document, _Object):
            document = document.get(step)  # JSON's keys are texts, never numbers
        elif isinstance(document, _Array) and type(step) is int and step < len(document):
            document = document[step]
        else:
            return None
    return document


def _converted(column: KeyColumn, raw: list[Any], found: Values) -> list[Any]:
    convert = column.convert
    try:
        return [None if value is None else convert(value) for value in raw]
    except NO_VALUE:
        pass
    values: list[Any] = []
    for number, value in enumerate(raw):
        try:
            values.append(None if value is None else convert(value))
        except NO_VALUE:
            values.append(None)
            found.is_bad(
                number,
                f"the column {column.name} is {column.sql}, and what {column.source} has is none",
            )
    return values


def _text(body: bytes, number: int, found: Values) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        found.is_bad(number, "the body is no text in UTF-8")
        return None


def _json_text(body: bytes, number: int, found: Values) -> str | None:
    if not body:
        return None
    try:
        _check_json(body)
        return body.decode()
    except _NO_JSON:
        found.is_bad(number, "the body is no JSON")
        return None
