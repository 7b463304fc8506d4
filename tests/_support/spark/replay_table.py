"""Tables with rows as the sink writes them, for tests that bring them back."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegate.spi import AcknowledgedMessage, Message, Outcome
from tidegate_sink_spark.staging import arrow

pa: Any = importlib.import_module("pyarrow")

#: 2023-11-14 22:13:20 UTC.
START_US = 1_700_000_000_000_000
SECOND = 1_000_000


def row(number: int, destination: str = "queue://a", **more: Any) -> AcknowledgedMessage:
    """Row *number*: of message *sequence* (else the same number), acknowledged at second *number*."""
    fields: dict[str, Any] = {
        "ack_sequence": number,
        "sequence": more.pop("sequence", number),
        "pending_list": 1,
        "delivered_at": START_US + number * SECOND,
        "acked_at": START_US + number * SECOND,
        "client_id": "consumer",
        "subscription": more.pop("subscription", "s"),
        "protocol": "stomp",
        "outcome": more.pop("outcome", Outcome.ACKNOWLEDGED),
    }
    message = {"headers": (("n", str(number)),), "received_at": START_US, "protocol": "stomp"}
    body = more.pop("body", str(number).encode())
    return AcknowledgedMessage(message=Message(destination, body, **{**message, **more}), **fields)


def write_delta(
    directory: Path, rows: Sequence[AcknowledgedMessage], *, gateway: str = "g", epoch: str = "e"
) -> None:
    """Append *rows* to the Delta table in *directory*."""
    deltalake: Any = importlib.import_module("deltalake")
    batches = [
        arrow.build_batch(rows[first : first + 1000], gateway, epoch)
        for first in range(0, len(rows), 1000)
    ]
    deltalake.write_deltalake(str(directory), pa.Table.from_batches(batches), mode="append")


def write_parquet(directory: Path, rows: Sequence[AcknowledgedMessage]) -> None:
    """The same as a plain directory of Parquet files."""
    directory.mkdir(parents=True, exist_ok=True)
    arrow.write_parquet(directory / "part-0.parquet", [arrow.build_batch(rows, "g", "e")])
