"""The process's end of the socket pair: asks the gateway."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from tidegate.spi.clients.operators import Readiness
from tidegate.spi.operate import Overview
from tidegate_admin import _protocol as protocol

T = TypeVar("T")


class Link:
    """Asks the gateway; this process ends when the gateway is gone.

    Args: renew: called when the certificate must be reread.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        renew: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._renew = renew
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[protocol.Answer]] = {}
        self._asked_health: dict[int, asyncio.Future[Readiness]] = {}
        self._asked_sample: dict[int, asyncio.Future[Overview | None]] = {}
        self._silent_since = 0.0
        self.last_readiness: Readiness | None = None

    async def follow(self) -> None:
        """Take answers until the gateway is gone; does not return."""
        try:
            while line := await self._reader.readline():
                told = protocol.decode_from_gateway(line)
                if isinstance(told, protocol.Answer):
                    _give(self._asked, told.id, told)
                elif isinstance(told, protocol.Health):
                    self.last_readiness = told.readiness
                    self._silent_since = 0.0
                    _give(self._asked_health, told.id, told.readiness)
                elif isinstance(told, protocol.Sample):
                    _give(self._asked_sample, told.id, told.overview)
                elif isinstance(told, protocol.Renew):
                    self._renew()
        finally:
            os._exit(0)

    async def ask(
        self, peer: str, credentials: protocol.Credentials, request: bytes = b"null"
    ) -> protocol.Answer:
        """The gateway's answer. Cancellation: the request goes on, its answer is dropped."""
        number = next(self._ids)
        future = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            ask = protocol.Ask(number, peer, credentials, msgspec.Raw(request))
            self._writer.write(protocol.line(ask))
            await self._writer.drain()
            return await future
        finally:
            self._asked.pop(number, None)

    async def readiness(self, timeout_s: float) -> Readiness | None:
        """The gateway's readiness; None: no answer within *timeout_s*."""
        number = next(self._ids)
        future = asyncio.get_running_loop().create_future()
        self._asked_health[number] = future
        self._silent_since = self._silent_since or time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.write(protocol.line(protocol.AskHealth(number)))
                return await future
        except TimeoutError:
            return None
        finally:
            self._asked_health.pop(number, None)

    async def sample(self, timeout_s: float) -> Overview | None:
        """The gateway's overview; None: it does not run, or no answer within *timeout_s*."""
        number = next(self._ids)
        future = asyncio.get_running_loop().create_future()
        self._asked_sample[number] = future
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.write(protocol.line(protocol.AskSample(number)))
                return await future
        except TimeoutError:
            return None
        finally:
            self._asked_sample.pop(number, None)

    @property
    def silent_s(self) -> float:
        """How long a question about its state has waited for the gateway; 0: none waits."""
        return time.monotonic() - self._silent_since if self._silent_since else 0.0


def _give(waiting: dict[int, asyncio.Future[T]], number: int, value: T) -> None:
    future = waiting.get(number)
    if future is not None and not future.done():
        future.set_result(value)
