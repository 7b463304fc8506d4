"""What an ``[[extensions]]`` table can make, and what a resident is: a client inside the gateway."""

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
    """An extension that is a client of the gateway that it is in, such as a bridge.

    It connects (:meth:`Broker.connect`) as a front-end does for its clients, with the same checks, limits and
    back-pressure.
    """

    async def move_in(self, broker: Broker) -> None:
        """Begin, and return soon. Called once, when the listeners accept connections.

        Any exception ends the start of the gateway.
        """
        ...

    async def move_out(self) -> None:
        """End: called when nobody is let in any more and before the connections are ended, also after a
        ``move_in`` that failed. Bounded in time; what is confirmed nowhere stays where it came from."""
        ...


@runtime_checkable
class Bridging(Protocol):
    """What a resident may be besides: it moves messages, and can tell operators how far it is."""

    def bridge_rows(self) -> Sequence[BridgeRow]:
        """One for each rule. Must be quick: called on the event loop."""
        ...


@runtime_checkable
class Exchangeable(Protocol):
    """What a resident may be besides: it may come, change and go while the gateway runs. It is no Service, and decides nothing
    about clients."""

    @property
    def identity(self) -> str:
        """Unique among extensions; one with the same is the same with other options."""
        ...

    def differences(self, other: object) -> Sequence[str]:
        """What would be otherwise as *other*, which has the same identity and has not moved in: in words."""
        ...

    async def become(self, other: object) -> None:
        """Be as *other*, which is thrown away. Bounded in time; raises nothing. What *differences* does not name goes on."""
        ...


class DrainStage(enum.Enum):
    """How much of the gateway is being emptied. OPEN: nothing; DRAINING: nobody is let in, and nothing is to come in;
    HANDING_OVER: all that waits in queues goes to another broker besides, in order."""

    OPEN = "open"
    DRAINING = "draining"
    HANDING_OVER = "handing-over"


@runtime_checkable
class HeedsDrain(Protocol):
    """What a resident may be besides: it pauses by itself what must not go on in a gateway that is drained.

    Its connections say ``heeds_drain`` (:class:`ConnectRequest`).
    """

    async def heed_drain(self, stage: DrainStage) -> None:
        """Be as *stage* wants it. Called with each change, never twice at once, and before `move_in` of one that comes during
        a drain. Bounded in time; raises nothing."""
        ...


class QueueTaker(Protocol):
    """Takes queues out of a gateway that is drained, to another broker. On the event loop; nothing here raises."""

    def row(self) -> BridgeRow:
        """How far it is."""
        ...

    @property
    def has_room(self) -> bool:
        """Not too much is on the way for another queue."""
        ...

    @property
    def refused(self) -> Mapping[str, str]:
        """By queue that it could not take: why."""
        ...

    @property
    def failure(self) -> tuple[str, str] | None:
        """Why it has ended by itself, and what to do; None: it has not. `changed` is called when it has."""
        ...

    def take(self, queue: str) -> None:
        """Send what waits in *queue* as well, and what comes, in order, each acknowledged when the other broker has
        confirmed it. One that was refused is tried again."""
        ...

    def leave(self, queue: str) -> None:
        """Go on with *queue* until nothing of it is on the way, then leave it."""
        ...

    async def end(self) -> None:
        """Send nothing more, wait some seconds at most for what was sent, and let go: what is not confirmed is in its queue."""
        ...


@runtime_checkable
class TakesQueues(Protocol):
    """What a resident may be besides: it can hand queues over to another broker when the gateway is drained."""

    @property
    def name(self) -> str:
        """What operators call it."""
        ...

    @property
    def remote(self) -> str:
        """Where the other broker is, in words for operators."""
        ...

    @property
    def taking_problem(self) -> str:
        """Why it takes no queues, and what to do; "": it does when it is asked."""
        ...

    def begin_taking(self, changed: Callable[[], None]) -> QueueTaker:
        """Begin without a queue. Args: changed: to be called when some more are on the way, confirmed, or refused.

        Its connections must say ``heeds_drain`` (:class:`ConnectRequest`). Raises: RequestError: it cannot, for the reason of
        `taking_problem`.
        """
        ...


#: What an extension is: one of these or several in one object, and a :class:`Service` besides.
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
