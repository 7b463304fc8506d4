"""Masters on shared storage that are killed by SIGKILL at any moment: one standby after the other follows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from crash_crew import amount
from masters import Member, on_this_machine, struck_again_and_again

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]


@pytest.mark.parametrize("plugin", ["journal", "journaled"])
async def test_nothing_confirmed_is_lost_over_twenty_masters(tmp_path: Path, plugin: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    where = f'directory = "{shared}"'
    if plugin == "journaled":
        where = f'url = "sqlite:///{shared}/tidegate.db"\njournal_directory = "{shared}/front"'
    store = f'[store]\nplugin = "{plugin}"\n{where}\nlock_policy = "wait"\nlock_renew_period = "100ms"\n'
    one, two = on_this_machine(tmp_path / "one", store), on_this_machine(tmp_path / "two", store)
    took = await struck_again_and_again(one, two, [Member.killed] * amount(20, 60), seed=5)
    print(f"store={plugin} take_over_s={sorted(round(each, 2) for each in took)}")
