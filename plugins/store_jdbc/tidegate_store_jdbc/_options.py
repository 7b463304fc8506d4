"""The options of ``[store] plugin = "jdbc"``.

Names, units and defaults are those of the JDBC stores of ActiveMQ, Artemis and Open Message Queue in
snake_case, wherever they have one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final

from tidegate.spi import ConfigError, Kind, option
from tidegate.spi.machine.lease import AUTO, FAIL, WAIT, check_lease

#: Longest table name with prefix and suffix: PostgreSQL cuts longer names silently.
TABLE_NAME_MAX: Final = 48

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PREFIX: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*\.)?([A-Za-z_][A-Za-z0-9_]*)?")


@dataclass(frozen=True, slots=True, repr=False)
class JdbcOptions:
    """Options of the SQL store."""

    def __repr__(self) -> str:
        """Where it is, and no secrets: a traceback or a log may show this."""
        place = self.url.rpartition("@")[2].partition("?")[0]
        return f"{type(self).__name__}({place or 'sqlite'})"

    url: str = option(
        "",
        help="The database: 'sqlite:///relative.db' (below the data directory), "
        "'sqlite:////absolute.db' or 'postgresql://host:5432/database'. Left empty: "
        "'sqlite:///tidegate.db', created at the first start.",
    )
    adapter: str = option(
        "",
        help="Name of the adapter that talks to the database. Left empty: the one registered for "
        "the scheme of the url. Name it to use an adapter of your own for a known scheme.",
    )
    user: str = option(
        "",
        help="Database user. Left empty: from password_file, from the environment variable "
        "TIDEGATE_STORE_USER, or from the url.",
    )
    password: str = option(
        "",
        help="Database password in clear text: everyone who can read this file can read it, "
        "so the log warns about it. Use password_file or the environment variable "
        "TIDEGATE_STORE_PASSWORD instead.",
    )
    password_file: str = option(
        "",
        help="File with 'user=' and 'password=' lines (or just the password), below the data "
        "directory unless absolute. Refused when anyone but its owner can read it.",
    )
    needpassword: bool = option(
        False,
        help="The database asks for a password. If none is found anywhere, the gateway asks "
        "for it on the terminal; without a terminal it does not start.",
    )
    mask_key_file: str = option(
        "",
        help="File with the key of masked values, ENC(…), below the data directory unless absolute; "
        "made by 'tidegate store mask --new-key'. Refused when anyone but its owner can read it. "
        "Left empty: the environment variable TIDEGATE_STORE_KEY.",
    )
    create_tables_on_startup: bool = option(
        True,
        help="Create missing tables; existing ones are used. With false a missing table is "
        "an error: for databases where the gateway's user may not create any.",
    )
    table_prefix: str = option(
        "",
        help="Prefix of every table name, so that several gateways can share a database; "
        "may begin with a schema ('mq.A_').",
    )
    brokerid: str = option(
        "",
        help="Suffix of every table name (letters and digits): the other way for several "
        "gateways to share a database.",
    )
    message_table_name: str = option("TIDEGATE_MSGS", help="Table of the messages.")
    durable_sub_acks_table_name: str = option(
        "TIDEGATE_ACKS",
        help="Table of what is not acknowledged yet: one row for each message and each queue or "
        "stored subscription that still holds it.",
    )
    lock_table_name: str = option(
        "TIDEGATE_LOCK", help="Table of the lease row: who owns the store, until when."
    )
    acknowledged_table_name: str = option(
        "TIDEGATE_ACKLOG", help="Table of the acknowledged log that sinks read."
    )
    destination_table_name: str = option("TIDEGATE_DESTS", help="Table of queues and topics.")
    subscription_table_name: str = option("TIDEGATE_SUBS", help="Table of stored subscriptions.")
    session_table_name: str = option("TIDEGATE_SESSIONS", help="Table of MQTT sessions.")
    inflight_table_name: str = option("TIDEGATE_INFLIGHT", help="Table of packet ids in flight.")
    retained_table_name: str = option("TIDEGATE_RETAINED", help="Table of retained messages.")
    duplicate_id_table_name: str = option(
        "TIDEGATE_DUPLICATES", help="Table of duplicate ids (`_AMQ_DUPL_ID`)."
    )
    branch_table_name: str = option(
        "TIDEGATE_BRANCHES", help="Table of prepared branches of distributed transactions (XA)."
    )
    removed_table_name: str = option(
        "TIDEGATE_REMOVED", help="Table of lists that are gone and not yet cleaned up."
    )
    journal_table_name: str = option(
        "TIDEGATE_JOURNAL",
        help="Table that says which journal stands in front of the database, and how much "
        "of it is already in the database (store-journaled).",
    )
    version_table_name: str = option(
        "TIDEGATE_VERSION", help="Table of the schema's version and the store's identity."
    )
    binary_data_type: str = option(
        "",
        help="Column type of bodies and encoded values. Left empty: the adapter's (BLOB, BYTEA).",
    )
    container_name_data_type: str = option(
        "",
        help="Column type of destination names. Left empty: the adapter's (TEXT). Longer values "
        "are cut to the n of a VARCHAR(n); the complete ones are kept elsewhere.",
    )
    string_id_data_type: str = option(
        "", help="Column type of client ids and other names; see container_name_data_type."
    )
    msg_id_data_type: str = option(
        "",
        help="Column type of the message ids that producers give (duplicate ids); see "
        "container_name_data_type.",
    )
    sequence_data_type: str = option(
        "", help="Column type of sequences (64 bits). Left empty: the adapter's."
    )
    long_data_type: str = option(
        "", help="Column type of times and sizes (64 bits). Left empty: the adapter's."
    )
    small_data_type: str = option(
        "", help="Column type of small numbers such as priorities. Left empty: the adapter's."
    )
    text_data_type: str = option(
        "",
        help="Column type of headers and selectors, of any length. Left empty: the adapter's (TEXT).",
    )
    key_data_type: str = option(
        "",
        help="Column type of the keys that names are found by (16 bytes). Left empty: the adapter's "
        "(BLOB, BYTEA).",
    )
    statements: dict[str, str] = option(
        {},
        help="SQL that replaces the adapter's own, by the statement's name; checked at start. "
        "docs/store-jdbc.md lists the names.",
    )
    create_statements: dict[str, str] = option(
        {},
        help="SQL that creates a table, by the option that names the table, for example "
        "message_table_name = 'CREATE TABLE {message_table} (…)'.",
    )
    use_database_lock: bool = option(
        True,
        help="Own the store by a lease that is renewed, so that a second gateway waits or "
        "refuses. With false, the gateway that opened the store last owns it; the one "
        "before can no longer write.",
    )
    lock_renew_period: float = option(
        2.0,
        help="Time between renewals of the lease.",
        kind=Kind.DURATION,
        minimum=0.01,
        maximum=3600,
    )
    lock_expiration: float = option(
        20.0,
        help="Time after which a lease that was not renewed is free, on the database's clock: how "
        "long a standby waits after its master died.",
        kind=Kind.DURATION,
        minimum=0.05,
        maximum=86400,
    )
    lock_policy: str = option(
        AUTO,
        help="When another gateway holds the lock at start: 'wait' as its standby, 'fail' at once, "
        "'auto': wait on a database server, fail on an embedded database.",
        choices=(AUTO, WAIT, FAIL),
    )
    network_timeout: float = option(
        20.0,
        help="Limit of one exchange with the database, including connecting. Beyond it the "
        "connection is given up and made anew. At most lock_expiration.",
        kind=Kind.DURATION,
        minimum=0.05,
        maximum=3600,
    )
    reconnect_wait: float = option(
        30.0,
        help="How long confirmations wait for a database that is gone. After that publishes are "
        "refused until it is back; acknowledgements are kept and written then.",
        kind=Kind.DURATION,
        maximum=86400,
        minimum=0.0,
        zero="refuse at once",
    )
    connections_max: int = option(
        4,
        help="Connections that read pages in parallel. The store has two more, for writing "
        "and for the lease, and on a server one for operators' queries.",
        minimum=1,
        maximum=100,
    )
    cleanup_period: float = option(
        300.0,
        help="Time between clean-ups of what is left of removed destinations and subscriptions.",
        kind=Kind.DURATION,
        minimum=0.01,
        maximum=86400,
    )
    cleanup_limit: int = option(
        1000,
        help="Rows that one transaction of a clean-up deletes at most, so that it never keeps "
        "clients waiting for long.",
        minimum=1,
        maximum=100_000,
    )


#: The options that name a table, and the placeholder that stands for it in SQL.
TABLES: Final = {
    field.name: field.name.removeprefix("durable_sub_").removesuffix("_name")
    for field in fields(JdbcOptions)
    if field.name.endswith("_table_name")
}


def table_names(options: JdbcOptions) -> dict[str, str]:
    """Each table's full name by its placeholder. Raises: ConfigError."""
    if not _PREFIX.fullmatch(options.table_prefix):
        raise ConfigError(
            "may hold letters, digits and '_', after an optional schema and a dot",
            key="table_prefix",
        )
    if not re.fullmatch(r"[A-Za-z0-9]*", options.brokerid):
        raise ConfigError("may hold letters and digits only", key="brokerid")
    suffix = f"_{options.brokerid}" if options.brokerid else ""
    names: dict[str, str] = {}
    for key, placeholder in TABLES.items():
        own: str = getattr(options, key)
        if not _NAME.fullmatch(own):
            raise ConfigError(f"{own!r} is not a table name (letters, digits, '_')", key=key)
        name = f"{options.table_prefix}{own}{suffix}"
        if len(name.rpartition(".")[2]) > TABLE_NAME_MAX:
            raise ConfigError(f"{name!r} is longer than {TABLE_NAME_MAX} characters", key=key)
        if name.lower() in {other.lower() for other in names.values()}:
            raise ConfigError(f"{name!r} is the name of another table, too", key=key)
        names[placeholder] = name
    return names


