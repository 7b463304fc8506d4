"""Rows of the log as Arrow columns and as Parquet files."""

import datetime
import resource
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate_sink_spark.staging.arrow import (
    SCHEMA,
    build_batch,
    check_file,
    write_parquet,
)


def utc(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=datetime.UTC)


def test_a_row_has_every_column_with_its_value(kit: Any) -> None:
    (row,) = build_batch([kit.acknowledged(7)], "gw-1", "store-1").to_pylist()
    assert row == {
        "ack_seq": 7,
        "gateway_id": "gw-1",
        "epoch": "store-1",
        "message_id": "store-1-70",
        "destination": "queue://orders.1",
        "protocol": "mqtt",
        "client_id": "consumer-1",
        "subscription": "sub-0",
        "headers": [("kind", "order"), ("n", "7")],
        "body": b'{"n": 7}',
        "content_type": "application/json",
        "received_at": utc(2026, 1, 2, 3, 4, 5, 13),
        "delivered_at": utc(2026, 1, 2, 3, 4, 5, 14),
        "acked_at": utc(2026, 1, 2, 3, 4, 5, 15),
        "ack_date": datetime.date(2026, 1, 2),
        "sequence": 70,
        "destination_kind": "queue",
        "producer_protocol": "stomp",
        "producer_version": None,
        "producer_client_id": None,
        "producer_principal": None,
        "consumer_principal": None,
        "repeated_headers": None,
        "correlation_id": None,
        "reply_to": None,
        "message_type": None,
        "group_id": None,
        "priority": 4,
        "persistent": True,
        "qos": 2,
        "retain": False,
        "expires_at": None,
        "stored_at": None,
        "delivery_count": 1,
        "outcome": "acknowledged",
        "reason": None,
        "payload_format": None,
        "destination_as_sent": None,
    }


def test_a_row_has_the_whole_story(kit: Any) -> None:
    told = kit.acknowledged(
        7,
        destination="topic://t",
        headers=(("type", "Order"), ("JMSXGroupID", "g"), ("reply-to", "elsewhere")),
        expires_at=kit.EPOCH_US,
        priority=9,
        persistent=False,
        qos=1,
        retain=True,
        client_id="sensor",
        correlation_data=b"id-1",
        owner="alice",
        protocol_version="5.0",
        stored_at=kit.EPOCH_US + 1,
        payload_format=1,
        original_name="/topic/t",
    )
    rows = [
        msgspec.structs.replace(told, principal="bob", delivery_count=3, reason="why"),
        kit.acknowledged(8),  # so that no column has one value in all its rows
    ]
    found = build_batch(rows, "gw-1", "store-1").to_pylist()[0]
    assert {name: found[name] for name in SCHEMA.names[15:]} == {
        "sequence": 70,
        "destination_kind": "topic",
        "producer_protocol": "stomp",
        "producer_version": "5.0",
        "producer_client_id": "sensor",
        "producer_principal": "alice",
        "consumer_principal": "bob",
        "repeated_headers": None,
        "correlation_id": "id-1",
        "reply_to": "elsewhere",
        "message_type": "Order",
        "group_id": "g",
        "priority": 9,
        "persistent": False,
        "qos": 1,
        "retain": True,
        "expires_at": utc(2026, 1, 2, 3, 4, 5, 6),
        "stored_at": utc(2026, 1, 2, 3, 4, 5, 7),
        "delivery_count": 3,
        "outcome": "acknowledged",
        "reason": "why",
        "payload_format": 1,
        "destination_as_sent": "/topic/t",
    }


def test_a_correlation_id_that_is_no_text_is_base64(kit: Any) -> None:
    rows = [kit.acknowledged(1, correlation_data=b"\xff"), kit.acknowledged(2)]
    batch = build_batch(rows, "g", "s").to_pylist()
    assert [row["correlation_id"] for row in batch] == ["base64:/w==", None]


def test_a_time_that_no_reader_knows_is_none(kit: Any) -> None:
    rows = [kit.acknowledged(1, expires_at=2**63), kit.acknowledged(2, expires_at=1)]
    batch = build_batch(rows, "g", "s").to_pylist()
    assert [row["expires_at"] for row in batch] == [None, utc(1970, 1, 1, 0, 0, 0, 1)]


def test_no_headers_are_an_empty_map_and_no_content_type_is_null(kit: Any) -> None:
    (row,) = build_batch([kit.acknowledged(1, headers=(), content_type="")], "g", "s").to_pylist()
    assert row["headers"] == []
    assert row["content_type"] is None


