"""The journal's bytes: golden files, round trips, and damage that must be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered import message

from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddDuplicateId,
    AddMessage,
    Branch,
    BranchId,
    BranchState,
    ClearRetained,
    Discard,
    DiscardReason,
    ForgetDuplicateIds,
    InflightDirection,
    InflightRecord,
    InflightState,
    LockedMessages,
    Message,
    Move,
    Operation,
    Outcome,
    PutBranch,
    PutInflight,
    PutSession,
    PutSubscription,
    RecordDelivery,
    RemoveBranch,
    RemoveDestination,
    RemoveInflight,
    RemoveSession,
    RemoveSubscription,
    Session,
    SetRetained,
    Subscription,
)
from tidegate_store_journal.index.acklog import AckBlock
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log import records as _records
from tidegate_store_journal.log.format import (
    BATCH_HEADER_BYTES,
    DATA_OFFSET,
    FILE_HEADER_BYTES,
    FormatError,
)
from tidegate_store_journal.write.encode import decode_batch, encode_batch

GOLDEN = Path(__file__).parents[1] / "golden"
NAME = "version-1.hex"
STORE_ID = "00112233445566778899aabbccddeeff"
SALT = 0x0123_4567_89AB_CDEF
MESSAGE = Message(
    "queue://orders",
    b"body",
    (("content-type", "text/plain"), ("n", "1")),
    1_700_000_000_000_000,
    1_700_000_001_000_000,
    9,
    False,
    1,
    True,
    "stomp",
    "producer",
    "/queue/orders",
    "text/plain",
    b"\x00\xff",
    "queue://answers",
    payload_format=0,
    owner="alice",
    protocol_version="1.2",
    stored_at=1_700_000_000_000_001,
)
SUBSCRIPTION = Subscription(
    3, "c", "n", "topic://a.>", True, 1, True, "mqtt", "g", {"k": "v"}, session="key"
)
OPERATIONS: list[Operation] = [
    AddDestination("queue://orders", 1, "o", consumers_paused=True),
    AddDestination("topic://news", 0),
    PutSubscription(SUBSCRIPTION),
    AddMessage(7, MESSAGE, (1,)),
    AddMessage(8, MESSAGE, (1, 3)),
    AddMessage(9, Message("topic://news", b""), (3,)),
    Acknowledge(1, (7,), (11,), 12, "consumer", "sub-1", "mqtt", "principal", (3,), reason="r"),
    Discard(3, (8,), DiscardReason.EXPIRED),
    RecordDelivery(1, (8,), (2,)),
    Move(3, 9, 1, 10, Message("queue://dlq", b"moved")),
    SetRetained(Message("topic://news", b"retained", retain=True)),
    ClearRetained("topic://old"),
    PutSession(Session("key", 60, 5, {"a": "b"}, protocol="mqtt", owner="o", client_id="c")),
    PutInflight(
        InflightRecord("key", InflightDirection.OUT, 65535, InflightState.PUBLISHED, "n", 8)
    ),
    RemoveInflight("key", InflightDirection.IN, 1),
    RemoveSession("d"),
    RemoveSubscription(4),
    RemoveDestination("queue://gone", 5),
]


_WHO = ("c", "s", "mqtt")
_HOW = ("p", Outcome.ACKNOWLEDGED, "r", (2,))
ROWS = AckBlock(11, 3, 1_700_000_002_000_000, *_WHO, (8,), (), (5,), *_HOW)


BRANCH = Branch(
    BranchId(-7, b"\x00global", b"\xff", "principal"),
    6,
    BranchState.PREPARED,
    1_700_000_003_000_000,
    0,
    "c",
    "stomp",
    (LockedMessages(1, (8, 10), (5, 6), "consumer", "s", "stomp", True, "p", (1, 2)),),
    ((11, "queue://orders", "id"),),
)
BRANCH_OPERATIONS: list[Operation] = [
    PutBranch(BRANCH),
    AddMessage(11, MESSAGE, (6,)),
    AddDuplicateId("queue://orders", "an id", 12),
    ForgetDuplicateIds("queue://orders", 4),
    RemoveBranch(BranchId(1, b"other"), 2),
]


def copies() -> bytes:
    value = _format.encode(MESSAGE)
    return (
        _format.encode_record(_format.COPY, value, sequence=7, pending_list=1, body_bytes=4)
        + _format.encode_record(
            _format.COPY,
            _format.pack_integers([4]) + value,
            sequence=8,
            pending_list=3,
            prefix_bytes=8,
            body_bytes=4,
        )
        + _format.encode_record(_format.COPIED_ROWS, ROWS.encode(), pending_list=3)
    )


def golden_bytes() -> bytes:
    """A reused file with batches of each operation, of copies, and of branches and duplicate ids."""
    result = _format.encode_file_header(STORE_ID, 5, SALT, 65536, reused=True)
    seed = _format.decode_file_header(result).seed
    index = Index(keep_acknowledged=True)
    first = encode_batch(OPERATIONS, 5, DATA_OFFSET + BATCH_HEADER_BYTES, index)
    last = encode_batch(BRANCH_OPERATIONS, 5, 0, Index(keep_acknowledged=True))
    assert (last.effects.last_sequence, last.effects.last_list) == (12, 6)
    for number, payload, count, counters in (
        (42, first.payload, first.record_count, (10, 1, 3)),
        (43, copies(), 3, (10, 1, 3)),
        (44, last.payload, last.record_count, (12, 1, 6)),
    ):
        result += _format.encode_batch_header(seed, (payload,), number, 41, *counters, count)
        result += payload
    return result + _format.END_MARK


def golden_file() -> bytes:
    lines = (GOLDEN / NAME).read_text().splitlines()
    text = "".join(line.partition("#")[0].strip() for line in lines)
    return bytes.fromhex(text)


def golden_batch(number: int) -> tuple[_format.BatchHeader, bytes]:
    data = golden_file()
    seed = _format.decode_file_header(data).seed
    at = 64
    while True:
        header = _format.decode_batch_header(seed, data[at : at + 64])
        assert header is not None
        payload = data[at + 64 : at + 64 + header.payload_bytes]
        assert _format.payload_is_valid(seed, header, payload)
        if header.batch == number:
            return header, payload
        at += 64 + header.payload_bytes


def test_bytes_have_not_changed() -> None:
    assert golden_bytes() == golden_file()


def test_the_golden_file_decodes_into_branches_and_duplicate_ids() -> None:
    header, payload = golden_batch(44)
    effects = decode_batch(payload, header, 5, DATA_OFFSET)
    others = [op for op in BRANCH_OPERATIONS if not isinstance(op, AddMessage)]
    assert [op for op, _ in effects.others] == others
    assert list(effects.adds) == [6]


def test_the_golden_file_decodes_into_copies_and_their_rows() -> None:
    assert _format.decode_file_header(golden_file()).reused
    header, payload = golden_batch(43)
    effects = decode_batch(payload, header, 5, DATA_OFFSET)
    assert [(sequence, lists) for sequence, _, lists in effects.copies] == [(7, (1,)), (8, (3, 4))]
    # Two lists and a row hold message 8, one list holds message 7.
    assert [bool(place & _format.SHARED_BIT) for _, place, _ in effects.copies] == [False, True]
    (rows,) = effects.copied_rows
    assert (rows.first, rows.pending_list, rows.client_id) == (11, 3, "c")
    assert (rows.sequences, rows.locations, rows.delivered_at) == ((8,), [], (5,))
    assert (rows.principal, rows.reason, rows.delivery_counts) == ("p", "r", (2,))
    for sequence, place, _ in effects.copies:
        _, offset, size, _ = _format.location_parts(place)
        begin = offset - DATA_OFFSET
        assert _records.read_message(payload[begin : begin + size], sequence) == MESSAGE


def test_the_golden_file_is_what_the_document_says() -> None:
    data = golden_file()
    # File header, docs/journal-format.md section 2.
    assert data[0:8] == b"TGJOURNL"
    assert data[8:10] == b"\x01\x00"
    assert data[10:12] == b"\x01\x00"  # it is a reused one
    assert int.from_bytes(data[12:16], "little") == 4096
    assert data[16:32].hex() == STORE_ID
    assert int.from_bytes(data[32:40], "little") == 5
    assert int.from_bytes(data[40:48], "little") == SALT
    assert int.from_bytes(data[48:56], "little") == 65536
    seed = int.from_bytes(data[60:64], "little")
    assert seed == _format.crc32c(0, data[:60])
    # Batch header.
    header = data[64:128]
    payload = data[128 : 128 + int.from_bytes(header[4:8], "little")]
    assert header[0:4] == b"TGB1"
    assert [int.from_bytes(header[at : at + 8], "little") for at in range(8, 48, 8)] == [
        42,
        41,
        10,
        1,
        3,
    ]
    assert int.from_bytes(header[48:52], "little") == len(OPERATIONS) + 1  # a move is two
    assert int.from_bytes(header[52:56], "little") == _format.crc32c(seed, payload)
    assert int.from_bytes(header[60:64], "little") == _format.crc32c(seed, header[:60])
    # The record of the first added message, behind three records without one.
    at = 0
    for _ in range(3):
        at += 36 + int.from_bytes(payload[at : at + 4], "little")
    size = int.from_bytes(payload[at : at + 4], "little")
    value = payload[at + 36 : at + 36 + size]
    assert int.from_bytes(payload[at + 4 : at + 8], "little") == _format.crc32c(7, value)
    assert int.from_bytes(payload[at + 8 : at + 16], "little") == 7
    assert int.from_bytes(payload[at + 16 : at + 24], "little") == 1
    assert int.from_bytes(payload[at + 24 : at + 28], "little") == 0
    assert int.from_bytes(payload[at + 28 : at + 32], "little") == 4
    assert payload[at + 32 : at + 36] == b"\x01\x00\x00\x00"
    assert msgspec.msgpack.decode(value)[0:2] == ["queue://orders", b"body"]


def test_the_golden_file_decodes_into_its_operations() -> None:
    data = golden_file()
    header, payload = golden_batch(42)
    effects = decode_batch(payload, header, 5, DATA_OFFSET + BATCH_HEADER_BYTES)
    # A move is a message that leaves, and one that comes.
    expected = [
        Discard(3, (9,), DiscardReason.DROPPED) if isinstance(item, Move) else item
        for item in OPERATIONS
        if not isinstance(item, AddMessage)
    ]
    assert [item for item, _ in effects.others] == expected
    assert [n for item, n in effects.others if isinstance(item, Acknowledge)] == [1]
    assert {key: list(value) for key, value in effects.adds.items()} == {1: [7, 8, 10], 3: [8, 9]}
    for sequence, wanted in (
        (7, MESSAGE),
        (8, MESSAGE),
        (10, Message("queue://dlq", b"moved")),
    ):
        _, offset, size, body = _format.location_parts(effects.adds[1][sequence])
        at = offset - DATA_OFFSET + FILE_HEADER_BYTES
        assert _records.read_message(data[at : at + size], sequence) == wanted
        assert body == len(wanted.body)


def test_a_flipped_bit_anywhere_is_seen() -> None:
    length = golden_batch(42)[0].payload_bytes
    data = golden_bytes()[: 128 + length]
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 0x01
        changed = bytes(broken)
        try:
            seed = _format.decode_file_header(changed[:64]).seed
        except FormatError:
            continue
        header = _format.decode_batch_header(seed, changed[64:128])
        assert header is None or not _format.payload_is_valid(seed, header, changed[128:]), at


def test_a_batch_of_another_file_is_not_valid() -> None:
    data = golden_bytes()
    other = _format.encode_file_header(STORE_ID, 5, SALT + 1, 65536)
    seed = _format.decode_file_header(other).seed
    assert _format.decode_batch_header(seed, data[64:128]) is None


@pytest.mark.parametrize("length", [0, 7, 63])
def test_a_file_header_that_is_cut_off_is_refused(length: int) -> None:
    with pytest.raises(FormatError, match="header of a data file"):
        _format.decode_file_header(golden_bytes()[:length])


def test_a_newer_version_is_refused_by_name() -> None:
    header = bytearray(golden_bytes()[:64])
    header[8] = newer = _format.FORMAT_VERSION + 1
    body = bytes(header[:60])
    with pytest.raises(FormatError, match=f"version {newer}"):
        _format.decode_file_header(body + _format.crc32c(0, body).to_bytes(4, "little"))


def test_an_unknown_record_type_names_itself() -> None:
    payload = _format.encode_record(99, b"")
    (record,) = _format.iterate_records(payload, 1)
    with pytest.raises(FormatError, match="type 99"):
        _records.decode_operation(record)


@pytest.mark.parametrize("kind", sorted(_records.BY_TYPE))
def test_a_record_with_a_senseless_value_is_refused(kind: int) -> None:
    (record,) = _format.iterate_records(_format.encode_record(kind, b"\xc1"), 1)
    if kind == _records.BY_OPERATION[RemoveSubscription].type:
        assert _records.decode_operation(record) == RemoveSubscription(0)  # it has no value
        return
    with pytest.raises(FormatError, match=f"type {kind}"):
        _records.decode_operation(record)


def test_records_that_do_not_fill_their_batch_are_refused() -> None:
    payload = _format.encode_record(_records.BY_OPERATION[ClearRetained].type, b"\xa1x")
    for data, count in ((payload[:-1], 1), (payload, 2), (payload + b"\0", 1), (b"\0" * 10, 1)):
        with pytest.raises(FormatError):
            list(_format.iterate_records(data, count))


def test_a_message_is_read_only_from_its_own_record() -> None:
    record = _format.encode_record(_format.ADD, _format.encode(message(5)), sequence=5)
    assert _records.read_message(record, 5) == message(5)
    for broken, sequence in (
        (record, 6),
        (record[:-1], 5),
        (record[:20], 5),
        (record[:-1] + b"\1", 5),
        (
            _format.encode_record(
                _records.BY_OPERATION[SetRetained].type, _format.encode(message(5)), sequence=5
            ),
            5,
        ),
        (_format.encode_record(_format.ADD, b"\xc1", sequence=5), 5),
    ):
        with pytest.raises(FormatError):
            _records.read_message(broken, sequence)


U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)


@settings(deadline=None)
@given(st.integers(0, 2**28 - 1), st.integers(0, 2**35 - 1), U32, U32, st.booleans())
def test_a_location_gives_back_its_parts(
    file_id: int, offset: int, record: int, body: int, shared: bool
) -> None:
    value = _format.location(file_id, offset, record, body) | (_format.SHARED_BIT if shared else 0)
    assert _format.location_parts(value) == (file_id, offset, record, body)
    assert value >> _format.FILE_SHIFT == file_id


@settings(deadline=None)
@given(st.lists(U64, max_size=20), st.lists(st.integers(0, 2**128 - 1), max_size=20))
def test_packed_numbers_come_back(integers: list[int], locations: list[int]) -> None:
    assert list(_format.unpack_integers(_format.pack_integers(integers))) == integers
    assert _format.unpack_locations(_format.pack_locations(locations)) == locations


TEXT = st.text(max_size=20)
MESSAGES: st.SearchStrategy[Any] = st.builds(
    Message,
    TEXT,
    st.binary(max_size=50),
    st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
    U32,
    U32,
    st.integers(0, 9),
    st.booleans(),
    st.integers(0, 2),
    st.booleans(),
    TEXT,
    TEXT,
    TEXT,
    TEXT,
    st.binary(max_size=5),
    TEXT,
)


@settings(deadline=None)
@given(MESSAGES, st.integers(1, 2**64 - 1), st.binary(max_size=32))
def test_any_message_comes_back_from_its_record(
    wanted: Message, sequence: int, prefix: bytes
) -> None:
    record = _format.encode_record(
        _format.ADD,
        prefix + _format.encode(wanted),
        sequence=sequence,
        prefix_bytes=len(prefix),
    )
    assert _records.read_message(record, sequence) == wanted


def test_record_types_are_those_of_the_document() -> None:
    document = Path(__file__).parents[4] / "docs" / "journal-format.md"
    rows = [line.split("|") for line in document.read_text().splitlines() if line.startswith("| ")]
    listed = {int(row[1]) for row in rows if len(row) == 8 and row[1].strip().isdigit()}
    special = {_format.ADD, _format.ACKNOWLEDGE, _format.COPY, _format.COPIED_ROWS, _format.VOID}
    special |= {_format.MARK, _format.LIVE}
    special |= {_format.REFERENCE, _format.COPY_REFERENCE}
    assert listed == {*special, *_records.BY_TYPE}
