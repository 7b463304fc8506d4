"""The tables, as data, the schema's version, and how an older one is brought up to date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.spi import ConfigError, StoreIOError
from tidegate_store_jdbc._options import TABLES, JdbcOptions, data_types, table_names
from tidegate_store_jdbc.database.adapter import Adapter, DatabaseError, Dialect
from tidegate_store_jdbc.database.statements import fill

#: What this room writes. Raised with every change that an older gateway would not understand.
SCHEMA_VERSION: Final = 2

#: From a version to the next: (name, SQL template) to run, in order, in one transaction.
MIGRATIONS: Final[Mapping[int, Sequence[tuple[str, str]]]] = {
    1: (),  # tables of duplicate ids and branches, which are created like any that is not there
}

#: Tables and indexes with the placeholders of :mod:`tidegate_store_jdbc.database.statements`; a dialect
#: fills in ``{keyed}`` (behind a table whose key is its order) and ``{hot}`` (behind one that
#: changes all the time). ``{text}`` is never limited: what the gateway reads and cannot cut.
CREATE: Final[Mapping[str, Sequence[str]]] = {
    "version_table": (
        (
            "CREATE TABLE IF NOT EXISTS {version_table} (id INTEGER NOT NULL PRIMARY KEY,"
            " version INTEGER NOT NULL, store_id {text} NOT NULL)"
        ),
    ),
    "lock_table": (
        (
            "CREATE TABLE IF NOT EXISTS {lock_table} (id INTEGER NOT NULL PRIMARY KEY,"
            " owner {text} NOT NULL, fencing_token {long} NOT NULL, expires_at {long} NOT NULL,"
            " batch {long} NOT NULL, last_sequence {sequence} NOT NULL, last_list {long} NOT NULL,"
            " ack_last {sequence} NOT NULL, ack_released {sequence} NOT NULL){single}"
        ),
    ),
    "message_table": (
        (
            "CREATE TABLE IF NOT EXISTS {message_table} (sequence {sequence} NOT NULL PRIMARY KEY,"
            " destination {container_name} NOT NULL, priority {small} NOT NULL,"
            " received_at {long} NOT NULL, expires_at {long} NOT NULL,"
            " client_id {string_id} NOT NULL, protocol {text} NOT NULL,"
            " content_type {string_id} NOT NULL, reply_to {container_name} NOT NULL,"
            " correlation_data {binary}, headers {text}, lists INTEGER NOT NULL,"
            " body_bytes {long} NOT NULL, body {binary} NOT NULL, message {binary} NOT NULL){hot}"
        ),
    ),
    "acks_table": (
        (
            "CREATE TABLE IF NOT EXISTS {acks_table} (pending_list {long} NOT NULL,"
            " sequence {sequence} NOT NULL, delivery_count INTEGER NOT NULL,"
            " body_bytes {long} NOT NULL, shared {small} NOT NULL,"
            " PRIMARY KEY (pending_list, sequence)){keyed}{hot}"
        ),
        "CREATE INDEX IF NOT EXISTS {acks_index} ON {acks_table} (sequence) WHERE shared = 1",
    ),
    "acknowledged_table": (
        (
            "CREATE TABLE IF NOT EXISTS {acknowledged_table} ("
            "ack_sequence {sequence} NOT NULL PRIMARY KEY, sequence {sequence} NOT NULL,"
            " pending_list {long} NOT NULL, delivered_at {long} NOT NULL, acked_at {long} NOT NULL,"
            " client_id {text} NOT NULL, subscription {text} NOT NULL,"
            " protocol {text} NOT NULL){hot}"
        ),
        "CREATE INDEX IF NOT EXISTS {acknowledged_index} ON {acknowledged_table} (sequence)",
    ),
    "destination_table": (
        (
            "CREATE TABLE IF NOT EXISTS {destination_table} (id {key} NOT NULL PRIMARY KEY,"
            " destination {container_name} NOT NULL, pending_list {long} NOT NULL,"
            " value {binary} NOT NULL)"
        ),
    ),
    "subscription_table": (
        (
            "CREATE TABLE IF NOT EXISTS {subscription_table} (pending_list {long} NOT NULL PRIMARY KEY,"
            " client_id {string_id} NOT NULL, name {string_id} NOT NULL,"
            " filter {container_name} NOT NULL, durable {small} NOT NULL, qos {small} NOT NULL,"
            " selector {text} NOT NULL, value {binary} NOT NULL)"
        ),
    ),
    "session_table": (
        (
            "CREATE TABLE IF NOT EXISTS {session_table} (id {key} NOT NULL PRIMARY KEY,"
            " client_id {string_id} NOT NULL, expiry_interval {long} NOT NULL,"
            " disconnected_at {long} NOT NULL, value {binary} NOT NULL)"
        ),
    ),
    "inflight_table": (
        (
            "CREATE TABLE IF NOT EXISTS {inflight_table} (id {key} NOT NULL,"
            " direction {small} NOT NULL, packet_id INTEGER NOT NULL, client_id {string_id} NOT NULL,"
            " state {small} NOT NULL, sequence {sequence} NOT NULL, value {binary} NOT NULL,"
            " PRIMARY KEY (id, direction, packet_id)){keyed}{hot}"
        ),
    ),
    "retained_table": (
        (
            "CREATE TABLE IF NOT EXISTS {retained_table} (id {key} NOT NULL PRIMARY KEY,"
            " destination {container_name} NOT NULL, headers {text}, body {binary} NOT NULL,"
            " message {binary} NOT NULL)"
        ),
    ),
    "journal_table": (
        (
            "CREATE TABLE IF NOT EXISTS {journal_table} (id INTEGER NOT NULL PRIMARY KEY,"
            " journal {text} NOT NULL, place {text} NOT NULL,"
            " position {sequence} NOT NULL, is_open {small} NOT NULL)"
        ),
    ),
    "duplicate_id_table": (
        (
            "CREATE TABLE IF NOT EXISTS {duplicate_id_table} (id {key} NOT NULL,"
            " sequence {sequence} NOT NULL, destination {container_name} NOT NULL,"
            " duplicate_id {msg_id} NOT NULL, value {binary} NOT NULL,"
            " PRIMARY KEY (id, sequence)){keyed}{hot}"
        ),
    ),
    "branch_table": (
        (
            "CREATE TABLE IF NOT EXISTS {branch_table} (id {key} NOT NULL PRIMARY KEY,"
            " branch_id {string_id} NOT NULL, state {small} NOT NULL,"
            " prepared_at {long} NOT NULL, principal {string_id} NOT NULL,"
            " pending_list {long} NOT NULL, value {binary} NOT NULL)"
        ),
    ),
    "removed_table": (
        "CREATE TABLE IF NOT EXISTS {removed_table} (pending_list {long} NOT NULL PRIMARY KEY)",
    ),
}


def words(options: JdbcOptions, dialect: Dialect) -> dict[str, str]:
    """What stands for each placeholder: names of tables and indexes, column types.

    Raises: ConfigError.
    """
    tables = table_names(options)
    found = {**dialect.types, **tables, **data_types(options)}
    found.setdefault("msg_id", found["string_id"])
    for table in ("acks", "acknowledged"):
        # An index lives in its table's schema and takes no schema of its own.
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


async def migrate(
    adapter: Adapter,
    known: Mapping[str, str],
    found: int,
    *,
    wanted: int = SCHEMA_VERSION,
    migrations: Mapping[int, Sequence[tuple[str, str]]] = MIGRATIONS,
) -> bool:
    """Bring a schema of version *found* to *wanted*; the caller holds the lock.

    Each step is one transaction that also notes its version, so an interrupted one goes on where it
    was. Returns: whether anything was done.
    Raises: StoreIOError for a schema that is newer, or that no migration leads away from.
    """
    if found > wanted:
        raise StoreIOError(
            f"the tables have schema version {found}, this gateway knows {wanted}; "
            "run the newer gateway, or give this one tables of its own (table_prefix)"
        )
    for version in range(found, wanted):
        if version not in migrations:
            raise StoreIOError(f"no migration from schema version {version}")
        steps = [(name, fill(text, known, name)) for name, text in migrations[version]]
        note = f"UPDATE {known['version_table']} SET version = {version + 1} WHERE id = 1"
        try:
            await adapter.create([*steps, ("update_version_statement", note)])
        except DatabaseError as error:
            if error.store_error("").retryable:
                raise
            raise ConfigError(
                f"migration from version {version} failed: {error}", key=error.statement
            ) from error
    return found < wanted
