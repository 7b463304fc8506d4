"""Which destination there is which here."""

from __future__ import annotations

import pytest

from tidegate_bridge._names import Names, bare, is_queue_like, overlap


@pytest.mark.parametrize(
    ("remote", "local", "is_mqtt", "there", "here"),
    [
        ("/queue/a", "queue://b", False, "/queue/a", "queue://b"),
        ("/topic/a.>", "topic://b.>", False, "/topic/a.x.y", "topic://b.x.y"),
        ("/topic/a.#", "topic://b.>", False, "/topic/a.x", "topic://b.x"),
        ("a/#", "topic://b.>", True, "a/x/y.z", "topic://b.x.y/z"),
        ("a/#", "topic://b.>", True, "a", "topic://b"),
        ("#", "topic://>", True, "x/y", "topic://x.y"),
    ],
)
def test_the_rest_of_a_name_is_kept_both_ways(
    remote: str, local: str, is_mqtt: bool, there: str, here: str
) -> None:
    assert Names(remote, local, is_in=True, is_mqtt=is_mqtt).arriving(there) == here
    assert Names(remote, local, is_in=False, is_mqtt=is_mqtt).leaving(here) == there


def test_without_a_wildcard_all_goes_to_one() -> None:
    assert Names("a/+/c", "queue://b", is_in=True, is_mqtt=True).arriving("a/x/c") == "queue://b"
    assert Names("a", "topic://b.*", is_in=False, is_mqtt=True).leaving("topic://b.x") == "a"


def test_what_a_rule_does_not_cover_has_no_name_here() -> None:
    assert Names("a/#", "topic://b.>", is_in=True, is_mqtt=True).arriving("c/x") is None
    stomp = Names("/topic/a.>", "topic://b.>", is_in=True, is_mqtt=False)
    assert stomp.arriving("/topic/c.x") is None
    assert stomp.arriving("/topic/a.*") is None  # no client here could ask for it by this name


def test_kinds_of_destinations() -> None:
    assert bare("/queue/a") == bare("topic://a") == bare("a") == "a"
    assert is_queue_like("/queue/a")
    assert is_queue_like("$queue/a")
    assert not is_queue_like("/topic/a")


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("a.>", "a.b", True),
        ("a.>", "b.c", False),
        ("a.*.c", "a.>", True),
        ("#", "x", True),
    ],
)
def test_overlap_is_seen_from_both_sides(one: str, two: str, expected: bool) -> None:
    assert overlap(one, two) is overlap(two, one) is expected
