"""Damaged headers of a record file put right from what is known elsewhere. Pure functions.

Nothing but its header says what the *seed* of a record file is, and every CRC in the directory begins
with it. But a CRC can be run backwards: a record whose own header is whole says which seed it was
written with. And a header can be made that has this seed, because four bytes of the salt are free to
steer a CRC-32 anywhere. So the header of a record file is no single point of failure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from tidegate_store_journal.log.format import FormatError, crc32c
from tidegate_store_journal.split import records as _records
from tidegate_store_journal.split.records import (
    BLOCK_BYTES,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
)

_MASK: Final = 0xFFFF_FFFF
_POLYNOMIAL: Final = 0x82F6_3B78  # CRC-32C, reflected
_CRC: Final = struct.Struct("<I")
#: Magic, sequence, write number and body bytes of every block; a block is 128 bytes.
_FIELDS: Final = struct.Struct("<4s4xQQI100x")
#: The fields of which a damaged header must still have so many to be taken for the one wanted.
_FIELDS_MIN: Final = 2
#: Bits of the payload's length and CRC in a header of a record.
_UNKNOWN_BITS: Final = (*range(32, 64), *range(224, 256))


def _table() -> tuple[list[int], list[int]]:
    forward: list[int] = []
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        forward.append(crc)
    # The highest bytes of the 256 entries are all different.
    backward = [0] * 256
    for value, crc in enumerate(forward):
        backward[crc >> 24] = value
    return forward, backward


_FORWARD, _BACKWARD = _table()


def crc_before(crc: int, data: bytes) -> int:
    """The value *v* with ``crc32c(v, data) == crc``."""
    state = crc ^ _MASK
    for byte in reversed(data):
        number = _BACKWARD[state >> 24]
        state = (state ^ _FORWARD[number]) << 8 & _MASK | number ^ byte
    return state ^ _MASK


# ------------------------------------------------------------------------------------ file header


def seed_of_record(data: bytes, offset: int = 0) -> int | None:
    """The seed of the file that a record was written to; None when it is not whole."""
    end = offset + RECORD_HEADER_BYTES
    if len(data) < end or data[offset : offset + 4] != RECORD_MAGIC:
        return None
    body = data[offset : end - _CRC.size]
    _, payload_bytes, _, _, _, payload_crc, _ = RECORD_HEADER.unpack(body)
    payload = data[end : end + payload_bytes]
    seed = crc_before(_CRC.unpack_from(data, end - _CRC.size)[0], body)
    # Any bytes behind a magic give some seed; the CRC of the payload says that it is the right one.
    if len(payload) != payload_bytes or crc32c(seed, payload) != payload_crc:
        return None
    return seed


def header_with_seed(store_id: str, destination: str, seed: int) -> bytes:
    """The header of a record file with this *seed*; its salt is another one than it was."""
    blank = _records.encode_file_header(store_id, 0, destination)
    begin, end = 32, 52  # salt, sizes; CRC
    size = end + len(destination.encode())
    behind = blank[begin + 4 : end - _CRC.size] + blank[end:size]
    wanted = crc_before(seed, bytes(4) + behind)
    low = crc32c(0, blank[:begin]) ^ wanted
    return _records.encode_file_header(store_id, low, destination)


# ---------------------------------------------------------------------------------------- records


class Known(NamedTuple):
    """What a reference says of a record: its write number and the bytes of the body."""

    write: int
    body_bytes: int


class Candidate(NamedTuple):
    """A block that must be the damaged header of the record of message *sequence*."""

    sequence: int
    offset: int


def find_damaged(
    seed: int, data: bytes, base: int, wanted: Mapping[int, Known]
) -> Iterator[Candidate]:
    """Blocks in *data* that begin like the records of *wanted* and have no valid header.

    Args: data: of whole blocks, and bytes behind them; base: offset of its beginning in the file.
    """
    writes = {known.write: sequence for sequence, known in wanted.items()}
    whole = len(data) - len(data) % BLOCK_BYTES
    blocks = _FIELDS.iter_unpack(memoryview(data)[:whole])
    for number, (magic, sequence, write, body_bytes) in enumerate(blocks):
        if sequence not in wanted:
            if write not in writes:
                continue
            sequence = writes[write]
        known = wanted[sequence]
        at = number * BLOCK_BYTES
        score = (magic == RECORD_MAGIC) + (write == known.write) + (body_bytes == known.body_bytes)
        score += data[at + 8 : at + 16] == sequence.to_bytes(8, "little")
        if score >= _FIELDS_MIN and _records.decode_header(seed, data, at) is None:
            yield Candidate(sequence, base + at)


def mended_record_header(seed: int, record: bytes, sequence: int, known: Known) -> bytes | None:
    """The header of *record* as it was written; None when that cannot be told.

    What the reference says is put in place; then the CRC of the header must be right, or become
    right when one bit is turned back. When it is only the CRC itself that is wrong, the one of the
    payload decides.
    """
    if len(record) < RECORD_HEADER_BYTES:
        return None
    _, payload_bytes, _, _, _, payload_crc, _ = RECORD_HEADER.unpack_from(record)
    stored = _CRC.unpack_from(record, RECORD_HEADER.size)[0]
    body = RECORD_HEADER.pack(
        RECORD_MAGIC, payload_bytes, sequence, known.write, known.body_bytes, payload_crc, 0
    )
    whole = body + _CRC.pack(crc32c(seed, body))
    if crc32c(seed, body) == stored:
        return whole
    payload = record[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + payload_bytes]
    is_payload_whole = len(payload) == payload_bytes and crc32c(seed, payload) == payload_crc
    # Otherwise it could be another record of this message, of a batch that never came.
    if is_payload_whole and record[: RECORD_HEADER.size] == body:
        return whole
    for changed in _with_one_bit_turned(body, _UNKNOWN_BITS):
        if crc32c(seed, changed) == stored:
            return changed + _CRC.pack(stored)
    return None


def _with_one_bit_turned(data: bytes, bits: Iterable[int]) -> Iterator[bytes]:
    for bit in bits:
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


def destination_in(data: bytes, offset: int, seed: int) -> str | None:
    """The destination of the message in a whole record at *offset*; None when it is none."""
    header = _records.decode_header(seed, data, offset)
    if header is None:
        return None
    begin = offset + RECORD_HEADER_BYTES
    payload = data[begin : begin + header.payload_bytes]
    try:
        return _records.decode_message(payload, header.sequence).destination
    except FormatError:
        return None
