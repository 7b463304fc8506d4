"""SQLite's SQL. A statement with one group of values is run with hundreds of them, see ``sqlite``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate_store_jdbc.database.adapter import Dialect
from tidegate_store_jdbc.database.schema import CREATE
from tidegate_store_jdbc.database.statements import COMMON, by_form, of_old_messages


def _insert(table: str, columns: Sequence[str], conflict: str) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {{{table}}} ({', '.join(columns)}) VALUES ({marks}){conflict}"


def _delete(table: str, key: Sequence[str]) -> str:
    if len(key) == 1:
        return f"DELETE FROM {{{table}}} WHERE {key[0]} IN (VALUES (?))"
    # Not IN (VALUES …): with more than one row SQLite would scan the whole table.
    marks = ", ".join("?" * len(key))
    values = f"(SELECT * FROM (VALUES ({marks})))"
    return f"DELETE FROM {{{table}}} WHERE ({', '.join(key)}) IN {values}"


_STATEMENTS: Final[dict[str, str]] = {
    **COMMON,
    **by_form(_insert, _delete),
    **of_old_messages("m.sequence IN (VALUES (?))"),
    "update_message_statement": (
        "UPDATE {acks_table} SET delivery_count = ? WHERE pending_list = ? AND sequence = ?"
    ),
    "find_kept_messages_statement": (
        "SELECT sequence FROM {message_table} WHERE sequence IN (VALUES (?))"
    ),
    "forget_duplicate_ids_statement": (
        "DELETE FROM {duplicate_id_table} WHERE id = ? AND sequence <= ?"
    ),
    "database_size_statement": (
        "SELECT page_count * page_size, freelist_count * page_size"
        " FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()"
    ),
}

DIALECT: Final = Dialect(
    statements=_STATEMENTS,
    create=CREATE,
    types={
        "now": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
        "binary": "BLOB",
        "container_name": "TEXT",
        "string_id": "TEXT",
        "text": "TEXT",
        "key": "BLOB",
        "sequence": "INTEGER",
        "long": "INTEGER",
        "small": "INTEGER",
        "keyed": " WITHOUT ROWID",
        "hot": "",
        "single": "",
    },
    is_embedded=True,
)
