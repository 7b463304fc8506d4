"""Connected clients, as operators see them, and their end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, assert_never

from tidegate.broker.connection.connection import STOPPING, Connection
from tidegate.broker.limits.meter import RATE
from tidegate.broker.lists.pending_list import Consumer, PendingList
from tidegate.broker.operate.authorized import Authorized
from tidegate.broker.operate.paging import Key, first, in_steps, page
from tidegate.broker.turn.flow import UNWRITTEN
from tidegate.spi import Action, ConnectionEndedError, Held, Identity, RequestError
from tidegate.spi.operate import (
    SERVED_MAX,
    ConnectionDetails,
    ConnectionPage,
    ConnectionRow,
    ConnectionSort,
    Done,
    EndConnection,
    ListConnections,
    Room,
    Served,
    ShowConnection,
    Wait,
    WaitReason,
)

_US: Final = 1_000_000

#: Lists of a consumer whose waiting messages are counted: a filter of queues may cover thousands.
_LISTS_MAX: Final = 100

#: By throttle reason.
_THROTTLED: Final = {
    STOPPING: WaitReason.STOPPING,
    RATE: WaitReason.RATE,
    UNWRITTEN: WaitReason.STORE,
}


class ConnectionsOperated(Authorized):
    """The part of :class:`tidegate.spi.operate.Operator` about connections."""

    async def list_connections(self, who: Identity, request: ListConnections) -> ConnectionPage:
        """See Operator."""
        self._authorize(who)
        match, now = request.match.casefold(), self._core.now()

        def key(connection: Connection) -> Key | None:
            names = (connection.principal, connection.client_id, connection.address)
            if connection.is_closed or not is_in(match, names):
                return None
            number = f"{connection.number:020d}"
            if request.sort is ConnectionSort.NAME:
                return 0, f"{connection.principal} {connection.client_id} {number}"
            return -_number(connection, request.sort, now), number

        shown, following = await page(
            list(self._core.connections), key, request.after, request.limit
        )
        rows = await in_steps(shown, lambda item: None if item.is_closed else _row(item, now))
        return ConnectionPage(tuple(rows), following)

    async def show_connection(self, who: Identity, request: ShowConnection) -> ConnectionDetails:
        """See Operator."""
        self._authorize(who)
        connection = await self._connection(request.connection)
        account, session = connection.account, connection.session
        user = account.parent or account
        consumers = islice(connection.consumers.values(), SERVED_MAX)
        return ConnectionDetails(
            _row(connection, self._core.now()),
            "" if session is None else session.key,
            tuple(map(_served, consumers)),
            connection.transaction_count,
            tuple(islice(_waits(connection), SERVED_MAX)),
            held=Room(account.held, account.limit),
            in_flight=Room(connection.in_flight.total, account.in_flight_limit),
            user_held=Room(user.held, user.limit),
            user_in_flight=Room(user.in_flight, user.in_flight_limit),
        )

    async def end_connection(self, who: Identity, request: EndConnection) -> Done:
        """See Operator."""
        self._authorize(who)
        connection = await self._connection(request.connection)
        text = f"ended the connection {connection.number} of {connection.principal}"
        if connection.client_id:
            text += f", client id {connection.client_id!r}"
        self._tell(who, Action.ADMIN, "", f"{text}, from {connection.address}")
        end(connection)
        return Done(count=1)

    async def _connection(self, number: int) -> Connection:
        found = await first(
            list(self._core.connections),
            lambda connection: connection.number == number and not connection.is_closed,
        )
        if found is not None:
            return found
        raise RequestError(f"there is no connection {number}; it may have ended")


def end(connection: Connection) -> None:
    """End the connection, for an operator."""
    connection.end(ConnectionEndedError("administrative", "an operator ended the connection"))


def is_in(match: str, names: Iterable[str]) -> bool:
    """Args: match: in lower case."""
    return not match or any(match in name.casefold() for name in names)


def _number(connection: Connection, sort: ConnectionSort, now: int) -> int:
    match sort:
        case ConnectionSort.UNREAD:
            return connection.account.kinds[Held.OUTPUT]
        case ConnectionSort.IN_FLIGHT:
            return connection.in_flight.total
        case ConnectionSort.HELD:
            return connection.account.held
        case ConnectionSort.RATE:
            return int(_per_second(connection, now) * 1000)
        case ConnectionSort.NAME:
            return 0
        case _:
            assert_never(sort)


def _per_second(connection: Connection, now: int) -> float:
    seconds = max(1.0, (now - connection.connected_at) / _US)
    return (connection.delivered + connection.confirmed_count) / seconds


def _row(connection: Connection, now: int) -> ConnectionRow:
    account, consumers = connection.account, connection.consumers
    reasons = dict.fromkeys(wait.reason for wait in islice(_waits(connection), SERVED_MAX))
    return ConnectionRow(
        connection.number,
        connection.principal,
        connection.client_id,
        connection.protocol,
        connection.version,
        connection.address,
        connection.listener,
        connection.certificate,
        connection.connected_at,
        subscriptions=len(consumers),
        in_flight=sum([len(consumer.in_flight) for consumer in consumers.values()]),
        in_flight_bytes=connection.in_flight.total,
        unread_bytes=account.kinds[Held.OUTPUT],
        held_bytes=account.held,
        delivered=connection.delivered,
        confirmed=connection.confirmed_count,
        per_second=round(_per_second(connection, now), 1),
        waits=tuple(reasons),
    )


def _waits(connection: Connection) -> Iterator[Wait]:
    """What holds it up, the most general first."""
    if not connection.is_resumed:
        yield Wait(WaitReason.HANDSHAKE)
    if connection.is_undecided:
        yield Wait(WaitReason.RIGHTS)
    if not connection.is_read:
        yield Wait(WaitReason.UNREAD)
    if connection.in_flight.is_crowded:
        yield Wait(WaitReason.IN_FLIGHT)
    for reason in connection.throttled_for:
        if isinstance(reason, PendingList):
            yield Wait(WaitReason.LIST, reason.destination)
        elif isinstance(reason, str):
            yield Wait(_THROTTLED[reason])
    for consumer in islice(connection.consumers.values(), SERVED_MAX):
        if consumer.acknowledge and consumer.is_full() and _has_waiting(consumer):
            yield Wait(WaitReason.ACKNOWLEDGEMENTS, consumer.key)


def _waiting(consumer: Consumer) -> int:
    return sum([item.cursor.size for item in islice(consumer.lists, _LISTS_MAX)])


def _has_waiting(consumer: Consumer) -> bool:
    return any(item.cursor.size for item in islice(consumer.lists, _LISTS_MAX))


def _served(consumer: Consumer) -> Served:
    oldest = next(iter(consumer.in_flight.values()), None)
    acknowledges = consumer.acknowledge
    return Served(
        consumer.key,
        consumer.destination,
        _waiting(consumer),
        len(consumer.in_flight),
        consumer.prefetch_count if acknowledges else 0,
        consumer.in_flight_bytes,
        consumer.prefetch_bytes if acknowledges else 0,
        0 if oldest is None else oldest[2],
    )
