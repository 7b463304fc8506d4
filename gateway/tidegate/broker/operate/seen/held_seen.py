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
from tidegate.broker.operate.paging import Key, Shortlist, each, in_steps, page
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
    """By option, what happens at the limit."""
    fields = dataclasses.fields(options)
    return {f"{table}.{item.name}": option_info(item).act for item in fields}


_ACTS: Final = {
    **_acts("broker", BrokerConfig),
    **_acts("quotas", Quota),
    **_acts("destinations", DestinationPolicy),
}

#: A row is sorted by how much of the limit is used, a whole number; this means all of it.
_WHOLE: Final = 1_000_000

T = TypeVar("T")

#: Things with limits: the gateway (None), users, connections, lists.
_Holding: TypeAlias = Account | Connection | PendingList | None

#: Option, how much is used, and the limit; 0: there is none.
_Found: TypeAlias = tuple[str, int, int]


class HeldSeen(Authorized):
    """The part of :class:`tidegate.spi.operate.Operator` about limits, and what counts for them."""

    async def list_limits(self, who: Identity, request: ListLimits) -> LimitPage:
        """See Operator."""
        self._authorize(who)
        match, wanted = request.match.casefold(), request.percent * _WHOLE // 100
        is_nearest = request.sort is LimitSort.NEAREST
        shortlist = Shortlist[LimitRow](request.after, request.limit)

        def offer(holding: _Holding) -> None:
            scope, holder, number, found = self._limits_of(holding)
            for option, used, limit in found:
                part = _part(option, used, limit) if limit else -1
                place = -part if is_nearest else 0
                # Of thousands, nearly all come too late for this page: they cost no row, and most no name.
                if part < wanted or shortlist.is_full_before(place):
                    continue
                key = place, f"{scope} {holder} {option} {number}"
                if shortlist.takes(key) and is_in(match, (holder, option)):
                    percent, refused = round(100 * part / _WHOLE, 1), self._refused(holding)
                    whose = LimitScope(scope), holder, number
                    row = LimitRow(*whose, option, used, limit, percent, refused, _ACTS[option])
                    shortlist.offer(key, row)

        await each(self._holding(request.scope), offer)
        rows, following = shortlist.page()
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

    def _limits_of(self, holding: _Holding) -> tuple[str, str, int, Iterable[_Found]]:
        """Scope, holder and number, and its limits if it still exists."""
        match holding:
            case Connection():
                limits = () if holding.is_closed else _of_connection(holding)
                return "connection", holding.address, holding.number, limits
            case PendingList():
                limits = () if holding.is_removed else _of_list(holding)
                return "destination", holding.destination, holding.id, limits
            case Account():
                return "user", _user(holding), 0, self._of_user(holding)
            case None:
                return "gateway", "", 0, self._of_gateway()

    def _refused(self, holding: _Holding) -> int:
        match holding:
            case PendingList():
                return 0
            case Connection():
                return holding.account.refused
            case Account():
                return holding.refused
            case None:
                return self._core.accounts.gateway.refused

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
        raise RequestError(f"nothing is held for user {user!r}, who is not connected")

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


def _part(option: str, used: int, limit: int) -> int:
    """The used part, as a fraction of ``_WHOLE``."""
    if option == "broker.disk_free_limit":
        return _WHOLE * limit // max(limit, used)
    return _WHOLE * used // limit


async def _largest(
    items: Sequence[T], account_of: Callable[[T], Account | None], name_of: Callable[[T], str]
) -> list[T]:
    """Those for whom most is held. Args: account_of: None: not wanted; name_of: a unique name."""

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
