"""Below ``disk_free_limit``, and at ``store_limit``, nothing is added, and everything that makes room goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from broker_harness import Broker
from scripted_store import ScriptedStore

from tidegate.broker.limits.disk import DiskWatch, least_free
from tidegate.broker.operate.operations import Operations
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    BranchId,
    Identity,
    StoreCapabilities,
    StoreFullError,
    StoreLostError,
    StoreShortage,
    StoreStatistics,
    room_for,
)
from tidegate.spi.operate import (
    CopyMessages,
    DeleteDestination,
    MoveMessages,
    PurgeDestination,
    ShowDestination,
)

OPERATOR = Identity("local:me", frozenset(), "", "", "operator")
LIMIT = 1000


@pytest.fixture(autouse=True)
def reusable(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes in the store's own files; its first and only item is what the store says."""
    bytes_ = [0]
    statistics = ScriptedStore.statistics

    def told(self: ScriptedStore) -> StoreStatistics:
        return dataclasses.replace(statistics(self), reusable_bytes=bytes_[0])

    monkeypatch.setattr(ScriptedStore, "statistics", told)
    return bytes_


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the store says: bytes of its files, bytes of them that can be used again, bytes that it has claimed."""
    bytes_ = [0, 0, 0]
    statistics = ScriptedStore.statistics

    def told(self: ScriptedStore) -> StoreStatistics:
        disk, reusable, claimed = bytes_
        return dataclasses.replace(
            statistics(self), disk_bytes=disk, reusable_bytes=reusable, claimed_bytes=claimed
        )

    monkeypatch.setattr(ScriptedStore, "statistics", told)
    return bytes_


def watch(broker: Broker, store_limit: int = 0) -> DiskWatch:
    return DiskWatch(broker.store, broker.core.writer, LIMIT, store_limit)


def test_half_of_the_limit_may_be_room_in_the_stores_own_files() -> None:
    assert room_for(LIMIT, 0, LIMIT) == LIMIT
    assert room_for(600, 400, LIMIT) == 1000
    assert room_for(600, 1 << 40, LIMIT) == 1100
    assert room_for(400, 1 << 40, LIMIT) == 900


async def test_what_is_short_is_short_until_there_is_a_quarter_more(
    reusable: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tidegate.broker")
    async with Broker() as broker:
        watched = watch(broker)
        steps = [(1000, 0, False), (999, 0, True), (1249, 0, True), (1250, 0, False)]
        steps += [(1000, 0, False), (600, 400, False), (600, 399, True), (600, 1000, True)]
        steps += [(750, 1000, False), (499, 9999, True)]
        for free, own, is_short in steps:
            reusable[0] = own
            watched.looked(free)
            assert watched.is_short is is_short, (free, own)
            assert (broker.core.writer.shortage.refusal is not None) is is_short
            assert watched.snapshot() == {
                "disk.free.bytes": free,
                "disk.short": int(is_short),
                "store.used.bytes": -1,
                "store.full": 0,
            }
    assert caplog.text.count("disk=short") == 3, "once each time"
    assert caplog.text.count("disk=enough") == 2


async def test_a_store_at_its_limit_is_full_until_a_tenth_is_free(
    taken: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tidegate.broker")
    async with Broker() as broker:
        client = await broker.client()
        watched = watch(broker, store_limit=1000)
        told: list[StoreShortage] = []
        watched.announce = told.append
        steps = [(999, 0, False), (1000, 0, True), (901, 0, True), (900, 0, False)]
        steps += [(1500, 501, False), (1500, 500, True), (1500, 599, True), (1500, 600, False)]
        for disk, reusable, is_full in steps:
            taken[:2] = disk, reusable
            watched.looked(-1)
            assert watched.is_short is is_full, (disk, reusable)
            used = disk - reusable
            assert watched.snapshot() == {
                "disk.free.bytes": -1,
                "disk.short": 0,
                "store.used.bytes": used,
                "store.full": int(is_full),
            }
            if is_full:
                with pytest.raises(StoreFullError, match=r"store_limit = 1000b\)"):
                    client.send("queue://q", "y")
        assert told == [
            StoreShortage("store_limit", 1000, -1, used, is_over)
            for used, is_over in ((1000, False), (900, True), (1000, False), (900, True))
        ]
    assert caplog.text.count("store=full") == 2
    assert caplog.text.count("store=enough") == 2


async def test_what_ends_one_limit_does_not_end_the_other(taken: list[int]) -> None:
    async with Broker() as broker:
        watched = watch(broker, store_limit=5000)
        told: list[tuple[str, bool]] = []
        watched.announce = lambda shortage: told.append((shortage.limit, shortage.is_over))
        for free, used, refusal in (
            (999, 5000, "disk_free_limit"),
            (2000, 5000, "store_limit"),
            (999, 5000, "store_limit"),
            (999, 4500, "disk_free_limit"),
            (1250, 4500, ""),
        ):
            taken[0] = used
            watched.looked(free)
            assert refusal in str(broker.core.writer.shortage.refusal)
            assert watched.is_short is bool(refusal)
        assert told == [
            ("disk_free_limit", False),
            ("store_limit", False),
            ("disk_free_limit", True),
            ("disk_free_limit", False),
            ("store_limit", True),
            ("disk_free_limit", True),
        ]


async def test_what_is_confirmed_or_accepted_and_not_on_the_disk_yet_counts(
    taken: list[int],
) -> None:
    async with Broker() as broker:
        client = await broker.client()
        watched = watch(broker, store_limit=5000)
        taken[2] = 300
        watched.looked(1300)
        assert not watched.is_short
        watched.looked(1299)
        assert watched.is_short
        watched.looked(2 * LIMIT)
        assert not watched.is_short
        watched.looked(1300, 301)  # when the look began
        assert watched.is_short
        watched.looked(2 * LIMIT)
        taken[:] = 4000, 0, 0
        client.send("queue://q", "x" * 1000)  # not written before the loop has its turn
        watched.looked(2 * LIMIT)
        assert watched.snapshot()["store.full"] == 1
        await broker.settle()
        taken[0] = 4500
        watched.looked(2 * LIMIT)
        assert not watched.is_short


async def test_dead_letters_go_on_and_wait_where_they_are_when_the_last_room_is_needed(
    reusable: list[int],
) -> None:
    """Not lost in either case; the room that is left is for acknowledgements."""
    async with Broker(DestinationPolicy(match=">", max_deliveries=1)) as broker:
        client = await broker.client()
        for name in "abc":
            client.send("queue://q", name)
        await broker.settle()
        watched = watch(broker)
        client.subscribe("queue://q")
        await broker.settle()
        for free, dead in (
            (LIMIT // 2, 1),
            (LIMIT // 2 - 1, 1),
            (LIMIT // 2 + LIMIT // 8 - 1, 1),
            (LIMIT // 2 + LIMIT // 8, 2),
        ):
            watched.looked(free)
            assert watched.is_short
            client.connection.reject("s", [next(iter(client.connection.consumers["s"].in_flight))])
            await broker.settle()
            assert len(broker.store.pending("queue://DLQ.q")) == dead, free
            assert len(broker.store.pending("queue://q")) == 3 - dead


async def test_it_looks_more_often_when_the_limit_is_near() -> None:
    async with Broker() as broker:
        watched = watch(broker)
        pauses: list[float] = []
        for free in (LIMIT + (4 << 30), LIMIT + (1 << 29), LIMIT + (1 << 28), LIMIT, LIMIT - 1):
            watched.looked(free)
            pauses.append(watched.pause())
        assert pauses == [1, 0.5, 0.25, 0.01, 1]


async def test_publishes_are_refused_and_what_makes_room_is_not() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for number in range(4):
            client.send("queue://q", str(number))
        client.subscribe("queue://q")
        await broker.settle()
        client.connection.begin("acknowledges")
        client.connection.acknowledge("s", [2], None, "acknowledges")
        client.connection.begin("sends")
        client.connection.begin("prepares")
        client.send("queue://q", "x", transaction="sends")
        client.send("queue://r", "x", transaction="prepares")
        client.connection.prepare("prepares", BranchId(1, b"one"))
        await broker.settle()
        watch(broker).looked(0)
        for send in (
            lambda: client.send("queue://q", "y"),
            lambda: client.send("topic://t", "y", retain=True),
            lambda: client.connection.commit("sends"),
            lambda: client.connection.commit_branch(BranchId(1, b"one")),
        ):
            with pytest.raises(StoreFullError, match="disk_free_limit"):
                send()
        client.connection.acknowledge("s", [1], "acknowledged")
        client.connection.commit("acknowledges", "committed")
        client.connection.roll_back_branch(BranchId(1, b"one"), "rolled back")
        client.subscribe("queue://new", "n")
        await broker.settle()
        assert client.confirmations[-3:] == ["acknowledged", "committed", "rolled back"]
        assert broker.store.pending("queue://q") == [b"2", b"3"]
        client.connection.abort("sends")


async def test_an_operator_makes_room() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for name in "abc":
            client.send(f"queue://{name}", "x")
        await broker.settle()
        watched = watch(broker)
        watched.looked(0)
        operations = Operations(broker.core)
        with pytest.raises(StoreFullError, match="disk_free_limit"):
            await operations.move_messages(OPERATOR, MoveMessages("queue://a", "queue://b"))
        with pytest.raises(StoreFullError, match="disk_free_limit"):
            await operations.copy_messages(OPERATOR, CopyMessages("queue://a", "queue://b"))
        shown = await operations.show_destination(OPERATOR, ShowDestination("queue://a"))
        assert "broker.disk_free_limit" in shown.refused
        await operations.purge_destination(OPERATOR, PurgeDestination("queue://a"))
        await operations.delete_destination(
            OPERATOR, DeleteDestination("queue://b", with_messages=True)
        )
        assert [broker.store.pending(f"queue://{name}") for name in "abc"] == [[], [], [b"x"]]
        watched.looked(2 * LIMIT)
        client.send("queue://a", "y", "sent")
        await broker.settle()
        assert client.confirmations == ["sent"]


async def test_the_disks_of_the_store_are_looked_at_every_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tidegate.broker")
    capabilities = ScriptedStore.capabilities.fget
    assert capabilities is not None
    asked: list[int | OSError] = [10, 99, OSError(5, "gone"), OSError(5, "gone"), 5000]
    answers = iter(asked)

    def answer(directories: Iterable[Path]) -> int:
        assert directories == (tmp_path,)
        found = next(answers, 5000)
        if isinstance(found, OSError):
            raise found
        return found

    def told(self: ScriptedStore) -> StoreCapabilities:
        return dataclasses.replace(capabilities(self), directories=(tmp_path,))

    monkeypatch.setattr(ScriptedStore, "capabilities", property(told))
    async with Broker(disk_free_limit=0) as broker:
        watched = watch(broker)
        watched.look = answer
        begun_at = asyncio.get_running_loop().time()
        watching = asyncio.create_task(watched.watch())
        seen: list[bool] = []
        for number in range(6):
            await _seconds(begun_at + number + 0.5, lambda: seen.append(watched.is_short))
        watching.cancel()
        assert seen == [True, True, True, True, False, False], "unknown is not short, nor enough"
    assert caplog.text.count("disk_free=unknown") == 1


async def test_a_store_that_is_another_gateways_by_now_is_looked_at_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lost(self: ScriptedStore) -> StoreStatistics:
        raise StoreLostError("the lock is lost")

    async with Broker(disk_free_limit=0) as broker:
        with monkeypatch.context() as patch:
            patch.setattr(ScriptedStore, "statistics", lost)
            await watch(broker, store_limit=1000).watch()
    assert not caplog.records


async def _seconds(until: float, then: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(until - loop.time())
    then()


async def test_without_a_limit_or_a_disk_nobody_looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with Broker() as broker:
        without_disk = watch(broker)
        await asyncio.wait_for(without_disk.watch(), 60)
        capabilities = StoreCapabilities(durable=True, directories=(tmp_path,))
        monkeypatch.setattr(ScriptedStore, "capabilities", capabilities)
        without_limit = DiskWatch(broker.store, broker.core.writer, 0)
        await asyncio.wait_for(without_limit.watch(), 60)
        assert (without_disk.free, without_limit.free) == (-1, -1)


def test_the_disk_with_least_counts(tmp_path: Path) -> None:
    found = least_free([tmp_path, Path("/proc")])
    assert found == 0, "of a file system without room"
    assert least_free([tmp_path]) > 0
    with pytest.raises(OSError, match="No such file"):
        least_free([tmp_path / "gone"])