def test_the_first_of_a_repeated_header_counts(kit: Any) -> None:
    headers = (("a", "1"), ("b", "2"), ("a", "3"))
    (row,) = build_batch([kit.acknowledged(1, headers=headers)], "g", "s").to_pylist()
    assert row["headers"] == [("a", "1"), ("b", "2")]
    assert row["repeated_headers"] == [
        {"name": "a", "value": "1"},
        {"name": "b", "value": "2"},
        {"name": "a", "value": "3"},
    ]


@pytest.mark.parametrize(
    "rows",
    [
        [(), ()],
        [("a", "b"), ("a", "b"), ("a", "b")],
        [("a", "b"), ("b", "a")],
        [("a", "b"), ()],
        # One after the other these are three times the names of the first.
        [("a", "b"), ("a",), ("b", "a", "b")],
        [("a", "a"), ("a", "a")],
        [("type", "a"), ("type", "a")],
        [("a", "type"), ("type",)],
    ],
    ids=str,
)
def test_headers_are_those_of_their_row_whatever_others_have(
    kit: Any, rows: list[tuple[str, ...]]
) -> None:
    headers = [
        tuple((name, f"{row}.{number}") for number, name in enumerate(names))
        for row, names in enumerate(rows)
    ]
    batch = build_batch(
        [kit.acknowledged(n + 1, headers=each) for n, each in enumerate(headers)], "g", "s"
    ).to_pylist()
    first = [dict(reversed(each)) for each in headers]
    assert [dict(row["headers"]) for row in batch] == first
    assert [len(row["headers"]) for row in batch] == [len(each) for each in first]
    assert [row["message_type"] for row in batch] == [each.get("type") for each in first]
    assert [row["repeated_headers"] for row in batch] == [
        [{"name": name, "value": value} for name, value in each] if len(each) > len(names) else None
        for each, names in zip(headers, first, strict=True)
    ]


def test_a_lone_surrogate_does_not_hold_up_the_log(kit: Any) -> None:
    rows = [kit.acknowledged(1, headers=(("k", "\ud800"),)), kit.acknowledged(2)]
    batch = build_batch(rows, "g", "s").to_pylist()
    assert batch[0]["headers"] == [("k", "\\ud800")]
    assert batch[1]["headers"] == [("kind", "order"), ("n", "2")]


def test_a_file_is_zstd_parquet_with_utc_microseconds(kit: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, [*kit.batch(1, 1000), *kit.batch(1001, 1500)])
    metadata = pq.read_metadata(path)
    assert metadata.num_rows == 1500
    assert metadata.num_row_groups == 1
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    acked_at = metadata.schema.column(metadata.schema.names.index("acked_at")).logical_type
    assert "isAdjustedToUTC=true" in str(acked_at)
    assert "timeUnit=microseconds" in str(acked_at)
    assert pq.read_schema(path).equals(SCHEMA)


def test_bodies_and_values_of_headers_are_in_no_dictionary_and_have_no_statistics(
    kit: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, kit.batch(1, 10))
    group = pq.read_metadata(path).row_group(0)
    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert not columns["body"].has_dictionary_page
    assert columns["destination"].has_dictionary_page
    assert columns["headers.key_value.key"].has_dictionary_page
    assert not columns["headers.key_value.value"].has_dictionary_page
    assert {name for name, column in columns.items() if not column.is_stats_set} == {
        "body",
        "headers.key_value.key",
        "headers.key_value.value",
        "repeated_headers.list.element.name",
        "repeated_headers.list.element.value",
    }


def test_a_whole_file_checks_well(kit: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, kit.batch(5, 9))
    assert check_file(path, 5, 9) == ""


@pytest.mark.parametrize(
    ("lo", "hi", "problem"),
    [(5, 10, "5 rows instead of 6"), (6, 10, "holds ack sequences 5 to 9")],
)
def test_a_file_that_is_not_what_its_name_says_is_told(
    kit: Any, tmp_path: Path, lo: int, hi: int, problem: str
) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, kit.batch(5, 9))
    assert check_file(path, lo, hi) == problem


@pytest.mark.parametrize("keep", [0, 3, 50, 400])
def test_a_torn_file_is_told(kit: Any, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, kit.batch(5, 9))
    path.write_bytes(path.read_bytes()[:keep])
    assert check_file(path, 5, 9).startswith("not a readable Parquet file")


def test_a_file_without_ack_seq_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"name": pa.array([None], pa.string())}), path)
    assert check_file(path, 1, 1).startswith("not a readable Parquet file")


def test_a_missing_file_is_not_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_file(tmp_path / "gone.parquet", 1, 1)


def test_a_write_that_the_system_refuses_is_an_os_error(kit: Any, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # EFBIG, as ENOSPC: a short write
    try:
        with pytest.raises(OSError, match="File too large"):
            write_parquet(tmp_path / "a.parquet", kit.batch(1, 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
