"""LIKE of message selectors: a pattern of SQL-92 compiled to a function, in linear time.

Pieces between ``%`` are found one after the other, from the left. That is enough, because only
where a piece can begin first matters for the ones behind it. No text makes it go back: a piece
without ``_`` is found by ``str.find``, which is linear, and a long one with ``_`` by shift-and
(R. Baeza-Yates and G. Gonnet, "A new approach to text searching", 1992), which is a step of
integer arithmetic for each character. A regular expression tries each of its characters at each
place of the text: that is seconds for a piece of 4,000 and a header of 65,000.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from tidegate.spi import RequestError

#: Characters of a piece with ``_`` that a regular expression may try at each place of the text: as
#: quick as shift-and or quicker.
_TRIED_MAX: Final = 16

#: Characters of such a piece: the integers of shift-and have as many bits, and with up to this many
#: a header of 65,000 characters takes some milliseconds.
_WILD_MAX: Final = 64

#: Finds a piece: the text, and where to begin; returns where it ends, -1: nowhere.
_Find = Callable[[str, int], int]


def compile_like(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """A matcher of LIKE. Raises: RequestError for an ESCAPE that is none, and too long a piece."""
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
    """A regular expression without repetition: it has one length and nothing to go back to."""
    text = "".join("." if character is None else re.escape(character) for character in piece)
    return re.compile(text, re.DOTALL)


def _finder(piece: list[str | None]) -> _Find:
    if None not in piece:
        literal = "".join(character for character in piece if character is not None)
        return lambda text, start: (
            -1 if (at := text.find(literal, start)) < 0 else at + len(literal)
        )
    if len(piece) <= _TRIED_MAX:
        search = _expression(piece).search
        return lambda text, start: -1 if (found := search(text, start)) is None else found.end()
    return _shift_and(piece)


def _shift_and(piece: list[str | None]) -> _Find:
    """Bit *i* of the state says that the last ``i + 1`` characters are the piece's first ones."""
    anything = sum(1 << index for index, character in enumerate(piece) if character is None)
    masks: dict[str, int] = {}
    for index, character in enumerate(piece):
        if character is not None:
            masks[character] = masks.get(character, anything) | 1 << index
    complete = 1 << len(piece) - 1

    def find(text: str, start: int) -> int:
        state = 0
        mask_of = masks.get
        for position, character in enumerate(text[start:] if start else text, start + 1):
            state = (state << 1 | 1) & mask_of(character, anything)
            if state & complete:
                return position
        return -1

    return find