_DEFAULTS: Final = {field.name: field.default for field in fields(JdbcOptions)}


def check(options: JdbcOptions) -> None:
    """Refuse values that cannot work together. Raises: ConfigError."""
    table_names(options)
    if options.use_database_lock:
        _check_lease(options)
    else:
        for key in ("lock_policy", "lock_renew_period", "lock_expiration"):
            if getattr(options, key) != _DEFAULTS[key]:
                raise ConfigError("does nothing without use_database_lock", key=key)
    for key in options.create_statements:
        if key not in TABLES:
            known = ", ".join(sorted(TABLES))
            raise ConfigError(f"no such table; known: {known}", key=f"create_statements.{key}")


def _check_lease(options: JdbcOptions) -> None:
    check_lease(options.lock_renew_period, options.lock_expiration)
    if options.network_timeout > options.lock_expiration:
        raise ConfigError(
            f"{options.network_timeout:g} s is longer than lock_expiration "
            f"({options.lock_expiration:g} s): the lease would end during one exchange",
            key="network_timeout",
        )


def data_types(options: JdbcOptions) -> dict[str, str]:
    """The column types that the options set, by placeholder (``binary``, ``string`` …)."""
    suffix = "_data_type"
    found: dict[str, str] = {}
    for field in fields(options):
        if field.name.endswith(suffix):
            value: str = getattr(options, field.name)
            if value:
                found[field.name.removesuffix(suffix)] = value
    return found
