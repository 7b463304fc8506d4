"""Column types: Spark's words, in which the columns are defined, and the words of Delta's log.

``ARRAY<STRUCT<name: STRING>>`` is, in a table's ``schemaString``, ``{"type": "array", "elementType":
{"type": "struct", "fields": [...]}, "containsNull": true}``. Source: Delta's PROTOCOL.md, "Schema
Serialization Format".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

_WORDS: Final = {
    "BIGINT": "long",
    "INT": "integer",
    "SMALLINT": "short",
    "TINYINT": "byte",
    "DOUBLE": "double",
    "FLOAT": "float",
    "BOOLEAN": "boolean",
    "STRING": "string",
    "BINARY": "binary",
    "TIMESTAMP": "timestamp",
    "DATE": "date",
    "VARIANT": "variant",
}
_SQL_WORDS: Final = {delta: sql for sql, delta in _WORDS.items()}
_DECIMAL: Final = re.compile(r"DECIMAL\(\d+, ?\d+\)", re.IGNORECASE)


def delta_fields(columns: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """The fields of a Delta schema for *columns* (name, type in SQL); all may be NULL.

    Raises: ValueError for a type that is none.
    """
    return [
        {"name": name, "type": delta_type(kind), "nullable": True, "metadata": {}}
        for name, kind in columns
    ]


def delta_type(sql: str) -> Any:
    """The SQL type *sql* as Delta's log says it. Raises: ValueError."""
    text = sql.strip()
    word, opening, rest = text.partition("<")
    word = word.strip().upper()
    if not opening:
        if _DECIMAL.fullmatch(text):
            return text.lower().replace(" ", "")
        if word not in _WORDS:
            raise ValueError(f"{sql!r} is not a type that a Delta table has")
        return _WORDS[word]
    if not rest.endswith(">"):
        raise ValueError(f"{sql!r} lacks its '>'")
    parts = _parts(rest[:-1])
    match word, parts:
        case "ARRAY", [element]:
            return {"type": "array", "elementType": delta_type(element), "containsNull": True}
        case "MAP", [key, value]:
            return {
                "type": "map",
                "keyType": delta_type(key),
                "valueType": delta_type(value),
                "valueContainsNull": True,
            }
        case "STRUCT", [*members]:
            pairs = [member.partition(":") for member in members]
            return {
                "type": "struct",
                "fields": delta_fields((name.strip(), kind) for name, _, kind in pairs),
            }
        case _:
            raise ValueError(f"{sql!r} is not a type that a Delta table has")


def _parts(text: str) -> list[str]:
    """*text* split at those commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def sql_type(delta: object) -> str:
    """A type of Delta's log in SQL, but for upper case as Spark's ``simpleString`` has it."""
    if isinstance(delta, str):
        return _SQL_WORDS.get(delta, delta.upper())
    match cast("Mapping[str, Any]", delta):
        case {"type": "array", "elementType": element}:
            return f"ARRAY<{sql_type(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"MAP<{sql_type(key)},{sql_type(value)}>"
        case {"type": "struct", "fields": fields}:
            members = (f"{field['name']}:{sql_type(field['type'])}" for field in fields)
            return f"STRUCT<{','.join(members)}>"
        case other:
            return str(other).upper()
