"""From rows of the table to messages: the opposite of ``staging/arrow.py``.

What a row says about a message is restored, with these differences:

* it is not retained, and its producer is the user who replays;
* an expiry in the past is left out, so that nothing expires at once; one in the future stays;
* headers say where it comes from (:data:`PREFIX`); those of an earlier replay are replaced.
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.spi.replay import ReplayedMessage

pa: Final[Any] = importlib.import_module("pyarrow")

#: Prefix of the headers that a replayed message has besides its own.
PREFIX: Final = "replayed-"
#: The table's name; the row's number in its acknowledged log; the replay's id.
FROM: Final = "replayed-from"
ACK_SEQ: Final = "replayed-ack-seq"
BY: Final = "replayed-by"
#: Message id, destination, and time (ISO 8601, UTC) of the original; when it was to expire, if that is past.
MESSAGE_ID: Final = "replayed-message-id"
DESTINATION: Final = "replayed-destination"
TIME: Final = "replayed-time"
EXPIRES: Final = "replayed-expires"

_BASE64: Final = "base64:"
_timestamp: Final[Any] = pa.timestamp("us")


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes messages.

    Attributes: table: its name, for the header; replay: id; destination: "" for each row's own.
    """

    table: str
    replay: str
    destination: str = ""

    def make(self, log: int, rows: Any, now: int) -> list[ReplayedMessage]:
        """The messages of *rows* (``pyarrow.Table``) of log number *log*.

        Args: now: microseconds since the epoch.
        """
        column = _Columns(rows).values
        destinations = column("destination")
        made: list[ReplayedMessage] = []
        for (
            ack_seq,
            message_id,
            destination,
            headers,
            repeated,
            body,
            content_type,
            received,
            protocol,
            correlation,
            reply_to,
            priority,
            persistent,
            qos,
            expires,
            expires_text,
            original_name,
            payload_format,
        ) in zip(
            column("ack_seq"),
            column("message_id"),
            destinations,
            column("headers"),
            column("repeated_headers"),
            column("body"),
            column("content_type"),
            column("received_at", pa.string()),
            column("producer_protocol"),
            column("correlation_id"),
            column("reply_to"),
            column("priority"),
            column("persistent"),
            column("qos"),
            column("expires_at", pa.int64()),
            column("expires_at", pa.string()),
            column("destination_as_sent"),
            column("payload_format"),
            strict=True,
        ):
            own: list[tuple[str, str]] = (
                [(pair["name"], pair["value"]) for pair in repeated] if repeated else headers or []
            )
            kept = [pair for pair in own if not pair[0].startswith(PREFIX)] if own else own
            kept += [
                (FROM, self.table),
                (BY, self.replay),
                (ACK_SEQ, str(ack_seq)),
                (MESSAGE_ID, message_id or ""),
                (DESTINATION, destination),
            ]
            if received:
                kept.append((TIME, _iso(received)))
            if expires and expires <= now:
                kept.append((EXPIRES, _iso(expires_text)))
                expires = 0
            if reply_to and ("reply-to", reply_to) in own:
                reply_to = ""  # a name that only the client understands, carried as a header
            made.append(
                ReplayedMessage(
                    f"{log}:{ack_seq}",
                    self.destination or destination,
                    body.encode() if isinstance(body, str) else body,
                    tuple(kept),
                    expires or 0,
                    4 if priority is None else priority,
                    persistent is not False,
                    2 if qos is None else qos,
                    content_type,
                    None if correlation is None else correlation_data(correlation),
                    reply_to or "",
                    protocol or "",
                    "" if self.destination else original_name or "",
                    payload_format,
                )
            )
        return made


@dataclass(frozen=True, slots=True)
class _Columns:
    rows: Any

    def values(self, name: str, kind: Any = None) -> Sequence[Any]:
        """The values of a column, times as text or microseconds; None where the table has no such column."""
        if name not in self.rows.column_names:
            return [None] * self.rows.num_rows
        column = self.rows[name]
        if kind is not None:
            column = column.cast(_timestamp).cast(kind)
        found: list[Any] = column.to_pylist()
        return found


def correlation_data(text: str) -> bytes:
    """The bytes that ``staging/arrow.py`` wrote as *text*."""
    if text.startswith(_BASE64):
        try:
            return base64.b64decode(text[len(_BASE64) :], validate=True)
        except (binascii.Error, ValueError):
            pass
    return text.encode()


def _iso(text: str) -> str:
    """Arrow's spelling of a time (``2026-01-31 12:00:00.000001``) in ISO 8601, UTC."""
    return f"{text[:10]}T{text[11:]}Z"
