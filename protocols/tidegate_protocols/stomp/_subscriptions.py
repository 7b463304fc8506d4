"""A session's subscriptions: what is in flight, and what an ACK covers."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Sequence
from typing import final

from tidegate.spi import PeerProtocolError, StoredMessage
from tidegate_protocols.stomp.codec.encoder import MessageEncoder


class AckMode(enum.Enum):
    """STOMP 1.2 "SUBSCRIBE ack Header"; the value is what is on the wire."""

    AUTO = "auto"
    CLIENT = "client"
    CLIENT_INDIVIDUAL = "client-individual"


@final
class Subscription:
    """One subscription of one session.

    Attributes:
        key: its name towards the broker: the client's id, or in STOMP 1.0 perhaps the destination.
        number: short name in ``ack`` headers, unique in the session and never reused.
        destination: as the client wrote it.
        is_individual: an ACK covers its own message only, and deliveries are not tracked here.
        collected: sequences acknowledged in this turn and not passed on yet.
    """

    __slots__ = (
        "_in_flight",
        "_ordinal",
        "collected",
        "destination",
        "durable_name",
        "encoder",
        "is_individual",
        "key",
        "mode",
        "number",
    )

    def __init__(
        self,
        key: str,
        number: int,
        mode: AckMode,
        encoder: MessageEncoder,
        *,
        destination: str = "",
        durable_name: str = "",
        tracked: bool = False,
    ) -> None:
        self.key = key
        self.number = number
        self.mode = mode
        self.encoder = encoder
        self.destination = destination
        self.durable_name = durable_name
        self.collected: list[int] = []
        # Sequence to delivery ordinal, in order of delivery: what a cumulative ACK covers is the
        # session's business. With individual ACKs the broker's own tracking is enough. (OrderedDict,
        # because taking from the front of a dict becomes slower the longer that goes on.)
        tracks = tracked or mode is AckMode.CLIENT
        self._in_flight: OrderedDict[int, int] | None = OrderedDict() if tracks else None
        self._ordinal = 0
        self.is_individual = not tracks and mode is AckMode.CLIENT_INDIVIDUAL

    def delivered(self, messages: Sequence[StoredMessage]) -> None:
        """*messages* have been written to the client."""
        in_flight = self._in_flight
        if in_flight is not None and self.mode is not AckMode.AUTO:
            ordinal = self._ordinal
            for stored in messages:
                ordinal += 1
                in_flight[stored.sequence] = ordinal
            self._ordinal = ordinal

    def withdraw(self, sequence: int) -> None:
        """*sequence* was not written after all: no ACK covers it."""
        if self._in_flight is not None:
            self._in_flight.pop(sequence, None)

    def holds(self, sequence: int) -> bool:
        """Tell whether *sequence* is known to be in flight here."""
        return self._in_flight is not None and sequence in self._in_flight

    def cover(self, sequence: int) -> list[int]:
        """Stop tracking what an ACK or NACK of *sequence* covers, and return it in delivery order.

        STOMP 1.2 "SUBSCRIBE ack Header": with ``client`` it is cumulative, "all messages sent to
        the subscription before". Raises: PeerProtocolError.
        """
        return [covered for covered, _ in self.cover_with_places(sequence)]

    def cover_with_places(self, sequence: int) -> list[tuple[int, int]]:
        """As :meth:`cover`, with what :meth:`restore` needs to undo it."""
        if self.mode is AckMode.AUTO:
            raise PeerProtocolError(
                f"subscription {self.key!r} has ack:auto, so its messages cannot be acknowledged"
            )
        in_flight = self._in_flight
        if in_flight is None:
            return [(sequence, 0)]
        if sequence not in in_flight:
            raise PeerProtocolError(
                f"message {sequence} is not in flight on subscription {self.key!r}; was "
                "it already acknowledged?"
            )
        if self.mode is AckMode.CLIENT_INDIVIDUAL:
            return [(sequence, in_flight.pop(sequence))]
        covered: list[tuple[int, int]] = []
        while True:
            first = in_flight.popitem(last=False)
            covered.append(first)
            if first[0] == sequence:
                return covered

    def restore(self, covered: Sequence[tuple[int, int]]) -> None:
        """A transaction was aborted: *covered* are in flight again, in their old places."""
        if self._in_flight is not None:
            merged = [*self._in_flight.items(), *covered]
            self._in_flight = OrderedDict(sorted(merged, key=lambda item: item[1]))
