"""Logging of the command: one line a record on stderr, named loggers, key=value fields.

A line is ``TIME LEVEL LOGGER TEXT key=value …``: the record's text, then whatever was passed in
``extra``. Control characters are escaped, so that no client can write lines of its own into the
log by its choice of a name.
"""

from __future__ import annotations

import enum
import logging
import sys
import time
from typing import Final, TextIO


class LogLevel(enum.Enum):
    """What ``--log-level`` takes."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


#: Libraries whose DEBUG lines drown everything else; they begin at INFO.
_CHATTY: Final = ("asyncio", "py4j", "pyspark")

_STANDARD: Final = frozenset(
    {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName"}
)
_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    0x0A: "\\n",
    0x0D: "\\r",
    0x09: "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


class KeyValueFormatter(logging.Formatter):
    """Formats a record as described above; times are UTC with milliseconds."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        parts = [
            f"{moment}.{int(record.msecs):03d}Z",
            f"{record.levelname:<7}",
            record.name,
            record.getMessage().translate(_ESCAPES),
        ]
        parts.extend(
            f"{key}={_quoted(value)}" for key, value in vars(record).items() if key not in _STANDARD
        )
        line = " ".join(parts)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def configure_logging(level: LogLevel, stream: TextIO | None = None) -> None:
    """Send all records of *level* and above to *stream*, default stderr.

    Replaces the root logger's handlers: called once by the command, never by the library.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    number = logging.getLevelNamesMapping()[level.name]
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(number, logging.INFO))


def _quoted(value: object) -> str:
    text = str(value).translate(_ESCAPES)
    if text and " " not in text and '"' not in text and "=" not in text:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
