"""What the database's errors become: retryable or not, as the contract has it; nothing is told twice."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from jdbc_kit import QUEUE, opened, pending, write
from numbered import ack, add

from tidegate.spi import (
    CorruptRecordError,
    MessageStore,
    MessageStoreFactory,
    StoreContext,
    StoreError,
    StoreFullError,
    StoreIOError,
    StoreUnavailableError,
)
from tidegate.testing.store_kit import StoreFullConformance
from tidegate_store_jdbc import (
    Adapter,
    AdapterContext,
    DatabaseCorruptError,
    DatabaseError,
    DatabaseFullError,
    DatabaseUnavailableError,
    JdbcOptions,
    JdbcStore,
    Row,
    Step,
    adapter_factory,
    register_adapter,
)
from tidegate_store_journaled import JournaledOptions, JournaledStore


def _meet(problems: dict[str, list[DatabaseError | None]], *statements: str) -> None:
    for statement in statements:
        problem = problems[statement].pop(0) if problems.get(statement) else None
        if problem is not None:
            raise problem


class Troubled:
    """SQLite that fails as it is told.

    Attributes: problems: what the next calls that run a statement raise, None: that one goes well.
        after: the same, raised when it was carried out. room: see ``_limit``.
    """

    def __init__(self, context: AdapterContext) -> None:
        self._inner: Adapter = adapter_factory("sqlite", "")(context)
        self.problems: dict[str, list[DatabaseError | None]] = {}
        self.after: dict[str, list[DatabaseError | None]] = {}
        self.room: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def transaction(self, steps: Sequence[Step], *, synced: bool) -> list[Any]:
        names = [step.statement for step in steps]
        await self._limit()
        _meet(self.problems, *names)
        results = await self._inner.transaction(steps, synced=synced)
        _meet(self.after, *names)
        return results

    async def fetch(self, statement: str, row: Row) -> Sequence[Row]:
        _meet(self.problems, statement)
        return await self._inner.fetch(statement, row)

    async def control(self, statement: str, row: Row, *, fetch: bool) -> Any:
        _meet(self.problems, statement)
        return await self._inner.control(statement, row, fetch=fetch)

    async def _limit(self) -> None:
        """The file may grow by *room* bytes: what SQLite itself calls full."""
        if self.room is not None:
            used = (await self._inner.fetch("database_size_statement", ()))[0][0]
            pages = (used + self.room) // 4096
            self.room = None
            await self._inner.create([("limit", f"PRAGMA max_page_count = {pages}")])


@pytest.fixture
def made() -> list[Troubled]:
    """The adapters that were made with ``adapter = "troubled"``."""
    found: list[Troubled] = []

    def factory(context: AdapterContext) -> Any:
        found.append(Troubled(context))
        return found[-1]

    register_adapter("troubled", factory)
    return found


async def troubled(where: Path, made: list[Troubled], **changes: Any) -> tuple[JdbcStore, Troubled]:
    store, _ = await opened(where, JdbcOptions(adapter="troubled", **changes))
    await write(store, QUEUE, add(1), add(2))
    return store, made[-1]


LOST = DatabaseUnavailableError("no route")
FULL = DatabaseFullError("disk full")
OTHER = DatabaseError("refused")
CORRUPT = DatabaseCorruptError("malformed")


@pytest.mark.parametrize(
    ("problem", "kind"),
    [(LOST, StoreUnavailableError), (FULL, StoreFullError), (OTHER, StoreIOError), (CORRUPT, StoreIOError)],
)  # fmt: skip
async def test_a_batch_is_refused_for_now_or_for_good(
    tmp_path: Path, made: list[Troubled], problem: DatabaseError, kind: type[StoreError]
) -> None:
    store, adapter = await troubled(tmp_path, made, reconnect_wait=0.0)
    adapter.problems["update_batch_statement"] = [problem]
    with pytest.raises(kind) as caught:
        await write(store, add(3))
    assert type(caught.value) is kind
    if caught.value.retryable:
        async with asyncio.timeout(60):
            while not store.statistics().writable:
                await asyncio.sleep(0.01)
        await write(store, add(3), ack(1))
        assert await pending(store) == [2, 3]
    else:
        with pytest.raises(StoreIOError):
            await write(store, add(4))
    await store.close()


@pytest.mark.parametrize(
    ("problem", "kind"),
    [(FULL, StoreFullError), (OTHER, StoreIOError), (CORRUPT, CorruptRecordError)],
)
async def test_reading_says_what_went_wrong_and_may_be_repeated(
    tmp_path: Path, made: list[Troubled], problem: DatabaseError, kind: type[StoreError]
) -> None:
    store, adapter = await troubled(tmp_path, made)
    adapter.problems["find_next_message_statement"] = [problem]
    with pytest.raises(kind, match="find_next_message_statement") as caught:
        await pending(store)
    assert type(caught.value) is kind
    assert await pending(store) == [1, 2]
    await store.close()


@pytest.mark.parametrize(
    ("problem", "kind"),
    [(LOST, StoreUnavailableError), (FULL, StoreFullError), (OTHER, StoreIOError), (CORRUPT, CorruptRecordError)],
)  # fmt: skip
async def test_a_start_says_whether_a_later_one_may_go_well(
    tmp_path: Path, made: list[Troubled], problem: DatabaseError, kind: type[StoreError]
) -> None:
    store, _ = await troubled(tmp_path, made)
    await store.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Troubled, "connect", lambda self: _raise(problem), raising=False)
        with pytest.raises(kind, match="sqlite:///") as caught:
            await opened(tmp_path, JdbcOptions(adapter="troubled", network_timeout=0.1))
    assert type(caught.value) is kind
    store, _ = await opened(tmp_path)
    assert await pending(store) == [1, 2]
    await store.close()


async def _raise(problem: DatabaseError) -> None:
    raise problem


@pytest.mark.parametrize("problem", [LOST, FULL])
async def test_a_batch_that_may_be_written_is_never_refused(
    tmp_path: Path, made: list[Troubled], problem: DatabaseError
) -> None:
    """Its COMMIT was not answered, and then the question whether it is there was not."""
    store, adapter = await troubled(tmp_path, made, reconnect_wait=0.0)
    adapter.after["add_message_statement"] = [DatabaseUnavailableError("cut", in_doubt=True)]
    adapter.problems["find_lock_statement"] = [LOST, None, problem, None, problem]
    adapter.problems["destination_message_count_statement"] = [problem]
    await write(store, add(3))
    await write(store, add(4))
    assert await pending(store) == [1, 2, 3, 4]
    assert store.statistics().pending_messages == 4
    await store.close()


async def test_a_database_that_refuses_to_say_whether_a_batch_is_there_ends_writing(
    tmp_path: Path, made: list[Troubled]
) -> None:
    store, adapter = await troubled(tmp_path, made)
    adapter.after["add_message_statement"] = [DatabaseUnavailableError("cut", in_doubt=True)]
    adapter.problems["find_lock_statement"] = [None, OTHER]
    with pytest.raises(StoreIOError, match="read-only until the gateway is restarted"):
        await write(store, add(3))
    assert not store.statistics().writable
    await store.close()
    store, _ = await opened(tmp_path)
    assert await pending(store) == [1, 2, 3]
    await store.close()


async def test_a_journal_carries_a_plan_over_once_though_the_clean_up_has_no_room(
    tmp_path: Path, made: list[Troubled]
) -> None:
    """The plan is in the database: told to be repeated, it would be there twice."""
    options = JournaledOptions(adapter="troubled", checkpoint_interval=0.02)
    store = JournaledStore(StoreContext(tmp_path, "test", keep_acknowledged=True), options)
    await store.open()
    adapter = made[-1]
    await write(store, QUEUE, add(1), add(2))
    await write(store, ack(1))
    await _carried_over(tmp_path, 1)
    adapter.problems["delete_acknowledged_statement"] = [FULL]
    adapter.problems["find_released_statement"] = [FULL]
    await store.release_acknowledged(1)
    await write(store, add(3))
    await _carried_over(tmp_path, 3)
    await write(store, add(4))
    await _carried_over(tmp_path, 4)
    assert store.statistics().writable
    assert await pending(store) == [2, 3, 4]
    await store.close()


async def _carried_over(where: Path, sequence: int) -> None:
    async with asyncio.timeout(60):
        while True:
            with sqlite3.connect(where / "tidegate.db") as connection:
                query = f"SELECT 1 FROM TIDEGATE_MSGS WHERE sequence = {sequence}"
                rows = connection.execute(query).fetchall()
            connection.close()
            if rows:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "change",
    ["message = 'text'", "message = 5", "body = NULL", "body = 'text'", "message = x'00'"],
)
async def test_a_broken_row_is_named_and_costs_only_its_own_page(
    tmp_path: Path, change: str
) -> None:
    store, _ = await opened(tmp_path)
    await write(store, QUEUE, add(1), add(2))
    await store.close()
    connection = sqlite3.connect(tmp_path / "tidegate.db")
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '')")
    connection.commit()
    connection.close()
    connection = sqlite3.connect(tmp_path / "tidegate.db")
    connection.execute(f"UPDATE TIDEGATE_MSGS SET {change} WHERE sequence = 2")
    connection.commit()
    connection.close()
    store, _ = await opened(tmp_path)
    with pytest.raises(CorruptRecordError, match="message 2"):
        await pending(store)
    (first,) = await store.page_in(1, 0, 1, 1)
    assert first.sequence == 1
    await write(store, ack(1), add(3))
    await store.close()


class TestFull(StoreFullConformance):
    """SQLite's own error for a full database."""

    @pytest.fixture
    def store_factory(self, made: list[Troubled]) -> MessageStoreFactory:
        class Factory:
            options_type: type = JdbcOptions

            def create(self, context: StoreContext, options: object) -> MessageStore:
                assert isinstance(options, JdbcOptions)
                return JdbcStore(context, options)

        return Factory()

    @pytest.fixture
    def store_options(self) -> object:
        return JdbcOptions(adapter="troubled")

    @pytest.fixture
    def limit_room(self, made: list[Troubled]) -> Callable[[int | None], None]:
        """The limit is set with the next transaction."""

        def limit(size: int | None) -> None:
            for adapter in made:
                adapter.room = 1 << 40 if size is None else size

        return limit


async def test_a_database_that_is_waited_for_at_start_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"postgresql://127.0.0.1:{free_port()}/orders"
    options = JdbcOptions(url=url, network_timeout=1.0)
    with pytest.raises(StoreUnavailableError):
        await JdbcStore(StoreContext(tmp_path, "here"), options).open()
    (told,) = [text for text in caplog.messages if "waiting for the database" in text]
    assert url in told
