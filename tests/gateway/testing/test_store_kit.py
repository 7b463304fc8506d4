"""The store kit passes over the reference, and fails over stores that break the contract."""

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest

from tidegate.spi import (
    Acknowledge,
    AcknowledgedPage,
    AddDestination,
    AddDuplicateId,
    AddMessage,
    Discard,
    DiscardReason,
    ForgetDuplicateIds,
    MessageStore,
    MessageStoreFactory,
    Move,
    Operation,
    Outcome,
    PutBranch,
    PutSubscription,
    RecordDelivery,
    RemoveBranch,
    RemoveSession,
    RemoveSubscription,
    SetRetained,
    StoreCapabilities,
    StoreContext,
    StoredMessage,
    StoreFullError,
    StoreIOError,
    WriteBatch,
)
from tidegate.testing import _harness
from tidegate.testing._store_kit import full
from tidegate.testing._store_machine import STORE_MACHINE_SETTINGS
from tidegate.testing.memory_store import MemoryContents, MemoryStore, MemoryStoreFactory
from tidegate.testing.store_kit import StoreBox, StoreConformance, StoreFullConformance


class TestReferenceStore(StoreConformance):
    @pytest.fixture
    def store_factory(self) -> MessageStoreFactory:
        return MemoryStoreFactory()


class RoomFactory:
    """Makes reference stores on contents whose room the kit decides, with *fault* when given."""

    options_type: type = MemoryStoreFactory().options_type

    def __init__(self, fault: Callable[[MemoryStore], object] = lambda store: store) -> None:
        self.contents = MemoryContents()
        self._fault = fault

    def create(self, context: StoreContext, options: object) -> MessageStore:
        return self._fault(MemoryStore(context, self.contents))  # type: ignore[return-value]

    def limit_room(self, room: int | None) -> None:
        held = self.contents.pending_bytes()
        self.contents.bytes_max = None if room is None else held + room


class TestFullReferenceStore(StoreFullConformance):
    @pytest.fixture
    def store_factory(self) -> RoomFactory:
        return RoomFactory()

    @pytest.fixture
    def limit_room(self, store_factory: RoomFactory) -> Callable[[int | None], None]:
        return store_factory.limit_room


