"""Key columns and the body as a text, as they are read from rows and staged."""

import asyncio
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate_sink_spark.staging import staging
from tidegate_sink_spark.staging.arrow import SCHEMA, build_batch, has_columns
from tidegate_sink_spark.staging.columns import find_columns
from tidegate_sink_spark.staging.dead import REASON
from tidegate_sink_spark.staging.files import list_staged
from tidegate_sink_spark.staging.further import Further, is_too_long
from tidegate_sink_spark.staging.staging import Staging, StagingLimits


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "RETRY_DELAY_MIN", 0.001)


COLUMNS = {
    "device": "string header:device",
    "order": "long json:$.order.id",
    "price": "decimal(18,2) json:$.price",
    "sent": "timestamp json:$.times[0]",
    "day": "date json:$['the day']",
    "ratio": "double json:$.ratio",
    "paid": "boolean header:paid",
}
DOCUMENT = {
    "order": {"id": 7},
    "price": 10.10,
    "times": ["2026-01-02T03:04:05Z"],
    "the day": "2026-01-02",
    "ratio": 0.5,
}
VALUES = {
    "device": "d1",
    "order": 7,
    "price": Decimal("10.10"),
    "sent": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
    "day": dt.date(2026, 1, 2),
    "ratio": 0.5,
    "paid": True,
}
HEADERS = (("device", "d1"), ("device", "d2"), ("paid", "true"))
NOTHING = dict.fromkeys(COLUMNS)


def read(rows: list[Any], further: Further) -> list[dict[str, Any]]:
    """The further columns of *rows*."""
    found = further.read([row.message for row in rows])
    batch = found.behind(build_batch(rows, "gw", "store-1")).to_pylist()
    names = [field.name for field in further.fields]
    return [{name: row[name] for name in names} for row in batch]


def test_values_come_from_headers_and_from_the_body(kit: Any) -> None:
    rows = [
        kit.acknowledged(1, body=json.dumps(DOCUMENT).encode(), headers=HEADERS),
        kit.acknowledged(2, body=b"{}", headers=()),
    ]
    assert read(rows, Further(find_columns(COLUMNS))) == [VALUES, NOTHING]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b'{"order": null, "times": [], "the day": null}',
        b'{"order": 5, "times": {"0": "x"}}',
    ],
)
def test_what_is_not_there_is_null_and_never_wrong(kit: Any, body: bytes) -> None:
    further = Further(find_columns(COLUMNS), stops=True)
    rows = [kit.acknowledged(1, body=body, headers=())]
    assert further.read([row.message for row in rows]).bad == {}
    assert read(rows, further) == [NOTHING]


