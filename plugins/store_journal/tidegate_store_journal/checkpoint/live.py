"""Live lists: what is live in a data file, for a rebuild. docs/journal-format.md section 5.

They are records of the bindings journal; a newer one replaces the older.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Final

import msgspec

from tidegate_store_journal.index.acklog import AckBlock, decode_block
from tidegate_store_journal.log import format as _format

_decode: Final = msgspec.msgpack.Decoder(tuple[dict[int, list[int]], list[bytes], bytes]).decode
#: The fastest level; consecutive sequences take next to nothing.
_PACK_LEVEL: Final = 1


@dataclass(frozen=True, slots=True)
class LiveList:
    """What was live in a data file as of *batch*.

    Attributes:
        pending: per list, the sequences of pending messages, in order. rows: of the acknowledged log.
        places: locations of the pending messages by sequence, in a file of a destination's
        directory; for the journal's own, replay finds them.
    """

    batch: int
    pending: dict[int, list[int]]
    rows: list[AckBlock]
    places: dict[int, int]

    def encode(self, file_id: int) -> bytes:
        """The record for the data file."""
        steps = {
            list_id: [found[0], *map(sub, found[1:], found)]
            for list_id, found in self.pending.items()
        }
        places = _format.pack_locations([self.places[key] for key in sorted(self.places)])
        value = _format.encode((steps, [block.encode() for block in self.rows], places))
        packed = zlib.compress(value, _PACK_LEVEL)
        return _format.encode_record(
            _format.LIVE, packed, sequence=file_id, pending_list=self.batch
        )


def decode_live_list(batch: int, payload: bytes) -> LiveList:
    """Read the payload of a record back. Raises: FormatError."""
    try:
        steps, blocks, places = _decode(zlib.decompress(payload))
    except (zlib.error, msgspec.DecodeError) as error:
        raise _format.FormatError(f"a live list cannot be decoded: {error}") from error
    pending = {list_id: list(accumulate(values)) for list_id, values in steps.items()}
    rows = [decode_block(data) for data in blocks]
    keys = sorted({key for found in pending.values() for key in found}) if places else ()
    return LiveList(
        batch,
        pending,
        rows,
        dict(zip(keys, _format.unpack_locations(places), strict=True)),
    )
