"""Options of a listener."""

import dataclasses
from pathlib import Path

import pytest

from tidegate.spi import ConfigError, option_info, parse_options
from tidegate_protocols.stomp import StompOptions
from tidegate_protocols.transport import TransportOptions

#: What is STOMP's own; tests/protocols/transport/test_options.py has the others.
FIELDS = [
    field
    for field in dataclasses.fields(StompOptions)
    if field.name not in TransportOptions.__dataclass_fields__
]


def test_the_options_of_transports_come_with_it():
    assert issubclass(StompOptions, TransportOptions)
    assert len(FIELDS) == len(dataclasses.fields(StompOptions)) - len(
        dataclasses.fields(TransportOptions)
    )


def test_defaults_are_finite_and_explained():
    for field in FIELDS:
        assert isinstance(field.default, int | float), field.name
        assert field.default > 0, field.name
        assert option_info(field).help, field.name


def test_every_option_is_documented():
    page = (Path(__file__).parents[3] / "docs" / "stomp.md").read_text()
    for field in FIELDS:
        assert f"`{field.name}`" in page, field.name


def test_units_are_read():
    options = parse_options(
        StompOptions,
        {"heart_beat_send_minimum": "250ms", "heart_beat_receive_minimum": 0, "body_max": "1mb"},
    )
    assert options.heart_beat_ms == (250, 0)
    assert options.limits.body_bytes == 1 << 20


def test_limits_carry_each_option():
    options = StompOptions(header_count_max=5, header_line_max=100, headers_max=300, body_max=7)
    limits = options.limits
    assert (limits.header_count, limits.header_line_bytes) == (5, 100)
    assert (limits.header_bytes, limits.body_bytes) == (300, 7)


@pytest.mark.parametrize(
    "table",
    [
        {"heart_beat_grace_factor": 1.5},
        {"connections_max": 0},
        {"connect_timeout": "0s"},
        {"headers_max": "10b"},
    ],
)
def test_values_that_would_harm_are_refused(table):
    with pytest.raises(ConfigError):
        parse_options(StompOptions, table)
