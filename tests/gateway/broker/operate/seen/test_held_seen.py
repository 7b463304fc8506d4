"""Limits, what is held for whom, and cursors, as operators see them."""

from __future__ import annotations

from typing import Any

import pytest
from broker_harness import Broker, Client
from operated import ME, ask_now, check_is_refused

from tidegate.broker.operate import paging
from tidegate.broker.operate.operations import Operations
from tidegate.broker.operate.seen import held_seen
from tidegate.config import DestinationPolicy, Quota
from tidegate.spi import (
    Held,
    RequestError,
    StoreStatistics,
)
from tidegate.spi.operate import (
    CursorRow,
    CursorSort,
    LimitRow,
    LimitScope,
    LimitSort,
    ListCursors,
    ListLimits,
    ShowDrain,
    ShowHeld,
    perform,
)

A = "queue://a"
MB = 1 << 20


async def limits(broker: Broker, **wanted: Any) -> list[LimitRow]:
    """All pages of three rows each."""
    rows: list[LimitRow] = []
    after = ""
    while True:
        page = await ask_now(broker, ListLimits(after=after, limit=3, **wanted))
        assert len(page.rows) <= 3
        rows += page.rows
        after = page.next
        if not after:
            return rows


async def ended(broker: Broker, *clients: Client) -> None:
    for client in clients:
        client.connection.holds(Held.OUTPUT, 0)
        client.connection.disconnect(graceful=True)
    await broker.settle()


async def test_the_nearest_limit_comes_first_whoever_has_it() -> None:
    policy = DestinationPolicy(match=A, messages_max=10)
    quotas = (Quota("*", connections_max=4, held_limit=4 * MB),)
    async with Broker(policy, quotas=quotas, connections_max=100) as broker:
        one, two = await broker.client(client_id="one"), await broker.client(client_id="two")
        for number in range(9):
            one.send(A, str(number))
        two.connection.holds(Held.OUTPUT, 3 * MB)
        await broker.settle()
        rows = await limits(broker, percent=50)
        # What else is held for the connections is some KB.
        assert [(row.scope, row.option) for row in rows] == [
            (LimitScope.DESTINATION, "destinations.messages_max"),
            (LimitScope.USER, "quotas.held_limit"),
            (LimitScope.USER, "quotas.connections_max"),
        ]
        nearest = rows[0]
        assert (nearest.holder, nearest.number) == (A, broker.queue("a").id)
        assert (nearest.used, nearest.limit, nearest.percent) == (9, 10, 90.0)
        assert nearest.act == "as `overflow` says"
        assert (rows[2].holder, rows[2].used, rows[2].limit, rows[2].percent) == (
            one.connection.principal,
            2,
            4,
            50.0,
        )
        everything = await limits(broker)
        assert [row.percent for row in everything] == sorted(
            (row.percent for row in everything), reverse=True
        )
        assert len({(row.scope, row.holder, row.option, row.number) for row in everything}) == len(
            everything
        )
        (row,) = await limits(broker, match="BROKER.CONNECTIONS_MAX")
        assert (row.scope, row.used, row.limit, row.percent) == (LimitScope.GATEWAY, 2, 100, 2.0)
        by_name = await limits(broker, sort=LimitSort.NAME, scope=LimitScope.CONNECTION)
        assert [row.number for row in by_name if row.option == "broker.connection_held_limit"] == [
            one.connection.number,
            two.connection.number,
        ]
        await ended(broker, one, two)


async def test_of_many_connections_only_those_that_come_onto_the_page_cost_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def counted(*values: Any) -> LimitRow:
        row = LimitRow(*values)
        made.append(row.number)
        return row

    monkeypatch.setattr(held_seen, "LimitRow", counted)
    async with Broker() as broker:
        clients = [await broker.client(client_id=f"c{number}") for number in range(200)]
        for sort in LimitSort:
            made.clear()
            page = await ask_now(
                broker, ListLimits(sort=sort, scope=LimitScope.CONNECTION, limit=3)
            )
            assert len(page.rows) == 3
            assert len(made) < 100  # in whatever order they come: some 20, or those of all 200
        await ended(broker, *clients)


async def test_a_limit_that_is_not_set_has_no_row_and_of_the_free_disk_less_is_worse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Broker(store_limit=0, disk_free_limit=100 * MB) as broker:
        options = {row.option for row in await limits(broker, scope=LimitScope.GATEWAY)}
        assert "broker.store_limit" not in options
        assert "broker.disk_free_limit" not in options  # a store in memory is on no disk
        assert {"broker.held_limit", "broker.cursor_memory_limit", "broker.queues_max"} <= options
        monkeypatch.setattr(broker.core.disk, "free", 400 * MB)
        (row,) = await limits(broker, match="disk_free")
        assert (row.used, row.limit, row.percent) == (400 * MB, 100 * MB, 25.0)
    async with Broker(store_limit=100 * MB) as broker:
        full = StoreStatistics(0, 75 * MB, True)
        monkeypatch.setattr(broker.store, "statistics", lambda: full)
        (row,) = await limits(broker, match="store_limit")
        assert (row.used, row.percent) == (75 * MB, 75.0)


