"""Logging of the command: one line per record on stderr, named loggers, key=value fields.

A line is ``TIME LEVEL LOGGER TEXT key=value …``: the record's text, then whatever was passed in
``extra``. What a client chooses (its id, a destination's name, an error that quotes what it sent)
is an argument of the record, and cannot forge lines, fields or colours: a value of ``key=%s`` with a
space, a quote, an equals sign or a backslash is quoted, an argument in the middle of a sentence with
any of the last three is quoted, too, and everything that is not printable is escaped.
Lines of a traceback are indented: none of them can be taken for a record.

With ``log_format = "json"`` a line is one JSON object: ``time``, ``level``, ``logger``, ``event`` (an event's name:
:mod:`tidegate.spi.events`), ``text`` (as above), ``exception``, and each field under its own name, numbers as numbers.
Fields are parsed from the program's own text, never from what is put into it.
"""

from __future__ import annotations

import datetime
import enum
import functools
import json
import logging
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TextIO, TypeAlias, cast

from tidegate.spi.printable import printable, printable_json

#: Types of a JSON line's field.
Value: TypeAlias = str | int | float | None


class LogLevel(enum.Enum):
    """What ``--log-level`` and ``broker.log_level`` take."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(enum.Enum):
    """What ``broker.log_format`` takes."""

    TEXT = "text"
    JSON = "json"


#: Libraries whose DEBUG lines drown everything else; they begin at INFO.
_CHATTY: Final = ("asyncio", "py4j", "pyspark")

_STANDARD: Final = frozenset(
    {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName"}
)
#: Lines of one kind in one window: more of them say no more, and clients decide how many come.
FLOOD_LINES: Final = 200
FLOOD_WINDOW_S: Final = 10.0
_KINDS_MAX: Final = 1000
#: Characters of one value that are shown: a topic name may have 65,535 bytes.
VALUE_SHOWN_MAX: Final = 8192
#: A printf conversion; its groups: what is between ``%`` and the letter, and the letter.
_CONVERSION: Final = re.compile(r"%([^a-zA-Z%]*)[hlL]?([a-zA-Z%])")


class KeyValueFormatter(logging.Formatter):
    """Formats a record as described above; times are UTC with milliseconds."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        parts = [
            f"{moment}.{int(record.msecs):03d}Z",
            f"{record.levelname:<7}",
            record.name,
            text_of(record),
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


#: A JSON line's own names; a field with such a name gets ``_`` appended.
JSON_NAMES: Final = ("time", "level", "logger", "event", "text", "exception")
#: Where a record has the name of its event.
_EVENT: Final = "event"


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object; times are UTC with microseconds."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Value] = {
            "time": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        event = vars(record).get(_EVENT)
        if event is not None:
            line[_EVENT] = _value(event)
        line["text"] = text_of(record)
        fields = [*fields_of(record)]
        fields += [
            (key, _value(value))
            for key, value in vars(record).items()
            if key not in _STANDARD and key != _EVENT
        ]
        for key, value in fields:
            line[f"{key}_" if key in JSON_NAMES else key] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(line, ensure_ascii=False, separators=(",", ":")))


_FORMATTERS: Final = {LogFormat.TEXT: KeyValueFormatter, LogFormat.JSON: JsonFormatter}


