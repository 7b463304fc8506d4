"""Rights that change count at once for everybody, and are decided about in steps.

A step is one answer here, and the next one comes in the next turn of the loop: so whatever a test does
right after a change happens before anything was decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import pytest
from broker_harness import Broker, Client

from tidegate.broker.connection import deciding
from tidegate.broker.connection.connection import Connection
from tidegate.broker.turn import walks
from tidegate.spi import (
    AccessError,
    Action,
    ConnectionEndedError,
    Identity,
    Principal,
    RetainHandling,
    Verdict,
    names,
)

STORED: dict[str, Any] = {"clean_start": False, "session_expiry": 1000}


class Wall:
    """Refuses what has `secret` in its name once it is shut; counts what it is asked."""

    def __init__(self) -> None:
        self.is_shut = False
        self.refuses_publish = False
        self.asked = 0
        self.fails_for = ""

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        self.asked += 1
        if not self.is_shut or action is Action.CONNECT:
            return Verdict.ALLOW
        if action is Action.PUBLISH:
            return Verdict.DENY if self.refuses_publish else Verdict.ALLOW
        if "secret" in destination:
            return Verdict.DENY
        return Verdict.FILTER if names.is_filter(destination) else Verdict.ALLOW


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "SLICE_S", 0)
    monkeypatch.setattr(deciding, "DECIDED_AT_ONCE", 1)
    begin = deciding.Deciding.begin

    def begin_in_order(self: deciding.Deciding, connections: Iterable[Any]) -> None:
        begin(self, sorted(connections, key=attrgetter("client_id")))

    monkeypatch.setattr(deciding.Deciding, "begin", begin_in_order)


async def settle(broker: Broker) -> None:
    """Until all is decided, and what waited is handed out."""
    for _ in range(10_000):
        if not any(item.is_undecided for item in broker.core.connections):
            break
        await asyncio.sleep(0)
    else:
        raise AssertionError("it is never decided")
    await broker.settle()


async def first(broker: Broker) -> None:
    """Clients that take all the steps of the first turns."""
    for number in range(3):
        client = await broker.client("mqtt", f"a{number}")
        for key in range(20):
            client.subscribe("topic://first.*", f"{key}", qos=0, acknowledge=False)


KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "QoS 0": ("topic://*.plan", {}, {"qos": 0, "acknowledge": False}),
    "QoS 1": ("topic://*.plan", {}, {"qos": 1}),
    "durable": ("topic://*.plan", STORED, {"qos": 1, "durable_name": "s"}),
    "durable QoS 0": (
        "topic://*.plan",
        STORED,
        {"qos": 0, "acknowledge": False, "durable_name": "s"},
    ),
    "share group": ("topic://*.plan", {}, {"qos": 1, "share_group": "g"}),
    "queues": ("queue://*.plan", {}, {}),
    "selector": ("queue://*.plan", {}, {"selector": "x IS NULL"}),
}


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_published_right_after_a_change_is_handed_out_by_the_rights_of_then(
    kind: str, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_held:  # the negative control: decided about in steps, and served meanwhile

        def hold(self: Connection) -> bool:
            self._is_known = False
            return False

        monkeypatch.setattr(Connection, "hold_until_decided", hold)
    destination, client_is, subscribes = KINDS[kind]
    prefix = destination[:8]
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        await first(broker)
        client = await broker.client("mqtt", "c", **client_is)
        sender = await broker.client("mqtt", "z")
        for name in ("secret", "open"):
            sender.send(f"{prefix}{name}.plan", "before")
        client.subscribe(destination, **subscribes)
        sender.send(f"{prefix}open.plan", "first")
        await broker.settle()
        wanted = [b"before"] * 2 * (prefix == "queue://") + [b"first"]
        assert sorted(client.bodies()) == wanted
        if client.connection.consumers["s"].acknowledge:
            client.ack_all()
        wall.is_shut = True
        broker.core.rights_changed()
        for number in range(3):
            sender.send(f"{prefix}secret.plan", "no", qos=number % 2)
            sender.send(f"{prefix}open.plan", f"yes {number}", qos=number % 2)
        if is_held:
            assert client.connection.is_undecided
        await broker.settle()
        await settle(broker)
        assert client.ended is None
        found = client.bodies()[len(wanted) :]
        if not is_held:
            assert b"no" in found
            return
        # What is stored and what is not are in no order to each other.
        assert sorted(found) == [b"yes 0", b"yes 1", b"yes 2"]
        sender.send(f"{prefix}secret.plan", "no")
        sender.send(f"{prefix}open.plan", "last")
        await broker.settle()
        assert client.bodies()[-1] == b"last"
        assert b"no" not in client.bodies()


@pytest.mark.parametrize("is_sliced", [True, False])
async def test_a_change_is_no_work_of_one_turn(
    is_sliced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many answers as it takes, so many turns."""
    if not is_sliced:
        monkeypatch.setattr(deciding, "DECIDED_AT_ONCE", 1 << 30)
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        clients = [await broker.client("mqtt", f"c{number}") for number in range(40)]
        for client in clients:
            for number in range(5):
                client.subscribe(f"topic://*.{number}", f"{number}", qos=0, acknowledge=False)
        await broker.settle()
        wall.is_shut = True
        most, before = 0, wall.asked
        broker.core.rights_changed()
        while any(client.connection.is_undecided for client in clients):
            most = max(most, wall.asked - before)
            before = wall.asked
            await asyncio.sleep(0)
        most = max(most, wall.asked - before)
        assert most <= 4 if is_sliced else most >= 40 * 6