class Broken:
    """A reference store with one fault; everything else is passed on."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    @property
    def capabilities(self) -> StoreCapabilities:
        return dataclasses.replace(self._store.capabilities, acknowledged_log=self)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


class ReversesPages(Broken):
    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        return (await self._store.page_in(pending_list, after, limit, bytes_max))[::-1]


class IgnoresByteLimit(Broken):
    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        return await self._store.page_in(pending_list, after, limit, 1 << 40)


class WritesHalfOfABatch(Broken):
    async def write(self, batch: WriteBatch) -> None:
        half = WriteBatch(batch.operations[: (len(batch) + 1) // 2])
        await self._store.write(half)
        await asyncio.sleep(0)
        await self._store.write(WriteBatch(batch.operations[len(half) :]))


class ForgetsDeliveryCounts(Broken):
    async def write(self, batch: WriteBatch) -> None:
        kept: list[Operation] = [
            known for known in batch.operations if not isinstance(known, RecordDelivery)
        ]
        await self._store.write(WriteBatch(kept, batch.durability))


class ForgetsTheRowsOfWhatExpired(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            Discard(known.pending_list, known.sequences, DiscardReason.EXPIRED)
            if isinstance(known, Acknowledge) and known.outcome is Outcome.EXPIRED
            else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class ForgetsTheRowsOfWhatMoves(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            msgspec.structs.replace(known, row=None) if isinstance(known, Move) else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class ForgetsWhyItEnded(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            msgspec.structs.replace(known, reason="") if isinstance(known, Acknowledge) else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class SortsAcknowledgements(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            Acknowledge(known.pending_list, tuple(sorted(known.sequences)))
            if isinstance(known, Acknowledge)
            else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class Without(Broken):
    """Leaves operations of one kind out."""

    kind: type

    async def write(self, batch: WriteBatch) -> None:
        kept = [known for known in batch.operations if not isinstance(known, self.kind)]
        await self._store.write(WriteBatch(kept, batch.durability))


class ForgetsBranches(Without):
    kind = PutBranch


class KeepsBranches(Without):
    kind = RemoveBranch


class ForgetsDuplicateIds(Without):
    kind = AddDuplicateId


class KeepsDuplicateIds(Without):
    kind = ForgetDuplicateIds


class ForgetsWhoseASubscriptionIs(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            PutSubscription(msgspec.structs.replace(known.subscription, session=""))
            if isinstance(known, PutSubscription)
            else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class KeepsOneSubscriptionOfEachSession(Broken):
    """As if what a session shares were one value of the session."""

    async def write(self, batch: WriteBatch) -> None:
        kept = list[Operation]()
        before = self._store.contents.subscriptions
        for known in batch.operations:
            if isinstance(known, PutSubscription) and (session := known.subscription.session):
                others = [one for one in before.values() if one.session == session]
                kept += [RemoveSubscription(one.pending_list) for one in others]
            kept.append(known)
        await self._store.write(WriteBatch(kept, batch.durability))


class ForgetsWhoMadeQueues(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            AddDestination(known.destination, known.pending_list)
            if isinstance(known, AddDestination)
            else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class ForgetsWhatIsPaused(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            AddDestination(known.destination, known.pending_list, known.owner)
            if isinstance(known, AddDestination)
            else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class EmptiesWhatIsPaused(Broken):
    async def write(self, batch: WriteBatch) -> None:
        for known in batch.operations:
            if isinstance(known, AddDestination) and known.pending_list:
                self._store.contents.lists.pop(known.pending_list, None)
        await self._store.write(batch)


class ForgetsWhoRetained(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            SetRetained(msgspec.structs.replace(known.message, owner=""))
            if isinstance(known, SetRetained)
            else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class WritesWhereNobodyLooks(Broken):
    async def open(self) -> object:
        found = await self._store.open()
        (self._store._context.data_directory / "messages").write_bytes(b"x")  # pyright: ignore[reportPrivateUsage]
        return found


class SaysItTakesNothing(Broken):
    @property
    def capabilities(self) -> StoreCapabilities:
        return dataclasses.replace(self._store.capabilities, measures_room=True)


class KeepsPacketIds(Broken):
    async def write(self, batch: WriteBatch) -> None:
        kept = dict(self._store.contents.inflight)
        await self._store.write(batch)
        if any(isinstance(known, RemoveSession) for known in batch.operations):
            self._store.contents.inflight.update(kept)


class KeepsOneSessionOfEachClientId(Broken):
    async def write(self, batch: WriteBatch) -> None:
        await self._store.write(batch)
        sessions = self._store.contents.sessions
        latest = {session.client_id or session.key: session for session in sessions.values()}
        sessions.clear()
        sessions.update({session.key: session for session in latest.values()})


class KeepsOneBranchOfEachXid(Broken):
    async def write(self, batch: WriteBatch) -> None:
        await self._store.write(batch)
        branches = self._store.contents.branches
        latest = {str(found).partition("@")[0]: branches[found] for found in branches}
        branches.clear()
        branches.update({branch.branch_id: branch for branch in latest.values()})


class HangsInClose(Broken):
    calls = 0
    goes_on = threading.Event()

    async def close(self) -> None:
        HangsInClose.calls += 1
        await self.hang()

    async def hang(self) -> None:
        await asyncio.Event().wait()


class HangsInAThread(HangsInClose):
    async def hang(self) -> None:
        await asyncio.to_thread(self.goes_on.wait)


class HangsAndBlocksTheLoop(HangsInClose):
    async def hang(self) -> None:
        self.goes_on.wait()


class HangsAndIsNotCancelled(HangsInClose):
    async def hang(self) -> None:
        while not self.goes_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)


HANGING = [HangsInClose, HangsInAThread, HangsAndBlocksTheLoop, HangsAndIsNotCancelled]


class NeverReleases(Broken):
    async def release_acknowledged(self, through: int) -> None:
        pass


class HidesTheLastRow(Broken):
    async def acknowledged(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        page = await self._store.acknowledged(after, limit, bytes_max)
        return AcknowledgedPage(page.rows[:-1], page.last)


class AnswersAfterClose(Broken):
    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        try:
            return await self._store.page_in(pending_list, after, limit, bytes_max)
        except Exception:
            return ()


class OffersNothingOptional(Broken):
    """Keeps the contract: a durable store with a log, and without what only some stores can do."""

    @property
    def capabilities(self) -> StoreCapabilities:
        return dataclasses.replace(
            self._store.capabilities, large_bodies=None, branches=None, duplicate_ids=None
        )

    async def write(self, batch: WriteBatch) -> None:
        for known in batch.operations:
            assert not isinstance(
                known, PutBranch | RemoveBranch | AddDuplicateId | ForgetDuplicateIds
            )
        await self._store.write(batch)


class SharesItsContents(Broken):
    async def open(self) -> object:
        self._store.contents.owner = None
        return await self._store.open()


class StaysReadOnlyAfterFull(Broken):
    async def write(self, batch: WriteBatch) -> None:
        try:
            await self._store.write(batch)
        except StoreFullError:
            self._store.write_error = StoreIOError("no room")
            raise


class StaysFull(Broken):
    is_full = False

    async def write(self, batch: WriteBatch) -> None:
        adds = any(isinstance(known, AddMessage) for known in batch.operations)
        try:
            if self.is_full and adds:
                raise StoreFullError("no room")
            await self._store.write(batch)
        except StoreFullError:
            self.is_full = True
            raise


class KeepsPartOfWhatItRefuses(Broken):
    async def write(self, batch: WriteBatch) -> None:
        try:
            await self._store.write(batch)
        except StoreFullError:
            self._store.contents.bytes_max = None
            await self._store.write(WriteBatch(batch.operations[:1]))
            raise


class DropsTheOldestWhenFull(Broken):
    async def write(self, batch: WriteBatch) -> None:
        try:
            await self._store.write(batch)
        except StoreFullError:
            (messages,) = self._store.contents.lists.values()
            del messages[min(messages)]
            raise


class BrokenFactory(MemoryStoreFactory):
    def __init__(self, fault: type[Broken]) -> None:
        super().__init__()
        self._fault = fault

    def create(self, context: StoreContext, options: object) -> object:  # type: ignore[override]
        return self._fault(super().create(context, options))  # type: ignore[arg-type]


kit = StoreConformance()


@pytest.mark.parametrize(
    "test",
    [
        kit.test_everything_comes_through_the_portable_format,
        kit.test_an_import_into_a_store_that_holds_something_changes_nothing,
    ],
)
def test_a_store_meets_only_what_it_offers(test: Callable[..., None], tmp_path: Path) -> None:
    box = StoreBox(BrokenFactory(OffersNothingOptional), None, tmp_path)  # type: ignore[arg-type]
    test(box, **{name: None for name in ("durable", "logged") if name in test.__annotations__})


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        (ReversesPages, kit.test_messages_come_back_in_order_with_all_their_fields),
        (IgnoresByteLimit, kit.test_a_page_stops_before_its_bodies_exceed_the_byte_limit),
        (WritesHalfOfABatch, kit.test_a_batch_is_seen_whole_or_not_at_all),
        (
            ForgetsWhoMadeQueues,
            kit.test_whose_destinations_and_retained_messages_are_comes_back,
        ),
        (
            ForgetsWhoRetained,
            kit.test_whose_destinations_and_retained_messages_are_comes_back,
        ),
        (ForgetsWhatIsPaused, kit.test_what_is_paused_comes_back_and_what_is_pending_stays),
        (EmptiesWhatIsPaused, kit.test_what_is_paused_comes_back_and_what_is_pending_stays),
        (WritesWhereNobodyLooks, kit.test_a_store_says_where_on_this_machine_it_writes),
        (SaysItTakesNothing, kit.test_a_store_that_measures_its_room_counts_what_it_keeps),
        (KeepsPacketIds, kit.test_a_session_that_comes_again_has_no_packet_ids_of_the_one_before),
        (KeepsOneSessionOfEachClientId, kit.test_sessions_and_subscriptions_of_namesakes_are_two),
        (
            KeepsOneSubscriptionOfEachSession,
            kit.test_what_a_session_shares_is_kept_and_removed_piece_by_piece,
        ),
        (
            ForgetsWhoseASubscriptionIs,
            kit.test_what_a_session_shares_is_kept_and_removed_piece_by_piece,
        ),
        (KeepsOneBranchOfEachXid, kit.test_rolling_back_a_branch_leaves_what_it_locked),
        (WritesHalfOfABatch, kit.test_a_cancelled_write_leaves_all_of_its_batch_or_nothing),
        (ForgetsDeliveryCounts, kit.test_delivery_counts_belong_to_message_and_list),
        (
            SortsAcknowledgements,
            kit.test_the_acknowledged_log_is_dense_and_in_order_of_acknowledgement,
        ),
        (ForgetsTheRowsOfWhatExpired, kit.test_a_row_says_how_it_ended),
        (ForgetsWhyItEnded, kit.test_a_row_says_how_it_ended),
        (
            ForgetsTheRowsOfWhatMoves,
            kit.test_a_message_that_moves_has_a_row_where_the_move_says_so,
        ),
        (
            ForgetsBranches,
            kit.test_a_prepared_branch_comes_back_with_its_messages_and_what_it_locks,
        ),
        (KeepsBranches, kit.test_committing_a_branch_is_one_batch),
        (KeepsBranches, kit.test_rolling_back_a_branch_leaves_what_it_locked),
        (KeepsBranches, kit.test_what_an_operator_decided_takes_the_place_of_the_branch),
        (
            ForgetsDuplicateIds,
            kit.test_duplicate_ids_come_back_in_the_order_of_their_sequences,
        ),
        (KeepsDuplicateIds, kit.test_forgotten_duplicate_ids_stay_forgotten),
        (NeverReleases, kit.test_rows_are_kept_until_they_are_released),
        (HidesTheLastRow, kit.test_the_acknowledged_log_is_read_in_pages),
        (AnswersAfterClose, kit.test_a_closed_store_refuses_all_work),
        (SharesItsContents, kit.test_only_one_store_at_a_time_owns_the_contents),
    ],
)
def test_the_kit_catches_a_store_that_breaks_the_contract(
    fault: type[Broken], test: Callable[..., None], tmp_path: Path
) -> None:
    factory = BrokenFactory(fault)
    box = StoreBox(factory, None, tmp_path)  # type: ignore[arg-type]
    names = ("durable", "logged", "branching", "deduplicating")
    arguments = {name: None for name in names if name in test.__annotations__}
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(box, **arguments)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (StaysReadOnlyAfterFull, StoreIOError),
        (StaysFull, TimeoutError),
        (KeepsPartOfWhatItRefuses, AssertionError),
        (DropsTheOldestWhenFull, AssertionError),
    ],
)
def test_the_kit_catches_a_store_that_does_not_get_over_being_full(
    fault: type[Broken],
    error: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(full, "ROOM_TIMEOUT", 0.1)
    factory = RoomFactory(fault)
    box = StoreBox(factory, None, tmp_path)
    kit: Any = StoreFullConformance()
    with pytest.raises(error):
        kit.test_a_full_store_loses_nothing_and_goes_on_when_there_is_room(box, factory.limit_room)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    limits = _harness.CLOSE_TIMEOUT + _harness.LEFT_TIMEOUT
    assert limits + 3 * _harness.BLOCKED_TIMEOUT < 15
    for name in ("CLOSE_TIMEOUT", "LEFT_TIMEOUT", "BLOCKED_TIMEOUT"):
        monkeypatch.setattr(_harness, name, 0.3)
    monkeypatch.setattr(HangsInClose, "calls", 0)
    yield
    HangsInClose.goes_on.set()
    HangsInClose.goes_on = threading.Event()


@pytest.mark.parametrize("fault", HANGING)
@pytest.mark.parametrize(
    "test",
    [
        kit.test_an_empty_batch_changes_nothing,
        kit.test_a_closed_store_refuses_all_work,
        kit.test_close_may_be_called_twice_and_before_open,
        kit.test_a_new_directory_gives_another_identity,
        kit.test_a_store_that_is_not_persistent_touches_no_disk,
        kit.test_everything_comes_through_the_portable_format,
    ],
)
def test_a_close_that_hangs_ends_its_test_soon(
    fault: type[Broken], test: Callable[..., None], tmp_path: Path, short: None
) -> None:
    box = StoreBox(BrokenFactory(fault), None, tmp_path)  # type: ignore[arg-type]
    arguments = {name: None for name in ("durable", "logged") if name in test.__annotations__}
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        test(box, **arguments)
    assert time.monotonic() - started < 60, "it waited for the limit of a scenario"


@pytest.mark.parametrize("fault", HANGING)
def test_a_close_that_hangs_ends_the_model_at_once(
    fault: type[Broken], tmp_path: Path, short: None
) -> None:
    factory = BrokenFactory(fault)
    capabilities = MemoryStore(StoreContext(tmp_path, "test")).capabilities
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        kit.test_any_sequence_of_operations_gives_what_the_reference_gives(
            factory,  # type: ignore[arg-type]
            None,
            tmp_path,
            capabilities,
            STORE_MACHINE_SETTINGS,
        )
    assert HangsInClose.calls == 1, "nobody waits for it again"
    assert time.monotonic() - started < 60, "it waited for the limit of a scenario"


@pytest.mark.parametrize(
    "fault",
    [
        ReversesPages,
        IgnoresByteLimit,
        ForgetsDeliveryCounts,
        SortsAcknowledgements,
        HidesTheLastRow,
        KeepsBranches,
        KeepsDuplicateIds,
        ForgetsWhoMadeQueues,
        ForgetsWhoseASubscriptionIs,
        ForgetsWhatIsPaused,
        EmptiesWhatIsPaused,
    ],
)
def test_the_model_catches_a_store_that_differs_from_the_reference(
    fault: type[Broken], tmp_path: Path
) -> None:
    factory = BrokenFactory(fault)
    capabilities = StoreBox(factory, None, tmp_path).make().capabilities  # type: ignore[arg-type]
    settings = hypothesis.settings(
        STORE_MACHINE_SETTINGS,
        max_examples=2000,
        phases=[hypothesis.Phase.generate],
        report_multiple_bugs=False,
        derandomize=True,
    )
    model = kit.test_any_sequence_of_operations_gives_what_the_reference_gives
    with pytest.raises(AssertionError):
        model(factory, None, tmp_path, capabilities, settings)  # type: ignore[arg-type]
