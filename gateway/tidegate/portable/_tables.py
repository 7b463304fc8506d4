"""The Parquet files of an export: their columns, writing and reading them piece by piece.

A row group is closed at ROW_GROUP_BYTES of bodies or ROW_GROUP_ROWS rows, whichever comes first, so
neither side ever holds more than that and one message. Pages have checksums, checked on reading.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from tidegate.portable._columns import arrow_fields
from tidegate.spi import (
    MESSAGE_OVERHEAD_BYTES,
    AcknowledgedMessage,
    Branch,
    ConfigError,
    DuplicateId,
    InflightRecord,
    Message,
    RecoveredDestination,
    Session,
    StoreIOError,
    Subscription,
)

pa: Final[Any] = importlib.import_module("pyarrow")
pq: Final[Any] = importlib.import_module("pyarrow.parquet")

ROW_GROUP_BYTES: Final = 8 << 20
ROW_GROUP_ROWS: Final = 10_000

DESTINATIONS: Final = "destinations"
SUBSCRIPTIONS: Final = "subscriptions"
SESSIONS: Final = "sessions"
INFLIGHT: Final = "inflight"
RETAINED: Final = "retained"
MESSAGES: Final = "messages"
ACKNOWLEDGED: Final = "acknowledged"
BRANCHES: Final = "branches"
DUPLICATE_IDS: Final = "duplicate_ids"

_PENDING: Final = pa.list_(
    pa.struct([pa.field("pending_list", pa.uint64()), pa.field("delivery_count", pa.int64())])
)

SCHEMAS: Final[Mapping[str, Any]] = {
    DESTINATIONS: pa.schema(arrow_fields(RecoveredDestination)),
    SUBSCRIPTIONS: pa.schema(arrow_fields(Subscription)),
    SESSIONS: pa.schema(arrow_fields(Session)),
    INFLIGHT: pa.schema(arrow_fields(InflightRecord)),
    RETAINED: pa.schema(arrow_fields(Message)),
    BRANCHES: pa.schema(arrow_fields(Branch)),
    DUPLICATE_IDS: pa.schema(arrow_fields(DuplicateId)),
    MESSAGES: pa.schema(
        [
            pa.field("sequence", pa.uint64()),
            pa.field("pending", _PENDING),
            pa.field("acknowledged", pa.list_(pa.uint64())),
            *arrow_fields(Message),
        ]
    ),
    ACKNOWLEDGED: pa.schema(
        [one for one in arrow_fields(AcknowledgedMessage) if one.name != "message"]
    ),
}


def table_path(directory: Path, table: str) -> Path:
    """Where *table* is."""
    return directory / f"{table}.parquet"


class TableWriter:
    """Writes one Parquet file. Attributes: rows: so far. Use as a context manager: the end is written last.

    Raises: OSError from every method.
    """

    def __init__(self, path: Path, schema: Any, *, group_bytes: int = ROW_GROUP_BYTES) -> None:
        self.rows = 0
        self._schema = schema
        self._group_bytes = group_bytes
        self._waiting: list[dict[str, Any]] = []
        self._waiting_bytes = 0
        self._writer = pq.ParquetWriter(
            str(path), schema, compression="zstd", write_page_checksum=True
        )

    def add(self, row: dict[str, Any]) -> None:
        """One more row."""
        self._waiting.append(row)
        self.rows += 1
        self._waiting_bytes += len(row.get("body") or b"") + MESSAGE_OVERHEAD_BYTES
        if self._waiting_bytes >= self._group_bytes or len(self._waiting) >= ROW_GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Close the row group."""
        if self._waiting:
            batch = pa.RecordBatch.from_pylist(self._waiting, schema=self._schema)
            self._waiting, self._waiting_bytes = [], 0
            self._writer.write_batch(batch)

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, problem: object, *_rest: object) -> None:
        if problem is None:
            self.flush()
        self._writer.close()


def read_table(path: Path, schema: Any) -> Iterator[dict[str, Any]]:
    """The rows of one file, a row group at a time; columns of *schema* may be missing.

    Raises: StoreIOError for a file that is damaged, missing or not Parquet; ConfigError when it has
        columns of a newer program.
    """
    try:
        file = pq.ParquetFile(str(path), page_checksum_verification=True, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from error
    with file:
        unknown = set(file.schema_arrow.names) - set(schema.names)
        if unknown:
            raise ConfigError(
                f"{path} has columns that this version does not know and would lose: "
                f"{', '.join(sorted(unknown))}; import it with a newer tidegate"
            )
        wanted = pa.schema([schema.field(name) for name in file.schema_arrow.names])
        for group in range(file.num_row_groups):
            try:
                batches = file.read_row_group(group).cast(wanted).to_batches(ROW_GROUP_ROWS)
            except (OSError, pa.ArrowException, ValueError) as error:
                raise _damaged(path, error) from error
            for batch in batches:
                yield from cast("list[dict[str, Any]]", batch.to_pylist())


def _damaged(path: Path, error: BaseException) -> StoreIOError:
    text = " ".join(str(error).split())
    return StoreIOError(
        f"{path}: the export is damaged or incomplete: {text}; copy it again, or export again"
    )
