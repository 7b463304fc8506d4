"""One subscription of one connection: what is out, and how much more may go out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate.spi import StoredMessage

if TYPE_CHECKING:
    from tidegate.broker.connection import Connection
    from tidegate.broker.lists.pending_list import PendingList
    from tidegate.broker.route.selector import Matcher

#: (message, its list, microseconds since the epoch when it was handed out)
InFlight = tuple[StoredMessage, "PendingList", int]

#: What an automatically acknowledged consumer is given in one turn at most when it states no
#: prefetch: the socket's own flow control only acts between turns.
AUTOMATIC_TURN_COUNT: Final = 1000


class Consumer:
    """A subscription that is being served.

    Attributes:
        destination: what was subscribed to; may be a filter.
        in_flight: by sequence, what was delivered and not yet acknowledged, in delivery order.
        in_flight_bytes: bytes of their bodies.
        lists: what it consumes from; several for a queue filter.
        matches: what its selector wants of a queue; None: everything. The selector of a topic
            subscription is the list's, which holds nothing else.
        resting: it was handed messages without acknowledgement and waits for the next turn.
    """

    __slots__ = (
        "acknowledge",
        "connection",
        "destination",
        "in_flight",
        "in_flight_bytes",
        "key",
        "lists",
        "matches",
        "prefetch_bytes",
        "prefetch_count",
        "resting",
        "subscription_name",
    )

    def __init__(
        self,
        connection: Connection,
        key: str,
        destination: str,
        *,
        subscription_name: str,
        acknowledge: bool,
        prefetch_count: int,
        prefetch_bytes: int,
        matches: Matcher | None = None,
    ) -> None:
        self.connection = connection
        self.key = key
        self.destination = destination
        self.subscription_name = subscription_name
        self.acknowledge = acknowledge
        self.prefetch_count = prefetch_count
        self.prefetch_bytes = prefetch_bytes
        self.in_flight: dict[int, InFlight] = {}
        self.in_flight_bytes = 0
        self.lists: list[PendingList] = []
        self.matches = matches
        self.resting = False

    @property
    def acknowledges_all(self) -> bool:
        """It acknowledges also what is not stored for it: only MQTT has messages (QoS 0) that a
        client with acknowledgement does not acknowledge."""
        return self.acknowledge and self.connection.protocol != "mqtt"

    def is_full(self) -> bool:
        """As much is in flight as may be."""
        return (
            len(self.in_flight) >= self.prefetch_count
            or self.in_flight_bytes >= self.prefetch_bytes
        )

    def room(self) -> int:
        """How many messages may be handed out now; 0 when none."""
        if not self.connection.is_writable or self.resting:
            return 0
        if not self.acknowledge:
            return self.prefetch_count
        if self.in_flight_bytes >= self.prefetch_bytes:
            return 0
        return self.prefetch_count - len(self.in_flight)

    def room_bytes(self) -> int:
        """How many bytes of bodies may be handed out now; meaningful when ``room()`` is not 0."""
        return max(1, self.prefetch_bytes - self.in_flight_bytes)
