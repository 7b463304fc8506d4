"""Challenge-response authentication: an exchange stands for the credentials."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from broker_harness import Broker, connect_request

from tidegate.spi import AccessError, Credentials, Principal


class Riddle:
    """An exchange: the client must say the answer; crashes on b"crash"."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self.principal: Principal | None = None

    async def step(self, data: bytes) -> bytes:
        if data == b"":
            return b"what goes up?"
        if data != b"smoke":
            raise AccessError("wrong answer")
        self.principal = Principal("sphinx-friend")
        return b"pass"


class Sphinx:
    """An extension that offers one method."""

    def __init__(self, *methods: str, fails: bool = False) -> None:
        self._methods = methods
        self._fails = fails

    @property
    def methods(self) -> Sequence[str]:
        return self._methods

    def begin(self, method: str, credentials: Credentials) -> Riddle:
        assert method in self._methods
        if self._fails:
            raise OSError("no users file")
        return Riddle(credentials)


async def test_a_finished_exchange_stands_for_the_credentials() -> None:
    async with Broker(extensions=[Sphinx("RIDDLE")]) as broker:
        request = connect_request("mqtt", "c", anonymous_allowed=False, tls_subject="CN=c")
        exchange = broker.core.begin_authentication("RIDDLE", request)
        assert isinstance(exchange, Riddle)
        assert exchange.credentials.client_id == "c"
        assert exchange.credentials.tls_subject == "CN=c"
        assert await exchange.step(b"") == b"what goes up?"
        assert await exchange.step(b"smoke") == b"pass"
        client = await broker.client("mqtt", "c", anonymous_allowed=False, exchange=exchange)
        assert client.connection.principal == "sphinx-friend"


async def test_an_unfinished_exchange_does_not_even_let_anonymous_clients_in() -> None:
    async with Broker(extensions=[Sphinx("RIDDLE")]) as broker:
        exchange = broker.core.begin_authentication("RIDDLE", connect_request("mqtt", "c"))
        with pytest.raises(AccessError, match="not completed"):
            await broker.client("mqtt", "c", anonymous_allowed=True, exchange=exchange)


async def test_a_method_that_nobody_offers_has_no_exchange() -> None:
    async with Broker(extensions=[Sphinx("RIDDLE")]) as broker:
        request = connect_request("mqtt", "c")
        assert broker.core.begin_authentication("KERBEROS", request) is None


async def test_the_first_extension_that_offers_a_method_has_it() -> None:
    extensions = [Sphinx("RIDDLE"), Sphinx("RIDDLE", "OTHER", fails=True)]
    async with Broker(extensions=extensions) as broker:
        request = connect_request("mqtt", "c")
        assert broker.core.begin_authentication("RIDDLE", request) is not None


async def test_an_extension_that_cannot_begin_refuses(logged_errors: list[str]) -> None:
    logged_errors.append("failed peer=")

    async with Broker(extensions=[Sphinx("RIDDLE", fails=True)]) as broker:
        with pytest.raises(AccessError, match="authentication failed"):
            broker.core.begin_authentication("RIDDLE", connect_request("mqtt", "c"))
