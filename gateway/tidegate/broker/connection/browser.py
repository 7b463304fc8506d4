"""Queue browsing: copies of what is pending, page by page, without consuming it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidegate.broker.connection.client import Client
from tidegate.broker.lists.pending_list import Consumer
from tidegate.broker.lists.selector import Matcher
from tidegate.spi import StoreError

#: Limits of a page, read from the store and held in memory: messages, and bytes of bodies.
PAGE_COUNT: Final = 100
PAGE_BYTES: Final = 1 << 20


class Browser(Consumer):
    """A subscription that only looks. It is attached to no list: others do not notice it.

    It shows what was published before it began and is still pending when its page is read, including
    what is in flight to consumers. It begins at the end of the turn that made it, so that what the
    client published just before is durable and seen.
    """

    __slots__ = ("_client", "_consumers", "_last", "_shown", "_woken")

    def __init__(
        self,
        client: Client,
        consumers: dict[str, Consumer],
        key: str,
        destination: str,
        matches: Matcher | None,
        shown: Callable[[str], None],
    ) -> None:
        """*consumers*: the connection's, by key; it is among them while it is served. *shown*: called
        with the key when the queue has been shown, and takes it out."""
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
        self._consumers = consumers
        self._shown = shown
        self._last = client.parts.writer.next_sequence - 1
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """The socket takes more, or the subscription ended."""
        self._woken.set()

    def begin(self) -> None:
        """Show the queue when everything requested before is durable."""
        parts = self._client.parts
        # If that fails, the publishers are told, and there is nothing to do here.
        parts.writer.when_durable(
            lambda: parts.tasks.spawn(self._run(), f"browse {self.destination}"),
            lambda error: self._client.failed(None, error),
        )

    def _is_served(self) -> bool:
        return self._consumers.get(self.key) is self

    async def _run(self) -> None:
        client, parts = self._client, self._client.parts
        pending_list = parts.destinations.queues.get(self.destination)
        after = 0
        while pending_list is not None:
            while self._is_served() and not client.is_writable:
                self._woken.clear()
                await self._woken.wait()
            if not self._is_served():
                return
            try:
                page = await parts.store.page_in(pending_list.id, after, PAGE_COUNT, PAGE_BYTES)
            except StoreError as error:
                if self._is_served():
                    client.failed(None, error)
                return
            if not self._is_served():
                return
            if client.is_undecided:
                continue  # rights have changed meanwhile
            if not page:
                break
            now, matches = parts.now(), self.matches
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
        if self._is_served():  # everything has been shown: the subscription is over
            self._shown(self.key)
            client.deliver(self, ())
