"""A log line: its fields, and what a client cannot do to it."""

import io
import logging
import re
import sys
from collections.abc import Iterator

import pytest

from tidegate._logging import (
    FLOOD_LINES,
    FLOOD_WINDOW_S,
    FloodFilter,
    KeyValueFormatter,
    LogLevel,
    configure_logging,
)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the root logger writes meanwhile; afterwards it is as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    for handler in handlers:
        root.removeHandler(handler)  # pytest's own; `force` would close them
    chatty = {name: logging.getLogger(name).level for name in ("asyncio", "py4j", "pyspark")}
    logging.getLogger("asyncio").disabled = True  # it tells of other tests' tasks, at any time
    yield io.StringIO()
    logging.getLogger("asyncio").disabled = False
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
    assert stream.getvalue().count(r'client="a\nb\r\x1b[31m\u2028\x85\"c\""') == 2
    assert "\x1b" not in stream.getvalue()


FORGING = [
    "x level=ERROR principal=admin",
    'x" level="y',
    "x\\" + '" principal=admin "',
    "x\n2026-01-01T00:00:00.000Z INFO    tidegate.access principal=admin allowed",
    "x\u2028y",
    "x\x1b]0;owned\x07",
    "x\u202eadmin",
    "x\tprincipal=admin",
    "x\\",
]


def fields(line: str) -> dict[str, str]:
    """The fields of a line, as a reader of the log takes it apart."""
    found: dict[str, str] = {}
    for key, quoted, plain in re.findall(r'(?:(\w+)=)?(?:"((?:[^"\\]|\\.)*)"|([^\s"]\S*))', line):
        if key:
            found[key] = quoted or plain
    return found


@pytest.mark.parametrize("value", FORGING)
@pytest.mark.parametrize("conversion", ["%s", "%r", "%.200s"])
def test_a_value_cannot_forge_fields_or_lines(
    stream: io.StringIO, value: str, conversion: str
) -> None:
    configure_logging(LogLevel.INFO, stream)
    log = logging.getLogger("tidegate.x")
    log.info(f"refused client={conversion} peer=%s n=%d", value, "1.2.3.4:5", 7)  # noqa: G004
    log.info("refused", extra={"client": value, "peer": "1.2.3.4:5", "n": 7})
    lines = stream.getvalue().split("\n")
    assert lines.pop() == ""
    assert [sorted(fields(line)) for line in lines] == [["client", "n", "peer"]] * 2
    assert all(line.isprintable() for line in lines)


def test_the_library_s_formatter_lets_it_forge() -> None:
    """The control: the same value without the defence."""
    plain = logging.Formatter("%(message)s")
    record = logging.LogRecord("n", logging.INFO, "", 0, "client=%s", (FORGING[0],), None)
    assert sorted(fields(plain.format(record))) == ["client", "level", "principal"]
    record.args = (FORGING[3],)
    assert len(plain.format(record).splitlines()) == 2


@pytest.mark.parametrize("value", FORGING)
def test_nor_can_an_argument_in_a_sentence(stream: io.StringIO, value: str) -> None:
    configure_logging(LogLevel.INFO, stream)
    logging.getLogger("tidegate.x").warning("of %s n=%d: it went", value, 7)
    (line, end) = stream.getvalue().split("\n")
    assert end == ""
    assert list(fields(line)) == ["n"]
    assert line.isprintable()


def test_a_sentence_stays_as_it_is(stream: io.StringIO) -> None:
    configure_logging(LogLevel.INFO, stream)
    logging.getLogger("tidegate.x").info("100%% of %s, %5.1f and %05d", "the disk is gone", 1.25, 3)
    assert stream.getvalue().endswith(" 100% of the disk is gone,   1.2 and 00003\n")


def test_a_long_value_is_cut(stream: io.StringIO) -> None:
    configure_logging(LogLevel.INFO, stream)
    logging.getLogger("tidegate.x").info("topic=%s", "x" * 65_535)
    assert len(stream.getvalue()) < 9000
    assert "(57343 more)" in stream.getvalue()


def test_a_trace_cannot_be_taken_for_a_record(stream: io.StringIO) -> None:
    configure_logging(LogLevel.INFO, stream)
    try:
        raise ValueError("a\n2026-01-01T00:00:00.000Z INFO    tidegate.access admin\x1b[2J")
    except ValueError:
        logging.getLogger("tidegate.x").exception("failed client=%s", "c")
    first, *rest = stream.getvalue().rstrip("\n").split("\n")
    assert "failed client=c" in first
    assert rest
    assert all(line.startswith("  ") and line.isprintable() for line in rest)


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


def test_a_flood_of_one_kind_of_line_is_cut_and_counted(stream: io.StringIO) -> None:
    now = 100.0
    handler = logging.StreamHandler(stream)
    handler.setFormatter(KeyValueFormatter())
    handler.addFilter(FloodFilter(lambda: now))
    log = logging.getLogger("tidegate.flood")
    log.propagate = False
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        for number in range(FLOOD_LINES + 50):
            log.warning("refused peer=%s", number)
            log.debug("detail n=%d", number)
        log.warning("another kind n=%d", 1)
        now += FLOOD_WINDOW_S
        log.warning("refused peer=%s", "x")
        log.warning("refused peer=%s", "y")
    finally:
        log.removeHandler(handler)
        log.propagate = True
    lines = stream.getvalue().splitlines()
    assert sum("refused" in line for line in lines) == FLOOD_LINES + 2
    assert sum("detail" in line for line in lines) == FLOOD_LINES + 50
    assert any("another kind" in line for line in lines)
    assert lines[-2].endswith("refused peer=x left_out=50")
    assert lines[-1].endswith("refused peer=y")
