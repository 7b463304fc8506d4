"""What an ``[[extensions]]`` table can create, and what a resident is: a client inside the gateway."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from tidegate.spi.clients.connection import Broker
from tidegate.spi.clients.observing import Observer
from tidegate.spi.clients.security import (
    Auditor,
    Authenticator,
    Authorizer,
    EnhancedAuthenticator,
    Interceptor,
)
from tidegate.spi.operate import BridgeRow


@runtime_checkable
class Resident(Protocol):
    """An extension that is a client of its own gateway, such as a bridge.

    It connects (:meth:`Broker.connect`) as a front-end does for its clients, with the same checks, limits and
    back-pressure.
    """

    async def move_in(self, broker: Broker) -> None:
        """Begin, and return soon. Called once, when the listeners accept connections.

        Any exception aborts the start of the gateway.
        """
        ...

    async def move_out(self) -> None:
        """End. Called when nobody is let in any more, before the connections are ended; also after a failed
        ``move_in``. Bounded in time. Messages not yet confirmed by the target stay at their source."""
        ...


@runtime_checkable
class Bridging(Protocol):
    """Optional for a resident: it moves messages, and can report its progress to operators."""

    def bridge_rows(self) -> Sequence[BridgeRow]:
        """One row for each rule. Must be quick: called on the event loop."""
        ...


@runtime_checkable
class Exchangeable(Protocol):
    """Optional for a resident: it may be added, changed and removed while the gateway runs. It must not be a
    :class:`Service`, and must decide nothing about clients."""

    @property
    def identity(self) -> str:
        """Unique among extensions. An extension with the same identity is this one with other options."""
        ...

    def differences(self, other: object) -> Sequence[str]:
        """What would change if this became *other*, which has the same identity and has not moved in; in words."""
        ...

    async def become(self, other: object) -> None:
        """Take over the options of *other*, which is discarded afterwards. Bounded in time; raises nothing. Whatever
        *differences* does not name continues undisturbed."""
        ...


class DrainStage(enum.Enum):
    """How far the gateway is being emptied. OPEN: not at all. DRAINING: nobody is let in, and nothing may come
    in. HANDING_OVER: in addition, everything waiting in queues goes to another broker, in order."""

    OPEN = "open"
    DRAINING = "draining"
    HANDING_OVER = "handing-over"


@runtime_checkable
class HeedsDrain(Protocol):
    """Optional for a resident: it pauses by itself whatever must stop while the gateway drains.

    Its connections set ``heeds_drain`` (:class:`ConnectRequest`).
    """

    async def heed_drain(self, stage: DrainStage) -> None:
        """Adapt to *stage*. Called at each change, never concurrently, and before the `move_in` of a resident
        added during a drain. Bounded in time; raises nothing."""
        ...


class QueueTaker(Protocol):
    """Moves queues of a draining gateway to another broker. On the event loop; nothing here raises."""

    def row(self) -> BridgeRow:
        """Its progress."""
        ...

    @property
    def has_room(self) -> bool:
        """True while another queue can be taken: not too much is on its way."""
        ...

    @property
    def refused(self) -> Mapping[str, str]:
        """Why each refused queue could not be taken, by queue."""
        ...

    @property
    def failure(self) -> tuple[str, str] | None:
        """Why it ended by itself, and what to do; None while it has not. `changed` is called when that happens."""
        ...

    def take(self, queue: str) -> None:
        """Send the messages waiting in *queue*, and those to come, in order. Each is acknowledged once the other
        broker has confirmed it. A queue refused before is tried again."""
        ...

    def leave(self, queue: str) -> None:
        """Continue with *queue* until nothing of it is on its way, then leave it."""
        ...

    async def end(self) -> None:
        """Send nothing more, wait some seconds at most for confirmations, and stop. Unconfirmed messages stay in
        their queues."""
        ...


@runtime_checkable
class TakesQueues(Protocol):
    """Optional for a resident: it can hand queues over to another broker when the gateway is drained."""

    @property
    def name(self) -> str:
        """Its name, for operators."""
        ...

    @property
    def remote(self) -> str:
        """Where the other broker is, in words for operators."""
        ...

    @property
    def taking_problem(self) -> str:
        """Why it takes no queues, and what to do; "" when it can take them."""
        ...

    def begin_taking(self, changed: Callable[[], None]) -> QueueTaker:
        """Begin with no queues. Args: changed: call it when more messages are on their way, confirmed, or refused.

        Its connections must set ``heeds_drain`` (:class:`ConnectRequest`). Raises: RequestError when it cannot, for
        the reason in `taking_problem`.
        """
        ...


#: An extension: one object that is one or several of these, and optionally a :class:`Service`.
Extension: TypeAlias = (
    Authenticator | EnhancedAuthenticator | Authorizer | Auditor | Interceptor | Observer | Resident
)


class ExtensionFactory(Protocol):
    """What a plugin registers for an extension (hook ``register_extension``)."""

    @property
    def options_type(self) -> type:
        """A frozen dataclass; the host parses the ``[[extensions]]`` table into it."""
        ...

    def create(self, options: object) -> Extension:
        """Build it. Raises: ConfigError."""
        ...
