"""The lines between sink and job."""

from collections.abc import Callable

import pytest

from tidegate_sink_spark._protocol import (
    Command,
    Failed,
    Gap,
    JobConfig,
    Mark,
    Ready,
    Report,
    Stopped,
    Unreadable,
    decode_command,
    decode_config,
    decode_report,
    encode_line,
)

CONFIG = JobConfig(
    gateway_name="gw",
    store_id="s",
    staging_directory="/s",
    table="/t",
    layout="clustered",
    commit_interval=5.0,
    floor=3,
    spark_conf={"spark.master": "local[1]"},
)


@pytest.mark.parametrize(
    "report",
    [
        Mark(7, 3),
        Mark(7, 3, 2, 1, 0.5),
        Gap(3, 9),
        Unreadable("n", "p"),
        Failed("a\nb"),
        Ready(7),
        Stopped(7),
    ],
)
def test_a_report_is_one_line_and_comes_back(report: Report) -> None:
    line = encode_line(report)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_report(line) == report


def test_config_and_commands_come_back() -> None:
    assert decode_config(encode_line(CONFIG)) == CONFIG
    for command in Command:
        assert decode_command(encode_line(command)) is command


@pytest.mark.parametrize("line", [b"", b"Ivy says hello\n", b"{}\n", b'{"type":"other"}\n', b"7\n"])
@pytest.mark.parametrize("decode", [decode_report, decode_config, decode_command])
def test_anything_else_is_a_value_error(line: bytes, decode: Callable[[bytes], object]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - msgspec says what is wrong in its own words
        decode(line)
