"""PostgreSQL's SQL: statements for many rows take one array for each column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tidegate_store_jdbc._options import TABLES
from tidegate_store_jdbc.database.adapter import Dialect
from tidegate_store_jdbc.database.schema import CREATE
from tidegate_store_jdbc.database.statements import COMMON, by_form, of_old_messages

#: Server-side types of the columns that take many rows at once.
_TYPES: Final = {
    "id": "bytea",
    "body": "bytea",
    "message": "bytea",
    "value": "bytea",
    "correlation_data": "bytea",
    "destination": "text",
    "client_id": "text",
    "owner": "text",
    "session_key": "text",
    "protocol": "text",
    "content_type": "text",
    "reply_to": "text",
    "headers": "text",
    "subscription": "text",
    "name": "text",
    "filter": "text",
    "selector": "text",
    "duplicate_id": "text",
    "branch_id": "text",
    "principal": "text",
    "reason": "text",
}
#: Appended to tables whose rows come and go: vacuum early, a little at a time.
_HOT: Final = (
    " WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000,"
    " autovacuum_vacuum_insert_scale_factor = 0.5)"
)


def _arrays(columns: Sequence[str]) -> str:
    return ", ".join(f"${n}::{_TYPES.get(name, 'bigint')}[]" for n, name in enumerate(columns, 1))


def _insert(table: str, columns: Sequence[str], conflict: str) -> str:
    return (
        f"INSERT INTO {{{table}}} ({', '.join(columns)})"
        f" SELECT * FROM unnest({_arrays(columns)}){conflict}"
    )


def _delete(table: str, key: Sequence[str]) -> str:
    if len(key) == 1:
        return f"DELETE FROM {{{table}}} WHERE {key[0]} = ANY({_arrays(key)})"
    match = " AND ".join(f"t.{name} = r.{name}" for name in key)
    return (
        f"DELETE FROM {{{table}}} t USING unnest({_arrays(key)}) r({', '.join(key)}) WHERE {match}"
    )


def _numbered(text: str) -> str:
    """``?`` as ``$1``, ``$2`` …"""
    parts = text.split("?")
    return "".join(f"{part}${n}" for n, part in enumerate(parts[:-1], 1)) + parts[-1]


def _by_key(text: str) -> str:
    """Keep the server from reading the whole inner table once, into a hash, instead of by key."""
    return re.sub(r"EXISTS \((SELECT 1 [^()]*)\)", r"EXISTS (\1 OFFSET 0)", text)


_STATEMENTS: Final[dict[str, str]] = {
    **{name: _numbered(text) for name, text in COMMON.items()},
    **by_form(_insert, _delete),
    **{
        name: _by_key(text)
        for name, text in of_old_messages("m.sequence = ANY($1::bigint[])").items()
    },
    "update_message_statement": (
        "UPDATE {acks_table} t SET delivery_count = r.delivery_count FROM"
        " unnest($1::bigint[], $2::bigint[], $3::bigint[])"
        " r(delivery_count, pending_list, sequence)"
        " WHERE t.pending_list = r.pending_list AND t.sequence = r.sequence"
    ),
    "find_kept_messages_statement": (
        "SELECT sequence FROM {message_table} WHERE sequence = ANY($1::bigint[])"
    ),
    "forget_duplicate_ids_statement": (
        "DELETE FROM {duplicate_id_table} t USING"
        f" unnest({_arrays(('id', 'through'))}) r(id, through)"
        " WHERE t.id = r.id AND t.sequence <= r.through"
    ),
    # Includes indexes, and bodies stored out of line.
    "database_size_statement": "SELECT CAST("
    + " + ".join(f"pg_total_relation_size('{{{table}}}')" for table in TABLES.values())
    + " AS bigint), 0",
}

DIALECT: Final = Dialect(
    statements=_STATEMENTS,
    create={
        **CREATE,
        # Most bodies are short or already compressed, so do not try to compress each.
        "message_table": (
            *CREATE["message_table"],
            "ALTER TABLE {message_table} ALTER COLUMN body SET STORAGE EXTERNAL",
        ),
    },
    types={
        "now": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS bigint)",
        "binary": "BYTEA",
        "container_name": "TEXT",
        "string_id": "TEXT",
        "text": "TEXT",
        "key": "BYTEA",
        "sequence": "BIGINT",
        "long": "BIGINT",
        "small": "SMALLINT",
        "keyed": "",
        "hot": _HOT,
        # One row that changes with every batch: free room on its page avoids index updates.
        "single": " WITH (fillfactor = 10)",
    },
    is_embedded=False,
)

assert set(TABLES.values()) == set(DIALECT.create)
