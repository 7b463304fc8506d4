"""Live lists: what is alive in a data file, for a rebuild. docs/journal-format.md section 5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tidegate_store_journal.index.acklog import AckBlock, decode_block
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.storage import Storage, write_atomically


class LiveList(msgspec.Struct, frozen=True, array_like=True):
    """Value of a ``.live`` file; *acknowledged* holds encoded blocks.

    *places*: locations of the pending messages, 16 bytes by sequence, in a file of a destination's
    directory; for the journal's own, replay finds them.
    """

    store_id: str
    file_id: int
    batch: int
    pending: list[tuple[int, list[int]]]
    acknowledged: list[bytes]
    places: dict[int, bytes] = {}

    def blocks(self) -> list[AckBlock]:
        """The blocks. Raises: FormatError."""
        return [decode_block(data) for data in self.acknowledged]


_decode: Final = msgspec.msgpack.Decoder(LiveList).decode


def write_live_list(storage: Storage, live: LiveList) -> None:
    """Write (or replace) the list beside its data file. Blocks. Raises: OSError."""
    data = _format.encode_side_file(_format.LIVE_MAGIC, _format.encode(live))
    write_atomically(storage, _format.live_name(live.file_id), data)


def read_live_list(storage: Storage, file_id: int) -> LiveList | None:
    """The list of a data file; None when there is none. Raises: FormatError, OSError."""
    try:
        file = storage.open(_format.live_name(file_id))
    except FileNotFoundError:
        return None
    try:
        data = file.pread(file.length, 0)
    finally:
        file.close()
    try:
        return _decode(_format.decode_side_file(_format.LIVE_MAGIC, data))
    except msgspec.DecodeError as error:
        raise _format.FormatError(str(error)) from error


def split_blocks(
    blocks: Sequence[AckBlock], released: int, file_ids: frozenset[int]
) -> dict[int, list[AckBlock]]:
    """Per data file, the rows of *blocks* above *released* whose message lies in it."""
    result: dict[int, list[AckBlock]] = {file_id: [] for file_id in file_ids}
    for block in blocks:
        owners = [location >> _format.FILE_SHIFT for location in block.locations]
        begin = max(0, released + 1 - block.first)
        while begin < block.count:
            end = begin + 1
            while end < block.count and owners[end] == owners[begin]:
                end += 1
            if owners[begin] in result:
                result[owners[begin]].append(block.part(begin, end))
            begin = end
    return result
