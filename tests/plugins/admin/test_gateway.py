"""The admin process of a real gateway, over real sockets."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme
from gateway_process import is_alive
from http_raw import HttpAnswer, HttpClient
from wire import StompClient

from tidegate import operator_desk, operator_socket
from tidegate.broker.core import BrokerCore
from tidegate.gateway import Gateway
from tidegate.spi import StoreUnavailableError, WriteBatch
from tidegate.spi.machine import children
from tidegate.testing.embedded import EmbeddedGateway
from tidegate_admin import _front_end, _process
from tidegate_admin._front_end import AdminFrontEnd
from tidegate_auth_file._hashes import make_hash

CONFIG = """
[[listeners]]
protocol = "admin"
bind = "127.0.0.1:0"
request_timeout = "2s"
request_limit = "64kb"
connections_max = 8

[[listeners]]
protocol = "stomp"
bind = "127.0.0.1:0"
"""
SINKS = "/api/v1/list-sinks"


def client_of(gateway: EmbeddedGateway) -> HttpClient:
    """Who can read the token file."""
    token = (gateway.data_directory / "admin.token").read_text().strip()
    return HttpClient(gateway.port("admin")).bearer(token)


def front_end(gateway: Gateway) -> AdminFrontEnd:
    found = gateway._front_ends[0]
    assert isinstance(found, AdminFrontEnd)
    return found


async def process_of(gateway: Gateway) -> int:
    """The process's id, when there is one."""
    async with asyncio.timeout(60):
        while not front_end(gateway).pid:
            await asyncio.sleep(0)
    return front_end(gateway).pid


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached():
            await asyncio.sleep(0.01)


async def test_a_stranger_gets_along(tmp_path: Path) -> None:
    async with EmbeddedGateway(CONFIG) as gateway:
        client = client_of(gateway)
        assert gateway.addresses[0] == f"http://127.0.0.1:{client.port}"
        assert stat.S_IMODE((gateway.data_directory / "admin.token").stat().st_mode) == 0o600
        assert (await HttpClient(client.port).get("/health/live")).json() == {"status": "live"}
        assert (await HttpClient(client.port).get("/health/ready")).json()["status"] == "ready"

        stomp = await StompClient.connect(gateway.stomp_port)
        stomp.send("SEND", b"x", destination="/queue/orders", receipt="1")
        await stomp.receipt("1")
        found = (await client.get("/api/v1/list-destinations")).json()
        assert [(row["destination"], row["pending"]) for row in found["rows"]] == [
            ("queue://orders", 1)
        ]
        await metrics_are_scraped(client)
        await pages_go_through(client)
        await strangers_are_refused(client)
        await requests_have_limits(client, stomp)
        await stomp.aclose()


async def metrics_are_scraped(client: HttpClient) -> None:
    assert (await HttpClient(client.port).get("/metrics")).status == 401
    found = await client.get("/metrics")
    assert found.headers["content-type"].startswith("text/plain; version=")
    lines = found.body.decode().splitlines()
    labels = '{destination="queue://orders",kind="queue"}'
    assert f"tidegate_destination_pending_messages{labels} 1.0" in lines
    assert "tidegate_messages_published_total 1.0" in lines
    assert "tidegate_ready 1.0" in lines
    assert (
        (await client.get("/metrics", accept="application/openmetrics-text"))
        .headers["content-type"]
        .startswith("application/openmetrics-text")
    )


async def pages_go_through(client: HttpClient) -> None:
    for name in "abc":
        body = {"destination": f"queue://{name}"}
        assert (await client.post("/api/v1/create-destination", body)).json()["count"] == 1
    seen: list[str] = []
    after = ""
    for _ in range(4):
        page = (await client.get(f"/api/v1/list-destinations?limit=1&after={quote(after)}")).json()
        seen += [row["destination"] for row in page["rows"]]
        after = page["next"]
    assert (seen, after) == (["queue://a", "queue://b", "queue://c", "queue://orders"], "")


async def strangers_are_refused(client: HttpClient) -> None:
    nobody = HttpClient(client.port)
    for stranger in (nobody, nobody.bearer("x" * 43), nobody.basic("ann", "x")):
        assert (await stranger.get(SINKS)).status == 401
    assert (await client.get(SINKS, host="evil.example")).status == 421
    assert (await client.get(SINKS, host="")).status == 400  # h11: HTTP/1.1 wants one
    assert (await client.get(SINKS)).status == 200


