"""A log line: its fields, and what a client cannot do to it."""

import ast
import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate._logging import (
    FLOOD_LINES,
    FLOOD_WINDOW_S,
    JSON_NAMES,
    FloodFilter,
    JsonFormatter,
    KeyValueFormatter,
    LogFormat,
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


# --------------------------------------------------------------------------------------- JSON


def json_lines(stream: io.StringIO) -> list[dict[str, Any]]:
    text = stream.getvalue()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_a_json_line_has_the_fields_of_the_text_as_values(stream: io.StringIO) -> None:
    configure_logging(LogLevel.INFO, stream).change(LogLevel.INFO, LogFormat.JSON)
    logging.getLogger("tidegate.x").warning(
        "store=short free_bytes=%d share=%.1f who=%r: %s is full",
        1 << 40,
        0.25,
        'a "b"',
        "the disk",
        extra={"port": 61613, "why": None},
    )
    (line,) = json_lines(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("time"))
    assert line == {
        "level": "warning",
        "logger": "tidegate.x",
        "text": r'store=short free_bytes=1099511627776 share=0.2 who="a \"b\"": the disk is full',
        "store": "short",
        "free_bytes": 1 << 40,
        "share": 0.25,
        "who": 'a "b"',
        "port": 61613,
        "why": None,
    }


def test_a_json_time_is_the_record_s_to_the_microsecond() -> None:
    record = logging.LogRecord("n", logging.INFO, "", 0, "x", (), None)
    record.created = 1_700_000_000.123456
    assert json.loads(JsonFormatter().format(record))["time"] == "2023-11-14T22:13:20.123456Z"


@pytest.mark.parametrize("value", [*FORGING, "\udcff", "\x00", "ü漢"])
@pytest.mark.parametrize("conversion", ["%s", "%r"])
def test_a_value_cannot_forge_fields_of_a_json_line(
    stream: io.StringIO, value: str, conversion: str
) -> None:
    configure_logging(LogLevel.INFO, stream).change(LogLevel.INFO, LogFormat.JSON)
    log = logging.getLogger("tidegate.x")
    log.info(f"refused client={conversion} n=%d: %s", value, 7, value)  # noqa: G004
    log.info("of %s it is", value, extra={"client": value})
    assert len(stream.getvalue().split("\n")) == 3
    assert stream.getvalue().replace("\n", "").isprintable()
    first, second = json_lines(stream)
    own = {"time", "level", "logger", "text"}
    assert first.keys() == own | {"client", "n"}
    assert (first["client"], first["n"]) == (value, 7)
    assert second.keys() == own | {"client"}
    assert second["client"] == value


def test_what_a_library_writes_into_its_text_is_no_field(stream: io.StringIO) -> None:
    configure_logging(LogLevel.INFO, stream).change(LogLevel.INFO, LogFormat.JSON)
    logging.getLogger("library").warning("user=admin logged in")
    logging.getLogger("library").warning("user=admin peer=%s", "1.2.3.4")
    logging.getLogger("library").warning("%(user)s", {"user": "x"})
    fields = [line.keys() - {"time", "level", "logger", "text"} for line in json_lines(stream)]
    assert fields == [set(), {"peer"}, set()]


def test_a_value_of_several_arguments_is_one_field(stream: io.StringIO) -> None:
    configure_logging(LogLevel.INFO, stream).change(LogLevel.INFO, LogFormat.JSON)
    log = logging.getLogger("tidegate.x")
    log.info("100%% of rows=%d..%d after delay=%gs, bytes=%s.", 3, 9, 1.5, float("nan"))
    (line,) = json_lines(stream)
    assert {key: line[key] for key in ("rows", "delay", "bytes")} == {
        "rows": "3..9",
        "delay": "1.5s",
        "bytes": "nan",
    }
    assert line["text"] == "100% of rows=3..9 after delay=1.5s, bytes=nan."


def test_a_field_cannot_take_the_place_of_a_json_line_s_own(stream: io.StringIO) -> None:
    configure_logging(LogLevel.INFO, stream).change(LogLevel.INFO, LogFormat.JSON)
    logging.getLogger("tidegate.x").info("level=%s event=%s", "a", "b", extra={"time": 5})
    (line,) = json_lines(stream)
    assert (line["level"], line["level_"], line["event_"], line["time_"]) == ("info", "a", "b", 5)


def test_the_trace_of_a_json_line_is_one_field(stream: io.StringIO) -> None:
    configure_logging(LogLevel.INFO, stream).change(LogLevel.INFO, LogFormat.JSON)
    try:
        raise ValueError("a\nb\x1b[2J")
    except ValueError:
        logging.getLogger("tidegate.x").exception("failed client=%s", "c" * 10_000)
    (line,) = json_lines(stream)
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ValueError: a\nb\x1b[2J")
    assert line["client"].endswith("…(1808 more)")


def test_what_was_left_out_of_a_flood_is_a_field(stream: io.StringIO) -> None:
    configure_logging(LogLevel.INFO, stream).change(LogLevel.INFO, LogFormat.JSON)
    record = logging.LogRecord("tidegate.x", logging.INFO, "", 0, "refused peer=%s", ("p",), None)
    record.left_out = 50
    assert json.loads(JsonFormatter().format(record))["left_out"] == 50


def test_level_and_format_change_while_it_runs(stream: io.StringIO) -> None:
    log = configure_logging(LogLevel.WARNING, stream)
    logger = logging.getLogger("tidegate.x")
    logger.info("one")
    log.change(LogLevel.DEBUG, LogFormat.JSON)
    logger.debug("two")
    logging.getLogger("asyncio").debug("chatter")
    log.change(LogLevel.INFO, LogFormat.TEXT)
    logger.debug("three")
    logger.info("four")
    first, second = stream.getvalue().splitlines()
    assert json.loads(first)["text"] == "two"
    assert second.endswith(" tidegate.x four")


@pytest.mark.long
def test_no_line_of_ours_has_a_field_that_json_has_itself() -> None:
    rooms = [path for path in Path(__file__).parents[2].glob("*/**/tidegate*") if path.is_dir()]
    texts: list[str] = []
    for path in {file for room in rooms for file in room.rglob("*.py")}:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("debug", "info", "warning", "error", "exception")
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and isinstance(node.args[0].value, str)
            ):
                texts.append(node.args[0].value)
    assert len(texts) > 150
    for text in texts:
        assert not re.search(rf"(?:^|\s)({'|'.join(JSON_NAMES)})=", text), text
