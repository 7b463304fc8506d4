"""What operators' listeners see of the gateway: whether it is ready, who asks, and the contract."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidegate import __version__
from tidegate.broker import BrokerCore
from tidegate.broker.operate.gateway_seen import overview
from tidegate.broker.operate.operations import Operations
from tidegate.broker.sessions.callers import LoggedIn
from tidegate.operator_socket import perform_in_time
from tidegate.spi import (
    ConnectRequest,
    Identity,
    StoreUnavailableError,
)
from tidegate.spi.clients.operators import Phase, Readiness
from tidegate.spi.operate import Answer, Overview, Request
from tidegate.spi.units import moment

#: A write that takes longer is a problem: somebody waits for the confirmation.
WRITE_S: Final = 5.0


class Desk:
    """A :class:`tidegate.spi.clients.operators.OperatorDesk`.

    Args: name: the gateway's; directory: private to its user; listeners: returns the current addresses.

    Attributes:
        phase: its current phase. operator: answers, as soon as it runs.
    """

    def __init__(
        self, name: str, directory: Path, core: BrokerCore, listeners: Sequence[str]
    ) -> None:
        self.name = name
        self.version = __version__
        self.directory = directory
        self.phase = Phase.RECOVERING
        self.operator: Operations | None = None
        self._core = core
        self._listeners = listeners
        self._what = ""
        self._waits_since = ""
        self._percent: float | None = None

    def progressed(self, what: str, done: int, total: int) -> None:
        """The store recovers."""
        self._what, self._percent = what, min(100.0, 100.0 * done / total) if total else None

    def stands_by(self, owner: str) -> str:
        """The store waits for *owner*, whom strangers are not told; "": no longer. Returns: since when."""
        self.phase = Phase.STANDBY if owner else Phase.RECOVERING
        self._waits_since = (self._waits_since or moment(time.time())) if owner else ""
        what = f"another gateway owns the store; waiting since {self._waits_since}"
        self._what, self._percent = what if owner else "", None
        return self._waits_since

    def readiness(self) -> Readiness:
        """See OperatorDesk."""
        if self.phase in (Phase.STANDBY, Phase.RECOVERING):
            return Readiness(self.phase, self._what, self._percent)
        if self.phase is not Phase.RUNNING:
            return Readiness(self.phase)
        return Readiness(
            Phase.DRAINING if self._core.draining.is_on else self.phase,
            problems=tuple(_problems(self._core)),
            warnings=tuple(_warnings(self._core)),
        )

    def overview(self) -> Overview | None:
        """See OperatorDesk."""
        return None if self.operator is None else overview(self._core, self._listeners)

    async def log_in(self, request: ConnectRequest) -> LoggedIn:
        """See OperatorDesk."""
        if self.operator is None:
            raise self._not_yet()
        return await self._core.log_in(request)

    async def perform(self, who: Identity, request: Request) -> Answer:
        """See OperatorDesk."""
        if self.operator is None:
            raise self._not_yet()
        return await perform_in_time(self.operator, who, request)

    def _not_yet(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"the gateway is {self.phase.value}; try again later")


def _problems(core: BrokerCore) -> list[str]:
    """Why nobody is let in or gets confirmations. Public: files and hosts are only in the log."""
    problems: list[str] = []
    if core.writer.error is not None:
        problems.append("the message store is read-only after an error; see the log")
    elif not core.store.statistics().writable:
        problems.append("the message store accepts nothing at present; see the log")
    waits = core.writer.waits_s
    if waits > WRITE_S and not core.writer.shortage.is_near:
        problems.append(f"the message store has not answered a write for {waits:.0f} s")
    if core.overload.is_on:
        problems.append("the machine is overloaded: new connections are refused")
    return problems


def _warnings(core: BrokerCore) -> list[str]:
    warnings: list[str] = []
    if core.writer.shortage.current() is not None:
        warnings.append("the message store has no room: publishes are refused")
    if core.certificates.invalid:
        warnings.append(
            "a certificate has expired, or is not valid yet: the log says which; clients may refuse it"
        )
    return warnings
