"""What happens again and again to a rule's connection is said once, and then at growing distance how often."""

from __future__ import annotations

from tidegate_bridge._repeats import CALM_S, FIRST_S, LAST_S, Repeats


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_rule_that_fails_each_second_says_so_ever_less_often() -> None:
    clock = Clock()
    repeats = Repeats(clock)
    said: list[tuple[float, int]] = []
    connected = 0
    for second in range(4 * 3600):
        clock.now = 1000.0 + second
        connected += repeats.is_connected()
        if count := repeats.lost("refused"):
            said.append((second, count))
    moments = [second for second, _ in said]
    assert moments[:4] == [0, FIRST_S, 3 * FIRST_S, 7 * FIRST_S]
    assert [count for _, count in said][:4] == [1, FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert moments[-1] - moments[-2] == LAST_S
    assert connected == len(said) + 1  # before each, and behind the last


def test_what_is_new_is_said_at_once_and_so_is_the_end() -> None:
    repeats = Repeats(Clock())
    assert repeats.lost("it cannot be reached") == 1
    assert repeats.lost("it cannot be reached") == 0
    assert repeats.lost("wrong password") == 1
    assert repeats.lost("it cannot be reached") == 0  # they take turns
    assert repeats.is_connected()
    assert not repeats.is_connected()


def test_after_a_long_time_it_is_news_again() -> None:
    clock = Clock()
    repeats = Repeats(clock)
    assert repeats.lost("gone") == 1
    assert repeats.is_connected()
    clock.now += CALM_S - 1
    assert repeats.lost("gone") == 1  # the first distance is over
    assert repeats.is_connected()
    clock.now += 10
    assert repeats.lost("gone") == 0
    assert not repeats.is_connected()
    clock.now += CALM_S
    assert repeats.lost("gone") == 1


def test_texts_that_differ_each_time_take_no_more_memory() -> None:
    repeats = Repeats(Clock())
    assert [repeats.lost(f"message {number}") for number in range(100)] == [1] * 100
    assert len(repeats._known) <= 8
