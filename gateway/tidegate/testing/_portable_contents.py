"""A store with a bit of everything, and all that a store tells, for comparing two of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.spi import (
    Acknowledge,
    AcknowledgedMessage,
    AddDestination,
    AddDuplicateId,
    AddMessage,
    Branch,
    BranchId,
    DuplicateId,
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
    Subscription,
)

_ANY_SIZE: Final = 1 << 40
_ANY_COUNT: Final = 1_000_000

#: What is compared of a row of the log; its number begins anew in another store.
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
)
DURABLE: Final = Subscription(
    2, "c1", "s1", "topic://t.>", True, 1, True, "mqtt", "group", {"k": "v", "": ""}, "a = 1"
)
SESSION: Final = Session(
    "c1",
    0xFFFF_FFFF,
    disconnected_at=5,
    options={"o": "p"},
    will=FULL,
    will_delay=7,
    attached=(Subscription(0, "", "q", "queue://q", True), DURABLE),
)


BRANCH: Final = Branch(
    BranchId(7, b"global", b"branch"),
    6,
    prepared_at=1_700_000_000_000_003,
    principal="me",
    client_id="c3",
    protocol="stomp",
    locked=(LockedMessages(1, (12,), (5,), "c3", "9", "stomp"),),
    duplicate_ids=((2**53 + 6, "queue://q", "id-3"),),
)


def small(number: int) -> Message:
    """A small message that says its number."""
    return Message("queue://q", b"body %d" % number, (("n", str(number)),))


def everything() -> list[Operation]:
    """Shared messages, delivery counts, a log in another order than the messages, a lost list."""
    big = 2**53 + 1  # more than a float can tell
    return [
        AddDestination("queue://q", 1),
        AddDestination("topic://t", 0),
        AddDestination("queue://gone", 4),
        PutSubscription(DURABLE),
        PutSubscription(Subscription(3, "c2", "s2", "topic://t.>", True)),
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
        Acknowledge(1, (big, 10), (102, 103), 104, "me", "1", "stomp"),
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


async def contents(store: MessageStore, state: RecoveredState) -> dict[str, object]:
    """All that an open store holds, but for its identity and the numbers of its log's rows."""
    lists = {item.pending_list for item in state.destinations if item.pending_list}
    lists |= {item.pending_list for item in state.subscriptions}
    offered = store.capabilities
    branches = () if offered.branches is None else await offered.branches.recovered_branches()
    ids: Sequence[DuplicateId] = ()
    if offered.duplicate_ids is not None:
        ids = await offered.duplicate_ids.recovered_duplicate_ids()
    lists |= {item.pending_list for item in branches}
    rows: list[tuple[object, ...]] = []
    log = offered.acknowledged_log
    if log is not None:
        page = await log.acknowledged(log.log_statistics().first - 1, _ANY_COUNT, _ANY_SIZE)
        rows = [tuple(getattr(row, name) for name in _ROW) for row in page.rows]
    return {
        "destinations": sorted(
            (item.destination, item.pending_list) for item in state.destinations
        ),
        "subscriptions": sorted(state.subscriptions, key=lambda item: item.pending_list),
        "sessions": sorted(state.sessions, key=lambda item: item.client_id),
        "inflight": sorted(state.inflight, key=lambda item: (item.direction, item.packet_id)),
        "retained": sorted(state.retained, key=lambda item: item.destination),
        "pending": {
            number: list(await store.page_in(number, 0, _ANY_COUNT, _ANY_SIZE))
            for number in sorted(lists)
        },
        "branches": sorted(branches, key=lambda item: str(item.branch_id)),
        "duplicate_ids": sorted(ids, key=lambda item: item.sequence),
        "acknowledged": rows,
        "last_sequence": state.last_sequence,
    }
