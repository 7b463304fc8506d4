"""Logging of the command: one line a record on stderr, named loggers, key=value fields.

A line is ``TIME LEVEL LOGGER TEXT key=value …``: the record's text, then whatever was passed in
``extra``. What a client chooses (its id, a name of a destination, an error that quotes what it sent)
comes in as an argument of the record, and cannot write lines, fields or colours of its own: a value
of ``key=%s`` with a space, a quote, an equals sign or a backslash stands in quotes, an argument in the
middle of a sentence with any of the last three does, and everything that is not printable is escaped.
Lines of a traceback are indented: none of them can be taken for a record.
"""

from __future__ import annotations

import enum
import functools
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, TextIO, cast

from tidegate.spi.printable import printable


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
#: Lines of one kind in one window: more tell nobody more, and a client decides how many there are.
FLOOD_LINES: Final = 200
FLOOD_WINDOW_S: Final = 10.0
_KINDS_MAX: Final = 1000
#: Characters of one value that are shown: a topic name may have 65,535 bytes.
VALUE_SHOWN_MAX: Final = 8192
#: A printf conversion; its groups: what stands between ``%`` and the letter, and the letter.
_CONVERSION: Final = re.compile(r"%([^a-zA-Z%]*)[hlL]?([a-zA-Z%])")


class KeyValueFormatter(logging.Formatter):
    """Formats a record as described above; times are UTC with milliseconds."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        parts = [
            f"{moment}.{int(record.msecs):03d}Z",
            f"{record.levelname:<7}",
            record.name,
            _text(record),
        ]
        parts.extend(
            f"{key}={_quoted(value)}" for key, value in vars(record).items() if key not in _STANDARD
        )
        line = " ".join(parts)
        if record.exc_info:
            line += "".join(
                f"\n  {printable(text)}"
                for text in self.formatException(record.exc_info).split("\n")
            )
        return line


class FloodFilter(logging.Filter):
    """Leaves out lines of a kind that comes too often, so that no client fills the disk with them.

    A kind is a logger and a text without its values; what was left out of it stands in the next line of
    that kind that is written (``left_out=N``). DEBUG is for looking closely: there nothing is.

    Args: clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._begun = 0.0
        self._written: Counter[tuple[str, str]] = Counter()
        self._left_out: Counter[tuple[str, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether *record* is written."""
        if record.levelno < logging.INFO:
            return True
        now = self._clock()
        if now - self._begun >= FLOOD_WINDOW_S:
            self._begun = now
            self._written.clear()
            if len(self._left_out) > _KINDS_MAX:  # texts that are made up each time
                self._left_out.clear()
        # Libraries write values into the text itself: those would be kinds without end.
        kind = (record.name, str(record.msg) if record.args else "")
        if self._written[kind] >= FLOOD_LINES:
            self._left_out[kind] += 1
            return False
        self._written[kind] += 1
        left_out = self._left_out.pop(kind, 0)
        if left_out:
            record.left_out = left_out
        return True


def configure_logging(level: LogLevel, stream: TextIO | None = None) -> None:
    """Send all records of *level* and above to *stream*, default stderr.

    Replaces the root logger's handlers: called once by the command, never by the library.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    handler.addFilter(FloodFilter())
    number = logging.getLevelNamesMapping()[level.name]
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(number, logging.INFO))


def _text(record: logging.LogRecord) -> str:
    """The record's message with every argument made safe, see the module's docstring."""
    message, arguments = str(record.msg), record.args
    if not arguments:
        return printable(message)
    if isinstance(arguments, tuple):
        pieces = _pieces(message)
        if len(pieces) == len(arguments):
            safe = tuple(
                _safe(value, *piece) for value, piece in zip(arguments, pieces, strict=True)
            )
            return printable(_as_strings(message) % safe)
    try:
        return _quoted(record.getMessage())  # a mapping, or a width among the arguments
    except (TypeError, ValueError, KeyError):
        return _quoted(f"{message} {arguments}")


@functools.lru_cache(maxsize=1024)
def _pieces(message: str) -> Sequence[tuple[str, bool]]:
    """Of each conversion: itself, and whether it is the value of a field."""
    return tuple(
        (found.group(), message.endswith("=", 0, found.start()))
        for found in _CONVERSION.finditer(message)
        if found.group(2) != "%"
    )


@functools.lru_cache(maxsize=1024)
def _as_strings(message: str) -> str:
    return _CONVERSION.sub(lambda found: "%%" if found.group(2) == "%" else "%s", message)


def _safe(value: object, conversion: str, is_field: bool) -> str:
    kind = conversion[-1]
    if kind not in "sra":
        return conversion % (cast("float", value),)
    # Not repr() of a string: it has quotes of its own, and would be quoted twice.
    text = str(value) if kind == "s" or isinstance(value, str) else repr(value)
    return _quoted(text) if is_field or kind != "s" else _quoted(text, among=_FORGING)


_SEPARATING: Final = re.compile(r'[\s="\\]')
_FORGING: Final = re.compile(r'["=\\]')


def _quoted(value: object, *, among: re.Pattern[str] = _SEPARATING) -> str:
    text = str(value)
    if len(text) > VALUE_SHOWN_MAX:
        text = f"{text[:VALUE_SHOWN_MAX]}…({len(text) - VALUE_SHOWN_MAX} more)"
    if among.search(text) is None and (text or among is _FORGING):
        return printable(text)
    return '"' + printable(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