#: Bodies that somebody sends to do harm, or in another encoding.
HOSTILE = {
    "no JSON": b"hello",
    "cut off": b'{"order": {"id": 7}',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "no UTF-8": b'{"order": {"id": "\xff"}}',
    "a lone surrogate": b'{"order": {"id": "\\ud800"}}',
    "a huge number": b'{"order": {"id": ' + b"9" * 100_000 + b"}}",
    "a huge exponent": b'{"order": {"id": 1e999999999999999999999}}',
    "no number": b'{"order": {"id": NaN}}',
    "another type": b'{"order": {"id": [7]}}',
    "too large": b'{"order": {"id": 9223372036854775808}}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_does_not_fit_is_null_or_a_bad_row(kit: Any, name: str) -> None:
    rows = [
        kit.acknowledged(1, body=b'{"order": {"id": 1}}'),
        kit.acknowledged(2, body=HOSTILE[name]),
        kit.acknowledged(3, body=b'{"order": {"id": 3}}'),
    ]
    columns = find_columns({"order": "long json:$.order.id", "text": "string json:$.t"})
    assert [row["order"] for row in read(rows, Further(columns))] == [1, None, 3]
    found = Further(columns, stops=True).read([row.message for row in rows])
    assert list(found.bad) == [1]
    assert "9" * 50 not in found.bad[1]
    assert found.without_bad().columns == [[1, 3], [None, None]]


def test_a_text_of_json_is_as_it_is_written(kit: Any) -> None:
    bodies = [
        b'{"v": "a"}',
        b'{"v": 1.10}',
        b'{"v": {"a": [1, 2.50]}}',
        b'{"v": true}',
        b'{"v": 7}',
    ]
    rows = [kit.acknowledged(n + 1, body=body) for n, body in enumerate(bodies)]
    found = read(rows, Further(find_columns({"v": "string json:$.v"})))
    assert [row["v"] for row in found] == ["a", "1.10", '{"a":[1,2.50]}', "true", "7"]


def test_a_lone_surrogate_in_a_header_does_not_hold_up_the_log(kit: Any) -> None:
    rows = [kit.acknowledged(1, headers=(("device", "\ud800"),))]
    further = Further(find_columns({"device": "string header:device"}), stops=True)
    assert read(rows, further) == [{"device": "\\ud800"}]


@pytest.mark.parametrize(
    ("option", "column", "texts"),
    [
        ("text", "body_text", ["{}", "größe", None, "", None, "1e999"]),
        ("json", "body_json", ["{}", None, None, None, None, "1e999"]),
    ],
)
def test_the_body_as_a_text_stands_beside_its_bytes(
    kit: Any, option: str, column: str, texts: list[str | None]
) -> None:
    bodies = [b"{}", "größe".encode(), b"\xff", b"", b'{"a": "\xff"}', b"1e999"]
    rows = [kit.acknowledged(n + 1, body=body) for n, body in enumerate(bodies)]
    further = Further((), option)
    assert [row[column] for row in read(rows, further)] == texts
    batch = further.read([row.message for row in rows]).behind(build_batch(rows, "gw", "store-1"))
    assert batch["body"].to_pylist() == bodies
    bad = Further((), option, stops=True).read([row.message for row in rows]).bad
    assert list(bad) == [n for n, text in enumerate(texts) if text is None and bodies[n]]


def test_a_variant_is_not_staged_but_checked(kit: Any) -> None:
    rows = [kit.acknowledged(1, body=b"{}"), kit.acknowledged(2, body=b"x")]
    further = Further((), "variant", stops=True)
    assert further.fields == ()
    assert further.sql == (("body_variant", "VARIANT"),)
    assert list(further.read([row.message for row in rows]).bad) == [1]


@pytest.mark.parametrize(
    ("name", "too_long"),
    [("x" * 200, False), ("x" * 250, True), ("ö" * 50, True), ("/" * 90, True), ("\ud800", False)],
)
def test_a_destination_that_cannot_be_a_directory_is_a_bad_row(
    kit: Any, name: str, too_long: bool
) -> None:
    assert is_too_long(f"queue://{name}") == too_long
    rows = [kit.acknowledged(1), kit.acknowledged(2, destination=f"queue://{name}")]
    assert Further().read([row.message for row in rows]).bad == {}
    found = Further(names_directories=True).read([row.message for row in rows]).bad
    assert list(found) == ([1] if too_long else [])


# ------------------------------------------------------------------------------------------- staging


async def stage(kit: Any, log: Any, directory: Path, further: Further, **limits: Any) -> Staging:
    """Stage all that *log* has."""
    bounds = StagingLimits(10, 1 << 20, 3600.0, 1 << 30, **limits)
    builder = kit.builder_of(directory, log, further=further)
    staged = Staging(log, directory, bounds, builder=builder, further=further)
    await staged.recover(0)
    staged.drain()
    try:
        await asyncio.wait_for(staged.run(), 60)
    finally:
        await staged.close()
    return staged


async def test_bad_rows_are_dead_letters_and_numbers_stay_dense(kit: Any, tmp_path: Path) -> None:
    def make(n: int) -> Any:
        body = b"{" if n in (4, 11, 12) or n > 20 else b'{"order": {"id": %d}}' % n
        return kit.acknowledged(n, body=body, headers=(("device", f"d{n}"),))

    columns = {"order": "long json:$.order.id", "device": "string header:device"}
    further = Further(find_columns(columns), "json", stops=True)
    await stage(kit, kit.MemoryLog(last=30, make=make), tmp_path, further)
    files = list_staged(tmp_path)
    assert [(file.lo, file.hi, file.rows, file.dead) for file in files] == [
        (1, 10, 9, 1),
        (11, 20, 8, 2),
        (21, 30, 0, 10),
    ]
    rows = kit.rows_of(file.path for file in files)
    assert [row["order"] for row in rows] == [row["ack_seq"] for row in rows]
    dead = kit.rows_of(file.dead_path for file in files)
    assert sorted(row["ack_seq"] for row in rows + dead) == list(range(1, 31))
    assert {row["body"] for row in dead} == {b"{"}
    assert [row["device"] for row in dead] == [f"d{row['ack_seq']}" for row in dead]
    assert {row["order"] for row in dead} == {row["body_json"] for row in dead} == {None}
    assert {dict(row["headers"])[REASON] for row in dead} == {
        "the row does not fit the table: the body is no JSON"
    }


async def test_a_sink_that_stops_at_bad_rows_waits_before_one(kit: Any, tmp_path: Path) -> None:
    log = kit.MemoryLog(last=5, make=lambda n: kit.acknowledged(n, body=b"x" if n == 3 else b"{}"))
    bounds = StagingLimits(10, 1 << 20, 3600.0, 1 << 30, stops_at_bad_row=True)
    further = Further((), "json", stops=True)
    builder = kit.builder_of(tmp_path, log, further=further)
    staged = Staging(log, tmp_path, bounds, builder=builder, further=further)
    await staged.recover(0)
    staged.drain()
    task = asyncio.create_task(staged.run())
    await kit.until(lambda: "row 3 cannot be written" in staged.problem)
    assert "the body is no JSON" in staged.problem
    assert list_staged(tmp_path) == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await staged.close()


async def test_files_of_another_configuration_are_staged_again(kit: Any, tmp_path: Path) -> None:
    """The store still has their rows. Else a column that got another type would hold up the table."""
    log = kit.MemoryLog(last=25, damaged={23})
    for spec, kind in (
        ("string header:n", pa.string()),
        ("long header:n", pa.int64()),
        ("long header:kind", pa.int64()),
    ):
        further = Further(find_columns({"n": spec}))
        await stage(kit, log, tmp_path, further)
        files = list_staged(tmp_path)
        assert sum(file.rows + file.dead for file in files) == files[-1].hi == 25
        for path in (*(file.path for file in files), *tmp_path.glob("dead-*")):
            assert pq.read_schema(path).field("n").type == kind
    assert list(tmp_path.glob("dead-*")) != []
    await stage(kit, log, tmp_path, Further())
    assert all(has_columns(file.path, ()) for file in list_staged(tmp_path))


async def test_files_of_the_same_configuration_are_kept(kit: Any, tmp_path: Path) -> None:
    log = kit.MemoryLog(last=25, damaged={3})
    further = Further(find_columns(COLUMNS), "text")
    await stage(kit, log, tmp_path, further)
    before = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    await stage(kit, log, tmp_path, Further(find_columns(COLUMNS), "text"))
    assert {path: path.stat().st_ino for path in tmp_path.iterdir()} == before


def test_a_file_says_which_version_of_the_columns_it_has(kit: Any, tmp_path: Path) -> None:
    path = kit.stage(tmp_path, 1, 5)
    assert pq.read_metadata(path).metadata[b"tidegate.schema_version"] == b"1"
    assert len(SCHEMA) == len(pq.read_schema(path))
