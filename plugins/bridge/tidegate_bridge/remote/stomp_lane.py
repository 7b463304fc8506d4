"""A rule over STOMP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidegate_bridge import _protocol as protocol
from tidegate_bridge._names import is_queue_like
from tidegate_bridge.remote import brokers
from tidegate_bridge.remote.hops import More
from tidegate_bridge.remote.lane import Broken, Confirmed, Lane, LaneError, Subscribed
from tidegate_bridge.remote.link import Link
from tidegate_bridge.remote.stomp_connection import Pairs, StompConnection
from tidegate_bridge.remote.stomp_messages import arriving, leaving

#: The receipt of SUBSCRIBE; those of messages are their numbers.
_SUBSCRIBED: Final = "subscribed"


class StompLane(Lane):
    """See Lane."""

    def __init__(self, start: protocol.Start, number: int, link: Link) -> None:
        super().__init__(start, number, link)
        self._broker = brokers.UNKNOWN
        self._heard: _Heard | None = None
        self._connection: StompConnection | None = None
        self._sent: set[int] = set()

    def connect(self) -> None:
        self._heard = _Heard(self)
        self._sent.clear()
        self._connection = StompConnection(self.start, self._heard)
        # A broker admits one client per id, so only durable subscriptions, which need one, set it.
        server = self._connection.open(self.client_id if self.rule.durable else "")
        self._broker = self._heard.broker = brokers.broker_of(server)
        if self.rule.selector and self.is_in and not self._broker.has_selectors:
            raise LaneError(
                f"{server} has no selectors", "remove `selector`: it would be given everything"
            )
        self.tell_ready(server)

    def consume(self) -> None:
        name, headers = brokers.subscribing(self._broker, self.start, self.rule)
        self._send(
            "SUBSCRIBE",
            {
                "id": "bridge",
                **headers,
                "destination": name,
                "ack": "client-individual",
                "receipt": _SUBSCRIBED,
            },
        )

    def acknowledge(self, number: int) -> None:
        assert self._heard is not None
        found = self._heard.pending.pop(number, None)
        if found is not None:
            ack, size = found
            self._send("ACK", {"id": ack})
            self.budget.give_back(size)

    def send(self, take: protocol.Take, more: More) -> None:
        message = take.message
        duplicate_id = f"{self.start.store}-{take.number}"
        name = take.target or self.names.leaving(message.destination)
        name, kind = brokers.destination(self._broker, self.rule, name)
        kind.pop("subscription-type", None)
        headers = leaving(
            message,
            self._broker,
            self.rule.jms_type,
            more,
            kind | self.rule.headers,
            duplicate_id,
        )
        self._sent.add(take.number)
        self._send(
            "SEND", {**headers, "destination": name, "receipt": str(take.number)}, message.body
        )

    def sent(self, key: int) -> int | None:
        if key not in self._sent:
            return None
        self._sent.discard(key)
        return key

    @property
    def has_unconfirmed(self) -> bool:
        return bool(self._sent)

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, command: str, headers: Mapping[str, object], body: bytes = b"") -> None:
        assert self._connection is not None
        self._connection.send_frame(command, headers, body)


class _Heard:
    """Callbacks of one connection, in stomp.py's thread; passed on as events and messages."""

    def __init__(self, lane: StompLane) -> None:
        self._lane = lane
        self._epoch = lane.epoch
        self._numbers = 0
        self._is_over = False
        self.broker = brokers.UNKNOWN
        self.pending: dict[int, tuple[str, int]] = {}

    def message(self, pairs: Pairs, body: bytes) -> None:
        """A message came; waits while too much is in flight."""
        if self._is_over:
            return
        try:
            self._bring(pairs, body)
        except LaneError as error:
            self._broken(error.problem, error.remedy)
        except OSError:
            self._is_over = True  # the gateway is gone, so this process ends soon

    def _bring(self, pairs: Pairs, body: bytes) -> None:
        lane, headers = self._lane, dict(reversed(pairs))
        if len(body) > lane.start.message_limit:
            raise lane.too_large(len(body))
        where = headers.get("destination", "")
        here = lane.names.arriving(where)
        if here is None:
            raise LaneError(
                f"a message of {where!r} came, which {lane.rule.remote!r} does not cover",
                "correct `remote`: write the destination as that broker does",
            )
        size = sum(len(name) + len(value) for name, value in pairs) + len(body)
        if not lane.budget.take(size):
            return
        self._numbers += 1
        number = self._numbers
        if number == 1:  # a broker may send messages before the receipt
            lane.inbox.put(Subscribed(self._epoch))
        self.pending[number] = headers.get("ack", ""), size
        more = lane.hops.next(pairs)
        if more is None and is_queue_like(lane.rule.remote):
            raise lane.too_many_hops()
        if more is None or lane.hops.is_copy_of_ours(pairs):
            # Acknowledge it, as if the gateway had confirmed it.
            lane.inbox.put(protocol.Done(lane.number, self._epoch, [number], 1))
            return
        message = arriving(pairs, body, self.broker, here, more)
        duplicate_id = self._duplicate_id(headers)
        lane.link.send(protocol.Bring(lane.number, self._epoch, number, duplicate_id, message))

    def _duplicate_id(self, headers: Mapping[str, str]) -> str:
        """The id of this message that is stable over redeliveries; "" for none."""
        found = brokers.lasting_id(self.broker, headers)
        return f"{self._lane.start.name}:{self._lane.rule.name}:{found}" if found else ""

    def receipt(self, receipt_id: str) -> None:
        if receipt_id == _SUBSCRIBED:
            self._lane.inbox.put(Subscribed(self._epoch))
        elif receipt_id.isdigit():
            self._lane.inbox.put(Confirmed(self._epoch, int(receipt_id)))

    def error(self, headers: Mapping[str, str], text: str) -> None:
        receipt_id = headers.get("receipt-id", "")
        if receipt_id == _SUBSCRIBED:
            self._broken(
                f"the other broker refuses to subscribe to {self._lane.rule.remote!r}: {text}",
                "give the bridge's user the right to, there, or correct `remote`",
            )
            return
        key = int(receipt_id) if receipt_id.isdigit() else None
        of_message = "" if key is None else f" of message {key}"
        self._broken(
            f"the other broker says{of_message}: {text}",
            "mend it there; it is sent again until it is taken, or, with park_after, put aside",
            key,
        )

    def gone(self) -> None:
        self._broken("the other broker closed the connection", "it is tried again; see its log")

    def _broken(self, problem: str, remedy: str, key: int | None = None) -> None:
        self._is_over = True
        self._lane.inbox.put(Broken(self._epoch, problem, remedy, key))
