"""Server-sent events: what is written, how a stream goes on, and how it ends. The gateway is made up."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from typing import Any

import msgspec
import pytest
from admin_start import START

from tidegate.broker.events import Events
from tidegate.spi.events import Event, Severity
from tidegate.spi.operate import EventPage, ListEvents
from tidegate_admin import _protocol as protocol
from tidegate_admin.server import guard, streams
from tidegate_admin.server.app import Application

BEGIN = 1_700_000_000_000_000


class Gateway:
    """Stands for the link. Attributes: events: of the gateway; asked: requests, the last one last; error: of the next answer."""

    def __init__(self) -> None:
        self.events = Events(lambda: BEGIN)
        self.asked: deque[ListEvents] = deque(maxlen=1000)
        self.error: tuple[str, str] = ("", "")
        self.new = asyncio.Event()

    def tell(self, count: int = 1) -> None:
        for _ in range(count):
            self.events.tell(Event.STORE_FULL, logging.getLogger("tidegate.test"), "it is full")
            self.events.look()
        self.new.set()

    def fail(self, kind: str, problem: str) -> None:
        self.error = (kind, problem)
        self.new.set()

    async def ask(
        self, peer: str, credentials: protocol.Credentials, request: bytes = b"null"
    ) -> protocol.Answer:
        if credentials.token != "right":
            return protocol.Answer(1, kind=protocol.LOGIN, problem="who are you?")
        if request == b"null":
            return protocol.Answer(1)
        asked = msgspec.json.decode(request, type=ListEvents)
        self.asked.append(asked)
        page = self.events.page(asked)
        while not (page.rows or page.missed or self.error[0] or not asked.wait_s):
            self.new.clear()
            try:
                async with asyncio.timeout(asked.wait_s):
                    await self.new.wait()
            except TimeoutError:
                break
            page = self.events.page(asked)
        return protocol.Answer(1, msgspec.Raw(msgspec.json.encode(page)), *self.error)


class Reader:
    """A client of a stream. Attributes: taken: what was written; holds: it takes nothing while set."""

    def __init__(self, app: Any, *, query: str = "", **headers: str) -> None:
        found = {"authorization": "Bearer right", "host": "127.0.0.1:8161"}
        found |= {k.replace("_", "-"): v for k, v in headers.items()}
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": streams.PATH,
            "raw_path": streams.PATH.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(k.encode(), v.encode()) for k, v in found.items() if v],
            "client": ("192.0.2.7", 5),
            "server": ("127.0.0.1", 8161),
        }
        self.sent: list[Any] = []
        self._gone = asyncio.Event()
        self._news = asyncio.Event()
        self._asked = False
        self.takes = asyncio.Event()
        self.takes.set()
        self.task = asyncio.create_task(app(self._scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.takes.wait()
        self.sent.append(message)
        self._news.set()

    def leave(self) -> None:
        self._gone.set()

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {key.decode(): value.decode() for key, value in self.sent[0]["headers"]}

    @property
    def text(self) -> str:
        return b"".join(item.get("body", b"") for item in self.sent[1:]).decode()

    @property
    def ids(self) -> list[int]:
        return [int(line[4:]) for line in self.text.splitlines() if line.startswith("id: ")]

    async def until(self, text: str) -> None:
        async with asyncio.timeout(60):
            while text not in self.text:
                self._news.clear()
                await self._news.wait()

    async def ended(self) -> None:
        async with asyncio.timeout(60):
            await self.task


@pytest.fixture
async def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
async def app(gateway: Gateway) -> Any:
    return Application(START, gateway, None).asgi()  # type: ignore[arg-type]


async def test_what_is_there_is_written_and_then_what_comes(gateway: Gateway, app: Any) -> None:
    gateway.tell(2)
    reader = Reader(app, query="severity=warning&kinds=store&kinds=sink")
    await reader.until(f"id: {BEGIN + 2}\n")
    assert reader.status == 200
    assert reader.headers["content-type"].startswith("text/event-stream")
    assert reader.headers["cache-control"] == "no-store"
    gateway.tell()
    await reader.until(f"id: {BEGIN + 3}\n")
    assert reader.ids == [BEGIN + 1, BEGIN + 2, BEGIN + 3]
    data = [json.loads(line[6:]) for line in reader.text.splitlines() if line.startswith("data: ")]
    assert data[0]["event"] == "store-full"
    assert [kind.value for kind in gateway.asked[0].kinds] == ["store", "sink"]
    reader.leave()
    await reader.ended()


async def test_a_browser_that_comes_again_goes_on_where_it_was(gateway: Gateway, app: Any) -> None:
    gateway.tell(5)
    reader = Reader(app, query=f"after={BEGIN + 1}", last_event_id=str(BEGIN + 3))
    await reader.until(f"id: {BEGIN + 5}\n")
    assert reader.ids == [BEGIN + 4, BEGIN + 5]
    reader.leave()
    await reader.ended()


async def test_who_missed_events_is_told_how_many(gateway: Gateway, app: Any) -> None:
    gateway.tell(1300)
    reader = Reader(app, query=f"after={BEGIN + 100}")
    await reader.until(f"id: {BEGIN + 1300}\n")
    first, rest = reader.text.split("\n\n", 1)
    assert first == 'event: missed\ndata: {"missed":200,"is_restarted":false}'
    assert "event: missed" not in rest
    assert len(reader.ids) == 1000
    reader.leave()
    await reader.ended()
    reader = Reader(app, last_event_id="17")
    await reader.until(f"id: {BEGIN + 1300}\n")
    assert reader.text.startswith('event: missed\ndata: {"missed":0,"is_restarted":true}\n\n')
    reader.leave()
    await reader.ended()


async def test_a_stream_says_that_it_is_alive(
    gateway: Gateway, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEART_BEAT_S", 0.01)
    monkeypatch.setattr(guard, "_ANSWER_S", 0.02)  # which is for answers, and for no stream
    reader = Reader(app)
    await reader.until(":\n\n" * 10)
    reader.leave()
    await reader.ended()
    assert set(reader.text.split("\n\n")) == {":", ""}


async def test_a_stream_ends_when_its_credentials_do_not_count_any_more(
    gateway: Gateway, app: Any
) -> None:
    reader = Reader(app)
    await reader.until(":\n\n")
    gateway.fail("AccessError", "admin is not allowed")
    await reader.ended()
    end = reader.text.split("\n\n")[-2]
    assert end == 'event: end\ndata: {"kind":"AccessError","problem":"admin is not allowed"}'


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("", {"authorization": "Bearer wrong"}, 401),
        ("", {"authorization": ""}, 401),
        ("behind=1", {}, 400),
        ("wait_s=1", {}, 400),
        ("kinds=nothing", {}, 400),
        ("", {"last_event_id": "x"}, 400),
        ("", {"last_event_id": "-1"}, 400),
        ("behind=1", {"authorization": "Bearer wrong"}, 401),
    ],
)
async def test_what_is_wrong_is_told_before_the_stream_begins(
    gateway: Gateway, app: Any, query: str, headers: dict[str, str], status: int
) -> None:
    reader = Reader(app, query=query, **headers)
    await reader.ended()
    assert reader.status == status


async def test_there_are_so_many_streams_and_no_more(gateway: Gateway, app: Any) -> None:
    readers = [Reader(app) for _ in range(2)]
    for reader in readers:
        await reader.until(":\n\n")
    refused = Reader(app)
    await refused.ended()
    assert (refused.status, json.loads(refused.text)["kind"]) == (503, "FlowControlError")
    # One that was refused by the gateway takes no place, and one that is gone gives its back when the gateway has answered.
    readers[0].leave()
    await readers[0].ended()
    refused = Reader(app)
    await refused.ended()
    assert refused.status == 503
    gateway.tell()
    await readers[1].until("id: ")
    for _ in range(5):
        denied = Reader(app, authorization="Bearer wrong")
        await denied.ended()
        assert denied.status == 401
    third = Reader(app)
    await third.until("id: ")
    for reader in (readers[1], third):
        reader.leave()
        await reader.ended()


async def test_a_client_that_takes_nothing_holds_up_itself_and_ends(
    gateway: Gateway, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "TAKE_S", 0.05)
    reader, other = Reader(app, query="severity=error"), Reader(app)
    await reader.until(":\n\n")
    await other.until(":\n\n")
    reader.takes.clear()
    gateway.tell()
    await other.until("id: ")
    await reader.ended()
    assert reader.ids == []
    asked = [request for request in gateway.asked if request.severity is Severity.ERROR]
    assert [request.after for request in asked] == [0, BEGIN]  # and nothing since
    other.leave()
    await other.ended()


def test_a_page_is_written_in_one_piece() -> None:
    assert streams._shown(EventPage((), 5)) == b""
