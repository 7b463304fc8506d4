"""The HTTP application in this process, with a gateway that is made up."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest
from admin_start import START

from tidegate.spi.clients.operators import Phase, Readiness
from tidegate_admin import _protocol as protocol
from tidegate_admin.server import guard, health
from tidegate_admin.server.app import Application
from tidegate_admin.server.history import COLUMNS, Ring

SHOWN = {"authorization": "Bearer right", "content-type": "application/json"}


class Gateway:
    """Stands for the link. Attributes: asked; readiness_now; answers."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.now: Readiness | None = Readiness(Phase.RUNNING)
        self.last_readiness: Readiness | None = None
        self.silent_s = 0.0
        self.holds = asyncio.Event()
        self.holds.set()
        self.error: tuple[str, str] = ("", "")

    async def ask(
        self, peer: str, credentials: protocol.Credentials, request: bytes = b"null"
    ) -> protocol.Answer:
        self.asked.append((peer, credentials, json.loads(request)))
        await self.holds.wait()
        if credentials.token != "right":
            return protocol.Answer(1, kind=protocol.LOGIN, problem="who are you?")
        return protocol.Answer(1, msgspec.Raw(b'{"type":"done"}'), *self.error)

    async def readiness(self, timeout_s: float) -> Readiness | None:
        return self.now


class Called:
    """An answer."""

    def __init__(self, sent: list[Any]) -> None:
        self.status = sent[0]["status"]
        self.headers = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        self.body = b"".join(item.get("body", b"") for item in sent[1:])

    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """The application, called without sockets."""

    def __init__(self, start: protocol.Start = START) -> None:
        self.gateway = Gateway()
        self.ring = Ring(Path("nowhere"))
        self.app = Application(start, self.gateway, self.ring).asgi()  # type: ignore[arg-type]

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: str = "",
        body: bytes = b"",
        host: str = "127.0.0.1:8161",
        receive: Callable[[], Any] | None = None,
        more: Mapping[str, str] | None = None,
        **headers: str,
    ) -> Called:
        found = SHOWN | {"host": host} | {k.replace("_", "-"): v for k, v in headers.items()}
        found |= more or {}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(k.encode(), v.encode()) for k, v in found.items() if v],
            "client": ("::ffff:192.0.2.7", 5),
            "server": ("127.0.0.1", 8161),
        }
        sent: list[Any] = []

        async def receive_body() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive or receive_body, send)  # type: ignore[arg-type]
        return Called(sent)


@pytest.fixture
async def server() -> Server:
    return Server()


async def test_a_request_goes_through_with_who_asks(server: Server) -> None:
    found = await server.call("GET", "/api/v1/list-destinations", query="limit=3")
    assert (found.status, found.json()) == (200, {"type": "done"})
    (asked,) = server.gateway.asked
    assert asked[0] == "192.0.2.7:5"
    assert asked[1].token == "right"
    assert asked[2]["limit"] == 3
    found = await server.call("POST", "/api/v1/create-destination", body=b'{"destination":"a"}')
    assert found.status == 200
    assert server.gateway.asked[1][2] == {"type": "create-destination", "destination": "a"}


