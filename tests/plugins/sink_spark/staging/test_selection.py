"""Which destinations a sink takes."""

from typing import Any

import pytest

from tidegate.spi import ConfigError
from tidegate_sink_spark.staging import selection
from tidegate_sink_spark.staging.selection import Selection


@pytest.mark.parametrize(
    ("include", "exclude", "taken", "left"),
    [
        ((), (), ["queue://a", "topic://b.c"], []),
        (("orders.>",), (), ["queue://orders.eu", "topic://orders"], ["queue://order"]),
        (("queue://orders.*",), (), ["queue://orders.eu"], ["topic://orders.eu", "queue://orders"]),
        ((), ("topic://>",), ["queue://a.b"], ["topic://a.b"]),
        (("a.>", "queue://b"), ("a.secret.>",), ["topic://a.b", "queue://b"], ["queue://a.secret"]),
    ],
)
def test_patterns_say_what_is_taken(
    include: tuple[str, ...], exclude: tuple[str, ...], taken: list[str], left: list[str]
) -> None:
    chosen = Selection(include, exclude)
    assert [name for name in taken + left if chosen.takes(name)] == taken
    assert [name for name in taken + left if chosen.takes(name)] == taken, "and again, remembered"
    assert chosen.takes_all == (not include and not exclude)


def test_only_so_many_destinations_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "REMEMBERED_MAX", 3)
    chosen = Selection(("a.*",))
    for number in range(20):
        assert chosen.takes(f"queue://a.{number}")
        assert len(chosen._known) <= 3


@pytest.mark.parametrize(
    ("options", "key", "text"),
    [
        ({"include": ("quue://a",)}, "include", "neither with queue:// nor topic://"),
        ({"include": ("a.b>",)}, "include", "whole level"),
        ({"exclude": ("",)}, "exclude", "not be empty"),
        ({"include": ("a", "b"), "exclude": ("b", "a")}, "exclude", "take nothing"),
    ],
)
def test_patterns_that_cannot_be_are_errors(options: dict[str, Any], key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        Selection(**options)
    assert caught.value.key == key
