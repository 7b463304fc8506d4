"""Key columns: what the configuration says about them, checked at start.

``[sinks.columns]`` names a column and says ``TYPE SOURCE``: ``"long json:$.order.id"``, ``"string header:device"``.
:mod:`tidegate_sink_spark.staging.values` converts a value to the type.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.spi import ConfigError
from tidegate_sink_spark.staging import values
from tidegate_sink_spark.staging.arrow import SCHEMA

pa: Final[Any] = importlib.import_module("pyarrow")

#: The user's own columns: each is a pass over all rows, and some readers slow down with many.
COLUMNS_MAX: Final = 100
#: Steps of a JSON path.
STEPS_MAX: Final = 32

_timestamp: Final[Any] = pa.timestamp("us", tz="UTC")
#: By the configuration's word: type in SQL, type in Arrow, and the conversion.
_TYPES: Final[Mapping[str, tuple[str, Any, values.Convert]]] = {
    "string": ("STRING", pa.string(), values.to_string),
    "long": ("BIGINT", pa.int64(), values.to_long),
    "double": ("DOUBLE", pa.float64(), values.to_double),
    "boolean": ("BOOLEAN", pa.bool_(), values.to_boolean),
    "timestamp": ("TIMESTAMP", _timestamp, values.to_timestamp),
    "timestamp_s": ("TIMESTAMP", _timestamp, values.from_seconds),
    "timestamp_ms": ("TIMESTAMP", _timestamp, values.from_milliseconds),
    "timestamp_us": ("TIMESTAMP", _timestamp, values.from_microseconds),
    "date": ("DATE", pa.date32(), values.to_date),
}
#: Arrow's type by SQL's, except for decimals.
ARROW_TYPES: Final[Mapping[str, Any]] = {sql: arrow for sql, arrow, _ in _TYPES.values()}
#: Types that need a number as written, not as the nearest double.
_AS_WRITTEN: Final = ("STRING", "DECIMAL")
_DECIMAL: Final = re.compile(r"decimal\s*\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)", re.ASCII)
#: A letter first: names with an underscore are for the formats (``_metadata``, ``_change_type``, ``_file``).
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,126}", re.ASCII)
_SPEC: Final = re.compile(r"(\w+\s*(?:\([^)]*\))?)\s+(header|json):(.+)", re.ASCII | re.DOTALL)
_STEP: Final = re.compile(
    r"\.([A-Za-z_][\w-]*)|\[(0|[1-9]\d{0,8})\]|\['((?:[^'\\]|\\.)+)'\]|\[\"((?:[^\"\\]|\\.)+)\"\]"
)
_ESCAPED: Final = re.compile(r"\\(.)")
#: The columns of the option ``body``; the user's own may not take their names.
BODY_COLUMNS: Final[Mapping[str, tuple[str, str]]] = {
    "text": ("body_text", "STRING"),
    "json": ("body_json", "STRING"),
    "variant": ("body_variant", "VARIANT"),
}


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column that the user names.

    Attributes:
        name, source: as written.
        sql, arrow: its type, for the table and for staged files.
        convert: converts a value of the source to the type. Raises: ValueError, OverflowError, ArithmeticError.
        header: the header it comes from; "": from the body.
        path: steps to it in the body's JSON: keys and indexes.
    """

    name: str
    source: str
    sql: str
    arrow: Any
    convert: Callable[[Any], Any]
    header: str = ""
    path: tuple[str | int, ...] = ()

    @property
    def is_json(self) -> bool:
        """Whether it comes from the body."""
        return not self.header

    @property
    def needs_literals(self) -> bool:
        """Whether numbers are taken as written, with all their digits."""
        return self.is_json and self.sql.startswith(_AS_WRITTEN)


def find_columns(columns: Mapping[str, str]) -> tuple[KeyColumn, ...]:
    """The columns of ``[sinks.columns]``, in order. Raises: ConfigError."""
    if len(columns) > COLUMNS_MAX:
        raise ConfigError(
            f"{len(columns)} columns; at most {COLUMNS_MAX} are possible", key="columns"
        )
    ours = {name.lower() for name in SCHEMA.names} | {name for name, _ in BODY_COLUMNS.values()}
    found: dict[str, KeyColumn] = {}
    for name, text in columns.items():
        key, plain = f"columns.{name}", name.lower()
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} is no name of a column: letters, digits and underscores, a letter first",
                key=key,
            )
        if plain in ours:
            raise ConfigError(
                f"{name!r} is a column that every table has; give yours another name", key=key
            )
        if plain in found:
            raise ConfigError(
                f"{name!r} and {found[plain].name!r} are one name to Spark, which does not tell large "
                "letters from small ones; give it another name",
                key=key,
            )
        found[plain] = _column(name, text, key)
    return tuple(found.values())


def _column(name: str, text: str, key: str) -> KeyColumn:
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{text!r} is not 'TYPE header:NAME' or 'TYPE json:PATH', as in 'long json:$.order.id'",
            key=key,
        )
    sql, arrow, convert = _type(match[1].strip(), key)
    kind, source = match[2], match[3]
    if kind == "header":
        return KeyColumn(name, f"header:{source}", sql, arrow, convert, header=source)
    path = parse_path(source, key)
    return KeyColumn(name, f"json:{source}", sql, arrow, convert, path=path)


def _type(word: str, key: str) -> tuple[str, Any, values.Convert]:
    plain = word.lower()
    if plain in _TYPES:
        return _TYPES[plain]
    match = _DECIMAL.fullmatch(plain)
    if match is None:
        raise ConfigError(
            f"{word!r} is no type; take {', '.join(_TYPES)} or decimal(PRECISION,SCALE)", key=key
        )
    precision, scale = int(match[1]), int(match[2])
    if not 1 <= precision <= 38 or scale > precision:
        raise ConfigError(
            f"{word!r}: the precision is 1 to 38 digits, and the scale at most as many", key=key
        )
    return (
        f"DECIMAL({precision},{scale})",
        pa.decimal128(precision, scale),
        values.decimal_converter(precision, scale),
    )


def parse_path(text: str, key: str) -> tuple[str | int, ...]:
    """The steps of a JSON path: ``$.a.b``, ``$.a[0]``, ``$['a key']``. Raises: ConfigError."""
    if not text.startswith("$"):
        raise ConfigError(
            f"the JSON path {text!r} does not begin with '$', as in '$.order.id'", key=key
        )
    steps: list[str | int] = []
    position = 1
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise ConfigError(
                f"the JSON path {text!r} is not understood from its character {position + 1} on "
                f"({text[position : position + 10]!r}): it is made of .key, [0] and ['any key'], and names one "
                "value (no wildcards, filters or ..)",
                key=key,
            )
        name, index, single, double = match.groups()
        quoted = single or double
        if index is not None:
            steps.append(int(index))
        else:
            steps.append(name or _ESCAPED.sub(r"\1", quoted))
        position = match.end()
    if len(steps) > STEPS_MAX:
        raise ConfigError(f"the JSON path {text!r} has more than {STEPS_MAX} steps", key=key)
    return tuple(steps)
