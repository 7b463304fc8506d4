"""A gateway process whose store recovers slowly, then hangs: its operators are answered all the time."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
import slow_store_gateway
from free_ports import free_port
from gateway_process import GatewayProcess
from http_raw import HttpAnswer, HttpClient
from wire import StompClient

from tidegate_admin.server.endpoints import PREFIX, Endpoint, endpoints

pytestmark = pytest.mark.long


class SlowStore(GatewayProcess):
    def command(self) -> list[str]:
        program = [sys.executable, slow_store_gateway.__file__, str(self.directory)]
        return [*program, "run", "--config", str(self.config)]


async def first_answer(gateway: GatewayProcess, client: HttpClient, path: str) -> HttpAnswer:
    """Of a gateway that is started now; the test's own limit ends it."""
    while True:
        assert gateway.process is None or gateway.process.poll() is None, gateway.tail()
        try:
            return await client.get(path)
        except ConnectionRefusedError:
            await asyncio.sleep(0.005)


async def test_operators_are_answered_while_the_store_recovers_and_while_it_hangs(
    tmp_path: Path,
) -> None:
    port = free_port()
    extra = f'[[listeners]]\nprotocol = "admin"\nbind = "127.0.0.1:{port}"\n'
    gateway, client = SlowStore(tmp_path, extra=extra), HttpClient(port)
    (tmp_path / "recover").touch()
    began = time.monotonic()
    starting = threading.Thread(target=gateway.start)
    starting.start()
    try:
        found = await first_answer(gateway, client, "/health/ready")
        print(f"first_answer_s={time.monotonic() - began:.2f} {found.json()['status']}")
        assert found.status == 503
        assert found.json()["phase"] == "recovering"
        while found.json()["percent"] is None:  # it has not come to the store yet
            found = await client.get("/health/ready")
        print(f"percent_s={time.monotonic() - began:.2f} {found.json()['status']}")
        assert found.json()["status"] == "recovering, 40 % (replaying data files)"
        (tmp_path / "recover").unlink()
        await asyncio.to_thread(starting.join)
        assert (await client.get("/health/ready")).status == 200
        await hangs(gateway, client)
        assert gateway.stop() == 0
    finally:
        (tmp_path / "hang").unlink(missing_ok=True)
        (tmp_path / "recover").unlink(missing_ok=True)
        await asyncio.to_thread(starting.join)
        gateway.__exit__()


async def hangs(gateway: GatewayProcess, client: HttpClient) -> None:
    """Whatever only looks is answered, and says so; what was sent is confirmed when the store goes on."""
    token = (gateway.directory / "data" / "admin.token").read_text().strip()
    operator = client.bearer(token)
    stomp = await StompClient.connect(gateway.stomp_port)
    try:
        await asked_meanwhile(gateway, client, operator, stomp)
    finally:
        await stomp.aclose()


async def asked_meanwhile(
    gateway: GatewayProcess, client: HttpClient, operator: HttpClient, stomp: StompClient
) -> None:
    stomp.send("SEND", b"before", destination="/queue/a", receipt="1")
    await stomp.receipt("1")
    (gateway.directory / "hang").touch()
    stomp.send("SEND", b"hangs", destination="/queue/a", receipt="2")
    while (await client.get("/health/ready")).status == 200:
        await asyncio.sleep(0.05)
    assert "has not answered a write for" in (await client.get("/health/ready")).json()["status"]
    assert (await client.get("/health/live")).status == 200
    began = time.monotonic()
    asked = [item for item in endpoints() if item.looks]
    for item in asked:
        found = await operator.get(f"{PREFIX}{item.tag}?{needed_by(item)}")
        assert found.status in (200, 400), (item.tag, found.body)  # 400: there is none, it says
        if not needed_by(item) or "destination" in needed_by(item):
            assert found.status == 200 or item.tag == "read-log", (item.tag, found.body)
    assert (await operator.get("/metrics")).status == 200
    print(f"requests={len(asked)} took_s={time.monotonic() - began:.2f}")
    (gateway.directory / "hang").unlink()
    await stomp.receipt("2")


def needed_by(endpoint: Endpoint) -> str:
    """A query with what *endpoint* cannot be asked without."""
    return "&".join(
        "destination=queue://a"
        if field.name == "destination"
        else f"{field.name}={value_of(field)}"
        for field in msgspec.structs.fields(endpoint.request)
        if field.required
    )


def value_of(field: msgspec.structs.FieldInfo) -> str:
    return "x" if field.type is str else "1"
