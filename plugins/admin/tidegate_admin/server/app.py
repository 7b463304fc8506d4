"""The HTTP application: routes, credentials, bodies."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tidegate.spi.operate import ListEvents, ShowOverview
from tidegate_admin import _protocol as protocol
from tidegate_admin.server import console, health, streams
from tidegate_admin.server.answers import JSON, answered, json, problem
from tidegate_admin.server.endpoints import Endpoint, ParameterError, endpoints
from tidegate_admin.server.guard import Guard
from tidegate_admin.server.history import RANGES, Ring
from tidegate_admin.server.history import shown as history
from tidegate_admin.server.link import Link

_OVERVIEW: Final = msgspec.json.encode(ShowOverview())

Handler = Callable[[Request], Awaitable[Response]]


class Application:
    """Args: start: how to serve; link: to the gateway; ring: its history."""

    def __init__(self, start: protocol.Start, link: Link, ring: Ring) -> None:
        self._start = start
        self._link = link
        self._ring = ring
        self._asking = 0
        self._endpoints = endpoints()
        self._events_endpoint = next(item for item in self._endpoints if item.request is ListEvents)
        self._streams = streams.Streams(link, start.event_streams_max)

    def asgi(self) -> ASGIApp:
        """The ASGI application with all its layers."""
        routes = [
            Route("/health/live", self._health(health.live)),
            Route("/health/ready", self._health(health.ready)),
            Route("/openapi.json", self._bounded(self._openapi)),
            Route("/metrics", self._bounded(self._metrics)),
            Route("/history", self._bounded(self._history)),
            Route(streams.PATH, self._events),
            *(
                Route(
                    item.path,
                    self._bounded(self._endpoint(item)),
                    methods=["GET"] if item.looks else ["POST"],
                )
                for item in self._endpoints
            ),
            *console.routes(),
        ]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _refused})
        app.router.redirect_slashes = False
        return Guard(app, self._start.hosts)

    @cached_property
    def _document(self) -> bytes:
        from tidegate_admin.server.openapi import document

        return document(self._endpoints, self._start.name, self._start.version)

    # --- handlers --------------------------------------------------------------------------------

    def _endpoint(self, endpoint: Endpoint) -> Handler:
        async def handle(request: Request) -> Response:
            shown = credentials_of(request)
            if shown is None:
                return _unknown()
            try:
                if endpoint.looks:
                    asked = endpoint.of_query(request.query_params.multi_items())
                else:
                    asked = endpoint.of_body(await self._body(request))
            except ParameterError as error:
                # A caller without the right to ask does not learn what is wrong with the request.
                answer = await self._link.ask(_peer(request), shown)
                if answer.kind:
                    return answered(answer)
                return problem(400, "RequestError", str(error))
            return answered(await self._link.ask(_peer(request), shown, asked))

        return handle

    async def _openapi(self, request: Request) -> Response:
        shown = credentials_of(request)
        if shown is None:
            return _unknown()
        answer = await self._link.ask(_peer(request), shown)
        return answered(answer) if answer.kind else json(self._document)

    async def _events(self, request: Request) -> ASGIApp:
        shown = credentials_of(request)
        if shown is None:
            return _unknown()
        last_id = request.headers.get("last-event-id", "")
        try:
            wanted = streams.asked_for(self._events_endpoint, request.query_params, last_id)
        except ParameterError as error:
            answer = await self._link.ask(_peer(request), shown)
            return answered(answer) if answer.kind else problem(400, "RequestError", str(error))
        try:
            found = await self._streams.begin(_peer(request), shown, wanted)
        except streams.StreamsFullError:
            return problem(503, "FlowControlError", "too many streams of events at a time")
        return answered(found) if isinstance(found, protocol.Answer) else found

    async def _metrics(self, request: Request) -> Response:
        shown = credentials_of(request)
        if shown is None:
            return _unknown()
        # Imported on first use: health must be available soon.
        from tidegate_admin.server.metrics import Shown, metrics

        start, accept = self._start, request.headers.get("accept", "")
        which = Shown(
            start.metrics_destinations_max,
            start.metrics_destinations_by,
            start.metrics_destinations,
        )
        return await metrics(self._link, _peer(request), shown, accept, which)

    async def _history(self, request: Request) -> Response:
        """Open to callers who may see the overview, which it is built from."""
        shown = credentials_of(request)
        if shown is None:
            return _unknown()
        answer = await self._link.ask(_peer(request), shown, _OVERVIEW)
        if answer.kind:
            return answered(answer)
        wanted = request.query_params.multi_items() or [("range", next(iter(RANGES)))]
        if len(wanted) > 1 or wanted[0][0] != "range" or wanted[0][1] not in RANGES:
            return problem(
                400, "RequestError", f"say range={' or '.join(RANGES)}, and nothing else"
            )
        return json(msgspec.json.encode(history(self._ring, wanted[0][1], time.time())))

    def _health(self, how: Callable[[Link], Awaitable[Response]]) -> Handler:
        async def handle(request: Request) -> Response:
            if not self._start.health_is_public:
                shown = credentials_of(request)
                if shown is None:
                    return _unknown()
                answer = await self._link.ask(_peer(request), shown)
                if answer.kind == protocol.LOGIN:
                    return answered(answer)
            return await how(self._link)

        return handle

    def _bounded(self, handler: Handler) -> Handler:
        """At most `requests_max` at a time."""

        async def handle(request: Request) -> Response:
            if self._asking >= self._start.requests_max:
                return problem(503, "FlowControlError", "too many requests at a time")
            self._asking += 1
            try:
                return await handler(request)
            finally:
                self._asking -= 1

        return handle

    async def _body(self, request: Request) -> bytes:
        """Raises: HTTPException."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON:  # a form on another site's page cannot send this type
            raise HTTPException(415, f"send the request as {JSON}")
        length = request.headers.get("content-length", "0")
        limit = self._start.request_limit
        if int(length) > limit:
            raise HTTPException(413, f"a request has at most {limit} bytes")
        body = bytearray()
        try:
            async with asyncio.timeout(self._start.request_timeout):
                async for part in request.stream():
                    body += part
                    if len(body) > limit:
                        raise HTTPException(413, f"a request has at most {limit} bytes")
        except TimeoutError:
            raise HTTPException(408, "the body did not come in time") from None
        except ClientDisconnect:
            raise HTTPException(400, "the body did not come") from None
        return bytes(body)


def credentials_of(request: Request) -> protocol.Credentials | None:
    """The request's credentials; None if it shows none."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer" and value:
        return protocol.Credentials(token=value)
    if scheme.lower() != "basic":
        return None
    try:
        username, colon, password = base64.b64decode(value, validate=True).partition(b":")
        return protocol.Credentials("", username.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None


def _unknown() -> Response:
    return problem(401, protocol.LOGIN, "credentials are required")


def _peer(request: Request) -> str:
    """``host:port`` of the client, as the gateway writes it."""
    if request.client is None:
        return ""
    host = request.client.host.removeprefix("::ffff:")
    return f"[{host}]:{request.client.port}" if ":" in host else f"{host}:{request.client.port}"


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kinds = {404: "there is nothing here; /openapi.json says what there is"}
    text = kinds.get(error.status_code, error.detail)
    return problem(error.status_code, "RequestError", text, error.headers)
