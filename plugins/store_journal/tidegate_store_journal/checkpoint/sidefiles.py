"""Bindings snapshot and live lists: what makes the metadata store dispensable.

docs/journal-format.md sections 5 and 6.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from tidegate.spi import Branch, InflightRecord, Message, Session, Subscription
from tidegate_store_journal.index.acklog import AckBlock, decode_block
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.storage import Storage, write_atomically

logger = logging.getLogger("tidegate.store.journal")

BINDINGS_NAME: Final = "bindings.snapshot"
#: The same bytes once more: without metadata and with the snapshot damaged, destinations and durable
#: subscriptions whose data files are gone would be nowhere else.
BINDINGS_COPY_NAME: Final = "bindings.copy"


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


_decode_bindings: Final = msgspec.msgpack.Decoder(Bindings).decode
_decode_live: Final = msgspec.msgpack.Decoder(LiveList).decode


def write_bindings(storage: Storage, bindings: Bindings) -> None:
    """Replace the snapshot, then its copy. Blocks. Raises: OSError.

    Crash story: the copy is written in place, so it may be torn, but only while the snapshot is whole.
    """
    data = _format.encode_side_file(_format.BINDINGS_MAGIC, _format.encode(bindings))
    write_atomically(storage, BINDINGS_NAME, data)
    file = storage.open(BINDINGS_COPY_NAME, create=True)
    try:
        file.pwritev([data], 0)
        file.datasync()
    finally:
        file.close()
    storage.sync_directory()


def read_bindings(storage: Storage) -> Bindings | None:
    """The snapshot, or its copy when it is damaged; None when there is none.

    Raises: FormatError when both are damaged; OSError.
    """
    data = _read(storage, BINDINGS_NAME)
    if data is None:
        return None
    try:
        return _bindings(data)
    except _format.FormatError as error:
        copy = _read(storage, BINDINGS_COPY_NAME)
        if copy is None:
            raise
        try:
            bindings = _bindings(copy)
        except _format.FormatError:
            raise error from None
        logger.warning("%s is damaged, its copy is used error=%s", BINDINGS_NAME, error)
        return bindings


def check_bindings(storage: Storage, name: str) -> None:
    """Check one of the two by itself, if it is there. Raises: FormatError, OSError."""
    data = _read(storage, name)
    if data is not None:
        _bindings(data)


def _bindings(data: bytes) -> Bindings:
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
