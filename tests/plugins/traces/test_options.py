"""Options that are wrong are errors that say so; secrets are not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.spi import ConfigError, parse_options
from tidegate.spi.options import is_secret
from tidegate_traces._options import TracesOptions
from tidegate_traces._outlet import resource_of


@pytest.mark.parametrize(
    ("table", "key", "problem"),
    [
        ({"endpoint": "localhost:4318"}, "endpoint", "is no http or https URL"),
        ({"endpoint": "grpc://localhost:4317/v1/traces"}, "endpoint", "is no http or https URL"),
        ({"endpoint": "http://[::1/v1/traces"}, "endpoint", "is no http or https URL"),
        ({"endpoint": "http://host:99999/v1/traces"}, "endpoint", "is no http or https URL"),
        ({"endpoint": "http://host:4318"}, "endpoint", '"http://host:4318/v1/traces"'),
        ({"headers": ["a=b"]}, "headers", "number 1 is no header"),
        ({"headers": ["a: b", "c: d\ne: f"]}, "headers", "number 2 is no header"),
        ({"secret_headers": ["key"]}, "secret_headers", "number 1 is no header"),
        ({"certificate": "/no/such/file"}, "certificate", "is no file"),
        ({"compression": "zip"}, "compression", "zip"),
        ({"sample_ratio": 1.5}, "sample_ratio", "above the maximum"),
        ({"rate_max": 0}, "rate_max", "below the minimum"),
        ({"queue_max": 10}, "batch_max", "more than queue_max"),
        ({"ratio": 0.5}, "ratio", "did you mean 'sample_ratio'?"),
    ],
)
def test_a_wrong_option_is_named(table: dict[str, object], key: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_options(TracesOptions, table)
    assert raised.value.key == key
    assert problem in str(raised.value)


def test_the_error_of_a_secret_does_not_show_it() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_options(TracesOptions, {"secret_headers": ["hunter2"]})
    assert "hunter2" not in str(raised.value)
    assert is_secret("secret_headers")  # so check-config does not show it


def test_headers_of_both_kinds_are_sent(tmp_path: Path) -> None:
    table = {"headers": ["X-Team:  harbour "], "secret_headers": ["Authorization: Bearer a:b"]}
    options = parse_options(TracesOptions, table)
    assert options.sent_headers == {"X-Team": "harbour", "Authorization": "Bearer a:b"}


def test_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    found = resource_of(TracesOptions()).attributes
    assert found["service.name"] == "tidegate"
    assert found["deployment.environment.name"] == "test"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "of-the-environment")
    assert resource_of(TracesOptions()).attributes["service.name"] == "of-the-environment"
    named = TracesOptions(service_name="of-the-file")
    assert resource_of(named).attributes["service.name"] == "of-the-file"
