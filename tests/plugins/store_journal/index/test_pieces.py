"""Pieces of pending lists as bytes: what was encoded comes back, and damage is noticed."""

from __future__ import annotations

from array import array

import pytest

from tidegate_store_journal.index.changes import PENDING
from tidegate_store_journal.index.pieces import Piece, unpack, words_of
from tidegate_store_journal.log.format import SHARED_BIT, FormatError, location

KEY = b"k" * 16


def piece_of(*entries: tuple[int, int]) -> Piece:
    sequences, places = zip(*entries, strict=True)
    return Piece(sequences[0], (array("Q", sequences), words_of(places)))


ONE_FILE = piece_of(*[(item, location(3, 4096 + 300 * item, 300, 256)) for item in range(1, 40)])
SHARED = location(4, 9000, 70, 7) | SHARED_BIT
MIXED = piece_of(
    (5, location(3, 4096, 100, 20)),
    (6, SHARED),
    (9, location((1 << 28) - 1, 1 << 34, 500, 400)),
    (12, location(3, 4196, 110, 30)),
)


def test_what_lives_where_is_counted() -> None:
    usage = ONE_FILE.usage
    assert usage.files == {3: (39, 39 * 300)}
    assert (usage.shared, usage.body_bytes, usage.last) == ([], 39 * 256, 39)
    usage = MIXED.usage
    assert usage.files == {3: (2, 210), (1 << 28) - 1: (1, 500)}
    assert (usage.shared, usage.body_bytes, usage.last) == ([(6, SHARED)], 457, 12)
    assert (ONE_FILE.files, MIXED.files) == ({3}, {3, 4, (1 << 28) - 1})
    assert [list(part) for part in MIXED.within(4)] == [[6], list(words_of([SHARED]))]
    assert [len(part) for part in MIXED.within(5)] == [0, 0]


@pytest.mark.parametrize("piece", [ONE_FILE, MIXED])
def test_a_piece_comes_back_with_its_usage(piece: Piece) -> None:
    loaded = PENDING.decode(KEY, PENDING.encode(KEY, piece))
    assert loaded.usage == piece.usage
    assert loaded.files == piece.files
    assert loaded.arrays == piece.arrays
    assert (loaded.count, loaded.stored) == (piece.count, piece.count)


def test_what_cannot_be_unpacked_is_damaged() -> None:
    with pytest.raises(FormatError, match="unpacked"):
        unpack(b"nothing that was packed")


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    value = PENDING.encode(KEY, MIXED)
    for at in range(len(value)):
        damaged = bytearray(value)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(FormatError):
            PENDING.decode(KEY, bytes(damaged))
        with pytest.raises(FormatError):
            PENDING.decode(KEY, value[:at])


def test_a_piece_under_the_key_of_another_is_noticed() -> None:
    with pytest.raises(FormatError, match="damaged"):
        PENDING.decode(b"x" * 16, PENDING.encode(KEY, MIXED))
