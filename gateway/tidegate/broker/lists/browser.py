"""Queue browsing: copies of what is pending, page by page, and nothing is consumed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Final, Protocol

from tidegate.broker.lists.pending_list import Client, Consumer, PendingList
from tidegate.broker.lists.selector import Matcher
from tidegate.broker.lists.turns import Turns
from tidegate.spi import GatewayError, MessageStore, StoreError, Token


class BrowsingClient(Client, Protocol):
    """A connection, as far as a browser needs it."""

    def failed(self, token: Token, error: GatewayError) -> None: ...
    def is_served(self, consumer: Consumer) -> bool: ...
    def browsed(self, browser: Browser) -> None: ...


class Around(Protocol):
    """What a browser asks of those around it."""

    @property
    def store(self) -> MessageStore: ...
    @property
    def queues(self) -> dict[str, PendingList]: ...
    def spawn(self, work: Coroutine[object, object, None], name: str, /) -> object: ...


#: What is read from the store, and held in memory, at a time: messages, and bytes of bodies.
PAGE_COUNT: Final = 100
PAGE_BYTES: Final = 1 << 20


class Browser(Consumer):
    """A subscription that only looks. It is attached to no list: others do not notice it.

    It shows what was published before it began and is still pending when its page is read: also
    what is in flight to consumers. It begins with the end of the turn that made it, so that what
    the client published just before is durable and seen.
    """

    __slots__ = ("_around", "_client", "_last", "_turns", "_woken")

    def __init__(
        self,
        client: BrowsingClient,
        around: Around,
        turns: Turns,
        key: str,
        destination: str,
        matches: Matcher | None = None,
    ) -> None:
        super().__init__(
            client,
            key,
            destination,
            subscription_name=key,
            acknowledge=False,
            prefetch_count=PAGE_COUNT,
            prefetch_bytes=PAGE_BYTES,
            matches=matches,
        )
        self._client = client
        self._around = around
        self._turns = turns
        self._last = turns.next_sequence - 1
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """The socket takes more, or the subscription ended."""
        self._woken.set()

    def begin(self) -> None:
        """Show the queue when everything that was asked for before is durable."""
        # When it is not, whoever published is told, and here there is no more to do.
        self._turns.when_durable(
            lambda: self._around.spawn(self._run(), f"browse {self.destination}"),
            lambda error: self._client.failed(None, error),
        )

    async def _run(self) -> None:
        client, around = self._client, self._around
        pending_list = around.queues.get(self.destination)
        after = 0
        while pending_list is not None:
            while client.is_served(self) and not client.is_writable:
                self._woken.clear()
                await self._woken.wait()
            if not client.is_served(self):
                return
            try:
                page = await around.store.page_in(pending_list.id, after, PAGE_COUNT, PAGE_BYTES)
            except StoreError as error:
                if client.is_served(self):
                    client.failed(None, error)
                return
            if not client.is_served(self):
                return
            if not page:
                break
            now, matches = self._turns.now(), self.matches
            shown = [
                stored
                for stored in page
                if stored.sequence <= self._last
                and not 0 < stored.message.expires_at <= now
                and (matches is None or matches(stored.message))
            ]
            if shown:
                client.deliver(self, shown)
            after = page[-1].sequence
            if after >= self._last:
                break
            await asyncio.sleep(0)  # the socket's flow control acts between turns
        client.browsed(self)
