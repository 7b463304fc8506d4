"""The statements of the store as data: names, parameters, and the SQL that databases share.

Names are those of the JDBC persistence adapter where it has a statement for the job. A statement
that takes many rows is run once for all rows of a transaction. Its SQL differs between databases,
so each dialect has its own text. All other statements are written here with ``?``.
"""

from __future__ import annotations

import difflib
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from tidegate.spi import ConfigError


class StatementInfo(msgspec.Struct, frozen=True):
    """What a statement is for.

    Attributes:
        parameters: their names, in order.
        many: it is run for many rows at once.
        columns: how many columns a query gives, 0 for a statement that changes something.
        whole: it scans a whole table, once, at start, and may take its time.
    """

    parameters: tuple[str, ...] = ()
    many: bool = False
    columns: int = 0
    whole: bool = False


def _info(
    parameters: str = "", *, many: bool = False, columns: int = 0, whole: bool = False
) -> StatementInfo:
    return StatementInfo(tuple(parameters.split()), many, columns, whole)


#: Columns of a message, in the order of the parameters of ``add_message_statement``.
MESSAGE_COLUMNS: Final = (
    "sequence destination priority received_at expires_at client_id protocol content_type"
    " reply_to correlation_data headers lists body_bytes body message"
)
_LOG_COLUMNS: Final = (
    "ack_sequence sequence pending_list delivered_at acked_at client_id subscription protocol"
    " principal delivery_count outcome reason"
)
_SUBSCRIPTION_COLUMNS: Final = "pending_list owner client_id name filter durable qos selector value"

#: Every statement: its parameters, and what it gives.
STATEMENTS: Final[Mapping[str, StatementInfo]] = {
    # ---- the lease and the counters
    "find_lock_statement": _info(columns=9),
    "add_lock_statement": _info(),
    "lock_create_statement": _info("owner duration_ms fencing_token expires_at"),
    "lock_update_statement": _info("duration_ms fencing_token"),
    "lock_release_statement": _info("fencing_token"),
    "update_batch_statement": _info(
        "batch last_sequence last_list ack_last ack_released fencing_token batch_before"
    ),
    "find_version_statement": _info(columns=2),
    "add_version_statement": _info("version store_id"),
    # ---- a journal in front
    "find_journal_statement": _info(columns=4),
    "put_journal_statement": _info("journal place position is_open"),
    # ---- messages
    "add_message_statement": _info(MESSAGE_COLUMNS, many=True),
    "add_pending_statement": _info(
        "pending_list sequence delivery_count body_bytes shared", many=True
    ),
    "update_message_statement": _info("delivery_count pending_list sequence", many=True),
    "remove_pending_statement": _info("pending_list sequence", many=True),
    "remove_message_statement": _info("sequence", many=True),
    "delete_old_messages_statement": _info("sequence", many=True),
    "count_old_messages_statement": _info("sequence", many=True, columns=2),
    "count_released_messages_statement": _info("sequence", many=True, columns=2),
    "find_kept_messages_statement": _info("sequence", many=True, columns=1),
    "find_dead_messages_statement": _info("sequence", many=True, columns=1),
    "find_next_message_statement": _info("pending_list after limit bytes_max", columns=4),
    # ---- the acknowledged log
    "add_acknowledged_statement": _info(_LOG_COLUMNS, many=True),
    "find_acknowledged_statement": _info("after limit bytes_max", columns=14),
    "find_released_statement": _info("through limit", columns=2),
    "find_oldest_acknowledged_statement": _info("after", columns=1),
    "delete_acknowledged_statement": _info("through"),
    # ---- bindings
    "add_destination_statement": _info("id destination pending_list owner value", many=True),
    "remove_destination_statement": _info("id", many=True),
    "create_durable_sub_statement": _info(_SUBSCRIPTION_COLUMNS, many=True),
    "delete_subscription_statement": _info("pending_list", many=True),
    "add_session_statement": _info(
        "id session_key owner client_id expiry_interval disconnected_at value", many=True
    ),
    "remove_session_statement": _info("id", many=True),
    "add_inflight_statement": _info(
        "id direction packet_id session_key state sequence value", many=True
    ),
    "remove_inflight_statement": _info("id direction packet_id", many=True),
    "remove_all_inflight_statement": _info("id", many=True),
    "add_retained_statement": _info("id destination headers body message", many=True),
    "remove_retained_statement": _info("id", many=True),
    "add_duplicate_id_statement": _info("id sequence destination duplicate_id value", many=True),
    "forget_duplicate_ids_statement": _info("id through", many=True),
    "add_branch_statement": _info(
        "id branch_id state prepared_at principal pending_list value", many=True
    ),
    "remove_branch_statement": _info("id", many=True),
    "add_removed_statement": _info("pending_list", many=True),
    "delete_removed_statement": _info("pending_list"),
    "find_removed_messages_statement": _info("pending_list limit", columns=1),
    # ---- opening
    "find_all_destinations_statement": _info(columns=1, whole=True),
    "find_all_durable_subs_statement": _info(columns=1, whole=True),
    "find_all_sessions_statement": _info(columns=1, whole=True),
    "find_all_inflight_statement": _info(columns=1, whole=True),
    "find_all_retained_statement": _info(columns=2, whole=True),
    "find_all_duplicate_ids_statement": _info(columns=1, whole=True),
    "find_all_branches_statement": _info(columns=1, whole=True),
    "find_all_removed_statement": _info(columns=1, whole=True),
    "find_last_sequence_id_in_msgs_statement": _info(columns=1),
    "find_last_sequence_id_in_acks_statement": _info(columns=1),
    "destination_message_count_statement": _info(columns=4, whole=True),
    "shared_message_count_statement": _info(columns=1, whole=True),
    "find_shared_messages_statement": _info(columns=2, whole=True),
    "acknowledged_bytes_statement": _info(columns=1, whole=True),
    "database_size_statement": _info(columns=2),
}

