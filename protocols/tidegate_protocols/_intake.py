"""What is read of a client that was let in: counted, whether it is looked at or not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

from tidegate.spi import BrokerConnection, GatewayError, Held
from tidegate_protocols._pace import Pace
from tidegate_protocols._unfinished import UnfinishedInput


@final
class Intake:
    """Owned by one session, from the time its client is let in.

    Args:
        connection: is told of every read, and of what has begun and does not end.
        pace, refuse, measure: see :class:`UnfinishedInput`.
    """

    __slots__ = ("_meter", "_refuse", "_unfinished")

    def __init__(
        self,
        connection: BrokerConnection,
        pace: Pace,
        refuse: Callable[[GatewayError], None],
        measure: Callable[[], int],
    ) -> None:
        self._meter = connection.meter
        self._refuse = refuse
        holds = partial(connection.holds, Held.INPUT)
        self._unfinished: UnfinishedInput | None = UnfinishedInput(holds, pace, refuse, measure)

    def dropped(self, size: int) -> None:
        """Of a client that has to go so many bytes were read, and not looked at."""
        if self._meter is not None:
            self._meter(size)

    def handled(self, size: int, waiting: int) -> None:
        """So many bytes were read, and all is handled but *waiting* bytes, which are not whole."""
        if self._meter is not None:
            self._meter(size)
        unfinished = self._unfinished
        if unfinished is None:
            return
        unfinished.read += size
        if waiting >= unfinished.least or unfinished.size:
            try:
                unfinished.waits(waiting)
            except GatewayError as error:
                self._refuse(error)

    def stop(self) -> None:
        """What has begun need not end any more. Idempotent."""
        if self._unfinished is not None:
            self._unfinished.stop()
            self._unfinished = None
