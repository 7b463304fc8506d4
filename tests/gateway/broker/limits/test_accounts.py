"""The accounting tree: what is charged below counts above, and the first limit on the way refuses."""

from __future__ import annotations

import gc

import pytest
from broker_harness import Broker

from tidegate.broker.limits.accounts import Accounts, Counted, HeldByObservers
from tidegate.config import DEFAULT_QUOTA, BrokerConfig, Quota, quota_for
from tidegate.spi import FlowControlError, Held, PluginContractError, RequestError

MB = 1 << 20


def accounts() -> Accounts:
    return Accounts(
        BrokerConfig(held_limit=4 * MB, connection_held_limit=2 * MB),
        [
            Quota(principal="a*", held_limit=3 * MB, queues_max=2, retained_limit=MB),
            Quota(principal="*", held_limit=0, queues_max=0),
        ],
    )


def test_what_is_charged_counts_for_all_above() -> None:
    tree = accounts()
    one, two = tree.open("alice", "a:1"), tree.open("alice", "a:2")
    one.charge(Held.TRANSACTIONS, MB)
    two.charge(Held.WILLS, MB // 2)
    user = tree.of("alice")
    assert (one.held, two.held, user.held, tree.gateway.held) == (
        MB,
        MB // 2,
        MB * 3 // 2,
        MB * 3 // 2,
    )
    assert tree.gateway.kinds[Held.WILLS] == MB // 2


@pytest.mark.parametrize(
    ("held", "named"),
    [
        ([("alice", 2 * MB + 1)], "broker.connection_held_limit"),
        ([("alice", 2 * MB), ("alice", MB + 1)], "quotas.held_limit"),
        ([("alice", 2 * MB), ("bob", 2 * MB), ("carol", 1)], "broker.held_limit"),
    ],
)
def test_the_first_limit_on_the_way_up_refuses_and_nothing_is_counted(
    held: list[tuple[str, int]], named: str
) -> None:
    tree = accounts()
    kept = [(tree.open(name, "peer"), size) for name, size in held]
    for account, size in kept[:-1]:
        account.charge(Held.INPUT, size)
    before = tree.gateway.held
    last, size = kept[-1]
    with pytest.raises(FlowControlError, match=named):
        last.charge(Held.INPUT, size)
    assert (last.held, tree.gateway.held) == (0, before)
    assert tree.snapshot()["held.refused"] == 1


def test_what_is_put_replaces_what_was_put_before() -> None:
    tree = accounts()
    account = tree.open("alice", "peer")
    account.put(Held.OUTPUT, MB)
    account.put(Held.OUTPUT, 2 * MB)
    with pytest.raises(FlowControlError):
        account.put(Held.OUTPUT, 2 * MB + 1)
    assert account.held == 2 * MB
    account.put(Held.OUTPUT, 1)
    assert tree.snapshot() == {
        "held.bytes": 1,
        "held.maximum": 2 * MB,
        "held.refused": 1,
        **{f"held.{kind.name.lower()}.bytes": int(kind is Held.OUTPUT) for kind in Held},
        "in_flight.bytes": 0,
        "in_flight.maximum": 0,
        "waiting.stored.bytes": 0,
        "waiting.unstored.bytes": 0,
        "spooled.bytes": 0,
        **{f"counted.{what.name.lower()}": 0 for what in Counted},
    }


def test_a_connection_that_ends_gives_back_all_that_it_held_and_no_more() -> None:
    tree = accounts()
    one, two = tree.open("alice", "a:1"), tree.open("alice", "a:2")
    for kind in Held:
        one.charge(kind, 100)
        two.charge(kind, 10)
    one.clear()
    assert tree.gateway.held == tree.of("alice").held == 10 * len(Held)


def test_each_kind_is_counted_by_itself() -> None:
    tree = accounts()
    account = tree.open("alice", "peer")
    kinds = list(Held.__members__.values())  # with those that are another one by a second name
    for number, kind in enumerate(kinds, 1):
        account.put(kind, number)
    assert [account.kinds[kind] for kind in kinds] == list(range(1, len(kinds) + 1))


def test_a_principal_is_forgotten_when_nobody_has_its_account() -> None:
    tree = accounts()
    account = tree.open("alice", "peer")
    assert [found.name for found in tree.principals()] == ["user alice"]
    account.clear()
    del account
    gc.collect()
    assert list(tree.principals()) == []


def test_without_limits_nobody_is_refused() -> None:
    quotas = [Quota(principal="*", held_limit=0)]
    tree = Accounts(BrokerConfig(held_limit=0, connection_held_limit=0), quotas)
    tree.open("alice", "peer").charge(Held.INPUT, 1 << 50)
    assert tree.gateway.peak == 1 << 50


def test_what_is_counted_has_the_limit_of_its_principal() -> None:
    tree = accounts()
    alice = tree.of("alice")
    tree.open("alice", "peer").count(Counted.QUEUES)
    alice.count(Counted.QUEUES)
    with pytest.raises(FlowControlError, match=r"user alice has 2 queues.*quotas.queues_max"):
        alice.count(Counted.QUEUES)
    alice.recount(Counted.QUEUES, -1)
    alice.count(Counted.QUEUES)
    bob = tree.of("bob")
    for _ in range(5):
        bob.count(Counted.QUEUES)
    assert tree.snapshot()["counted.queues"] == 7


def test_retained_messages_have_a_limit_of_their_own() -> None:
    tree = accounts()
    alice = tree.of("alice")
    alice.charge(Held.RETAINED, MB)
    with pytest.raises(FlowControlError, match=r"quotas.retained_limit = 1mb"):
        alice.charge(Held.RETAINED, 1)
    alice.charge(Held.WILLS, 1)


def test_what_belongs_to_nobody_is_the_gateways() -> None:
    tree = accounts()
    assert tree.of("") is tree.gateway


@pytest.mark.parametrize(
    ("principal", "found"),
    [("alice", 0), ("alice.b", 1), ("bob", 2), ("xbob", 3), ("bob\nx", 3), ("", 3)],
)
def test_the_first_quota_that_matches_is_the_whole_answer(principal: str, found: int) -> None:
    quotas = [Quota(principal=name) for name in ("alice", "a*.?*b", "bob")]
    quotas[1] = Quota(principal="a*b")
    expected = [*quotas, DEFAULT_QUOTA][found]
    assert quota_for(quotas, principal) is expected


async def test_a_subscription_is_counted_once_however_often_it_is_made() -> None:
    async with Broker() as broker:
        client = await broker.client("mqtt")
        kinds = client.connection.account.kinds
        client.subscribe("topic://a", "s")
        once = kinds[Held.SUBSCRIPTIONS]
        client.subscribe("topic://a", "s")
        assert kinds[Held.SUBSCRIPTIONS] == once > 0, "it took its own place"
        with pytest.raises(RequestError):
            client.subscribe("topic://b", "t", selector="no selector (")
        assert kinds[Held.SUBSCRIPTIONS] == once, "what was refused is not held"
        client.connection.unsubscribe("s")
        assert kinds[Held.SUBSCRIPTIONS] == 0


def test_what_observers_hold_counts_for_a_principal_as_long_as_there_is_any() -> None:
    accounts = Accounts(BrokerConfig(), [Quota(principal="ann", held_limit=1000), DEFAULT_QUOTA])
    held = HeldByObservers(accounts.of)
    assert held.hold("ann", 600)
    gc.collect()  # nobody else has the account
    assert accounts.of("ann").held == accounts.gateway.kinds[Held.OBSERVED] == 600
    assert not held.hold("ann", 600)
    assert held.hold("ben", 600)
    assert accounts.gateway.refused == 0  # nobody was refused what it asked for
    assert held.hold("ann", -600)
    gc.collect()
    assert [account.name for account in accounts.principals()] == ["user ben"]


def test_an_observer_cannot_let_go_of_more_than_it_holds() -> None:
    accounts = Accounts(BrokerConfig())
    held = HeldByObservers(accounts.of)
    assert held.hold("", 5)
    with pytest.raises(PluginContractError, match="1 bytes more"):
        held.hold("", -6)
    assert accounts.gateway.held == 5
