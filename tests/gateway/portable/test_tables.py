"""The Parquet files: piece by piece, with checksums, readable by anybody."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.portable._columns import encode_row
from tidegate.portable._tables import (
    MESSAGES,
    RETAINED,
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS,
    SCHEMAS,
    TableWriter,
    read_table,
    table_path,
)
from tidegate.spi import ConfigError, Message, StoreIOError

SCHEMA = SCHEMAS[RETAINED]


def write(path: Path, sizes: list[int]) -> None:
    with TableWriter(path, SCHEMA) as writer:
        for number, size in enumerate(sizes):
            writer.add(encode_row(Message(f"queue://{number}", bytes([number % 251]) * size)))


def test_rows_come_back_in_order_over_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write(path, [1] * (ROW_GROUP_ROWS + 5))
    assert pq.ParquetFile(path).num_row_groups == 2
    names = [row["destination"] for row in read_table(path, SCHEMA)]
    assert names == [f"queue://{number}" for number in range(ROW_GROUP_ROWS + 5)]


def test_a_row_group_is_bounded_in_bytes_and_takes_at_least_one_message(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write(path, [ROW_GROUP_BYTES // 2, ROW_GROUP_BYTES // 2, 3 * ROW_GROUP_BYTES, 1])
    file = pq.ParquetFile(path)
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [2, 1, 1]
    assert [len(row["body"]) for row in read_table(path, SCHEMA)][2] == 3 * ROW_GROUP_BYTES


def test_an_empty_table_is_a_file_without_rows(tmp_path: Path) -> None:
    path = table_path(tmp_path, MESSAGES)
    with TableWriter(path, SCHEMAS[MESSAGES]) as writer:
        pass
    assert writer.rows == 0
    assert path.name == "messages.parquet"
    assert list(read_table(path, SCHEMAS[MESSAGES])) == []


def test_damage_of_a_page_and_a_cut_off_file_are_errors_that_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with TableWriter(path, SCHEMA) as writer:
        writer.add(encode_row(Message("queue://q", random.Random(1).randbytes(10_000))))
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[5000] ^= 0x10  # in the body
    for data in (damaged, whole[: len(whole) // 2], b""):
        path.write_bytes(data)
        with pytest.raises(StoreIOError, match=r"t\.parquet: the export is damaged or incomplete"):
            list(read_table(path, SCHEMA))
    path.unlink()
    with pytest.raises(StoreIOError, match=r"t\.parquet"):
        list(read_table(path, SCHEMA))


def test_columns_of_a_newer_program_are_refused_and_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    row = encode_row(Message("queue://q", b"x"))
    with TableWriter(path, SCHEMA.append(pa.field("colour", pa.string()))) as writer:
        writer.add(row | {"colour": "red"})
    with pytest.raises(ConfigError, match="does not know and would lose: colour"):
        list(read_table(path, SCHEMA))


def test_columns_that_an_older_program_did_not_know_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    older = pa.schema([SCHEMA.field("destination"), SCHEMA.field("body")])
    with TableWriter(path, older) as writer:
        writer.add({"destination": "queue://q", "body": b"x"})
    assert list(read_table(path, SCHEMA)) == [{"destination": "queue://q", "body": b"x"}]


def test_what_other_programs_write_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"  # narrower numbers, other string types, another compression
    table = pa.table(
        {
            "destination": pa.array(["queue://q"], pa.large_string()),
            "body": pa.array([b"x"], pa.binary()),
            "priority": pa.array([9], pa.int8()),
        }
    )
    pq.write_table(table, path, compression="gzip")
    assert list(read_table(path, SCHEMA)) == [
        {"destination": "queue://q", "body": b"x", "priority": 9}
    ]
