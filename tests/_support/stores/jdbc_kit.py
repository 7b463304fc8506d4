"""What the SQL store's tests share: messages, stores on either database, a proxy that breaks."""

from __future__ import annotations

import dataclasses
import hashlib
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest
from numbered import ack, add
from postgres_server import PostgresServer

from tidegate.spi import (
    AddDestination,
    Durability,
    MessageStore,
    MessageStoreFactory,
    Operation,
    RecoveredState,
    StoreCapabilities,
    StoreContext,
    WriteBatch,
)
from tidegate.testing._harness import run_scenario
from tidegate.testing.store_kit import StoreConformance
from tidegate_store_jdbc import STATEMENTS, JdbcOptions, JdbcStore

T = TypeVar("T")


class LongModel(StoreConformance):
    """The kit, for one more variant of a store: its model, which takes long, with the long tests.

    A method of its own: a mark on the kit's would hold for every class that has it.
    """

    @pytest.mark.long
    def test_any_sequence_of_operations_gives_what_the_reference_gives(
        self,
        store_factory: MessageStoreFactory,
        store_options: object,
        tmp_path: Path,
        capabilities: StoreCapabilities,
        machine_settings: hypothesis.settings,
    ) -> None:
        super().test_any_sequence_of_operations_gives_what_the_reference_gives(
            store_factory, store_options, tmp_path, capabilities, machine_settings
        )


ANY_SIZE = 1 << 40
#: What tests made: one that failed left its store open, see ``conftest.py``.
STORES: list[JdbcStore] = []
QUEUE = AddDestination("queue://q", 1)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run on an event loop of its own, with a time limit; unhandled errors fail the test."""
    return run_scenario(coroutine)


def prefix(directory: Path) -> str:
    """Tables of one directory's own in a shared database."""
    return f"T{hashlib.sha256(str(directory).encode()).hexdigest()[:12]}_"


def postgres_options(server: PostgresServer, directory: Path, **changes: Any) -> JdbcOptions:
    """A store on *server* whose tables belong to *directory*."""
    values: dict[str, Any] = {
        "url": server.url,
        "user": "tidegate",
        "password_file": str(server.password_file),
        "table_prefix": prefix(directory),
        "lock_policy": "fail",
        "connections_max": 2,
    }
    return JdbcOptions(**{**values, **changes})


def new_store(
    where: Path,
    options: JdbcOptions | None = None,
    *,
    keep: bool = False,
    lost: Callable[[str], None] = lambda _problem: None,
    **changes: Any,
) -> JdbcStore:
    """A store that is not open; *changes* are options."""
    made = dataclasses.replace(options or JdbcOptions(), **changes)
    store = JdbcStore(StoreContext(where, "test", keep_acknowledged=keep, lost=lost), made)
    STORES.append(store)
    return store


async def opened(
    where: Path, options: JdbcOptions | None = None, **changes: Any
) -> tuple[JdbcStore, RecoveredState]:
    """A store and what opening it told."""
    store = new_store(where, options, **changes)
    return store, await store.open()


async def write(store: MessageStore, *operations: Operation, synced: bool = True) -> None:
    """Write one batch."""
    durability = Durability.SYNCED if synced else Durability.WRITTEN
    await store.write(WriteBatch(list(operations), durability))


async def pending(store: MessageStore, pending_list: int = 1) -> list[int]:
    """Sequences in a list."""
    page = await store.page_in(pending_list, 0, 1_000_000, ANY_SIZE)
    return [stored.sequence for stored in page]


def sqlite_rows(where: Path, query: str) -> Sequence[tuple[Any, ...]]:
    """Ask the store's SQLite file as an operator would."""
    connection = sqlite3.connect(where / "tidegate.db")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


#: Statements of the start, which read tables from end to end on purpose: none holds bodies that are
#: pending, except for the few retained ones. And the size, which reads none.
WHOLE_TABLES = {name for name, info in STATEMENTS.items() if info.whole} | {
    "database_size_statement"
}


def sample_rows(statement: str, count: int) -> list[tuple[Any, ...]]:
    """Parameters that a statement may be run with."""
    info = STATEMENTS[statement]
    if not info.many:
        count = 1
    return [
        tuple(_sample(name, number) for name in info.parameters) for number in range(1, count + 1)
    ]


def _sample(name: str, number: int) -> object:
    if name in ("id", "value", "body", "message", "correlation_data"):
        return b"%016d" % number
    if name in (
        "destination", "client_id", "protocol", "content_type", "reply_to", "headers", "owner",
        "subscription", "name", "filter", "selector", "store_id", "journal", "place", "duplicate_id",
        "branch_id", "principal", "reason", "session_key",
    ):  # fmt: skip
        return f"{name} {number}"
    if name in ("durable", "qos", "shared", "direction", "state", "priority"):
        return 1
    return number


async def filled(store: MessageStore, count: int = 2000) -> None:
    """Many messages in two lists, some of them shared and some acknowledged."""
    await write(store, QUEUE, AddDestination("queue://r", 2))
    for first in range(1, count, 500):
        numbers = range(first, first + 500)
        await write(store, *[add(n, 1, 2) if n % 5 == 0 else add(n, 1) for n in numbers])
    await write(store, ack(*range(1, count // 2)))
