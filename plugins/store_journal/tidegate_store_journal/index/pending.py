"""One pending list in memory: sequence → location, in sequence order, compact, fast at both ends.

New entries go into a dict (*fresh*), where an acknowledgement finds them at once: a message consumed soon after it
was stored never leaves it. The rest is *sealed* into pieces: 24 bytes an entry instead of about 130, and a position
can be found by bisection, which a dict cannot do. Sequences of one list only ever grow, so everything fresh comes
after everything sealed.

A piece is also one value of the list in the metadata store: a checkpoint writes the pieces
that changed, and a backlog that is consumed in order costs it one deletion per piece.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from tidegate_store_journal.index.pieces import Piece, Usage, places_in, words_of
from tidegate_store_journal.log.format import FILE_SHIFT, MASK_32

#: Entries in a piece: 24 KiB, which a checkpoint writes as a whole when one entry is removed from its
#: middle; bisection inside takes 10 steps.
PIECE_ENTRIES: Final = 1024
#: A list with more fresh entries than this is falling behind: they are sealed, about 1 ms at a time,
#: instead of all at once at the next checkpoint.
SEAL_ENTRIES: Final = 8192
#: Above this many fresh entries a page read seals first, to be able to bisect.
_FRESH_SCAN_MAX: Final = 256


class PendingList(msgspec.Struct, eq=False):
    """See the module. Not thread-safe."""

    fresh: dict[int, int] = {}
    deliveries: dict[int, int] = {}  # only counts above 0
    last_sealed: int = 0
    _sealed: int = 0  # entries in pieces
    _firsts: list[int] = []  # key of each piece
    _pieces: list[Piece] = []
    #: By key, entries of pieces that the metadata store has but this list no longer has.
    _gone: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.fresh) + self._sealed

    def add(self, entries: dict[int, int]) -> None:
        """Add new ones at the end, in order; *entries* becomes the list's."""
        if not self.fresh:
            self.fresh = entries
            return
        self.fresh.update(entries)
        if len(self.fresh) > SEAL_ENTRIES:
            self.seal()

    def seal(self) -> None:
        """Move everything fresh into pieces."""
        fresh = self.fresh
        if not fresh:
            return
        sequences, words = array("Q", fresh), words_of(fresh.values())
        assert sequences[0] > self.last_sealed, "sequences of a list must grow"
        self.fresh = {}
        self.last_sealed = sequences[-1]
        self._sealed += len(sequences)
        done = 0
        while done < len(sequences):
            if not self._pieces or self._pieces[-1].count >= PIECE_ENTRIES:
                self._append(Piece(sequences[done], (array("Q"), array("Q"))))
            piece = self._pieces[-1]
            end = min(len(sequences), done + PIECE_ENTRIES - piece.count)
            piece.extend(sequences[done:end], words[2 * done : 2 * end])
            done = end

    def restore_piece(self, piece: Piece) -> None:
        """Append a piece of the metadata store (at start, in order)."""
        self._append(piece)
        self._sealed += piece.count
        self.last_sealed = piece.usage.last

    def merge(self, entries: Mapping[int, int]) -> None:
        """Insert entries that belong in between (at start)."""
        fresh = dict(sorted([*self.entries(), *entries.items()]))
        for number in reversed(range(len(self._pieces))):
            self._forget(number)
        self.fresh, self.last_sealed, self._sealed = fresh, 0, 0

    def _append(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._firsts.append(piece.key)

    # ------------------------------------------------------------------------- single entries

    def _find(self, sequence: int) -> tuple[int, int] | None:
        """Number of the piece and index of a sealed entry."""
        if sequence > self.last_sealed:
            return None
        number = bisect_right(self._firsts, sequence) - 1
        if number < 0:
            return None
        sequences = self._pieces[number].arrays[0]
        index = bisect_left(sequences, sequence)
        if index == len(sequences) or sequences[index] != sequence:
            return None
        return number, index

    def __contains__(self, sequence: int) -> bool:
        return sequence in self.fresh or self._find(sequence) is not None

    def get(self, sequence: int) -> int | None:
        """The location of an entry; None when it is not there."""
        found = self._find(sequence)
        if found is None:
            return self.fresh.get(sequence)
        index = 2 * found[1]
        return places_in(self._pieces[found[0]].arrays[1][index : index + 2])[0]

    def pop_sealed(self, sequences: Sequence[int]) -> list[int | None]:
        """Remove entries that are not fresh; quick for runs.

        Returns: the location of each; None where it is not there.
        """
        result: list[int | None] = []
        at, count = 0, len(sequences)
        while at < count:
            found = self._find(sequences[at])
            if found is None:
                result.append(None)
                at += 1
                continue
            number, index = found
            piece = self._pieces[number]
            run = _run_length(piece.arrays[0], index, sequences, at)
            result += piece.remove(index, index + run)
            self._sealed -= run
            at += run
            if not piece.count:
                self._forget(number)
        return result

    def relocate(self, sequence: int, location: int) -> int | None:
        """Give an entry another location; returns the old one, None when it is not there."""
        value = self.fresh.get(sequence)
        if value is not None:
            self.fresh[sequence] = location
            return value
        found = self._find(sequence)
        return None if found is None else self._pieces[found[0]].relocate(found[1], location)

    def _forget(self, number: int) -> None:
        piece = self._pieces.pop(number)
        del self._firsts[number]
        if piece.stored:
            self._gone[piece.key] = piece.stored

    # --------------------------------------------------------------------------- many entries

    def page(self, after: int, limit: int, bytes_max: int) -> list[tuple[int, int]]:
        """Sequences and locations after *after*: see MessageStore.page_in for the limits."""
        if len(self.fresh) > _FRESH_SCAN_MAX and after >= self.last_sealed:
            self.seal()
        page: list[tuple[int, int]] = []
        total = 0
        for entry in self.entries(after):
            total += entry[1] & MASK_32
            if page and total > bytes_max:
                break
            page.append(entry)
            if len(page) >= limit:
                break
        return page

    def entries(self, after: int = 0) -> Iterator[tuple[int, int]]:
        """(sequence, location) of everything after *after*, in order."""
        if after < self.last_sealed:
            first = max(0, bisect_right(self._firsts, after) - 1)
            for piece in self._pieces[first:]:
                sequences, locations = piece.arrays
                at = bisect_right(sequences, after)
                lows, highs = locations[2 * at :: 2], locations[2 * at + 1 :: 2]
                for sequence, low, high in zip(sequences[at:], lows, highs, strict=True):
                    yield sequence, low | high << 64
        for entry in self.fresh.items():
            if entry[0] > after:
                yield entry

    def pieces_in(self, file_id: int) -> Iterator[list[tuple[int, int]]]:
        """(sequence, location) of the entries whose message is in the data file, piece by piece.

        The list may change between two pieces: entries that stay throughout are never missed, but
        those sealed meanwhile can come twice.
        """
        pieces = list(self._pieces)
        yield [entry for entry in self.fresh.items() if entry[1] >> FILE_SHIFT == file_id]
        for piece in pieces:
            if piece.count:
                sequences, locations = piece.within(file_id)
                yield list(zip(sequences, places_in(locations), strict=True))

    def sequences_in(self, file_id: int) -> list[int]:
        """The sequences of the entries whose message is in the data file, in order."""
        found: list[int] = []
        for piece in self._pieces:
            found += piece.within(file_id)[0]
        found += [key for key, place in self.fresh.items() if place >> FILE_SHIFT == file_id]
        return found

    def files(self) -> set[int]:
        """The data files that its messages are in, and perhaps others."""
        found = {place >> FILE_SHIFT for place in self.fresh.values()}
        return found.union(*[piece.files for piece in self._pieces])

    def usages(self) -> Iterator[Usage]:
        """What all entries use, a part at a time; cheap for what was just loaded."""
        self.seal()
        for piece in self._pieces:
            yield piece.usage

    def body_bytes(self) -> int:
        """Bytes of all bodies. A start asks every list: nothing is sealed or unpacked for it."""
        fresh = sum([place & MASK_32 for place in self.fresh.values()])
        return fresh + sum([piece.body_bytes for piece in self._pieces])

    def take_part(self) -> tuple[list[int], list[int]]:
        """Remove some entries, one piece's, from a list that nobody sees any more. Empty: the list is.

        Returns: sequences and locations.
        """
        self.seal()
        if not self._pieces:
            return [], []
        del self._firsts[-1]
        piece = self._pieces.pop()
        self._sealed -= piece.count
        sequences, locations = piece.arrays
        return sequences.tolist(), places_in(locations)

    # ---------------------------------------------------------------------------- checkpoints

    def take_changes(self, known: int) -> tuple[dict[int, Piece | None], int, int]:
        """What the metadata store must be told; everything is sealed afterwards.

        Args: known: it knows every entry up to this sequence.
        Returns: by key, a copy of each piece that changed, None for those that are gone; how many
            entries it did not know, and how many of those it knows are gone.
        """
        self.seal()
        told: dict[int, Piece | None] = dict.fromkeys(self._gone)
        added, removed = 0, sum(self._gone.values())
        self._gone.clear()
        for piece in self._pieces:
            if piece.is_changed:
                old = bisect_right(piece.arrays[0], known)
                added += piece.count - old
                removed += piece.stored - old
                told[piece.key] = piece.tell()
        return told, added, removed

    def stored(self) -> int:
        """How many entries the metadata store has."""
        return sum(self._gone.values()) + sum(piece.stored for piece in self._pieces)

    def pack(self) -> None:
        """The metadata store has everything that :meth:`take_changes` gave."""
        for piece in self._pieces:
            # One at the end that is not full will soon grow.
            is_open = piece is self._pieces[-1] and piece.count < PIECE_ENTRIES
            piece.pack(keeps_arrays=is_open)

    def mark_everything_changed(self) -> None:
        """The metadata store is empty."""
        self._gone.clear()
        for piece in self._pieces:
            piece.change()
            piece.stored = 0


def _run_length(piece: array[int], index: int, sequences: Sequence[int], at: int) -> int:
    """How many of *sequences* from *at* on are in *piece* from *index* on; the first is."""
    most = min(len(sequences) - at, len(piece) - index)
    if piece[index + most - 1] == sequences[at + most - 1] and piece[
        index : index + most
    ].tolist() == list(sequences[at : at + most]):
        return most
    run = 1
    while run < most and piece[index + run] == sequences[at + run]:
        run += 1
    return run
