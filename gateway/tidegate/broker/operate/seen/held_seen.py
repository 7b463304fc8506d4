"""What is near its limit, what is held for whom, and what cursors hold, as operators see it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from tidegate.broker.connection.connection import Connection
from tidegate.broker.limits.accounts import Account, Counted
from tidegate.broker.limits.list_limit import ListLimit
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.operate.authorized import Authorized
from tidegate.broker.operate.paging import Key, Shortlist, in_steps, page, page_of_rows
from tidegate.broker.operate.seen.connections_operated import is_in
from tidegate.broker.operate.views import feed_of
from tidegate.config import BrokerConfig, DestinationPolicy, Quota
from tidegate.spi import Held, Identity, RequestError, option_info
from tidegate.spi.operate import (
    HOLDERS_MAX,
    CursorPage,
    CursorRow,
    CursorSort,
    HeldDetails,
    Holder,
    LimitPage,
    LimitRow,
    LimitScope,
    LimitSort,
    ListCursors,
    ListLimits,
    Room,
    ShowHeld,
)


def _acts(table: str, options: type) -> Mapping[str, str]:
    """By option, what happens at it."""
    fields = dataclasses.fields(options)
    return {f"{table}.{item.name}": option_info(item).act for item in fields}


_ACTS: Final = {
    **_acts("broker", BrokerConfig),
    **_acts("quotas", Quota),
    **_acts("destinations", DestinationPolicy),
}

T = TypeVar("T")

#: What has limits: the gateway (None), users, connections, lists.
_Holding: TypeAlias = Account | Connection | PendingList | None

#: Option, what is used of it, and the limit; 0: there is none.
_Found: TypeAlias = tuple[str, int, int]


class HeldSeen(Authorized):
    """The part of :class:`tidegate.spi.operate.Operator` about limits, and what counts for them."""

    async def list_limits(self, who: Identity, request: ListLimits) -> LimitPage:
        """See Operator."""
        self._authorize(who)
        match, is_nearest = request.match.casefold(), request.sort is LimitSort.NEAREST
        shortlist = Shortlist[LimitRow](request.after, request.limit)

        def rows_of(holding: _Holding) -> Iterable[tuple[Key, LimitRow]]:
            for option, used, limit in self._limits_of(holding):
                if not limit:
                    continue
                percent = _percent(option, used, limit)
                place = -int(percent * 1000) if is_nearest else 0
                if percent < request.percent or shortlist.is_full_before(place):
                    continue
                row = self._row(holding, option, used, limit, percent)
                if is_in(match, (row.holder, row.option)):
                    yield (place, f"{row.scope.value} {row.holder} {row.option} {row.number}"), row

        holding = self._holding(request.scope)
        rows, following = await page_of_rows(holding, rows_of, shortlist)
        return LimitPage(tuple(rows), following)

    async def show_held(self, who: Identity, request: ShowHeld) -> HeldDetails:
        """See Operator."""
        self._authorize(who)
        accounts = self._core.accounts
        if not request.user:
            account = accounts.gateway
            users = await _largest(list(accounts.principals()), lambda item: item, _user)
            below = [_holder(item, _user(item), 0) for item in users]
        else:
            account = self._account(request.user)
            connections = await _largest(
                list(self._core.connections),
                lambda item: item.account if item.account.parent is account else None,
                lambda item: f"{item.number:020d}",
            )
            below = [_holder(item.account, item.address, item.number) for item in connections]
        return HeldDetails(
            request.user,
            Room(account.held, account.limit),
            account.peak,
            Room(account.in_flight, account.in_flight_limit),
            account.in_flight_peak,
            account.refused,
            {kind.name.lower(): account.kinds[kind] for kind in Held},
            {what.name.lower(): self._count(account, what) for what in Counted},
            tuple(below),
        )

    async def list_cursors(self, who: Identity, request: ListCursors) -> CursorPage:
        """See Operator."""
        self._authorize(who)
        match = request.match.casefold()

        def key(item: PendingList) -> Key | None:
            if item.is_removed or (request.paging and not item.cursor.feed.is_paging):
                return None
            subscription = item.subscription
            whose = (subscription.client_id, subscription.name) if subscription else ()
            if not is_in(match, (item.destination, *whose)):
                return None
            name = f"{item.destination} {item.id}"
            if request.sort is CursorSort.MEMORY:
                return -item.cursor.memory_bytes, name
            return (-item.cursor.size if request.sort is CursorSort.PENDING else 0), name

        lists = list(self._core.destinations.charged)
        shown, following = await page(lists, key, request.after, request.limit)
        rows = await in_steps(shown, lambda item: None if item.is_removed else self._cursor(item))
        return CursorPage(tuple(rows), following)

    # --- of limits -------------------------------------------------------------------------------

    def _holding(self, scope: LimitScope | None) -> list[_Holding]:
        core = self._core
        found: list[_Holding] = []
        if scope in (None, LimitScope.GATEWAY):
            found.append(None)
        if scope in (None, LimitScope.USER):
            found += core.accounts.principals()
        if scope in (None, LimitScope.CONNECTION):
            found += core.connections
        if scope in (None, LimitScope.DESTINATION):
            found += core.destinations.charged
        return found

    def _limits_of(self, holding: _Holding) -> Iterable[_Found]:
        """Its limits, if it is still there."""
        match holding:
            case PendingList():
                return () if holding.is_removed else _of_list(holding)
            case Connection():
                return () if holding.is_closed else _of_connection(holding)
            case Account():
                return self._of_user(holding)
            case None:
                return self._of_gateway()

    def _row(
        self, holding: _Holding, option: str, used: int, limit: int, percent: float
    ) -> LimitRow:
        scope, holder, number, refused = LimitScope.DESTINATION, "", 0, 0
        match holding:
            case PendingList():
                holder, number = holding.destination, holding.id
            case Connection():
                scope, refused = LimitScope.CONNECTION, holding.account.refused
                holder, number = holding.address, holding.number
            case Account():
                scope, holder, refused = LimitScope.USER, _user(holding), holding.refused
            case None:
                scope, refused = LimitScope.GATEWAY, self._core.accounts.gateway.refused
        act = _ACTS[option]
        return LimitRow(scope, holder, number, option, used, limit, percent, refused, act)

    def _of_gateway(self) -> Iterable[_Found]:
        core, config, accounts = self._core, self._core.config, self._core.accounts
        gateway, held = accounts.gateway, accounts.gateway.kinds
        yield "broker.held_limit", gateway.held, gateway.limit
        yield "broker.in_flight_limit", gateway.in_flight, gateway.in_flight_limit
        for option, memory in (
            ("broker.cursor_memory_limit", accounts.stored_memory),
            ("broker.unstored_memory_limit", accounts.unstored_memory),
            ("broker.temporary_space", accounts.temporary),
        ):
            yield option, memory.used, memory.limit_bytes
        yield "broker.store_limit", core.store.statistics().used_bytes, config.store_limit
        if core.disk.free >= 0:
            yield "broker.disk_free_limit", core.disk.free, config.disk_free_limit
        yield "broker.connections_max", len(core.connections), config.connections_max
        yield "broker.queues_max", len(core.destinations.queues), config.queues_max
        yield "broker.retained_limit", core.retained.memory_bytes, config.retained_limit
        yield "broker.id_cache_limit", held[Held.DUPLICATE_IDS], config.id_cache_limit
        yield "broker.login_input_limit", held[Held.LOGIN], config.login_input_limit
        yield "broker.prepared_branches_max", len(core.branches), config.prepared_branches_max
        if core.acknowledged_log.is_read:
            kept = core.acknowledged_log.rows.log_statistics().held_bytes
            yield "broker.acknowledged_limit", kept, config.acknowledged_limit

    def _of_user(self, account: Account) -> Iterable[_Found]:
        yield "quotas.held_limit", account.held, account.limit
        yield "quotas.in_flight_limit", account.in_flight, account.in_flight_limit
        for what in Counted:
            room = self._count(account, what)
            yield f"quotas.{what.name.lower()}_max", room.used, room.limit
        if account.quota is not None:
            kept = account.kinds[Held.RETAINED]
            yield "quotas.retained_limit", kept, account.quota.retained_limit

    def _count(self, account: Account, what: Counted) -> Room:
        limit = 0
        if account.quota is not None:
            limit = getattr(account.quota, f"{what.name.lower()}_max")
        elif what is Counted.CONNECTIONS:
            limit = self._core.config.connections_max
        elif what is Counted.QUEUES:
            limit = self._core.config.queues_max
        return Room(account.counts[what], limit)

    def _account(self, user: str) -> Account:
        for account in self._core.accounts.principals():
            if _user(account) == user:
                return account
        raise RequestError(f"nothing is held for a user {user!r}, who is not connected")

    # --- of cursors ------------------------------------------------------------------------------

    def _cursor(self, item: PendingList) -> CursorRow:
        destinations, destination = self._core.destinations, item.destination
        return CursorRow(
            item.id,
            destination,
            destinations.cursor_name(destination, is_stored=item.is_stored),
            item.cursor.size,
            Room(item.cursor.memory_bytes, destinations.policy(destination).memory_limit),
            item.is_full,
            feed_of(item),
        )


def _of_connection(connection: Connection) -> Iterable[_Found]:
    account = connection.account
    used = max(account.held, connection.in_flight.total)
    return (("broker.connection_held_limit", used, account.limit),)


def _of_list(item: PendingList) -> Iterable[_Found]:
    limit = item.limit
    if not isinstance(limit, ListLimit):
        return ()
    bounds = limit.bounds
    return (
        (f"destinations.{bounds.prefix}messages_max", limit.count, bounds.messages_max),
        (f"destinations.{bounds.prefix}bytes_max", limit.bytes, bounds.bytes_max),
    )


def _percent(option: str, used: int, limit: int) -> float:
    part = used / limit
    if option == "broker.disk_free_limit":
        part = min(1.0, limit / max(1, used))
    return round(100 * part, 1)


async def _largest(
    items: Sequence[T], account_of: Callable[[T], Account | None], name_of: Callable[[T], str]
) -> list[T]:
    """Those for whom most is held. Args: account_of: None: it is not wanted; name_of: no other has it."""

    def key(item: T) -> Key | None:
        account = account_of(item)
        if account is None:
            return None
        return -(account.held + account.in_flight), name_of(item)

    largest, _ = await page(items, key, "", HOLDERS_MAX)
    return largest


def _user(account: Account) -> str:
    return account.name.removeprefix("user ")


def _holder(account: Account, name: str, number: int) -> Holder:
    in_flight = Room(account.in_flight, account.in_flight_limit)
    return Holder(name, number, Room(account.held, account.limit), in_flight)
