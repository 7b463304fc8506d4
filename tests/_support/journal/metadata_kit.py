"""A checkpoint with something in every table, for the tests of the metadata store."""

from __future__ import annotations

from typing import Any

from numbered import ack, add

from tidegate.spi import (
    AddDestination,
    AddDuplicateId,
    AddMessage,
    Branch,
    BranchId,
    InflightDirection,
    InflightRecord,
    InflightState,
    LargeBody,
    Message,
    Operation,
    PutBranch,
    PutInflight,
    PutSession,
    PutSubscription,
    RecordDelivery,
    Session,
    SetRetained,
    Subscription,
)
from tidegate_store_journal.checkpoint.metadata import Loaded, MetadataState
from tidegate_store_journal.index.changes import ACKNOWLEDGED, DELIVERIES, FILES, LARGE, PENDING
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.write.encode import encode_batch

STORE_ID = "0" * 32
SUBSCRIPTION = Subscription(2, "c" * 600, "n", "topic://t", True)
RECORD = InflightRecord("c", InflightDirection.OUT, 65535, InflightState.PUBLISHED, "n", 3)


def state(batch: int = 1) -> MetadataState:
    return MetadataState(batch, 30, 2, 4, 1, store_id=STORE_ID, file_id=1, offset=5000)


def write(index: Index, *operations: Operation, file_id: int = 1) -> None:
    encoded = encode_batch(list(operations), file_id, 4096 * (index.batch + 1), index)
    encoded.effects.batch = index.batch + 1
    index.apply(encoded.effects)


def everything() -> Index:
    """Something for every table."""
    index = Index(keep_acknowledged=True)
    large = Message("queue://q", b"", large=LargeBody("0" * 32, 500_000, 7))
    write(
        index,
        AddDestination("queue://q", 1),
        PutSubscription(SUBSCRIPTION),
        PutSession(Session("c", 60)),
        PutInflight(RECORD),
        SetRetained(Message("topic://t", b"retained")),
        *[add(sequence, 1 + sequence % 2) for sequence in range(1, 30)],
        AddMessage(30, large, (1,)),
        RecordDelivery(1, (4, 6), (1, 7)),
        AddDuplicateId("queue://q", "dup", 5),
        PutBranch(Branch(BranchId(1, b"one", b"\xff"))),
    )
    write(index, ack(2, 10), file_id=2)
    return index


def contents(loaded: Loaded) -> dict[str, Any]:
    """What can be compared."""
    rows = loaded.rows
    return {
        "state": loaded.state,
        "pending": {key: piece.arrays for key, piece in rows[PENDING].items()},
        "acknowledged": [
            (block.first, block.pending_list, block.client_id, *block.sequences, *block.locations)
            for block in rows[ACKNOWLEDGED].values()
        ],
        **{table.name: rows[table] for table in (DELIVERIES, LARGE, FILES)},
    }
