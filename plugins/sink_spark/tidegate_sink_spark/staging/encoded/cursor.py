"""Reads the same field of many MessagePack values at once, with numpy.

A :class:`Cursor` stands at one place of each value. Each method reads what is there and moves past it in all of
them. It knows the usual form of messages. :class:`UnusualError` says that it does not know what it sees, including
damaged bytes: callers then decode the values one by one. Until :meth:`Cursor.check_end` has returned, no span may be
used: damaged lengths lead anywhere.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, TypeVar

T = TypeVar("T")

np: Final[Any] = importlib.import_module("numpy")
pa: Final[Any] = importlib.import_module("pyarrow")

_NIL: Final = 0xC0
_FALSE: Final = 0xC2
_UNSIGNED: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_TEXTS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_FIXED_TEXT: Final = 0xA0
_FIXED_ARRAY: Final = 0x90
#: Offsets of Arrow's arrays have 31 bits.
_DATA_BYTES_MAX: Final = (1 << 31) - 1
#: Up to here it is cheap to check that all values are equal, so that the column has one value.
_COMPARED_BYTES_MAX: Final = 64
#: None of those that a cursor knows.
_UNKNOWN: Final = 255


def _table(sizes: dict[int, int], plain: Sequence[int]) -> Any:
    """By a value's first byte: how many bytes after it are a number; 0 for those of *plain*."""
    table = np.full(256, _UNKNOWN, np.uint8)
    table[list(plain)] = 0
    for tag, size in sizes.items():
        table[tag] = size
    return table


_INTEGER_SIZES: Final = _table(_UNSIGNED, range(0x80))
_TEXT_SIZES: Final = _table(_TEXTS, range(_FIXED_TEXT, _FIXED_TEXT + 32))
_BYTES_SIZES: Final = _table(_BYTES, [])