async def test_headers_are_strict_whatever_is_answered(server: Server) -> None:
    for path in ("/api/v1/list-sinks", "/health/live", "/nowhere", "/"):
        headers = (await server.call("GET", path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "set-cookie" not in headers
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    ("header", "username", "password"),
    [
        ("Basic YW5uOng6eQ==", "ann", b"x:y"),
        ("basic OnB3", "", b"pw"),
        ("Bearer abc.def", "", None),
    ],
)
async def test_credentials_are_a_bearers_or_a_users(
    server: Server, header: str, username: str, password: bytes | None
) -> None:
    await server.call("GET", "/api/v1/list-sinks", authorization=header)
    shown = server.gateway.asked[0][1]
    assert (shown.username, shown.password) == (username, password)


@pytest.mark.parametrize("header", ["", "Basic", "Basic !!", "Basic YW5u", "Digest x", "Bearer "])
async def test_without_credentials_nothing_is_asked(server: Server, header: str) -> None:
    for method, path in (("GET", "/api/v1/list-sinks"), ("POST", "/api/v1/purge-destination")):
        found = await server.call(method, path, authorization=header)
        assert found.status == 401
        assert found.headers["www-authenticate"].startswith("Bearer, Basic ")
    for path in ("/openapi.json", "/metrics"):
        assert (await server.call("GET", path, authorization=header)).status == 401
    assert not server.gateway.asked


async def test_a_wrong_question_of_somebody_unknown_is_not_explained(server: Server) -> None:
    for token, status in (("wrong", 401), ("right", 400)):
        found = await server.call(
            "GET", "/api/v1/list-sinks", query="a=b", authorization=f"Bearer {token}"
        )
        assert found.status == status
        assert ("no field" in found.json()["problem"]) is (status == 400)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("AccessError", 403),
        ("RequestError", 400),
        ("FlowControlError", 429),
        ("StoreUnavailableError", 503),
        ("StoreFullError", 503),
        ("GatewayError", 500),
        ("AnythingElse", 500),
    ],
)
async def test_errors_have_a_status_by_their_kind(server: Server, kind: str, status: int) -> None:
    server.gateway.error = (kind, "so it is")
    found = await server.call("GET", "/api/v1/list-sinks")
    assert found.status == status
    assert found.json() == {"kind": kind, "problem": "so it is"}
    assert ("retry-after" in found.headers) is (status in (429, 503))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]:8161", "localhost:1", "10.0.0.1", "Gateway.Example"]
)
async def test_a_host_that_is_known_is_served(server: Server, host: str) -> None:
    assert (await server.call("GET", "/health/live", host=host)).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "", "a b", "localhost.evil.example", "127.0.0.1.evil.example", "x:y:z"]
)
async def test_another_host_is_not_served(server: Server, host: str) -> None:
    for path in ("/health/live", "/api/v1/list-sinks"):
        assert (await server.call("GET", path, host=host)).status == 421
    assert not server.gateway.asked


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:8161"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_a_page_of_another_site_is_refused(server: Server, headers: dict[str, str]) -> None:
    path = "/api/v1/purge-destination"
    assert (
        await server.call("POST", path, body=b'{"destination":"a"}', more=headers)
    ).status == 403
    assert not server.gateway.asked


async def test_a_page_of_its_own_is_served(server: Server) -> None:
    headers = {"origin": "http://127.0.0.1:8161", "sec-fetch-site": "same-origin"}
    assert (await server.call("GET", "/api/v1/list-sinks", more=headers)).status == 200


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
async def test_what_a_form_can_send_is_refused(server: Server, kind: str) -> None:
    found = await server.call(
        "POST", "/api/v1/purge-destination", body=b'{"destination":"a"}', content_type=kind
    )
    assert found.status == 415
    assert not server.gateway.asked


async def test_a_body_that_is_too_large_is_refused_however_it_is_said(server: Server) -> None:
    path, body = "/api/v1/create-destination", b'{"destination":"' + b"a" * 1000 + b'"}'
    assert (await server.call("POST", path, body=body)).status == 413
    assert (await server.call("POST", path, content_length="1001")).status == 413
    assert not server.gateway.asked


async def test_a_body_that_does_not_come_is_given_up() -> None:
    server = Server(msgspec.structs.replace(START, request_timeout=0.01))
    found = await server.call("POST", "/api/v1/list-sinks")
    assert found.status == 405
    assert found.headers["allow"]

    async def never() -> None:
        await asyncio.Event().wait()

    found = await server.call("POST", "/api/v1/create-destination", receive=never)
    assert found.status == 408


