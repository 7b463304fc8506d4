"""Retained messages: the last one of each topic that a publisher asked to keep.

They take effect when the publish is accepted, so that a client that publishes and then subscribes
finds its own message. Should the store then drop the publish (it is full), the change is undone;
by then others may have changed the same topic again, in the same turn or in the next one.

Each topic has a number while it has a retained message: a place in a list. A delivery of many
(``publish/retained_delivery.py``) remembers the numbers, four bytes each, and asks for each message
when its turn comes.
"""

from __future__ import annotations

import heapq
import weakref
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from tidegate.broker.route.topic_tree import BRANCH_BYTES, LOOKED_AT_MAX, TopicTree
from tidegate.spi import (
    ClearRetained,
    FlowControlError,
    Held,
    Message,
    Operation,
    SetRetained,
    format_size,
    memory_bytes,
    names,
)

#: Retained messages that one call of :meth:`RetainedMessages.expire` examines: some milliseconds.
EXPIRE_COUNT_MAX: Final = 5000

#: Entries of the expiry heap that may be out of date before it is rebuilt.
_STALE_MAX: Final = 1000


class Account(Protocol):
    """What a principal has, and may have: :class:`tidegate.broker.limits.accounts.Account`."""

    def check(self, kind: Held, size: int) -> None:
        """Raises: FlowControlError when *size* bytes more are too many."""
        ...

    def add(self, kind: Held, size: int) -> None:
        """Count *size* bytes more, or fewer."""
        ...


class _Uncounted:
    def check(self, kind: Held, size: int) -> None: ...
    def add(self, kind: Held, size: int) -> None: ...


def _no_account(principal: str) -> Account:
    del principal
    return _Uncounted()


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Change:
    """One publish that set or cleared; alive as long as it can be undone."""

    destination: str
    before: Message | None
    previous: weakref.ref[_Change] | None


