"""Where listeners bind, and which binds collide."""

import pytest

from tidegate.config import Bind, parse_bind


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:61613", Bind("127.0.0.1", 61613)),
        ("[::1]:61613", Bind("::1", 61613)),
        ("[::1]", Bind("::1", 1883)),
        (":61613", Bind("", 61613)),
        ("*:61613", Bind("", 61613)),
        ("0.0.0.0:0", Bind("0.0.0.0", 0)),
        ("localhost", Bind("localhost", 1883)),
        ("broker-1.example.org:65535", Bind("broker-1.example.org", 65535)),
        ("", Bind("127.0.0.1", 1883)),
    ],
)
def test_a_bind_is_an_address_and_a_port(text: str, expected: Bind) -> None:
    assert parse_bind(text, 1883) == expected


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:http",
        "127.0.0.1:٣",
        "127.0.0.1:" + "9" * 5000,
        "::1:61613",
        "[::1:61613",
        "[::1]61613",
        "[127.0.0.1]:61613",
        "stomp://127.0.0.1:61613",
        "a b:61613",
        "-:1",
    ],
)
def test_what_is_no_bind_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|number from 0 to 65535"):
        parse_bind(text, 1883)


@pytest.mark.parametrize("text", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "LocalHost:1", ""])
def test_loopback_is_known(text: str) -> None:
    assert parse_bind(text, 1883).is_loopback


def test_a_mapped_loopback_address_is_loopback() -> None:
    assert parse_bind("[::ffff:127.0.0.1]:1", 0).is_loopback


@pytest.mark.parametrize("text", [":1", "0.0.0.0:1", "[::]:1", "192.0.2.1:1", "example.org:1"])
def test_everything_else_is_reachable_from_outside(text: str) -> None:
    assert not parse_bind(text, 1883).is_loopback


@pytest.mark.parametrize(
    ("one", "other", "overlaps"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("127.0.0.1:1", ":1", True),
        ("127.0.0.1:1", "0.0.0.0:1", True),
        ("[::1]:1", "[::]:1", True),
        ("[::1]:1", "0.0.0.0:1", False),
        ("127.0.0.1:1", "[::]:1", False),
        ("example.org:1", "0.0.0.0:1", False),
        ("LOCALHOST:1", "localhost:1", True),
        ("127.0.0.1:1", "127.0.0.2:1", False),
    ],
)
def test_binds_collide_in_both_directions(one: str, other: str, overlaps: bool) -> None:
    first, second = parse_bind(one, 0), parse_bind(other, 0)
    assert first.overlaps(second) is overlaps
    assert second.overlaps(first) is overlaps


@pytest.mark.parametrize("text", ["127.0.0.1:5", "[::1]:5", ":5"])
def test_a_bind_is_shown_as_it_is_written(text: str) -> None:
    assert str(parse_bind(text, 0)) == text
