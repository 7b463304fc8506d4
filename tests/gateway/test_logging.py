"""A log line: its fields, and what a client cannot do to it."""

import io
import logging
import re
import sys
from collections.abc import Iterator

import pytest

from tidegate._logging import KeyValueFormatter, LogLevel, configure_logging


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the root logger writes meanwhile; afterwards it is as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    for handler in handlers:
        root.removeHandler(handler)  # pytest's own; `force` would close them
    chatty = {name: logging.getLogger(name).level for name in ("asyncio", "py4j", "pyspark")}
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, old in chatty.items():
        logging.getLogger(name).setLevel(old)


def test_a_line_has_time_level_logger_text_and_fields(stream: io.StringIO) -> None:
    configure_logging(LogLevel.INFO, stream)
    logging.getLogger("tidegate.x").info(
        "listener=%s up", "stomp", extra={"port": 61613, "why": "because it", "empty": ""}
    )
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    tidegate\.x listener=stomp up "
        r'port=61613 why="because it" empty=""\n',
        stream.getvalue(),
    )


def test_a_client_cannot_write_lines_of_its_own(stream: io.StringIO) -> None:
    configure_logging(LogLevel.INFO, stream)
    evil = 'a\nb\r\x1b[31m\u2028\x85"c"'
    logging.getLogger("tidegate.x").info("client=%s", evil, extra={"client": evil})
    assert stream.getvalue().count("\n") == 1
    assert r"client=a\nb\r\x1b[31m\u2028\x85" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_records_below_the_level_are_not_written(stream: io.StringIO) -> None:
    configure_logging(LogLevel.WARNING, stream)
    logging.getLogger("tidegate.x").info("quiet")
    logging.getLogger("tidegate_cursors").warning("loud")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


def test_debug_does_not_wake_chatty_libraries(stream: io.StringIO) -> None:
    configure_logging(LogLevel.DEBUG, stream)
    logging.getLogger("py4j").debug("chatter")
    logging.getLogger("tidegate.x").debug("detail")
    assert "chatter" not in stream.getvalue()
    assert "detail" in stream.getvalue()


def test_an_exception_is_written_with_its_trace() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, "", 0, "bad", (), sys.exc_info())
    text = KeyValueFormatter().format(record)
    assert "Traceback" in text
    assert text.endswith("ValueError: why")