async def test_what_is_held_for_a_user_is_shown_with_its_connections() -> None:
    async with Broker(quotas=(Quota("*", queues_max=7),)) as broker:
        one, two = await broker.client(client_id="one"), await broker.client(client_id="two")
        user = one.connection.principal
        two.connection.holds(Held.OUTPUT, 70_000)
        one.send(A, "x")
        await broker.settle()
        found = await ask_now(broker, ShowHeld(user))
        account = one.connection.account.parent
        assert account is not None
        assert (found.held.used, found.held_peak) == (account.held, account.peak)
        assert found.kinds["output"] == 70_000
        assert (found.counts["connections"].used, found.counts["queues"].limit) == (2, 7)
        assert [below.number for below in found.below] == [
            two.connection.number,
            one.connection.number,
        ]
        everybody = await ask_now(broker, ShowHeld())
        assert everybody.user == ""
        assert [(below.name, below.number) for below in everybody.below] == [(user, 0)]
        assert everybody.held.limit == broker.config.held_limit
        assert everybody.counts["queues"].limit == broker.config.queues_max
        with pytest.raises(RequestError, match="nothing is held for user 'nobody'"):
            await ask_now(broker, ShowHeld("nobody"))
        await ended(broker, one, two)


async def test_cursors_are_listed_with_what_they_hold() -> None:
    policies = (
        DestinationPolicy(match="queue://small", memory_messages=2, memory_limit=MB),
        DestinationPolicy(match="queue://vm", cursor="vm"),
    )
    async with Broker(*policies) as broker:
        client = await broker.client(client_id="c")
        for number in range(5):
            client.send("queue://small", str(number))
        client.send("queue://vm", "x")
        client.subscribe("topic://t", "durable", durable_name="n")
        client.subscribe("topic://t", "passing", acknowledge=False)
        await broker.settle()

        async def rows(**wanted: Any) -> list[CursorRow]:
            return list((await ask_now(broker, ListCursors(**wanted))).rows)

        by_name = await rows()
        assert [(row.destination, row.cursor) for row in by_name if row.number > 0] == [
            ("queue://small", "store"),
            ("queue://vm", "vm"),
            ("topic://t", "store"),
        ]
        assert {row.destination for row in by_name if row.number < 0} == {"topic://t"}
        (small,) = await rows(paging=True)
        assert (small.pending, small.memory.limit) == (5, MB)
        assert 0 < small.memory.used == broker.queue("small").cursor.memory_bytes
        assert small.feed.is_paging
        assert [row.pending for row in await rows(sort=CursorSort.PENDING, limit=2)] == [5, 1]
        memory = [row.memory.used for row in await rows(sort=CursorSort.MEMORY)]
        assert memory == sorted(memory, reverse=True)
        assert [row.feed.subscription for row in await rows(match="N")][-1:] == ["c n"]
        first = await ask_now(broker, ListCursors(limit=1))
        second = await ask_now(broker, ListCursors(limit=1, after=first.next))
        assert [first.rows[0].destination, second.rows[0].destination] == [
            "queue://small",
            "queue://vm",
        ]
        await ended(broker, client)


@pytest.mark.parametrize("request_", [ListLimits(), ShowHeld(), ListCursors()])
async def test_nobody_without_the_right_sees_any(request_: Any) -> None:
    await check_is_refused(request_)


async def steps_of(request: Any, broker: Broker) -> int:
    """How often others have their turn until *request* is answered."""
    asking, steps = perform(Operations(broker.core), ME, request), 0
    while True:
        try:
            asking.send(None)
        except StopIteration:
            return steps
        steps += 1


@pytest.mark.parametrize(
    "request_", [ListLimits(), ShowHeld("anonymous"), ListCursors(), ShowDrain()]
)
async def test_what_goes_over_all_clients_or_lists_lets_others_have_their_turn(
    request_: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "SLICE_S", 0.0)  # each look at the clock ends one
    async with Broker() as broker:
        clients = [await broker.client(client_id=str(number)) for number in range(40)]
        for number, client in enumerate(clients):
            client.subscribe(f"queue://{number}")
        await broker.settle()
        assert await steps_of(request_, broker) >= 40 // paging._LOOKED_AT_ONCE
        await ended(broker, *clients)
