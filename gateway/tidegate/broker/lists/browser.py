"""Queue browsing: copies of what is pending, page by page, and nothing is consumed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tidegate.broker.lists.consumer import Consumer
from tidegate.broker.route.selector import Matcher
from tidegate.spi import GatewayError, StoreError, Token

if TYPE_CHECKING:
    from tidegate.broker.connection import Connection
    from tidegate.broker.core import BrokerCore

#: What is read from the store, and held in memory, at a time: messages, and bytes of bodies.
PAGE_COUNT: Final = 100
PAGE_BYTES: Final = 1 << 20


class Browser(Consumer):
    """A subscription that only looks. It is attached to no list: others do not notice it.

    It shows what was published before it began and is still pending when its page is read: also
    what is in flight to consumers. It begins with the end of the turn that made it, so that what
    the client published just before is durable and seen.
    """

    __slots__ = ("_core", "_last", "_woken")

    def __init__(
        self,
        connection: Connection,
        core: BrokerCore,
        key: str,
        destination: str,
        matches: Matcher | None = None,
    ) -> None:
        super().__init__(
            connection,
            key,
            destination,
            subscription_name=key,
            acknowledge=False,
            prefetch_count=PAGE_COUNT,
            prefetch_bytes=PAGE_BYTES,
            matches=matches,
        )
        self._core = core
        self._last = core.next_sequence - 1
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """The socket takes more, or the subscription ended."""
        self._woken.set()

    def confirmed(self, tokens: list[Token]) -> None:
        """From the writer: everything that was asked for before is durable."""
        del tokens
        self._core.spawn(self._run(), f"browse {self.destination}")

    def failed(self, token: Token, error: GatewayError) -> None:
        """From the writer: it is not; whoever published is told, and here there is no more to do."""
        del token
        self.connection.failed(None, error)

    async def _run(self) -> None:
        connection, core = self.connection, self._core
        pending_list = core.queues.get(self.destination)
        after = 0
        while pending_list is not None:
            while connection.is_served(self) and not connection.is_writable:
                self._woken.clear()
                await self._woken.wait()
            if not connection.is_served(self):
                return
            try:
                page = await core.store.page_in(pending_list.id, after, PAGE_COUNT, PAGE_BYTES)
            except StoreError as error:
                if connection.is_served(self):
                    connection.failed(None, error)
                return
            if not connection.is_served(self):
                return
            if not page:
                break
            now, matches = core.now(), self.matches
            shown = [
                stored
                for stored in page
                if stored.sequence <= self._last
                and not 0 < stored.message.expires_at <= now
                and (matches is None or matches(stored.message))
            ]
            if shown:
                connection.deliver(self, shown)
            after = page[-1].sequence
            if after >= self._last:
                break
            await asyncio.sleep(0)  # the socket's flow control acts between turns
        connection.browsed(self)
