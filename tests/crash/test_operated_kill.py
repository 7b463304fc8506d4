"""Moves, retries, purges and what undoes them, whose gateway is killed by SIGKILL at any moment while clients publish."""

from __future__ import annotations

from pathlib import Path

import pytest
from crash_crew import amount
from operated_kills import REQUESTS, killed_again_and_again

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]


@pytest.mark.parametrize("store", ["journal", "jdbc", "journaled"])
@pytest.mark.parametrize("what", REQUESTS)
async def test_each_message_is_in_one_place_over_many_kills(
    tmp_path: Path, what: str, store: str
) -> None:
    await killed_again_and_again(tmp_path, store, what, kills=amount(6, 20), seed=7)
