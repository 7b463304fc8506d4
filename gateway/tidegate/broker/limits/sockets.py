"""How many sockets all listeners may have open: the store needs descriptors, too.

They are counted from accept on: a client that has not finished a handshake, or was never asked to log in,
takes a descriptor like any other, and a store without descriptors can write nothing. The memory they
take is counted, too, but keeps nobody out: a client that comes in may be the one that frees room.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable
from typing import Final

from tidegate.broker.limits.accounts import Account
from tidegate.config import DESCRIPTORS_RESERVED
from tidegate.spi import Held
from tidegate.spi.events import Event, Tell, log_only

_log = logging.getLogger("tidegate.broker")

#: Least time between two log lines about refused ones.
LOG_EVERY_S: Final = 10.0


class Sockets:
    """Counts; see :meth:`tidegate.spi.Broker.socket_opened`.

    Args:
        account: of the gateway.
        refuses: called for each; True: it is refused, and the callee reports it.

    Attributes: connections_max: as configured; the limit of the process may allow fewer. count: open ones;
        opened_count: since the start; tell: of events.
    """

    def __init__(
        self, account: Account, connections_max: int, refuses: Callable[[], bool] = lambda: False
    ) -> None:
        self._account = account
        self._refuses = refuses
        self.count = self.opened_count = 0
        self.connections_max = connections_max
        self._refused = 0
        self._log_next_at = 0.0
        self.tell: Tell = log_only

    @property
    def limit(self) -> int:
        """The most allowed; looked up each time, because the limit of a process can be changed."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return self.connections_max
        return min(self.connections_max, max(soft - DESCRIPTORS_RESERVED, soft // 4, 1))

    def opened(self, size: int) -> bool:
        """Count one more, which takes *size* bytes, or refuse it."""
        if self._refuses():
            return False
        limit = self.limit
        if self.count < limit:
            self.count += 1
            self.opened_count += 1
            self._account.add(Held.CONNECTIONS, size)
            return True
        self._refused += 1
        now = time.monotonic()
        if now >= self._log_next_at:  # clients decide how often they connect
            self.tell(
                Event.CONNECTIONS_LIMITED,
                _log,
                "sockets=%d refused=%d: limit reached, new connections are closed at "
                "once (broker.connections_max=%d, file descriptors minus %d)",
                limit,
                self._refused,
                self.connections_max,
                DESCRIPTORS_RESERVED,
            )
            self._log_next_at = now + LOG_EVERY_S
            self._refused = 0
        return False

    def closed(self, size: int) -> None:
        """A socket that was counted with *size* is gone."""
        self.count -= 1
        self._account.add(Held.CONNECTIONS, -size)
