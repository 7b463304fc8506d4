"""What all requests of operators share: who may make them, and who is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.broker.core import BrokerCore
from tidegate.broker.publish.access import Rights
from tidegate.spi import Action, AuditKind, Identity, RequestError, TakesQueues
from tidegate.spi.operate import BridgeRow, PluginRow, Reloaded


async def _cannot_reload(check_only: bool) -> Reloaded:
    raise RequestError("the gateway has no configuration file to reload")


@dataclass(frozen=True, slots=True)
class Around:
    """What the gateway around the broker knows, and does.

    Attributes: listeners: where clients connect; plugins: installed ones, with their settings; bridges: their rules;
        takes_queues: bridges that can take queues over; reload: see ReloadConfiguration, ``check_only`` is passed.
    """

    listeners: Callable[[], Sequence[str]] = tuple
    plugins: Callable[[], Sequence[PluginRow]] = tuple
    bridges: Callable[[], Sequence[BridgeRow]] = tuple
    takes_queues: Callable[[], Sequence[TakesQueues]] = tuple
    reload: Callable[[bool], Awaitable[Reloaded]] = _cannot_reload


@dataclass(slots=True)
class Asking:
    """The caller, for access control; what it may do is asked for each request."""

    identity: Identity
    address: str = ""
    rights: Rights = field(default_factory=Rights)

    @property
    def principal(self) -> str:
        return self.identity.principal


#: For a broker with nothing around it.
ALONE: Final = Around()


class Authorized:
    """Asks access control, and tells auditors."""

    def __init__(self, core: BrokerCore, around: Around) -> None:
        self._core = core
        self._around = around

    def _authorize(self, who: Identity, *more: tuple[Action, str]) -> None:
        """Raises: AccessError, of which auditors are told."""
        access, asking = self._core.access, Asking(who, who.address)
        access.authorize(asking, Action.ADMIN, "")
        for action, destination in more:
            access.authorize(asking, action, destination)

    def _tell(self, who: Identity, action: Action, destination: str, text: str) -> None:
        self._core.access.audit(AuditKind.OPERATED, who, action, destination, detail=text)
