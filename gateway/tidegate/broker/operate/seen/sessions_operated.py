"""Sessions and subscriptions, as operators see them, and their end."""

from __future__ import annotations

from itertools import islice
from typing import Final

from tidegate.broker.connection.connection import Connection
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.operate.authorized import Authorized
from tidegate.broker.operate.messages.over_messages import durable
from tidegate.broker.operate.paging import Key, first, in_steps, page
from tidegate.broker.operate.seen.connections_operated import end, is_in
from tidegate.broker.sessions.state import SessionState
from tidegate.spi import SESSION_NEVER_EXPIRES, Action, Identity, RequestError
from tidegate.spi.operate import (
    KEPT_MAX,
    DeleteSession,
    DeleteSubscription,
    Done,
    ListSessions,
    ListSubscriptions,
    SessionDetails,
    SessionPage,
    SessionRow,
    SessionSort,
    ShowSession,
    ShowSubscription,
    SubscriptionDetails,
    SubscriptionPage,
    SubscriptionRow,
    SubscriptionSort,
)

_WHY: Final = "an operator deleted it"

#: Subscriptions of a session whose waiting messages are counted.
_LISTS_MAX: Final = 1000


class SessionsOperated(Authorized):
    """The part of :class:`tidegate.spi.operate.Operator` about what outlives connections."""

    async def list_sessions(self, who: Identity, request: ListSessions) -> SessionPage:
        """See Operator."""
        self._authorize(who)
        match = request.match.casefold()

        def key(session: SessionState) -> Key | None:
            stored = session.stored
            if session.is_removed or (request.away and session.connection is not None):
                return None
            if not is_in(match, (stored.owner, stored.client_id)):
                return None
            name = f"{stored.owner} {stored.client_id} {session.key}"
            if request.sort is SessionSort.PENDING:
                return -self._pending(session), name
            if request.sort is SessionSort.AWAY:
                # Sessions that are not away come after those that have just left.
                is_away = session.connection is None
                return (-self._away(session) if is_away else 1), name
            return 0, name

        shown, following = await page(self._core.sessions.all(), key, request.after, request.limit)
        rows = await in_steps(shown, lambda item: None if item.is_removed else self._session(item))
        return SessionPage(tuple(rows), following)

    async def show_session(self, who: Identity, request: ShowSession) -> SessionDetails:
        """See Operator."""
        self._authorize(who)
        session = self._found(request.session)
        lists = self._core.destinations.lists_of(session.key)
        return SessionDetails(
            self._session(session),
            tuple(map(_subscription, islice(lists.values(), KEPT_MAX))),
            tuple(item.filter for item in islice(session.attached.values(), KEPT_MAX)),
        )

    async def delete_session(self, who: Identity, request: DeleteSession) -> Done:
        """See Operator."""
        self._authorize(who)
        core, session = self._core, self._found(request.session)
        connection = session.connection
        if isinstance(connection, Connection) and not request.with_connection:
            raise RequestError(
                "its client is connected; end the connection first, or delete the "
                "session together with its connection"
            )
        core.writer.check_writable(adds=False)
        lists = core.destinations.lists_of(session.key).values()
        lost = sum(map(_left, islice(lists, _LISTS_MAX)))
        if isinstance(connection, Connection):
            end(connection)
        core.sessions.remove(session, _WHY)
        text = f"deleted the session of {session.stored.owner}, client id {session.client_id!r}"
        self._tell(who, Action.ADMIN, "", f"{text}, with {lost} pending messages")
        if session.gone is not None:
            await session.gone.wait()
        await durable(core.flow)
        return Done(count=lost)

    async def list_subscriptions(
        self, who: Identity, request: ListSubscriptions
    ) -> SubscriptionPage:
        """See Operator."""
        self._authorize(who)
        match = request.match.casefold()

        def key(item: PendingList) -> Key | None:
            if item.is_queue or item.is_removed:
                return None
            whose, client_id, name = _names(item)
            if not is_in(match, (whose, client_id, name, item.destination)):
                return None
            if request.durable and (item.subscription is None or not item.subscription.durable):
                return None
            unique = f"{whose} {client_id} {name} {item.id}"
            if request.sort is SubscriptionSort.PENDING:
                return -item.cursor.size, unique
            if request.sort is SubscriptionSort.MEMORY:
                return -item.cursor.memory_bytes, unique
            return 0, unique

        lists = list(self._core.destinations.charged)
        shown, following = await page(lists, key, request.after, request.limit)
        rows = await in_steps(shown, lambda item: None if item.is_removed else _subscription(item))
        return SubscriptionPage(tuple(rows), following)

    async def show_subscription(
        self, who: Identity, request: ShowSubscription
    ) -> SubscriptionDetails:
        """See Operator."""
        self._authorize(who)
        found = await self._list(request.subscription)
        numbers = [
            item.client.number
            for item in islice(found.all_consumers(), KEPT_MAX)
            if isinstance(item.client, Connection)
        ]
        return SubscriptionDetails(_subscription(found), tuple(numbers))

    async def delete_subscription(self, who: Identity, request: DeleteSubscription) -> Done:
        """See Operator."""
        self._authorize(who)
        core, found = self._core, await self._list(request.subscription)
        subscription, consumers = found.subscription, found.all_consumers()
        if subscription is None or not subscription.durable:
            raise RequestError("it is not durable: it ends with its connection")
        if subscription.share_group and core.destinations.is_member_of(subscription):
            raise RequestError(
                "it is shared by sessions and ends with the last of them; delete those"
            )
        if consumers and not request.with_connection:
            raise RequestError(
                "its client is connected; end the connection first, or delete the "
                "subscription together with its connection"
            )
        core.writer.check_writable(adds=False)
        lost = _left(found)
        for client in {item.client for item in consumers}:
            if isinstance(client, Connection):
                end(client)
        core.destinations.remove_subscription(found, _WHY)
        whose = f"{subscription.owner}, client id {subscription.client_id!r}"
        text = f"deleted the subscription {subscription.name!r} of {whose}"
        destination = subscription.filter
        self._tell(who, Action.ADMIN, destination, f"{text}, with {lost} pending messages")
        await durable(core.flow)
        return Done(count=lost)

    # --- one of them -----------------------------------------------------------------------------

    def _found(self, key: str) -> SessionState:
        session = self._core.sessions.find(key)
        if session is None:
            raise RequestError(f"there is no session {key!r}")
        return session

    async def _list(self, number: int) -> PendingList:
        found = await first(
            list(self._core.destinations.charged),
            lambda item: item.id == number and not item.is_queue and not item.is_removed,
        )
        if found is not None:
            return found
        raise RequestError(f"there is no subscription {number} with a pending list of its own")

    def _pending(self, session: SessionState) -> int:
        lists = self._core.destinations.lists_of(session.key)
        return sum([item.cursor.size for item in islice(lists.values(), _LISTS_MAX)])

    def _away(self, session: SessionState) -> int:
        return self._core.writer.elapsed() - session.left_at

    def _session(self, session: SessionState) -> SessionRow:
        stored, connection = session.stored, session.connection
        expiry = stored.expiry_interval
        return SessionRow(
            session.key,
            stored.owner,
            stored.client_id,
            stored.protocol,
            connection.number if isinstance(connection, Connection) else None,
            0 if connection is not None else self._core.now() - self._away(session),
            None if expiry == SESSION_NEVER_EXPIRES else expiry,
            subscriptions=len(self._core.destinations.lists_of(session.key)),
            attached=len(session.attached),
            pending=self._pending(session),
            in_flight=len(session.inflight),
            has_will=stored.will is not None,
        )