class FloodFilter(logging.Filter):
    """Leaves out lines of a kind that comes too often, so that no client fills the disk with them.

    A kind is a logger and a text without its values; the next written line of that kind says how many
    were left out (``left_out=N``). At DEBUG, which is for looking closely, nothing is left out.

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
            if len(self._left_out) > _KINDS_MAX:  # texts made up each time
                self._left_out.clear()
        # Libraries write values into the text itself, which would make endless kinds.
        kind = (record.name, str(record.msg) if record.args else "")
        if self._written[kind] >= FLOOD_LINES:
            self._left_out[kind] += 1
            return False
        self._written[kind] += 1
        left_out = self._left_out.pop(kind, 0)
        if left_out:
            record.left_out = left_out
        return True


class Logging:
    """The log of a process: the one handler of the root logger.

    Replaces the root logger's handlers: made once, by the command, never by the library. Args: stream: default
    stderr.
    """

    def __init__(self, level: LogLevel, stream: TextIO | None = None) -> None:
        self._handler = logging.StreamHandler(stream or sys.stderr)
        self._handler.addFilter(FloodFilter())
        logging.basicConfig(handlers=[self._handler], force=True)
        self.change(level, LogFormat.TEXT)

    def change(self, level: LogLevel, log_format: LogFormat) -> None:
        """From now on write all records of *level* and above, each as *log_format* says."""
        self._handler.setFormatter(_FORMATTERS[log_format]())
        number = logging.getLevelNamesMapping()[level.name]
        logging.getLogger().setLevel(number)
        for name in _CHATTY:
            logging.getLogger(name).setLevel(max(number, logging.INFO))


def configure_logging(level: LogLevel, stream: TextIO | None = None) -> Logging:
    """Send all records of *level* and above to *stream*, default stderr. See :class:`Logging`."""
    return Logging(level, stream)


def text_of(record: logging.LogRecord) -> str:
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
    """Each conversion, and whether it is the value of a field."""
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
    # Not repr() of a string: it has its own quotes, and would be quoted twice.
    text = str(value) if kind == "s" or isinstance(value, str) else repr(value)
    return _quoted(text) if is_field or kind != "s" else _quoted(text, among=_FORGING)


_SEPARATING: Final = re.compile(r'[\s="\\]')
_FORGING: Final = re.compile(r'["=\\]')


def _quoted(value: object, *, among: re.Pattern[str] = _SEPARATING) -> str:
    text = _shortened(str(value))
    if among.search(text) is None and (text or among is _FORGING):
        return printable(text)
    return '"' + printable(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _shortened(text: str) -> str:
    if len(text) <= VALUE_SHOWN_MAX:
        return text
    return f"{text[:VALUE_SHOWN_MAX]}…({len(text) - VALUE_SHOWN_MAX} more)"


# ------------------------------------------------------------------------------ fields of JSON


@dataclass(frozen=True, slots=True)
class _Field:
    """One ``key=value`` of a record's text. Attributes: value: as the text has it; first, count: which of
    the record's arguments are in it."""

    key: str
    value: str
    first: int
    count: int

    @property
    def is_one(self) -> bool:
        """It is an argument, and nothing else."""
        return self.count == 1 and _CONVERSION.fullmatch(self.value) is not None


#: A field in a text: at its beginning or after a space, up to the next space.
_FIELD: Final = re.compile(r"(?:(?<=\s)|^)([A-Za-z_][A-Za-z0-9_.]*)=(\S+)")
#: Punctuation of the sentence, not part of the value.
_ENDS: Final = ".,:;)"


@functools.lru_cache(maxsize=1024)
def _fields_of(message: str) -> Sequence[_Field]:
    found: list[_Field] = []
    for match in _FIELD.finditer(message):
        value = match[2].rstrip(_ENDS)
        before = len(_pieces(message[: match.start(2)]))
        found.append(_Field(match[1], value, before, len(_pieces(value))))
    return found


def fields_of(record: logging.LogRecord) -> list[tuple[str, Value]]:
    """The fields of the record's text, in order. Libraries write values into the text itself, where their own and
    what a client chose cannot be told apart: of theirs only arguments count."""
    message, arguments = str(record.msg), record.args
    is_ours = record.name.partition(".")[0].startswith("tidegate")
    given = cast("tuple[object, ...]", arguments if isinstance(arguments, tuple) else ())
    if len(_pieces(message)) != len(given):
        return []
    fields: list[tuple[str, Value]] = []
    for field in _fields_of(message):
        own = given[field.first : field.first + field.count]
        if field.is_one:
            fields.append((field.key, _value(own[0])))
        elif own:
            fields.append((field.key, _value(field.value % own)))
        elif is_ours:
            fields.append((field.key, int(field.value) if field.value.isdecimal() else field.value))
    return fields


def _value(value: object) -> Value:
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has no others
    return _shortened(str(value))
