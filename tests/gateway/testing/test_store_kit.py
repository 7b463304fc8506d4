"""The store kit passes over the reference, and fails over stores that break the contract."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from broken_stores import (
    HANGING,
    AnswersAfterClose,
    Broken,
    BrokenFactory,
    DropsTheOldestWhenFull,
    EmptiesWhatIsPaused,
    ForgetsBranches,
    ForgetsDeliveryCounts,
    ForgetsDuplicateIds,
    ForgetsTheRowsOfWhatExpired,
    ForgetsTheRowsOfWhatMoves,
    ForgetsWhatIsPaused,
    ForgetsWhoMadeQueues,
    ForgetsWhoRetained,
    ForgetsWhoseASubscriptionIs,
    ForgetsWhyItEnded,
    HangsInClose,
    HidesTheLastRow,
    IgnoresByteLimit,
    KeepsBranches,
    KeepsDuplicateIds,
    KeepsOneBranchOfEachXid,
    KeepsOneSessionOfEachClientId,
    KeepsOneSubscriptionOfEachSession,
    KeepsPacketIds,
    KeepsPartOfWhatItRefuses,
    NeverReleases,
    OffersNothingOptional,
    ReversesPages,
    RoomFactory,
    SaysItTakesNothing,
    SharesItsContents,
    SortsAcknowledgements,
    StaysFull,
    StaysReadOnlyAfterFull,
    WritesHalfOfABatch,
    WritesWhereNobodyLooks,
)

from tidegate.spi import (
    MessageStoreFactory,
    StoreContext,
    StoreIOError,
)
from tidegate.testing import _harness
from tidegate.testing._store_kit import full
from tidegate.testing._store_machine import STORE_MACHINE_SETTINGS
from tidegate.testing.memory_store import MemoryStore, MemoryStoreFactory
from tidegate.testing.store_kit import StoreBox, StoreConformance, StoreFullConformance


class TestReferenceStore(StoreConformance):
    @pytest.fixture
    def store_factory(self) -> MessageStoreFactory:
        return MemoryStoreFactory()


class TestFullReferenceStore(StoreFullConformance):
    @pytest.fixture
    def store_factory(self) -> RoomFactory:
        return RoomFactory()

    @pytest.fixture
    def limit_room(self, store_factory: RoomFactory) -> Callable[[int | None], None]:
        return store_factory.limit_room


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