async def requests_have_limits(client: HttpClient, stomp: StompClient) -> None:
    large = await client.post("/api/v1/create-destination", {"destination": "x" * 70_000})
    assert large.status in (413, 0)  # 0: the connection is reset, with what was not read of it
    assert (await client.get("/" + "x" * 400_000)).status in (400, 0)
    assert (await client.raw(b"GARBAGE\r\n\r\n")).status == 400
    slow: list[asyncio.Task[HttpAnswer]] = []
    for begun in (b"", b"GET /health/live HTTP/1.1\r\nHost: a", b"G"):
        slow.append(asyncio.create_task(client.raw(begun)))
    head = b"POST /api/v1/create-destination HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n"
    head += f"Authorization: {client.authorization}\r\nConnection: close\r\n".encode()
    slow.append(asyncio.create_task(client.raw(head + b"Content-Type: application/json\r\n\r\n{")))
    assert [item.status for item in await asyncio.gather(*slow)] == [0, 0, 0, 408]

    held = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(40)]
    try:  # the listener's eight are taken, and messaging does not notice
        stomp.send("SEND", b"x", destination="/queue/orders", receipt="2")
        await stomp.receipt("2")
    finally:
        for item in held:
            item.close()
    async with asyncio.timeout(60):
        while (await client_answer(client)).status != 200:
            await asyncio.sleep(0.05)


async def client_answer(client: HttpClient) -> HttpAnswer:
    try:
        return await client.get(SINKS)
    except OSError:
        return HttpAnswer(0, {}, b"")


async def test_a_process_that_is_killed_is_started_again_and_messaging_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children, "AGAIN_S", 0.01)
    async with EmbeddedGateway(CONFIG) as gateway:
        client = client_of(gateway)
        stomp = await StompClient.connect(gateway.stomp_port)
        for number in range(2):
            assert (await client.get(SINKS)).status == 200
            pid = await process_of(gateway.gateway)
            os.kill(pid, signal.SIGKILL)
            stomp.send("SEND", b"x", destination="/queue/a", receipt=str(number))
            await stomp.receipt(str(number))
            await until(lambda pid=pid: front_end(gateway.gateway).pid not in (0, pid))
        await stomp.aclose()
        pid = await process_of(gateway.gateway)
        assert (await client.get("/health/ready")).status == 200  # connected while none served
    assert not is_alive(pid)


async def test_it_answers_while_the_gateway_recovers_and_while_its_store_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened, written = asyncio.Event(), asyncio.Event()
    start = BrokerCore.start

    async def slow_start(self: BrokerCore) -> object:
        desk = gateway._desk
        assert desk is not None
        desk.progressed("replaying data files", 40, 100)
        await opened.wait()
        return await start(self)

    monkeypatch.setattr(BrokerCore, "start", slow_start)
    monkeypatch.setattr(operator_desk, "WRITE_S", 0.05)
    monkeypatch.setattr(operator_socket, "REQUEST_S", 0.5)
    embedded = EmbeddedGateway(CONFIG)
    starting = asyncio.create_task(embedded.__aenter__())
    while not hasattr(embedded, "gateway") and not _made:
        await asyncio.sleep(0.01)
    gateway = _made[-1]
    await until(lambda: gateway._desk is not None and bool(gateway._front_ends))
    await process_of(gateway)
    port = int(front_end(gateway).address.rpartition(":")[2])
    client = HttpClient(port)
    found = await client.get("/health/ready")
    assert found.status == 503
    assert found.json()["status"] == "recovering, 40 % (replaying data files)"
    assert (await client.get("/health/live")).status == 200
    client = client.bearer((embedded.data_directory / "admin.token").read_text().strip())
    assert (await client.get(SINKS)).json()["problem"].startswith("the gateway is recovering")
    assert (await client.basic("ann", "x").get(SINKS)).status == 503
    assert b"\ntidegate_recovery_ratio 0.4\n" in (await client.get("/metrics")).body
    opened.set()
    await starting
    try:
        assert (await client.get("/health/ready")).status == 200
        store = gateway.broker.store
        write = store.write

        async def hanging(batch: WriteBatch) -> None:
            await written.wait()
            await write(batch)

        monkeypatch.setattr(store, "write", hanging, raising=False)
        found = await client.post("/api/v1/create-destination", {"destination": "queue://a"})
        assert (found.status, found.json()["kind"]) == (503, StoreUnavailableError.__name__)
        found = await client.get("/health/ready")
        assert found.status == 503
        assert "has not answered a write for" in found.json()["status"]
        assert (await client.get("/health/live")).status == 200
        assert (await client.get("/api/v1/list-destinations")).status == 200
        scraped = (await client.get("/metrics")).body
        assert b"\ntidegate_ready 0.0\n" in scraped
        assert b"\ntidegate_connections 0.0\n" in scraped
        written.set()
        async with asyncio.timeout(60):
            while (await client.get("/health/ready")).status != 200:
                await asyncio.sleep(0.01)
    finally:
        written.set()
        await embedded.__aexit__(None, None, None)


_made: list[Gateway] = []


