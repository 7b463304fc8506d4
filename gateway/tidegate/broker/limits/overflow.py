"""Which lists lose messages, refuse them, or stop their producers, because they are at their limit.

Reported once while it lasts, and once when it is over: as an event, to plugins, and as metrics. However many
lists there are, a metric names ``WORST_MAX`` of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from tidegate.broker.lists.pending_list import PendingList
from tidegate.spi import ListOverflow
from tidegate.spi.events import Event, Tell, log_only

_log = logging.getLogger("tidegate.broker.limit")

_NOBODY: Final = "none"

#: Lists that ``overflow.worst`` names.
WORST_MAX: Final = 10

#: Lists remembered that lost messages since the last look: each may be a subscriber of a topic.
_LOST_MAX: Final = 10_000


def _unheard(_: ListOverflow) -> None:
    """No plugin wants to know."""


@dataclass(slots=True, eq=False)
class Overflows:
    """The overflows of all lists.

    Call :meth:`look` every second.

    Attributes:
        announce: told when each overflow begins and when it is over; must not raise. tell: of events.
        lists: those at their limits now.
        dropped, dead_lettered, refused: messages, since the start.
        last: the list whose overflow began last.
        worst: the existing lists that have lost most, with how many.
    """

    announce: Callable[[ListOverflow], None] = _unheard
    tell: Tell = log_only
    lists: int = 0
    dropped: int = 0
    dead_lettered: int = 0
    refused: int = 0
    last: str = _NOBODY
    worst: str = _NOBODY
    _lost: dict[PendingList, Overflow] = field(default_factory=dict["PendingList", "Overflow"])

    def lost(self, pending_list: PendingList, overflow: Overflow, count: int) -> None:
        """*pending_list* lost *count* messages."""
        self.dropped += count
        pending_list.lost += count
        pending_list.changed()
        if len(self._lost) < _LOST_MAX:
            self._lost[pending_list] = overflow

    def look(self) -> None:
        """A second has passed."""
        there = [item for item in self._lost if not item.is_removed]
        worst = nlargest(WORST_MAX, there, key=lambda item: item.lost)
        self._lost = {item: self._lost[item] for item in worst}
        texts = [f"{overflow.name()} lost={item.lost}" for item, overflow in self._lost.items()]
        self.worst = "\n".join(texts) or _NOBODY

    def snapshot(self) -> dict[str, int | str]:
        """By metric."""
        return {
            "overflow.lists": self.lists,
            "overflow.dropped": self.dropped,
            "overflow.dead_lettered": self.dead_lettered,
            "overflow.refused": self.refused,
            "overflow.last": self.last,
            "overflow.worst": self.worst,
        }


class Overflow:
    """The overflow of one list. Attributes: is_on: it has begun and is not over."""

    __slots__ = ("_act", "_all", "_dead_lettered", "_dropped", "_list", "_refused", "is_on")

    def __init__(self, overflows: Overflows, pending_list: PendingList, act: str) -> None:
        self._all = overflows
        self._list = pending_list
        self._act = act
        self._dropped = self._dead_lettered = self._refused = 0
        self.is_on = False

    def dropped(self, count: int, limit: str) -> None:
        """This list lost *count* messages."""
        self._dropped += count
        self._all.lost(self._list, self, count)
        self.begin(limit, "dropped")

    def dead_lettered(self, count: int, limit: str) -> None:
        """*count* were moved to the dead-letter queue; negative: were not, after all."""
        self._all.dead_lettered += count
        if count > 0 or self.is_on:  # the list may be gone by then
            self._dead_lettered += count
            self.begin(limit, "moved to the dead letter queue")

    def refused(self, limit: str, what: str) -> None:
        """A publish does not go through."""
        self._refused += 1
        self._all.refused += 1
        self.begin(limit, what)

    def begin(self, limit: str, what: str) -> None:
        """*what* happens to messages from now on. Args: limit: the one reached."""
        if self.is_on:
            return
        self.is_on = True
        self._all.lists += 1
        self._all.last = self.name()
        who = "consumers take" if self._list.is_queue else "its client takes"
        text, values = self._named()
        self._all.tell(
            Event.LIMIT_REACHED,
            _log,
            f"{text} limit=%s overflow=%s: messages are %s until %s some",
            *values,
            limit,
            self._act,
            what,
            who,
        )
        self._all.announce(self._told(is_over=False))

    def end(self) -> None:
        """There is room again, or the list is gone: it is over."""
        if not self.is_on:
            return
        text, values = self._named()
        self._all.tell(
            Event.LIMIT_LEFT,
            _log,
            f"{text} dropped=%d dead_lettered=%d refused=%d: below the limit again",
            *values,
            self._dropped,
            self._dead_lettered,
            self._refused,
        )
        told = self._told(is_over=True)
        self.is_on = False
        self._all.lists -= 1
        self._dropped = self._dead_lettered = self._refused = 0
        self._all.announce(told)

    def _told(self, *, is_over: bool) -> ListOverflow:
        name, client_id, principal = self._whose()
        return ListOverflow(
            destination=self._list.destination,
            subscription=name,
            client_id=client_id,
            principal=principal,
            overflow=self._act,
            dropped=self._dropped,
            dead_lettered=self._dead_lettered,
            refused=self._refused,
            is_over=is_over,
        )

    def _whose(self) -> tuple[str, str, str]:
        """Of a subscription: its name or that of its share group, client id and principal."""
        subscription, consumers = self._list.subscription, self._list.consumers
        if subscription is not None:
            name = subscription.share_group or subscription.name
            return name, subscription.client_id, subscription.owner
        if consumers and not self._list.is_queue:
            return consumers[0].key, consumers[0].client.client_id, consumers[0].client.principal
        return "", "", ""

    def name(self) -> str:
        """What the log calls the list."""
        text, values = self._named()
        return text % values

    def _named(self) -> tuple[str, tuple[str, ...]]:
        """The same for a line of the log: its text, and the values in it."""
        subscription = self._list.subscription
        name, client_id, principal = self._whose()
        if subscription is None:
            destination = self._list.destination
            if not name:
                return "destination=%r", (destination,)
            text = "destination=%r subscription=%r client=%r principal=%r"
            return text, (destination, name, client_id, principal)
        if subscription.share_group:
            text = "subscription=%r filter=%r principal=%r"
            return text, (name, subscription.filter, principal)
        return "subscription=%r client=%r principal=%r", (name, client_id, principal)
