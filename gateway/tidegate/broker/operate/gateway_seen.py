"""The gateway as a whole, as operators see it: nothing here waits for the store."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.broker.core import BrokerCore
from tidegate.broker.limits.accounts import Account
from tidegate.broker.operate.running import RunningOperated
from tidegate.spi import CursorMemory, Identity, TemporarySpace
from tidegate.spi.operate import GatewayState, Latency, Overview, Room, ShowOverview, Traffic


class GatewaySeen(RunningOperated):
    """The part of :class:`tidegate.spi.operate.Operator` about the gateway."""

    async def show_overview(self, who: Identity, request: ShowOverview) -> Overview:
        """See Operator."""
        self._authorize(who)
        return overview(self._core, self._around.listeners())


def overview(core: BrokerCore, listeners: Sequence[str]) -> Overview:
    """The caller asks access control. Args: listeners: their addresses."""
    traffic = core.traffic
    totals, rates = traffic.totals(), traffic.rates()
    through = {name: Traffic(total, round(rates[name], 1)) for name, total in totals.items()}
    count, (median, most) = core.writer.latencies.quantiles(0.5, 0.99)
    state, problem = _state(core)
    accounts, statistics = core.accounts, core.store.statistics()
    return Overview(
        name=core.name,
        version=core.version,
        store_id=core.store_id,
        started_at=traffic.since,
        uptime_s=round(traffic.uptime_s, 1),
        state=state,
        problem=problem,
        listeners=tuple(listeners),
        published=through["published"],
        confirmed=through["confirmed"],
        delivered=through["delivered"],
        acknowledged=through["acknowledged"],
        dropped=through["dropped"],
        confirmation=Latency(count, round(median * 1000, 3), round(most * 1000, 3)),
        connections=Room(len(core.connections), core.config.connections_max),
        sessions=len(core.sessions),
        subscriptions=len(core.destinations.charged) - len(core.destinations.queues),
        queues=len(core.destinations.queues),
        backlog=statistics.pending_messages,
        store=Room(statistics.used_bytes, core.config.store_limit),
        disk_free=core.disk.free if core.disk.free >= 0 else None,
        held=_held(accounts.gateway),
        in_flight=Room(accounts.gateway.in_flight, accounts.gateway.in_flight_limit),
        stored_memory=_memory(accounts.stored_memory),
        unstored_memory=_memory(accounts.unstored_memory),
        temporary=_memory(accounts.temporary),
        memory_bytes=accounts.in_memory(),
        counts={k: v for k, v in core.client_counts().items() if isinstance(v, int)},
        certificates=core.certificates.known,
    )


def _state(core: BrokerCore) -> tuple[GatewayState, str]:
    """The gateway's state, and why."""
    writer = core.writer
    if writer.error is not None:
        return GatewayState.STORE_FAILED, str(writer.error)
    if core.is_closing:
        return GatewayState.STOPPING, "the gateway is shutting down"
    if core.draining.is_on:
        return GatewayState.DRAINING, str(core.draining.error())
    problem = writer.shortage.current()
    if problem is not None:
        return GatewayState.STORE_FULL, str(problem)
    return GatewayState.RUNNING, ""


def _held(account: Account) -> Room:
    return Room(account.held, account.limit)


def _memory(memory: CursorMemory | TemporarySpace) -> Room:
    return Room(memory.used, memory.limit_bytes)