#: Statements that insert rows (with a key: upsert), and those that delete rows by key.
_ADDED: Final[Mapping[str, tuple[str, str]]] = {
    "add_message_statement": ("message_table", ""),
    "add_pending_statement": ("acks_table", ""),
    "add_acknowledged_statement": ("acknowledged_table", ""),
    "add_destination_statement": ("destination_table", "id"),
    "create_durable_sub_statement": ("subscription_table", "pending_list"),
    "add_session_statement": ("session_table", "id"),
    "add_inflight_statement": ("inflight_table", "id, direction, packet_id"),
    "add_retained_statement": ("retained_table", "id"),
    "add_duplicate_id_statement": ("duplicate_id_table", "id, sequence"),
    "add_branch_statement": ("branch_table", "id"),
}
_DELETED: Final[Mapping[str, str]] = {
    "remove_pending_statement": "acks_table",
    "remove_destination_statement": "destination_table",
    "delete_subscription_statement": "subscription_table",
    "remove_session_statement": "session_table",
    "remove_inflight_statement": "inflight_table",
    "remove_all_inflight_statement": "inflight_table",
    "remove_retained_statement": "retained_table",
    "remove_branch_statement": "branch_table",
}


def by_form(
    insert: Callable[[str, Sequence[str], str], str], delete: Callable[[str, Sequence[str]], str]
) -> dict[str, str]:
    """The statements that differ between databases only in how many rows are written at once.

    Args: insert: makes one from table, columns and ``ON CONFLICT`` clause. delete: from table and key.
    """
    found = {
        "add_removed_statement": insert(
            "removed_table", ("pending_list",), " ON CONFLICT (pending_list) DO NOTHING"
        )
    }
    for name, (table, key) in _ADDED.items():
        columns = STATEMENTS[name].parameters
        others = [column for column in columns if column not in key.split(", ")]
        sets = ", ".join(f"{column} = excluded.{column}" for column in others)
        conflict = f" ON CONFLICT ({key}) DO UPDATE SET {sets}" if key else ""
        found[name] = insert(table, columns, conflict)
    for name, table in _DELETED.items():
        found[name] = delete(table, STATEMENTS[name].parameters)
    return found


#: Statements of the JDBC persistence adapter that are not needed here, and what replaces each.
RETIRED: Final[Mapping[str, str]] = {
    "find_message_sequence_id_statement": "a message is found by its sequence alone",
    "find_message_statement": "find_next_message_statement reads messages, a page at once",
    "find_all_messages_statement": "find_next_message_statement reads them in pages",
    "find_durable_sub_statement": "find_all_durable_subs_statement reads them once, at start",
    "update_last_ack_of_durable_sub_statement": "remove_pending_statement acknowledges",
    "find_all_durable_sub_messages_statement": "find_next_message_statement pages every list",
    "find_durable_sub_messages_statement": "find_next_message_statement pages every list",
    "next_durable_subscriber_message_statement": "find_next_message_statement pages every list",
    "durable_subscriber_message_count_statement": "destination_message_count_statement counts all",
    "last_acked_durable_subscriber_message_statement": "what is left in its list says it",
    "remove_all_messages_statement": "remove_pending_statement deletes in bounded steps",
    "remove_all_subscriptions_statement": "delete_subscription_statement takes many at once",
    "create_schema_statements": "use create_statements, by table",
    "drop_schema_statements": "drop the tables with the database's own tools",
}

