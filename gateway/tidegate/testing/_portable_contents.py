"""A store with a bit of everything, and everything a store reports, for comparing two stores."""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.spi import (
    Acknowledge,
    AcknowledgedMessage,
    AddDestination,
    AddDuplicateId,
    AddMessage,
    Branch,
    BranchId,
    InflightDirection,
    InflightRecord,
    InflightState,
    LockedMessages,
    Message,
    MessageStore,
    Operation,
    PutBranch,
    PutInflight,
    PutSession,
    PutSubscription,
    RecordDelivery,
    RecoveredState,
    RemoveDestination,
    Session,
    SetRetained,
    StoreCapabilities,
    Subscription,
)

_ANY_SIZE: Final = 1 << 40
_ANY_COUNT: Final = 1_000_000

#: What is compared of a row of the log; its number starts over in another store.
_ROW: Final = tuple(
    name for name in AcknowledgedMessage.__struct_fields__ if name != "ack_sequence"
)

#: Every field differs from its default.
FULL: Final = Message(
    destination="topic://ä.β.🚢",
    body=bytes(range(256)),
    headers=(("a", "1"), ("a", "2"), ("", ""), ("ключ", "line\nbreak:\\")),
    received_at=1_700_000_000_000_001,
    expires_at=1_900_000_000_000_002,
    priority=9,
    persistent=False,
    qos=1,
    retain=True,
    protocol="mqtt",
    client_id="client",
    original_name="/a//b",
    content_type="application/json",
    correlation_data=b"\0\xff",
    reply_to="queue://answers",
    retained=True,
    payload_format=1,
    owner="me",
    protocol_version="5.0",
    stored_at=1_700_000_000_000_004,
)
DURABLE: Final = Subscription(
    2, "c1", "s1", "topic://t.>", True, 1, True, "mqtt", "group", {"k": "v", "": ""}, "a = 1", "me"
)
MEMBER: Final = msgspec.structs.replace(DURABLE, pending_list=7, name="q", session="c1")
ENDED: Final = Subscription(3, "c2", "s2", "topic://t.>", True, ended="unsubscribed")
SESSION: Final = Session(
    "c1",
    0xFFFF_FFFF,
    disconnected_at=5,
    options={"o": "p"},
    will=FULL,
    will_delay=7,
    protocol="mqtt",
    owner="me",
    client_id="phone",
)


BRANCH: Final = Branch(
    BranchId(7, b"global", b"branch", "me"),
    6,
    prepared_at=1_700_000_000_000_003,
    client_id="c3",
    protocol="stomp",
    locked=(LockedMessages(1, (12,), (5,), "c3", "9", "stomp", False, "me", (2,)),),
    duplicate_ids=((2**53 + 6, "queue://q", "id-3"),),
)


def small(number: int) -> Message:
    """A small message that contains its number."""
    return Message("queue://q", b"body %d" % number, (("n", str(number)),))


def everything() -> list[Operation]:
    """Shared messages, delivery counts, a log in another order than the messages, a lost list."""
    big = 2**53 + 1  # more than a float can represent
    return [
        AddDestination("queue://q", 1, "\u00e4 principal", consumers_paused=True),
        AddDestination("topic://t", 0, producers_paused=True),
        AddDestination("queue://gone", 4),
        PutSubscription(DURABLE),
        PutSubscription(MEMBER),
        PutSubscription(ENDED),
        AddMessage(10, FULL, (1, 2, 3)),
        AddMessage(11, small(11), (1,)),
        AddMessage(12, small(12), (1, 3)),
        AddMessage(13, small(13), (4,)),
        AddMessage(14, small(14), (2,)),
        AddMessage(big, small(15), (1,)),
        AddMessage(big + 1, small(16), (1,)),
        RecordDelivery(1, (11, 12), (3, 1)),
        RecordDelivery(3, (12,), (70_000,)),
        Acknowledge(4, (13,), (100,), 101, "x", "y", "stomp"),
        RemoveDestination("queue://gone", 4),
        Acknowledge(1, (big, 10), (102, 103), 104, "me", "1", "stomp", "whose", (1, 7)),
        Acknowledge(3, (10,), (105,), 104, "me", "2", "mqtt"),
        SetRetained(FULL),
        PutSession(SESSION),
        PutInflight(
            InflightRecord("c1", InflightDirection.OUT, 7, InflightState.PUBLISHED, "s1", 14, 1)
        ),
        PutInflight(InflightRecord("c1", InflightDirection.IN, 8, InflightState.RECEIVED)),
        PutBranch(BRANCH),
        AddMessage(big + 5, small(17), (6,)),
        AddDuplicateId("queue://q", "id-1", 11),
        AddDuplicateId("queue://q", "id-2", big + 1),
    ]


def storable(operations: list[Operation], offered: StoreCapabilities) -> list[Operation]:
    """Those of *operations* that a store with these capabilities accepts."""

    def meets(known: Operation) -> bool:
        match known:
            case AddDuplicateId():
                return offered.duplicate_ids is not None
            case PutBranch() | AddMessage(pending_lists=(BRANCH.pending_list,)):
                return offered.branches is not None
            case _:
                return True

    return [known for known in operations if meets(known)]


def by_key(state: RecoveredState) -> dict[str, object]:
    """What opening returned, in comparable form: keyed, without empty lists."""
    return {
        "last_sequence": state.last_sequence,
        "last_pending_list": state.last_pending_list,
        "destinations": {known.destination: known for known in state.destinations},
        "subscriptions": {known.pending_list: known for known in state.subscriptions},
        "sessions": {session.key: session for session in state.sessions},
        "inflight": {
            (record.session, record.direction, record.packet_id): record
            for record in state.inflight
        },
        "retained": {message.destination: message for message in state.retained},
        "pending": {number: count for number, count in state.pending.items() if count.messages},
    }


async def told(store: MessageStore, state: RecoveredState) -> dict[str, object]:
    """The same plus what the store's optional objects report; nothing for those it lacks."""
    found, offered = by_key(state), store.capabilities
    found |= {"branches": {}, "duplicate_ids": []}
    if offered.branches is not None:
        branches = await offered.branches.recovered_branches()
        found["branches"] = {branch.branch_id: branch for branch in branches}
    if offered.duplicate_ids is not None:
        ids = await offered.duplicate_ids.recovered_duplicate_ids()
        found["duplicate_ids"] = sorted(
            (known.destination, known.sequence, known.duplicate_id) for known in ids
        )
    return found


async def contents(store: MessageStore, state: RecoveredState) -> dict[str, object]:
    """All that an open store holds, except its identity and the numbers of its log's rows."""
    found = await told(store, state)
    del found["last_pending_list"]  # may be forgotten once that list is gone
    found["pending"] = {
        number: list(await store.page_in(number, 0, _ANY_COUNT, _ANY_SIZE))
        for number, count in sorted(state.pending.items())
        if count.messages
    }
    log = store.capabilities.acknowledged_log
    if log is not None:
        page = await log.acknowledged(log.log_statistics().first - 1, _ANY_COUNT, _ANY_SIZE)
        found["acknowledged"] = [tuple(getattr(row, name) for name in _ROW) for row in page.rows]
    return found
