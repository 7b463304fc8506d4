"""The SQL message store: SQLite through aiosqlite, PostgreSQL through asyncpg.

:class:`JdbcStore` can stand behind a journal: ``acquire``, ``carry_out`` and ``recover`` are for that
(the room store_journaled uses them).

A third party adds a database with an entry point of the group :data:`ADAPTERS_GROUP` or with
:func:`register_adapter`; what an adapter must do is
:class:`Adapter`, and the SQL it must know is listed in :data:`STATEMENTS`.
"""

from __future__ import annotations

from tidegate_store_jdbc._options import JdbcOptions
from tidegate_store_jdbc._store import JdbcStore
from tidegate_store_jdbc._writer import Work
from tidegate_store_jdbc.database.adapter import (
    ADAPTERS_GROUP,
    Adapter,
    AdapterContext,
    AdapterFactory,
    DatabaseCorruptError,
    DatabaseError,
    DatabaseFullError,
    DatabaseUnavailableError,
    Dialect,
    FenceError,
    Look,
    Row,
    Sizes,
    Step,
    StepResult,
    adapter_factory,
    register_adapter,
)
from tidegate_store_jdbc.database.secrets import Credentials
from tidegate_store_jdbc.database.statements import STATEMENTS
from tidegate_store_jdbc.database.url import DatabaseUrl
from tidegate_store_jdbc.rows.batch import Plan
from tidegate_store_jdbc.rows.codec import BodyElsewhere, logged_message
from tidegate_store_jdbc.transactions.recovery import Mark, lost_journal

__all__ = [
    "ADAPTERS_GROUP",
    "STATEMENTS",
    "Adapter",
    "AdapterContext",
    "AdapterFactory",
    "BodyElsewhere",
    "Credentials",
    "DatabaseCorruptError",
    "DatabaseError",
    "DatabaseFullError",
    "DatabaseUnavailableError",
    "DatabaseUrl",
    "Dialect",
    "FenceError",
    "JdbcOptions",
    "JdbcStore",
    "Look",
    "Mark",
    "Plan",
    "Row",
    "Sizes",
    "Step",
    "StepResult",
    "Work",
    "adapter_factory",
    "logged_message",
    "lost_journal",
    "register_adapter",
]
