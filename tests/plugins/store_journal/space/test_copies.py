"""Batches of copies: only what is still there, and only with every reference."""

from __future__ import annotations

from numbered import ack, add, message

from tidegate.spi import Operation
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.format import BatchHeader, location_parts
from tidegate_store_journal.log.records import read_message
from tidegate_store_journal.space.compact import Found, encode_copies
from tidegate_store_journal.write.encode import EncodedBatch, decode_batch, encode_batch


class Source:
    """An index whose messages are all in file 1."""

    def __init__(self) -> None:
        self.index = Index(keep_acknowledged=True)
        self.index.settle()

    def write(self, *operations: Operation, file_id: int = 1) -> None:
        encoded = encode_batch(list(operations), file_id, 5000 * self.index.batch, self.index)
        self.apply(encoded)

    def apply(self, encoded: EncodedBatch) -> None:
        encoded.effects.batch = self.index.batch + 1
        self.index.apply(encoded.effects)

    def found(self, sequence: int, lists: list[int], rows: list[int]) -> tuple[Found, bytes]:
        place = next(
            item for item in (self.index.lists[list_id].get(sequence) for list_id in lists) if item
        )
        return Found(sequence, place, lists, rows), _format.encode(message(sequence))


def header_of(batch: EncodedBatch) -> BatchHeader:
    effects = batch.effects
    return BatchHeader(
        len(batch.payload),
        effects.batch,
        0,
        effects.last_sequence,
        effects.last_ack,
        effects.last_list,
        batch.record_count,
        0,
    )


def test_a_message_moves_with_all_its_lists_and_rows() -> None:
    source = Source()
    index = source.index
    source.write(add(1, 1, 2, 3), add(2))
    item = source.found(1, [1, 2, 3], [])
    source.write(ack(1, pending_list=2), ack(1, pending_list=3))
    item[0].lists, item[0].rows = [1], [1, 2]
    batch = encode_copies([item], 7, 4160, index)
    assert batch is not None
    source.apply(batch)
    place = index.lists[1].get(1)
    assert place is not None
    assert location_parts(place)[:2] == (7, 4160)
    assert place & _format.SHARED_BIT
    assert [index.log.location_of(row) for row in (1, 2)] == [place, place]
    assert (index.files[1].references, index.files[7].references) == (1, 3)
    assert index.files[7].live_bytes == location_parts(place)[2]
    assert index.files[7].speaks_of == {1}
    # And the same when it is read back.
    again = decode_batch(batch.payload, header_of(batch), 7, 4160)
    assert again.copies == batch.effects.copies
    assert [(b.first, b.sequences, b.client_id) for b in again.copied_rows] == [
        (1, (1,), "client"),
        (2, (1,), "client"),
    ]
    size = location_parts(place)[2]
    assert read_message(batch.payload[:size], 1) == message(1)


def test_a_message_with_a_reference_that_was_not_found_stays_where_it_is() -> None:
    source = Source()
    source.write(add(1, 1, 2), add(2))
    shared, single = source.found(1, [1], []), source.found(2, [1], [])
    assert encode_copies([shared], 7, 4160, source.index) is None
    batch = encode_copies([shared, single], 7, 4160, source.index)
    assert batch is not None
    assert [sequence for sequence, _, _ in batch.effects.copies] == [2]


def test_what_was_acknowledged_or_copied_meanwhile_is_left_out() -> None:
    source = Source()
    source.write(add(1), add(2), add(3))
    items = [source.found(sequence, [1], []) for sequence in (1, 2, 3)]
    source.write(ack(1))
    batch = encode_copies(items[:2], 7, 4160, source.index)
    assert batch is not None
    source.apply(batch)
    again = encode_copies(items, 8, 4160, source.index)
    assert again is not None
    assert [sequence for sequence, _, _ in again.effects.copies] == [3]


def test_the_last_reference_of_a_shared_message_makes_it_an_ordinary_one() -> None:
    source = Source()
    index = source.index
    source.write(add(1, 1, 2))
    source.write(ack(1, pending_list=2))
    index.release(1)
    batch = encode_copies([source.found(1, [1], [])], 7, 4160, index)
    assert batch is not None
    source.apply(batch)
    assert not (index.lists[1].get(1) or 0) & _format.SHARED_BIT
    source.write(ack(1), file_id=7)
    index.release(2)
    assert index.pending_messages == index.acknowledged_bytes == 0
    assert (index.files[7].references, index.files[7].live_bytes) == (0, 0)


def test_a_row_released_while_its_copy_is_written_takes_nothing_along() -> None:
    source = Source()
    index = source.index
    source.write(add(1, 1, 2), add(2, 1, 2))
    items = [source.found(1, [1, 2], []), source.found(2, [1, 2], [])]
    source.write(ack(1), ack(1, pending_list=2), ack(2, pending_list=2))
    items[0][0].lists, items[0][0].rows = [], [1, 2]
    items[1][0].lists, items[1][0].rows = [1], [3]
    batch = encode_copies(items, 7, 4160, index)
    assert batch is not None
    index.release(3)  # between the encoding and the landing
    source.apply(batch)
    assert (index.files[1].references, index.files[1].live_bytes) == (0, 0)
    assert index.files[7].references == 1
    counted = index.pending_messages, index.acknowledged_bytes, index.files[7].live_bytes
    assert index.recount(list(index.log.blocks()), index.log.last, index.log.released) == 0
    assert (index.pending_messages, index.acknowledged_bytes, index.files[7].live_bytes) == counted
