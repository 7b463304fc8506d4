"""The conformance kit for message stores::

    pytest --pyargs tidegate.testing.store_kit --store=NAME [--store-option KEY=VALUE ...]

runs it over the store that is installed under the entry point ``store-NAME``. To run it from a test
suite of your own, subclass and override one fixture::

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store_factory(self):
            return MyStoreFactory()

A store that can be made full in its tests subclasses ``StoreFullConformance`` besides, and overrides
``store_factory`` and ``limit_room`` there.

Every test opens the store in a directory of its own and restarts it where that matters. What the
store declares in its capabilities is expected of it, and only that.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tidegate.spi import (
    Acknowledge,
    AcknowledgedLog,
    AddDestination,
    AddDuplicateId,
    AddMessage,
    Branch,
    BranchId,
    BranchState,
    ClearRetained,
    ConfigError,
    Discard,
    DiscardReason,
    DuplicateId,
    Durability,
    ForgetDuplicateIds,
    InflightDirection,
    InflightRecord,
    InflightState,
    LargeBodies,
    LargeBody,
    LockedMessages,
    Message,
    MessageStore,
    MessageStoreFactory,
    Move,
    Operation,
    PendingCount,
    PutBranch,
    PutInflight,
    PutSession,
    PutSubscription,
    RecordDelivery,
    RecoveredDestination,
    RecoveredState,
    RemoveBranch,
    RemoveDestination,
    RemoveInflight,
    RemoveSession,
    RemoveSubscription,
    RequestError,
    Session,
    SetRetained,
    StoreCapabilities,
    StoreClosedError,
    StoreContext,
    StoreFullError,
    StoreLockedError,
    Subscription,
    WriteBatch,
    parse_options,
)
from tidegate.testing._harness import plugin_factory, scenario
from tidegate.testing._portable_contents import contents, everything
from tidegate.testing._store_machine import STORE_MACHINE_SETTINGS, StoreMachine, by_key
from tidegate.testing.memory_store import MemoryStore

#: A store that takes longer to close hangs; in seconds.
CLOSE_TIMEOUT: Final = 13.0
#: A store that refuses messages for longer, though it has room again, stays full; in seconds.
ROOM_TIMEOUT: Final = 10.0
#: What a store that is to become full has room for; in bytes.
SMALL_ROOM: Final = 500_000
#: A byte limit that no test reaches.
ANY_SIZE: Final = 1 << 40

QUEUE: Final = AddDestination("queue://orders", 1)
OTHER: Final = AddDestination("queue://returns", 2)


def text(sequence: int, body: bytes | None = None) -> Message:
    """A small message whose body says its sequence."""
    return Message("queue://orders", b"message %d" % sequence if body is None else body)


def add(sequence: int, *lists: int, body: bytes | None = None) -> AddMessage:
    """Store ``text(sequence)`` in list 1, or in *lists*."""
    return AddMessage(sequence, text(sequence, body), lists or (1,))


async def _upload(bodies: LargeBodies, content: bytes, *, sized: bool = True) -> LargeBody:
    writer = bodies.create(len(content) if sized else None)
    middle = len(content) // 2
    await writer.write(content[:middle])
    await writer.write(content[middle:])
    return await writer.finish()


class StoreBox:
    """One store in its directory; closes and reopens it.

    Attributes:
        store: open after :meth:`open`.
        state: what that returned.
        branches, duplicate_ids: what such a store told besides.
    """

    def __init__(self, factory: MessageStoreFactory, options: object, directory: Path) -> None:
        self._factory = factory
        self._options = options
        self._made: list[MessageStore] = []
        self.directory = directory
        self.store: MessageStore
        self.branches: Sequence[Branch] = ()
        self.duplicate_ids: Sequence[DuplicateId] = ()
        self.state: RecoveredState

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

    async def sequences(self, pending_list: int = 1) -> list[int]:
        """Everything pending in a list, read in one page."""
        page = await self.store.page_in(pending_list, 0, 1_000_000, ANY_SIZE)
        return [stored.sequence for stored in page]

    async def log(self, after: int = 0) -> list[tuple[int, int]]:
        """The acknowledged log as (ack sequence, sequence)."""
        page = await self.rows.acknowledged(after, 1_000_000, ANY_SIZE)
        return [(row.ack_sequence, row.sequence) for row in page.rows]

    @property
    def rows(self) -> AcknowledgedLog:
        """The acknowledged log of a store that has one."""
        log = self.store.capabilities.acknowledged_log
        assert log is not None
        return log

    async def close(self) -> None:
        """Close whatever was made here. Raises: TimeoutError for a close that hangs."""
        while self._made:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._made.pop().close()


class StoreFixtures:
    """The store under test, for the classes below."""

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


class StoreConformance(StoreFixtures):
    """What every message store must do. Subclass it and override ``store_factory``."""

    @pytest.fixture
    def machine_settings(self) -> hypothesis.settings:
        """How long the model-based test runs."""
        return STORE_MACHINE_SETTINGS

    @pytest.fixture
    def durable(self, capabilities: StoreCapabilities) -> None:
        """For tests that need contents to survive a restart."""
        if not capabilities.durable:
            pytest.skip("the store declares durable=False")

    @pytest.fixture
    def logged(self, capabilities: StoreCapabilities) -> None:
        """For tests that need the acknowledged log."""
        if capabilities.acknowledged_log is None:
            pytest.skip("the store offers no acknowledged log")

    @pytest.fixture
    def branching(self, capabilities: StoreCapabilities) -> None:
        """For tests that need prepared branches."""
        if capabilities.branches is None:
            pytest.skip("the store keeps no prepared branches")

    @pytest.fixture
    def deduplicating(self, capabilities: StoreCapabilities) -> None:
        """For tests that need duplicate ids."""
        if capabilities.duplicate_ids is None:
            pytest.skip("the store keeps no duplicate ids")

    # ------------------------------------------------------------------------------- life cycle

    @scenario
    async def test_a_new_store_is_empty_and_has_an_identity(self, box: StoreBox) -> None:
        await box.open()
        state = box.state
        assert state.store_id
        assert (state.last_sequence, state.last_pending_list) == (0, 0)
        assert not any([state.destinations, state.subscriptions, state.sessions])
        assert not any([state.inflight, state.retained, state.pending])
        assert await box.sequences() == []
        await box.close()

    @scenario
    async def test_the_identity_stays_over_restarts(self, box: StoreBox, durable: None) -> None:
        await box.open()
        first = box.state.store_id
        await box.restart()
        assert box.state.store_id == first
        await box.close()

    @scenario
    async def test_a_new_directory_gives_another_identity(
        self, box: StoreBox, store_factory: MessageStoreFactory, store_options: object
    ) -> None:
        (box.directory / "a").mkdir()
        (box.directory / "b").mkdir()
        identities: set[str] = set()
        for name in ("a", "b"):
            inner = StoreBox(store_factory, store_options, box.directory / name)
            await inner.open()
            identities.add(inner.state.store_id)
            await inner.close()
        assert len(identities) == 2

    @scenario
    async def test_a_closed_store_refuses_all_work(self, box: StoreBox) -> None:
        await box.open(QUEUE, add(1))
        await box.store.close()
        with pytest.raises(StoreClosedError):
            await box.write(add(2))
        with pytest.raises(StoreClosedError):
            await box.store.page_in(1, 0, 1, 1)
        log = box.store.capabilities.acknowledged_log
        if log is not None:
            with pytest.raises(StoreClosedError):
                await log.acknowledged(0, 1, 1)
            with pytest.raises(StoreClosedError):
                await log.release_acknowledged(1)

    @scenario
    async def test_close_may_be_called_twice_and_before_open(self, box: StoreBox) -> None:
        await box.open()
        await box.store.close()
        await box.store.close()
        await box.make().close()

    @scenario
    async def test_only_one_store_at_a_time_owns_the_contents(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(QUEUE, add(1))
        with pytest.raises(StoreLockedError):
            await box.make().open()
        await box.write(add(2))
        await box.restart()
        assert await box.sequences() == [1, 2]
        await box.close()

    @scenario
    async def test_a_store_that_is_not_persistent_touches_no_disk(self, box: StoreBox) -> None:
        await box.open(QUEUE, add(1), add(2), persistent=False)
        assert not box.store.capabilities.durable
        await box.write(Acknowledge(1, (1,)))
        assert await box.sequences() == [2]
        await box.store.close()
        assert list(box.directory.iterdir()) == []

    # ----------------------------------------------------------------------------- pending lists

    @scenario
    async def test_messages_come_back_in_order_with_all_their_fields(self, box: StoreBox) -> None:
        message = Message(
            destination="topic://ä.β.🚢",
            body=bytes(range(256)),
            headers=(("a", "1"), ("a", "2"), ("", ""), ("ключ", "line\nbreak:\\")),
            received_at=1_700_000_000_000_001,
            expires_at=1_900_000_000_000_002,
            priority=9,
            persistent=False,
            qos=1,
            retain=True,
            protocol="mqtt",
            client_id="client",
            original_name="/a//b",
            content_type="application/json",
            correlation_data=b"\0\xff",
            reply_to="queue://answers",
        )
        await box.open(QUEUE, AddMessage(7, message, (1,)), add(9, body=b""))
        first, second = await box.store.page_in(1, 0, 10, ANY_SIZE)
        assert (first.sequence, first.message, first.delivery_count) == (7, message, 0)
        assert (second.sequence, second.message.body) == (9, b"")
        await box.close()

    @scenario
    async def test_a_message_survives_a_restart_unchanged(
        self, box: StoreBox, durable: None
    ) -> None:
        message = Message("queue://orders", bytes(1_000_000), (("k", "v"),), 5, 6, 7)
        await box.open(QUEUE, AddMessage(3, message, (1,)))
        await box.restart()
        (stored,) = await box.store.page_in(1, 0, 10, ANY_SIZE)
        assert (stored.sequence, stored.message) == (3, message)
        assert by_key(box.state)["pending"] == {1: PendingCount(1, 1_000_000)}
        await box.close()

    @scenario
    async def test_a_page_begins_behind_after_and_ends_at_the_limit(self, box: StoreBox) -> None:
        await box.open(QUEUE, *[add(sequence) for sequence in range(10, 60, 10)])

        async def page(after: int, limit: int) -> list[int]:
            found = await box.store.page_in(1, after, limit, ANY_SIZE)
            return [stored.sequence for stored in found]

        assert await page(0, 2) == [10, 20]
        assert await page(20, 2) == [30, 40]
        assert await page(29, 2) == [30, 40]
        assert await page(40, 2) == [50]
        assert await page(50, 2) == []
        assert await page(0, 5) == [10, 20, 30, 40, 50]
        await box.close()

    @scenario
    async def test_a_page_stops_before_its_bodies_exceed_the_byte_limit(
        self, box: StoreBox
    ) -> None:
        await box.open(QUEUE, *[add(sequence, body=bytes(100)) for sequence in range(1, 6)])

        async def count(bytes_max: int) -> int:
            return len(await box.store.page_in(1, 0, 10, bytes_max))

        assert [await count(size) for size in (1, 99, 100, 199, 200, 399, 500)] == [
            1, 1, 1, 1, 2, 3, 5,
        ]  # fmt: skip
        await box.close()

    @scenario
    async def test_an_unknown_list_is_empty(self, box: StoreBox) -> None:
        await box.open(QUEUE, add(1))
        assert await box.sequences(99) == []
        await box.close()

    @scenario
    async def test_acknowledged_and_discarded_messages_leave_their_list_only(
        self, box: StoreBox
    ) -> None:
        await box.open(QUEUE, OTHER, *[add(sequence, 1, 2) for sequence in range(1, 7)])
        await box.write(Acknowledge(1, (4, 2)), Discard(2, (1, 6), DiscardReason.EXPIRED))
        assert await box.sequences(1) == [1, 3, 5, 6]
        assert await box.sequences(2) == [2, 3, 4, 5]
        await box.close()

    @scenario
    async def test_a_moved_message_is_the_last_of_its_new_list(self, box: StoreBox) -> None:
        await box.open(QUEUE, OTHER, add(1), add(2), add(3, 2))
        moved = Message("queue://returns", b"message 1", (("reason", "rejected"),))
        await box.write(Move(1, 1, 2, 4, moved))
        assert await box.sequences(1) == [2]
        page = await box.store.page_in(2, 0, 10, ANY_SIZE)
        assert [(stored.sequence, stored.message.headers) for stored in page] == [
            (3, ()),
            (4, (("reason", "rejected"),)),
        ]
        await box.close()

    @scenario
    async def test_delivery_counts_belong_to_message_and_list(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(QUEUE, OTHER, add(1, 1, 2), add(2, 1, 2))
        await box.write(RecordDelivery(1, (1, 2), (1, 1)), RecordDelivery(1, (2,), (3,)))
        for _ in range(2):
            for number, expected in ((1, [1, 3]), (2, [0, 0])):
                page = await box.store.page_in(number, 0, 10, ANY_SIZE)
                assert [stored.delivery_count for stored in page] == expected
            await box.restart()
        await box.close()

    @scenario
    async def test_operations_of_one_batch_see_those_before_them(self, box: StoreBox) -> None:
        await box.open()
        await box.write(
            QUEUE,
            OTHER,
            add(1),
            add(2),
            RecordDelivery(1, (2,), (1,)),
            Acknowledge(1, (1,)),
            Move(1, 2, 2, 3, text(3)),
            Discard(2, (3,), DiscardReason.PURGED),
            add(4),
        )
        assert await box.sequences(1) == [4]
        assert await box.sequences(2) == []
        await box.close()

    @scenario
    async def test_an_empty_batch_changes_nothing(self, box: StoreBox) -> None:
        await box.open(QUEUE, add(1))
        await box.write()
        await box.write(durability=Durability.WRITTEN)
        assert await box.sequences() == [1]
        await box.close()

    @scenario
    async def test_thousands_of_messages_keep_their_order_over_a_restart(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(QUEUE, OTHER)
        left: list[int] = []
        for first in range(1, 3001, 100):
            numbers = range(first, first + 100)
            await box.write(*[add(number, 1, 2, body=bytes(number)) for number in numbers])
            await box.write(Acknowledge(1, tuple(number for number in numbers if number % 7)))
            left += [number for number in numbers if number % 7 == 0]
        await box.restart()
        assert await box.sequences(1) == left
        assert await box.sequences(2) == list(range(1, 3001))
        page = await box.store.page_in(2, 2000, 500, ANY_SIZE)
        assert [len(stored.message.body) for stored in page] == list(range(2001, 2501))
        await box.close()

    # ---------------------------------------------------------------- what opening brings back

    @scenario
    async def test_destinations_and_their_counts_come_back(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(QUEUE, OTHER, AddDestination("topic://news", 0))
        await box.write(add(1, 1, 2), add(2, 1), RemoveDestination("queue://returns", 2))
        await box.restart()
        assert sorted(box.state.destinations, key=lambda known: known.destination) == [
            RecoveredDestination("queue://orders", 1),
            RecoveredDestination("topic://news", 0),
        ]
        assert by_key(box.state)["pending"] == {1: PendingCount(2, 18)}
        assert await box.sequences(2) == []
        await box.close()

    @scenario
    async def test_the_highest_numbers_are_never_forgotten(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(QUEUE, AddDestination("queue://gone", 8), add(1), add(900, 8))
        await box.write(Acknowledge(1, (1,)), RemoveDestination("queue://gone", 8))
        for _ in range(3):
            await box.restart(keep_acknowledged=False)
            assert (box.state.last_sequence, box.state.last_pending_list) == (900, 8)
        await box.close()

    @scenario
    async def test_durable_subscriptions_come_back_with_their_messages(
        self, box: StoreBox, durable: None
    ) -> None:
        kept = Subscription(
            1, "client", "name", "topic://a.>", durable=True, qos=1, no_local=True,
            protocol="mqtt", share_group="group", options={"k": "v"},
        )  # fmt: skip
        replaced = Subscription(2, "client", "other", "topic://b", durable=True)
        removed = Subscription(3, "client", "third", "topic://c", durable=True)
        await box.open(PutSubscription(kept), PutSubscription(replaced), PutSubscription(removed))
        await box.write(add(1, 1, 2, 3))
        newer = Subscription(2, "client", "other", "topic://b", durable=True, qos=0)
        await box.write(PutSubscription(newer), RemoveSubscription(3))
        await box.restart()
        assert by_key(box.state)["subscriptions"] == {1: kept, 2: newer}
        assert [await box.sequences(number) for number in (1, 2, 3)] == [[1], [1], []]
        await box.close()

    @scenario
    async def test_subscriptions_that_are_not_durable_end_with_the_gateway(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(
            QUEUE, PutSubscription(Subscription(5, "client", "s", "topic://a", durable=False))
        )
        await box.write(add(1, 1, 5), add(2, 5))
        assert await box.sequences(5) == [1, 2]
        await box.restart()
        assert list(box.state.subscriptions) == []
        assert by_key(box.state)["pending"] == {1: PendingCount(1, 9)}
        assert await box.sequences(5) == []
        assert box.store.statistics().pending_messages == 1
        await box.restart()
        assert box.state.last_pending_list == 5
        await box.close()

    @scenario
    async def test_the_last_retained_message_of_a_destination_comes_back(
        self, box: StoreBox, durable: None
    ) -> None:
        def message(name: str, body: bytes) -> Message:
            return Message(f"topic://{name}", body, (("h", "v"),), retain=True)

        await box.open(SetRetained(message("a", b"1")), SetRetained(message("b", b"2")))
        await box.write(SetRetained(message("a", b"3")), ClearRetained("topic://b"))
        await box.write(ClearRetained("topic://never"), SetRetained(message("c", bytes(100_000))))
        await box.restart()
        assert by_key(box.state)["retained"] == {
            "topic://a": message("a", b"3"),
            "topic://c": message("c", bytes(100_000)),
        }
        await box.close()

    @scenario
    async def test_sessions_and_packet_ids_come_back(self, box: StoreBox, durable: None) -> None:
        def packet(
            client_id: str, direction: InflightDirection, packet_id: int, state: InflightState
        ) -> InflightRecord:
            return InflightRecord(client_id, direction, packet_id, state, "filter", 12)

        incoming, outgoing = InflightDirection.IN, InflightDirection.OUT
        await box.open(
            PutSession(Session("a", 60)),
            PutSession(Session("b", 0xFFFF_FFFF)),
            PutInflight(packet("a", incoming, 1, InflightState.RECEIVED)),
            PutInflight(packet("a", outgoing, 1, InflightState.PUBLISHED)),
            PutInflight(packet("a", outgoing, 2, InflightState.PUBLISHED)),
            PutInflight(packet("b", outgoing, 1, InflightState.PUBLISHED)),
        )
        newer = Session("a", 120, 1_700_000_000_000_000, {"version": "5"})
        await box.write(
            PutSession(newer),
            RemoveSession("b"),
            PutInflight(packet("a", outgoing, 1, InflightState.RELEASED)),
            RemoveInflight("a", outgoing, 2),
            RemoveInflight("a", outgoing, 3),
        )
        await box.restart()
        found = by_key(box.state)
        assert found["sessions"] == {"a": newer}
        assert found["inflight"] == {
            ("a", incoming, 1): packet("a", incoming, 1, InflightState.RECEIVED),
            ("a", outgoing, 1): packet("a", outgoing, 1, InflightState.RELEASED),
        }
        await box.close()

    @scenario
    async def test_a_session_that_comes_again_has_no_packet_ids_of_the_one_before(
        self, box: StoreBox, durable: None
    ) -> None:
        record = InflightRecord("a", InflightDirection.IN, 1, InflightState.RECEIVED)
        await box.open(PutSession(Session("a", 60)), PutInflight(record))
        await box.write(RemoveSession("a"), PutSession(Session("a", 90)))
        await box.restart()
        assert list(box.state.inflight) == []
        assert list(box.state.sessions) == [Session("a", 90)]
        await box.close()

    @scenario
    async def test_a_batch_that_was_only_written_survives_a_clean_restart(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(QUEUE, add(1), add(2))
        await box.write(Acknowledge(1, (1,)), durability=Durability.WRITTEN)
        assert await box.sequences() == [2]
        await box.restart()
        assert await box.sequences() == [2]
        await box.close()

    # ------------------------------------------------------------------------- acknowledged log

    @scenario
    async def test_the_acknowledged_log_is_dense_and_in_order_of_acknowledgement(
        self, box: StoreBox, logged: None
    ) -> None:
        await box.open(QUEUE, OTHER, *[add(sequence, 1, 2) for sequence in range(1, 6)])
        await box.write(Acknowledge(1, (4, 1)), Acknowledge(2, (1,)))
        await box.write(Discard(1, (2,), DiscardReason.DROPPED), Acknowledge(1, (3,)))
        assert await box.log() == [(1, 4), (2, 1), (3, 1), (4, 3)]
        assert await box.log(after=2) == [(3, 1), (4, 3)]
        assert await box.log(after=4) == []
        await box.close()

    @scenario
    async def test_a_row_says_who_consumed_what_and_when(self, box: StoreBox, logged: None) -> None:
        await box.open(QUEUE, add(1), add(2))
        await box.write(Acknowledge(1, (2, 1), (100, 200), 300, "client", "subscription", "stomp"))
        page = await box.rows.acknowledged(0, 10, ANY_SIZE)
        assert page.last == 2
        assert [
            (
                row.message,
                row.pending_list,
                row.delivered_at,
                row.acked_at,
                row.client_id,
                row.subscription,
                row.protocol,
            )
            for row in page.rows
        ] == [
            (text(2), 1, 100, 300, "client", "subscription", "stomp"),
            (text(1), 1, 200, 300, "client", "subscription", "stomp"),
        ]
        await box.close()

    @scenario
    async def test_large_bodies_live_as_long_as_their_messages(self, box: StoreBox) -> None:
        """Nothing to see for a store that declares none."""
        await box.open(QUEUE, OTHER)
        bodies = box.store.capabilities.large_bodies
        if bodies is not None:
            content = bytes(range(256)) * (bodies.size_min // 256 + 2)
            large = await _upload(bodies, content)
            message = Message("queue://orders", b"", (("a", "b"),), large=large)
            await box.write(AddMessage(1, message, (1, 2)), add(2))
            given_up = bodies.create(len(content))
            await given_up.write(content[:10])
            given_up.abandon()
            await box.write(Acknowledge(1, (1,)))
            await box.restart()
            bodies = box.store.capabilities.large_bodies
            assert bodies is not None
            (stored,) = await box.store.page_in(2, 0, 10, ANY_SIZE)
            assert stored.message == message
            assert stored.message.large is not None
            reader = bodies.open(stored.message.large)
            await box.write(Acknowledge(2, (1,)))  # the reader keeps the bytes
            pieces: list[bytes] = []
            while piece := await reader.read(1000):
                pieces.append(piece)
            assert max(map(len, pieces)) <= 1000
            assert b"".join(pieces) == content
            reader.close()
            assert await box.sequences() == [2]
        await box.close()

    @scenario
    async def test_a_large_body_may_end_wherever_it_does(self, box: StoreBox) -> None:
        """Nothing to see for a store that declares none."""
        await box.open(QUEUE)
        bodies = box.store.capabilities.large_bodies
        if bodies is not None:
            content = bytes(range(256)) * (bodies.size_min // 256 + 2)
            sized = await _upload(bodies, content)
            large = await _upload(bodies, content, sized=False)
            assert (large.size, large.checksum) == (len(content), sized.checksum)
            await box.write(AddMessage(1, Message("queue://orders", b"", large=large), (1,)))
            given_up = bodies.create(None)
            await given_up.write(content)
            given_up.abandon()
            await box.restart()
            bodies = box.store.capabilities.large_bodies
            assert bodies is not None
            (stored,) = await box.store.page_in(1, 0, 10, ANY_SIZE)
            found = stored.message.large
            assert found is not None
            assert found == large
            reader = bodies.open(found)
            assert await reader.read(len(content)) + await reader.read(1) == content
            reader.close()
        await box.close()

    @scenario
    async def test_the_acknowledged_log_is_read_in_pages(self, box: StoreBox, logged: None) -> None:
        await box.open(QUEUE, *[add(number, body=bytes(100)) for number in range(1, 11)])
        await box.write(Acknowledge(1, tuple(range(1, 11))))
        page = await box.rows.acknowledged(0, 4, ANY_SIZE)
        assert [row.ack_sequence for row in page.rows] == [1, 2, 3, 4]
        assert page.last == 10
        page = await box.rows.acknowledged(8, 4, ANY_SIZE)
        assert [row.ack_sequence for row in page.rows] == [9, 10]
        assert len((await box.rows.acknowledged(0, 10, 350)).rows) in range(1, 4)
        assert len((await box.rows.acknowledged(0, 10, 1)).rows) == 1
        await box.close()

    @scenario
    async def test_the_acknowledged_log_continues_over_restarts(
        self, box: StoreBox, logged: None, durable: None
    ) -> None:
        await box.open(QUEUE)
        for round_ in range(1, 5):
            await box.write(*[add(10 * round_ + step) for step in range(3)])
            await box.write(Acknowledge(1, tuple(10 * round_ + step for step in (2, 0, 1))))
            await box.restart()
        rows = await box.log()
        assert [ack_sequence for ack_sequence, _ in rows] == list(range(1, 13))
        assert [sequence for _, sequence in rows] == [
            12,
            10,
            11,
            22,
            20,
            21,
            32,
            30,
            31,
            42,
            40,
            41,
        ]
        page = await box.rows.acknowledged(11, 1, ANY_SIZE)
        assert page.rows[0].message == text(41)
        await box.close()

    @scenario
    async def test_rows_are_kept_until_they_are_released(
        self, box: StoreBox, logged: None, durable: None
    ) -> None:
        await box.open(QUEUE, *[add(sequence) for sequence in range(1, 7)])
        await box.write(Acknowledge(1, (1, 2, 3, 4)))
        await box.rows.release_acknowledged(2)
        await box.rows.release_acknowledged(2)
        await box.rows.release_acknowledged(1)
        for _ in range(2):
            assert await box.log(after=2) == [(3, 3), (4, 4)]
            with pytest.raises(RequestError):
                await box.rows.acknowledged(1, 10, ANY_SIZE)
            await box.write()  # what makes the release durable, at the latest
            await box.restart()
        await box.rows.release_acknowledged(4)
        await box.write(Acknowledge(1, (5,)))
        assert await box.log(after=4) == [(5, 5)]
        await box.restart()
        assert await box.log(after=4) == [(5, 5)]
        assert await box.sequences() == [6]
        await box.close()

    @scenario
    async def test_rows_are_readable_once_a_synced_batch_followed(
        self, box: StoreBox, logged: None
    ) -> None:
        await box.open(QUEUE, add(1), add(2))
        await box.write(Acknowledge(1, (1,)), durability=Durability.WRITTEN)
        await box.write(Acknowledge(1, (2,)), durability=Durability.SYNCED)
        page = await box.rows.acknowledged(0, 10, ANY_SIZE)
        assert ([row.sequence for row in page.rows], page.last) == ([1, 2], 2)
        await box.close()

    @scenario
    async def test_without_a_sink_nothing_is_logged(self, box: StoreBox, logged: None) -> None:
        await box.open(QUEUE, add(1), keep_acknowledged=False)
        await box.write(Acknowledge(1, (1,)))
        assert await box.log() == []
        assert box.rows.log_statistics().held_bytes == 0
        await box.close()

    @scenario
    async def test_statistics_follow_what_is_held(self, box: StoreBox, logged: None) -> None:
        await box.open(QUEUE, OTHER, *[add(number, 1, 2, body=bytes(50)) for number in range(1, 5)])
        found = box.store.statistics()
        assert (found.pending_messages, found.writable) == (4, True)
        before = box.rows.log_statistics()
        assert (before.held_bytes, before.oldest_at) == (0, 0)
        assert before.first == before.last + 1
        await box.write(Acknowledge(1, (1, 2), acked_at=70), Acknowledge(2, (1,), acked_at=80))
        assert box.store.statistics().pending_messages == 3
        held = box.rows.log_statistics()
        assert (held.first, held.last) == (1, 3)
        assert held.held_bytes >= 50
        assert held.oldest_at == 70
        await box.rows.release_acknowledged(3)
        after = box.rows.log_statistics()
        assert (after.first, after.last) == (4, 3)
        assert (after.held_bytes, after.oldest_at) == (0, 0)
        assert box.store.statistics().disk_bytes >= 0
        await box.close()

    # ------------------------------------------------------------------------- prepared branches

    @scenario
    async def test_a_prepared_branch_comes_back_with_its_messages_and_what_it_locks(
        self, box: StoreBox, branching: None, durable: None
    ) -> None:
        await box.open(QUEUE, add(1), add(2))
        branch = Branch(
            BranchId(-5, bytes(range(64)), b"\xff"),
            9,
            BranchState.PREPARED,
            1_700_000_000_000_001,
            0,
            "manager",
            "client",
            "stomp",
            (LockedMessages(1, (2, 1), (10, 20), "client", "s", "stomp", True),),
            ((4, "queue://orders", "id"),),
        )
        await box.write(PutBranch(branch), add(4, 9), add(5, 9))
        for _ in range(3):
            assert await box.sequences(9) == [4, 5]
            assert await box.sequences(1) == [1, 2]
            await box.restart()
            assert list(box.branches) == [branch]
            assert by_key(box.state)["pending"] == {1: PendingCount(2, 18), 9: PendingCount(2, 18)}
            assert (box.state.last_sequence, box.state.last_pending_list) == (5, 9)
        await box.close()

    @scenario
    async def test_committing_a_branch_is_one_batch(
        self, box: StoreBox, branching: None, durable: None
    ) -> None:
        branch_id = BranchId(1, b"transaction", b"branch")
        await box.open(QUEUE, OTHER, add(1), add(2))
        await box.write(PutBranch(Branch(branch_id, 3)), add(3, 3), add(4, 3))
        await box.write(add(5))
        await box.write(
            AddMessage(6, text(3), (1,)),
            AddMessage(7, text(4), (1, 2)),
            Acknowledge(1, (2,)),
            RemoveBranch(branch_id, 3),
        )
        for _ in range(2):
            assert await box.sequences(1) == [1, 5, 6, 7]
            assert await box.sequences(2) == [7]
            assert await box.sequences(3) == []
            assert box.store.statistics().pending_messages == 4
            await box.restart()
            assert list(box.branches) == []
            assert box.state.last_pending_list == 3
        page = await box.store.page_in(1, 5, 10, ANY_SIZE)
        assert [stored.message for stored in page] == [text(3), text(4)]
        await box.close()

    @scenario
    async def test_rolling_back_a_branch_leaves_what_it_locked(
        self, box: StoreBox, branching: None, durable: None
    ) -> None:
        ids = [BranchId(1, b"a"), BranchId(1, b"b"), BranchId(1, b"a", b"q")]
        await box.open(QUEUE, add(1))
        for number, branch_id in enumerate(ids, 10):
            branch = Branch(branch_id, number, locked=(LockedMessages(1, (1,)),))
            await box.write(PutBranch(branch), add(number, number))
        await box.write(RemoveBranch(ids[0], 10), RemoveBranch(BranchId(9, b"never"), 0))
        for _ in range(2):
            await box.restart()
            assert {branch.branch_id for branch in box.branches} == set(ids[1:])
            assert await box.sequences(1) == [1]
            assert [await box.sequences(number) for number in (10, 11, 12)] == [[], [11], [12]]
            assert box.store.statistics().pending_messages == 3
        await box.close()

    @scenario
    async def test_what_an_operator_decided_takes_the_place_of_the_branch(
        self, box: StoreBox, branching: None, durable: None
    ) -> None:
        branch_id = BranchId(1, b"transaction")
        await box.open(QUEUE, PutBranch(Branch(branch_id, 2)), add(1, 2))
        decided = Branch(branch_id, 0, BranchState.COMMITTED, 5, 6)
        await box.write(
            AddMessage(2, text(1), (1,)), RemoveBranch(branch_id, 2), PutBranch(decided)
        )
        for _ in range(2):
            await box.restart()
            assert list(box.branches) == [decided]
            assert await box.sequences(1) == [2]
            assert await box.sequences(2) == []
        await box.write(RemoveBranch(branch_id, 0))
        await box.restart()
        assert list(box.branches) == []
        assert await box.sequences(1) == [2]
        await box.close()

    # ----------------------------------------------------------------------------- duplicate ids

    @scenario
    async def test_duplicate_ids_come_back_in_the_order_of_their_sequences(
        self, box: StoreBox, deduplicating: None, durable: None
    ) -> None:
        long = "\U0001f6a2" * 128
        await box.open(
            QUEUE,
            AddDuplicateId("queue://orders", "one", 1),
            add(1),
            AddDuplicateId("topic://\u00e4", "one", 2),
        )
        await box.write(add(3), AddDuplicateId("queue://orders", long, 3))
        await box.write(AddDuplicateId("queue://orders", "four", 4))
        for _ in range(3):
            await box.restart()
            found = [
                (known.sequence, known.duplicate_id)
                for known in box.duplicate_ids
                if known.destination == "queue://orders"
            ]
            assert found == [(1, "one"), (3, long), (4, "four")]
            assert len(box.duplicate_ids) == 4
            assert box.state.last_sequence == 4
        await box.close()

    @scenario
    async def test_forgotten_duplicate_ids_stay_forgotten(
        self, box: StoreBox, deduplicating: None, durable: None
    ) -> None:
        def ids(*numbers: int) -> list[AddDuplicateId]:
            return [AddDuplicateId("queue://orders", f"id {number}", number) for number in numbers]

        await box.open(QUEUE, *ids(1, 2, 3, 4), AddDuplicateId("queue://returns", "r", 5))
        await box.write(ForgetDuplicateIds("queue://orders", 2))
        await box.restart()
        await box.write(
            *ids(6, 7), ForgetDuplicateIds("queue://orders", 6), ForgetDuplicateIds("topic://x", 9)
        )
        await box.write(*ids(8))
        for _ in range(2):
            await box.restart()
        found = [
            (known.destination, known.sequence, known.duplicate_id) for known in box.duplicate_ids
        ]
        assert sorted(found) == [
            ("queue://orders", 7, "id 7"),
            ("queue://orders", 8, "id 8"),
            ("queue://returns", 5, "r"),
        ]
        await box.close()

    # ------------------------------------------------------------------------------ concurrency

    @scenario
    async def test_pages_read_beside_writes_have_no_gaps(self, box: StoreBox) -> None:
        await box.open(QUEUE)
        is_written = False

        async def write() -> None:
            nonlocal is_written
            for first in range(1, 501, 10):
                await box.write(*[add(number) for number in range(first, first + 10)])
            is_written = True

        async def read() -> None:
            seen = 0
            while not is_written:
                page = await box.store.page_in(1, 0, 1_000, ANY_SIZE)
                assert [stored.sequence for stored in page] == list(range(1, len(page) + 1))
                assert len(page) >= seen
                seen = len(page)
                # A loop that only ever polls would starve the store's threads of the interpreter.
                await asyncio.sleep(0.001)

        await asyncio.gather(write(), read())
        assert await box.sequences() == list(range(1, 501))
        await box.close()

    @scenario
    async def test_a_batch_is_seen_whole_or_not_at_all(self, box: StoreBox) -> None:
        """Whoever sees its first message must find its last one."""
        await box.open(QUEUE, OTHER)
        is_written = False

        async def write() -> None:
            nonlocal is_written
            for first in range(1, 401, 4):
                await box.write(
                    *[add(number) for number in range(first, first + 3)], add(first + 3, 2)
                )
            is_written = True

        async def read() -> None:
            while not is_written:
                seen = await box.sequences(1)
                assert len(await box.sequences(2)) >= -(-len(seen) // 3)
                await asyncio.sleep(0)

        await asyncio.gather(write(), read())
        await box.close()

    @scenario
    async def test_a_cancelled_write_leaves_all_of_its_batch_or_nothing(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(QUEUE)
        expected: list[int] = []
        for first in range(1, 201, 10):
            numbers = list(range(first, first + 5))
            task = asyncio.create_task(box.write(*[add(number) for number in numbers]))
            for _ in range(first % 3):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await box.write(add(first + 5))
            page = await box.store.page_in(1, first - 1, 10, ANY_SIZE)
            found = [stored.sequence for stored in page]
            assert found in ([first + 5], [*numbers, first + 5])
            expected += found
        await box.restart()
        assert await box.sequences() == expected
        await box.close()

    # ------------------------------------------------------------------------- moving elsewhere

    @scenario
    async def test_everything_comes_through_the_portable_format(
        self,
        box: StoreBox,
        store_factory: MessageStoreFactory,
        store_options: object,
        durable: None,
        logged: None,
    ) -> None:
        from tidegate.portable import carry_in, carry_out

        (box.directory / "first").mkdir()
        (box.directory / "second").mkdir()
        first = StoreBox(store_factory, store_options, box.directory / "first")
        await first.open(*everything())
        await first.restart()
        held = await contents(first.store, first.state)
        out = box.directory / "exported"
        await carry_out(first.store, first.state, out)
        reference = MemoryStore(StoreContext(box.directory, "reference", keep_acknowledged=True))
        await carry_in(reference, await reference.open(), out)
        await reference.close()
        state = await reference.open()
        assert await contents(reference, state) == held
        back = box.directory / "back"
        await carry_out(reference, state, back)
        second = StoreBox(store_factory, store_options, box.directory / "second")
        await second.open()
        await carry_in(second.store, second.state, back)
        await second.restart()
        assert await contents(second.store, second.state) == held
        assert second.state.store_id != first.state.store_id
        await second.write(AddMessage(second.state.last_sequence + 1, text(1), (1,)))
        await first.close()
        await second.close()

    @scenario
    async def test_an_import_into_a_store_that_holds_something_changes_nothing(
        self,
        box: StoreBox,
        store_factory: MessageStoreFactory,
        store_options: object,
        durable: None,
    ) -> None:
        from tidegate.portable import carry_in, carry_out

        empty = MemoryStore(StoreContext(box.directory, "reference", keep_acknowledged=True))
        out = box.directory / "exported"
        await carry_out(empty, await empty.open(), out)
        (box.directory / "used").mkdir()
        used = StoreBox(store_factory, store_options, box.directory / "used")
        await used.open(QUEUE, add(1), Acknowledge(1, (1,)))
        if used.store.capabilities.acknowledged_log is not None:
            await used.rows.release_acknowledged(1)
        await used.restart()
        with pytest.raises(ConfigError):
            await carry_in(used.store, used.state, out)
        assert await used.sequences() == []
        await used.close()

    # -------------------------------------------------------------------------------- the model

    @pytest.mark.hypothesis
    def test_any_sequence_of_operations_gives_what_the_reference_gives(
        self,
        store_factory: MessageStoreFactory,
        store_options: object,
        tmp_path: Path,
        capabilities: StoreCapabilities,
        machine_settings: hypothesis.settings,
    ) -> None:
        made: list[Path] = []

        def machine() -> StoreMachine:
            directory = tmp_path / str(len(made))
            directory.mkdir()
            made.append(directory)
            return StoreMachine(store_factory, store_options, directory, capabilities)

        run_state_machine_as_test(machine, settings=machine_settings)  # type: ignore[no-untyped-call]
        assert len(made) > 1


class StoreFullConformance(StoreFixtures):
    """What a store does when its room ends, and when there is room again.

    Subclass it and override ``store_factory`` and ``limit_room``. Only what makes the room (a limit
    in the options, a simulated disk …) can do this, so the kit does not run it for ``--store``.
    """

    @pytest.fixture
    def limit_room(self, store_factory: MessageStoreFactory) -> Callable[[int | None], None]:
        """Called with a number, leave the open store about so many bytes; with None, plenty."""
        raise pytest.UsageError(f"{type(self).__name__} does not override limit_room")

    @scenario
    async def test_a_full_store_loses_nothing_and_goes_on_when_there_is_room(
        self, box: StoreBox, limit_room: Callable[[int | None], None]
    ) -> None:
        limit_room(None)
        await box.open(QUEUE)
        held: list[int] = []
        sequence = 1
        for _ in range(2):
            limit_room(SMALL_ROOM)
            refused = await _fill(box, sequence, held)
            assert await box.sequences() == held
            try:
                await box.write(Acknowledge(1, tuple(held[:1])))
                del held[0]
            except StoreFullError:  # what it needs for that may have ended too
                pass
            assert await box.sequences() == held
            limit_room(None)
            await _write_when_there_is_room(box, refused)
            held += [refused, refused + 1]
            await box.write(Acknowledge(1, tuple(held[:1])))
            del held[0]
            sequence = refused + 2
            assert await box.sequences() == held
            assert box.store.statistics().writable
        if box.store.capabilities.durable:
            await box.restart()
            assert await box.sequences() == held
        await box.close()


def _two(sequence: int) -> list[Operation]:
    return [add(number, body=bytes(10_000)) for number in (sequence, sequence + 1)]


async def _fill(box: StoreBox, sequence: int, held: list[int]) -> int:
    """Write from *sequence* on, two in a batch, into *held*. Returns the first of those refused."""
    for first in range(sequence, sequence + 1000, 2):
        try:
            await box.write(*_two(first))
        except StoreFullError:
            return first
        held += [first, first + 1]
    raise AssertionError("limit_room() did not make the store full")


async def _write_when_there_is_room(box: StoreBox, sequence: int) -> None:
    """Repeat a batch that was refused, as the broker does. Raises: TimeoutError."""
    async with asyncio.timeout(ROOM_TIMEOUT):
        while True:
            try:
                return await box.write(*_two(sequence))
            except StoreFullError:
                await asyncio.sleep(0.01)


class TestStore(StoreConformance):
    """The kit over the store that ``--store`` names."""