def _in_flight(item: PendingList) -> int:
    """Delivered from a subscription's list, not acknowledged: its consumers have no other list."""
    return sum([len(consumer.in_flight) for consumer in item.all_consumers()])


def _left(item: PendingList) -> int:
    """What is lost when it is deleted."""
    return item.cursor.size + _in_flight(item)


def _names(item: PendingList) -> tuple[str, str, str]:
    """Its owner, its client id and its name."""
    subscription = item.subscription
    if subscription is not None:
        return subscription.owner, subscription.client_id, subscription.name
    consumers = item.all_consumers()  # one that is not stored ends with its only consumer
    if not consumers:
        return "", "", ""
    return consumers[0].client.principal, consumers[0].client.client_id, consumers[0].key


def _subscription(item: PendingList) -> SubscriptionRow:
    subscription, consumers = item.subscription, item.all_consumers()
    whose, client_id, name = _names(item)
    if subscription is not None:
        protocol = subscription.protocol
    else:
        protocol = consumers[0].client.protocol if consumers else ""
    return SubscriptionRow(
        item.id,
        whose,
        client_id,
        protocol,
        name,
        "" if subscription is None else subscription.share_group,
        item.destination,
        "" if subscription is None else subscription.selector,
        item.qos,
        subscription is not None and subscription.durable,
        consumers=len(consumers),
        pending=item.cursor.size,
        in_flight=_in_flight(item),
        memory_bytes=item.cursor.memory_bytes,
        is_paging=item.cursor.feed.is_paging,
        is_full=item.is_full,
        dropped=item.lost,
    )
