"""What clients sent before they are let in: half of a CONNECT, or what came after a whole one.

Each may have little, but there can be many of them, and nobody knows who they are: there is no
principal to charge.
"""

from __future__ import annotations

import logging
from typing import Final, final

from tidegate.broker.limits.accounts import Account
from tidegate.spi import FlowControlError, Held, Stranger, format_size

_log = logging.getLogger("tidegate.broker")

#: Room is made for this fraction of the limit at once, so that looking for the largest is rare.
_STEP: Final = 4


@final
class Unauthenticated:
    """See :meth:`tidegate.spi.Broker.unauthenticated_holds`.

    At the limit those that hold most go. A client that logs in and waits for the answer holds next
    to nothing, so it gets in while others try to fill the memory.

    Args: account: of the gateway; limit: bytes, 0 for none.
    """

    def __init__(self, account: Account, limit: int) -> None:
        self._account = account
        self._limit = limit
        self._held: dict[Stranger, int] = {}
        self._total = 0

    def holds(self, peer: Stranger, size: int) -> None:
        more = size - (self._held.pop(peer, 0) if not size else self._held.get(peer, 0))
        if size:
            self._held[peer] = size
        if more:
            self._total += more
            self._account.add(Held.LOGIN, more)
            if self._limit and self._total > self._limit:
                self._make_room()

    def _make_room(self) -> None:
        wanted = self._limit - self._limit // _STEP
        error = FlowControlError(
            f"unauthenticated clients hold more than {format_size(self._limit)}, and "
            "this client is one of the largest (broker.login_input_limit); try again "
            "later"
        )
        count = 0
        for peer in sorted(self._held, key=lambda item: self._held[item], reverse=True):
            if self._total <= wanted:
                break
            self.holds(peer, 0)
            self._account.note_refusal()
            peer.closed(error)
            count += 1
        _log.warning("unauthenticated_closed=%d: %s", count, error)
