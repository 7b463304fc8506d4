"""A listener for operators: it runs before the store is open, and uses the operator's contract.

Other listeners let clients in. This one lets operators in, who are not connections of the broker: they
may come while it recovers, while its store hangs, and when it no longer takes clients.
"""

from __future__ import annotations

import enum
import pwd
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from tidegate.spi.clients.requests import ConnectRequest
from tidegate.spi.clients.security import Identity
from tidegate.spi.operate import Answer, Overview, Request


class Phase(enum.Enum):
    """Where a gateway is between its start and its end."""

    STANDBY = "standby"
    RECOVERING = "recovering"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"


class Readiness(msgspec.Struct, frozen=True):
    """Whether clients can connect and have what they send confirmed.

    Attributes:
        phase: where the gateway is in its life.
        what: the current step of recovery, in words, or whom a standby waits for; "" otherwise. percent: of
            this step, 0 to 100; None: unknown.
        problems: why it is not ready although it runs; empty when it is.
        warnings: what operators should look at although it is ready: for example no room for messages, which
            only consumers can free, so they must be let in.
    """

    phase: Phase
    what: str = ""
    percent: float | None = None
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Clients are let in and served."""
        return self.phase is Phase.RUNNING and not self.problems


class Caller(Protocol):
    """An operator whose credentials were accepted."""

    def identity_now(self) -> Identity:
        """The current identity, with groups; cheap. Raises: AccessError when it no longer exists or has expired."""
        ...


class OperatorDesk(Protocol):
    """What a listener for operators sees of the gateway, from before its store opens until the gateway ends.

    On the gateway's event loop.
    """

    @property
    def name(self) -> str:
        """The gateway's name."""
        ...

    @property
    def version(self) -> str:
        """The gateway's version."""
        ...

    @property
    def directory(self) -> Path:
        """A directory private to the gateway's user: the data directory, or a temporary one when nothing is stored."""
        ...

    def readiness(self) -> Readiness:
        """The current readiness; cheap."""
        ...

    def overview(self) -> Overview | None:
        """How much goes through the gateway, for keeping a history; None while it does not run. Cheap.

        No operator asks, so access is not checked here: check it for whoever is shown the history.
        """
        ...

    async def log_in(self, request: ConnectRequest) -> Caller:
        """Check credentials as for any client; auditors are told.

        Raises: AccessError, FlowControlError (too many checks are queued), StoreUnavailableError (the gateway
            does not run yet, so users and rights are unknown).
        """
        ...

    async def perform(self, who: Identity, request: Request) -> Answer:
        """Carry out a request, for some seconds at most: see :func:`tidegate.spi.operate.perform`.

        Raises: GatewayError as there; StoreUnavailableError while the gateway does not run, or when the store
            does not answer.
        """
        ...


def local_operator(uid: int) -> str:
    """The name of a user of this machine for access control and audit: ``local:NAME``."""
    try:
        return f"local:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"local:{uid}"


@runtime_checkable
class OperatorFrontEnd(Protocol):
    """Optional for a listener: it serves operators."""

    async def prepare(self, desk: OperatorDesk) -> None:
        """Begin to answer, before the store is opened, without delaying that. ``start`` follows when the store
        is open; only then must the address be bound. ``stop_accepting`` and ``stop`` follow later, even
        when a later step of the start failed.

        Raises: ConfigError, OSError.
        """
        ...
