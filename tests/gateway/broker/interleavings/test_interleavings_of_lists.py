"""Lists of every kind, with every cursor, in orders that a seed draws: see ``interleaving_world``.

The wide part is in ``test_interleavings_wide.py``. What the explorer is to find it finds: each of the faults
that are put in here, some of them real ones of an earlier day.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from interleaving_steps import KINDS, Choices, Setting, SteppedWriter
from interleaving_world import drawn, play

from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.turn.flow import Flow
from tidegate.broker.turn.turn import Turn
from tidegate.broker.turn.writer import TurnWriter
from tidegate_cursors._stored_tail import StoredTail
from tidegate_store_journal.write import ring

#: Orders of each kind of list, in a store in memory and in the journal.
IN_MEMORY, IN_JOURNAL = 30, 10
#: Orders in which a fault must show itself.
TRIES = 150


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_stays_behind_and_nobody_waits(kind: str) -> None:
    for seed in range(IN_MEMORY):
        drawn(kind, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_stays_behind_in_the_journal(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "Writer", SteppedWriter)
    for seed in range(IN_JOURNAL):
        drawn(kind, seed, is_journal=True)


@pytest.mark.parametrize(("kind", "seed"), [("raised", 2_000_841), ("selectors", 1_001_702)])
def test_orders_that_once_failed(kind: str, seed: int) -> None:
    drawn(kind, seed)


def test_choices_that_differ_in_one_place_are_each_made_once() -> None:
    setting = Setting("session", acts=1, stays=True)
    first = play(setting, Choices())
    made = [first.made, *(play(setting, Choices(other)).made for other in first.neighbours())]
    assert len({tuple(number for number, _ in one) for one in made}) == len(made) > 40


def test_a_seed_says_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "Writer", SteppedWriter)
    played: list[list[tuple[int, int]]] = []
    made = Choices.__init__

    def begin(self: Choices, *args: object, **more: object) -> None:
        made(self, *args, **more)  # type: ignore[arg-type]  # what it was called with
        played.append(self.made)

    monkeypatch.setattr(Choices, "__init__", begin)
    for _ in range(2):
        drawn("shared", 1, is_journal=True)
    assert played[0] == played[1]


# --- what it is to find -----------------------------------------------------------------------------


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is taken for all that was counted."""
    read = StoredTail.read

    async def forget(self: StoredTail, limit: int, bytes_max: int) -> object:
        page = await read(self, limit, bytes_max)
        self.count = 0
        return page

    monkeypatch.setattr(StoredTail, "read", forget)


def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes while a page is read is counted as if that page had brought it."""
    add = StoredTail.add

    def count(self: StoredTail, count: int) -> None:
        if not self.is_reading:
            add(self, count)

    monkeypatch.setattr(StoredTail, "add", count)


def fragile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback that fails loses what else its turn was to do: the first burst behind a CONNECT is
    confirmed and stored, nobody is offered it, and all that comes later is delivered."""
    complete = TurnWriter._complete

    def fail(self: TurnWriter, turn: Turn) -> None:
        complete(self, turn)
        if any(type(unit.who).__name__ == "_Callbacks" for unit in turn.units):
            turn.added.clear()

    monkeypatch.setattr(TurnWriter, "_complete", fail)


def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a list asks for while a turn ends is not heard."""

    def end(self: Flow) -> None:
        ready, self.ready = self.ready, {}
        for pending_list in ready:
            pending_list.dispatch()

    monkeypatch.setattr(Flow, "_end_of_turn", end)


def stingy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room that an acknowledgement makes is told to nobody."""
    monkeypatch.setattr(Flow, "mark_lists", lambda _self, _consumer: None)


def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that was read is not handed out."""

    def paged_in(self: PendingList) -> None:
        self._paging = False

    monkeypatch.setattr(PendingList, "paged_in", paged_in)


def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came back goes behind what waits."""

    def put_back(self: PendingList, messages: list[object]) -> None:
        self.cursor.offer(messages)  # type: ignore[arg-type]  # they are
        self._around.mark_ready(self)

    monkeypatch.setattr(PendingList, "put_back", put_back)


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (forgetful, "session"),
    (blind, "session"),
    (fragile, "session"),
    (deaf, "raised"),
    (stingy, "queue"),
    (idle, "durable"),
    (hasty, "queue"),
]


@pytest.mark.parametrize(("fault", "kind"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_the_explorer_finds(
    fault: Callable[[pytest.MonkeyPatch], None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)

    def explore() -> None:
        for seed in range(TRIES):
            drawn(kind, seed)

    with pytest.raises(AssertionError):
        explore()
