"""Pieces of pending lists as bytes: what was encoded comes back, and damage is noticed."""

from __future__ import annotations

from array import array

import pytest

from tidegate_store_journal.index.pieces import (
    Piece,
    decode_piece,
    encode_piece,
    files_of,
    unpack,
    usage_of,
)
from tidegate_store_journal.log.format import SHARED_BIT, FormatError, location

KEY = b"k" * 16


def piece_of(*entries: tuple[int, int]) -> Piece:
    sequences, locations = array("Q"), array("Q")
    for sequence, place in entries:
        sequences.append(sequence)
        locations.frombytes(place.to_bytes(16, "little"))
    return Piece(entries[0][0], sequences, locations)


ONE_FILE = piece_of(*[(item, location(3, 4096 + 300 * item, 300, 256)) for item in range(1, 40)])
SHARED = location(4, 9000, 70, 7) | SHARED_BIT
MIXED = piece_of(
    (5, location(3, 4096, 100, 20)),
    (6, SHARED),
    (9, location((1 << 28) - 1, 1 << 34, 500, 400)),
    (12, location(3, 4196, 110, 30)),
)


def test_what_lives_where_is_counted() -> None:
    usage = usage_of(ONE_FILE.sequences, ONE_FILE.locations)
    assert usage.files == {3: (39, 39 * 300)}
    assert (usage.shared, usage.body_bytes) == ([], 39 * 256)
    usage = usage_of(MIXED.sequences, MIXED.locations)
    assert usage.files == {3: (2, 210), (1 << 28) - 1: (1, 500)}
    assert (usage.shared, usage.body_bytes) == ([(6, SHARED)], 457)
    assert (files_of(ONE_FILE), files_of(MIXED)) == ({3}, {3, 4, (1 << 28) - 1})


def test_removed_entries_neither_count_nor_are_written() -> None:
    piece = piece_of((5, location(3, 4096, 100, 20)), (6, 0), (7, location(3, 4196, 100, 20)))
    usage = usage_of(piece.sequences, piece.locations)
    assert (usage.files, usage.body_bytes) == ({3: (2, 200)}, 40)
    locations = piece.locations
    for _ in range(2):
        piece.leave_removed_out()
        assert list(piece.sequences) == [5, 7]
        assert list(piece.locations) == [*locations[:2], *locations[4:]]
        assert (piece.count, piece.last) == (2, 7)
    nothing = piece_of((5, 0))
    nothing.leave_removed_out()
    assert usage_of(nothing.sequences, nothing.locations).files == {}


@pytest.mark.parametrize("piece", [ONE_FILE, MIXED])
def test_a_piece_comes_back_with_its_usage(piece: Piece) -> None:
    loaded = decode_piece(KEY, piece.key, encode_piece(KEY, piece))
    assert loaded.usage == usage_of(piece.sequences, piece.locations)
    assert (loaded.sequences, loaded.locations) == (piece.sequences, piece.locations)
    assert (loaded.key, loaded.count, loaded.last) == (piece.key, piece.count, piece.last)


def test_what_cannot_be_unpacked_is_damaged() -> None:
    with pytest.raises(FormatError, match="unpacked"):
        unpack(b"nothing that was packed")


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    value = encode_piece(KEY, MIXED)
    for at in range(len(value)):
        damaged = bytearray(value)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(FormatError):
            decode_piece(KEY, 5, bytes(damaged))
        with pytest.raises(FormatError):
            decode_piece(KEY, 5, value[:at])


def test_a_piece_under_the_key_of_another_is_noticed() -> None:
    with pytest.raises(FormatError, match="damaged"):
        decode_piece(b"x" * 16, 5, encode_piece(KEY, MIXED))


def test_a_piece_without_entries_is_none() -> None:
    with pytest.raises(FormatError, match="empty"):
        decode_piece(KEY, 5, encode_piece(KEY, Piece(5, array("Q"), array("Q"))))
