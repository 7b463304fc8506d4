"""What operators want to know about: all events by name, in one place.

Logs, ``list-events``, metrics and ``$SYS`` use these names and no others. An event is reported once, where its log line
is written (:class:`Tell`). No event is reported for a single message.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol


class EventKind(enum.Enum):
    """What an event is about. Each kind is kept separately: no other kind displaces it."""

    GATEWAY = "gateway"
    OPERATOR = "operator"
    CLIENT = "client"
    ACCESS = "access"
    DESTINATION = "destination"
    SUBSCRIPTION = "subscription"
    CONSUMER = "consumer"
    MESSAGE = "message"
    LIMIT = "limit"
    STORE = "store"
    SINK = "sink"
    LISTENER = "listener"
    BRIDGE = "bridge"


class Severity(enum.Enum):
    """How much it matters, least first."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"

    @property
    def level(self) -> int:
        """The logging level of its line."""
        return _LEVELS[self]


_LEVELS: Final = {
    Severity.INFO: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR,
    Severity.CRITICAL: logging.CRITICAL,
}


class Event(enum.Enum):
    """The names. Their meanings: :data:`EVENTS`."""

    STANDBY_BEGUN = "standby-begun"
    TAKEN_OVER = "taken-over"
    GATEWAY_STARTED = "gateway-started"
    GATEWAY_STOPPING = "gateway-stopping"
    DRAIN_BEGUN = "drain-begun"
    DRAIN_DONE = "drain-done"
    DRAIN_ENDED = "drain-ended"
    HAND_OVER_BEGUN = "hand-over-begun"
    HAND_OVER_GOES_ON = "hand-over-goes-on"
    HAND_OVER_DONE = "hand-over-done"
    HAND_OVER_FAILED = "hand-over-failed"
    HAND_OVER_ENDED = "hand-over-ended"
    CONFIGURATION_RELOADED = "configuration-reloaded"
    CONFIGURATION_REFUSED = "configuration-refused"
    OPERATED = "operated"
    CLIENT_CONNECTED = "client-connected"
    CLIENT_DISCONNECTED = "client-disconnected"
    CLIENT_REFUSED = "client-refused"
    LOGIN_REFUSED = "login-refused"
    REFUSED = "refused"
    RIGHTS_CHANGED = "rights-changed"
    DESTINATION_MADE = "destination-made"
    DESTINATION_DELETED = "destination-deleted"
    DESTINATION_PAUSED = "destination-paused"
    DESTINATION_RESUMED = "destination-resumed"
    DESTINATION_UNREADABLE = "destination-unreadable"
    DESTINATION_READABLE = "destination-readable"
    SUBSCRIPTION_MADE = "subscription-made"
    SUBSCRIPTION_ENDED = "subscription-ended"
    CONSUMER_SLOW = "consumer-slow"
    CONSUMER_RECOVERED = "consumer-recovered"
    MESSAGES_DEAD_LETTERED = "messages-dead-lettered"
    LIMIT_REACHED = "limit-reached"
    LIMIT_LEFT = "limit-left"
    MEMORY_REFUSED = "memory-refused"
    MEMORY_ACCEPTED = "memory-accepted"
    CONNECTIONS_LIMITED = "connections-limited"
    OVERLOAD_BEGUN = "overload-begun"
    OVERLOAD_ENDED = "overload-ended"
    STORE_RECOVERED = "store-recovered"
    STORE_FULL = "store-full"
    STORE_ROOM = "store-room"
    STORE_SHORT = "store-short"
    STORE_READ_ONLY = "store-read-only"
    STORE_LOST = "store-lost"
    CHECKPOINT_FAILED = "checkpoint-failed"
    CHECKPOINT_RECOVERED = "checkpoint-recovered"
    SINK_STATE = "sink-state"
    SINK_FAILED = "sink-failed"
    SINK_RECOVERED = "sink-recovered"
    SINK_LATE = "sink-late"
    SINK_CAUGHT_UP = "sink-caught-up"
    ACKNOWLEDGED_LOG_FILLING = "acknowledged-log-filling"
    ACKNOWLEDGED_LOG_FULL = "acknowledged-log-full"
    ACKNOWLEDGED_LOG_DISCARDED = "acknowledged-log-discarded"
    ACKNOWLEDGED_LOG_ROOM = "acknowledged-log-room"
    LISTENER_ADDED = "listener-added"
    LISTENER_REMOVED = "listener-removed"
    CERTIFICATE_ENDS = "certificate-ends"
    CERTIFICATE_INVALID = "certificate-invalid"
    BRIDGE_CONNECTED = "bridge-connected"
    BRIDGE_LOST = "bridge-lost"
    BRIDGE_PAUSED = "bridge-paused"
    BRIDGE_PARKED = "bridge-parked"


