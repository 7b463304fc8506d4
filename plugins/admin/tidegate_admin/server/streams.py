"""Events as they come: ``text/event-stream`` (HTML, "Server-sent events"), made of ``list-events``.

A stream asks the gateway for the next page, which waits there for an event, writes it, and asks
again once the client has taken it. So a slow client delays only itself, and is told what it missed.
Each question carries the credentials, so a stream ends once they are no longer valid.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from tidegate.spi.operate import EventPage, ListEvents
from tidegate_admin import _protocol as protocol
from tidegate_admin.server.endpoints import Endpoint, ParameterError
from tidegate_admin.server.link import Link

PATH: Final = "/api/v1/events"
#: Seconds between keep-alive comments when there are no events.
HEART_BEAT_S: Final = 15.0
#: How long a client may leave what was written to it unread.
TAKE_S: Final = 30.0
#: Events written at a time.
PAGE: Final = 100
#: Request fields that a stream's query may set.
FIELDS: Final = ("after", "since", "kinds", "severity")
_HEADERS: Final = [(b"content-type", b"text/event-stream; charset=utf-8")]

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(EventPage).decode


class StreamsFullError(Exception):
    """The limit of streams is reached."""


def asked_for(endpoint: Endpoint, query: QueryParams, last_id: str) -> ListEvents:
    """A stream's first request. Args: endpoint: of ``list-events``; last_id: ``Last-Event-ID``.

    Raises: ParameterError.
    """
    pairs = query.multi_items()
    for name, _ in pairs:
        if name not in FIELDS:
            known = ", ".join(FIELDS)
            raise ParameterError(f"{name!r} is no field of a stream; there are: {known}")
    if last_id:  # a reconnecting browser has read further
        if not (last_id.isascii() and last_id.isdecimal()):
            raise ParameterError("Last-Event-ID must be an id of this stream")
        pairs = [*[pair for pair in pairs if pair[0] != "after"], ("after", last_id)]
    request = msgspec.json.decode(endpoint.of_query(pairs), type=ListEvents)
    return msgspec.structs.replace(request, limit=PAGE)


class Streams:
    """All streams. Args: streams_max: at a time; a question still waiting counts too."""

    def __init__(self, link: Link, streams_max: int) -> None:
        self._link = link
        self._streams_max = streams_max
        self._count = 0

    async def begin(
        self, peer: str, credentials: protocol.Credentials, request: ListEvents
    ) -> protocol.Answer | Stream:
        """The gateway's refusal, or a stream, which is an ASGI response. Raises: StreamsFullError."""
        if self._count >= self._streams_max:
            raise StreamsFullError
        self._count += 1
        stream = Stream(self._link, peer, credentials, request, self._ended)
        answer = await stream.first()
        return answer if answer.kind else stream

    def _ended(self) -> None:
        self._count -= 1


class Stream:
    """One stream, an ASGI response."""

    def __init__(
        self,
        link: Link,
        peer: str,
        credentials: protocol.Credentials,
        request: ListEvents,
        ended: Callable[[], None],
    ) -> None:
        self._link = link
        self._peer = peer
        self._credentials = credentials
        self._request = request
        self._ended = ended
        self._page = EventPage((), request.after)

    async def first(self) -> protocol.Answer:
        """The first page, without waiting; an error ends the stream before it begins."""
        try:
            answer = await self._ask()
        except BaseException:
            self._ended()
            raise
        if answer.kind:
            self._ended()
        else:
            self._take(answer)
        return answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until the client is gone, is too slow, or may no longer read."""
        limit: asyncio.Timeout = scope["tidegate.timeout"]
        limit.reschedule(None)  # the limit for an answer; each step here has its own
        request = Request(scope, receive)
        gone = asyncio.create_task(_until_gone(request))
        asking: asyncio.Task[protocol.Answer] | None = None
        try:
            await self._send(
                send, {"type": "http.response.start", "status": 200, "headers": _HEADERS}
            )
            while not gone.done():
                await self._write(send, _shown(self._page) or b":\n\n")
                asking = asyncio.create_task(self._ask(HEART_BEAT_S))
                await asyncio.wait((gone, asking), return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return
                answer = asking.result()
                if answer.kind:
                    await self._write(send, _event("end", _problem(answer)))
                    break
                self._take(answer)
            await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
            self._leave(asking)

    def _leave(self, asking: asyncio.Task[protocol.Answer] | None) -> None:
        """Leave, but count a question still at the gateway until it is answered."""
        if asking is None or asking.done():
            self._ended()
        else:
            _LEAVING.add(asking)
            asking.add_done_callback(_LEAVING.discard)
            asking.add_done_callback(lambda _: self._ended())

    async def _ask(self, wait_s: float = 0) -> protocol.Answer:
        request = msgspec.structs.replace(self._request, wait_s=wait_s)
        return await self._link.ask(self._peer, self._credentials, _encode(request))

    def _take(self, answer: protocol.Answer) -> None:
        self._page = _decode(answer.body)
        self._request = msgspec.structs.replace(self._request, after=self._page.next)

    async def _write(self, send: Send, data: bytes) -> None:
        await self._send(send, {"type": "http.response.body", "body": data, "more_body": True})

    @staticmethod
    async def _send(send: Send, message: Mapping[str, Any]) -> None:
        async with asyncio.timeout(TAKE_S):
            await send(dict(message))


#: Questions of streams that have ended.
_LEAVING: Final[set[asyncio.Task[protocol.Answer]]] = set()


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _shown(page: EventPage) -> bytes:
    """A page as text of the stream; empty when it has no events."""
    told = b""
    if page.missed or page.is_restarted:
        told = _event("missed", {"missed": page.missed, "is_restarted": page.is_restarted})
    return told + b"".join(
        b"id: %d\ndata: %b\n\n" % (row.sequence, _encode(row)) for row in page.rows
    )


def _problem(answer: protocol.Answer) -> dict[str, str]:
    return {"kind": answer.kind, "problem": answer.problem}


def _event(name: str, data: Mapping[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(data))
