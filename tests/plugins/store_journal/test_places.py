"""Sequence → place beside a plain dict."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from tidegate_store_journal.split.places import Places


def everything(places: Places) -> dict[int, int]:
    return {key: value for piece in places.pieces() for key, value in piece}


@given(st.lists(st.tuples(st.sampled_from(["put", "pop", "move", "get"]), st.integers(1, 60))))
def test_it_is_a_dict(steps: list[tuple[str, int]]) -> None:
    places, model = Places(), dict[int, int]()
    restored = array("Q", range(1, 30, 2))
    values = array("Q")
    for sequence in restored:
        model[sequence] = sequence << 100 | sequence << 32
        values.frombytes(model[sequence].to_bytes(16, "little"))
    places.restore(restored, values)
    for act, sequence in steps:
        place = sequence << 90 | len(model) << 32 | 7
        if act == "put":
            if sequence not in model or sequence > 30:
                places.put(sequence, place)
                model[sequence] = place
        elif act == "pop":
            assert places.pop(sequence) == model.pop(sequence, None)
        elif act == "move":
            assert places.move(sequence, place) is (sequence in model)
            if sequence in model:
                model[sequence] = place
        assert places.get(sequence) == model.get(sequence)
        assert len(places) == len(model)
    assert everything(places) == model


def test_many_entries_are_sealed_and_still_there() -> None:
    places = Places()
    for sequence in range(1, 20_001):
        places.put(sequence, sequence << 64 | 1 << 32)
        if sequence % 100 == 0:
            places.seal()
    fresh = places._fresh  # pyright: ignore[reportPrivateUsage]
    assert len(fresh) <= 8192
    assert len(places) == 20_000
    assert all(places.get(sequence) == sequence << 64 | 1 << 32 for sequence in range(1, 20_001))
    for sequence in range(1, 20_001):
        assert places.pop(sequence) == sequence << 64 | 1 << 32
    assert (len(places), everything(places)) == (0, {})


def test_an_older_sequence_than_what_was_sealed_is_found() -> None:
    places = Places()
    for sequence in range(100, 9000):
        places.put(sequence, sequence << 32)
    places.seal()
    places.put(5, 55 << 32)
    for sequence in range(9000, 18_000):
        places.put(sequence, sequence << 32)
    places.seal()
    assert places.get(5) == 55 << 32
    assert places.pop(5) == 55 << 32
    assert len(places) == 17_900
