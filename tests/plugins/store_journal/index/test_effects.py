"""What a batch does is the same when it was just encoded and when it was read back."""

from __future__ import annotations

from numbered import ack, add, message

from tidegate.spi import Discard, DiscardReason, Move, RecordDelivery
from tidegate_store_journal.index.effects import Effects
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.format import BatchHeader
from tidegate_store_journal.write.encode import decode_batch, encode_batch


def contents(effects: Effects) -> dict[str, object]:
    return {name: getattr(effects, name) for name in Effects.__struct_fields__}


def test_effects_that_were_read_back_are_those_that_were_encoded() -> None:
    index = Index(keep_acknowledged=True)
    operations = [
        add(1),
        add(2, 1, 2),
        add(3, 2),
        ack(1, 2),
        RecordDelivery(2, (3,), (1,)),
        Discard(2, (2,), DiscardReason.EXPIRED),
        Move(2, 3, 4, 5, message(5)),
    ]
    encoded = encode_batch(operations, 3, 5000, index)
    effects = encoded.effects
    effects.batch = 9
    header = BatchHeader(
        len(encoded.payload),
        9,
        8,
        effects.last_sequence,
        effects.last_ack,
        effects.last_list,
        encoded.record_count,
        0,
    )
    found = decode_batch(encoded.payload, header, 3, 5000)
    assert contents(found) == contents(effects)


def test_effects_begin_with_nothing() -> None:
    effects = contents(Effects(7))
    assert effects.pop("file_id") == 7
    assert not any(effects.values())
