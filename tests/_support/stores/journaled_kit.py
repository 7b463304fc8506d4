"""What the tests of the journaled store share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jdbc_kit import postgres_options, sqlite_rows
from postgres_server import PostgresServer

from tidegate.spi import Durability, Operation, RecoveredState, StoreContext, WriteBatch
from tidegate_store_jdbc import Plan, Step
from tidegate_store_journaled import JournaledOptions, JournaledStore

#: No checkpoint comes by itself.
NEVER = 3600.0


def options(server: PostgresServer | None = None, where: Path | None = None, **changes: Any) -> Any:
    """Options for SQLite or, with a server, for tables of the directory's own there."""
    values: dict[str, Any] = {"checkpoint_interval": NEVER, "connections_max": 2}
    if server is not None:
        assert where is not None
        values = {**dataclasses.asdict(postgres_options(server, where)), **values}
    return JournaledOptions(**{**values, **changes})


def new_store(where: Path, made: JournaledOptions, *, keep: bool = False) -> JournaledStore:
    """A store that is not open."""
    return JournaledStore(StoreContext(where, "test", keep_acknowledged=keep), made)


async def opened(
    where: Path, made: JournaledOptions | None = None, *, keep: bool = False, **changes: Any
) -> tuple[JournaledStore, RecoveredState]:
    """A store and what opening it told."""
    store = new_store(where, made or options(**changes), keep=keep)
    return store, await store.open()


async def write(store: JournaledStore, *operations: Operation, synced: bool = True) -> None:
    """Write one batch."""
    durability = Durability.SYNCED if synced else Durability.WRITTEN
    await store.write(WriteBatch(list(operations), durability))


async def checkpoint(store: JournaledStore) -> None:
    """What the interval would start."""
    await store._checkpoint()  # pyright: ignore[reportPrivateUsage]


async def crash(store: JournaledStore) -> None:
    """End like a process that is killed: nothing more is written, locks are let go."""
    worker = store._worker  # pyright: ignore[reportPrivateUsage]
    assert worker is not None
    worker.cancel()
    await store._front.close()  # pyright: ignore[reportPrivateUsage]
    await store._database.close()  # pyright: ignore[reportPrivateUsage]


def steps_of(store: JournaledStore) -> list[Step]:
    """Every step that the database is told from now on, the fence's left out."""
    adapter: Any = store._database._adapter  # pyright: ignore[reportPrivateUsage]
    told: list[Step] = []
    transaction = adapter.transaction

    async def recording(steps: Sequence[Step], *, synced: bool) -> object:
        told.extend(step for step in steps if step.statement != "update_batch_statement")
        return await transaction(steps, synced=synced)

    adapter.transaction = recording
    return told


def message_rows(where: Path) -> int:
    """Messages in the SQLite database."""
    return int(sqlite_rows(where, "SELECT COUNT(*) FROM TIDEGATE_MSGS")[0][0])


def plan_of(store: JournaledStore) -> Plan:
    """What the next checkpoint would write."""
    return store._current.plan  # pyright: ignore[reportPrivateUsage]
