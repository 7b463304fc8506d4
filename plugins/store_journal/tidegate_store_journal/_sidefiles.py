"""Bindings snapshot and live lists: what makes the metadata store dispensable.

docs/journal-format.md sections 5 and 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tidegate.spi import Branch, InflightRecord, Message, Session, Subscription
from tidegate_store_journal import _format
from tidegate_store_journal._acklog import AckBlock, decode_block
from tidegate_store_journal._storage import Storage, write_atomically

BINDINGS_NAME: Final = "bindings.snapshot"


class Bindings(msgspec.Struct, frozen=True, array_like=True):
    """Value of ``bindings.snapshot``."""

    store_id: str
    batch: int
    last_sequence: int
    last_list: int
    ack_last: int
    ack_released: int
    destinations: list[tuple[str, int]]
    subscriptions: list[Subscription]
    sessions: list[Session]
    inflight: list[InflightRecord]
    retained: list[Message]
    lists: list[int]
    branches: list[Branch] = []


class LiveList(msgspec.Struct, frozen=True, array_like=True):
    """Value of a ``.live`` file; *acknowledged* holds encoded blocks."""

    store_id: str
    file_id: int
    batch: int
    pending: list[tuple[int, list[int]]]
    acknowledged: list[bytes]

    def blocks(self) -> list[AckBlock]:
        """The blocks. Raises: FormatError."""
        return [decode_block(data) for data in self.acknowledged]


_decode_bindings: Final = msgspec.msgpack.Decoder(Bindings).decode
_decode_live: Final = msgspec.msgpack.Decoder(LiveList).decode


def write_bindings(storage: Storage, bindings: Bindings) -> None:
    """Replace the snapshot. Blocks. Raises: OSError."""
    data = _format.encode_side_file(_format.BINDINGS_MAGIC, _format.encode(bindings))
    write_atomically(storage, BINDINGS_NAME, data)


def read_bindings(storage: Storage) -> Bindings | None:
    """The snapshot; None when there is none. Raises: FormatError, OSError."""
    data = _read(storage, BINDINGS_NAME)
    if data is None:
        return None
    try:
        return _decode_bindings(_format.decode_side_file(_format.BINDINGS_MAGIC, data))
    except msgspec.DecodeError as error:
        raise _format.FormatError(str(error)) from error


def write_live_list(storage: Storage, live: LiveList) -> None:
    """Write (or replace) the list beside its data file. Blocks. Raises: OSError."""
    data = _format.encode_side_file(_format.LIVE_MAGIC, _format.encode(live))
    write_atomically(storage, _format.live_name(live.file_id), data)


def read_live_list(storage: Storage, file_id: int) -> LiveList | None:
    """The list of a data file; None when there is none. Raises: FormatError, OSError."""
    data = _read(storage, _format.live_name(file_id))
    if data is None:
        return None
    try:
        return _decode_live(_format.decode_side_file(_format.LIVE_MAGIC, data))
    except msgspec.DecodeError as error:
        raise _format.FormatError(str(error)) from error


def _read(storage: Storage, name: str) -> bytes | None:
    try:
        file = storage.open(name)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.length, 0)
    finally:
        file.close()


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
