"""What the screen shows, asked for in one go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidegate.cli.groups._asking import ask, connected
from tidegate.operator_socket import OperatorClient
from tidegate.spi.operate import (
    ConnectionPage,
    ConnectionRow,
    ConnectionSort,
    Destination,
    DestinationPage,
    DestinationSort,
    LimitPage,
    LimitRow,
    ListConnections,
    ListDestinations,
    ListLimits,
    ListSinks,
    Overview,
    ShowOverview,
    SinkList,
    SinkStatus,
)


class Wanted(msgspec.Struct, frozen=True):
    """What to ask for. Attributes: match: a name or filter of destinations; rows: of each list."""

    destinations: DestinationSort = DestinationSort.PENDING
    connections: ConnectionSort = ConnectionSort.RATE
    match: str = ""
    rows: int = 100


class Snapshot(msgspec.Struct, frozen=True):
    """A gateway at one moment."""

    overview: Overview
    destinations: tuple[Destination, ...]
    connections: tuple[ConnectionRow, ...]
    limits: tuple[LimitRow, ...]
    sinks: tuple[SinkStatus, ...]


class Reader:
    """Asks the gateway of a configuration, over one connection that it opens anew when that has ended.

    Not on the event loop: each call waits for the gateway.
    """

    def __init__(
        self, config: Path | None, connect: Callable[[Path | None], OperatorClient] = connected
    ) -> None:
        self._config = config
        self._connect = connect
        self._stack = contextlib.ExitStack()
        self._client: OperatorClient | None = None

    def read(self, wanted: Wanted) -> Snapshot:
        """Raises: GatewayError, typer.BadParameter, OSError: ask again later."""
        try:
            if self._client is None:
                self._client = self._stack.enter_context(self._connect(self._config))
            return snapshot(self._client, wanted)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Idempotent."""
        self._client = None
        self._stack.close()


def snapshot(client: OperatorClient, wanted: Wanted) -> Snapshot:
    """Ask for everything. Raises: as :func:`ask`."""
    rows, match = wanted.rows, wanted.match
    return Snapshot(
        ask(client, ShowOverview(), Overview),
        ask(client, ListDestinations(match, wanted.destinations, limit=rows), DestinationPage).rows,
        ask(client, ListConnections("", wanted.connections, limit=rows), ConnectionPage).rows,
        ask(client, ListLimits(limit=rows), LimitPage).rows,
        ask(client, ListSinks(), SinkList).rows,
    )
