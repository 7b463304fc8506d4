"""LIKE of message selectors: compiles a pattern of SQL-92 to a function that is linear in any text.

Pieces between ``%`` are found one after another, from the left. That is enough, because only the
first possible place of a piece matters for the ones after it. No text causes backtracking: a piece
without ``_`` is found by ``str.find``, which is linear. One with ``_`` is sought at all places of the
text at once, in integers with a bit for each place (:class:`_Places`): shift-and of R. Baeza-Yates
and G. Gonnet ("A new approach to text searching", 1992) with pattern and text exchanged. That takes
one step of integer arithmetic per character of the short piece, and what is known of a text serves
all selectors that ask about it. A regular expression would try each character of the piece at each
place: seconds for a piece of 4,000 and a header of 65,000.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from tidegate.spi import RequestError

#: Characters of a piece with ``_`` between two ``%``: each costs an operation on an integer that has as
#: many bits as the text has characters, some microseconds for 65,000.
_WILD_MAX: Final = 64

#: A piece's rarest character is tried place by place at up to ``_TRIED_MIN`` places, or one per
#: ``_TRIED_EVERY`` characters of the text. So few characters occur more often that an integer for
#: each costs little. All places are tried in a text of at most ``_SHORT`` characters.
_TRIED_MIN: Final = 16
_TRIED_EVERY: Final = 512
_SHORT: Final = 64

#: Finds a piece: takes the text and where to begin; returns where the piece ends, or -1.
_Find = Callable[[str, int], int]


def compile_like(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """A matcher of LIKE. Raises: RequestError for an invalid ESCAPE or too long a piece."""
    if escape is not None and len(escape) != 1:
        raise RequestError(f"selector: ESCAPE needs one character, not {escape!r}")
    pieces: list[list[str | None]] = [[]]  # None: any one character
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                raise RequestError(f"selector: the pattern {pattern!r} ends with its ESCAPE")
            pieces[-1].append(literal)
        elif character == "%":
            pieces.append([])
        elif character == "_":
            pieces[-1].append(None)
        else:
            pieces[-1].append(character)
    if any(None in piece and len(piece) > _WILD_MAX for piece in pieces[1:-1]):
        raise RequestError(
            f"selector: a LIKE pattern has more than {_WILD_MAX} characters with a '_' between two '%'"
        )
    first, last = _expression(pieces[0]), pieces[-1]
    if len(pieces) == 1:
        return lambda text: first.fullmatch(text) is not None
    middle = [_finder(piece) for piece in pieces[1:-1] if piece]
    end, end_length = _expression(last), len(last)

    def matches(text: str) -> bool:
        found = first.match(text)
        if found is None:
            return False
        position, stop = found.end(), len(text) - end_length
        for find in middle:
            position = find(text, position)
            if position < 0:
                return False
        return position <= stop and end.fullmatch(text, stop) is not None

    return matches


def _expression(piece: list[str | None]) -> re.Pattern[str]:
    """A regular expression without repetition: its length is fixed, and it cannot backtrack."""
    text = "".join("." if character is None else re.escape(character) for character in piece)
    return re.compile(text, re.DOTALL)


def _finder(piece: list[str | None]) -> _Find:
    if None not in piece:
        literal = "".join(character for character in piece if character is not None)
        return lambda text, start: (
            -1 if (at := text.find(literal, start)) < 0 else at + len(literal)
        )
    return _wild_finder(piece)


def _wild_finder(piece: list[str | None]) -> _Find:
    characters = [(at, item) for at, item in enumerate(piece) if item is not None]
    place_of = {item: at for at, item in characters}
    expression = _expression(piece)
    length, match, search = len(piece), expression.match, expression.search

    def find(text: str, start: int) -> int:
        if len(text) <= _SHORT:
            return -1 if (found := search(text, start)) is None else found.end()
        stop = len(text) - length
        if start > stop:
            return -1
        if not characters:
            return start + length
        places = _places(text)
        rarest = min(place_of, key=places.counts.__getitem__)
        if places.counts[rarest] > max(_TRIED_MIN, len(text) // _TRIED_EVERY):
            begin = places.first(characters, start, stop)
            return begin + length if begin >= 0 else -1
        at = place_of[rarest]
        place = text.find(rarest, start + at)
        while 0 <= place <= stop + at:
            if match(text, place - at):
                return place - at + length
            place = text.find(rarest, place + 1)
        return -1

    return find


class _Places:
    """Where the characters of one text are. The bit of the first place is the highest.

    Attributes: counts: how often each character is there.
    """

    __slots__ = ("_masks", "_planes", "counts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.counts = Counter(text)
        if text.isascii():
            self._planes = [text.encode()]
        else:  # each byte of a character has its own plane
            encoded = text.encode("utf-32-le", "surrogatepass")
            self._planes = [encoded[at::4] for at in range(3)]
        self._masks: dict[str, int] = {}

    def first(self, characters: list[tuple[int, str]], start: int, stop: int) -> int:
        """The first place from *start* to *stop* with each character at its offset; or -1."""
        size = len(self.text)
        found = (1 << size - start) - (1 << size - 1 - stop)
        for at, character in characters:
            found &= self._mask(character) << at
            if not found:
                return -1
        return size - found.bit_length()

    def _mask(self, character: str) -> int:
        mask = self._masks.get(character)
        if mask is None:
            code = ord(character)
            mask = -1
            for plane in self._planes:
                value, code = code & 255, code >> 8
                mask &= int(plane.translate(b"0" * value + b"1" + b"0" * (255 - value)), 2)
            self._masks[character] = mask
        return mask


#: The last text examined: all selectors of a topic look at one message at a time.
_last = _Places("-")


def _places(text: str) -> _Places:
    global _last
    if _last.text != text:
        _last = _Places(text)
    return _last
