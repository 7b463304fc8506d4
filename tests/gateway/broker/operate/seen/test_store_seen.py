"""The store as operators see it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from broker_harness import Broker
from operated import ask_now, check_is_refused
from scripted_store import ScriptedStore

from tidegate.broker.operate.seen.store_seen import PARTS_S
from tidegate.spi import (
    FileHolder,
    RequestError,
    StoreFile,
    StoreIOError,
    StorePart,
    StoreStatistics,
    StoreUnavailableError,
)
from tidegate.spi.operate import ExplainFile, FileSort, ListFiles, Room, ShowStore

HOLDER = FileHolder("queue", "queue://a", "", "", "", 1, 1, 10, (1,))


class Files:
    """Files of a store. Attributes: forgets: they are gone between two looks."""

    def __init__(self) -> None:
        self.forgets = False

    def store_files(self) -> Iterator[StoreFile]:
        yield from [
            StoreFile("b", "used", 100, 90, 9),
            StoreFile("a", "used", 100, 10, 1),
            StoreFile("c", "spare", 100, 0, 0),
        ]

    async def why_kept(self, name: str) -> Sequence[FileHolder] | None:
        small, large = HOLDER, msgspec.structs.replace(HOLDER, live_bytes=80)
        return None if self.forgets else {"b": [small, large], "a": [small], "c": []}[name]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    found = Files()
    offer(monkeypatch, files=found)
    return found


def offer(monkeypatch: pytest.MonkeyPatch, **offered: Any) -> None:
    """Have every store of the tests offer this, too."""
    plain = ScriptedStore.capabilities
    assert isinstance(plain, property)
    get = plain.fget
    assert get is not None
    made = property(lambda store: dataclasses.replace(get(store), **offered))
    monkeypatch.setattr(ScriptedStore, "capabilities", made)


async def test_the_store_is_shown_with_what_it_takes_and_offers(
    monkeypatch: pytest.MonkeyPatch, logged_errors: list[str]
) -> None:
    logged_errors.append("store=read-only")
    async with Broker(store_limit=1 << 30, keep_acknowledged=True) as broker:
        statistics = StoreStatistics(3, 500, True, 100, 7)
        monkeypatch.setattr(broker.store, "statistics", lambda: statistics)
        found = await ask_now(broker, ShowStore())
        assert found.store_id == broker.core.store_id
        assert (found.messages, found.disk_bytes, found.reusable_bytes) == (3, 500, 100)
        assert (found.claimed_bytes, found.used) == (7, Room(400, 1 << 30))
        assert (found.is_writable, found.problem, found.disk_free) == (True, "", None)
        assert {"duplicate_ids", "branches"} <= set(found.offers)
        assert not {"files", "durable", "directories"} & set(found.offers)
        broker.store.error = StoreIOError("the disk is gone")
        client = await broker.client()
        client.send("queue://a", "x", "t", qos=1)
        await broker.settle()
        assert "the disk is gone" in (await ask_now(broker, ShowStore())).problem
        client.connection.disconnect(graceful=True)


class Made:
    """Parts of a store. Attributes: error: raised instead; hangs: it never answers."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hangs = False

    async def store_parts(self) -> Sequence[StorePart]:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return [StorePart("table", "t", 100, rows=3), StorePart("lease", "l", holder="us")]


async def test_what_the_store_is_made_of_is_shown_and_nobody_waits_for_one_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Made()
    offer(monkeypatch, parts=made)
    async with Broker() as broker:
        found = await ask_now(broker, ShowStore())
        assert [(part.kind, part.rows, part.holder) for part in found.parts] == [
            ("table", 3, ""),
            ("lease", None, "us"),
        ]
        assert "parts" in found.offers
        assert found.parts_problem == ""
        made.error = StoreUnavailableError("the database is away")
        found = await ask_now(broker, ShowStore())
        assert (found.parts, found.store_id) == ((), broker.core.store_id)
        assert "the database is away" in found.parts_problem
        made.hangs = True
        began = asyncio.get_running_loop().time()
        found = await ask_now(broker, ShowStore())
        assert found.parts_problem == "its database has not answered within 2 s"
        assert asyncio.get_running_loop().time() - began == pytest.approx(PARTS_S)


async def test_files_are_listed_in_their_order_or_the_emptiest_first(files: Files) -> None:
    async with Broker() as broker:
        page = await ask_now(broker, ListFiles())
        assert [file.name for file in page.rows] == ["b", "a", "c"]
        page = await ask_now(broker, ListFiles(sort=FileSort.SPARSE))
        assert [file.name for file in page.rows] == ["c", "a", "b"]
        first = await ask_now(broker, ListFiles("USED", limit=1))
        second = await ask_now(broker, ListFiles("USED", after=first.next))
        assert [file.name for file in (*first.rows, *second.rows)] == ["b", "a"]
        assert second.next == ""


async def test_a_file_is_explained_by_who_keeps_most_of_it(files: Files) -> None:
    async with Broker() as broker:
        found = await ask_now(broker, ExplainFile("b"))
        assert found.row.name == "b"
        assert [holder.live_bytes for holder in found.holders] == [80, 10]
        assert (await ask_now(broker, ExplainFile("c"))).holders == ()
        with pytest.raises(RequestError, match="no file 'd'"):
            await ask_now(broker, ExplainFile("d"))
        files.forgets = True
        with pytest.raises(RequestError, match="no file 'b'"):
            await ask_now(broker, ExplainFile("b"))


async def test_a_store_that_names_no_files_says_so() -> None:
    async with Broker() as broker:
        for request in (ListFiles(), ExplainFile("a")):
            with pytest.raises(RequestError, match="does not list"):
                await ask_now(broker, request)


@pytest.mark.parametrize("request_", [ShowStore(), ListFiles(), ExplainFile("a")])
async def test_nobody_without_the_right_sees_any(request_: Any) -> None:
    await check_is_refused(request_)
