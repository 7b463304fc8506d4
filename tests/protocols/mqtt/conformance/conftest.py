"""One gateway with a raw client for every test; those with other settings start their own."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

import pytest
from mqtt_raw import V311, Client

from tidegate.testing.embedded import EmbeddedGateway

START_TIMEOUT_S = 60.0
_NUMBERS = itertools.count(1)


class Gateway:
    """A whole gateway on an event loop in a thread of its own. Attributes: port, of MQTT."""

    def __init__(self, config: str = "") -> None:
        self._config = config
        self._started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gateway")
        self._errors: list[str] = []
        self._embedded: EmbeddedGateway
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event

    def __enter__(self) -> Gateway:
        self._thread.start()
        error = self._started.get(timeout=START_TIMEOUT_S)
        if error is not None:
            self._thread.join()
            raise error
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(START_TIMEOUT_S)
        assert not self._thread.is_alive()
        assert self._errors == []

    @property
    def port(self) -> int:
        return self._embedded.mqtt_port

    def port_of(self, protocol: str) -> int:
        return self._embedded.port(protocol)

    @property
    def addresses(self) -> list[str]:
        return list(self._embedded.addresses)

    def restart(self) -> None:
        """Stop cleanly and start on the same data; the ports change. Drop the clients before."""
        self.call(self._embedded.restart())

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_TIMEOUT_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._started.put(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._loop.set_exception_handler(lambda _, context: self._errors.append(str(context)))
        async with EmbeddedGateway(self._config) as self._embedded:
            self._started.put(None)
            await self._stopping.wait()


class Dial(Protocol):
    """``dial(version=…)``: a client whose socket is open; ``dial(connect="id", …)``: connected."""

    def __call__(
        self,
        version: int = V311,
        *,
        connect: str | None = None,
        gateway: Gateway | None = None,
        port: int | None = None,
        **options: Any,
    ) -> Client: ...


@pytest.fixture(scope="session")
def gateway_type() -> type[Gateway]:
    """For modules that need one of their own: ``with gateway_type(config) as gateway``."""
    return Gateway


@pytest.fixture(scope="session")
def gateway() -> Iterator[Gateway]:
    """The one that all tests share: use names of your own (``name``)."""
    with Gateway() as running:
        yield running


@pytest.fixture
def start_gateway() -> Iterator[Callable[[str], Gateway]]:
    """``start_gateway(config)``: one more, until the test ends."""
    running: list[Gateway] = []

    def start(config: str = "") -> Gateway:
        made = Gateway(config)
        made.__enter__()
        running.append(made)
        return made

    yield start
    for one in running:
        one.__exit__()


@pytest.fixture
def dial(gateway: Gateway, start_gateway: Callable[[str], Gateway]) -> Iterator[Dial]:
    """Opens clients and closes what is left of them, before a gateway of their own is stopped."""
    clients: list[Client] = []
    shared = gateway

    def open_client(
        version: int = V311,
        *,
        connect: str | None = None,
        gateway: Gateway | None = None,
        port: int | None = None,
        **options: Any,
    ) -> Client:
        client = Client(port or (gateway or shared).port, version)
        clients.append(client)
        if connect is not None:
            answer = client.connect(connect, **options)
            assert answer.code == 0, answer
        return client

    yield open_client
    for client in clients:
        client.close()


@pytest.fixture
def name() -> str:
    """A name that no other test uses: for topics and client ids."""
    return f"n{next(_NUMBERS)}"
