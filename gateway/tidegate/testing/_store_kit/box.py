"""Tools of the store kit's sections: a store in its directory, and small messages."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import pytest

from tidegate.spi import (
    AcknowledgedLog,
    AcknowledgedPage,
    AddDestination,
    AddMessage,
    Branch,
    DuplicateId,
    Durability,
    LargeBodies,
    Message,
    MessageStore,
    MessageStoreFactory,
    Operation,
    RecoveredState,
    StoreCapabilities,
    StoreContext,
    StoredMessage,
    WriteBatch,
    parse_options,
)
from tidegate.testing._harness import Scenarios, close, plugin_factory

#: A byte limit that no test reaches.
ANY_SIZE: Final = 1 << 40

QUEUE: Final = AddDestination("queue://orders", 1)
OTHER: Final = AddDestination("queue://returns", 2)


def text(sequence: int, body: bytes | None = None) -> Message:
    """A small message whose body contains its sequence."""
    return Message("queue://orders", b"message %d" % sequence if body is None else body)


def add(sequence: int, *lists: int, body: bytes | None = None) -> AddMessage:
    """Store ``text(sequence)`` in list 1, or in *lists*."""
    return AddMessage(sequence, text(sequence, body), lists or (1,))


class StoreBox:
    """One store in its directory; closes and reopens it. A scenario closes whatever is left open.

    Attributes:
        store: open after :meth:`open`.
        state: what that returned.
        branches, duplicate_ids: what the store reported, if it can.
    """

    def __init__(self, factory: MessageStoreFactory, options: object, directory: Path) -> None:
        self._factory = factory
        self._options = options
        self._made: list[MessageStore] = []
        self._others: list[StoreBox] = []
        self.directory = directory
        self.store: MessageStore
        self.branches: Sequence[Branch] = ()
        self.duplicate_ids: Sequence[DuplicateId] = ()
        self.state: RecoveredState

    def other(self, name: str) -> StoreBox:
        """A box in a subdirectory *name*, which is closed with this one."""
        directory = self.directory / name
        directory.mkdir()
        self._others.append(StoreBox(self._factory, self._options, directory))
        return self._others[-1]

    def make(self, *, persistent: bool = True, keep_acknowledged: bool = True) -> MessageStore:
        """Another store on the same directory, not open."""
        context = StoreContext(
            data_directory=self.directory,
            gateway_name="conformance",
            persistent=persistent,
            keep_acknowledged=keep_acknowledged,
        )
        store = self._factory.create(context, self._options)
        self._made.append(store)
        return store

    async def open(
        self,
        *operations: Operation,
        persistent: bool = True,
        keep_acknowledged: bool = True,
    ) -> None:
        """Open a store, and write *operations* when there are any."""
        self.store = self.make(persistent=persistent, keep_acknowledged=keep_acknowledged)
        self.state = await self.store.open()
        offered = self.store.capabilities
        if offered.branches is not None:
            self.branches = await offered.branches.recovered_branches()
        if offered.duplicate_ids is not None:
            self.duplicate_ids = await offered.duplicate_ids.recovered_duplicate_ids()
        if operations:
            await self.write(*operations)

    async def restart(self, *, keep_acknowledged: bool = True) -> None:
        """Close the store and open the same contents again."""
        await self.close()
        await self.open(keep_acknowledged=keep_acknowledged)

    async def write(
        self, *operations: Operation, durability: Durability = Durability.SYNCED
    ) -> None:
        """Write one batch."""
        await self.store.write(WriteBatch(list(operations), durability))

    async def page(
        self, pending_list: int = 1, after: int = 0, limit: int = 1_000_000, size: int = ANY_SIZE
    ) -> Sequence[StoredMessage]:
        """The pending messages of a list, by default from the beginning and in one page."""
        return await self.store.page_in(pending_list, after, limit, size)

    async def sequences(self, pending_list: int = 1) -> list[int]:
        """Their sequences."""
        return [stored.sequence for stored in await self.page(pending_list)]

    async def acknowledged(
        self, after: int = 0, limit: int = 1_000_000, size: int = ANY_SIZE
    ) -> AcknowledgedPage:
        """A page of the acknowledged log, by default all of it."""
        return await self.rows.acknowledged(after, limit, size)

    async def log(self, after: int = 0) -> list[tuple[int, int]]:
        """Its rows as (ack sequence, sequence)."""
        page = await self.acknowledged(after)
        return [(row.ack_sequence, row.sequence) for row in page.rows]

    @property
    def rows(self) -> AcknowledgedLog:
        """The acknowledged log of a store that has one."""
        log = self.store.capabilities.acknowledged_log
        assert log is not None
        return log

    @property
    def bodies(self) -> LargeBodies:
        """The large bodies of a store that has them."""
        bodies = self.store.capabilities.large_bodies
        assert bodies is not None
        return bodies

    async def end(self, store: MessageStore | None = None) -> None:
        """Close *store*, or the open one. Raises: TimeoutError for a close that hangs."""
        store = store or self.store
        if store in self._made:
            self._made.remove(store)  # a store that hangs is not waited for twice
        await close(store)

    async def close(self) -> None:
        """Close everything made here. Raises: as ``end``."""
        for other in self._others:
            await other.close()
        while self._made:
            await self.end(self._made[-1])


class StoreFixtures(Scenarios):
    """The store under test, and what tests need of it."""

    @pytest.fixture
    def store_factory(self, request: pytest.FixtureRequest) -> MessageStoreFactory:
        """The factory under test."""
        name = cast("str | None", request.config.getoption("--store"))
        if not name:
            raise pytest.UsageError("name the store to test: --store=NAME (entry point store-NAME)")
        factory = plugin_factory(f"store-{name}", "register_message_store")
        return cast(MessageStoreFactory, factory)

    @pytest.fixture
    def store_options(
        self, request: pytest.FixtureRequest, store_factory: MessageStoreFactory
    ) -> object:
        """The options it is built with."""
        lines = cast("list[str]", request.config.getoption("--store-option"))
        options_type = cast("type[object]", store_factory.options_type)
        return parse_options(options_type, tomllib.loads("\n".join(lines)))

    @pytest.fixture
    def box(
        self, store_factory: MessageStoreFactory, store_options: object, tmp_path: Path
    ) -> StoreBox:
        """A store that is not open yet, in an empty directory."""
        return StoreBox(store_factory, store_options, tmp_path)

    @pytest.fixture
    def capabilities(self, box: StoreBox) -> StoreCapabilities:
        """What the store declares."""
        return box.make().capabilities

    @pytest.fixture
    def durable(self, capabilities: StoreCapabilities) -> None:
        """For tests that need contents to survive a restart."""
        _require(capabilities.durable, "the store declares durable=False")

    @pytest.fixture
    def logged(self, capabilities: StoreCapabilities) -> None:
        """For tests that need the acknowledged log."""
        _require(capabilities.acknowledged_log, "the store offers no acknowledged log")

    @pytest.fixture
    def branching(self, capabilities: StoreCapabilities) -> None:
        """For tests that need prepared branches."""
        _require(capabilities.branches, "the store keeps no prepared branches")

    @pytest.fixture
    def deduplicating(self, capabilities: StoreCapabilities) -> None:
        """For tests that need duplicate ids."""
        _require(capabilities.duplicate_ids, "the store keeps no duplicate ids")


def _require(ability: object, otherwise: str) -> None:
    if not ability:
        pytest.skip(otherwise)
