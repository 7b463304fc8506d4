"""Database URLs: parts, defaults, and that a password is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.spi import ConfigError
from tidegate_store_jdbc.database.url import DEFAULT_URL, DatabaseUrl, parse_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", DatabaseUrl("sqlite", path="tidegate.db")),
        (DEFAULT_URL, DatabaseUrl("sqlite", path="tidegate.db")),
        ("sqlite:////var/lib/a%20b.db", DatabaseUrl("sqlite", path="/var/lib/a b.db")),
        ("postgresql://host/db", DatabaseUrl("postgresql", "host", 0, "db")),
        (
            "PostgreSQL://us%40er:p%3Aw@host:5433/db?sslmode=require",
            DatabaseUrl("postgresql", "host", 5433, "db", "us@er", "p:w", {"sslmode": "require"}),
        ),
        ("postgresql://[::1]:1/db", DatabaseUrl("postgresql", "::1", 1, "db")),
    ],
)
def test_a_url_is_taken_apart(text: str, expected: DatabaseUrl) -> None:
    assert parse_url(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "s3cret.db",
        "sqlite://s3cret",
        "postgresql://u:s3cret@host",
        "postgresql://u:s3cret@host:x/db",
        "p://u:s3cret@h/d?novalue",
    ],
)
def test_what_is_no_url_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(text)
    assert caught.value.key == "url"
    assert "s3cret" not in str(caught.value)


def test_a_password_is_in_no_text() -> None:
    url = parse_url("postgresql://user:s3cret@host:1/db")
    assert str(url) == "postgresql://user@host:1/db"
    assert "s3cret" not in repr(url)


@pytest.mark.parametrize("text", ["sqlite://data/own.db", "sqlite://:5432/own.db"])
def test_a_file_has_no_host(text: str) -> None:
    with pytest.raises(ConfigError, match="sqlite:///FILE"):
        parse_url(text).require_no_host()
    parse_url("sqlite:///data/own.db").require_no_host()


def test_files_are_below_the_data_directory_unless_absolute(tmp_path: Path) -> None:
    assert parse_url("sqlite:///a/b.db").file(tmp_path) == tmp_path / "a/b.db"
    assert parse_url("sqlite:////b.db").file(tmp_path) == Path("/b.db")


def test_unknown_options_are_refused() -> None:
    url = parse_url("sqlite:///x.db?mode=ro")
    url.require_options("mode")
    with pytest.raises(ConfigError, match="unknown option 'mode'; there are none"):
        url.require_options()
