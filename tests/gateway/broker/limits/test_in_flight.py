"""What is delivered and not acknowledged: counted in the tree, and who has too much waits."""

from __future__ import annotations

from tidegate.broker.limits.accounts import Accounts
from tidegate.broker.limits.in_flight import FLOOR_BYTES, STEP_BYTES, InFlightBytes
from tidegate.config import BrokerConfig, Quota

MB = 1 << 20


class Clients:
    """Connections of one gateway, with what each was told."""

    def __init__(self, *, gateway: int = 0, user: int = 0, connection: int = 0) -> None:
        config = BrokerConfig(in_flight_limit=gateway, connection_held_limit=connection)
        self.accounts = Accounts(config, [Quota(principal="*", in_flight_limit=user)])
        self.changes: list[int] = []

    def make(self, principal: str = "alice") -> InFlightBytes:
        account = self.accounts.open(principal, "peer")
        return InFlightBytes(account, lambda: self.changes.append(1))

    @property
    def counted(self) -> int:
        return self.accounts.snapshot()["in_flight.bytes"]


def test_the_tree_knows_it_to_a_step_and_nothing_when_nothing_is_in_flight() -> None:
    clients = Clients()
    one, two = clients.make(), clients.make("bob")
    for count in range(1, 2000):
        one.add(1000)
        two.add(777)
        assert abs(clients.counted - 1777 * count) <= 2 * STEP_BYTES
    for _ in range(1, 2000):
        one.add(-1000)
        two.add(-777)
    assert (one.total, clients.counted) == (0, 0)
    assert clients.accounts.snapshot()["in_flight.maximum"] > 1777 * 1900
    one.add(5 * MB)
    one.end()
    assert clients.counted == 0


def test_a_small_window_is_not_worth_telling() -> None:
    clients = Clients()
    one = clients.make()
    for _ in range(3):
        one.add(STEP_BYTES)
        assert clients.counted == 0
        one.add(-STEP_BYTES)


def test_a_connection_with_too_much_waits_until_it_has_acknowledged_some() -> None:
    clients = Clients(connection=2 * MB)
    one = clients.make()
    one.add(2 * MB)
    assert (one.is_crowded, clients.changes) == (True, [1])
    one.add(-STEP_BYTES)
    assert (one.is_crowded, clients.changes) == (False, [1, 1])


def test_where_all_have_too_much_each_goes_on_with_a_little() -> None:
    for limit in ({"user": MB}, {"gateway": MB}):
        clients = Clients(**limit)
        many = [clients.make() for _ in range(20)]
        for one in many:
            while not one.is_crowded and one.total < 10 * MB:
                one.add(10_000)
        assert sum(one.total for one in many) < MB + 20 * (FLOOR_BYTES + STEP_BYTES + 10_000)
        for one in many:
            one.add(-one.total)
            assert not one.is_crowded
            one.add(10_000)
            assert not one.is_crowded


def test_a_message_larger_than_the_limits_passes() -> None:
    clients = Clients(gateway=MB, user=MB, connection=MB)
    one = clients.make()
    for _ in range(2):
        one.add(8 * MB)
        assert one.is_crowded
        one.add(-8 * MB)
        assert not one.is_crowded
