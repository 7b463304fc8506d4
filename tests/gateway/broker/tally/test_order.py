"""Keys in order, of which some come and go."""

from __future__ import annotations

import random

import pytest

from tidegate.broker.tally import order as module
from tidegate.broker.tally.order import Key, Order


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_sorting_says_whatever_comes_and_goes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_MAX", 4)
    chance, order, keys = random.Random(seed), Order(), set[Key]()
    for _ in range(400):
        key = (-chance.randrange(5), f"queue://{chance.randrange(40)}")
        if key in keys:
            keys.remove(key)
            order.remove(key)
        else:
            keys.add(key)
            order.add(key)
        assert list(order.behind(None)) == sorted(keys)
        assert list(order.behind(key)) == [item for item in sorted(keys) if item > key]
    for key in list(keys):
        order.remove(key)
    assert list(order.behind(None)) == []