async def test_so_many_ask_at_a_time_and_health_is_answered_all_the_same(server: Server) -> None:
    server.gateway.holds.clear()
    waiting = [
        asyncio.create_task(server.call("GET", "/api/v1/list-sinks"))
        for _ in range(START.requests_max)
    ]
    while len(server.gateway.asked) < START.requests_max:
        await asyncio.sleep(0)
    found = await server.call("GET", "/api/v1/list-sinks")
    assert (found.status, found.json()["kind"]) == (503, "FlowControlError")
    assert (await server.call("GET", "/health/ready")).status == 200
    server.gateway.holds.set()
    assert [item.status for item in await asyncio.gather(*waiting)] == [200] * START.requests_max
    assert (await server.call("GET", "/api/v1/list-sinks")).status == 200


async def test_a_gateway_that_does_not_answer_is_said_to(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_ANSWER_S", 0.01)
    server.gateway.holds.clear()
    assert (await server.call("GET", "/api/v1/list-sinks")).status == 504


async def test_there_is_nothing_else(server: Server) -> None:
    for path in (
        *("/api/v1/", "/health/", "/health/live/", "/api/v1/../x", "/health"),
        *("/console/nothing.js", "/console/../app.py", "/console/pages/", "/consoles"),
    ):
        found = await server.call("GET", path)
        assert (found.status, found.json()["kind"]) == (404, "RequestError")


async def test_the_console_is_served_to_everybody_and_may_load_nothing_else(
    server: Server,
) -> None:
    for path in ("/", "/console"):
        found = await server.call("GET", path, authorization="")
        assert (found.status, found.headers["location"]) == (307, "/console/")
    index = await server.call("GET", "/console/", authorization="")
    assert b"main.js" in index.body
    for path, kind in (
        ("", "text/html; charset=utf-8"),
        ("main.js", "text/javascript; charset=utf-8"),
        ("pages/overview.js", "text/javascript; charset=utf-8"),
        ("pages/destinations/messages.js", "text/javascript; charset=utf-8"),
        ("style.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
    ):
        found = await server.call("GET", f"/console/{path}", authorization="")
        assert (found.status, found.headers["content-type"]) == (200, kind)
        policy = found.headers["content-security-policy"].split("; ")
        assert policy[0] == "default-src 'none'"
        assert {"script-src 'self'", "style-src 'self'", "form-action 'none'"} < set(policy)
        assert not any("unsafe" in part or "http" in part or "*" in part for part in policy)
        assert found.headers["x-frame-options"] == "DENY"
    assert not server.gateway.asked


def test_the_console_has_no_markup_that_is_made_of_text_and_nothing_from_elsewhere() -> None:
    with resources.as_file(resources.files("tidegate_admin").joinpath("console")) as folder:
        texts = {
            str(item.relative_to(folder)): item.read_text()
            for item in folder.rglob("*")
            if item.is_file()
        }
    assert {"pages/drain.js", "pages/destinations/bodies.js"} < set(texts)
    for name, text in texts.items():
        found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(|new Function", text)
        assert set(found) <= ({"innerHTML"} if name == "dom.js" else set()), name  # its comment
        assert set(re.findall(r"https?://[^'\" ]*", text)) <= {"http://www.w3.org/2000/svg"}, name
    assert "style=" not in texts["index.html"]
    assert not re.search(r"<script(?![^>]*\bsrc=)|\bon\w+=", texts["index.html"])


@pytest.mark.parametrize(
    ("path", "method", "mode", "dest", "status"),
    [
        ("/console/", "GET", "navigate", "document", 200),
        ("/", "GET", "navigate", "document", 307),
        ("/console/", "GET", "navigate", "iframe", 403),
        ("/console/", "GET", "no-cors", "script", 403),
        ("/console/main.js", "GET", "navigate", "document", 403),
        ("/console/", "POST", "navigate", "document", 403),
        ("/api/v1/list-sinks", "GET", "navigate", "document", 403),
        ("/openapi.json", "GET", "navigate", "document", 403),
    ],
)
async def test_a_link_of_another_site_leads_to_the_console_and_nowhere_else(
    server: Server, path: str, method: str, mode: str, dest: str, status: int
) -> None:
    more = {"sec-fetch-site": "cross-site", "sec-fetch-mode": mode, "sec-fetch-dest": dest}
    assert (await server.call(method, path, more=more)).status == status
    assert not server.gateway.asked


@pytest.mark.parametrize(
    ("now", "status", "text"),
    [
        (Readiness(Phase.RUNNING), 200, "ready"),
        (Readiness(Phase.RUNNING, warnings=("no room",)), 200, "ready"),
        (Readiness(Phase.RUNNING, problems=("a", "b")), 503, "a; b"),
        (Readiness(Phase.RECOVERING, "replaying", 40.4), 503, "recovering, 40 % (replaying)"),
        (Readiness(Phase.RECOVERING), 503, "recovering"),
        (Readiness(Phase.STARTING), 503, "starting"),
        (Readiness(Phase.STOPPING), 503, "stopping"),
    ],
)
async def test_readiness_says_what_is_not_ready(
    server: Server, now: Readiness, status: int, text: str
) -> None:
    server.gateway.now = now
    found = await server.call("GET", "/health/ready", authorization="")
    assert (found.status, found.json()["status"]) == (status, text)
    assert found.json()["warnings"] == list(now.warnings)
    assert (await server.call("GET", "/health/live", authorization="")).status == 200


async def test_a_gateway_that_is_silent_is_alive_for_long_and_never_ready(server: Server) -> None:
    gateway = server.gateway
    gateway.now, gateway.silent_s = None, 5.0
    gateway.last_readiness = Readiness(Phase.RUNNING)
    assert (await server.call("GET", "/health/live")).status == 200
    found = await server.call("GET", "/health/ready")
    assert found.status == 503
    assert "has not answered for 5.0 s" in found.json()["status"]
    gateway.silent_s = health._DEAD_S + 1
    assert (await server.call("GET", "/health/live")).status == 503


async def test_health_that_is_not_public_wants_credentials_and_no_right() -> None:
    server = Server(msgspec.structs.replace(START, health_is_public=False))
    assert (await server.call("GET", "/health/ready", authorization="")).status == 401
    assert (await server.call("GET", "/health/ready", authorization="Bearer x")).status == 401
    assert (await server.call("GET", "/health/ready")).status == 200


# --- history -------------------------------------------------------------------------------------


async def test_history_is_for_whom_the_overview_is(server: Server) -> None:
    assert (await server.call("GET", "/history", authorization="")).status == 401
    assert not server.gateway.asked
    assert (await server.call("GET", "/history", authorization="Bearer wrong")).status == 401
    server.gateway.error = ("AccessError", "no")
    assert (await server.call("GET", "/history")).status == 403
    assert server.gateway.asked[-1][2] == {"type": "show-overview"}
    server.gateway.error = ("", "")
    found = await server.call("GET", "/history")
    assert found.status == 200
    assert (found.json()["type"], found.json()["range"]) == ("history", "15m")


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("range=7d", 200),
        ("range=1y", 400),
        ("range=", 400),
        ("wrong=7d", 400),
        ("range=1h&range=7d", 400),
    ],
)
async def test_history_goes_back_as_far_as_is_said(server: Server, query: str, status: int) -> None:
    server.ring.add(time.time(), 5.0, [1.0] * len(COLUMNS))
    found = await server.call("GET", "/history", query=query)
    assert found.status == status
    if status == 200:
        assert found.json()["step_s"] == 600
        assert {line[-1] for line in found.json()["series"].values()} == {1}


@pytest.mark.parametrize("host", [b"localhost", b"elsewhere"])
async def test_an_answer_that_the_connection_does_not_take_is_no_failure_of_ours(
    host: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The server answers half of a request itself, and refuses what comes then."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def refuse(message: Any) -> None:
        raise RuntimeError("Unexpected ASGI message")

    async def nothing() -> Any:
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/x",
        "scheme": "http",
        "headers": [(b"host", host)],
    }
    caplog.set_level("INFO")
    await guard.Guard(app, [])(scope, nothing, refuse)
    (record,) = caplog.records
    assert (record.levelname, record.exc_info) == ("INFO", None)
    assert "answer not taken path=/x" in record.getMessage()
