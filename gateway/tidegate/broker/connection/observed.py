"""A connection whose deliveries observers are told of; other connections know nothing of them."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.broker.connection.browser import Browser
from tidegate.broker.connection.connection import Connection
from tidegate.broker.lists.pending_list import Consumer
from tidegate.spi import StoredMessage


class ObservedConnection(Connection):
    """See the module."""

    __slots__ = ()

    def deliver(self, consumer: Consumer, messages: Sequence[StoredMessage]) -> None:
        following = self.parts.writer.following
        is_only_looking = isinstance(consumer, Browser)  # which gets copies
        if following is not None and not is_only_looking:
            # First: a front-end that fails to deliver gives them back at once.
            following.delivering(self.identity, consumer, messages)
        super().deliver(consumer, messages)
