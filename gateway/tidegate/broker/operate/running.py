"""What operators change of the gateway itself while it runs."""

from __future__ import annotations

from tidegate.broker.connection.connection import Connection
from tidegate.broker.operate.authorized import Authorized
from tidegate.broker.operate.paging import in_steps
from tidegate.spi import Action, Identity, RequestError
from tidegate.spi.operate import (
    Drain,
    DrainState,
    ReloadConfiguration,
    Reloaded,
    ShowDrain,
    Undrain,
)


class RunningOperated(Authorized):
    """A part of :class:`tidegate.spi.operate.Operator`."""

    async def reload_configuration(self, who: Identity, request: ReloadConfiguration) -> Reloaded:
        """See Operator."""
        self._authorize(who)
        found = await self._around.reload(request.check_only)
        if not request.check_only:
            keys = ", ".join(dict.fromkeys(change.key for change in found.changed))
            self._tell(who, Action.ADMIN, "", f"reloaded the configuration: {keys or 'no change'}")
        return found

    async def drain(self, who: Identity, request: Drain) -> DrainState:
        """See Operator."""
        self._authorize(who)
        reference = request.server_reference
        if not reference.isprintable():
            raise RequestError("a server reference is host:port; this one is not even printable")
        if request.is_moved and not reference:
            raise RequestError("moved where? give a server_reference")
        self._core.draining.begin(reference, is_moved=request.is_moved, timeout_s=request.timeout_s)
        self._tell(who, Action.ADMIN, "", f"drains the gateway, clients use {reference!r}")
        return await self._drain_state()

    async def undrain(self, who: Identity, request: Undrain) -> DrainState:
        """See Operator."""
        self._authorize(who)
        if self._core.draining.is_on:
            self._core.draining.end()
            self._tell(who, Action.ADMIN, "", "lets clients in again")
        return await self._drain_state()

    async def show_drain(self, who: Identity, request: ShowDrain) -> DrainState:
        """See Operator."""
        self._authorize(who)
        return await self._drain_state()

    async def _drain_state(self) -> DrainState:
        core, draining = self._core, self._core.draining
        in_flight = await in_steps(list(core.connections), _in_flight)
        return DrainState(
            draining.is_on,
            len(core.connections),
            sum(in_flight),
            draining.server_reference if draining.is_on else "",
            draining.is_on and draining.is_moved,
        )


def _in_flight(connection: Connection) -> int:
    return sum([len(consumer.in_flight) for consumer in connection.consumers.values()])
