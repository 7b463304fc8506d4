"""What operators change in the gateway itself while it runs."""

from __future__ import annotations

from tidegate.broker.connection.connection import Connection
from tidegate.broker.operate.authorized import Authorized
from tidegate.broker.operate.paging import each
from tidegate.spi import Action, Identity, RequestError, TakesQueues
from tidegate.spi.operate import (
    STILL_HERE_MAX,
    Drain,
    DrainState,
    HandsOver,
    ReloadConfiguration,
    Reloaded,
    ShowDrain,
    StillHere,
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
            raise RequestError(
                "a server reference must be host:port; this one contains unprintable characters"
            )
        if request.is_moved and not reference:
            raise RequestError("`moved` needs a server_reference")
        core, bridge = self._core, request.hand_over
        through = self._through(bridge) if bridge else None
        if core.handing_over.bridge != bridge or core.handing_over.has_failed:
            await core.handing_over.end()
            if through is not None:
                core.handing_over.begin(through)
        core.draining.begin(reference, is_moved=request.is_moved, timeout_s=request.timeout_s)
        text = f"drains the gateway, clients use {reference!r}"
        if bridge:
            text += f", queues go over bridge {bridge!r}"
        self._tell(who, Action.ADMIN, "", text)
        return await self._drain_state()

    async def undrain(self, who: Identity, request: Undrain) -> DrainState:
        """See Operator."""
        self._authorize(who)
        if self._core.draining.is_on:
            await self._core.handing_over.end()
            self._core.draining.end()
            self._tell(who, Action.ADMIN, "", "lets clients in again")
        return await self._drain_state()

    async def show_drain(self, who: Identity, request: ShowDrain) -> DrainState:
        """See Operator."""
        self._authorize(who)
        return await self._drain_state()

    async def _drain_state(self) -> DrainState:
        core, draining = self._core, self._core.draining
        clients = core.clients()
        in_flight, still_here = 0, list[StillHere]()

        def count(connection: Connection) -> None:
            nonlocal in_flight
            its = sum([len(consumer.in_flight) for consumer in connection.consumers.values()])
            in_flight += its
            if draining.is_on and not connection.is_idle and len(still_here) < STILL_HERE_MAX:
                still_here.append(_still_here(connection, its))

        await each(clients, count)
        return DrainState(
            draining.is_on,
            len(clients),
            in_flight,
            draining.server_reference,
            draining.is_moved,
            core.handing_over.state(),
            draining.since,
            draining.ends_at,
            tuple(still_here),
            tuple(
                HandsOver(one.name, one.remote, one.taking_problem)
                for one in self._around.takes_queues()
            ),
        )

    def _through(self, bridge: str) -> TakesQueues:
        """Raises: RequestError."""
        there = {one.name: one for one in self._around.takes_queues()}
        if bridge not in there:
            names = ", ".join(sorted(there)) or "there is none"
            raise RequestError(f"this gateway has no bridge named {bridge!r}; its bridges: {names}")
        return there[bridge]


def _still_here(connection: Connection, in_flight: int) -> StillHere:
    return StillHere(
        connection.number,
        connection.principal,
        connection.client_id,
        connection.address,
        in_flight,
        connection.transaction_count,
    )
