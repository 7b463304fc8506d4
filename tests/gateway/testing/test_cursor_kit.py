"""The cursor kit fails over cursors that break the contract (ours pass it in their own tests)."""

from collections.abc import Callable, Sequence
from pathlib import Path

import hypothesis
import pytest

from tidegate.spi import CursorContext, CursorFactory, PendingCursor, StoredMessage
from tidegate.testing._cursor_machine import CURSOR_MACHINE_SETTINGS
from tidegate.testing.cursor_kit import CursorBox, CursorConformance
from tidegate_cursors import FileCursorFactory, StoreCursorFactory, VmCursorFactory


class Broken:
    """A cursor with one fault; everything else is passed on."""

    def __init__(self, cursor: PendingCursor, context: CursorContext) -> None:
        self._cursor = cursor
        self._context = context

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

    def create(self, context: CursorContext) -> object:
        return self._fault(self._factory.create(context), context)


kit = CursorConformance()


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        (PutsBackAtTheEnd, kit.test_put_back_messages_return_to_their_place),
        (IgnoresRemoval, kit.test_a_purge_empties_it_even_while_a_page_is_read),
        (TakesTooMany, kit.test_take_stops_at_the_limits_but_gives_one),
        (ForgetsMemory, kit.test_memory_is_accounted_by_message),
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
