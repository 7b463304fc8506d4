"""The switch from memory to pages and back, in every order, with every number of messages."""

from pathlib import Path

import pytest

from tidegate.spi import CursorFactory
from tidegate.testing._cursor_kit.box import switch_over
from tidegate.testing._cursor_kit.switch_over import BEFORE_MAX, STEPS, orders
from tidegate_cursors import FileCursorFactory, StoreCursorFactory, VmCursorFactory


def test_each_step_is_in_each_order_once() -> None:
    found = list(orders())
    assert len(set(found)) == len(found) == 2520
    assert all(sorted(order) == sorted(STEPS) for order in found)


@pytest.mark.long
@pytest.mark.parametrize(
    "factory",
    [StoreCursorFactory(), VmCursorFactory(), FileCursorFactory()],
    ids=["store", "vm", "file"],
)
async def test_it_goes_well_at_every_point_with_every_number_of_messages(
    factory: CursorFactory, tmp_path: Path
) -> None:
    """With so little memory that the file cursor writes each message to its file at once."""
    for order in orders():
        for count in range(1, BEFORE_MAX + 1, 2):
            for recovered in (0, count // 2):
                await switch_over(factory, tmp_path, recovered, count - recovered, order, 1)
