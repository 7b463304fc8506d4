"""The cursor kit fails over cursors that break the contract (ours pass it in their own tests)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tidegate.spi import (
    CursorContext,
    CursorFactory,
    CursorFeed,
    PendingCursor,
    StoredMessage,
    TemporarySpace,
)
from tidegate.testing._cursor_kit import box as box_module
from tidegate.testing._cursor_kit.box import KitSpace
from tidegate.testing._cursor_machine import CURSOR_MACHINE_SETTINGS
from tidegate.testing.cursor_kit import CursorBox, CursorConformance
from tidegate_cursors import FileCursorFactory, StoreCursorFactory, VmCursorFactory


class Broken:
    """A cursor with one fault; everything else is passed on."""

    def __init__(self, cursor: PendingCursor, context: CursorContext) -> None:
        self._cursor = cursor
        self._context = context

    @staticmethod
    def context(context: CursorContext) -> CursorContext:
        """What the cursor is told, when it is not the truth."""
        return context

    def __getattr__(self, name: str) -> object:
        return getattr(self._cursor, name)


class PutsBackAtTheEnd(Broken):
    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        self._cursor.offer(messages)


class IgnoresRemoval(Broken):
    def remove(self, sequences: Sequence[int]) -> int:
        return len(sequences)


class TakesTooMany(Broken):
    def take(self, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
        return self._cursor.take(limit + 1, bytes_max)


class LosesEveryTenth(Broken):
    def offer(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        return self._cursor.offer([found for found in messages if found.sequence % 10])


class ForgetsMemory(Broken):
    memory_bytes = 0


class KeepsWorkingWhenClosed(Broken):
    async def close(self) -> None:
        pass


class IgnoresTheNumber(Broken):
    @staticmethod
    def context(context: CursorContext) -> CursorContext:
        return replace(context, memory_limit_messages=0)


class ReadsAsMuchAsItLikes(Broken):
    @staticmethod
    def context(context: CursorContext) -> CursorContext:
        return replace(context, page_bytes=0)


class DropsWhileReading(Broken):
    """Forgets what is offered while a page is read."""

    is_reading = False

    def offer(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        return () if self.is_reading else self._cursor.offer(messages)

    async def page_in(self) -> None:
        self.is_reading = True
        await self._cursor.page_in()
        self.is_reading = False


class CountsTwice(Broken):
    """What comes back while a page is read is counted with the page and beside it."""

    extra = 0
    is_reading = False

    @property
    def size(self) -> int:
        return self._cursor.size + self.extra

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        self.extra += self.is_reading and bool(messages)
        self._cursor.put_back(messages)

    async def page_in(self) -> None:
        self.is_reading = True
        await self._cursor.page_in()
        self.is_reading = False


class SaysNothing(Broken):
    """Where it feeds from is never told."""

    feed = CursorFeed()


class ReadsForEver(Broken):
    """Goes to the store once it has been there, though its consumer has caught up."""

    has_paged = False
    held: tuple[StoredMessage, ...] = ()

    @property
    def needs_page(self) -> bool:
        return bool(self.held) or self._cursor.needs_page

    @property
    def size(self) -> int:
        return self._cursor.size + len(self.held)

    def offer(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        if self.has_paged and not self._cursor.size:
            self.held = tuple(messages)
            return ()
        return self._cursor.offer(messages)

    async def page_in(self) -> None:
        self.has_paged = True
        self._cursor.offer(self.held)
        self.held = ()
        await self._cursor.page_in()


class PutsBackInFrontOfAll(Broken):
    """What was claimed comes back where the next one is taken."""

    front: tuple[StoredMessage, ...] = ()

    @property
    def size(self) -> int:
        return self._cursor.size + len(self.front)

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        self.front += tuple(messages)

    def take(self, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
        taken, self.front = self.front[:limit], self.front[limit:]
        return taken or self._cursor.take(limit, bytes_max)


class KnowsNoQuota(Broken):
    @staticmethod
    def context(context: CursorContext) -> CursorContext:
        return replace(context, temporary_space=TemporarySpace())


class TakesTheLastRoom(Broken):
    """Does not ask whether enough stays free."""

    @staticmethod
    def context(context: CursorContext) -> CursorContext:
        space = context.temporary_space
        assert isinstance(space, KitSpace)
        space.leaves_enough = lambda descriptor, size: True  # type: ignore[method-assign]
        return context


class HoldsAllTheSame(Broken):
    @staticmethod
    def context(context: CursorContext) -> CursorContext:
        return replace(context, memory_high_water_percent=100)


class GivesWayTooEarly(Broken):
    @staticmethod
    def context(context: CursorContext) -> CursorContext:
        return replace(context, memory_high_water_percent=1)


class TellsNobody(Broken):
    @staticmethod
    def context(context: CursorContext) -> CursorContext:
        return replace(context, has_room=lambda: None)


class LeavesAFile(Broken):
    def offer(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        (self._context.temporary_directory / "spool").touch()
        return self._cursor.offer(messages)


class BrokenFactory:
    def __init__(self, fault: type[Broken], factory: CursorFactory) -> None:
        self._fault = fault
        self._factory = factory

    @property
    def needs_store(self) -> bool:
        return self._factory.needs_store

    @property
    def spools(self) -> bool:
        return self._factory.spools

    def create(self, context: CursorContext) -> object:
        return self._fault(self._factory.create(self._fault.context(context)), context)


kit = CursorConformance()


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        (PutsBackAtTheEnd, kit.test_put_back_messages_return_to_their_place),
        (IgnoresRemoval, kit.test_a_purge_empties_it_even_while_a_page_is_read),
        (TakesTooMany, kit.test_take_stops_at_the_limits_but_gives_one),
        (SaysNothing, kit.test_it_tells_where_it_feeds_from_and_what_came_which_way),
        (SaysNothing, kit.test_what_waited_before_the_start_comes_from_pages),
        (ForgetsMemory, kit.test_memory_is_accounted_by_message),
        (IgnoresTheNumber, kit.test_memory_holds_no_more_messages_than_it_may),
        (IgnoresTheNumber, kit.test_a_page_brings_no_more_messages_than_memory_may_hold),
        (ReadsAsMuchAsItLikes, kit.test_no_more_bytes_are_read_at_once_than_may_be),
        (KeepsWorkingWhenClosed, kit.test_a_page_under_way_when_it_is_closed_brings_nothing),
    ],
)
def test_the_kit_catches_a_cursor_that_breaks_the_contract(
    fault: type[Broken], test: Callable[[CursorBox], None], tmp_path: Path
) -> None:
    box = CursorBox(BrokenFactory(fault, VmCursorFactory()), tmp_path)  # type: ignore[arg-type]
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(box)


@pytest.mark.parametrize(
    ("fault", "factory"),
    [
        (DropsWhileReading, StoreCursorFactory()),
        (CountsTwice, StoreCursorFactory()),
        (ReadsForEver, StoreCursorFactory()),
        (PutsBackInFrontOfAll, StoreCursorFactory()),
        (LosesEveryTenth, VmCursorFactory()),
        (IgnoresRemoval, FileCursorFactory()),
    ],
)
def test_the_kit_catches_a_switch_that_goes_wrong(
    fault: type[Broken], factory: CursorFactory, tmp_path: Path
) -> None:
    broken: CursorFactory = BrokenFactory(fault, factory)  # type: ignore[assignment]
    test: Any = kit.test_the_switch_to_pages_and_back_at_every_point  # on a loop of its own
    with pytest.raises(AssertionError):
        test(broken, tmp_path)


@pytest.mark.parametrize(
    ("fault", "factory", "test"),
    [
        (KnowsNoQuota, FileCursorFactory(), kit.test_all_cursors_together_keep_to_the_quota),
        (
            TakesTheLastRoom,
            FileCursorFactory(),
            kit.test_a_disk_without_room_costs_a_stored_list_nothing,
        ),
        (
            TakesTheLastRoom,
            FileCursorFactory(),
            kit.test_a_disk_without_room_costs_an_unstored_list_its_oldest,
        ),
        (
            HoldsAllTheSame,
            FileCursorFactory(),
            kit.test_above_the_high_water_mark_it_takes_what_it_needs,
        ),
        (
            TellsNobody,
            VmCursorFactory(),
            kit.test_above_the_high_water_mark_it_takes_what_it_needs,
        ),
        (
            GivesWayTooEarly,
            VmCursorFactory(),
            kit.test_below_the_high_water_mark_it_has_all_of_its_own,
        ),
    ],
)
def test_the_kit_catches_a_cursor_that_takes_more_room_than_it_may(
    fault: type[Broken],
    factory: CursorFactory,
    test: Callable[[CursorBox], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(box_module, "SETTLE_TIMEOUT", 0.2)  # it never will
    box = CursorBox(BrokenFactory(fault, factory), tmp_path)  # type: ignore[arg-type]
    with pytest.raises((AssertionError, TimeoutError)):
        test(box)


@pytest.mark.parametrize(
    "fault", [PutsBackAtTheEnd, IgnoresRemoval, TakesTooMany, LosesEveryTenth, LeavesAFile]
)
@pytest.mark.parametrize(
    "factory",
    [StoreCursorFactory(), VmCursorFactory(), FileCursorFactory()],
    ids=["store", "vm", "file"],
)
def test_the_model_catches_it_too(
    fault: type[Broken], factory: CursorFactory, tmp_path: Path
) -> None:
    settings = hypothesis.settings(
        CURSOR_MACHINE_SETTINGS,
        max_examples=500,
        phases=[hypothesis.Phase.generate],
        report_multiple_bugs=False,
        derandomize=True,
    )
    broken: CursorFactory = BrokenFactory(fault, factory)  # type: ignore[assignment]
    with pytest.raises(AssertionError):
        kit.test_any_sequence_of_calls_gives_what_a_plain_list_gives(broken, tmp_path, settings)
