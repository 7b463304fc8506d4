"""The operator's console of a running gateway, in a browser."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from browser import Browser
from gateway_process import GatewayProcess
from http_raw import HttpClient
from wire import StompClient


@dataclass
class Console:
    """The console of a gateway, open in a browser. Attributes: url; token: of the token file."""

    gateway: GatewayProcess
    port: int
    browser: Browser

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def token(self) -> str:
        return (self.gateway.directory / "data" / "admin.token").read_text().strip()

    def log_in(self) -> Browser:
        """Begin at the overview, in a tab that has seen nothing."""
        browser = self.browser
        browser.open(self.url)
        browser.driver.execute_script("sessionStorage.clear()")
        browser.open(self.url)
        browser.fill("Token", self.token)
        browser.press("Log in")
        browser.shows("Overview")
        return browser

    def go(self, place: str) -> Browser:
        """Log in and go to what comes behind ``#/``."""
        browser = self.log_in()
        browser.driver.execute_script("location.hash = arguments[0]", f"#/{place}")
        return browser

    def ask(self, request: str, **fields: Any) -> Any:
        """What the API says, as somebody else would hear it."""
        client = HttpClient(self.port).bearer(self.token)
        found = asyncio.run(client.post(f"/api/v1/{request}", fields))
        assert found.status == 200, found
        return found.json()

    def look(self, request: str) -> Any:
        """What the API says to a request that only looks."""
        client = HttpClient(self.port).bearer(self.token)
        return asyncio.run(client.get(f"/api/v1/{request}")).json()

    def pending(self, destination: str) -> int:
        client = HttpClient(self.port).bearer(self.token)
        path = f"/api/v1/show-destination?destination={quote(destination, safe='')}"
        return asyncio.run(client.get(path)).json()["row"]["pending"]

    def publish(self, destination: str, *bodies: bytes, **headers: str) -> None:
        """Returns when all are confirmed."""
        asyncio.run(self._publish(destination, bodies, headers))

    def reject(self, destination: str, count: int) -> None:
        """Have a consumer reject so many messages that wait there."""
        asyncio.run(self._answer(destination, count, "NACK"))

    def consume(self, destination: str, count: int) -> None:
        """Have a consumer acknowledge so many."""
        asyncio.run(self._answer(destination, count, "ACK"))

    async def _answer(self, destination: str, count: int, answer: str) -> None:
        client = await StompClient.connect(self.gateway.stomp_port)
        client.send("SUBSCRIBE", destination=destination, id="s", ack="client-individual")
        for _ in range(count):
            found = await client.receive()
            client.send(answer, id=found.headers["ack"])
        client.send("DISCONNECT", receipt="end")
        while (await client.receive()).command != "RECEIPT":
            pass
        await client.aclose()

    async def _publish(
        self, destination: str, bodies: tuple[bytes, ...], headers: dict[str, str]
    ) -> None:
        client = await StompClient.connect(self.gateway.stomp_port)
        for number, body in enumerate(bodies, 1):
            last = {"receipt": "last"} if number == len(bodies) else {}
            client.send("SEND", body, destination=destination, **headers, **last)
        await client.receipt("last")
        await client.aclose()


@contextmanager
def connected(console: Console, destination: str, *, client_id: str = "") -> Iterator[Future[str]]:
    """A STOMP client that subscribes, acknowledges nothing and goes on reading; how that ended."""
    ready, ended = threading.Event(), Future[str]()

    async def stay() -> None:
        headers = {"client_id": client_id} if client_id else {}
        client = await StompClient.connect(console.gateway.stomp_port, **headers)
        client.send("SUBSCRIBE", destination=destination, id="mine", ack="client", receipt="r")
        try:
            while True:
                found = await client.receive()
                if found.command == "RECEIPT":
                    ready.set()
                if found.command == "ERROR":
                    ended.set_result(found.headers["message"])
                    return
        finally:
            await client.aclose()

    loop = asyncio.new_event_loop()
    task = loop.create_task(stay())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait((task,))))
    thread.start()
    try:
        assert ready.wait(60)
        yield ended
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
