"""The tables of the metadata store, each declared once. docs/journal-format.md section 7."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from tidegate.spi import LargeBody
from tidegate_store_journal.index.acklog import AckBlock, decode_block
from tidegate_store_journal.index.changes import Changes
from tidegate_store_journal.index.pieces import decode_piece, encode_piece
from tidegate_store_journal.log.format import FormatError, crc32c, encode

_PAIR: Final = struct.Struct(">QQ")
_U64: Final = struct.Struct(">Q")
_COUNT: Final = struct.Struct("<I")
_CRC_BYTES: Final = 4

Key = tuple[int, ...]


class Table:
    """How the values of one table are written, with a CRC in front.

    LMDB itself would believe a wrong bit in a key or value, or a page of another table.
    """

    def __init__(
        self,
        name: str,
        key: struct.Struct,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
    ) -> None:
        self.name = name
        self.key = key
        self._encode = encode
        self._decode = decode
        self._seed = crc32c(0, name.encode())

    def encode(self, key: bytes, value: Any) -> bytes:
        """The value under *key*."""
        data = self._encode(value)
        return crc32c(self._seed, key + data).to_bytes(_CRC_BYTES, "little") + data

    def decode(self, key: bytes, data: bytes) -> Any:
        """The inverse of :meth:`encode`. Raises: FormatError, msgspec.DecodeError, struct.error."""
        content = data[_CRC_BYTES:]
        if crc32c(self._seed, key + content) != crc_in(data):
            raise FormatError(f"a value of table {self.name} is damaged")
        return self._decode(content)


class _Pieces(Table):
    """They have a CRC of their own."""

    def encode(self, key: bytes, value: Any) -> bytes:
        """See :class:`Table`."""
        return encode_piece(key, value)

    def decode(self, key: bytes, data: bytes) -> Any:
        """See :class:`Table`."""
        return decode_piece(key, _PAIR.unpack(key)[1], data)


META: Final = Table("meta", _U64, encode, bytes)
PENDING: Final = _Pieces("pending", _PAIR, bytes, bytes)
DELIVERIES: Final = Table("deliveries", _PAIR, _COUNT.pack, lambda data: _COUNT.unpack(data)[0])
LARGE: Final = Table("large", _U64, encode, msgspec.msgpack.Decoder(LargeBody).decode)
ACKNOWLEDGED: Final = Table("acknowledged", _U64, AckBlock.encode, decode_block)
FILES: Final = Table("files", _U64, encode, msgspec.msgpack.Decoder(list[int]).decode)
#: What a checkpoint consists of, besides ``meta``.
TABLES: Final = (PENDING, DELIVERIES, LARGE, ACKNOWLEDGED, FILES)


def rows_of(change: Changes) -> Iterator[tuple[Table, Key, Any]]:
    """What a checkpoint puts, and what it deletes (None), in order."""
    for list_id, keys in change.pieces_gone.items():
        yield from ((PENDING, (list_id, key), None) for key in keys)
    for list_id, pieces in change.pieces.items():
        yield from ((PENDING, (list_id, key), piece) for key, piece in pieces.items())
    yield from ((DELIVERIES, key, count or None) for key, count in change.deliveries.items())
    yield from ((LARGE, (sequence,), body) for sequence, body in change.large.items())
    yield from ((ACKNOWLEDGED, (first,), item) for first, item in change.acknowledged.items())
    yield from ((ACKNOWLEDGED, (first,), None) for first in change.acknowledged_gone)
    yield from ((FILES, (file_id,), found or None) for file_id, found in change.speaks_of.items())
    yield from ((FILES, (file_id,), None) for file_id in change.files_gone)


def crc_in(value: bytes | memoryview) -> int:
    """The CRC in front of a value, 0 when there is none."""
    return int.from_bytes(value[:_CRC_BYTES], "little")
