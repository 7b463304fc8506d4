"""What a :class:`WriteBatch` can hold: one immutable type for each thing that is made durable.

A batch is ordered and atomic: after a crash all of it is there or none of it (design, section 2).
Stores match on the type. ``PutBranch`` and ``RemoveBranch`` reach only a store that offers
:class:`~tidegate.spi.Branches`, ``AddDuplicateId`` and ``ForgetDuplicateIds`` only one with
:class:`~tidegate.spi.DuplicateIds`.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

import msgspec

from tidegate.spi.messages import Message
from tidegate.spi.storage.branches import Branch, BranchId

#: Identity of a pending list: a positive integer assigned by the broker, stable over restarts, never
#: reused. A queue has one list, every stored subscription has one.
PendingListId: TypeAlias = int


class AddMessage(msgspec.Struct, frozen=True, gc=False):
    """Store *message* once under *sequence* and append it to every list in *pending_lists*.

    Sequences of one list arrive in increasing order. *pending_lists* is never empty.
    """

    sequence: int
    message: Message
    pending_lists: tuple[PendingListId, ...]


class Outcome(enum.IntEnum):
    """How messages of one list ended that leave it with a row of the acknowledged log."""

    ACKNOWLEDGED = 0
    """A consumer acknowledged them, or was given them and need not acknowledge."""

    DEAD_LETTERED = 1
    """They went to a dead-letter queue, where they are other messages."""

    EXPIRED = 2
    DROPPED = 3
    """They were dropped because of a limit or a missing right; the reason says which."""

    PURGED = 4
    """An operator discarded them, or their list ended; the reason says why."""

    REJECTED = 5
    """A consumer refused them for good, or cannot receive them; the reason says why."""

    @property
    def word(self) -> str:
        """Its name in configuration, tables and files, e.g. ``dead-lettered``."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def of(cls, word: str) -> Outcome:
        """The outcome with this :attr:`word`. Raises: KeyError."""
        return cls[word.upper().replace("-", "_")]


class Acknowledge(msgspec.Struct, frozen=True, gc=False):
    """Messages of one list leave it, each with a row of the log; usually a consumer acknowledged them.

    Each pair (list, sequence) becomes one row of the acknowledged log when the store keeps one
    (:class:`AcknowledgedLog`), numbered densely in the order of *sequences*.

    Attributes:
        pending_list: the list that they leave.
        sequences: one or more, in the order of acknowledgement; each is pending in the list.
        delivered_at: when each was handed to the consumer, microseconds since the epoch;
            same length as *sequences*; 0: never. Empty: unknown.
        acked_at: when the gateway received the acknowledgement, same unit.
        client_id, subscription, protocol: the consumer; "" when unknown.
        principal: the consumer's; "" when unknown.
        delivery_counts: how often each was handed to a consumer, including the last time; same
            length as *sequences*. Empty: once each.
        outcome: how it ended; reason: in words, "" when there is nothing to say.
    """

    pending_list: PendingListId
    sequences: tuple[int, ...]
    delivered_at: tuple[int, ...] = ()
    acked_at: int = 0
    client_id: str = ""
    subscription: str = ""
    protocol: str = ""
    principal: str = ""
    delivery_counts: tuple[int, ...] = ()
    outcome: Outcome = Outcome.ACKNOWLEDGED
    reason: str = ""


class DiscardReason(enum.Enum):
    """Why messages leave a list without having been consumed."""

    EXPIRED = "expired"
    DROPPED = "dropped"
    PURGED = "purged"
    REJECTED = "rejected"


class Discard(msgspec.Struct, frozen=True, gc=False):
    """Messages leave one list without being consumed, and without a row of the acknowledged log.

    Attributes: pending_list: the list; sequences: one or more, each pending in it; reason: why.
    """

    pending_list: PendingListId
    sequences: tuple[int, ...]
    reason: DiscardReason


class Move(msgspec.Struct, frozen=True, gc=False):
    """A message goes from one list to the end of another under a new sequence (dead letters).

    The stored message at the target is *message* (the same body; the broker adds headers that say
    where it came from and why).

    Attributes:
        pending_list, sequence: the list that it leaves, and its sequence there.
        target_list, target_sequence: the list that it goes to, and its sequence there.
        row: the acknowledged log's row for the message that leaves *pending_list*: the one that
            an ``Acknowledge`` of this message alone would make. None: it has no row.
    """

    pending_list: PendingListId
    sequence: int
    target_list: PendingListId
    target_sequence: int
    message: Message
    row: Acknowledge | None = None


class RecordDelivery(msgspec.Struct, frozen=True, gc=False):
    """Set the delivery counts of messages in one list (a consumer was lost or rejected them).

    Attributes: delivery_count: one for each of *sequences*.
    """

    pending_list: PendingListId
    sequences: tuple[int, ...]
    delivery_count: tuple[int, ...]