class UnusualError(ValueError):
    """Values are not what a cursor knows."""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Where texts or bytes are. Attributes: starts, ends: in *data*, ascending."""

    data: Any
    starts: Any
    ends: Any

    def array(self, *, keeps_empty: bool = False) -> Any:
        """A ``BinaryArray`` of them; NULL for empty ones, unless *keeps_empty*."""
        count = len(self.starts)
        if count == 0:
            return pa.array([], pa.binary())
        # Every second element is the gap between two of them.
        offsets = np.empty(2 * count, np.int32)
        offsets[0::2] = self.starts
        offsets[1::2] = self.ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        whole = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        mask = None if keeps_empty else self.starts == self.ends
        return whole.take(pa.array(np.arange(0, 2 * count, 2), mask=mask))

    def texts(self, *, keeps_empty: bool = False) -> Any:
        """A ``StringArray`` of them. Raises: ArrowInvalid for text that is not UTF-8; UnicodeDecodeError."""
        if keeps_empty:
            return self.array(keeps_empty=True).cast(pa.string())
        count = len(self.starts)
        lengths = self.ends - self.starts
        length = int(lengths[0])
        if (lengths == length).all():
            if not length:
                return pa.nulls(count, pa.string())
            if length <= _COMPARED_BYTES_MAX:
                block = self.data[self.starts[:, None] + np.arange(length)]
                if (block == block[0]).all():
                    return pa.repeat(pa.scalar(block[0].tobytes().decode(), pa.string()), count)
        return self.array().cast(pa.string())


class Cursor:
    """Stands at one place of each of several values."""

    def __init__(self, values: Sequence[bytes]) -> None:
        """At their start. Args: values: at least one. Raises: UnusualError."""
        joined = b"".join(values)
        if len(joined) > _DATA_BYTES_MAX:
            raise UnusualError
        self._data = np.frombuffer(joined, np.uint8)
        self._ends = np.fromiter(accumulate(map(len, values)), np.int64, len(values))
        self._at = np.concatenate(([0], self._ends[:-1]))

    def skip(self, expected: bytes) -> None:
        """Move past *expected* in all values. Raises: UnusualError, IndexError."""
        for byte in expected:
            if (self._data.take(self._at) != byte).any():
                raise UnusualError
            self._at = self._at + 1

    def check_end(self) -> None:
        """Check that all values end here, so that each of their spans is within its value. Raises: UnusualError."""
        if (self._at != self._ends).any():
            raise UnusualError

    def integers(self) -> Any:
        """Unsigned numbers of at most 63 bits. Raises: UnusualError, IndexError."""
        tags = self._data.take(self._at)
        sizes = _INTEGER_SIZES[tags]
        if not sizes.any():
            self._at = self._at + 1
            return tags.astype(np.int64)
        numbers = np.where(sizes == 0, tags, self._numbers(sizes))
        if (numbers < 0).any():
            raise UnusualError
        self._at = self._at + 1 + sizes
        return numbers

    def booleans(self) -> Any:
        """Raises: UnusualError, IndexError."""
        tags = self._data.take(self._at)
        if ((tags & 0xFE) != _FALSE).any():
            raise UnusualError
        self._at = self._at + 1
        return tags != _FALSE

    def texts(self) -> Spans:
        """Raises: UnusualError, IndexError."""
        tags = self._data.take(self._at)
        return self._spans(_TEXT_SIZES[tags], tags & 0x1F)

    def bytes(self) -> Spans:
        """Raises: UnusualError, IndexError."""
        return self._spans(_BYTES_SIZES[self._data.take(self._at)], 0)

    def optional(self, read: Callable[[], T]) -> tuple[Any, T | None]:
        """The indexes, ascending, of values with no nil here, and what *read*, a method of this cursor, finds there.

        Raises: UnusualError, IndexError.
        """
        there = np.flatnonzero(self._data.take(self._at) != _NIL)
        behind = self._at + 1
        found = None
        if len(there):
            self._at = self._at[there]
            found = read()
            behind[there] = self._at
        self._at = behind
        return there, found

    def pairs(self) -> tuple[Any, Spans, Spans]:
        """Arrays of pairs of texts: how many each has, and all first and second texts, in order.

        Raises: UnusualError, IndexError.
        """
        tags = self._data.take(self._at)
        if ((tags & 0xF0) != _FIXED_ARRAY).any():
            raise UnusualError
        self._at = self._at + 1
        counts = (tags & 0x0F).astype(np.int64)
        width, total = int(counts.max()), int(counts.sum())
        names, values = np.empty((2, total), np.int64), np.empty((2, total), np.int64)
        is_even = total == width * len(counts)
        firsts = np.cumsum(counts) - counts
        behind = self._at
        for number in range(width):
            some: Any = slice(None) if is_even else np.flatnonzero(counts > number)
            pairs: Any = slice(number, None, width) if is_even else firsts[some] + number
            self._at = behind[some]
            self.skip(b"\x92")
            for found in (names, values):
                texts = self.texts()
                found[0, pairs], found[1, pairs] = texts.starts, texts.ends
            behind[some] = self._at
        self._at = behind
        return counts, Spans(self._data, *names), Spans(self._data, *values)

    def _spans(self, sizes: Any, fixed: Any) -> Spans:
        lengths = np.where(sizes == 0, fixed, self._numbers(sizes)) if sizes.any() else fixed
        starts = self._at + 1 + sizes
        self._at = starts + lengths
        return Spans(self._data, starts, self._at)

    def _numbers(self, sizes: Any) -> Any:
        """Big-endian numbers of *sizes* bytes after the first one; 0 where there are none. Raises: UnusualError."""
        found = [int(size) for size in np.flatnonzero(np.bincount(sizes)) if size]
        if found[-1] == _UNKNOWN:
            raise UnusualError
        numbers = np.zeros(len(sizes), np.int64)
        for size in found:
            some = slice(None) if (sizes == size).all() else np.flatnonzero(sizes == size)
            block = self._data[self._at[some][:, None] + np.arange(1, size + 1)]
            numbers[some] = block.view(f">u{size}")[:, 0]
        return numbers
