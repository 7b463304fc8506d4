"""Which destination holds most, and how much all together ever held."""

from types import SimpleNamespace
from typing import Any

from tidegate.broker.limits.waiting import LOOK_EVERY, Waiting
from tidegate.broker.turn.walks import STEP_LISTS, Walks
from tidegate.spi import CursorMemory


def leaf(name: str, size: int) -> Any:
    return SimpleNamespace(destination=name, cursor=SimpleNamespace(memory_bytes=size))


async def test_the_tree_asks_its_leaves_now_and_then() -> None:
    leaves = [leaf(f"queue://{number}", number) for number in range(3 * STEP_LISTS)]
    stored, unstored = CursorMemory(), CursorMemory()
    walks = Walks()
    waiting = Waiting(lambda: leaves, (stored, unstored), walks)
    stored.used, unstored.used = 100, 50
    waiting.sample()
    walks.finish()
    last = 3 * STEP_LISTS - 1
    assert waiting.snapshot() == {
        "waiting.maximum": 150,
        "waiting.largest.bytes": last,
        "waiting.largest.destination": f"queue://{last}",
    }
    leaves.append(leaf("topic://large", 1 << 20))
    stored.used = 20
    for _ in range(LOOK_EVERY):
        assert waiting.largest_bytes == last
        waiting.sample()
        walks.finish()
    assert (waiting.maximum, waiting.largest) == (150, "topic://large")
