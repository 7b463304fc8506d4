"""Destinations, subscriptions, sessions, packet ids and retained messages."""

from __future__ import annotations

import time

from tidegate.spi import (
    AddDuplicateId,
    ClearRetained,
    ForgetDuplicateIds,
    InflightDirection,
    InflightRecord,
    InflightState,
    Message,
    Operation,
    PutInflight,
    PutSession,
    RemoveInflight,
    RemoveSession,
    Session,
    SetRetained,
)
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.write.encode import encode_batch


class Loaded:
    """An index with its own batch counter; every batch goes into the file it names."""

    def __init__(self, *, keep: bool) -> None:
        self.index = Index(keep_acknowledged=keep)
        self.offset = 4096

    def write(self, *operations: Operation, file_id: int = 1) -> None:
        encoded = encode_batch(list(operations), file_id, self.offset, self.index)
        self.offset += len(encoded.payload)
        encoded.effects.batch = self.index.batch + 1
        self.index.apply(encoded.effects)


def test_small_state_changes_are_taken_once() -> None:
    loaded = Loaded(keep=False)
    index = loaded.index
    record = InflightRecord("c", InflightDirection.IN, 7, InflightState.RECEIVED)
    session = Session("c", 60)
    retained = Message("topic://t", b"r")
    loaded.write(PutSession(session), PutInflight(record), SetRetained(retained))
    changes = index.take_changes()
    assert list(changes.small.values()) == [
        PutSession(session),
        PutInflight(record),
        SetRetained(retained),
    ]
    assert changes.small_bytes > 0
    assert not index.take_changes().small
    loaded.write(
        RemoveInflight("c", InflightDirection.IN, 8),  # not there
        RemoveInflight("c", InflightDirection.IN, 7),
        RemoveSession("c"),
        ClearRetained("topic://t"),
        ClearRetained("topic://other"),
    )
    changes = index.take_changes()
    assert set(changes.small.values()) == {
        RemoveSession("c"),
        RemoveInflight("c", InflightDirection.IN, 7),
        ClearRetained("topic://t"),
    }
    assert changes.small_bytes == 0
    assert (index.sessions, index.inflight, index.retained) == ({}, {}, {})


def test_removing_a_session_removes_its_packet_ids() -> None:
    loaded = Loaded(keep=False)
    record = InflightRecord("c", InflightDirection.IN, 7, InflightState.RECEIVED)
    loaded.write(PutSession(Session("c", 60)), PutInflight(record))
    loaded.write(RemoveSession("c"))
    assert list(loaded.index.inflight_records()) == []


def test_duplicate_ids_that_were_copied_forward_are_read_in_one_go() -> None:
    """A start with 20,000 of them, half of them copied, took 28 s: it sorted them for each one."""
    index = Index(keep_acknowledged=False)
    put = index.apply_small[AddDuplicateId]
    begin = time.process_time()
    for number in (*range(10_000, 20_000), *range(1, 10_000)):
        put(AddDuplicateId("queue://q", f"id {number}", number), 50)
    index.apply_small[ForgetDuplicateIds](ForgetDuplicateIds("queue://q", 10), 50)
    found = [item.sequence for item in index.all_duplicate_ids()]
    assert time.process_time() - begin < 3
    assert found == list(range(11, 20_000))
