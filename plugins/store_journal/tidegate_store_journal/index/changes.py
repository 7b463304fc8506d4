"""The difference between two checkpoints, and the tables of the metadata store that it goes into.

docs/journal-format.md section 7.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidegate.spi import LargeBody, Operation
from tidegate_store_journal.index.acklog import AckBlock, decode_block
from tidegate_store_journal.index.pieces import Piece
from tidegate_store_journal.index.smallstate import SmallKey
from tidegate_store_journal.log.format import FormatError, crc32c, encode

_PAIR: Final = struct.Struct(">QQ")
_U64: Final = struct.Struct(">Q")
_COUNT: Final = struct.Struct("<I")
_CRC_BYTES: Final = 4

Key = tuple[int, ...]


class Table:
    """How the values of one table are written, with a CRC in front.

    LMDB itself would not notice a wrong bit in a key or value, or a page of another table.
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
        return crc32c(crc32c(self._seed, key), data).to_bytes(_CRC_BYTES, "little") + data

    def decode(self, key: bytes, data: bytes) -> Any:
        """The inverse of :meth:`encode`. Raises: FormatError, msgspec.DecodeError, struct.error."""
        content = data[_CRC_BYTES:]
        if crc32c(crc32c(self._seed, key), content) != crc_in(data):
            raise FormatError(f"a value of table {self.name} is damaged")
        return self._decode(content)


def crc_in(value: bytes | memoryview) -> int:
    """The CRC before a value, 0 when there is none."""
    return int.from_bytes(value[:_CRC_BYTES], "little")


META: Final = Table("meta", _U64, encode, bytes)
#: Pieces by list and their key.
PENDING: Final = Table("pending", _PAIR, Piece.encode, Piece.decode)
#: How often a message was delivered, by list and sequence.
DELIVERIES: Final = Table("deliveries", _PAIR, _COUNT.pack, lambda data: _COUNT.unpack(data)[0])
#: Large bodies by the sequence of the message.
LARGE: Final = Table("large", _U64, encode, msgspec.msgpack.Decoder(LargeBody).decode)
#: Blocks of the acknowledged log by their first row.
ACKNOWLEDGED: Final = Table("acknowledged", _U64, AckBlock.encode, decode_block)
#: ``FileUse.speaks_of`` by data file.
FILES: Final = Table("files", _U64, encode, msgspec.msgpack.Decoder(list[int]).decode)
#: What a checkpoint consists of, besides ``meta``.
TABLES: Final = (PENDING, DELIVERIES, LARGE, ACKNOWLEDGED, FILES)
#: Those whose keys begin with a list.
TABLES_OF_LISTS: Final = (PENDING, DELIVERIES)

Rows = dict[Table, dict[Key, Any]]


class Numbers(msgspec.Struct, frozen=True, array_like=True):
    """How far the journal was at one moment.

    Attributes: batch, last_sequence, last_list: the last ones; ack_last, ack_released: rows of the
    acknowledged log.
    """

    batch: int = 0
    last_sequence: int = 0
    last_list: int = 0
    ack_last: int = 0
    ack_released: int = 0


@dataclass(slots=True)
class Changes:
    """Everything a checkpoint writes: the difference from the previous one.

    Attributes:
        rows: what the metadata store is to have under each key; None: nothing.
        dropped_lists: lists to forget as a whole, after everything else.
        added, removed: references that it lacked before, and that it had.
        numbers: as of when.
        small: for the bindings journal, the latest state of each key; small_bytes: of their records.
    """

    rows: Rows
    dropped_lists: list[int]
    added: int
    removed: int
    numbers: Numbers
    small: dict[SmallKey, Operation]
    small_bytes: int

    def follow(self, before: Changes) -> None:
        """Take in what a failed checkpoint was to write: each piece once, in its current state.

        Kept apart, each failure on a full disk would keep a copy of everything that changed.
        """
        self.rows = {table: before.rows[table] | rows for table, rows in self.rows.items()}
        self.dropped_lists = before.dropped_lists + self.dropped_lists
        self.added += before.added
        self.removed += before.removed
        self.small = before.small | self.small
        self.small_bytes += before.small_bytes
