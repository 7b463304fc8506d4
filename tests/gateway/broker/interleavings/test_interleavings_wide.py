"""The wide part of the exploration of lists: see ``interleaving_world``; ``make crash`` runs it."""

from __future__ import annotations

import pytest
from interleaving_steps import KINDS, Choices, Setting, SteppedWriter
from interleaving_world import drawn, play

from tidegate_store_journal.write import ring

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(1800),
]

#: Orders that are drawn of each kind of list, in a store in memory and in the journal.
IN_MEMORY, IN_JOURNAL = 2000, 1000


@pytest.fixture(autouse=True)
def stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "Writer", SteppedWriter)


@pytest.mark.parametrize("is_journal", [False, True], ids=["memory", "journal"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_stays_behind_in_orders_that_are_drawn(kind: str, is_journal: bool) -> None:
    for seed in range(IN_JOURNAL if is_journal else IN_MEMORY):
        drawn(kind, 1_000_000 + seed, is_journal=is_journal)


@pytest.mark.parametrize("cursor", ["store", "vm", "file"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_stays_behind_in_any_order_that_differs_in_two_places(
    kind: str, cursor: str
) -> None:
    """From the one in which each step is done as soon as it can be, and each act as late."""
    _differ_in_two_places(
        Setting(kind, cursor=cursor, acts=1, stays=True, reads_late=True, page=2), least=500
    )


@pytest.mark.parametrize("kind", KINDS)
def test_nor_in_the_journal(kind: str) -> None:
    setting = Setting(kind, is_journal=True, acts=1, stays=True, reads_late=True, page=2)
    _differ_in_two_places(setting, least=1500)


def _differ_in_two_places(setting: Setting, *, least: int) -> None:
    played = 0
    for other in play(setting, Choices()).neighbours():
        for two in play(setting, Choices(other)).neighbours():
            play(setting, Choices(two))
            played += 1
    assert played > least
