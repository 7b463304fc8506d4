"""What lives in a data file, as a record of the bindings journal."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_store_journal.checkpoint.live import LiveList, decode_live_list
from tidegate_store_journal.index.acklog import AckBlock
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.format import FormatError, location

SEQUENCES = st.lists(st.integers(1, 1 << 63), min_size=1, max_size=50, unique=True).map(sorted)


def block(first: int, *places: int) -> AckBlock:
    sequences = tuple(range(100, 100 + len(places)))
    return AckBlock(first, 1, 5, "client", "sub", "mqtt", sequences, places, sequences)


def decoded(record: bytes) -> LiveList:
    size, _, sequence, batch, _, _, kind = _format.RECORD_HEADER.unpack_from(record)
    assert (sequence, kind) == (7, _format.LIVE)
    payload = record[_format.RECORD_HEADER_BYTES :]
    assert len(payload) == size
    return decode_live_list(batch, payload)


@given(st.dictionaries(st.integers(1, 1 << 40), SEQUENCES, max_size=5), st.booleans())
def test_a_live_list_comes_back(pending: dict[int, list[int]], has_places: bool) -> None:
    keys = sorted({key for found in pending.values() for key in found}) if has_places else []
    places = {key: location(7, 4096 + 100 * at, 80, 60) for at, key in enumerate(keys)}
    rows = [block(3, location(7, 4096, 9, 9), location(7, 5000, 9, 9))]
    found = decoded(LiveList(9, pending, rows, places).encode(7))
    assert (found.batch, found.pending, found.places) == (9, pending, places)
    assert [item.encode() for item in found.rows] == [item.encode() for item in rows]


def test_neighbours_take_next_to_nothing_and_others_a_few_bits() -> None:
    everything = list(range(5_000_000_000, 5_000_100_000))
    assert len(LiveList(1, {1: everything}, [], {}).encode(7)) < 1000
    half = sorted(random.Random(1).sample(everything, 50_000))
    assert len(LiveList(1, {1: half}, [], {}).encode(7)) < 25_000


@pytest.mark.parametrize("payload", [b"", b"nonsense", _format.encode((1, 2))])
def test_what_is_none_is_said_to_be_none(payload: bytes) -> None:
    with pytest.raises(FormatError):
        decode_live_list(1, payload)