class RetainedMessages:
    """Retained messages by topic.

    Args:
        limit_bytes: memory they may take, with their names; beyond it a new topic is refused. They
            are held in memory with their bodies, and any client that may publish can make up
            topics.
        account_of: the account of a principal, charged for what it published.

    Attributes:
        on_new_number: called with the number of a topic that has just got its first message;
            another topic may have had the number before.
    """

    def __init__(
        self, *, limit_bytes: int, account_of: Callable[[str], Account] = _no_account
    ) -> None:
        self.on_new_number: Callable[[int], None] | None = None
        self.limit_bytes = limit_bytes
        self._account_of = account_of
        self._numbers: dict[str, int] = {}
        self._messages: list[Message | None] = []
        self._accounts: list[Account | None] = []  # charged for each
        self._free: list[int] = []
        self._tree = TopicTree()
        self._bytes = 0
        self._volatile: set[str] = set()
        self._expiry: list[tuple[int, str]] = []
        # Only the functions that undo hold a change; they die with the turn when it is durable.
        self._latest: weakref.WeakValueDictionary[str, _Change] = weakref.WeakValueDictionary()

    def recover(self, messages: Iterable[Message]) -> None:
        """Restore what the store knows."""
        for message in messages:
            self._set(message.destination, message)

    def __len__(self) -> int:
        """How many are stored; those only in memory do not count."""
        return len(self._numbers) - len(self._volatile)

    @property
    def memory_bytes(self) -> int:
        """Memory accounted for: messages, their names, and the tree of topics."""
        return self._bytes + self._tree.branches * BRANCH_BYTES

    # --- looking up ----------------------------------------------------------------------------

    def get(self, destination: str) -> Message | None:
        """The retained message of canonical topic *destination*."""
        number = self._numbers.get(destination)
        return None if number is None else self._messages[number]

    def number_of(self, destination: str) -> int | None:
        """The number of a topic that has a retained message, else None."""
        return self._numbers.get(destination)

    def at(self, number: int) -> Message | None:
        """The retained message of the topic with this number; None when it was cleared."""
        return self._messages[number]

    def numbers_matching(self, filter_name: str) -> array[int] | None:
        """Numbers of the topics that the filter (a NAME) covers, in ascending order.

        Returns: None when more than ``LOOKED_AT_MAX`` topics would have to be examined.
        """
        if not names.is_filter(filter_name):
            number = self._numbers.get(names.topic(filter_name))
            return array("I", () if number is None else (number,))
        numbers = self._numbers
        found = self._tree.match_few(filter_name, LOOKED_AT_MAX)
        return None if found is None else array("I", sorted([numbers[item] for item in found]))

    @property
    def numbers_end(self) -> int:
        """All numbers are below this."""
        return len(self._messages)

    # --- changing ------------------------------------------------------------------------------

    def check_room(self, message: Message, owner: str = "") -> None:
        """Call before a publish that retains. Raises: FlowControlError at the limit.

        Args: owner: the principal that publishes.
        """
        if not message.body:
            return
        before = self.get(message.destination)
        more = _cost(message) - (_cost(before) if before is not None else 0)
        if more > 0 and self.memory_bytes + more > self.limit_bytes:
            raise FlowControlError(
                f"retained messages use {format_size(self.memory_bytes)} of memory, and "
                f"{format_size(self.limit_bytes)} is the limit (broker.retained_limit); "
                "clear some of them"
            )
        if before is not None and before.owner != owner:
            more = _cost(message)
        if more > 0:
            self._account_of(owner).check(Held.RETAINED, more)

    def replace(self, message: Message) -> tuple[Operation | None, Callable[[], None] | None]:
        """Set the retained message of its topic, or clear it when the body is empty.

        Returns: what to write (None: nothing changes) and what undoes it.
        Source: MQTT 3.1.1 [MQTT-3.3.1-5], [MQTT-3.3.1-10], [MQTT-3.3.1-11].
        """
        destination = message.destination
        if not names.is_topic(destination):
            return None, None
        before = self.get(destination)
        if not message.body and before is None:
            return None, None
        latest = self._latest.get(destination)
        change = _Change(destination, before, None if latest is None else weakref.ref(latest))
        self._latest[destination] = change
        self._set(destination, message if message.body else None)
        operation = SetRetained(message) if message.body else ClearRetained(destination)
        return operation, lambda: self._undo(change)

    def set_volatile(self, message: Message) -> None:
        """Retain the gateway's own *message* in memory only: it is never stored and does not count
        towards the limit. Clients must not be able to publish to its topic."""
        destination = message.destination
        number = self._numbers.get(destination)
        if number is None:
            self._number(destination, message)
        else:
            before = self._messages[number]
            if before is not None and destination not in self._volatile:
                # It was stored when clients could publish there.
                self._bytes -= _cost(before)
                account, self._accounts[number] = self._accounts[number], None
                if account is not None:
                    account.add(Held.RETAINED, -_cost(before))
            self._messages[number] = message
        self._volatile.add(destination)

    def expire(self, now: int) -> list[ClearRetained]:
        """Remove expired messages, at most ``EXPIRE_COUNT_MAX`` in one call.

        Args: now: microseconds since the epoch.
        Returns: what to write. Source: MQTT 5.0 section 3.3.2.3.3 [MQTT-3.3.2-5].
        """
        cleared: list[ClearRetained] = []
        heap = self._expiry
        for _ in range(EXPIRE_COUNT_MAX):
            if not heap or heap[0][0] > now:
                break
            expires_at, destination = heapq.heappop(heap)
            message = self.get(destination)
            if message is not None and message.expires_at == expires_at:
                # An earlier publish that is undone later must not bring it back: the ClearRetained
                # is written in any case.
                self._latest.pop(destination, None)
                self._set(destination, None)
                cleared.append(ClearRetained(destination))
        return cleared

    def _undo(self, change: _Change) -> None:
        destination = change.destination
        later = self._latest.get(destination)
        if later is change:
            self._set(destination, change.before)
            previous = change.previous and change.previous()
            if previous is None:
                self._latest.pop(destination, None)
            else:
                self._latest[destination] = previous
            return
        while later is not None:  # a later publish stands, but must not bring this one back
            previous = later.previous and later.previous()
            if previous is change:
                later.before = change.before
                later.previous = change.previous
                return
            later = previous

    def _set(self, destination: str, message: Message | None) -> None:
        number = self._numbers.get(destination)
        if number is not None:
            before = self._messages[number]
            assert before is not None
            self._bytes -= _cost(before)
            account, self._accounts[number] = self._accounts[number], None
            if account is not None:
                account.add(Held.RETAINED, -_cost(before))
        if message is None:
            if number is not None:
                del self._numbers[destination]
                self._messages[number] = None
                self._free.append(number)
                self._tree.discard(destination)
            return
        self._bytes += _cost(message)
        if number is None:
            number = self._number(destination, message)
        else:
            self._messages[number] = message
        account = self._accounts[number] = self._account_of(message.owner)
        account.add(Held.RETAINED, _cost(message))
        if message.expires_at:
            self._note_expiry(message)

    def _number(self, destination: str, message: Message) -> int:
        if self._free:
            number = self._free.pop()
            self._messages[number] = message
        else:
            number = len(self._messages)
            self._messages.append(message)
            self._accounts.append(None)
        self._numbers[destination] = number
        self._tree.add(destination)
        if self.on_new_number is not None:
            self.on_new_number(number)
        return number

    def _note_expiry(self, message: Message) -> None:
        heap = self._expiry
        if len(heap) >= 2 * len(self._numbers) + _STALE_MAX:
            heap[:] = [
                (held.expires_at, held.destination)
                for held in self._messages
                if held is not None and held.expires_at
            ]
            heapq.heapify(heap)
        else:
            heapq.heappush(heap, (message.expires_at, message.destination))


def _cost(message: Message) -> int:
    """Memory of a retained message with its name, in bytes."""
    return memory_bytes(message) + len(message.destination)