class AddDestination(msgspec.Struct, frozen=True, gc=False):
    """Add a destination, or change its attributes: an existing one with the same list keeps what is
    pending in it.

    Attributes:
        pending_list: the queue's list, 0 for a topic.
        owner: the principal that created it by using it, and whose quota it counts against; "": the
            gateway created it. Ownership gives no right to use it.
        producers_paused, consumers_paused: an operator paused them; kept across restarts.
    """

    destination: str
    pending_list: PendingListId
    owner: str = ""
    producers_paused: bool = False
    consumers_paused: bool = False


class RemoveDestination(msgspec.Struct, frozen=True, gc=False):
    """The destination is gone, and, for a queue, its list with everything pending in it.

    *pending_list* 0: its list, if it had one, stays; it now belongs to a subscription (:class:`PutSubscription`).
    """

    destination: str
    pending_list: PendingListId


class Subscription(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A stored subscription: either to a topic, with a pending list of its own; or of a session to
    something shared (a queue, a shared subscription), whose messages are in the shared list.

    Attributes:
        pending_list: its list, and its identity. Nothing is ever added to the list of a subscription
            with a *session*.
        client_id: of the client that has it ("" for a subscription shared by several clients).
        name: its name within the client id (STOMP subscription name, MQTT topic filter).
        filter: canonical destination filter, e.g. ``topic://sensors.>``.
        durable: survives its connection. A subscription that is not durable (MQTT clean session with
            QoS 1, STOMP topic subscription with client acknowledgement) ends with its connection,
            or at the next start if the gateway was killed first. The broker removes it; a store
            treats it like any other.
        qos: highest quality of service granted.
        no_local: do not deliver what the same client published.
        protocol: front-end that made it.
        share_group: name of the group of a shared subscription, otherwise "".
        options: what the front-end wants to remember; opaque to broker and store.
        selector: only messages that it selects are stored for the subscription; "" for all.
        owner: the principal that owns it: the same client id, name or share group of another
            principal is another subscription.
        session: key of the :class:`Session` that consumes from the queue or shared subscription
            *filter* whenever it is connected; "": it has its own messages. It is removed before the
            session is.
        ended: why the subscription has ended, or the queue *filter* whose list this was: its pending
            messages have yet to leave with rows of the acknowledged log. "": it has not ended.
    """

    pending_list: PendingListId
    client_id: str
    name: str
    filter: str
    durable: bool
    qos: int = 2
    no_local: bool = False
    protocol: str = ""
    share_group: str = ""
    options: dict[str, str] = {}
    selector: str = ""
    owner: str = ""
    session: str = ""
    ended: str = ""


class PutSubscription(msgspec.Struct, frozen=True, gc=False):
    """Add the subscription, or replace the one with the same pending list. The list keeps everything
    pending in it, even if it belonged to a destination."""

    subscription: Subscription


class RemoveSubscription(msgspec.Struct, frozen=True, gc=False):
    """The subscription and everything pending in its list are gone."""

    pending_list: PendingListId


class SetRetained(msgspec.Struct, frozen=True, gc=False):
    """Replace the retained message of ``message.destination`` (MQTT 3.1.1 section 3.3.1.3)."""

    message: Message


class ClearRetained(msgspec.Struct, frozen=True, gc=False):
    """Remove the retained message of *destination*, if there is one."""

    destination: str


class Session(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An MQTT session that outlives its connection.

    Its subscriptions are :class:`Subscription` records, each put and removed alone.

    Attributes:
        key: its identity, derived by the broker from protocol, owner and client id; opaque to the
            store. Two sessions may have the same client id, but then have different keys.
        expiry_interval: seconds it is kept after its connection ended; 0xFFFFFFFF means for ever.
        disconnected_at: when its connection ended, microseconds since the epoch; 0 while connected.
        options: what the broker wants to remember; opaque to the store.
        will: to be published when the session ends, or *will_delay* after its connection did; None
            when there is none or it was already published.
        will_delay: seconds (MQTT 5.0 section 3.1.3.2.2).
        protocol: front-end of its client.
        owner: the principal that owns it.
        client_id: of its client.
    """

    key: str
    expiry_interval: int
    disconnected_at: int = 0
    options: dict[str, str] = {}
    will: Message | None = None
    will_delay: int = 0
    protocol: str = ""
    owner: str = ""
    client_id: str = ""


SESSION_NEVER_EXPIRES: Final = 0xFFFF_FFFF


class PutSession(msgspec.Struct, frozen=True, gc=False):
    """Add or replace the session with this key."""

    session: Session


class RemoveSession(msgspec.Struct, frozen=True, gc=False):
    """Remove the session and its in-flight records. Its subscriptions have their own operations."""

    key: str


class InflightDirection(enum.IntEnum):
    """Which way the message travels, seen from the gateway."""

    IN = 0
    OUT = 1


class InflightState(enum.IntEnum):
    """The state of the packet-id handshake (MQTT 3.1.1 section 4.3)."""

    PUBLISHED = 0  # OUT: PUBLISH was or may have been sent, neither PUBACK nor PUBREC came
    RECEIVED = 1  # IN: QoS 2 PUBLISH stored, PUBREL not yet seen
    RELEASED = 2  # OUT: PUBREC came and the message is acknowledged, PUBCOMP not yet seen


class InflightRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """State of one packet id of one session (*session* is its key).

    *subscription* (its name) and *sequence* identify the pending message that an OUT record in state
    PUBLISHED stands for, and *qos* is 1 or 2 then; otherwise they are "" and 0. Every QoS 2 packet id
    of a stored session is recorded. A QoS 1 id follows from the sequence, so that the message is
    redelivered under its own id [MQTT-4.4.0-1], and is recorded only when that id could not be used;
    packet id 0 (OUT, PUBLISHED) stands for all QoS 1 messages of the session up to *sequence*.
    """

    session: str
    direction: InflightDirection
    packet_id: int
    state: InflightState
    subscription: str = ""
    sequence: int = 0
    qos: int = 0


class PutInflight(msgspec.Struct, frozen=True, gc=False):
    """Add or replace the record with the same (session, direction, packet_id)."""

    record: InflightRecord


class RemoveInflight(msgspec.Struct, frozen=True, gc=False):
    """Remove the record with this (session, direction, packet_id), if it exists."""

    session: str
    direction: InflightDirection
    packet_id: int


class AddDuplicateId(msgspec.Struct, frozen=True, gc=False):
    """A message with *duplicate_id* was sent to *destination*: another one will be a duplicate.

    Attributes:
        sequence: orders the ids of a destination: each is above those before. It belongs to a
            message that need not be stored (nobody subscribes to the topic), and counts for
            ``RecoveredState.last_sequence``.
    """

    destination: str
    duplicate_id: str
    sequence: int


class ForgetDuplicateIds(msgspec.Struct, frozen=True, gc=False):
    """Forget the duplicate ids of *destination* up to *through* (a sequence, inclusive)."""

    destination: str
    through: int


class PutBranch(msgspec.Struct, frozen=True, gc=False):
    """Add the branch, or replace the one with the same id.

    Its messages are added to its list in the same batch, after this operation. What it locks
    stays pending; the broker makes sure that nobody gets it.
    """

    branch: Branch


class RemoveBranch(msgspec.Struct, frozen=True, gc=False):
    """The branch and everything pending in its list are gone; what it locked stays as it is.

    *pending_list* is the branch's. The other effects of a commit (messages added to their target
    lists, acknowledgements) are in the same batch.
    """

    branch_id: BranchId
    pending_list: PendingListId


class DuplicateId(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a store reports of one :class:`AddDuplicateId` when it is opened."""

    destination: str
    duplicate_id: str
    sequence: int


Operation: TypeAlias = (
    AddMessage
    | Acknowledge
    | Discard
    | Move
    | RecordDelivery
    | AddDestination
    | RemoveDestination
    | PutSubscription
    | RemoveSubscription
    | SetRetained
    | ClearRetained
    | PutSession
    | RemoveSession
    | PutInflight
    | RemoveInflight
    | AddDuplicateId
    | ForgetDuplicateIds
    | PutBranch
    | RemoveBranch
)


class Durability(enum.IntEnum):
    """How far a batch must have come before :meth:`MessageStore.write` returns."""

    WRITTEN = 0
    """Handed to the operating system: survives the death of the process, not of the machine.

    Used for batches that nobody waits for, e.g. acknowledgements without a receipt; losing them
    means redelivery, never loss. They become SYNCED with the next synced batch at the latest.
    """

    SYNCED = 1
    """On stable storage as far as the store's configuration promises (``sync = always``)."""


class SyncedFor(enum.IntFlag):
    """Who waits for a SYNCED batch: an operator may configure a store to promise one of them less."""

    SINGLE = 1
    """Something outside transactions: a message, an acknowledgement, …"""

    TRANSACTION = 2
    """The end of a transaction."""


class WriteBatch:
    """Operations that become durable together.

    Attributes:
        operations: in order. The store only reads it.
        durability: see :class:`Durability`.
        synced_for: who waits for it, perhaps both. Means nothing for WRITTEN.
    """

    __slots__ = ("durability", "operations", "synced_for")

    def __init__(
        self,
        operations: list[Operation] | None = None,
        durability: Durability = Durability.SYNCED,
        synced_for: SyncedFor = SyncedFor.SINGLE,
    ) -> None:
        self.operations: list[Operation] = [] if operations is None else operations
        self.durability = durability
        self.synced_for = synced_for

    def __len__(self) -> int:
        return len(self.operations)

    def __repr__(self) -> str:
        return f"WriteBatch({len(self.operations)} operations, {self.durability.name})"
