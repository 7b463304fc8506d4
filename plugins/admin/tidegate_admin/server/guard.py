"""Checks on every request: its host, its time limit, and the headers of its answer."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate_admin.server.answers import problem
from tidegate_admin.server.console import is_entrance

_log = logging.getLogger("tidegate.admin")

#: Longer than the gateway takes for any request.
_ANSWER_S: Final = 70.0
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


class _NotTakenError(Exception):
    """The connection can no longer take an answer."""


class Guard:
    """An ASGI application around *app*.

    Args: hosts: names that requests may be for, besides localhost and addresses.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = {"localhost", *(name.lower() for name in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begun = False

        async def strict_send(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            try:
                await send(message)
            except Exception as error:
                raise _NotTakenError(f"{type(error).__name__}: {error}") from error

        try:
            refusal = self._refusal(scope)
            if refusal:
                await problem(421 if "host" in refusal else 403, "RequestError", refusal)(
                    scope, receive, strict_send
                )
                return
            async with asyncio.timeout(_ANSWER_S) as scope["tidegate.timeout"]:
                await self._app(scope, receive, strict_send)
        except TimeoutError:
            if begun:  # too slow a reader gets no more: uvicorn closes an incomplete answer
                return
            await problem(504, "TimeoutError", "the gateway did not answer in time")(
                scope, receive, strict_send
            )
        except _NotTakenError as error:
            # A request that broke off or was malformed: the server has answered it itself.
            _log.info("answer not taken path=%s error=%s", scope["path"], error)
        except Exception:
            _log.exception("answering %s failed", scope["path"])
            if not begun:
                await problem(500, "GatewayError", "this failed; the log says why")(
                    scope, receive, strict_send
                )

    def _refusal(self, scope: Scope) -> str:
        """Why a request is refused outright; "" when it is not.

        Another site's page may reach this machine under the site's own name, or send requests
        with credentials that the browser remembers. The headers show both.
        """
        headers = Headers(scope=scope)
        found = headers.getlist("host")
        if len(found) != 1 or not self._is_known(found[0]):
            return "this host is not known here: write the name that you use into `hosts` of the listener"
        is_own = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        if not (is_own or _is_link(scope, headers)):
            return "a page of another site asks"
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{scope['scheme']}://{found[0]}".lower():
            return "a page of another origin asks"
        return ""

    def _is_known(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].lower()
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


def _is_link(scope: Scope, headers: Headers) -> bool:
    """Whether this follows a link to the console, as a top-level page and not in a frame."""
    is_page = (
        headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )
    return is_page and scope["method"] == "GET" and is_entrance(scope["path"])