@dataclass(frozen=True, slots=True)
class EventMeaning:
    """Attributes: text: when it happens, as a sentence."""

    kind: EventKind
    severity: Severity
    text: str


def _of(kind: EventKind, severity: Severity, text: str) -> EventMeaning:
    return EventMeaning(kind, severity, text)


_INFO, _WARNING, _ERROR, _CRITICAL = Severity

#: What each name means; docs/events.md has the same table.
EVENTS: Final[Mapping[Event, EventMeaning]] = {
    Event.STANDBY_BEGUN: _of(EventKind.GATEWAY, _WARNING, "Another gateway has the store; this one waits for it as its standby."),
    Event.TAKEN_OVER: _of(EventKind.GATEWAY, _WARNING, "A standby has taken over the store."),
    Event.GATEWAY_STARTED: _of(EventKind.GATEWAY, _INFO, "All listeners accept connections."),
    Event.GATEWAY_STOPPING: _of(EventKind.GATEWAY, _WARNING, "The gateway is stopping and lets nobody in any more."),
    Event.DRAIN_BEGUN: _of(EventKind.GATEWAY, _WARNING, "A drain begins, or its settings change."),
    Event.DRAIN_DONE: _of(EventKind.GATEWAY, _WARNING, "The drain is complete: no client is connected any more."),
    Event.DRAIN_ENDED: _of(EventKind.GATEWAY, _WARNING, "The drain is over: clients are let in again."),
    Event.HAND_OVER_BEGUN: _of(EventKind.GATEWAY, _WARNING, "The clients of a drain have gone, and its queues begin to go to another broker."),
    Event.HAND_OVER_GOES_ON: _of(EventKind.GATEWAY, _INFO, "How far the hand-over is, every ten seconds while something moves."),
    Event.HAND_OVER_DONE: _of(EventKind.GATEWAY, _WARNING, "The hand-over is complete: no queue has anything left that can go. The event names what stays."),
    Event.HAND_OVER_FAILED: _of(EventKind.GATEWAY, _ERROR, "A reload removed or changed the bridge of the hand-over: what has not gone stays until you ask again."),
    Event.HAND_OVER_ENDED: _of(EventKind.GATEWAY, _WARNING, "`undrain` or another `drain` ended the hand-over: what has not gone stays."),
    Event.CONFIGURATION_RELOADED: _of(EventKind.GATEWAY, _INFO, "The configuration was read again and is in force."),
    Event.CONFIGURATION_REFUSED: _of(EventKind.GATEWAY, _ERROR, "The configuration was read again and has an error: nothing has changed. Or a listener or an extension cannot read its files."),
    Event.OPERATED: _of(EventKind.OPERATOR, _INFO, "An operator changed something; also in the audit log."),
    Event.CLIENT_CONNECTED: _of(EventKind.CLIENT, _INFO, "A client was let in."),
    Event.CLIENT_DISCONNECTED: _of(EventKind.CLIENT, _INFO, "A client is gone, and why."),
    Event.CLIENT_REFUSED: _of(EventKind.CLIENT, _WARNING, "A client was refused for a reason other than its credentials: a limit, a drain, the store."),
    Event.LOGIN_REFUSED: _of(EventKind.ACCESS, _WARNING, "Credentials were refused; also in the audit log."),
    Event.REFUSED: _of(EventKind.ACCESS, _WARNING, "Access control refused something; also in the audit log."),
    Event.RIGHTS_CHANGED: _of(EventKind.ACCESS, _INFO, "Users or rules have changed; the gateway checks again what connected clients may do."),
    Event.DESTINATION_MADE: _of(EventKind.DESTINATION, _INFO, "A queue was created; temporary queues are not reported."),
    Event.DESTINATION_DELETED: _of(EventKind.DESTINATION, _INFO, "A queue was deleted, by an operator or because nobody used it."),
    Event.DESTINATION_PAUSED: _of(EventKind.DESTINATION, _WARNING, "Producers or consumers of a destination were paused."),
    Event.DESTINATION_RESUMED: _of(EventKind.DESTINATION, _INFO, "Producers or consumers of a destination were resumed."),
    Event.DESTINATION_UNREADABLE: _of(EventKind.DESTINATION, _ERROR, "The store cannot read the next messages of a destination: its consumers get nothing until it can. The gateway retries every 5 s."),
    Event.DESTINATION_READABLE: _of(EventKind.DESTINATION, _INFO, "The store can read the messages of a destination again, and its consumers go on."),
    Event.SUBSCRIPTION_MADE: _of(EventKind.SUBSCRIPTION, _INFO, "A durable or shared subscription was created."),
    Event.SUBSCRIPTION_ENDED: _of(EventKind.SUBSCRIPTION, _INFO, "A durable or shared subscription ended, and why."),
    Event.CONSUMER_SLOW: _of(EventKind.CONSUMER, _WARNING, "A consumer acknowledges nothing, or too little; `act` says what happens to it."),
    Event.CONSUMER_RECOVERED: _of(EventKind.CONSUMER, _INFO, "A slow consumer acknowledges as it should again."),
    Event.MESSAGES_DEAD_LETTERED: _of(EventKind.MESSAGE, _WARNING, "Messages of a destination moved to a dead-letter queue; those of one second are one event."),
    Event.LIMIT_REACHED: _of(EventKind.LIMIT, _WARNING, "A queue or subscription is at a limit; `overflow` says what happens to its messages."),
    Event.LIMIT_LEFT: _of(EventKind.LIMIT, _INFO, "A queue or subscription that was at a limit has room again."),
    Event.MEMORY_REFUSED: _of(EventKind.LIMIT, _ERROR, "Somebody is refused because the gateway, a user or a connection holds too much memory."),
    Event.MEMORY_ACCEPTED: _of(EventKind.LIMIT, _INFO, "Nobody has been refused for memory for ten seconds."),
    Event.CONNECTIONS_LIMITED: _of(EventKind.LIMIT, _ERROR, "The maximum number of connections is reached: new ones are closed at once. Reported at most every ten seconds."),
    Event.OVERLOAD_BEGUN: _of(EventKind.LIMIT, _ERROR, "The event loop is late, and new connections are closed at once."),
    Event.OVERLOAD_ENDED: _of(EventKind.LIMIT, _WARNING, "The event loop is on time again, and new connections are accepted."),
    Event.STORE_RECOVERED: _of(EventKind.STORE, _INFO, "The store is open and has recovered its contents."),
    Event.STORE_FULL: _of(EventKind.STORE, _ERROR, "`store_limit` or `disk_free_limit` is reached, and publishes are refused."),
    Event.STORE_ROOM: _of(EventKind.STORE, _WARNING, "There is room again, or the store accepts messages again."),
    Event.STORE_SHORT: _of(EventKind.STORE, _ERROR, "The store itself had no room for a batch, or its database is away: publishes are refused."),
    Event.STORE_READ_ONLY: _of(EventKind.STORE, _CRITICAL, "A write failed: nothing is confirmed until the gateway is restarted."),
    Event.STORE_LOST: _of(EventKind.STORE, _CRITICAL, "Another gateway has taken the store, or may have: this one ends."),
    Event.CHECKPOINT_FAILED: _of(EventKind.STORE, _ERROR, "A checkpoint or cleanup of the journal failed and is tried again. Until it works, files stay and a start takes longer."),
    Event.CHECKPOINT_RECOVERED: _of(EventKind.STORE, _INFO, "Checkpoint and cleanup of the journal work again."),
    Event.SINK_STATE: _of(EventKind.SINK, _INFO, "A sink changed its state; none of these states is a failure."),
    Event.SINK_FAILED: _of(EventKind.SINK, _ERROR, "A sink has a problem, or a different one than before."),
    Event.SINK_RECOVERED: _of(EventKind.SINK, _INFO, "The problem of a sink is over."),
    Event.SINK_LATE: _of(EventKind.SINK, _WARNING, "A sink misses its `lag_goal`."),
    Event.SINK_CAUGHT_UP: _of(EventKind.SINK, _INFO, "A sink meets its `lag_goal` again."),
    Event.ACKNOWLEDGED_LOG_FILLING: _of(EventKind.SINK, _WARNING, "The acknowledged log is at 80 % of its limit."),
    Event.ACKNOWLEDGED_LOG_FULL: _of(EventKind.SINK, _ERROR, "The acknowledged log is at its limit, and publishes are refused."),
    Event.ACKNOWLEDGED_LOG_DISCARDED: _of(EventKind.SINK, _ERROR, "The acknowledged log is at its limit, and rows that no sink had were discarded."),
    Event.ACKNOWLEDGED_LOG_ROOM: _of(EventKind.SINK, _INFO, "The acknowledged log is below its limit again, or well below it."),
    Event.LISTENER_ADDED: _of(EventKind.LISTENER, _INFO, "A listener accepts connections, at the start or after a reload."),
    Event.LISTENER_REMOVED: _of(EventKind.LISTENER, _WARNING, "A reload removed a listener, and its clients were told."),
    Event.CERTIFICATE_ENDS: _of(EventKind.LISTENER, _WARNING, "A certificate that the configuration names expires within 14 days."),
    Event.CERTIFICATE_INVALID: _of(EventKind.LISTENER, _ERROR, "A certificate has expired, or is not valid yet: peers that check it refuse it."),
    Event.BRIDGE_CONNECTED: _of(EventKind.BRIDGE, _INFO, "A rule of a bridge is connected to the other broker, and messages flow."),
    Event.BRIDGE_LOST: _of(EventKind.BRIDGE, _WARNING, "A rule of a bridge is not connected to the other broker, and tries again."),
    Event.BRIDGE_PAUSED: _of(EventKind.BRIDGE, _INFO, "A rule of a bridge waits for the end of a drain, or of its hand-over."),
    Event.BRIDGE_PARKED: _of(EventKind.BRIDGE, _WARNING, "The other broker kept refusing a message but took a later one: the message was put aside in the rule's queue for that."),
}  # fmt: skip


class Tell(Protocol):
    """Writes the line of an event to the log, and keeps it for operators."""

    def __call__(
        self,
        event: Event,
        log: logging.Logger,
        text: str,
        *values: object,
        error: BaseException | None = None,
    ) -> None:
        """Report an event. On the event loop; cheap.

        Args: text, values: as for ``log.info``; each ``key=%s`` is a field; error: its traceback is for the log only.
        """
        ...


def log_only(
    event: Event,
    log: logging.Logger,
    text: str,
    *values: object,
    error: BaseException | None = None,
) -> None:
    """A :class:`Tell` for when nobody keeps events."""
    level = EVENTS[event].severity.level
    log.log(level, text, *values, exc_info=error, extra={"event": event.value})