#: No list holds message m any more. For a message of one list its removal says so; only messages
#: of several lists need the index on shared references.
UNPENDING: Final = (
    "(m.lists = 1 OR NOT EXISTS (SELECT 1 FROM {acks_table} a"
    " WHERE a.sequence = m.sequence AND a.shared = 1))"
)
#: No row of the acknowledged log needs message m any more.
UNLOGGED: Final = "NOT EXISTS (SELECT 1 FROM {acknowledged_table} l WHERE l.sequence = m.sequence)"


def of_old_messages(chosen: str) -> dict[str, str]:
    """The statements about messages that left a list; *chosen*: the condition that m is among the rows."""
    old = f"{chosen} AND {UNPENDING}"
    nobodys = f"{old} AND {UNLOGGED}"
    return {
        "remove_message_statement": f"DELETE FROM {{message_table}} AS m WHERE {old}",
        "delete_old_messages_statement": f"DELETE FROM {{message_table}} AS m WHERE {nobodys}",
        # Counts messages, and bytes that only the log still holds.
        "count_old_messages_statement": (
            "SELECT COUNT(*), COALESCE(SUM(CASE WHEN EXISTS (SELECT 1 FROM {acknowledged_table} l"
            " WHERE l.sequence = m.sequence) THEN m.body_bytes ELSE 0 END), 0)"
            f" FROM {{message_table}} m WHERE {old}"
        ),
        "count_released_messages_statement": (
            "SELECT COUNT(*), COALESCE(SUM(m.body_bytes), 0)"
            f" FROM {{message_table}} m WHERE {nobodys}"
        ),
        "find_dead_messages_statement": f"SELECT m.message FROM {{message_table}} m WHERE {nobodys}",
    }


