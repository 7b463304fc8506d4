"""Counts what is read from an admitted client, whether or not it is handled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

from tidegate.spi import BrokerConnection, GatewayError, Held
from tidegate_protocols._pace import Pace
from tidegate_protocols._unfinished import UnfinishedInput


@final
class Intake:
    """Owned by one session, from the moment its client is admitted.

    Args:
        connection: told of every read, and of unfinished input.
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
        """Count bytes read from a client that has to go, and ignored."""
        if self._meter is not None:
            self._meter(size)

    def handled(self, size: int, waiting: int) -> None:
        """Count bytes read, all handled except *waiting* bytes of an incomplete frame."""
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
        """Unfinished input need not end any more. Idempotent."""
        if self._unfinished is not None:
            self._unfinished.stop()
            self._unfinished = None
