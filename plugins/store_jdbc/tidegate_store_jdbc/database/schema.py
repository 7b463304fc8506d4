"""The tables as data, and the schema version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.spi import StoreIOError
from tidegate_store_jdbc._options import TABLES, JdbcOptions, data_types, table_names
from tidegate_store_jdbc.database.adapter import Adapter, Dialect
from tidegate_store_jdbc.database.statements import fill

#: The schema version that this package writes and reads.
SCHEMA_VERSION: Final = 1

#: ``columns; primary key; table options`` of each, with the placeholders of
#: :mod:`tidegate_store_jdbc.database.statements`. A dialect fills in ``{keyed}`` (for a table kept
#: in key order) and ``{hot}`` (for one that changes all the time). Columns are NOT NULL unless they
#: say otherwise. ``{text}`` has no length limit: the gateway reads it, so it must not be cut.
_TABLES: Final[Mapping[str, str]] = {
    "version_table": "id INTEGER, version INTEGER, store_id {text}; id;",
    "lock_table": (
        "id INTEGER, owner {text}, fencing_token {long}, expires_at {long}, batch {long},"
        " last_sequence {sequence}, last_list {long}, ack_last {sequence},"
        " ack_released {sequence}; id; {single}"
    ),
    "message_table": (
        "sequence {sequence}, destination {container_name}, priority {small}, received_at {long},"
        " expires_at {long}, client_id {string_id}, protocol {text}, content_type {string_id},"
        " reply_to {container_name}, correlation_data {binary} NULL, headers {text} NULL,"
        " lists INTEGER, body_bytes {long}, body {binary}, message {binary}; sequence; {hot}"
    ),
    "acks_table": (
        "pending_list {long}, sequence {sequence}, delivery_count INTEGER, body_bytes {long},"
        " shared {small}; pending_list, sequence; {keyed}{hot}"
    ),
    "acknowledged_table": (
        "ack_sequence {sequence}, sequence {sequence}, pending_list {long}, delivered_at {long},"
        " acked_at {long}, client_id {text}, subscription {text}, protocol {text},"
        " principal {text}, delivery_count INTEGER, outcome {small}, reason {text}; ack_sequence;"
        " {hot}"
    ),
    "destination_table": (
        "id {key}, destination {container_name}, pending_list {long}, owner {string_id},"
        " value {binary}; id;"
    ),
    "subscription_table": (
        "pending_list {long}, owner {string_id}, client_id {string_id}, name {string_id},"
        " filter {container_name},"
        " durable {small}, qos {small}, selector {text}, value {binary}; pending_list;"
    ),
    "session_table": (
        "id {key}, session_key {string_id}, owner {string_id}, client_id {string_id},"
        " expiry_interval {long}, disconnected_at {long},"
        " value {binary}; id;"
    ),
    "inflight_table": (
        "id {key}, direction {small}, packet_id INTEGER, session_key {string_id}, state {small},"
        " sequence {sequence}, value {binary}; id, direction, packet_id; {keyed}{hot}"
    ),
    "retained_table": (
        "id {key}, destination {container_name}, headers {text} NULL, body {binary},"
        " message {binary}; id;"
    ),
    "journal_table": (
        "id INTEGER, journal {text}, place {text}, position {sequence}, is_open {small}; id;"
    ),
    "duplicate_id_table": (
        "id {key}, sequence {sequence}, destination {container_name}, duplicate_id {msg_id},"
        " value {binary}; id, sequence; {keyed}{hot}"
    ),
    "branch_table": (
        "id {key}, branch_id {string_id}, state {small}, prepared_at {long},"
        " principal {string_id}, pending_list {long}, value {binary}; id;"
    ),
    "removed_table": "pending_list {long}; pending_list;",
}
_INDEXES: Final = {
    "acks_table": "{acks_index} ON {acks_table} (sequence) WHERE shared = 1",
    "acknowledged_table": "{acknowledged_index} ON {acknowledged_table} (sequence)",
}


def _create(table: str) -> list[str]:
    columns, key, behind = _TABLES[table].split(";")
    defined = [
        column if column.endswith(" NULL") else f"{column} NOT NULL"
        for column in columns.split(", ")
    ]
    defined.append(f"PRIMARY KEY ({key.strip()})")
    made = f"CREATE TABLE IF NOT EXISTS {{{table}}} ({', '.join(defined)})"
    index = _INDEXES.get(table)
    return [made + behind, *([f"CREATE INDEX IF NOT EXISTS {index}"] if index else [])]


#: The statements that make each table and its indexes.
CREATE: Final[Mapping[str, Sequence[str]]] = {table: _create(table) for table in _TABLES}


def words(options: JdbcOptions, dialect: Dialect) -> dict[str, str]:
    """The replacement for each placeholder: names of tables and indexes, column types.

    Raises: ConfigError.
    """
    tables = table_names(options)
    found = {**dialect.types, **tables, **data_types(options)}
    found.setdefault("msg_id", found["string_id"])
    for table in ("acks", "acknowledged"):
        # An index lives in its table's schema, so its name takes no schema.
        found[f"{table}_index"] = tables[f"{table}_table"].rpartition(".")[2] + "_SEQ"
    return found


def create_statements(
    options: JdbcOptions, dialect: Dialect, known: Mapping[str, str]
) -> list[tuple[str, str]]:
    """(name, SQL) of everything that must exist. *known*: :func:`words`. Raises: ConfigError."""
    statements: list[tuple[str, str]] = []
    for key, placeholder in TABLES.items():
        name = f"create_statements.{key}"
        own = options.create_statements.get(key)
        if own is not None:
            templates: Sequence[str] = [part for part in own.split(";") if part.strip()]
        else:
            templates = dialect.create[placeholder]
        statements += [(name, fill(template, known, name)) for template in templates]
    return statements


async def read_version(adapter: Adapter) -> tuple[int, str]:
    """The schema's version and the store's identity.

    Raises: DatabaseError; StoreIOError for another version than this program's.
    """
    rows = await adapter.control("find_version_statement", (), fetch=True)
    if not rows:
        raise StoreIOError("the version table has no row; was it emptied by hand?")
    version = int(rows[0][0])
    if version != SCHEMA_VERSION:
        raise StoreIOError(
            f"the tables have schema version {version}, this gateway knows {SCHEMA_VERSION}; run the "
            "gateway that made them, or give this one tables of its own (table_prefix)"
        )
    return version, str(rows[0][1])