#: SQL of every statement that takes one row, with ``?`` for parameters.
COMMON: Final[Mapping[str, str]] = {
    "find_lock_statement": (
        "SELECT owner, fencing_token, expires_at, {now}, batch, last_sequence, last_list,"
        " ack_last, ack_released FROM {lock_table} WHERE id = 1"
    ),
    "add_lock_statement": (
        "INSERT INTO {lock_table} (id, owner, fencing_token, expires_at, batch, last_sequence,"
        " last_list, ack_last, ack_released) VALUES (1, '', 0, 0, 0, 0, 0, 0, 0)"
        " ON CONFLICT (id) DO NOTHING"
    ),
    "lock_create_statement": (
        "UPDATE {lock_table} SET owner = ?, fencing_token = fencing_token + 1,"
        " expires_at = {now} + ? WHERE id = 1 AND fencing_token = ? AND expires_at = ?"
    ),
    "lock_update_statement": (
        "UPDATE {lock_table} SET expires_at = {now} + ? WHERE id = 1 AND fencing_token = ?"
    ),
    "lock_release_statement": (
        "UPDATE {lock_table} SET owner = '', expires_at = 0 WHERE id = 1 AND fencing_token = ?"
    ),
    "update_batch_statement": (
        "UPDATE {lock_table} SET batch = ?, last_sequence = ?, last_list = ?, ack_last = ?,"
        " ack_released = ? WHERE id = 1 AND fencing_token = ? AND batch = ?"
    ),
    "find_version_statement": "SELECT version, store_id FROM {version_table} WHERE id = 1",
    "add_version_statement": (
        "INSERT INTO {version_table} (id, version, store_id) VALUES (1, ?, ?)"
        " ON CONFLICT (id) DO NOTHING"
    ),
    "find_journal_statement": (
        "SELECT journal, place, position, is_open FROM {journal_table} WHERE id = 1"
    ),
    "put_journal_statement": (
        "INSERT INTO {journal_table} (id, journal, place, position, is_open)"
        " VALUES (1, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET journal = excluded.journal,"
        " place = excluded.place, position = excluded.position, is_open = excluded.is_open"
    ),
    # The limit applies to the references alone; a body is read only if it fits into the page.
    "find_next_message_statement": (
        "SELECT p.sequence, p.delivery_count, m.body, m.message FROM ("
        "SELECT x.sequence, x.delivery_count, ROW_NUMBER() OVER (ORDER BY x.sequence) AS place,"
        " SUM(x.body_bytes) OVER (ORDER BY x.sequence ROWS UNBOUNDED PRECEDING) AS total FROM ("
        "SELECT sequence, delivery_count, body_bytes FROM {acks_table}"
        " WHERE pending_list = ? AND sequence > ? ORDER BY sequence LIMIT ?) x) p"
        " JOIN {message_table} m ON m.sequence = p.sequence"
        " WHERE p.place = 1 OR p.total <= ? ORDER BY p.sequence"
    ),
    "find_acknowledged_statement": (
        "SELECT p.ack_sequence, p.sequence, p.pending_list, p.delivered_at, p.acked_at,"
        " p.client_id, p.subscription, p.protocol, p.principal, p.delivery_count, p.outcome,"
        " p.reason, m.body, m.message FROM ("
        "SELECT x.*, ROW_NUMBER() OVER (ORDER BY x.ack_sequence) AS place,"
        " SUM(x.body_bytes) OVER (ORDER BY x.ack_sequence ROWS UNBOUNDED PRECEDING) AS total"
        " FROM (SELECT l.*, n.body_bytes FROM {acknowledged_table} l"
        " JOIN {message_table} n ON n.sequence = l.sequence"
        " WHERE l.ack_sequence > ? ORDER BY l.ack_sequence LIMIT ?) x) p"
        " JOIN {message_table} m ON m.sequence = p.sequence"
        " WHERE p.place = 1 OR p.total <= ? ORDER BY p.ack_sequence"
    ),
    "find_released_statement": (
        "SELECT ack_sequence, sequence FROM {acknowledged_table} WHERE ack_sequence <= ?"
        " ORDER BY ack_sequence LIMIT ?"
    ),
    "find_oldest_acknowledged_statement": (
        "SELECT acked_at FROM {acknowledged_table} WHERE ack_sequence > ?"
        " ORDER BY ack_sequence LIMIT 1"
    ),
    "delete_acknowledged_statement": "DELETE FROM {acknowledged_table} WHERE ack_sequence <= ?",
    "delete_removed_statement": "DELETE FROM {removed_table} WHERE pending_list = ?",
    "find_removed_messages_statement": (
        "SELECT sequence FROM {acks_table} WHERE pending_list = ? ORDER BY sequence LIMIT ?"
    ),
    "find_all_destinations_statement": "SELECT value FROM {destination_table}",
    "find_all_durable_subs_statement": (
        "SELECT value FROM {subscription_table} ORDER BY pending_list"
    ),
    "find_all_sessions_statement": "SELECT value FROM {session_table}",
    "find_all_inflight_statement": (
        "SELECT value FROM {inflight_table} ORDER BY id, direction, packet_id"
    ),
    "find_all_retained_statement": "SELECT body, message FROM {retained_table}",
    "find_all_duplicate_ids_statement": "SELECT value FROM {duplicate_id_table} ORDER BY id, sequence",
    "find_all_branches_statement": "SELECT value FROM {branch_table}",
    "find_all_removed_statement": "SELECT pending_list FROM {removed_table}",
    "find_last_sequence_id_in_msgs_statement": "SELECT MAX(sequence) FROM {message_table}",
    "find_last_sequence_id_in_acks_statement": (
        "SELECT MAX(ack_sequence) FROM {acknowledged_table}"
    ),
    "destination_message_count_statement": (
        "SELECT pending_list, COUNT(*), SUM(body_bytes), SUM(shared) FROM {acks_table}"
        " GROUP BY pending_list"
    ),
    "shared_message_count_statement": (
        "SELECT COUNT(DISTINCT sequence) FROM {acks_table} WHERE shared = 1"
    ),
    "find_shared_messages_statement": (
        "SELECT sequence, COUNT(*) FROM {acks_table} WHERE shared = 1 GROUP BY sequence"
    ),
    "acknowledged_bytes_statement": (
        "SELECT COALESCE(SUM(m.body_bytes), 0) FROM"
        " (SELECT DISTINCT sequence FROM {acknowledged_table}) d"
        f" JOIN {{message_table}} m ON m.sequence = d.sequence WHERE {UNPENDING}"
    ),
}


def resolve(
    templates: Mapping[str, str], overrides: Mapping[str, str], words: Mapping[str, str]
) -> dict[str, str]:
    """The complete SQL of every statement.

    Args:
        templates: a dialect's; overrides: those of the configuration.
        words: the replacements of the placeholders (tables, types).
    Raises: ConfigError, naming the statement.
    """
    for name in overrides:
        if name in RETIRED:
            raise ConfigError(f"has no job here: {RETIRED[name]}", key=f"statements.{name}")
        if name not in STATEMENTS:
            near = difflib.get_close_matches(name, STATEMENTS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; docs/store-jdbc.md lists them"
            raise ConfigError(f"no such statement{hint}", key=f"statements.{name}")
    return {
        name: fill(overrides.get(name, templates[name]), words, f"statements.{name}")
        for name in STATEMENTS
    }


def fill(template: str, words: Mapping[str, str], key: str) -> str:
    """Put *words* into a template. Raises: ConfigError at *key* for unknown placeholders."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
        for name in names:
            if name not in words:
                known = ", ".join(sorted(words))
                raise ConfigError(f"unknown placeholder {{{name}}}; known: {known}", key=key)
        return template.format_map(words)
    except ValueError as error:
        raise ConfigError(f"is not a template: {error}", key=key) from error
