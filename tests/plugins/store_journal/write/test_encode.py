"""Batches into bytes and effects, and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_kit import in_single_steps
from numbered import ack, add, message

from tidegate.spi import (
    Acknowledge,
    AddDestination,
    Discard,
    DiscardReason,
    Move,
    Operation,
    PluginContractError,
    PutSubscription,
    RecordDelivery,
    RemoveSubscription,
    Subscription,
)
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.format import BatchHeader, location_parts
from tidegate_store_journal.log.records import read_message
from tidegate_store_journal.write.encode import EncodedBatch, decode_batch, encode_batch


def header_of(encoded: EncodedBatch) -> BatchHeader:
    effects = encoded.effects
    return BatchHeader(
        len(encoded.payload),
        0,
        0,
        effects.last_sequence,
        effects.last_ack,
        effects.last_list,
        encoded.record_count,
        0,
    )


def apply(index: Index, *operations: Operation) -> EncodedBatch:
    encoded = encode_batch(list(operations), 1, 4096, index)
    encoded.effects.batch = index.batch + 1
    index.apply(encoded.effects)
    return encoded


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 300), st.booleans()), max_size=30))
def test_what_is_decoded_has_the_effects_of_what_was_encoded(
    plan: list[tuple[int, int, bool]],
) -> None:
    index = Index(keep_acknowledged=True)
    operations: list[Operation] = []
    for number, (list_id, size, shared) in enumerate(plan, start=1):
        lists = (1, 2, 3) if shared else (list_id,)
        operations.append(add(number, *lists, size=size))
        if number % 5 == 0:
            operations.append(ack(number, pending_list=lists[0]))
        if number % 7 == 0:
            operations.append(RecordDelivery(lists[0], (number,), (1,)))
    encoded = encode_batch(operations, 3, 5000, index)
    wanted = encoded.effects
    found = decode_batch(encoded.payload, header_of(encoded), 3, 5000)
    for name in found.__struct_fields__:
        assert getattr(found, name) == getattr(wanted, name), name
    for entries in wanted.adds.values():
        for sequence, place in entries.items():
            file_id, offset, size, _ = location_parts(place)
            assert file_id == 3
            record = encoded.payload[offset - 5000 : offset - 5000 + size]
            assert read_message(record, sequence).headers == (("n", str(sequence)),)


LISTS = tuple(range(1, 31))

of_lists = st.one_of(
    st.just(LISTS),
    st.just(LISTS[:5]),
    st.lists(st.sampled_from(LISTS[:8]), min_size=1, max_size=6, unique=True).map(tuple),
)


@pytest.fixture(scope="module", params=[False, True])
def step_by_step(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            in_single_steps(patch)
        yield


@pytest.mark.usefixtures("step_by_step")
@settings(deadline=None)
@given(st.lists(of_lists, max_size=20), st.sets(st.integers(1, 20)))
def test_each_list_gets_its_messages_in_order_whatever_it_shares(
    plan: list[tuple[int, ...]], acknowledged: set[int]
) -> None:
    operations: list[Operation] = []
    wanted: dict[int, list[int]] = {}
    rows = 0
    for sequence, lists in enumerate(plan, 1):
        operations.append(add(sequence, *lists))
        for one in lists:
            wanted.setdefault(one, []).append(sequence)
        if sequence in acknowledged:  # what the same batch adds
            operations.append(ack(sequence, pending_list=lists[0]))
            rows += 1
    encoded = encode_batch(operations, 1, 4096, Index(keep_acknowledged=True))
    found = decode_batch(encoded.payload, header_of(encoded), 1, 4096)
    assert encoded.effects.last_ack == rows
    assert encoded.size == len(encoded.payload)
    assert found.adds == encoded.effects.adds
    for adds in (encoded.effects.adds, found.adds):
        assert {one: list(entries) for one, entries in adds.items()} == wanted
    index = Index(keep_acknowledged=False)
    index.apply(found)
    for one, sequences in wanted.items():
        left = [item for item in sequences if ack(item, pending_list=one) not in operations]
        assert [sequence for sequence, _ in index.lists[one].entries()] == left


def test_an_operation_from_a_newer_contract_is_refused() -> None:
    class Unknown:
        pass

    with pytest.raises(PluginContractError, match="Unknown"):
        encode_batch([Unknown()], 1, 4096, Index(keep_acknowledged=False))  # type: ignore[list-item]


def test_only_pending_messages_get_a_row() -> None:
    index = Index(keep_acknowledged=True)
    apply(index, add(1), add(2), add(3))
    encoded = apply(index, ack(1, 9, 2, 1))
    assert encoded.effects.others == [(ack(1, 2), 1)]
    assert index.log.last == 2
    # Nothing that another operation of the same batch took away, in either order.
    encoded = apply(
        index,
        add(4),
        add(5),
        Discard(1, (3,), DiscardReason.PURGED),
        Move(1, 4, 2, 6, message(6)),
        ack(3, 4, 5),
        ack(5),
    )
    acknowledged = [item for item, _ in encoded.effects.others if isinstance(item, Acknowledge)]
    assert [item.sequences for item in acknowledged] == [(5,), ()]
    assert index.log.last == 3
    assert [list(block.sequences) for block in index.log.blocks()] == [[1, 2], [5]]
    encoded = apply(index, RemoveSubscription(2), ack(6, pending_list=2))
    assert index.log.last == 3


def test_without_a_log_an_acknowledgement_is_small_and_has_no_row() -> None:
    index = Index(keep_acknowledged=False)
    apply(index, add(1))
    encoded = apply(index, ack(1))
    assert index.log.last == 0
    assert len(encoded.payload) < 50
    assert [first for _, first in encoded.effects.others] == [0]


def test_a_batch_says_whether_it_makes_the_store_grow() -> None:
    index = Index(keep_acknowledged=False)
    growing: list[Operation] = [
        add(1),
        Move(1, 1, 2, 2, message(2)),
        AddDestination("queue://q", 1),
        PutSubscription(Subscription(1, "", "", "topic://t", True)),
    ]
    for operation in growing:
        assert encode_batch([ack(1), operation], 1, 4096, index).grows
    other: list[Operation] = [
        ack(1),
        Discard(1, (1,), DiscardReason.EXPIRED),
        RemoveSubscription(1),
    ]
    for operation in other:
        assert not encode_batch([operation], 1, 4096, index).grows


def test_counters_follow_the_highest_numbers() -> None:
    index = Index(keep_acknowledged=True)
    encoded = apply(
        index,
        AddDestination("queue://q", 4),
        PutSubscription(Subscription(9, "", "", "topic://t", True)),
        add(20, 4),
        ack(20, pending_list=4),
    )
    effects = encoded.effects
    assert (effects.last_sequence, effects.last_list, effects.last_ack) == (20, 9, 1)
    assert apply(index, ack(1)).effects.last_sequence == 20
