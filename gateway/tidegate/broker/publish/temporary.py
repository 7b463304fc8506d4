"""Temporary destinations: queues and topics of one connection, for the answers to its requests.

Their names are ``$temporary.TOKEN.NAME``: a client told the name may publish to it, nobody can guess
it, no wildcard covers it, and only its owner may subscribe. The store never hears of them.
"""

from __future__ import annotations

import secrets
from typing import Final

from tidegate.broker.destinations import Destinations
from tidegate.broker.publish.access import Requester
from tidegate.spi import AccessError, RequestError, SubscribeRequest, names

#: Per connection. A client needs one, or one for each kind of request; each is a list in memory.
TEMPORARY_MAX: Final = 1000

#: Bytes of a token: 128 bits cannot be guessed.
_TOKEN_BYTES: Final = 16


class TemporaryDestinations:
    """Those of all connections. See the module's docstring."""

    def __init__(self, lists: Destinations) -> None:
        self._lists = lists
        self._owners: dict[str, Requester] = {}
        #: By owner: its token, and what it owns.
        self._owned: dict[Requester, tuple[str, list[str]]] = {}

    def make(self, connection: Requester, destination: str) -> str:
        """See :meth:`tidegate.spi.BrokerConnection.make_temporary`."""
        if not (names.is_queue(destination) or names.is_topic(destination)):
            raise RequestError(f"{destination!r} is neither a queue nor a topic")
        token, owned = self._owned.get(connection) or (secrets.token_hex(_TOKEN_BYTES), [])
        name = f"{names.TEMPORARY_LEVEL}.{token}.{names.name_of(destination)}"
        made = names.queue(name) if names.is_queue(destination) else names.topic(name)
        if made in self._owners:
            return made
        try:
            names.check_name(names.name_of(destination))
            names.check_name(name)
        except ValueError as error:
            raise RequestError(str(error)) from None
        if len(owned) >= TEMPORARY_MAX:
            raise RequestError(
                f"this connection has {TEMPORARY_MAX} temporary destinations, which is the limit"
            )
        if names.is_queue(made):
            self._lists.add_temporary_queue(made, connection.principal)
        owned.append(made)
        self._owned[connection] = (token, owned)
        self._owners[made] = connection
        return made

    def check_exists(self, destination: str) -> None:
        """Raises: RequestError when *destination* is gone, or never was."""
        if destination not in self._owners:
            raise RequestError(
                f"temporary destination {destination!r} does not exist; the connection that"
                " owned it has ended"
            )

    def check_subscribe(self, connection: Requester, request: SubscribeRequest) -> None:
        """Raises: AccessError unless *connection* owns it; RequestError for a durable or shared one."""
        if self._owners.get(request.destination) is not connection:
            raise AccessError(
                "only the connection that created a temporary destination may subscribe to it",
                principal=connection.principal,
                destination=request.destination,
            )
        if request.durable_name or request.share_group:
            raise RequestError("a subscription to a temporary destination ends with its connection")

    def remove_of(self, connection: Requester) -> None:
        """The connection has ended: what it owned is gone, with everything in it."""
        _, owned = self._owned.pop(connection, ("", ()))
        for destination in owned:
            del self._owners[destination]
            self._lists.remove_temporary(destination)
