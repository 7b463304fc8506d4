"""What was delivered to one client and is not acknowledged: until then it stays in memory.

Each subscription has its prefetch; a client can have a thousand subscriptions, and there are many
clients. So the bytes are counted up the tree of accounts, apart from what is held there: nobody is
refused anything because others do not acknowledge. A client that has too much gets no more until it
has acknowledged some, and each may have ``FLOOR_BYTES``. A message on its way to a thousand clients
counts a thousand times, though it may be in memory once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tidegate.broker.limits.accounts import Account

#: The tree is told of each change by this much: rarely, as most clients' totals hardly change.
STEP_BYTES: Final = 64 * 1024

#: What a client may always have in flight, so that it goes on, if more slowly.
FLOOR_BYTES: Final = 256 * 1024


def _nobody() -> None: ...


@final
class InFlightBytes:
    """The bytes of one connection.

    Args: account: of the connection; changed: called when :attr:`is_crowded` changes.

    Attributes:
        total: bytes of all its subscriptions.
        is_crowded: it gets no more.
    """

    __slots__ = ("_account", "_changed", "_high", "_low", "_told", "is_crowded", "total")

    def __init__(self, account: Account, changed: Callable[[], None]) -> None:
        self.total = 0
        self.is_crowded = False
        self._account = account
        self._changed = changed
        self._told = 0
        self._low = -1
        self._high = STEP_BYTES

    def add(self, size: int) -> None:
        """*size* bytes more, or fewer, are in flight."""
        total = self.total = self.total + size
        if total > self._high or total <= self._low:
            self._tell(total)

    def end(self) -> None:
        """The connection has ended, and nothing is in flight to it."""
        self._account.add_in_flight(-self._told)
        self._told = 0
        self._low, self._high = -1, 1 << 62
        self._changed = _nobody

    def _tell(self, total: int) -> None:
        self._account.add_in_flight(total - self._told)
        self._told = total
        is_crowded = not self._account.has_room_in_flight(total, FLOOR_BYTES)
        self._high = total + STEP_BYTES
        self._low = max(total - STEP_BYTES, 0) if total else -1
        if is_crowded:
            self._low = max(self._low, min(FLOOR_BYTES, total - 1))
        if is_crowded is not self.is_crowded:
            self.is_crowded = is_crowded
            self._changed()
