"""A listener for operators: it is there before the store is, and asks the operator's contract.

Other listeners let clients in; this one lets operators in, who are no connections of the broker's: they
may come while it recovers, while its store hangs and when it takes no clients any more.
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
    """Whether clients can connect, and what they send is confirmed.

    Attributes:
        what: in which step of the recovery it is, in words, or whom a standby waits for; "" otherwise. percent: of this step, 0 to 100;
            None: nobody knows.
        problems: why it is not ready although it runs; none: it is.
        warnings: what operators should look at, although it is ready: no room for messages, say, which
            those who consume must be let in to end.
    """

    phase: Phase
    what: str = ""
    percent: float | None = None
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Clients are let in and answered."""
        return self.phase is Phase.RUNNING and not self.problems


class Caller(Protocol):
    """An operator whose credentials were accepted."""

    def identity_now(self) -> Identity:
        """Who it is now, groups and all; cheap. Raises: AccessError: nobody any more, or not any longer."""
        ...


class OperatorDesk(Protocol):
    """What a listener for operators sees of the gateway, from before its store is open to its end.

    On its event loop.
    """

    @property
    def name(self) -> str:
        """The gateway's name."""
        ...

    @property
    def version(self) -> str: ...

    @property
    def directory(self) -> Path:
        """The gateway's user's alone: the data directory, or a temporary one where nothing is kept."""
        ...

    def readiness(self) -> Readiness:
        """Cheap."""
        ...

    def overview(self) -> Overview | None:
        """How much goes through it, for what keeps a history of that; None: it does not run. Cheap.

        Nobody asks, so access control is not asked either: it must be about whoever is shown the history.
        """
        ...

    async def log_in(self, request: ConnectRequest) -> Caller:
        """Check credentials as those of any client; auditors are told.

        Raises: AccessError, FlowControlError (too many wait to be checked), StoreUnavailableError (it
            does not run yet: nobody knows users and rights).
        """
        ...

    async def perform(self, who: Identity, request: Request) -> Answer:
        """Carry out a request, for at most some seconds: :func:`tidegate.spi.operate.perform`.

        Raises: GatewayError as there, StoreUnavailableError while it does not run, or when the store
            does not answer.
        """
        ...


def local_operator(uid: int) -> str:
    """Who a user of this machine is to access control and audit: ``local:NAME``."""
    try:
        return f"local:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"local:{uid}"


@runtime_checkable
class OperatorFrontEnd(Protocol):
    """What a listener is besides that is for operators."""

    async def prepare(self, desk: OperatorDesk) -> None:
        """Begin to answer, before the store is opened, and without holding that up; ``start`` comes when
        it is open, and only then must its address be had. After it, also when a later step of the start
        failed, ``stop_accepting`` and ``stop`` come.

        Raises: ConfigError, OSError.
        """
        ...
