"""What opening brought back is compared by key, so that stores may answer in any order."""

from tidegate.spi import PendingCount, RecoveredDestination, RecoveredState, Session
from tidegate.testing._portable_contents import by_key


def state(**changes: object) -> RecoveredState:
    return RecoveredState("id", **changes)  # type: ignore[arg-type]


def test_order_does_not_count() -> None:
    known = [RecoveredDestination("queue://a", 1), RecoveredDestination("topic://b", 0)]
    assert by_key(state(destinations=known)) == by_key(state(destinations=known[::-1]))


def test_an_empty_list_is_as_good_as_none() -> None:
    assert by_key(state(pending={1: PendingCount(0, 0)})) == by_key(state())


def test_everything_else_counts() -> None:
    others = [
        state(last_sequence=1),
        state(last_pending_list=1),
        state(pending={1: PendingCount(1, 0)}),
        state(sessions=[Session("a", 1)]),
        state(destinations=[RecoveredDestination("queue://a", 1)]),
    ]
    for other in others:
        assert by_key(other) != by_key(state())