async def test_who_may_not_have_it_any_more_is_ended_in_its_turn_and_gets_nothing_until_then() -> (
    None
):
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        clients = [await broker.client("mqtt", f"c{number}") for number in range(9)]
        for client in clients:
            client.subscribe("topic://secret.plan")
        sender = await broker.client()
        wall.is_shut = True
        broker.core.rights_changed()
        sender.send("topic://secret.plan", "no")
        await settle(broker)
        for client in clients:
            assert isinstance(client.ended, AccessError)
            assert client.bodies() == []
        assert sender.ended is None


ACTS: dict[str, Callable[[Client], object]] = {
    "publish": lambda client: client.send("topic://t", "m"),
    "commit": lambda client: client.connection.commit("t"),
    "check": lambda client: client.connection.check_publish("topic://t"),
}


@pytest.mark.parametrize("act", ACTS)
async def test_what_a_client_asks_for_before_it_is_decided_is_answered_by_the_rights_of_now(
    act: str,
) -> None:
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        await first(broker)
        client = await broker.client("stomp", "c")
        client.connection.begin("t")
        client.send("topic://t", "m", transaction="t")
        client.send("topic://t", "m")
        await broker.settle()
        wall.is_shut = wall.refuses_publish = True
        broker.core.rights_changed()
        assert client.connection.is_undecided
        with pytest.raises(AccessError):
            ACTS[act](client)
        await settle(broker)
        with pytest.raises(AccessError):
            ACTS[act](client)
        wall.is_shut = False
        broker.core.rights_changed()
        assert client.connection.is_undecided
        ACTS[act](client)
        await settle(broker)
        ACTS["publish"](client)


@pytest.mark.parametrize("has_rules", [True, False])
async def test_a_user_who_is_gone_can_do_nothing_more(has_rules: bool) -> None:
    class Users:
        is_there = True

        async def authenticate(self, credentials: object) -> Principal:
            return Principal("user")

        def principal_now(self, principal: Principal) -> Principal | None:
            return principal if self.is_there else None

    users = Users()
    extensions: list[Any] = [users, Wall()] if has_rules else [users]
    async with Broker(extensions=extensions) as broker:
        await first(broker)
        client = await broker.client("mqtt", "c")
        client.subscribe("topic://t")
        users.is_there = False
        broker.core.rights_changed()
        for _ in range(2):
            with pytest.raises(AccessError, match="log in again"):
                client.send("topic://t", "m")
        with pytest.raises(AccessError):
            client.subscribe("topic://other", "o")
        await settle(broker)
        assert isinstance(client.ended, AccessError)
        assert not broker.core.connections