@pytest.fixture(autouse=True)
def _remember(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways that are being started, too."""
    _made.clear()
    made = Gateway.__init__

    def remembering(self: Gateway, *arguments: object, **more: object) -> None:
        _made.append(self)
        made(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Gateway, "__init__", remembering)


USERS = """
[[extensions]]
plugin = "auth-file"
users = "{directory}/users"

[[extensions]]
plugin = "acl"
rules = "{directory}/acl.toml"
audit_log = "{directory}/audit.log"

[[listeners]]
protocol = "admin"
bind = ":0"
transport = "tls"
tls_certificate = "{directory}/both.pem"
tls_key = "{directory}/both.pem"
hosts = ["gateway.example"]
"""
RULES = """
[[rules]]
allow = "connect"

[[rules]]
allow = "admin"
principals = "ann"

[[rules]]
allow = "create"
principals = "ann"
destinations = "queue://>"

[[rules]]
allow = "admin"
groups = "viewers"
"""


@pytest.mark.long
async def test_users_come_in_over_tls_with_their_rights(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("gateway.example")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    lines = "".join(
        f"{name}:{make_hash('pw', memory_kib=64, time_cost=1).written()}\n"
        for name in ("ann", "ben", "eve")
    )
    lines += "!groups:viewers:ben\n"
    for name, text in (("users", lines), ("acl.toml", RULES), ("both.pem", None)):
        path = tmp_path / name
        if text is not None:
            path.write_text(text)
        path.chmod(0o600)
    curl = shutil.which("curl")
    assert curl, "curl is not here"
    async with EmbeddedGateway(USERS.format(directory=tmp_path)) as gateway:
        port = gateway.addresses[0].rpartition(":")[2]
        assert not (gateway.data_directory / "admin.token").exists()

        async def ask(user: str, path: str, *more: str) -> tuple[int, str]:
            command = [curl, "-sS", "--max-time", "60", "--cacert", str(tmp_path / "ca.pem")]
            command += ["--resolve", f"gateway.example:{port}:127.0.0.1", "-w", "\n%{http_code}"]
            if user:
                command += ["-u", user]
            command += [*more, f"https://gateway.example:{port}{path}"]
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            body, _, status = done.stdout.rpartition("\n")
            return int(status), body

        create = ("-H", "Content-Type: application/json", "-d", '{"destination":"queue://a"}')
        assert (await ask("", "/health/live"))[0] == 401  # not public where others can reach it
        assert (await ask("ann:pw", "/health/live"))[0] == 200
        assert (await ask("ann:wrong", SINKS))[0] == 401
        assert (await ask("ann:pw", SINKS))[0] == 200
        assert (await ask("ben:pw", SINKS))[0] == 200
        assert (await ask("eve:pw", SINKS))[0] == 403
        assert (await ask("ben:pw", "/api/v1/create-destination", *create))[0] == 403
        assert (await ask("ann:pw", "/api/v1/create-destination", *create))[0] == 200
        assert (await ask("ann:pw", "/openapi.json"))[0] == 200
        audit = (tmp_path / "audit.log").read_text()
    told = [line for line in audit.splitlines() if '"ann"' in line and "operated" in line]
    assert told, audit
    assert '"address":"127.0.0.1"' in told[0].replace(" ", "")
    assert '"protocol":"admin"' in told[0].replace(" ", "")
    assert "pw" not in audit


async def test_a_port_that_is_in_use_is_waited_for_until_the_store_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_front_end, "_PORT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        config = CONFIG.replace("127.0.0.1:0", f"127.0.0.1:{port}", 1)
        with pytest.raises(OSError, match="in use"):
            async with EmbeddedGateway(config):
                pass
    monkeypatch.setattr(_front_end, "_PORT_S", 60.0)
    other = socket.create_server(("127.0.0.1", port))
    asyncio.get_running_loop().call_later(0.3, other.close)
    async with EmbeddedGateway(config) as gateway:
        assert (await client_of(gateway).get(SINKS)).status == 200


async def test_events_come_as_they_happen_and_to_nobody_whose_token_is_gone() -> None:
    async with EmbeddedGateway(CONFIG) as gateway:
        client = client_of(gateway)
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(client._head("GET", "/api/v1/events?kinds=client&kinds=gateway", {}) + b"\r\n")
        async with asyncio.timeout(60):
            found = await reader.readuntil(b'"event":"gateway-started"')
            assert found.startswith(b"HTTP/1.1 200")
            stomp = await StompClient.connect(gateway.stomp_port)
            found = await reader.readuntil(b'"event":"client-connected"')
            assert b"id: " in found
            (gateway.data_directory / "admin.token").write_text("x" * 40)
            await front_end(gateway.gateway).reload()
            await stomp.aclose()
            rest = await reader.read()
        assert b"event: end" in rest
        assert b'"kind":"LoginError"' in rest
        assert b"client-disconnected" not in rest
        writer.close()


async def test_a_start_that_fails_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    pair = socket.socketpair

    def recorded() -> tuple[socket.socket, socket.socket]:
        made.extend(pair())
        return made[0], made[1]

    async def fails(*_: object, **__: object) -> None:
        raise OSError("no process")

    monkeypatch.setattr(socket, "socketpair", recorded)
    monkeypatch.setattr(_process, "start_child", fails)
    with pytest.raises(OSError, match="no process"):
        await _process.AdminProcess.start()
    assert [one.fileno() for one in made] == [-1, -1]