async def test_rights_that_change_again_meanwhile_are_those_that_count() -> None:
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        await first(broker)
        client, sender = await broker.client("mqtt", "c"), await broker.client("mqtt", "z")
        for number in range(9):
            client.subscribe(f"topic://{number}.*", f"{number}", qos=0, acknowledge=False)
        wall.is_shut = True
        broker.core.rights_changed()
        while not client.connection.rights.takeable:  # in the middle of it
            await asyncio.sleep(0)
        wall.is_shut = False
        broker.core.rights_changed()
        sender.send("topic://0.secret", "yes")
        await settle(broker)
        assert client.bodies() == [b"yes"]
        wall.is_shut = True
        broker.core.rights_changed()
        sender.send("topic://0.secret", "no")
        await settle(broker)
        assert client.bodies() == [b"yes"]


@pytest.mark.parametrize("protocol", ["stomp", "mqtt"])
async def test_retained_messages_that_are_on_their_way_when_rights_change(protocol: str) -> None:
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        await first(broker)
        sender, client = await broker.client("mqtt", "z"), await broker.client(protocol, "c")
        for number in range(5):
            for name in ("secret", "open"):
                sender.send(f"topic://{name}.{number}", name, retain=True)
        await broker.settle()
        broker.store.hold()
        client.subscribe("topic://*.*", retain_handling=RetainHandling.SEND, prefetch_count=1000)
        await asyncio.sleep(0)
        wall.is_shut = True
        broker.core.rights_changed()
        broker.store.release()
        await settle(broker)
        assert client.bodies() == [b"open"] * 5


async def test_a_queue_that_is_browsed_is_not_shown_on() -> None:
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        await first(broker)
        client = await broker.client("stomp", "c")
        for _ in range(3):
            client.send("queue://secret", "m")
        await broker.settle()
        client.begin_browsing("queue://secret")
        page_in = broker.store.page_in

        async def slowly(*arguments: Any) -> Any:
            page = await page_in(*arguments)
            wall.is_shut = True
            broker.core.rights_changed()
            return page

        broker.store.page_in = slowly  # type: ignore[method-assign]
        await settle(broker)
        while client.ended is None:
            await asyncio.sleep(0)
        assert client.bodies() == []


async def test_what_no_list_keeps_waits_for_the_decision_up_to_a_limit() -> None:
    async with Broker(extensions=[Wall()]) as broker:
        await first(broker)
        client, sender = await broker.client("mqtt", "c"), await broker.client("mqtt", "z")
        client.subscribe("topic://*.t", qos=1)
        await broker.settle()
        broker.core.rights_changed()
        size = deciding.HELD_BACK_BYTES
        for body in (b"1" * 2 * size, b"2"):  # the first one whatever it is
            sender.send("topic://a.t", body, qos=0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert client.connection.is_undecided
        await settle(broker)
        assert client.bodies() == [b"1" * 2 * size]
        assert broker.core.flow.dropped == 1


async def test_a_client_that_goes_or_stops_before_it_is_decided_is_left_alone() -> None:
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        await first(broker)
        clients = [await broker.client("mqtt", f"c{number}", **STORED) for number in range(3)]
        sender = await broker.client("mqtt", "z")
        for client in clients:
            client.subscribe("topic://*.t", qos=1, durable_name="s")
        wall.is_shut = True
        broker.core.rights_changed()
        sender.send("topic://a.t", "m", qos=0)
        clients[0].connection.disconnect(graceful=True)
        clients[1].connection.hold()
        again = await broker.client("mqtt", "c2", **STORED)  # takes over
        await settle(broker)
        assert [len(client.bodies()) for client in clients] == [0, 0, 0]
        assert isinstance(clients[2].ended, ConnectionEndedError)
        sender.send("topic://a.t", "m2", qos=1)
        await broker.settle()
        assert again.bodies() == [b"m2"]


async def test_a_client_about_which_it_cannot_be_decided_is_ended_and_the_others_are_not(
    monkeypatch: pytest.MonkeyPatch, logged_errors: list[str]
) -> None:
    logged_errors.append("deciding what a client may have failed")
    async with Broker(extensions=[Wall()]) as broker:
        client, other = await broker.client("mqtt", "c"), await broker.client("mqtt", "o")
        decide_who = Connection.decide_who

        def fail(self: Connection) -> None:
            if self.client_id == "c":
                raise RuntimeError("a bug")
            decide_who(self)

        monkeypatch.setattr(Connection, "decide_who", fail)
        broker.core.rights_changed()
        await settle(broker)
        assert isinstance(client.ended, ConnectionEndedError)
        monkeypatch.undo()
        assert other.ended is None
